"""Why a GPU or an RPC server that the user did not rule out is left idle."""

from __future__ import annotations

from ..flags.params import ALL_LAYERS
from ..memory.breakdown import Breakdown
from ..records import replace
from ..units import human
from .evaluate import FIT, Candidate, Evaluator
from .one.fit import fit_estimated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..flags.params import Params
    from ..machine import Device
    from .problem import Problem


def unused(problem: Problem, chosen: Candidate) -> Iterator[str]:
    """Yield a line for each device that the launch has nothing on, one for all that are alike."""
    given = problem.given
    # A given number of layers or split says which devices are used.
    if not chosen.fits or given.n_gpu_layers is not None:
        return
    if given.tensor_split or given.device is not None or given.split_mode == "none":
        return
    # The devices with nothing on them, those that are alike together.
    alike: dict[tuple[object, ...], list[Device]] = {}
    for device in problem.machine.devices:
        limit = problem.machine.limits[device.name]
        if limit and not _used(chosen, device):
            # Equal devices get one line.
            kind = device.backend, device.description, device.total, limit
            alike.setdefault(kind, []).append(device)
    for devices in alike.values():
        names = [
            f"{each.name} ({each.description})" if each.kind == "rpc" else each.name
            for each in devices
        ]
        *others, last = names
        name = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        yield f"{name} left idle: {_why(problem, chosen, devices)}"


def _used(candidate: Candidate, device: Device) -> bool:
    usage = candidate.breakdown.devices.get(device.name)
    return usage is not None and usage.total > 0


def _why(problem: Problem, chosen: Candidate, alike: list[Device]) -> str:
    """Return why devices that are alike are left idle."""
    device, *others = alike
    if device.kind == "igpu" and any(each.kind == "gpu" for each in problem.machine.devices):
        return "llama.cpp uses an integrated GPU only where there is no other, or -dev names it"
    # slices that llama.cpp cannot compute
    if problem.given.split_mode == "tensor" and problem.evaluator.refusal:
        return str(problem.evaluator.refusal)
    seconds = _seconds_with(problem, chosen, device)
    if seconds is None:
        free = human(problem.machine.limits[device.name])
        return f"no layer fits into the {free} that are free"
    here = problem.cost.price(chosen).request
    it = "one of them" if others else "it"
    if seconds <= here * 1.005:
        return f"a request takes {here:.1f} s with {it} too"
    return f"a request would take {seconds:.1f} s with {it}, instead of {here:.1f} s"


def _seconds_with(problem: Problem, chosen: Candidate, device: Device) -> float | None:
    """Return the seconds of a request with the fastest launch that uses it: one layer of another
    device, or one that the search measured, otherwise llama.cpp's own split, --fit's launch or one
    layer; None if none fits."""
    evaluator = problem.evaluator
    launches = [each for each in evaluator.measured if isinstance(each.breakdown, Breakdown)]
    launches += filter(None, [_with_a_layer(evaluator, chosen, device)])
    own = replace(chosen.params, device=None, tensor_split=None)
    ways: tuple[Callable[[], Params | None], ...] = (
        lambda: replace(own, n_gpu_layers=ALL_LAYERS),
        lambda: fit_estimated(evaluator, problem.given, FIT),
        lambda: replace(own, n_gpu_layers=1),
    )
    # First what is measured already; each way costs a launch, so only until one fits.
    for way in (lambda: None, *ways):
        params = way()
        launches += filter(None, [None if params is None else evaluator.candidate(params, FIT)])
        with_it = [
            problem.cost.price(each).request
            for each in launches
            if each.fits and _used(each, device)
        ]
        if with_it:
            return min(with_it)
    return None


def _with_a_layer(evaluator: Evaluator, chosen: Candidate, device: Device) -> Candidate | None:
    """Return the chosen launch with one layer of the device that has most of them on this one."""
    own = replace(chosen.params, split_mode=None, main_gpu=None)
    names = evaluator.device_names(own)
    shares = [*(own.tensor_split or ()), *[0.0] * len(names)][: len(names)]
    if own.device is not None or device.name not in names:
        return None
    # -sm none: all layers are on the main GPU, which no -ts says.
    if chosen.params.split_mode == "none":
        shares[chosen.params.main_gpu or 0] = float(
            own.layers_wanted(evaluator.model.hparams.n_layer_all + 1)
        )
    largest = max(shares)
    if largest < 2:
        return None
    # One layer from the device with the most to this one.
    shares[shares.index(largest)] -= 1
    shares[names.index(device.name)] += 1
    return evaluator.candidate(replace(own, tensor_split=tuple(shares)), FIT)
