"""A small linear program by the simplex method: the most of one quantity within limits.

    largest([1.0, 1.0], [[1.0, 2.0], [3.0, 1.0]], [4.0, 6.0])         # ([1.6, 1.2], 2.8)

Dense and in floats, for some dozens of rows (G. B. Dantzig; R. G. Bland's rule ends circles).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PIVOTS = 3000
_BLAND = 1000  # pivots, after which the first column is taken, no longer the best
# Below this a number is a rounding error of the floats.
_ZERO = 1e-9


def largest(
    goal: Sequence[float], rows: Sequence[Sequence[float]], limits: Sequence[float]
) -> tuple[list[float], float] | None:
    """Return the x >= 0 with the most goal * x where rows * x <= limits, which are 0 or more, and
    that most; None if it is not found within _PIVOTS."""
    count = len(goal)
    height = len(rows)
    table = _table(rows, limits)
    # The row of the goal: what each column still adds to it, negated; the last is what is reached.
    top = [-each for each in goal] + [0.0] * (height + 1)
    # Starts with the slacks, which is a solution as all limits are 0 or more.
    basis = [count + i for i in range(height)]
    for pivot in range(_PIVOTS):
        # No column adds anything: the answer.
        columns = [j for j in range(count + height) if top[j] < -_ZERO]
        if not columns:
            return _solution(table, basis, count), top[-1]
        # Best first is quick, but may go in circles where limits are 0; Bland's rule cannot.
        enters = columns[0] if pivot > _BLAND else min(columns, key=top.__getitem__)
        leaves = _leaving_row(table, basis, enters)
        # A column without a limit: the goal has none either.
        if leaves is None:
            return None
        basis[leaves] = enters
        _exchange(table, top, leaves, enters)
    return None


def _table(rows: Sequence[Sequence[float]], limits: Sequence[float]) -> list[list[float]]:
    """Return the rows, each with a slack of its own and its limit."""
    height = len(rows)
    return [
        [*row, *(float(i == j) for j in range(height)), limit]
        for i, (row, limit) in enumerate(zip(rows, limits, strict=True))
    ]


def _solution(table: Sequence[Sequence[float]], basis: Sequence[int], count: int) -> list[float]:
    """Return x, of `count` numbers, in the table's last column."""
    values = [0.0] * count
    for i, j in enumerate(basis):
        if j < count:
            values[j] = table[i][-1]
    return values


def _leaving_row(table: Sequence[Sequence[float]], basis: Sequence[int], enters: int) -> int | None:
    """Return the row whose limit is reached first as a column grows; None without one."""
    ratios = [
        # On equal ratios the lowest basis number leaves, which Bland's rule needs.
        (row[-1] / row[enters], basis[i], i)
        for i, row in enumerate(table)
        if row[enters] > _ZERO
    ]
    return min(ratios)[2] if ratios else None


def _exchange(table: list[list[float]], top: list[float], i: int, enters: int) -> None:
    """Turn a column into a unit vector, with its 1 in row `i`."""
    # Only the row's own multiple is taken from the others, so that the column is 0 in all of them.
    size = table[i][enters]
    row = table[i] = [each / size for each in table[i]]
    for other in (*table[:i], *table[i + 1 :], top):
        factor = other[enters]
        if factor:
            other[:] = [each - factor * own for each, own in zip(other, row, strict=True)]
