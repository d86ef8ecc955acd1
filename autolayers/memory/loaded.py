"""A launch whose weights and caches have their places: all that its graphs, and what it holds
besides, follow from."""

from __future__ import annotations

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from ..model import Model
    from .cache import Memory
    from .context import Context
    from .weights import Placement


@dataclass(frozen=True)
class Loaded:
    model: Model
    params: Params
    context: Context
    placement: Placement
    memory: Memory
    doubts: tuple[str, ...] = ()  # why sizes are not llama.cpp's own
    notes: tuple[str, ...] = ()  # what else is worth a warning
