"""What a launch with weights in RAM gains from a q8_0 cache or a smaller file, for those who see no alternatives.

On a pipe and under `autolayers run` nothing else is compared. So each check begins with a bound that builds no graph,
and only a launch that passes it is planned: where all weights with a q8_0 cache, and the compute buffers and margins of
the chosen launch, are no larger than the devices.
"""

from __future__ import annotations

from ..flags.params import Params
from ..flags.write import to_words
from ..memory.breakdown import Breakdown
from ..records import replace
from .evaluate import FULL, Evaluator
from .plan import TOO_SLOW, Faster, Smaller
from .quantisations import below
from .search import solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.policy import Policy
    from ..work.speed import CostModel
    from .evaluate import Candidate

GAIN = 1.5           # a change is said from this factor in tokens per second on
READABLE = 8.0       # tokens per second: below, a file at Q3 is said too
GOOD = ("q8_0", "q6_K", "q5_K", "q4_K", "iq4_xs")       # types at Q4 or above
FAIR = (*GOOD, "q3_K", "iq3_xxs")
ALL = -2             # n_gpu_layers
CACHE = "q8_0"


def with_cache(evaluator: Evaluator, cost: CostModel, given: Params, policy: Policy,
               chosen: Candidate) -> Faster | None:
    """A q8_0 cache, if it brings all weights onto the devices at this context and is GAIN times faster."""
    fixed = given.cache_type_k or given.cache_type_v or policy.kv_types or given.flash_attn == "off"
    placed = given.overrides or given.n_gpu_layers not in (None, -1)
    if fixed or placed or not cost.in_ram(chosen):
        return None
    params = replace(given, n_ctx=chosen.breakdown.n_ctx, cache_type_k=CACHE, cache_type_v=CACHE)
    use = evaluator.static(replace(params, n_gpu_layers=ALL))
    if use is None:
        return None
    if sum(usage.total for usage in use.devices.values()) + _overheads(chosen) > _room(evaluator):
        return None
    found = solve(evaluator, params, policy, cost)
    if found is None or not found.fits:
        return None
    rate = cost.price(found).generation
    words = to_words(Params(cache_type_k=CACHE, cache_type_v=CACHE))
    return Faster(tuple(words), rate) if rate >= GAIN * cost.price(chosen).generation else None


def smaller(evaluator: Evaluator, cost: CostModel, policy: Policy, chosen: Candidate,
            priced: bool = False) -> Smaller | None:
    """The largest quantisation that is wholly on the devices, of a launch with weights in RAM: at Q4 or above if that
    is GAIN times faster (`priced`: its rate is computed), at Q3 where the launch is not READABLE, any where it is
    TOO_SLOW. None where nothing is to be said."""
    rate = cost.price(chosen).generation
    slow = rate < TOO_SLOW
    if not (slow or priced) or not cost.in_ram(chosen):
        return None
    if not evaluator.machine.devices or chosen.params.device == ():
        return Smaller("", 0) if slow else None
    caches = sum(usage.context for usage in chosen.breakdown.devices.values()) + chosen.breakdown.host.context
    room = _room(evaluator) - _overheads(chosen) - caches
    for kind, model in below(evaluator.model):
        if model.size > room or not (slow or kind in (GOOD if rate >= READABLE else FAIR)):
            continue
        if not priced:
            return Smaller(kind, model.size)
        other = Evaluator.of(model, evaluator.machine, policy.build, evaluator.target,
                             evaluator.estimator.companions, meter=evaluator.estimator.meter)
        whole = replace(chosen.params, n_gpu_layers=ALL, overrides=(), tensor_split=None, device=None, n_threads=None)
        found = other.candidate(whole, FULL)
        if found is None or not found.fits:
            continue
        faster = other.cost(policy.workload).price(found).generation
        return Smaller(kind, model.size, faster) if faster >= GAIN * rate else None
    return Smaller("", 0) if slow else None


def _overheads(chosen: Candidate) -> int:
    """Compute buffers, margins and what else is on the devices: a projector, adapters."""
    use = chosen.breakdown
    margins = sum(size for parts in chosen.margins.values() for _, size in parts)
    extras = use.extra_by_device() if isinstance(use, Breakdown) else {}
    return margins + sum(usage.compute + extras.get(name, 0) for name, usage in use.devices.items())


def _room(evaluator: Evaluator) -> int:
    return sum(evaluator.machine.limits.values())
