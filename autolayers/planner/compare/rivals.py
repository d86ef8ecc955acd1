"""Which other launches may be fastest: those whose predicted speed overlaps with the best one's, to
be measured.

    for rival in rivals(Problem(model, request)):     # the best predicted one first, five at most
        rival.params, rival.placement, rival.seconds(prompt_rate, token_rate, test)
"""

from __future__ import annotations

from ...errors import DoesNotFit, LaunchRefused
from ...flags.params import N_BATCH, Params
from ...records import dataclass, replace
from ..buffers import Buffers
from ..candidates import PlacementKind
from ..evaluate import FULL, Candidate
from ..frames import MICRO_BATCHES, Frame, processor_alone
from ..one.fit import fit
from ..one.ladder import Ladders, may_split_tensors
from ..one.most import with_most_layers
from ..prices import FASTER
from ..problem import Problem
from ..solve import solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ...engines import Engine
    from ...model import Model
    from ...request import Request
    from ...work.clock import Clock
    from ...work.speed import CostModel, Speed


@dataclass(frozen=True)
class Trial:
    """What is measured of a launch: the rates of a prompt and of generated tokens, each after
    `depth` others."""

    prompt: int
    generate: int
    depth: int = 0


@dataclass(frozen=True)
class Rival:
    """A launch that fits, with all its flags."""

    params: Params
    placement: str
    speed: Speed
    clock: Clock
    n_ctx_seq: int  # the limit for tests

    def seconds(self, prompt: float, token: float, test: Trial) -> float:
        """Return the seconds of the whole workload from measured rates, plus the predicted extra
        cost of longer prompts and deeper tokens than the test's."""
        work = self.speed.workload
        clock = self.clock
        first = (
            # The prediction says how the workload's prompt and the test's differ; the measured rate
            # says how fast the machine is.
            self.predicted_prompt / (clock.prompt(test.prompt, test.depth) / test.prompt) / prompt
        )
        later = self.predicted_token / clock.token(test.depth + test.generate / 2) / token
        return work.requests * first * work.prompt + work.generate * later

    @property
    def predicted_prompt(self) -> float:
        """Seconds per token of the workload's prompts."""
        return 1 / self.speed.prompt

    @property
    def predicted_token(self) -> float:
        """Seconds per token of the answers, halfway through."""
        return self.speed.workload.requests / self.speed.generation

    def expected(self, test: Trial) -> tuple[float, float]:
        """Return the predicted seconds of a test's prompt and of its tokens."""
        return (
            self.clock.prompt(test.prompt, test.depth),
            test.generate * self.clock.token(test.depth + test.generate / 2),
        )


def rivals(problem: Problem, threads: tuple[int, ...] = ()) -> list[Rival]:
    """Return the plan's launch, then those that may be faster within the uncertainty of both
    predictions, all with its context.

    `threads`: thread counts to try if the CPU computes. Raises LaunchRefused, and DoesNotFit if no
    launch fits."""
    cost = problem.reference
    chosen = _chosen(problem)
    by_kind: dict[str, list[Candidate]] = {}
    # The plan's own launch is of no kind, so that every kind is still tried.
    for kind, candidate in [("", chosen), *_alternatives(problem, chosen)]:
        if candidate is not None and candidate.fits:
            of_kind = by_kind.setdefault(kind, [])
            # Two launches of a kind that take the same time would be measured twice for nothing.
            alike = FASTER.factor
            near = [cost.speed(other).request / cost.speed(candidate).request for other in of_kind]
            if all(not 1 / alike < ratio < alike for ratio in near):
                of_kind.append(candidate)
    chosen_first = [_rival(problem, candidate) for candidate in _near(cost, chosen, by_kind)]
    # The first launch in which the CPU computes with each number of threads, unless one is given.
    rival = next((rival for rival in chosen_first if rival.clock.on_cpu), None)
    if rival is None or problem.given.n_threads is not None:
        more = []
    else:
        more = [
            replace(
                rival,
                params=replace(rival.params, n_threads=n),
                placement=f"{rival.placement}, -t {n}",
            )
            for n in threads
        ]
    # Five are measured at most: threads take the place of the last launches.
    return [*chosen_first[: 5 - len(more)], *more]


def of_each_class(problem: Problem) -> list[Rival]:
    """Return the plan's launch, and one of each other class of launches that fits: the fastest
    predicted. Raises as `rivals`."""
    cost = problem.reference
    chosen = _chosen(problem)
    best = {cost.speed(chosen).kind: chosen}
    others = [
        candidate
        for _, candidate in _alternatives(problem, chosen)
        if candidate is not None and candidate.fits and problem.machine.devices
    ]
    # The fastest first, so that `setdefault` keeps it.
    for candidate in sorted(others, key=lambda candidate: cost.speed(candidate).request):
        best.setdefault(cost.speed(candidate).kind, candidate)
    return [_rival(problem, candidate) for candidate in best.values()]


def room_in(engine: Engine, model: Model, request: Request) -> Callable[[Rival, Trial], int]:
    """Return the bytes that a device lacks when another program measures a launch; 0: it has
    room."""
    # Another program, e.g. llama-bench, allocates differently: it has its own defaults and outputs.
    evaluator = Problem(
        model, request.with_goals(build=replace(request.build, engine=engine))
    ).evaluator

    def missing(rival: Rival, test: Trial) -> int:
        # A test needs only its own tokens: one sequence, without slots.
        cells = test.prompt + test.generate + test.depth
        params = replace(rival.params, n_ctx=cells, n_parallel=1, kv_unified=None)
        candidate = evaluator.candidate(params, FULL, last=True)
        return max([0, *[-left for left in candidate.spare.values()]]) if candidate else 0

    return missing


def _chosen(problem: Problem) -> Candidate:
    """Return the plan's launch."""
    chosen = solve(problem.settled()).candidate
    if chosen is None:
        raise problem.evaluator.refusal or LaunchRefused("llama.cpp would refuse this launch")
    if not chosen.fits:
        raise DoesNotFit("no launch of this model fits: nothing to measure")
    return chosen


def _near(
    cost: CostModel, chosen: Candidate, by_kind: dict[str, list[Candidate]]
) -> list[Candidate]:
    """Return the plan's launch, and those that may be faster within both predictions' uncertainty;
    for unknown devices, all of them. The best of each kind come first."""
    best = cost.speed(chosen)
    # The pessimistic end of the plan's range: who promises less time may be faster.
    limit = (
        best.request * best.spread
        if all(figures.known for figures in cost.devices.values())
        else float("inf")
    )
    everything = cost.estimator.model.hparams.n_layer_all + 1

    # -ngl 99 and -ngl 33 are the same launch of a model with 32 layers.
    def plain(params: Params) -> Params:
        return replace(params, n_gpu_layers=params.layers_wanted(everything))

    order: dict[Params, tuple[int, float, Candidate]] = {}
    for kind in by_kind.values():
        kind.sort(key=lambda candidate: cost.speed(candidate).request)
        for rank, candidate in enumerate(kind):
            # The optimistic end of its own range.
            speed = cost.speed(candidate)
            if speed.request / speed.spread <= limit:
                order.setdefault(plain(candidate.params), (rank, speed.request, candidate))
    order.pop(plain(chosen.params), None)
    return [
        chosen,
        *(candidate for _, _, candidate in sorted(order.values(), key=lambda row: row[:2])),
    ]


def _rival(problem: Problem, candidate: Candidate) -> Rival:
    evaluator = problem.evaluator
    cost = problem.reference
    use = candidate.breakdown
    clock = cost.own(candidate)
    # With the limits of saved prompts, if RAM is short, as a plan has them.
    params = evaluator.bounded(candidate).params
    threads = evaluator.machine.host.threads
    if threads is not None and params.n_threads is None and clock.on_cpu:
        params = replace(params, n_threads=threads)
    placement = evaluator.described(params)
    device = "none" if params.device == () else ",".join(params.device or ())
    # The placement's words alone do not tell two rivals apart.
    more = {
        "-sm": params.split_mode,
        "-dev": device,
        "-ub": params.n_ubatch,
        "-fa": params.flash_attn,
    }
    placement += "".join(f", {flag} {value}" for flag, value in more.items() if value)
    return Rival(params, placement, cost.price(candidate), clock, use.n_ctx_seq)


def _alternatives(problem: Problem, chosen: Candidate) -> Iterator[tuple[str, Candidate | None]]:
    """Yield (kind of placement, a launch of it), with the context of the plan's, without changing
    any given flag."""
    evaluator = problem.evaluator
    devices = problem.machine.devices
    at = replace(problem.given, n_ctx=chosen.breakdown.n_ctx)
    sizes = _batches(at)
    if not devices:
        # The effect of these on a CPU is not predicted, so each is a kind of its own
        for changes in (*sizes[:2], {"flash_attn": "off"} if at.flash_attn is None else {}):
            yield str(changes), evaluator.candidate(replace(chosen.params, **changes), FULL)
        return
    # --fit's answer is tried once: it chooses no micro-batch.
    for changes in sizes:
        params = replace(at, **changes)
        # (kind of placement, a launch of it) with this micro-batch; `fits`: --fit's too
        ladders = Ladders(problem, params)
        layers = ladders.layers(params)
        in_ram = ladders.in_ram(params)
        if layers is not None:
            yield "layers", _most(problem, "layers", params)
            yield "none", evaluator.candidate(replace(params, n_gpu_layers=0), FULL)
        if processor_alone(problem, params):
            yield "processor", evaluator.candidate(replace(params, device=(), n_gpu_layers=0), FULL)
        if in_ram is not None:
            yield in_ram.kind, _most(problem, in_ram.kind, params)
        if layers is not None and not changes:
            yield "fit", fit(evaluator, params, FULL)
    top = Ladders(problem, at).top
    if may_split_tensors(evaluator, at):
        yield (
            "tensor",
            evaluator.candidate(replace(at, split_mode="tensor", n_gpu_layers=top), FULL),
        )
    # Every device that llama.cpp uses slows each token, so each is tried alone.
    # Whether the flags leave open which devices are used, and how
    if len(devices) > 1 and (
        at.device is None and at.split_mode is None and at.tensor_split is None
    ):
        for device in devices:
            alone = replace(at, device=(device.name,), n_gpu_layers=top)
            yield device.name, evaluator.candidate(alone, FULL)


def _batches(given: Params) -> tuple[dict[str, Any], ...]:
    """Return the changes of the micro-batch to try, none first."""
    if given.n_ubatch is not None or given.n_batch is not None:
        return ({},)
    if given.embedding or given.reranking:
        return ({},)
    return ({}, *({"n_ubatch": size, "n_batch": max(N_BATCH, size)} for size in MICRO_BATCHES))


def _most(problem: Problem, kind: str, given: Params) -> Candidate | None:
    """Return the launch of a kind of placement with the most layers on the devices."""
    buffers = Buffers(problem.machine.limits)
    return with_most_layers(
        PlacementKind(Frame(problem, given), kind, given, buffers), given.n_ctx, FULL
    )
