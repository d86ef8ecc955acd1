"""People to serve: --users and the promise that is made to each of them."""

from __future__ import annotations

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class ServedRates(Protocol):
        """What each of them gets."""

        @property
        def rate(self) -> float: ...
        @property
        def first(self) -> float: ...


@dataclass(frozen=True)
class Users:
    """How many (None: as many as the promise allows), the context of each (0: what the workload
    takes), and the promise: tokens per second of an answer, seconds to its first token. `grows`: a
    launch that stays on the GPUs gets more slots and is not searched again for them, and only the
    number that is asked for, or kept, is priced."""

    count: int | None = None
    context: int = 0
    rate: float = 0.0
    first: float = 0.0
    grows: bool = False

    @property
    def promise(self) -> bool:
        return bool(self.rate or self.first)

    @property
    def alone(self) -> bool:
        """Whether no other number is of interest."""
        return self.grows and self.count is not None

    def is_kept_by(self, served: ServedRates) -> bool:
        """Return whether this keeps the promise."""
        return served.rate >= self.rate and (not self.first or served.first <= self.first)

    def words(self) -> list[str]:
        """Return the promise."""
        # e.g. ["20 tokens/s each", "a first token within 2 s"]
        words = []
        if self.rate:
            words.append(f"{self.rate:g} tokens/s each")
        if self.first:
            words.append(f"a first token within {self.first:g} s")
        return words
