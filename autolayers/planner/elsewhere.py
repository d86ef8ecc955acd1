"""The same GPUs under the other backend that llama.cpp is built with for them: ROCm or Vulkan, SYCL
or Vulkan.

Another backend is another build of the program, so it is no change of flags; and predictions of two
backends are of two sets of measurements. It is named to be measured, where tokens are predicted
faster by more than the range of the prediction. How fast it reads prompts is not compared: that is
not predicted well enough.
"""

from __future__ import annotations

from ..backends import backend
from ..devices.driven import renamed
from ..records import replace
from .complete import typed
from .evaluate import FULL, Candidate
from .plan import Elsewhere
from .served import price
from .solve import solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..backends import Backend
    from ..machine import Machine
    from .problem import Problem


def elsewhere(problem: Problem, chosen: Candidate) -> Elsewhere | None:
    """Return the launch under the other backend of these GPUs, if that is faster by more than the
    range of the prediction."""
    here = price(problem, chosen)
    least = here.rate * here.generation_spread
    now = problem.cost.speed(chosen).generation * here.generation_spread
    for name in _others(problem.machine):
        other, names = _under(problem, name)
        params = chosen.params
        # Buffers of the old names: the launch would not start
        if any(buffer in names for _, buffer in params.overrides):
            continue
        if params.device:
            params = replace(params, device=tuple(names.get(each, each) for each in params.device))
        use = other.evaluator.static(params)
        # Without a graph: most are no faster
        if use is None or other.cost.predict(params, use).generation <= now:
            continue
        candidate = other.evaluator.candidate(params, FULL)
        if candidate is None or not candidate.fits:
            candidate = solve(other).candidate
        if candidate is None or not candidate.fits:
            continue
        launch = typed(other, candidate)
        speed = price(other, launch.candidate)
        if speed.rate > least:
            return Elsewhere(name, launch.flags, speed)
    return None


def _others(machine: Machine) -> tuple[str, ...]:
    """Return the other backends of a machine's GPUs, which all have one now."""
    kinds = {device.backend for device in machine.devices}
    if len(kinds) != 1:
        return ()
    now = backend(kinds.pop())
    return tuple(name for name in now.also if _is_of(backend(name), now, machine))


def _is_of(other: type[Backend], now: type[Backend], machine: Machine) -> bool:
    """Return whether the GPUs are of a maker whose cards one of the two backends is made for."""
    makers = other.makers or now.makers
    return all(any(word in device.description for word in makers) for device in machine.devices)


def _under(problem: Problem, name: str) -> tuple[Problem, dict[str, str]]:
    """Return the problem with the GPUs under a backend, and their new names."""
    machine = problem.machine
    devices = renamed(machine.devices, name)
    names = {old.name: new.name for old, new in zip(machine.devices, devices, strict=True)}
    other = replace(
        machine,
        devices=tuple(devices),
        limits={names[name]: limit for name, limit in machine.limits.items()},
        # what was measured is of the backend that it was measured with
        measured=(),
    )
    request = replace(problem.request, machine=other)
    meter = problem.evaluator.estimator.meter
    return replace(problem, request=request, measurements=None, meter=meter), names
