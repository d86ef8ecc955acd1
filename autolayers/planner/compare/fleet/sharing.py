"""Several models that share one GPU of a fleet, each with a llama-server of its own.

    sharers(options, machine, weights, wanted)        # which may, by what each takes alone
    shared(models, ...)  # their plans, each within what the others leave

They are counted as busy at once: each then has its part of the GPU's time, so the promise is kept
by a rate that is as many times as high.
"""

from __future__ import annotations

from itertools import combinations

from ....errors import AutolayersError
from ....flags.users import Users
from ....machine import Machine
from ....records import replace
from ...plan import Plan
from ...prices import TOO_SLOW
from ...users import Requests
from .options import MachineOption, planned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ....model import Model
    from ....request import Request

_EACH = 1.1  # of what a cache takes, graphs grow a little too
FEW = 9  # models up to which all sets of three and four are tried; of more, neighbours by size


def sharers(
    options: Mapping[int, MachineOption],
    machine: Machine,
    weights: Mapping[int, float],
    wanted: Users,
) -> list[tuple[tuple[int, int], ...]]:
    """Return sets of models that fit together, with the users of each."""
    usable = [i for i, option in options.items() if option.fits]
    sharing = []
    # By size, so that neighbours in the list are of similar size.
    for models in _sets(sorted(usable, key=lambda i: options[i].device)):
        device = machine.devices[0]
        left = machine.limits[device.name] - sum(options[i].device for i in models)
        if left < 0 or not options[models[-1]].whole:
            # The largest one has what the others leave, with parts of it in RAM.
            left = (machine.limits[device.name] - sum(options[i].device for i in models[:-1])) // 2
        ram = sum(options[i].resident for i in models)
        fits = left >= 0 and (machine.ram is None or ram <= machine.ram)
        if not fits or not all(options[i].whole for i in models[:-1]):
            continue
        # Rates of a row are with the GPU alone; a user of one of several gets that much less.
        rows = {
            i: [row for row in options[i].rows if _kept(row, len(models), wanted)] for i in models
        }
        if all(rows.values()):
            sharing.append(tuple(_added(rows, options, weights, left).items()))
    return sharing


def _sets(models: Sequence[int]) -> Iterable[tuple[int, ...]]:
    yield from combinations(models, 2)
    # At most eight models on a GPU.
    for size in range(3, min(8, len(models)) + 1):
        # Up to FEW models all sets of three and four; of more or larger ones only runs of
        # neighbours by size.
        if len(models) <= FEW and size <= 4:
            yield from combinations(models, size)
        else:
            yield from (tuple(models[at : at + size]) for at in range(len(models) - size + 1))


def _added(
    rows: Mapping[int, Sequence[tuple[int, float, float]]],
    options: Mapping[int, MachineOption],
    weights: Mapping[int, float],
    left: int,
) -> dict[int, int]:
    """Return the users of each model, from its first row on, until the bytes left hold no more."""
    at = dict.fromkeys(rows, 0)
    while True:
        # Who has the fewest users for its weight gets the next ones, if they fit.
        for i in sorted(rows, key=lambda i: rows[i][at[i]][0] / weights[i]):
            if at[i] + 1 == len(rows[i]):
                continue
            # The options' bytes hold the users of the first row; each one more takes its cache, and
            # graphs grow with it.
            more = (rows[i][at[i] + 1][0] - rows[i][at[i]][0]) * options[i].each * _EACH
            if more <= left:
                left -= int(more)
                at[i] += 1
                break
        else:
            return {i: rows[i][at[i]][0] for i in rows}


def _kept(row: tuple[int, float, float], share: int, wanted: Users) -> bool:
    _, rate, first = row
    # Without a promise nobody may be slower than people bear (prices.TOO_SLOW).
    slowest = wanted.rate if wanted.promise else TOO_SLOW
    return rate / share >= slowest and (not wanted.first or first * share <= wanted.first)


def shared(
    models: Sequence[tuple[Model, int]],
    request: Request,
    machine: Machine,
    wanted: Users,
    options: Sequence[MachineOption],
    check: bool = True,
) -> list[Plan] | None:
    """Return the plans of models with their users, each within what the others take; None where
    they do not fit, or `check` and a promise is not kept."""
    takes = [
        option.device + int((users - 1) * option.each * _EACH)
        for (_, users), option in zip(models, options, strict=True)
    ]
    # The last has what the others leave, with parts of it in RAM where that is less.
    moved = max(0, sum(takes) - max(machine.limits.values()))
    takes[-1] *= not moved
    # The RAM of each, with the bytes of the last that are moved there; saved prompts are fewer
    # (--cache-ram) where there is not enough for all.
    least = [option.resident for option in options]
    least[-1] += moved
    most = [max(size, option.ram) for size, option in zip(least, options, strict=True)]
    if machine.ram is None or sum(most) <= machine.ram:
        rams = most
    else:
        spare = max(0, machine.ram - sum(least)) // len(options)
        rams = [min(size + spare, highest) for size, highest in zip(least, most, strict=True)]
    plans: list[Plan] = []
    # One after the other: the first uses estimates of the others, the last the real sizes of all
    # before it.
    for at, (model, users) in enumerate(models):
        taken = sum(takes) - takes[at]
        # The machine without what other servers take of its one device and of its RAM
        devices = tuple(
            replace(device, free=max(0, device.free - taken)) for device in machine.devices
        )
        limits = {name: max(0, size - taken) for name, size in machine.limits.items()}
        rest = replace(
            machine,
            devices=devices,
            limits=limits,
            ram=None if machine.ram is None else max(0, machine.ram - (sum(rams) - rams[at])),
        )
        try:
            plan = planned(model, request, rest, Users(users, wanted.context))
        except AutolayersError:
            return None
        if check and not _keeps(plan, users, len(models), wanted):
            return None
        plans.append(plan)
        # From now on what its plan really takes.
        takes[at] = max([each.used + each.margin for each in plan.devices], default=0)
        rams[at] = plan.ram.limit or plan.ram.request
    return plans


def _keeps(plan: Plan, users: int, models: int, wanted: Users) -> bool:
    """Return whether a plan fits and keeps the promise beside the other models."""
    requests = plan.speed.requests
    if not plan.fits or not isinstance(requests, Requests):
        return False
    return _kept((users, requests.row.served.rate, requests.row.served.first), models, wanted)
