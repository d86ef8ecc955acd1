"""Why a GPU or an RPC server that the user did not rule out is left idle."""

from __future__ import annotations

from ..memory.breakdown import Breakdown
from ..records import replace
from ..units import human
from .evaluate import FIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params
    from ..machine import Device
    from ..work.speed import CostModel
    from .evaluate import Candidate, Evaluator


def unused(evaluator: Evaluator, cost: CostModel, given: Params, chosen: Candidate) -> Iterator[str]:
    """A line for each device that the launch has nothing on."""
    if not chosen.fits or given.tensor_split or given.device is not None or given.n_gpu_layers is not None \
            or given.split_mode == "none":
        return
    for device in evaluator.machine.devices:
        if evaluator.machine.limits[device.name] and not _used(chosen, device):
            name = f"{device.name} ({device.description})" if device.kind == "rpc" else device.name
            yield f"{name} is left idle: {_why(evaluator, cost, chosen, device)}"


def _used(candidate: Candidate, device: Device) -> bool:
    usage = candidate.breakdown.devices.get(device.name)
    return usage is not None and usage.total > 0


def _why(evaluator: Evaluator, cost: CostModel, chosen: Candidate, device: Device) -> str:
    """The fastest launch with it that the search measured, or llama.cpp's own split."""
    own = evaluator.candidate(replace(chosen.params, device=None, tensor_split=None, n_gpu_layers=-2), FIT)
    tried = [own, *(found for found in evaluator.measured if isinstance(found.breakdown, Breakdown))]
    fitting = [found for found in tried if found is not None and found.fits and _used(found, device)]
    if not fitting:
        return f"no layer fits into the {human(evaluator.machine.limits[device.name])} that are free"
    here = cost.price(chosen).request
    with_it = min(cost.price(found).request for found in fitting)
    if with_it <= here * 1.005:
        return f"a request takes {here:.1f} s with it too"
    return f"a request would take {with_it:.1f} s with it, instead of {here:.1f} s"
