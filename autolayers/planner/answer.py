"""The Plan of a solved launch: its rows, flags, warnings and, on request, the reasons for it."""

from __future__ import annotations

from functools import partial

from ..backends import HOST
from ..garbage import without_gc
from ..memory.breakdown import Breakdown
from ..memory.companions import Companions, with_draft_type
from ..memory.context import resolve
from ..records import replace
from . import remarks, serving
from .complete import flags, written
from .evaluate import RAM_MARGIN
from .one.expert_cache import hits
from .plan import NO_REASONS, DeviceRow, FitChoice, HostRow, LayerRow, Plan, Reasons
from .planned import planned
from .problem import Problem
from .reasons import Explained, fit_choice_of
from .remarks import Launched
from .unused import unused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..flags.params import Params
    from ..machine import Device
    from ..memory.estimate import Known
    from ..memory.meter import Meter
    from ..memory.weights import WeightPlacer
    from ..model import Model
    from ..request import Request
    from ..work.speed import Answers, CostModel, Speed


@without_gc
def plan_request(
    model: Model,
    request: Request,
    *,
    explain: bool = False,
    advise: bool = False,
    measurements: Known | None = None,
    processes: int = 1,
    meter: Meter | None = None,
) -> Plan:
    """Return the plan for a request, whose notes become warnings of the plan. `explain` adds the
    cost of the next step, --fit's own answer and the alternatives, computed by as many `processes`;
    `advise` adds what would make a launch fit. Plans of one model share `measurements`, those of
    one question a `meter`. Raises LaunchRefused."""
    answer = _Answer(Problem(model, request, measurements=measurements, meter=meter))
    return answer.plan(answer.explained(explain, processes) if explain or advise else NO_REASONS)


def plan_in_steps(
    model: Model, request: Request, processes: int = 0, measurements: Known | None = None
) -> Iterator[Plan]:
    """Yield the plan without its reasons, then the same with one more of them each time, or with
    `processes` to work them out with all: the last is plan_request's with `explain`. Who no longer
    wants them stops asking. `measurements` as in plan_request."""
    answer = without_gc(_Answer)(Problem(model, request, measurements=measurements))
    yield (plan := answer.plan(NO_REASONS))
    reasons = answer.explained(True, processes)
    if processes:
        reasons.all()
        yield replace(plan, why=reasons)
        return
    for explained in reasons.in_steps():
        yield replace(plan, why=explained)


def fit_choice(model: Model, request: Request) -> FitChoice | None:
    """Return what `llama-server --fit on` makes of these flags; `fits` is by the plan's own
    margins. None if llama.cpp would refuse it."""
    return fit_choice_of(Problem(model, request))


class _Answer:
    """One solved launch."""

    def __init__(self, problem: Problem) -> None:
        """`problem` as it was asked; the one that was solved may draft, or have more requests at
        once. Raises LaunchRefused."""
        self.solution, self.candidate, ended = planned(problem)
        solution = self.solution
        self.asked = problem
        self.problem = solution.problem
        self.policy = problem.policy
        self.evaluator = solution.problem.evaluator
        self.given = solution.problem.given
        self.paid = solution.paid
        self.requests = solution.requests
        self.notes = (*problem.request.notes, *ended)
        self.reasons = solution.reasons
        # -q prints one number; reasons go to stderr as notes.
        if self.policy.alone:
            self.notes += self.reasons
            self.reasons = ()
        assert isinstance(self.candidate.breakdown, Breakdown)  # it is measured fully
        self.use = self.candidate.breakdown

    @property
    def cost(self) -> CostModel:
        return self.problem.cost

    def explained(self, explain: bool, processes: int) -> Explained:
        return Explained(self.asked, self.solution, self.candidate, explain, processes)

    def plan(self, explained: Reasons) -> Plan:
        """Return the plan with these explanations."""
        params = written(self.problem, self.candidate)
        reasons = self.reasons
        if params.n_threads != self.candidate.params.n_threads:
            count = params.n_threads
            few_threads = (
                f"-t {count}: llama.cpp would start a thread per core of the machine, and only "
                f"{count} of them may run at once or are fast"
            )
            reasons = (*reasons, few_threads)
        host = self._host()
        seen = Launched(self.problem, self.candidate, self.use, host, self.requests)
        idle = () if self.policy.alone else tuple(unused(self.problem, self.candidate))
        predict = self._predicts()
        if (served := self.requests) is not None:
            predict = partial(_with_requests, predict, served)
        machine = self.evaluator.machine
        use = self.use
        extra = self.use.extra_by_device()
        rows = []
        for device in machine.devices:
            usage = use.devices[device.name]
            parts = self.candidate.margins.get(device.name, ())
            rows.append(
                DeviceRow(
                    device.name,
                    device.description,
                    device.total,
                    machine.limits[device.name],
                    sum(size for _, size in parts),
                    parts,
                    usage.model,
                    usage.context,
                    usage.compute,
                    extra.get(device.name, 0),
                )
            )
        here = serving.saved(self.candidate.params, self.use, self.policy.workload)
        return Plan(
            self.evaluator.model,
            params,
            self.use,
            tuple(rows),
            host,
            self.candidate.fits,
            flags(self.problem, params),
            self.evaluator.described(params),
            predict,
            partial(
                _layers,
                self.evaluator.estimator.placer,
                self.candidate.params,
                self.evaluator.estimator.companions,
                self.evaluator.machine.devices,
            ),
            (
                *filter(None, [self._paid()]),
                *idle,
                *reasons,
                *(hits(self.cost, self.candidate) if self.candidate.params.moe_cache_mib else ()),
                *(
                    (serving.why_kept(self.policy.agents, here),)
                    if self.policy.agents and here is not None
                    else ()
                ),
            ),
            self._limited(seen),
            (*self.notes, *remarks.warnings(seen)),
            explained,
            paid=self._paid(),
            idle=idle,
            engine=self.evaluator.estimator.rules.engine.name,
            broken=self._broken(),
        )

    def _broken(self) -> str:
        """Return what --min-rate and --ttft promise and the launch does not keep."""
        if self.policy.users is None or self.requests is None:
            return ""
        from .served import broken

        return broken(self.policy.users, self.requests)

    def _predicts(self) -> Callable[[], Speed]:
        """Return what computes the speed, which -q does not print: its plan keeps all that was
        measured."""
        if self.policy.alone:
            return lambda: self.cost.price(self.candidate)
        return self.cost.later(self.candidate)

    def _paid(self) -> str:
        """Return what an automatically enlarged context costs."""
        smaller, price = self.paid
        if not smaller or price < 1.005 or smaller >= self.use.n_ctx:
            return ""
        return (
            f"context {self.use.n_ctx} instead of {smaller} costs {100 * (price - 1):.0f} % of the "
            f"request's time"
        )

    def _limited(self, seen: Launched) -> tuple[str, ...]:
        """Return what raises the limit of a GPU that uses RAM, if the launch would take more."""
        use = self.use
        trained = self.evaluator.model.n_ctx_train
        enough = self.given.n_ctx or use.n_ctx_seq >= trained
        whole = self.problem.offloads_all(self.candidate.params)
        if self.candidate.fits and whole and enough:
            return ()
        movable = use.host.model + use.host.context
        return remarks.how_to_raise(self.evaluator.machine, self.candidate, movable)

    def _host(self) -> HostRow:
        machine = self.evaluator.machine
        use = self.use
        params = self.candidate.params
        # Locked pages cannot be dropped by the system, so none count as mapped.
        mapped = (
            0 if "mlock" in (params.load_mode or "") else self.evaluator.placement(params).mapped
        )
        return HostRow(
            use.host.model,
            use.host.context,
            use.host.compute,
            use.extra_by_device().get("Host", 0),
            use.resident,
            use.growing,
            RAM_MARGIN,
            machine.ram,
            machine.ram_total,
            self.evaluator.shared(use),
            mapped,
        )


def _with_requests(predict: Callable[[], Speed], served: Answers) -> Speed:
    """Return the prediction, with what each of several people gets."""
    return replace(predict(), requests=served)


def _layers(
    placer: WeightPlacer, params: Params, companions: Companions, devices: Sequence[Device]
) -> tuple[LayerRow, ...]:
    """Return where each layer's weights are. Builds no graphs until it is read."""
    params = with_draft_type(params, companions)
    placement = placer.place(params, devices, resolve(placer.model, params, placer.rules).load_mtp)
    by_layer: list[dict[str, int]] = [{} for _ in range(len(placement.dev_layer) + 2)]
    for group in placement.groups:
        # Group -1 is the input layer, so each group's place is one further.
        buffers = by_layer[group.layer + 1]
        for buffer, size in group.buffers.items():
            buffers[buffer] = buffers.get(buffer, 0) + size
    names = ("input", *map(str, range(len(placement.dev_layer))), "output")
    return tuple(map(LayerRow, names, (HOST, *placement.dev_layer, placement.dev_output), by_layer))
