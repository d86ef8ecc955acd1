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
    from ..work.speed import Answers, Speed


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
        self.asked = problem
        self.solution, self.candidate, ended = planned(problem)
        self.problem = self.solution.problem
        self.notes = (*problem.request.notes, *ended)
        self.reasons = self.solution.reasons
        # -q prints one number; reasons go to stderr as notes.
        if problem.policy.alone:
            self.notes += self.reasons
            self.reasons = ()
        assert isinstance(self.candidate.breakdown, Breakdown)  # it is measured fully
        self.use = self.candidate.breakdown

    def explained(self, explain: bool, processes: int) -> Explained:
        return Explained(self.asked, self.solution, self.candidate, explain, processes)

    def plan(self, explained: Reasons) -> Plan:
        """Return the plan with these explanations."""
        problem, candidate, use, policy = self.problem, self.candidate, self.use, self.asked.policy
        evaluator, requests = problem.evaluator, self.solution.requests
        estimator, machine = evaluator.estimator, evaluator.machine
        params = written(problem, candidate)
        paid = self._paid()
        idle = () if policy.alone else tuple(unused(problem, candidate))
        reasons = [*filter(None, [paid]), *idle, *self.reasons]
        if params.n_threads != candidate.params.n_threads:
            count = params.n_threads
            reasons.append(
                f"-t {count}: llama.cpp would start a thread per core of the machine, and only "
                f"{count} of them may run at once or are fast"
            )
        if candidate.params.moe_cache_mib:
            reasons += hits(problem.cost, candidate)
        here = serving.saved(candidate.params, use, policy.workload)
        if policy.agents and here is not None:
            reasons.append(serving.why_kept(policy.agents, here))
        # What computes the speed, which -q does not print: its plan keeps all that was measured
        predict: Callable[[], Speed] = (
            partial(problem.cost.price, candidate)
            if policy.alone
            else problem.cost.later(candidate)
        )
        broken = ""
        if requests is not None:
            predict = partial(_with_requests, predict, requests)
            if policy.users is not None:
                from .served import broken as promise_broken

                broken = promise_broken(policy.users, requests)
        extra = use.extra_by_device()
        rows = []
        for device in machine.devices:
            usage = use.devices[device.name]
            parts = candidate.margins.get(device.name, ())
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
        host = self._host()
        seen = Launched(problem, candidate, use, host, requests)
        return Plan(
            evaluator.model,
            params,
            use,
            tuple(rows),
            host,
            candidate.fits,
            flags(problem, params),
            evaluator.described(params),
            predict,
            partial(
                _layers,
                estimator.placer,
                candidate.params,
                estimator.companions,
                machine.devices,
            ),
            tuple(reasons),
            self._limited(),
            (*self.notes, *remarks.warnings(seen)),
            explained,
            paid=paid,
            idle=idle,
            engine=estimator.rules.engine.name,
            broken=broken,
        )

    def _paid(self) -> str:
        """Return what an automatically enlarged context costs."""
        smaller, price = self.solution.paid
        if not smaller or price < 1.005 or smaller >= self.use.n_ctx:
            return ""
        return (
            f"context {self.use.n_ctx} instead of {smaller} costs {100 * (price - 1):.0f} % of the "
            f"request's time"
        )

    def _limited(self) -> tuple[str, ...]:
        """Return what raises the limit of a GPU that uses RAM, if the launch would take more."""
        use, problem = self.use, self.problem
        enough = problem.given.n_ctx or use.n_ctx_seq >= problem.model.n_ctx_train
        if self.candidate.fits and problem.offloads_all(self.candidate.params) and enough:
            return ()
        movable = use.host.model + use.host.context
        return remarks.how_to_raise(problem.machine, self.candidate, movable)

    def _host(self) -> HostRow:
        use, params = self.use, self.candidate.params
        evaluator = self.problem.evaluator
        # Locked pages cannot be dropped by the system, so none count as mapped.
        locked = "mlock" in (params.load_mode or "")
        return HostRow(
            use.host.model,
            use.host.context,
            use.host.compute,
            use.extra_by_device().get("Host", 0),
            use.resident,
            use.growing,
            RAM_MARGIN,
            evaluator.machine.ram,
            evaluator.machine.ram_total,
            evaluator.shared(use),
            0 if locked else evaluator.placement(params).mapped,
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
