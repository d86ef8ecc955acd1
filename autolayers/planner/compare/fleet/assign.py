"""How many servers of each sort a fleet runs, so that the most users are served.

    counts = assign(sorts, room, weights)
    most(sorts, counts, weights)             # users, all models together

A sort of server takes GPUs of machines of one kind, or of two that work together, and serves a
number of users of a model, or of several that share a GPU. Machines of a kind are one number, so
ten thousand machines cost what a hundred do. The users of the models stand in a fixed ratio, their
weights, so the model that is served worst says how many there may be, and the search makes its
number the largest.

Few possibilities are all tried. Of more, HiGHS finds the best (`pip install autolayers[fleet]`):
branch and bound with a proof. Without SciPy the GPUs go to the model that is served worst, one
server after the other; the answer then has no bound.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product

from ....records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALL = 20_000  # possibilities up to which each is tried
_SECONDS = 10.0  # of HiGHS


@dataclass(frozen=True)
class Sort:
    """`takes`: (kind of machine, GPUs of it); `serves`: (model, users)."""

    takes: tuple[tuple[int, int], ...]
    serves: tuple[tuple[int, int], ...]

    def most(self, left: Sequence[int]) -> int:
        """Return the servers that these GPUs of each kind have room for."""
        return min(left[kind] // gpus for kind, gpus in self.takes)


@dataclass(frozen=True)
class _Assigned:
    """`counts`: servers of each sort; `bound`: users that no choice can exceed, None without
    SciPy."""

    counts: tuple[int, ...]
    bound: float | None = None


def assign(
    sorts: Sequence[Sort],
    room: Sequence[int],
    weights: Sequence[float],
    solver: bool = True,
    quick: bool = False,
) -> _Assigned:
    """Return the best counts within the GPUs of each kind (`room`). `weights` of the models sum to
    1, each model has a sort, but for those of weight 0, which are not served. `solver`: HiGHS may
    be asked; `quick`: a second of it does."""
    search = _Filling(sorts, room, weights)
    # E.g. three sorts with 26 servers each at most.
    if possibilities(sorts, room) <= ALL:
        exact = max(choices(sorts, room), key=search.worth)
        # Filled after the choice: worth counts the model served worst, which more servers of others
        # do not change.
        return _Assigned(tuple(search.filled(exact)), users_in_ratio(sorts, exact, weights))
    # A second is enough where an answer is only compared.
    solved = _solved(sorts, room, weights, 1.0 if quick else _SECONDS) if solver else None
    if solved is None:
        return _Assigned(tuple(search.improved(search.filled((0,) * len(sorts)))))
    return _Assigned(tuple(search.filled(solved.counts)), solved.bound)


def possibilities(sorts: Sequence[Sort], room: Sequence[int]) -> int:
    """Return an upper bound of the counts to try; more than ALL if there are more."""
    number = 1
    for sort in sorts:
        number *= 1 + sort.most(room)
        if number > ALL:
            # Only whether there are too many matters; the product may be astronomically large.
            break
    return number


def choices(sorts: Sequence[Sort], room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every choice that the machines have room for."""
    ranges = [range(1 + sort.most(room)) for sort in sorts]
    # Most products exceed a kind's GPUs, as each range counts the machines for itself alone.
    for counts in product(*ranges):
        if min(left_of(room, sorts, counts)) >= 0:
            yield counts


def left_of(room: Sequence[int], sorts: Sequence[Sort], counts: Sequence[int]) -> list[int]:
    """Return the GPUs of each kind that no server has; negative: that are missing."""
    left = [*room]
    for sort, count in zip(sorts, counts, strict=True):
        for kind, gpus in sort.takes:
            left[kind] -= gpus * count
    return left


def served(sorts: Sequence[Sort], counts: Sequence[int], models: int) -> list[int]:
    """Return the users of each model."""
    users = [0] * models
    for sort, count in zip(sorts, counts, strict=True):
        for model, each in sort.serves:
            users[model] += each * count
    return users


def users_in_ratio(sorts: Sequence[Sort], counts: Sequence[int], weights: Sequence[float]) -> float:
    """Return the users in the ratio of the weights."""
    users = served(sorts, counts, len(weights))
    # The model that is served worst for its weight limits all, as the ratio is fixed.
    return min(_in_ratio(users, weights))


def _in_ratio(users: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Return the users in all that each model allows for its weight."""
    return [each / weight for each, weight in zip(users, weights, strict=True) if weight]


def dealt(users: int, weights: Sequence[float]) -> list[int]:
    """Return whole users of each model, by largest remainders."""
    exact = [users * weight for weight in weights]
    # 3 * (1/3) may be a little less than 1.
    parts = [int(each + 1e-9) for each in exact]
    # Those whose rounding took the most away come first.
    order = sorted(range(len(weights)), key=lambda i: parts[i] - exact[i])
    for i in order[: users - sum(parts)]:
        parts[i] += 1
    return parts


def matrices(
    sorts: Sequence[Sort], kinds: int, weights: Sequence[float]
) -> tuple[list[list[float]], list[list[float]]]:
    """Return a column for each sort, the last is the users in all: the GPUs of each kind that it
    takes, and the users of each model beyond its share."""
    takes = [[0.0] * (len(sorts) + 1) for _ in range(kinds)]
    shares = [[0.0] * len(sorts) + [-weight] for weight in weights]
    for i, sort in enumerate(sorts):
        # Each model has at least its weight's share of all users: users - weight * all >= 0.
        for model, users in sort.serves:
            shares[model][i] += users
        for kind, gpus in sort.takes:
            takes[kind][i] += gpus
    return takes, shares


class _Filling:
    """Gives GPUs that are left to models."""

    def __init__(
        self, sorts: Sequence[Sort], room: Sequence[int], weights: Sequence[float]
    ) -> None:
        self.sorts = sorts
        self.room = room
        self.weights = weights
        self.of_model: list[list[int]] = [[] for _ in weights]
        for i, sort in enumerate(sorts):
            for model, _ in sort.serves:
                self.of_model[model].append(i)
        # What a GPU of a kind is worth: what it gives each model at best, on average
        best = [[0.0] * len(self.weights) for _ in self.room]
        for sort in self.sorts:
            gpus = sum(each for _, each in sort.takes)
            for kind, _ in sort.takes:
                for model, users in sort.serves:
                    best[kind][model] = max(best[kind][model], users / self.weights[model] / gpus)
        # No model alone says what a kind is worth.
        prices = [sum(row) / len(row) for row in best]
        # what a server gives for the price of what it takes; one over two kinds pays for both
        self.gain = [
            sum(users / weights[model] for model, users in sort.serves)
            / max(1e-9, sum(prices[kind] * gpus for kind, gpus in sort.takes))
            for sort in sorts
        ]

    def worth(self, counts: Sequence[int]) -> list[float]:
        """Return the users that each model allows, the worst first: the larger list is better."""
        # Compared as lists: of equal worst models the second worst decides.
        users = served(self.sorts, counts, len(self.weights))
        return sorted(_in_ratio(users, self.weights))

    def filled(self, counts: Sequence[int]) -> list[int]:
        """Return the counts with the GPUs that are left given to the model served worst, again and
        again."""
        counts, left = [*counts], left_of(self.room, self.sorts, counts)
        users = served(self.sorts, counts, len(self.weights))
        # With thousands of machines one server at a time would take too long.
        block = max(1, max(self.room) // 64)
        while True:
            # The models, the one that is served worst for its weight first
            served_models = [i for i, weight in enumerate(self.weights) if weight]
            for model in sorted(
                served_models, key=lambda model: users[model] / self.weights[model]
            ):
                # The model served worst first; if nothing fits for it, the next.
                fits = [i for i in self.of_model[model] if self._fits(i, left)]
                if fits:
                    break
            else:
                return counts
            chosen = max(fits, key=self.gain.__getitem__)
            sort = self.sorts[chosen]
            count = min(block, sort.most(left))
            counts[chosen] += count
            for kind, gpus in sort.takes:
                left[kind] -= gpus * count
            for served_model, each in sort.serves:
                users[served_model] += each * count

    def improved(self, counts: list[int]) -> list[int]:
        """Return the counts after servers of one sort made room for one of another, as long as that
        helps."""
        worth = self.worth(counts)
        # Large moves first: one server of hundreds hardly changes what is served worst.
        block, moves = max(counts), 0
        # 2,000 moves bound the time.
        while block and moves < 2_000:
            for removed, added in product(range(len(counts)), repeat=2):
                fewer = [*counts]
                fewer[removed] -= min(block, fewer[removed])
                room = self.sorts[added].most(left_of(self.room, self.sorts, fewer))
                if removed == added or fewer == counts or not room:
                    continue
                fewer[added] += min(room, block)
                moves += 1
                now = self.filled(fewer)
                if self.worth(now) > worth:
                    counts, worth = now, self.worth(now)
                    break
            else:
                block //= 2
        return counts

    def _fits(self, i: int, left: Sequence[int]) -> bool:
        takes = self.sorts[i].takes
        if len(takes) == 1:
            return left[takes[0][0]] >= takes[0][1]
        return all(left[kind] >= gpus for kind, gpus in takes)


def has_solver() -> bool:
    return find_spec("scipy") is not None


def _solved(
    sorts: Sequence[Sort], room: Sequence[int], weights: Sequence[float], seconds: float
) -> _Assigned | None:
    """Return the choice of scipy.optimize.milp: the most users so that each model has its share,
    within the room; None without SciPy or an answer of its."""
    if not has_solver():
        return None
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = len(sorts)
    takes, shares = matrices(sorts, len(room), weights)
    with silenced():
        # Near enough to the bound.
        solution = milp(
            # milp minimises, so the users are negated. Counts are whole, the number of users is
            # not.
            [0.0] * count + [-1.0],
            integrality=[1] * count + [0],
            bounds=Bounds(0, float("inf")),
            constraints=[
                LinearConstraint(shares, 0, float("inf")),
                LinearConstraint(takes, 0, list(room)),
            ],
            options={"time_limit": seconds, "mip_rel_gap": 2e-3},
        )
    if solution.x is None:
        return None
    # HiGHS has a bound even if the time was up before the proof.
    bound = -float(solution.mip_dual_bound) if solution.mip_dual_bound is not None else None
    return _Assigned(tuple(round(each) for each in solution.x[:count]), bound)


@contextmanager
def silenced() -> Iterator[None]:
    """Silence HiGHS, which prints some lines to standard output, which is for the answer."""
    sys.stdout.flush()
    # Below Python: HiGHS is C++ and writes to file descriptor 1 itself.
    stdout = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)
