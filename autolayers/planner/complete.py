"""A launch with all of its flags, as somebody types it after `llama-server -m MODEL`: the plan's
own, and those of what it is compared with.

    typed(problem, candidate)[1]        # ("-ngl", "49", "-c", "17664", "-ncmoe", "24")
"""

from __future__ import annotations

from ..flags.params import EXPERTS_REGEX, FFN_REGEX, Params
from ..flags.write import to_words
from ..memory.breakdown import Breakdown
from ..records import replace
from .one.overrides import merged, own_experts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .evaluate import Candidate
    from .problem import Problem


def typed(problem: Problem, candidate: Candidate) -> tuple[Candidate, tuple[str, ...]]:
    """Return a launch that the search chose for a problem as a plan of it would write it, and its
    flags: with what reuses the cache of the workload's next request, and with bounds on what
    grows."""
    from .one.added import reusing

    policy = problem.policy
    if policy.workload.reuses:
        candidate, _ = reusing(problem, candidate)
    candidate = problem.evaluator.bounded(candidate, policy.agents, policy.workload)
    return candidate, flags(problem, written(problem, candidate))


def written(problem: Problem, candidate: Candidate) -> Params:
    """Return a launch's params with what llama.cpp would otherwise work out when it starts."""
    evaluator = problem.evaluator
    params = candidate.params
    # Layer counts instead of free memory, which may be different at the start.
    if len(evaluator.machine.devices) > 1:
        from .one.partition import explicit_split

        params = explicit_split(evaluator, params)
    # the trained context, which --fit would multiply by the slots that have caches
    if params.n_ctx == 0:
        params = replace(params, n_ctx=candidate.breakdown.n_ctx)
    # -t if the CPU computes and llama.cpp's default is wrong; None otherwise
    count = problem.evaluator.machine.host.threads
    if count is None or candidate.params.n_threads is not None or problem.policy.alone:
        count = None
    else:
        from ..work.speed import IN_RAM

        use = candidate.breakdown
        computes = isinstance(use, Breakdown) and use.host.context
        count = count if computes or problem.cost.speed(candidate).kind in IN_RAM else None
    return params if count is None else replace(params, n_threads=count)


def flags(problem: Problem, params: Params) -> tuple[str, ...]:
    """Return all memory-relevant arguments as the build spells them, layers and context first; the
    caller adds the model."""
    build = problem.build
    experts: list[str] = []
    # With given rules the plan's flags follow the user's, unmerged, as their order decides.
    if not problem.given.overrides:
        params, experts = own_experts(problem.evaluator, params)
        own = ((EXPERTS_REGEX, "-ncmoe"), (FFN_REGEX, "-ncffn"))
        with_flag = tuple(regex for regex, flag in own if build.knows(flag))
        params = replace(params, overrides=merged(params.overrides, with_flag))
    # What the program says in words of its own (engine.words) is not written twice.
    in_its_words: dict[str, Any] = dict.fromkeys(build.engine.fields)
    params = replace(params, **in_its_words)
    # Builds whose -fa takes no value.
    flash = params.flash_attn if build.bare_flash else None
    rest = to_words(
        replace(
            params,
            model=None,
            n_ctx=None,
            n_gpu_layers=None,
            flash_attn=None if flash else params.flash_attn,
        ),
        build.knows,
    )
    rest += ["-fa"] if flash == "on" else []
    words = []
    if params.n_gpu_layers is not None:
        words += [
            "-ngl",
            {-1: "auto", -2: "all"}.get(params.n_gpu_layers, str(params.n_gpu_layers)),
        ]
    if params.n_ctx is not None:
        words += ["-c", str(params.n_ctx)]
    return (*words, *rest, *experts, *build.engine.words)
