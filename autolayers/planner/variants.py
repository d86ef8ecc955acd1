"""What is decided before a launch is sought: inputs, slots and caches for people, a draft and its
place, a cache type, checkpoints.

    tried, left = best_first(variants, solved, ranked, opened)
    tried[0].solution                   # the best
    left                                # never solved: none of them can be better

Each decision is a list of variants of the problem, each with a rank that none of its launches is
better than. One loop solves them, best bound first, until no bound is better than the best launch;
what one showed may open others.
"""

from __future__ import annotations

import heapq
import itertools

from ..records import dataclass, replace
from .prices import worth
from .problem import Promise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..flags.params import Params
    from .evaluate import Candidate
    from .problem import Problem, Solution

    # Whether it fits (0), then what it costs: less is better, and of equal ones the first.
    Rank = tuple[float, ...]

FITS, DOES_NOT_FIT, REFUSED = 0.0, 1.0, 2.0
NO_BOUND: Rank = (FITS,)


@dataclass(frozen=True)
class Variant:
    """A problem with one more thing decided. `bound`: no launch of it ranks better; `given`: flags
    that the search keeps besides, where they are a choice that prices count; `what`: in words."""

    problem: Problem
    bound: Rank = NO_BOUND
    given: Params | None = None
    what: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def flags(self) -> Params:
        return self.given or self.problem.given

    @property
    def promise(self) -> Promise:
        return Promise(self.what, self.bound[-1], None)


@dataclass(frozen=True)
class Tried:
    """A variant, the launch that solves it, and its rank."""

    variant: Variant
    solution: Solution
    rank: Rank

    @property
    def fits(self) -> bool:
        return self.rank[0] == FITS


def best_first(
    variants: Iterable[Variant],
    solved: Callable[[Variant], Solution],
    ranked: Callable[[Variant, Solution], Rank],
    opened: Callable[[Tried], Iterable[Variant]] = lambda _: (),
) -> tuple[list[Tried], list[Variant]]:
    """Return the variants that were solved, the best first, and those that cannot be better.
    `opened`: what else is worth a look after one."""
    count = itertools.count()
    heap = [(variant.bound, next(count), variant) for variant in variants]
    heapq.heapify(heap)
    tried: list[Tried] = []
    while heap and not (tried and min(each.rank for each in tried) <= heap[0][0]):
        variant = heapq.heappop(heap)[-1]
        solution = solved(variant)
        if variant.reasons:
            solution = replace(solution, reasons=variant.reasons)
        tried.append(Tried(variant, solution, ranked(variant, solution)))
        for other in opened(tried[-1]):
            heapq.heappush(heap, (other.bound, next(count), other))
    tried.sort(key=lambda each: each.rank)
    return tried, [variant for *_, variant in sorted(heap)]


def by_worth(problem: Problem, candidate: Candidate | None) -> Rank:
    """Return the rank of a launch by what it is worth."""
    if candidate is None:
        return (REFUSED,)
    if not candidate.fits:
        return (DOES_NOT_FIT,)
    return FITS, worth(problem, candidate.params, candidate.breakdown)


def like(solution: Solution, problem: Problem) -> Params:
    """Return the flags of a solution's launch with what another problem gives: what the search
    solved, and not what was given there. Raises ValueError for a solution without a launch."""
    if solution.candidate is None:
        raise ValueError("no launch to be like")
    before = solution.problem.given
    found = {
        name: value
        for name, value in vars(solution.candidate.params).items()
        if value != getattr(before, name)
    }
    return replace(problem.given, **found)
