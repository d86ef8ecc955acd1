"""What a launch with weights in RAM gains from a q8_0 cache or a smaller file, for those who see no
alternatives.

On a pipe and under `autolayers run` nothing else is compared. So each check begins with a bound
that builds no graph, and only a launch that passes it is planned: where all weights with a q8_0
cache, and the compute buffers and margins of the chosen launch, are no larger than the devices.
"""

from __future__ import annotations

from ..flags.params import ALL_LAYERS
from ..records import replace
from .complete import typed
from .evaluate import FULL, Candidate
from .plan import Faster, Smaller
from .prices import READABLE, SAID, TOO_SLOW
from .problem import Q8_0
from .quantisations import below
from .solve import solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .problem import Problem

GOOD = ("q8_0", "q6_K", "q5_K", "q4_K", "iq4_xs")  # types at Q4 or above


def with_cache(problem: Problem, chosen: Candidate) -> Faster | None:
    """Return a q8_0 cache, if it brings all weights onto the devices at this context and is SAID
    times faster."""
    cost, given = problem.cost, problem.given
    # Given flags leave no cache type, or no placement, open.
    placed = given.overrides or given.gives_layers
    if not problem.may_quantise or placed or not cost.in_ram(chosen):
        return None
    other = problem.with_flags(n_ctx=chosen.breakdown.n_ctx, **Q8_0)
    use = problem.evaluator.static(replace(other.given, n_gpu_layers=ALL_LAYERS))
    if use is None:
        return None
    # All weights, a q8_0 cache and today's buffers: a bound, without a graph.
    if use.on_devices > _free(problem, chosen):
        return None
    # The bound holds: now the launch is planned as it would be.
    candidate = solve(other).fitting
    if candidate is None:
        return None
    rate = cost.price(candidate).generation
    if rate < SAID.factor * cost.price(chosen).generation:
        return None
    return Faster(typed(other, candidate)[1], rate)


def smaller(problem: Problem, chosen: Candidate, priced: bool = False) -> Smaller | None:
    """Return the largest quantisation that is wholly on the devices, of a launch with weights in
    RAM: at Q4 or above if that is SAID times faster (`priced`: its rate is computed), at Q3 where
    the launch is not READABLE, any where it is TOO_SLOW. "" says that there is none, of a
    launch that is not READABLE. None where nothing is to be said."""
    cost = problem.cost
    if not cost.in_ram(chosen):
        return None
    rate = cost.price(chosen).generation
    # Below TOO_SLOW any file is better, and "none fits" is said too.
    slow = rate < TOO_SLOW
    if not (slow or priced):
        return None
    if not problem.machine.devices or chosen.params.device == ():
        return Smaller("", 0) if slow else None
    room = _free(problem, chosen) - chosen.breakdown.caches
    # Larger files first: the first that fits is the answer.
    for kind, model in below(problem.model):
        # Of a launch that is not too slow: at Q4 or above, at Q3 too where it is not READABLE
        good = kind in GOOD or (rate < READABLE and kind in ("q3_K", "iq3_xxs"))
        if model.size > room or not (slow or good):
            continue
        if not priced:
            return Smaller(kind, model.size)
        # The chosen launch with all weights on the devices: what the search added to fit the larger
        # file goes.
        whole = replace(
            chosen.params,
            n_gpu_layers=ALL_LAYERS,
            overrides=(),
            tensor_split=None,
            device=None,
            n_threads=None,
        )
        other = problem.of(model)
        candidate = other.evaluator.candidate(whole, FULL)
        if candidate is not None and candidate.fits:
            faster = other.cost.price(candidate).generation
            return Smaller(kind, model.size, faster) if faster >= SAID.factor * rate else None
    # A smaller file would help, and there is none: another model is what is left
    return Smaller("", 0) if slow or rate < READABLE else None


def _free(problem: Problem, chosen: Candidate) -> int:
    """Return the bytes of the devices beside the launch's compute buffers, margins and what else is
    there: a projector, adapters."""
    limits = problem.machine.limits
    return sum(limits.values()) - sum(chosen.overheads(limits).values())
