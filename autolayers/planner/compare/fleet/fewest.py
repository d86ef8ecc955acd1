"""The fewest servers that serve a number of users.

    counts = fewest(sorts, room, needed, costs, alone, counts)

Of the choices whose slots are enough for the users of each model:

1. those in which the most models keep enough slots while one server is away, or all those of a
   machine that is the only one of its kind,
2. of these those that take the fewest GPUs (a machine without GPUs counts as one),
3. of these those that cost the least: of the fleet's own costs, with a promise the memory of the
   GPUs, so that larger ones are left free, and without one the seconds of a token.

Few possibilities are all tried. Of more, HiGHS solves one rule after the other; without SciPy
servers that are not needed are removed from the given choice.
"""

from __future__ import annotations

from .assign import ALL, Sort, choices, has_solver, possibilities, served, silenced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Three rules, so at most 15 seconds.
_SECONDS = 5.0  # of HiGHS for a rule
# See `rank`: (models that wait, GPUs, cost).
_Rank = tuple[int, int, float]
Rule = tuple[float, dict[int, float]]  # numbers times these, in all this at least


class _Columns:
    """Where the solver's numbers begin: servers of each sort at 0, whether it is `used`, users of
    each model's `largest` server, and whether the model `waits` while that is away."""

    def __init__(self, sorts: int, models: int) -> None:
        self.used = sorts
        self.largest = 2 * sorts
        self.waits = 2 * sorts + models


def fewest(
    sorts: Sequence[Sort],
    room: Sequence[int],
    needed: Sequence[int],
    costs: Sequence[float],
    alone: Sequence[bool],
    counts: Sequence[int],
    solver: bool = True,
) -> tuple[int, ...]:
    """Return how many servers of each sort, within the GPUs of each kind (`room`). `needed`: users
    of each model, 1 at least, 0 for one that is not served; `costs` of a server of each sort;
    `alone`: whether a kind has a single machine; `counts`: a choice that serves them."""
    problem = _Problem(sorts, room, needed, costs, alone)
    if possibilities(sorts, room) <= ALL:
        # All that serve: the caller's choice is one, so there is at least one.
        serving = [each for each in choices(sorts, room) if problem.serves(each)]
        return min(serving, key=problem.rank)
    solution = problem.solved() if solver and has_solver() else None
    return tuple(problem.thinned([*counts]) if solution is None else solution)


class _Problem:
    def __init__(
        self,
        sorts: Sequence[Sort],
        room: Sequence[int],
        needed: Sequence[int],
        costs: Sequence[float],
        alone: Sequence[bool],
    ) -> None:
        self.sorts = sorts
        self.room = room
        self.needed = needed
        self.gpus = [sum(size for _, size in sort.takes) for sort in sorts]
        self.costs = costs
        # Servers on the only machine of a kind fail together with it.
        self.together = [any(alone[kind] for kind, _ in sort.takes) for sort in sorts]

    def serves(self, counts: Sequence[int]) -> bool:
        users = served(self.sorts, counts, len(self.needed))
        return all(has >= needs for has, needs in zip(users, self.needed, strict=True))

    def rank(self, counts: Sequence[int]) -> _Rank:
        """Return the rank, smaller is better: models whose users wait while a server is away, GPUs,
        costs."""
        users = served(self.sorts, counts, len(self.needed))
        # Users of the largest server, or of all servers of a machine that is the only one of its
        # kind.
        largest = [0] * len(self.needed)
        for i, (sort, count) in enumerate(zip(self.sorts, counts, strict=True)):
            for model, each in sort.serves if count else ():
                largest[model] = max(largest[model], each * self._fails(i, count))
        # Enough for all while everything runs, but not while that is away.
        waiting = sum(
            has - away < needs for has, away, needs in zip(users, largest, self.needed, strict=True)
        )
        gpus, size = (
            sum(each * count for each, count in zip(costs, counts, strict=True))
            for costs in (self.gpus, self.costs)
        )
        return waiting, int(gpus), size

    def _fails(self, i: int, count: int) -> int:
        """Return the servers of a sort that fail together."""
        return count if self.together[i] else 1

    def thinned(self, counts: list[int]) -> list[int]:
        """Return the counts without servers that are not needed, in blocks that become smaller."""
        # Removing a server must not leave more models without a reserve.
        waiting = self.rank(counts)[0]
        # Those that serve the fewest users for a GPU go first.
        order = sorted(
            range(len(counts)),
            key=lambda i: sum(each for _, each in self.sorts[i].serves) / self.gpus[i],
        )
        for i in order:
            block = counts[i]
            # Halved until single servers: of thousands, one at a time would take too long.
            while block:
                less = [*counts]
                less[i] -= min(block, counts[i])
                if less != counts and self.serves(less) and self.rank(less)[0] <= waiting:
                    counts = less
                else:
                    block //= 2
        return counts

    # --- by scipy.optimize.milp

    def solved(self) -> list[int] | None:
        """Solve one rule after the other, each kept for the next; return None without an answer."""
        sorts = len(self.sorts)
        models = len(self.needed)
        # Columns of the solver, see _Columns.
        at = _Columns(sorts, models)
        highest_counts = [sort.most(self.room) for sort in self.sorts]
        # No model's largest server has more users than this, so that `top` switches a rule off.
        top = float(
            max(
                each * self._fails(i, highest_counts[i])
                for i, sort in enumerate(self.sorts)
                for _, each in sort.serves
            )
        )
        # What every answer keeps: the room, the users of each model, and those that wait while
        # its largest server is away, of `top` users at most
        rules: list[Rule] = []
        # GPUs of a kind: at most the room. All rules are "at least", so both sides are negated.
        for kind, gpus in enumerate(self.room):
            takes = [dict(sort.takes).get(kind, 0) for sort in self.sorts]
            rules.append((-float(gpus), {i: -float(each) for i, each in enumerate(takes) if each}))
        for model, needs in enumerate(self.needed):
            # The users that a server of each sort serves of a model
            serves = [dict(sort.serves).get(model, 0) for sort in self.sorts]
            slots = {i: float(each) for i, each in enumerate(serves) if each}
            away = {at.largest + model: -1.0, at.waits + model: top}
            # The slots serve all; without the largest server too, unless the model waits.
            rules += [(float(needs), slots), (float(needs), {**slots, **away})]
            for i, users in slots.items():
                # A server alone counts once however often it is used, servers that fail together
                # all count.
                servers = i if self.together[i] else at.used + i
                rules.append((0.0, {at.largest + model: 1.0, servers: -users}))
        for i, count in enumerate(highest_counts):
            # `used` is 1 where any server of the sort runs: count / most, rounded up by the solver.
            rules.append((0.0, {at.used + i: float(count), i: -1.0}))
        # Servers up to the room for them, 0 or 1 for `used` and `waits`, users for `largest`.
        highest = [*highest_counts, *[1] * sorts, *[top] * models, *[1] * models]
        # 1: whole numbers. `largest` may be fractional, as it is only compared.
        kinds = [1] * (2 * sorts) + [0] * models + [1] * models
        answer: list[int] | None = None
        # What is made small, the most important first: models that wait, GPUs, costs
        for goal in (
            {at.waits + model: 1.0 for model in range(len(self.needed))},
            {i: float(gpus) for i, gpus in enumerate(self.gpus)},
            # Scaled to 1, so that the solver's gap means the same for bytes and for seconds.
            {i: size / (max(self.costs) or 1.0) for i, size in enumerate(self.costs)},
        ):
            solution = _minimised(goal, rules, highest, kinds)
            if solution.x is None:
                # Time is up: what the rules before gave is still a choice that serves all.
                return answer
            answer = [round(each) for each in solution.x[:sorts]]
            # Rules before this one may not get worse: its value is fixed, with a little room for
            # rounding.
            rules.append((-round(solution.fun) - 1e-6, {i: -each for i, each in goal.items()}))
        return answer


def _minimised(
    goal: dict[int, float], rules: Sequence[Rule], highest: Sequence[float], kinds: Sequence[int]
) -> Any:
    """Return the solver's answer; `highest` of each number, which is whole if its kind is 1."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    width = len(highest)
    matrix = _matrix([numbers for _, numbers in rules], width)
    lower_bounds = [start for start, _ in rules]
    with silenced():
        # Near enough to the bound.
        return milp(
            [goal.get(at, 0.0) for at in range(width)],
            integrality=kinds,
            bounds=Bounds([0.0] * width, highest),
            constraints=[LinearConstraint(matrix, lower_bounds, float("inf"))],
            options={"time_limit": _SECONDS, "mip_rel_gap": 1e-4},
        )


def _matrix(rows: Sequence[dict[int, float]], width: int) -> object:
    """Return a sparse matrix, as nearly all numbers are 0."""
    from scipy.sparse import coo_array

    places = [(i, at, number) for i, row in enumerate(rows) for at, number in row.items()]
    down, along, numbers = zip(*places, strict=True)
    return coo_array((numbers, (down, along)), shape=(len(rows), width)).tocsr()
