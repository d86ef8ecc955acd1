"""The launch of a plan: what is not decided of a problem is decided first. How inputs are embedded,
how many slots people get, what drafts, and what is added to a launch.

    solution, launch, ended = planned(problem)

Plans and --why ask here; what they compare a plan with asks `solve`, as it leaves the launch alone
open.
"""

from __future__ import annotations

from ..engines import leaner
from ..errors import LaunchRefused
from ..records import replace
from ..work.unfused import may_part
from . import serving
from .embedder import suits, ways
from .evaluate import FULL, Candidate
from .one.contexts import contexts
from .one.most import layers_alone
from .problem import Solution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from .problem import Problem

_ENDED = "the search ended early, as it would have taken too long: other flags may be faster"


def decided(problem: Problem) -> Solution:
    """Return the best launch, for as many people and with the draft that a problem names."""
    # The first way that suits is the answer; the last one, with the usual flags, is taken anyhow.
    for given in ways(problem):
        solution = _decided(problem.with_given(given))
        if solution.candidate is not None and suits(problem, solution.candidate):
            break
    return solution


def _decided(problem: Problem) -> Solution:
    """Return the launch for people, of a model with a draft, or of a model alone."""
    users = problem.policy.users
    if users is not None:
        from .users import for_users

        return for_users(problem, users)
    if problem.given.spec_type or problem.request.companions.draft is not None:
        from .drafts import drafts, with_draft

        if drafts(problem):
            return with_draft(problem)
    from .solve import solve  # -q needs none

    solution = solve(problem)
    lean = leaner(problem.evaluator.engine) is not None
    if lean or may_part(problem.model, problem.evaluator.estimator.rules):
        from .one.added import with_added

        return with_added(problem, solution)
    return solution


def planned(problem: Problem) -> tuple[Solution, Candidate, tuple[str, ...]]:
    """Return the solution of a problem, its launch with what a plan adds to it, measured in full,
    and warnings. Raises LaunchRefused."""
    if not problem.build.knows("-ot") and problem.given.n_gpu_layers is None:
        problem = problem.with_goals(strategy="layers")  # no override places a single tensor
    policy = problem.policy
    if policy.alone:
        solution = Solution(problem, layers_alone(problem.evaluator, problem.given))
    else:
        solution = decided(problem)
    evaluator = solution.problem.evaluator
    candidate = solution.candidate
    why = solution.reasons
    # The workload's next request changes earlier text: what reuses the cache is part of the plan.
    if candidate is not None and policy.workload.reuses and not policy.alone:
        from .one.added import reusing

        candidate, more = reusing(solution.problem, candidate)
        why += more
    # The budget did not last for one launch: measure the one with the least that the flags allow.
    if candidate is None and evaluator.estimator.meter.refused:
        candidate = evaluator.candidate(_bare(solution.problem), FULL, last=True)
    if candidate is None:
        raise evaluator.refusal or LaunchRefused("llama.cpp would refuse this launch")
    ended = (_ENDED,) if evaluator.estimator.meter.refused else ()
    launch = evaluator.bounded(candidate, policy.agents, policy.workload)
    if launch is not candidate and not policy.agents:
        why = (*why, serving.reason(candidate.params, launch.params, candidate.breakdown))
    return replace(solution, reasons=why), launch, (*solution.notes, *ended)


def _bare(problem: Problem) -> Params:
    """Return the launch with the least that the flags allow, where the budget did not last for
    any."""
    given = problem.given
    layers = 0 if given.n_gpu_layers in (None, -1) else given.n_gpu_layers
    return replace(
        given, n_ctx=given.n_ctx or contexts(problem, given).smallest, n_gpu_layers=layers
    )
