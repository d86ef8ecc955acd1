"""The launch of a plan: what `solve` found, with what is added to it and measured in full.

    solution, launch, ended = planned(problem)

Plans and --why ask here.
"""

from __future__ import annotations

from ..errors import LaunchRefused
from ..records import replace
from . import serving
from .evaluate import FULL, Candidate
from .one.contexts import contexts
from .one.most import layers_alone
from .problem import Solution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .problem import Problem

_ENDED = "the search ended early, as it would have taken too long: other flags may be faster"


def planned(problem: Problem) -> tuple[Solution, Candidate, tuple[str, ...]]:
    """Return the solution of a problem, its launch with what a plan adds to it, measured in full,
    and warnings. Raises LaunchRefused."""
    if not problem.build.knows("-ot") and problem.given.n_gpu_layers is None:
        problem = problem.with_goals(strategy="layers")  # no override places a single tensor
    policy = problem.policy
    if policy.alone:
        solution = Solution(problem.settled(), layers_alone(problem.evaluator, problem.given))
    else:
        from .solve import solve  # -q needs none

        solution = solve(problem)
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
        given = solution.problem.given
        layers = given.n_gpu_layers if given.gives_layers else 0
        candidate = evaluator.candidate(
            replace(
                given,
                n_ctx=given.n_ctx or contexts(solution.problem, given).smallest,
                n_gpu_layers=layers,
            ),
            FULL,
            last=True,
        )
    if candidate is None:
        raise evaluator.refusal or LaunchRefused("llama.cpp would refuse this launch")
    ended = (_ENDED,) if evaluator.estimator.meter.refused else ()
    launch = evaluator.bounded(candidate, policy.agents, policy.workload)
    if launch is not candidate and not policy.agents:
        why = (*why, serving.reason(candidate.params, launch.params, candidate.breakdown))
    return replace(solution, reasons=why), launch, (*solution.notes, *ended)
