"""Models in turns where a set of them may be any that fits: launches of a fixed size, and all sets
of them that the machine holds at the same time (llama-swap's matrix; groups.py has disjoint
sets)."""

from __future__ import annotations

from ...memory.meter import BUDGET
from ...records import dataclass
from .groups import Question, any_of, groups_of
from .kept import beside_all
from .multi import Together

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...machine import Machine
    from ...model import Model
    from ...request import Request
    from ..plan import Plan


@dataclass(frozen=True)
class Matrix:
    """`sets`: positions in `plans` of those that fit together, none within another; `numbers`: the
    planned models; `costs`: what it costs to read each again, relative to its requests."""

    plans: tuple[Plan, ...]
    numbers: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...]
    costs: tuple[int, ...]
    machine: Machine
    refused: tuple[tuple[int, str], ...] = ()

    @property
    def fits(self) -> bool:
        return all(plan.fits for plan in self.plans)


def plan_matrix(models: Sequence[Model], request: Request, weights: Sequence[float] = ()) -> Matrix:
    """Return the launches with which two requests in a row, in proportion to `weights`, are most
    often for models that may be loaded together: those of any_of for all but some of the largest,
    which get the machine, or those of groups_of."""
    machine = request.machine
    factors = tuple(weights) or (1.0,) * len(models)
    question = Question(models, request, most=BUDGET // 4)
    groups = groups_of(question, factors)
    plans = groups.plans()
    ways = [_Way(plans, machine, factors)]
    order = sorted(plans, key=lambda i: -plans[i].model.size)
    # Each way leaves out one more of the largest models, which then get the whole machine.
    # Six ways: each is planned.
    for largest in range(min(6, len(order) - 1)):
        some = order[largest:]
        fixed = any_of(question.some(some))
        if fixed is not None:
            mine = {some[i]: plan for i, plan in zip(fixed.numbers, fixed.plans, strict=True)}
            ways.append(_Way({**plans, **mine}, machine, factors))
    beside = beside_all(models, request, groups, factors)
    if beside is not None:
        ways.append(_Way(beside.plans(), machine, factors))
    best = max(ways, key=lambda way: round(way.together, 9))
    return Matrix(
        tuple(best.plans.values()),
        tuple(best.plans),
        best.sets,
        tuple(
            max(1, round(factors[i] * plan.model.size / (1 << 30)))
            for i, plan in best.plans.items()
        ),
        machine,
        groups.refused,
    )


class _Way:
    """Launches by the models' numbers, and the sets of them that fit. `together`: how often a
    request finds the last one's model in a set with its own, as a product of weights."""

    def __init__(
        self, plans: Mapping[int, Plan], machine: Machine, factors: Sequence[float]
    ) -> None:
        self.plans = dict(sorted(plans.items()))
        numbers = list(self.plans)
        weights = [factors[i] for i in numbers]
        # The most frequent first, as sets grow in this order.
        frequent = sorted(range(len(numbers)), key=lambda at: (-weights[at], at))
        self.sets = _sets(list(self.plans.values()), machine, frequent)
        # With i == j: a second request for the same model needs no swap either.
        pairs = {(i, j) for members in self.sets for i in members for j in members}
        self.together = sum(weights[i] * weights[j] for i, j in pairs)


def _sets(
    plans: Sequence[Plan], machine: Machine, order: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the largest sets of plans that fit together, with the most frequent models first; of
    many models those that grow from each pair."""

    def fits(members: Sequence[int]) -> bool:
        if len(members) == 1:
            return True
        # Together adds up what plans take; nothing is planned again.
        both = Together(tuple(plans[i] for i in members), machine)
        left = [*both.left().values()]
        ram = both.ram_left()
        if ram is not None:
            left.append(ram)
        return min(left, default=0) >= 0

    # 2 ** 12 sets are looked at; of more models not all.
    return _every_set(order, fits) if len(order) <= 12 else _grown_sets(order, fits)


def _every_set(
    order: Sequence[int], fits: Callable[[Sequence[int]], bool]
) -> tuple[tuple[int, ...], ...]:
    """Return all that no other model fits beside."""
    fitting: set[int] = set()
    # a set fits only if those of one member less do
    for mask in range(1, 1 << len(order)):
        fewer = [mask ^ 1 << bit for bit in _bits(mask)]
        may_fit = all(not each or each in fitting for each in fewer)
        if may_fit and fits(_members(order, mask)):
            fitting.add(mask)
    every = (1 << len(order)) - 1
    largest = [
        mask
        for mask in sorted(fitting)
        if not any(mask | 1 << bit in fitting for bit in _bits(every ^ mask))
    ]
    return tuple([tuple(sorted(_members(order, mask))) for mask in largest])


def _bits(mask: int) -> list[int]:
    """Return the numbers of the bits that are set."""
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _members(order: Sequence[int], mask: int) -> list[int]:
    """Return the models of a set, whose bits are places in the order."""
    return [order[bit] for bit in _bits(mask)]


def _grown_sets(
    order: Sequence[int], fits: Callable[[Sequence[int]], bool]
) -> tuple[tuple[int, ...], ...]:
    """Return those that grow from each pair."""
    sets: dict[tuple[int, ...], None] = {}
    for at, first in enumerate(order):
        for second in order[at:]:
            # Enough sets: only those of one model each are still wanted, so that none is missing.
            if len(sets) >= 200 and first != second:
                continue
            members = [first]
            for other in (second, *order):
                if other not in members and fits([*members, other]):
                    members.append(other)
            sets[tuple(sorted(members))] = None
    return tuple(sets)
