"""Several models that run at the same time on one machine: what each may take, and whether they all fit."""

from __future__ import annotations

from ..flags.params import FIT_PARAMS_MIN_CTX
from ..memory.companions import NONE
from ..model.models import KEPT
from ..records import dataclass, replace
from .answer import plan_on
from .evaluate import RAM_MARGIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..flags.params import Params
    from ..flags.policy import Policy
    from ..memory.companions import Companions
    from ..memory.estimate import Known
    from ..model import Model
    from .evaluate import Machine
    from .plan import Plan


@dataclass(frozen=True)
class Together:
    """One plan per model, in the order given. Each plan's `free` is what was left for it."""

    plans: tuple[Plan, ...]
    machine: Machine

    @property
    def fits(self) -> bool:
        return all(plan.fits for plan in self.plans)

    def left(self) -> dict[str, int]:
        """Bytes that nobody takes and that no margin needs, per device."""
        left = dict(self.machine.limits)
        for plan in self.plans:
            for device in plan.devices:
                if device.used:
                    left[device.name] -= device.used + device.margin
        return left

    def to_dict(self) -> dict[str, object]:
        return {
            "schema": 1, "fits": self.fits, "left": self.left(), "ram_left": self.ram_left(),
            "models": [plan.to_dict() for plan in self.plans],
        }

    def ram_left(self) -> int | None:
        """Bytes of system memory that are left, None where that is not limited."""
        ram = self.machine.ram
        return None if ram is None else ram - sum(plan.host.resident + plan.host.growing for plan in self.plans)


def plan_together_on(models: Sequence[Model], params: Params, policy: Policy, machine: Machine,
                     companions: Companions = NONE, notes: tuple[str, ...] = ()) -> Together:
    """Plans models that are to be loaded at once, with the same given flags for each.

    If all fit wholly on the GPUs at their smallest contexts, they do, and share what is left for larger contexts; else
    each gets a share of what is left in proportion to its size. Raises LaunchRefused.

    `models` may read each when it is asked for (model.models): of those that are planned only outlines are kept.
    """
    weights = [model.size for model in models]
    known = _Measured()
    needs = _smallest(models, params, policy, machine, companions, known)
    whole = len(needs) == len(models)
    plans: list[Plan] = []
    limits, ram = dict(machine.limits), machine.ram
    for i, model in enumerate(models):
        if whole:
            rest = {name: limit - sum(need.get(name, 0) for need in needs[i:]) for name, limit in limits.items()}
            mine = {name: needs[i].get(name, 0) + spare // (len(models) - i) for name, spare in rest.items()}
        else:
            mine = {name: limit * weights[i] // max(1, sum(weights[i:])) for name, limit in limits.items()}
        found = plan_on(model, params, policy, replace(machine, limits=mine, ram=ram), companions, notes,
                        known=known.of(model))
        plans.append(_settled(found))
        limits = {name: limit - _taken(found).get(name, 0) for name, limit in limits.items()}
        ram = None if ram is None else ram - found.host.resident      # one margin does for all
    if ram is not None:
        share = max(0, ram - RAM_MARGIN) // len(plans)
        for i, model in enumerate(models):
            plans[i] = _settled(_served(model, plans[i], params, policy, machine, companions, notes, share,
                                        known.of(model)))
    return Together(tuple(plans), machine)


class _Measured:
    """What was measured of the models that were asked for last; a model may be there several times."""

    def __init__(self) -> None:
        self.last: dict[str, Known] = {}

    def of(self, model: Model) -> Known:
        found = self.last[model.path] = self.last.pop(model.path, {})
        if len(self.last) > KEPT:
            del self.last[next(iter(self.last))]
        return found


def _settled(plan: Plan) -> Plan:
    """The plan without what it was made of."""
    speed = plan.speed
    return replace(plan, model=plan.model.outline(), predict=lambda: speed)


def _served(model: Model, plan: Plan, given: Params, policy: Policy, machine: Machine, companions: Companions,
            notes: tuple[str, ...], share: int, known: Known) -> Plan:
    """The same launch where `share` bytes of system memory are left for what grows while it serves."""
    launch = replace(plan.params, cache_ram=given.cache_ram, ctx_checkpoints=given.ctx_checkpoints)
    mine = replace(machine, limits={device.name: device.free for device in plan.devices},
                   ram=RAM_MARGIN + plan.host.resident + share)
    again = replace(policy, strategy=None, kv_types=())
    return plan_on(model, launch, again, mine, companions, notes, known=known)


def _smallest(models: Sequence[Model], params: Params, policy: Policy, machine: Machine, companions: Companions,
              known: _Measured) -> list[dict[str, int]]:
    """Bytes per device of each model wholly on the GPUs at its smallest context, as far as they fit together."""
    needs: list[dict[str, int]] = []
    for model in models:
        floor = replace(policy, n_ctx=_floor(model, params, policy.n_ctx_min))
        plan = plan_on(model, params, floor, machine, companions, known=known.of(model))
        needs.append(_taken(plan))
        full = plan.fits and plan.n_gpu_layers >= plan.n_layer + 1 and not plan.params.overrides
        if not full or any(sum(need.get(name, 0) for need in needs) > limit for name, limit in machine.limits.items()):
            return needs[:-1]
    return needs


def _floor(model: Model, params: Params, floor: int | None) -> int | None:
    return None if params.n_ctx is not None else floor or min(FIT_PARAMS_MIN_CTX, max(1, model.n_ctx_train))


def _taken(plan: Plan) -> dict[str, int]:
    return {device.name: device.used + device.margin for device in plan.devices if device.used}
