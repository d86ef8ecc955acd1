"""The door: a problem goes in, its launch comes out, and what was tried on the way.

    solution = solve(problem)
    solution.candidate, solution.problem, solution.others

Given flags stay fixed, the others are solved; of all launches that fit, the one that is worth most.
Plans, --why, alternatives, remedies and rivals ask here. What no flag says is decided first: how
inputs are embedded, what people get, what drafts, each as variants of the problem in one loop
(variants.py), whose launches best_launch.py finds.
"""

from __future__ import annotations

from ..engines import leaner
from ..garbage import without_gc
from ..work.unfused import may_part
from .best_launch import best_launch
from .embedder import suits, ways
from .variants import DOES_NOT_FIT, FITS, Variant, best_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .problem import Problem, Solution
    from .variants import Rank


@without_gc
def solve(problem: Problem) -> Solution:
    """Return the best launch of a problem, fully measured; one that does not fit if none does."""
    if problem.decided:
        return best_launch(problem)
    every = [
        Variant(problem.with_given(given), (FITS, float(i)))
        for i, given in enumerate(ways(problem))
    ]

    def ranked(variant: Variant, solution: Solution) -> Rank:
        # The first way of embedding that suits is the answer; the last one, with the usual flags,
        # is taken anyhow.
        suitable = solution.candidate is not None and suits(problem, solution.candidate)
        return variant.bound if suitable else (DOES_NOT_FIT, -variant.bound[-1])

    tried, _ = best_first(every, lambda variant: _for_whom(variant.problem), ranked)
    return tried[0].solution


def _for_whom(problem: Problem) -> Solution:
    """Return the launch for people, of a model with a draft, or of a model alone."""
    settled = problem.settled()
    users = problem.policy.users
    if users is not None:
        from .users import for_users

        return for_users(settled, users)
    if problem.given.spec_type or problem.request.companions.draft is not None:
        from .drafts import drafts, with_draft

        if drafts(problem):
            return with_draft(settled)
    solution = best_launch(settled)
    lean = leaner(problem.evaluator.engine) is not None
    if lean or may_part(problem.model, problem.evaluator.estimator.rules):
        from .one.added import with_added

        return with_added(settled, solution)
    return solution
