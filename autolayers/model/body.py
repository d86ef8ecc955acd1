"""What the installed program measured of a model whose graph has no rules (launch/confirm.py)."""

from __future__ import annotations

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Body:
    """The graph buffer without the head, all of it on one device. `sizes`: bytes by (tokens of a
    micro-batch, cells), of two of each."""

    flash_attn: bool
    types: tuple[str, str]  # of K and V
    sizes: Mapping[tuple[int, int], int]

    def at(self, n_ubatch: int, n_ctx: int) -> int:
        """Return the bytes in a context, 0 beyond what was measured.

        A buffer is the largest of several that are linear in both: a line between two measurements
        is above it, and one that goes on beyond them below.
        """
        (few, many), (short, long) = [sorted(set(side)) for side in zip(*self.sizes, strict=True)]
        n, cells = max(few, n_ubatch), max(short, n_ctx)
        if n > many or cells > long:
            return 0
        x, y = (n - few) / (many - few), (cells - short) / (long - short)
        low = self.sizes[few, short] * (1 - x) + self.sizes[many, short] * x
        high = self.sizes[few, long] * (1 - x) + self.sizes[many, long] * x
        return int(low * (1 - y) + high * y) + 1
