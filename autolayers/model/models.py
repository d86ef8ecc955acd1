"""Many models, without all of them in memory."""

from __future__ import annotations

from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .model import Model

KEPT = 16


class Models(Sequence["Model"]):
    """Models by their names, each read on demand. The latest KEPT are not read again."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Model]) -> None:
        self.names, self.read = names, read
        self._last: dict[str, Model] = {}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: Any) -> Any:
        name = self.names[i]
        model = self._last.pop(name) if name in self._last else self.read(name)
        self._last[name] = model
        if len(self._last) > KEPT:
            del self._last[next(iter(self._last))]
        return model
