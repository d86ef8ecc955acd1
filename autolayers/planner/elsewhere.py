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
    from .problem import Problem


def elsewhere(problem: Problem, chosen: Candidate) -> Elsewhere | None:
    """Return the launch under the other backend of these GPUs, if that is faster by more than the
    range of the prediction."""
    here = price(problem, chosen)
    least = here.rate * here.generation_spread
    now = problem.cost.speed(chosen).generation * here.generation_spread
    machine = problem.machine
    # The other backends of the GPUs, which all have one now, and are of a maker whose cards one of
    # the two is made for.
    kinds = {device.backend for device in machine.devices}
    theirs = backend(kinds.pop()) if len(kinds) == 1 else None
    for name in theirs.also if theirs else ():
        makers = backend(name).makers or (theirs.makers if theirs else ())
        if not all(any(word in each.description for word in makers) for each in machine.devices):
            continue
        # The problem with the GPUs under that backend, and their new names.
        devices = renamed(machine.devices, name)
        names = {old.name: new.name for old, new in zip(machine.devices, devices, strict=True)}
        under = replace(
            machine,
            devices=tuple(devices),
            limits={names[name]: limit for name, limit in machine.limits.items()},
            # what was measured is of the backend that it was measured with
            measured=(),
        )
        other = problem.anew(request=replace(problem.request, machine=under))
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
            candidate = solve(other).fitting
        if candidate is None:
            continue
        candidate, flags = typed(other, candidate)
        speed = price(other, candidate)
        if speed.rate > least:
            return Elsewhere(name, flags, speed)
    return None
