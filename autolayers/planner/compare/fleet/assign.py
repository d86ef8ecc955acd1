"""How many servers of each sort a fleet runs.

    most = assign(Supply(sorts, room, weights))     # that serve the most users
    most.counts, most.users, most.in_ratio          # of each sort, of each model, all together
    fewest(most, needed, costs, alone)              # that serve the users of each model

A sort of server takes GPUs of machines of one kind, or of two that work together, and serves a
number of users of a model, or of several that share a GPU. Machines of a kind are one number, so
ten thousand machines cost what a hundred do. The users of the models stand in a fixed ratio, their
weights, so the model that is served worst says how many there may be, and the search makes its
number the largest.

Few possibilities are all tried. Of more, HiGHS finds the best. Without SciPy the GPUs go to the
model that is served worst, one server after the other; the answer then has no bound.
"""

from __future__ import annotations

from ....records import dataclass, lazy, replace
from ...assignment import ALL, Column, Left, choices, has_solver, solved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ...assignment import Rule


@dataclass(frozen=True)
class Sort:
    """`takes`: (kind of machine, GPUs of it); `serves`: (model, users)."""

    takes: tuple[tuple[int, int], ...]
    serves: tuple[tuple[int, int], ...]

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.takes)

    @property
    def models(self) -> set[int]:
        return {model for model, _ in self.serves}


@dataclass(frozen=True)
class Supply:
    """What a fleet may run: sorts of servers within the GPUs of each kind (`room`), for models of
    these weights, which sum to 1; those of weight 0 are not served."""

    sorts: Sequence[Sort]
    room: Sequence[int]
    weights: Sequence[float]

    def of(self, sorts: Sequence[Sort]) -> Supply:
        return replace(self, sorts=sorts)

    @property
    def left(self) -> Left:
        """All of the room."""
        return Left(dict(enumerate(self.room)))

    @property
    def few(self) -> bool:
        """Whether every choice may be tried."""
        number = 1
        for sort in self.sorts:
            number *= 1 + _most(sort, self.room)
            if number > ALL:
                # The product may be astronomically large.
                return False
        return True

    def every(self) -> Iterator[Servers]:
        """Yield every choice that the machines have room for."""
        left = self.left

        def counts(chosen: Sequence[Column]) -> Iterator[Column]:
            sort = self.sorts[len(chosen)]
            for count in range(1 + _most(sort, left.left)):
                yield Column(count, [(kind, gpus * count) for kind, gpus in sort.takes])

        for chosen in choices(len(self.sorts), counts, left):
            yield Servers(self, tuple([column.what for column in chosen]))

    def within(self) -> list[Rule]:
        """Return the rules of the room: all rules are "at least", so both sides are negated."""
        return [
            (
                -float(gpus),
                {
                    i: -float(each)
                    for i, sort in enumerate(self.sorts)
                    for own, each in sort.takes
                    if own == kind
                },
            )
            for kind, gpus in enumerate(self.room)
        ]

    def serving(self, model: int) -> dict[int, float]:
        """Return the users of a model that a server of each sort serves, by the sort's number."""
        return {
            i: float(users)
            for i, sort in enumerate(self.sorts)
            for own, users in sort.serves
            if own == model
        }


@dataclass(frozen=True)
class Servers:
    """A number of servers of each sort; `bound`: users in all that no choice exceeds, None without
    SciPy."""

    supply: Supply
    counts: tuple[int, ...]
    bound: float | None = None

    @property
    def used(self) -> list[tuple[Sort, int]]:
        """The sorts that have servers, and how many."""
        pairs = zip(self.supply.sorts, self.counts, strict=True)
        return [(sort, count) for sort, count in pairs if count]

    @lazy
    def users(self) -> list[int]:
        """Those of each model."""
        users = [0] * len(self.supply.weights)
        for sort, count in self.used:
            for model, each in sort.serves:
                users[model] += each * count
        return users

    @property
    def worst_first(self) -> list[float]:
        """The users in all that each model allows for its weight: the larger list is better."""
        # Compared as lists: of equal worst models the second worst decides.
        pairs = zip(self.users, self.supply.weights, strict=True)
        return sorted(each / weight for each, weight in pairs if weight)

    @property
    def in_ratio(self) -> float:
        """The users in the ratio of the weights: the model that is served worst limits all."""
        return self.worst_first[0]

    @property
    def possible(self) -> int:
        """The same, whole."""
        # Floats may make 40 users 39.999999.
        return int(self.in_ratio + 1e-6)

    def largest(self, alone: Sequence[bool]) -> list[int]:
        """Return the most users of each model that are served by what fails together: one server,
        or all of a sort on the only machine of a kind (`alone`)."""
        largest = [0] * len(self.supply.weights)
        for sort, count in self.used:
            together = count if _together(sort, alone) else 1
            for model, each in sort.serves:
                largest[model] = max(largest[model], each * together)
        return largest

    def filled(self, without: int | None = None) -> Servers:
        """Return the same with the GPUs that are left given to the model served worst, again and
        again; with no more of one sort."""
        supply = self.supply
        counts, users, left = [*self.counts], [*self.users], supply.left
        for sort, count in self.used:
            left.take([(kind, gpus * count) for kind, gpus in sort.takes])
        gain = _gains(supply)
        # With thousands of machines one server at a time would take too long.
        block = max(1, max(supply.room) // 64)
        served = [i for i, weight in enumerate(supply.weights) if weight]
        of_model = {model: [i for i in supply.serving(model) if i != without] for model in served}
        while True:
            # The model served worst first; if nothing fits for it, the next.
            for model in sorted(served, key=lambda i: users[i] / supply.weights[i]):
                fits = [i for i in of_model[model] if left.has(supply.sorts[i].takes)]
                if fits:
                    break
            else:
                return replace(self, counts=tuple(counts))
            chosen = max(fits, key=gain.__getitem__)
            sort = supply.sorts[chosen]
            count = min(block, _most(sort, left.left))
            counts[chosen] += count
            left.take([(kind, gpus * count) for kind, gpus in sort.takes])
            for model, each in sort.serves:
                users[model] += each * count


def _most(sort: Sort, left: Sequence[int] | Mapping[int, int]) -> int:
    """Return the servers of a sort that these GPUs of each kind have room for."""
    return min(left[kind] // gpus for kind, gpus in sort.takes)


def _together(sort: Sort, alone: Sequence[bool]) -> bool:
    return any(alone[kind] for kind, _ in sort.takes)


def _gains(supply: Supply) -> list[float]:
    """Return what a server of each sort gives for the price of the GPUs that it takes: what one of
    them gives each model at best, on average."""
    best = [[0.0] * len(supply.weights) for _ in supply.room]
    for sort in supply.sorts:
        for kind, _ in sort.takes:
            for model, users in sort.serves:
                gives = users / supply.weights[model] / sort.gpus
                best[kind][model] = max(best[kind][model], gives)
    # No model alone says what a kind is worth; a server over two kinds pays for both.
    prices = [sum(row) for row in best]
    return [
        sum(users / supply.weights[model] for model, users in sort.serves)
        / max(1e-9, sum(prices[kind] * gpus for kind, gpus in sort.takes))
        for sort in supply.sorts
    ]


def assign(supply: Supply, solver: bool = True, quick: bool = False) -> Servers:
    """Return the servers that serve the most users; each model with a weight has a sort. `solver`:
    HiGHS may be asked; `quick`: only compared, so a second of it does."""
    sorts = len(supply.sorts)
    if supply.few:
        best = max(supply.every(), key=lambda servers: servers.worst_first)
        return replace(best, bound=best.in_ratio)
    if solver and has_solver():
        # Numbers of servers, and the users in all, which are to be many.
        rules = supply.within()
        for model, weight in enumerate(supply.weights):
            # Each model has at least its share of all users.
            rules.append((0.0, {**supply.serving(model), sorts: -weight}))
        highest = [float("inf")] * (sorts + 1)
        seconds = 1.0 if quick else 10.0
        found = solved({sorts: -1.0}, rules, highest, [1] * sorts + [0], seconds, 2e-3)
        if found.x is not None:
            # HiGHS has a bound even if the time was up before the proof.
            bound = found.mip_dual_bound
            return Servers(
                supply,
                tuple([round(each) for each in found.x[:sorts]]),
                None if bound is None else -float(bound),
            ).filled()
    # The server that is given first may be in the way of a better one.
    none = Servers(supply, (0,) * sorts)
    ways = [none.filled(without).filled() for without in (None, *range(0 if quick else sorts))]
    return max(ways, key=lambda servers: servers.worst_first)


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


# --- the fewest servers for a number of users


def fewest(
    most: Servers,
    needed: Sequence[int],
    costs: Sequence[float],
    alone: Sequence[bool],
    solver: bool = True,
) -> Servers:
    """Return the fewest servers for the users of each model, 1 at least, 0 for one that is not
    served. `most`: a choice that serves them; `costs` of a server of each sort; `alone`: whether a
    kind has a single machine. Of the choices whose slots are enough:

    1. those in which the most models keep enough slots while one server is away, or all those of a
       machine that is the only one of its kind,
    2. of these those that take the fewest GPUs (a machine without GPUs counts as one),
    3. of these those that cost the least.

    Few possibilities are all tried. Of more, HiGHS solves one rule after the other; without SciPy
    servers that are not needed are removed.
    """
    supply = most.supply

    def serves(servers: Servers) -> bool:
        return all(has >= needs for has, needs in zip(servers.users, needed, strict=True))

    def rank(servers: Servers) -> tuple[int, int, float]:
        """Return the rank, smaller is better: models whose users wait while a server is away, GPUs,
        costs."""
        rows = zip(servers.users, servers.largest(alone), needed, strict=True)
        return (
            # Enough for all while everything runs, but not while that is away.
            sum(has - away < needs for has, away, needs in rows),
            sum(sort.gpus * count for sort, count in servers.used),
            sum(cost * count for cost, count in zip(costs, servers.counts, strict=True)),
        )

    if supply.few:
        return min(filter(serves, supply.every()), key=rank)
    counts = _rules_solved(supply, needed, costs, alone) if solver and has_solver() else None
    if counts is not None:
        return Servers(supply, counts)
    # Servers that are not needed go, in blocks that become smaller: those with the fewest users for
    # a GPU first. No more models may be left without a reserve.
    waiting = rank(most)[0]
    by_use = sorted(
        range(len(supply.sorts)),
        key=lambda i: sum(each for _, each in supply.sorts[i].serves) / supply.sorts[i].gpus,
    )
    for i in by_use:
        block = most.counts[i]
        # Halved until single servers: of thousands, one at a time would take too long.
        while block:
            counts = (*most.counts[:i], max(0, most.counts[i] - block), *most.counts[i + 1 :])
            less = Servers(supply, counts)
            if counts != most.counts and serves(less) and rank(less)[0] <= waiting:
                most = less
            else:
                block //= 2
    return most


def _rules_solved(
    supply: Supply, needed: Sequence[int], costs: Sequence[float], alone: Sequence[bool]
) -> tuple[int, ...] | None:
    """Return how many servers of each sort by HiGHS: one rule after the other, each kept for the
    next; None without an answer."""
    sorts, models = len(supply.sorts), len(needed)
    # The numbers: servers of each sort from 0 on, whether it is used, users of each model's largest
    # server, and whether the model waits while that is away.
    used, largest, waits = sorts, 2 * sorts, 2 * sorts + models
    most = [_most(sort, supply.room) for sort in supply.sorts]
    together = [_together(sort, alone) for sort in supply.sorts]
    # No model's largest server has more users than this, so that `top` switches a rule off.
    top = float(
        max(
            each * (count if apart else 1)
            for sort, count, apart in zip(supply.sorts, most, together, strict=True)
            for _, each in sort.serves
        )
    )
    rules = supply.within()
    for model, needs in enumerate(needed):
        slots = supply.serving(model)
        away = {largest + model: -1.0, waits + model: top}
        # The slots serve all; without the largest server too, unless the model waits.
        rules += [(float(needs), slots), (float(needs), {**slots, **away})]
        for i, users in slots.items():
            # A server alone counts once however often it is used, servers that fail together all
            # count.
            rules.append((0.0, {largest + model: 1.0, i if together[i] else used + i: -users}))
    for i, count in enumerate(most):
        # `used` is 1 where any server of the sort runs: count / most, rounded up by the solver.
        rules.append((0.0, {used + i: float(count), i: -1.0}))
    highest = [*most, *[1] * sorts, *[top] * models, *[1] * models]
    # `largest` may be fractional, as it is only compared.
    whole = [1] * (2 * sorts) + [0] * models + [1] * models
    answer: tuple[int, ...] | None = None
    # What is made small, the most important first: models that wait, GPUs, costs
    for goal in (
        {waits + model: 1.0 for model in range(models)},
        {i: float(sort.gpus) for i, sort in enumerate(supply.sorts)},
        # Scaled to 1, so that the solver's gap means the same for bytes and for seconds.
        {i: size / (max(costs) or 1.0) for i, size in enumerate(costs)},
    ):
        # Three rules, so at most 15 seconds.
        found = solved(goal, rules, highest, whole, 5.0, 1e-4)
        if found.x is None:
            # Time is up: what the rules before gave is still a choice that serves all.
            return answer
        answer = tuple([round(each) for each in found.x[:sorts]])
        # Rules before this one may not get worse: its value is fixed, with a little room for
        # rounding.
        rules.append((-round(found.fun) - 1e-6, {i: -each for i, each in goal.items()}))
    return answer
