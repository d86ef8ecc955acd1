"""Plans of earlier launches: an unchanged one is not searched for again.

One holds for the same model (by its header), flags, machine and build, and while no device has much
more free memory than it was made for; it is measured again, so that what is free now is enough for
it.
"""

from __future__ import annotations

import contextlib

from .. import __version__, state, store
from ..errors import AutolayersError
from ..flags.write import to_words
from ..planner.plan import Faster, Reasons, Smaller
from ..records import replace
from ..store import Planned
from ..tables import listed
from ..units import MiB
from . import tuned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..planner import Plan
    from ..request import Request

_MORE = 256 * MiB  # of a device: less than a layer of most models that do not fit
_MORE_RAM = 16  # a part of all RAM, which varies more than a GPU's memory
# own flags that say what to do with a plan, not what to plan
_APART = listed("confirm dry-run format gpumem help replan retry strict-flags verify wait")


def question_of(request: Request) -> str:
    """Return what decides a plan, but for the model and the free memory."""
    machine = request.machine
    # Free memory differs at each start and is compared for itself in `find`
    devices = [repr(replace(device, free=0)) for device in machine.devices]
    aims = [
        f"{name}={value!r}"
        for name, value in sorted(request.arguments.own.items())
        if name not in _APART
    ]
    rates = (
        machine.ram_total,
        machine.host.bandwidth,
        machine.host.bus,
        machine.host.cores,
        machine.host.disk,
        machine.host.threads,
    )
    # The version of autolayers is part of it: a newer one may plan better
    question = "\n".join(
        [
            __version__,
            state.machine_name(),
            tuned.key(request.build),
            request.build.engine.name,
            repr(rates),
            *devices,
            *aims,
            *to_words(replace(request.params, model=None)),
        ]
    )
    import hashlib

    return hashlib.sha256(question.encode()).hexdigest()


def _free(request: Request) -> dict[str, int]:
    ram = request.machine.ram
    return {**request.machine.limits, **({} if ram is None else {"Host": ram})}


def find(
    model: str, request: Request, environ: Mapping[str, str], again: Callable[[Request], Plan]
) -> Plan | None:
    """Return the plan of an earlier launch, measured by `again`, if it still holds."""
    question, free = question_of(request), _free(request)
    spare = dict.fromkeys(request.machine.limits, _MORE)
    spare["Host"] = max(_MORE, (request.machine.ram_total or 0) // _MORE_RAM)
    # The newest plan of the same launch first
    for plan in reversed(store.read(Planned, environ)):
        if (plan.model, plan.question, set(plan.free)) != (model, question, set(free)):
            continue
        # Less memory than then is decided by measuring again; much more may allow a better plan
        if all(size <= plan.free[name] + spare[name] for name, size in free.items()):
            return _literal(plan, request, again)
    return None


def _literal(earlier: Planned, request: Request, again: Callable[[Request], Plan]) -> Plan | None:
    """Return the kept launch on the memory that is free now, None if it does not fit."""
    try:
        faster = Faster.of(earlier.faster) if earlier.faster else None
        smaller = Smaller.of(earlier.smaller) if earlier.smaller else None
    except (KeyError, TypeError, ValueError):  # anybody may have written the file
        return None
    with contextlib.suppress(AutolayersError):
        plan = again(request.asking(tuned.with_all(request.arguments, earlier.flags)))
        # Other flags mean that something which `question_of` does not know has changed
        if plan.fits and plan.flags == earlier.flags:
            return replace(
                plan,
                paid=earlier.paid,
                idle=earlier.idle,
                why=Reasons(faster=faster, smaller=smaller),
            )
    return None


def keep(model: str, request: Request, plan: Plan, environ: Mapping[str, str]) -> None:
    """Add a plan that fits; a directory that cannot be written is no reason not to launch."""
    if plan.fits:
        entry = Planned(
            model,
            question_of(request),
            _free(request),
            plan.flags,
            plan.paid,
            plan.idle,
            plan.faster.to_dict() if plan.faster else None,
            plan.smaller.to_dict() if plan.smaller else None,
        )
        with contextlib.suppress(AutolayersError):
            store.keep([entry], environ)
