"""What if: one model, or several quantisations of it, over contexts, cache types and machines."""

from __future__ import annotations

from ...errors import LaunchRefused
from ...memory.companions import NONE
from ...memory.estimate import Known
from ...records import dataclass, replace
from ..answer import plan_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...flags.params import Params
    from ...flags.policy import Policy
    from ...machine import Machine
    from ...memory.companions import Companions
    from ...model import Model
    from ..plan import Plan


@dataclass(frozen=True)
class Case:
    """What to plan: a model on a machine, with the `name` to show."""

    model: Model
    name: str
    machine: Machine
    cache_type: str
    n_ctx: int


@dataclass(frozen=True)
class Point:
    """One case of a sweep. `plan` is None if llama.cpp would refuse the launch; `refusal` is its reason."""

    model: Model
    machine: str
    cache_type: str
    n_ctx: int
    plan: Plan | None
    refusal: str = ""

    def to_dict(self) -> dict[str, object]:
        answer: dict[str, object] = {"model": self.model.path, "machine": self.machine,
                                     "cache_type": self.cache_type,
                                     "n_ctx": self.n_ctx}
        if self.plan is None:
            return {**answer, "refused": self.refusal}
        plan = self.plan
        return {
            **answer, "fits": plan.fits, "n_gpu_layers": plan.n_gpu_layers, "placement": plan.placement,
            "devices": {d.name: {"description": d.description, "total": d.total, "free": d.free,
                                 "margin": d.margin,
                                 "model": d.model, "context": d.context, "compute": d.compute,
                                 "remaining": d.remaining} for d in plan.devices},
            "host": plan.host.used, "ram": plan.host.resident, "flags": list(plan.flags), "exact": plan.exact,
            "speed": plan.speed.to_dict(),
        }


CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072)
TYPES = ("f16", "q8_0", "q4_0")


def cases(models: Sequence[Model], machines: Sequence[tuple[str, Machine]], params: Params,
          contexts: Sequence[int] = (), types: Sequence[str] = ()) -> list[Case]:
    """All cases: models in the outermost loop, contexts in the innermost. Contexts default to powers of two
    up to the trained one."""
    kinds = tuple(dict.fromkeys(types)) or ((params.cache_type_k,) if params.cache_type_k else TYPES)
    found = []
    for model in models:
        powers = [n for n in CONTEXTS if n <= model.n_ctx_train]
        here = list(dict.fromkeys(contexts)) or powers or [model.n_ctx_train or CONTEXTS[0]]
        found += [Case(model, name, machine, kind, n) for name, machine in machines for kind in kinds
                  for n in here]
    return found


def sweep(asked: Sequence[Case], params: Params, policy: Policy,
          companions: Companions = NONE) -> Iterator[Point]:
    """The cases, each planned on demand."""
    known: dict[int, Known] = {}         # by model
    for case in asked:
        wanted = replace(params, n_ctx=case.n_ctx)
        if case.cache_type != "f16":
            wanted = replace(wanted, cache_type_k=case.cache_type,
                             cache_type_v=params.cache_type_v or case.cache_type)
        plan, reason = None, ""
        try:
            plan = plan_on(case.model, wanted, policy, case.machine, companions,
                           known=known.setdefault(id(case.model), Known()))
        except LaunchRefused as refusal:
            reason = str(refusal)
        yield Point(case.model, case.name, case.cache_type, case.n_ctx, plan, reason)
