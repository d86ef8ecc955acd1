"""What if: one model, or several quantisations of it, over contexts, cache types and machines."""

from __future__ import annotations

from ...errors import LaunchRefused
from ...memory.estimate import Known
from ...records import dataclass, replace
from ..answer import plan_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...machine import Machine
    from ...model import Model
    from ...request import Request
    from ..plan import Plan


@dataclass(frozen=True)
class Case:
    """What to plan: a model and the request, with the machine's `name` to show."""

    model: Model
    name: str
    request: Request
    cache_type: str
    n_ctx: int

    @property
    def machine(self) -> Machine:
        return self.request.machine

    @property
    def typed_request(self) -> Request:
        """The request with this case's context and cache type."""
        typed_request = self.request.with_flags(n_ctx=self.n_ctx)
        # llama.cpp's default is not written: the flags stay those that people would type.
        if self.cache_type == "f16":
            return typed_request
        # -ctv may be given by itself, and then stays.
        return typed_request.with_flags(
            cache_type_k=self.cache_type,
            cache_type_v=typed_request.params.cache_type_v or self.cache_type,
        )


@dataclass(frozen=True)
class Point:
    """One case of a sweep. `plan` is None if llama.cpp would refuse the launch; `refusal` is its
    reason."""

    model: Model
    machine: str
    cache_type: str
    n_ctx: int
    plan: Plan | None
    refusal: str = ""

    def to_dict(self) -> dict[str, object]:
        answer: dict[str, object] = {
            "model": self.model.path,
            "machine": self.machine,
            "cache_type": self.cache_type,
            "n_ctx": self.n_ctx,
        }
        if self.plan is None:
            return {**answer, "refused": self.refusal}
        plan = self.plan
        return {
            **answer,
            "fits": plan.fits,
            "n_gpu_layers": plan.n_gpu_layers,
            "placement": plan.placement,
            "devices": {
                d.name: {
                    "description": d.description,
                    "total": d.total,
                    "free": d.free,
                    "margin": d.margin,
                    "model": d.model,
                    "context": d.context,
                    "compute": d.compute,
                    "remaining": d.remaining,
                }
                for d in plan.devices
            },
            "host": plan.host.used,
            "ram": plan.host.resident,
            "flags": list(plan.flags),
            "exact": plan.exact,
            "speed": plan.speed.to_dict(),
        }


def cases(
    models: Sequence[Model],
    requests: Sequence[tuple[str, Request]],
    contexts: Sequence[int] = (),
    types: Sequence[str] = (),
) -> list[Case]:
    """Return all cases of a request for one or several machines, by the names to show: models in
    the outermost loop, contexts in the innermost. Contexts default to powers of two up to the
    trained one."""
    given = requests[0][1].params.cache_type_k
    # Without a type given, those that most people try, the largest cache first.
    kinds = tuple(dict.fromkeys(types)) or ((given,) if given else ("f16", "q8_0", "q4_0"))
    return [
        # Notes are about the request, and would be repeated by every row.
        Case(model, name, replace(request, notes=()), kind, n)
        for model in models
        for name, request in requests
        for kind in kinds
        for n in list(dict.fromkeys(contexts)) or _powers(model)
    ]


def _powers(model: Model) -> list[int]:
    """Return 4k, 8k ... 128k up to the trained context, or that if it is smaller."""
    powers = [1 << n for n in range(12, 18) if 1 << n <= model.n_ctx_train]
    return powers or [model.n_ctx_train or 4096]


def sweep(wanted: Sequence[Case]) -> Iterator[Point]:
    """Yield the cases, each planned on demand."""
    # What was measured of a model serves its other cases: only the context, cache or machine
    # differs.
    measurements: dict[int, Known] = {}  # by model
    for case in wanted:
        plan = None
        reason = ""
        try:
            plan = plan_request(
                case.model,
                case.typed_request,
                measurements=measurements.setdefault(id(case.model), Known()),
            )
        except LaunchRefused as refusal:
            reason = str(refusal)
        yield Point(case.model, case.name, case.cache_type, case.n_ctx, plan, reason)
