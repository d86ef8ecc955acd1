"""What the installed program measured of a model without rules (launch/confirm.py)."""

from __future__ import annotations

from itertools import pairwise

from ..records import dataclass
from ..units import MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Body:
    """The caches and the graph buffer without the head, all of it on one device and of one
    sequence. `sizes`: bytes of both by (tokens of a micro-batch, cells), as printed (whole MiB) and
    one more; of two micro-batches, and of three contexts with the smaller one, two with the
    other."""

    flash_attn: bool
    types: tuple[str, str]  # of K and V
    sizes: Mapping[tuple[int, int], tuple[int, int]]

    def at(self, n_ubatch: int, n_ctx: int) -> int:
        """Return the graph buffer's bytes in a context, 0 beyond what was measured.

        A buffer is the largest of several that are linear in both: a line between two measurements
        is above it, and one that goes on beyond them below.
        """
        few, many = self._tokens
        n = max(few, n_ubatch)
        sizes = []
        for row in (self._row(few, 1), self._row(many, 1)):
            for (short, low), (long, high) in pairwise(row):
                if n_ctx <= long:
                    share = max(0, n_ctx - short) / (long - short)
                    sizes.append(low * (1 - share) + high * share)
                    break
        if n > many or len(sizes) < 2:
            return 0
        share = (n - few) / (many - few)
        return int(sizes[0] * (1 - share) + sizes[1] * share) + 1

    def cached(self, n_ubatch: int, n_ctx: int) -> int:
        """Return the caches' bytes in a context, 0 beyond what was measured.

        States are the same in every context, and a window's cells, with room for a micro-batch, end
        where it does. So the more cells, the less is added by one more: a line that goes on beyond
        two measurements is above.
        """
        few, many = self._tokens
        one, other = self._row(few, 0), self._row(many, 0)
        # each may be a MiB less
        more = other[-1][1] - one[-1][1] + MiB
        if n_ubatch <= few:
            return _above(one, n_ctx)
        if n_ubatch > many:
            return 0
        size = _above(other, n_ctx)
        return min(size, _above(one, n_ctx) + more) if n_ctx <= one[-1][0] else size

    @property
    def fixed(self) -> int:
        """The bytes at most that a further sequence adds to a shared cache: its states, and its
        windows if they are shorter than the second of the contexts."""
        (short, low), (long, high) = self._row(self._tokens[0], 0)[-2:]
        return max(0, high - max(0, high - low - MiB) * long // (long - short))

    @property
    def _tokens(self) -> tuple[int, int]:
        tokens = [n for n, _ in self.sizes]
        return min(tokens), max(tokens)

    def _row(self, n_ubatch: int, part: int) -> list[tuple[int, int]]:
        """Return cells and bytes at a micro-batch that was measured."""
        return sorted([(at, size[part]) for (n, at), size in self.sizes.items() if n == n_ubatch])


def _above(row: list[tuple[int, int]], n_ctx: int) -> int:
    """Return the most bytes that a context takes, 0 if nothing tells."""
    sizes = [size for cells, size in row if cells >= n_ctx][:1]
    for (short, low), (long, high) in pairwise(row):
        if n_ctx >= long:
            sizes.append(high + (high - low + MiB) * (n_ctx - long) // (long - short))
        elif n_ctx <= short:
            sizes.append(low - max(0, high - low - MiB) * (short - n_ctx) // (long - short))
    return min(sizes, default=0)
