"""The Plan of a solved launch: its rows, flags, warnings and, on request, the reasons for it."""

from __future__ import annotations

from functools import partial

from ..backends import HOST
from ..engines import leaner
from ..errors import LaunchRefused
from ..flags.params import EXPERTS_REGEX, FFN_REGEX, Params
from ..garbage import without_gc
from ..memory.breakdown import Breakdown
from ..memory.companions import Companions, with_draft_type
from ..memory.context import resolve
from ..records import replace
from ..work.unfused import may_part
from . import remarks, serving
from .embedder import suits, ways
from .evaluate import FULL, RAM_MARGIN, Candidate, Evaluator
from .one.contexts import contexts
from .one.expert_cache import hits
from .one.most import layers_alone
from .one.overrides import merged, own_experts
from .plan import NO_REASONS, DeviceRow, FitChoice, HostRow, LayerRow, Plan, Reasons
from .problem import Problem, Solved
from .reasons import Explained, fit_choice_of
from .remarks import Solution
from .unused import unused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ..builds import Build
    from ..machine import Device
    from ..memory.estimate import Known
    from ..memory.meter import Meter
    from ..memory.weights import WeightPlacer
    from ..model import Model
    from ..request import Request
    from ..work.speed import Answers, CostModel, Speed

_ENDED = "the search ended early, as this model's graphs are very large: other flags may be faster"


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
    answer, notes, why = _solved(Problem(model, request, measurements=measurements, meter=meter))
    reasons = answer.explained(explain, processes) if explain or advise else NO_REASONS
    return answer.plan(notes, why, reasons)


def plan_in_steps(
    model: Model, request: Request, processes: int = 0, measurements: Known | None = None
) -> Iterator[Plan]:
    """Yield the plan without its reasons, then the same with one more of them each time, or with
    `processes` to work them out with all: the last is plan_request's with `explain`. Who no longer
    wants them stops asking. `measurements` as in plan_request."""
    answer, notes, why = without_gc(_solved)(Problem(model, request, measurements=measurements))
    yield (plan := answer.plan(notes, why, NO_REASONS))
    reasons = answer.explained(True, processes)
    if processes:
        reasons.all()
        yield replace(plan, why=reasons)
        return
    for explained in reasons.in_steps():
        yield replace(plan, why=explained)


def _solved(problem: Problem) -> tuple[_Answer, tuple[str, ...], tuple[str, ...]]:
    """Return the launch, the warnings and the reasons that its search found."""
    notes = problem.request.notes
    if not problem.build.knows("-ot") and problem.given.n_gpu_layers is None:
        problem = problem.with_goals(strategy="layers")  # no override places a single tensor
    evaluator = problem.evaluator
    policy = problem.policy
    if policy.alone:
        solved = Solved(problem, layers_alone(evaluator, problem.given))
    else:
        solved = _best_way(problem)
    evaluator = solved.problem.evaluator
    candidate = solved.candidate
    why = solved.reasons
    # The workload's next request changes earlier text: what reuses the cache is part of the plan.
    if candidate is not None and policy.workload.reuses and not policy.alone:
        from .one.added import reusing

        candidate, more = reusing(solved.problem, candidate)
        why += more
    # The budget did not last for one launch: measure the one with the least that the flags allow.
    if candidate is None and evaluator.estimator.meter.refused:
        candidate = evaluator.candidate(_bare(solved.problem), FULL, last=True)
    if candidate is None:
        raise evaluator.refusal or LaunchRefused("llama.cpp would refuse this launch")
    if evaluator.estimator.meter.refused:
        notes = (*notes, _ENDED)
    answer = evaluator.bounded(candidate, policy.agents, policy.workload)
    if answer is not candidate and not policy.agents:
        why = (*why, serving.reason(candidate.params, answer.params, candidate.breakdown))
    # -q prints one number; reasons go to stderr as notes.
    if policy.alone:
        notes += why
        why = ()
    return _Answer(problem, solved, answer), notes, why


def _bare(problem: Problem) -> Params:
    """Return the launch with the least that the flags allow, where the budget did not last for
    any."""
    given = problem.given
    layers = 0 if given.n_gpu_layers in (None, -1) else given.n_gpu_layers
    return replace(
        given, n_ctx=given.n_ctx or contexts(problem, given).smallest, n_gpu_layers=layers
    )


def _best_way(problem: Problem) -> Solved:
    """Return what _search returns of the first way to launch the model that suits it."""
    # The first way that suits is the answer; the last one, with the usual flags, is taken anyhow.
    for given in ways(problem):
        solved = _search(problem.with_given(given))
        if solved.candidate is not None and suits(problem, solved.candidate):
            break
    return solved


def _search(problem: Problem) -> Solved:
    """Return the launch of a request, of people or of a model with a draft."""
    users = problem.policy.users
    if users is not None:
        from .users import for_users

        return for_users(problem, users)
    if problem.given.spec_type or problem.request.companions.draft is not None:
        from .drafts import drafts, with_draft

        if drafts(problem):
            return with_draft(problem)
    from .search import search  # -q needs none

    result = search(problem)
    solved = Solved(problem, result.candidate, paid=result.paid)
    lean = leaner(problem.evaluator.engine) is not None
    if lean or may_part(problem.model, problem.evaluator.estimator.rules):
        from .one.added import with_added

        return with_added(problem, solved)
    return solved


def fit_choice(model: Model, request: Request) -> FitChoice | None:
    """Return what `llama-server --fit on` makes of these flags; `fits` is by the plan's own
    margins. None if llama.cpp would refuse it."""
    return fit_choice_of(Problem(model, request))


class _Answer:
    """One solved launch."""

    def __init__(self, problem: Problem, solved: Solved, candidate: Candidate) -> None:
        """`problem` as it was asked; the one that was solved may draft, or have more requests at
        once."""
        self.problem = solved.problem
        self.candidate = candidate
        self.policy = problem.policy
        self.evaluator = solved.problem.evaluator
        self.given = solved.problem.given
        self.paid = solved.paid
        self.requests = solved.requests
        self.everything = problem.everything
        assert isinstance(candidate.breakdown, Breakdown)  # solve() measures its answer fully
        self.use = candidate.breakdown

    @property
    def cost(self) -> CostModel:
        return self.problem.cost

    def explained(self, explain: bool, processes: int) -> Explained:
        workload = self.policy.workload
        return Explained(self.problem, workload, self.candidate, explain, processes)

    def plan(self, notes: tuple[str, ...], reasons: tuple[str, ...], explained: Reasons) -> Plan:
        """Return the plan with these explanations."""
        params = self.candidate.params
        # Layer counts instead of free memory, which may be different at the start.
        if len(self.evaluator.machine.devices) > 1:
            from .one.partition import explicit_split

            params = explicit_split(self.evaluator, params)
        # the trained context, which --fit would multiply by the slots that have caches
        if params.n_ctx == 0:
            params = replace(params, n_ctx=self.use.n_ctx)
        params, reasons = self._with_threads(params, reasons)
        host = self._host()
        seen = Solution(self.problem, self.candidate, self.use, host, self.requests)
        idle = () if self.policy.alone else tuple(unused(self.problem, self.candidate))
        predict = self._predicts()
        if (served := self.requests) is not None:
            predict = partial(_with_requests, predict, served)
        return Plan(
            self.evaluator.model,
            params,
            self.use,
            self._devices(),
            host,
            self.candidate.fits,
            tuple(_flags(self.evaluator, params, self.given, self.problem.build)),
            self.evaluator.described(params),
            predict,
            partial(
                _layers,
                self.evaluator.estimator.placer,
                self.candidate.params,
                self.evaluator.estimator.companions,
                self.evaluator.machine.devices,
            ),
            (*filter(None, [self._paid()]), *idle, *reasons, *self._hits(), *self._kept()),
            self._limited(seen),
            notes + tuple(remarks.warnings(seen)),
            explained,
            paid=self._paid(),
            idle=idle,
            engine=self.evaluator.estimator.rules.engine.name,
        )

    def _predicts(self) -> Callable[[], Speed]:
        """Return what computes the speed, which -q does not print: its plan keeps all that was
        measured."""
        if self.policy.alone:
            return lambda: self.cost.price(self.candidate)
        return self.cost.later(self.candidate)

    def _kept(self) -> tuple[str, ...]:
        here = serving.saved(self.candidate.params, self.use, self.policy.workload)
        return (
            (serving.why_kept(self.policy.agents, here),)
            if self.policy.agents and here is not None
            else ()
        )

    def _hits(self) -> tuple[str, ...]:
        return hits(self.cost, self.candidate) if self.candidate.params.moe_cache_mib else ()

    def _paid(self) -> str:
        """Return what an automatically enlarged context costs."""
        smaller, price = self.paid
        if not smaller or price < 1.005 or smaller >= self.use.n_ctx:
            return ""
        return (
            f"context {self.use.n_ctx} instead of {smaller} costs {100 * (price - 1):.0f} % of the "
            f"request's time"
        )

    def _limited(self, seen: Solution) -> tuple[str, ...]:
        """Return what raises the limit of a GPU that uses RAM, if the launch would take more."""
        use = self.use
        trained = self.evaluator.model.n_ctx_train
        enough = self.given.n_ctx or use.n_ctx_seq >= trained
        whole = self.problem.offloads_all(self.candidate.params)
        if self.candidate.fits and whole and enough:
            return ()
        movable = use.host.model + use.host.context
        return remarks.how_to_raise(self.evaluator.machine, self.candidate, movable)

    def _with_threads(
        self, params: Params, reasons: tuple[str, ...]
    ) -> tuple[Params, tuple[str, ...]]:
        """Return the flags, with -t if the CPU computes and llama.cpp's default is wrong, and the
        reason."""
        count = self.evaluator.machine.threads
        if count is None or params.n_threads is not None or self.policy.alone:
            return params, reasons
        from ..work.speed import IN_RAM

        if not self.use.host.context and self.cost.speed(self.candidate).kind not in IN_RAM:
            return params, reasons
        return replace(params, n_threads=count), (
            *reasons,
            f"-t {count}: llama.cpp would start a thread per core of the machine, and only "
            f"{count} of them may run at once or are fast",
        )

    def _devices(self) -> tuple[DeviceRow, ...]:
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
        return tuple(rows)

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


def _flags(evaluator: Evaluator, params: Params, given: Params, build: Build) -> list[str]:
    """Return all memory-relevant arguments as the build spells them, layers and context first; the
    caller adds the model."""
    from ..flags.write import to_words

    experts: list[str] = []
    # With given rules the plan's flags follow the user's, unmerged, as their order decides.
    if not given.overrides:
        params, experts = own_experts(evaluator, params)
        own = ((EXPERTS_REGEX, "-ncmoe"), (FFN_REGEX, "-ncffn"))
        with_flag = tuple(regex for regex, flag in own if build.knows(flag))
        params = replace(params, overrides=merged(params.overrides, with_flag))
    # What the program says in words of its own (engine.words) is not written twice.
    in_its_words: dict[str, Any] = dict.fromkeys(build.engine.fields)
    params = replace(params, **in_its_words)
    # Builds whose -fa takes no value.
    flash = params.flash_attn if build.bare_flash else None
    rest = to_words(
        replace(
            params,
            model=None,
            n_ctx=None,
            n_gpu_layers=None,
            flash_attn=None if flash else params.flash_attn,
        ),
        build.knows,
    )
    rest += ["-fa"] if flash == "on" else []
    words = []
    if params.n_gpu_layers is not None:
        words += [
            "-ngl",
            {-1: "auto", -2: "all"}.get(params.n_gpu_layers, str(params.n_gpu_layers)),
        ]
    if params.n_ctx is not None:
        words += ["-c", str(params.n_ctx)]
    return [*words, *rest, *experts, *build.engine.words]
