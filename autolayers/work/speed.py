"""How fast a launch would be: a prediction from its Work and the machine's figures, never a
measurement. The share of their rated figures that GPUs reach is in rates.py, fitted to measured
launches. Unknown figures of the machine have defaults, which make the prediction less certain. A
Speed states its uncertainty, by class."""

from __future__ import annotations

from math import exp, hypot, log

from ..backends import on
from ..errors import LaunchRefused
from ..flags.params import EXPERTS_REGEX
from ..flags.workload import CHAT
from ..ggml.types import is_quantised
from ..keys import written
from ..memory.breakdown import shared
from ..memory.meter import WORK
from ..memory.split import model_devices
from ..records import dataclass, lazy, replace
from . import unfused
from .calibration import NONE, Calibration
from .clock import Clock, Sums, sent
from .drafts import AT_ONCE, WITHIN, DecodingStep, Drafted, Drafting, accepted, best, checks_of
from .expert_cache import DOUBT as CACHE_DOUBT
from .expert_cache import DOUBT_UNKNOWN, UPLOAD, ExpertCache
from .figures import NETWORK, NETWORK_RATE, Figures, HostFigures
from .rates import (
    BETWEEN,
    CALIBRATED,
    FEW_SOURCES,
    SHARED,
    UNKNOWN_RAM,
    doubt_of,
    generation_of,
)
from .unsure import Seen, unsure
from .work import HOST, Homes, WeightCosts, Work, fallen, work_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import Any, Protocol, TypeVar

    from ..flags.params import Params
    from ..flags.workload import Workload
    from ..machine import Machine
    from ..memory.breakdown import Breakdown, LowerBound, Static
    from ..memory.estimate import Estimator
    from ..memory.graphs.scheduled import Steps
    from ..memory.weights import Placement
    from .calibration import Correction
    from .work import Attention, Load

    class Launch(Protocol):
        """A launch that was measured."""

        @property
        def params(self) -> Params: ...
        @property
        def breakdown(self) -> Breakdown | LowerBound: ...

    class Answers(Protocol):
        """planner.users.Requests."""

        @property
        def row(self) -> Any: ...

        def to_dict(self) -> dict[str, object]: ...

    L = TypeVar("L", bound=Launch)

# kinds of placement that RAM's bandwidth dominates
IN_RAM = ("MoE in RAM", "dense partial", "CPU")
_LONG = 1 << 17  # a context longer than every sliding window
_SHORT = 4096
_DEEP = 8192  # tokens of a sequence, up to which an empty context stands for all of it


@dataclass(frozen=True)
class Speed:
    """Predicted tokens per second for a workload. The truth is expected between a `spread`-th and
    `spread` times of the whole request's; `prompt_spread` and `generation_spread` are its
    parts'."""

    workload: Workload
    prompt: float
    generation: float  # of all requests together, halfway through the answer
    generation_full: float  # with one slot's context full
    request: float  # seconds of the whole workload
    prompt_spread: float
    generation_spread: float
    kind: str = ""  # of the placement, whose residuals give the spreads
    # figures that are defaults: (RAM or a device, bytes per second), or ("cores", their number)
    assumed: tuple[tuple[str, float], ...] = ()
    # by launches that were measured on this machine
    prompt_correction: Correction = NONE
    generation_correction: Correction = NONE
    draft: Drafted | None = None
    requests: Answers | None = None  # what each of several people gets
    # `request` as the mean of several depths, if launches are compared there
    over_depths: float | None = None
    in_ram: float = 0.0  # bytes of weights that the CPU reads for a token
    unsure: tuple[str, ...] = ()  # what makes it less sure than its class is

    @property
    def rate(self) -> float:
        """Tokens per second that a launch is said by: of several people what all get, with their
        prompts and waiting; otherwise of all requests while they answer."""
        return self.generation if self.requests is None else float(self.requests.row.served.total)

    @property
    def compared(self) -> float:
        """Seconds by which launches are compared."""
        return self.request if self.over_depths is None else self.over_depths

    @property
    def correction(self) -> Correction:
        """The one of more runs, of this class if there is one."""
        return max(
            self.generation_correction, self.prompt_correction, key=lambda row: (row.own, row.runs)
        )

    @property
    def calibrated(self) -> Speed | None:
        """Itself, if launches of this machine corrected it."""
        return self if self.correction.runs else None

    @property
    def spread(self) -> float:
        prompt = self.workload.prompt / self.prompt
        answer = self.workload.generate / self.generation
        return (prompt * self.prompt_spread + answer * self.generation_spread) / (prompt + answer)

    def to_dict(self) -> dict[str, object]:
        return written("speed", self)


class CostModel:
    """Predicts the speed of launches of one model on one machine, each only once. `deep`: launches
    are compared by the mean of an empty, a half full and a full context, as somebody gave it who
    will fill it."""

    def __init__(
        self,
        estimator: Estimator,
        machine: Machine,
        workload: Workload | None = None,
        drafting: Drafting | None = None,
        deep: bool = False,
    ) -> None:
        self.estimator = estimator
        self.machine = machine
        self.workload = workload or CHAT
        self.drafting = drafting
        self.deep = deep
        self._speeds: dict[Params, Speed] = {}
        self._settled: dict[Params, Speed] = {}  # of any context
        self._own: dict[Params, Speed] = {}  # by the launch's own graphs
        self._clocks: dict[Params, Clock] = {}  # of any context
        self._growths: dict[tuple[Params, int], float] = {}
        self._seconds: dict[object, dict[str, list[float]]] = {}  # of layer_seconds
        self._caches: dict[object, list[Attention | None]] = {}
        self._homes: dict[object, Homes] = {}
        self._scripts: dict[object, Steps | None] = {}
        self._summed: dict[tuple[int, int], Sums] = {}

    def at_depths(self, deep: bool) -> CostModel:
        """Return the same predictions, with `deep` as given."""
        if deep == self.deep:
            return self
        other = self._like(self.machine, deep)
        other._seconds = self._seconds
        return other

    def on(self, machine: Machine) -> CostModel:
        """Return the cost model of the same model on another machine."""
        return self._like(machine, self.deep)

    def _like(self, machine: Machine, deep: bool) -> CostModel:
        other = CostModel(self.estimator, machine, self.workload, self.drafting, deep)
        other._homes = self._homes
        other._scripts = self._scripts
        other._caches = self._caches
        vars(other)["weights"] = self.weights
        return other

    @lazy
    def weights(self) -> WeightCosts:
        return WeightCosts(self.estimator.model)

    @lazy
    def _alike(self) -> tuple[Hashable, ...]:
        """What graphs on the machine depend on."""
        return self.estimator.alike(self.machine.devices)

    @lazy
    def devices(self) -> dict[str, Figures]:
        return {
            device.name: Figures.of(
                device, self.machine.host.bandwidth, self.estimator.rules.number
            )
            for device in self.machine.devices
        }

    @lazy
    def calibration(self) -> Calibration:
        return Calibration(self.machine.measured)

    @lazy
    def host(self) -> HostFigures:
        # RAM that is not known has what the devices cannot have of the weights
        devices = sum(device.total for device in self.machine.devices)
        least = max(0, self.estimator.model.size - devices)
        return HostFigures.of(self.machine, self.estimator.rules.number, least)

    @property
    def core_flops(self) -> float:
        """Operations per second of all cores, for prompts."""
        return self.host.cores * SHARED.core_flops * 1e9

    def speed(self, launch: Launch) -> Speed:
        """Return the speed by which a search compares launches: by the same rule whether they are
        measured or not."""
        return self.predict(launch.params, launch.breakdown)

    def price(self, launch: Launch) -> Speed:
        """Return the speed by the launch's own graphs, as far as they are known."""
        key = _key(launch.params, launch.breakdown)
        if key not in self._own:
            self._own[key] = self._of(self.own(launch), launch.breakdown)
        return self._own[key]

    def own(self, launch: Launch) -> Clock:
        """Return the seconds by the launch's own graphs, if they are known and the token graph has
        as many tokens as requests: it is measured with one per slot."""
        steps = getattr(launch.breakdown, "steps", None)
        use = launch.breakdown
        if steps is None or use.n_seq_max != self.workload.requests:
            return self.clock(launch.params, use)
        return self.clock(
            launch.params,
            use,
            work_of(self.weights, steps, self._where(self.placement(launch.params))),
        )

    def fallen(self, launch: Launch) -> dict[tuple[str, str], int]:
        """Return the operations that run on the CPU because a kernel is missing: by device and op,
        the number of layers."""
        steps = getattr(launch.breakdown, "steps", None)
        return (
            fallen(steps, self._where(self.placement(launch.params))) if steps is not None else {}
        )

    def predict(self, params: Params, use: Static) -> Speed:
        """Return the speed of a launch; only its context, its batches and what is in RAM matter."""
        key = _key(params, use)
        if key not in self._speeds:
            self._speeds[key] = self._of(self.clock(params, use), use)
        return self._speeds[key]

    def at_any_context(self, params: Params, use: Static) -> Speed:
        """Return the speed of a launch, but for `generation_full`: of any context that holds the
        whole workload."""
        work = self.workload
        holds = use.n_ctx_seq >= work.depth + work.prompt + work.generate
        # Where the context itself matters: its depths, the cells of several requests, a cut
        # request, the disk.
        if self.deep or work.requests > 1 or not holds or self._missing(use):
            return self.predict(params, use)
        key = replace(params, n_ctx=None)
        if key not in self._settled:
            self._settled[key] = self.predict(params, use)
        return self._settled[key]

    def growth(self, params: Params, use: Static, n_ctx: int) -> float:
        """Return how many times as long the workload takes in a sequence of `n_ctx` tokens, the
        mean of empty, half full and full, as in an empty one; 1 where `compared` is that mean."""
        if self.deep and n_ctx > _DEEP:
            return 1.0
        params = params if self._missing(use) else replace(params, n_ctx=None)
        if (params, n_ctx) not in self._growths:
            if params not in self._clocks:
                self._clocks[params] = self.clock(params, use)
            clock = self._clocks[params]
            work = self.workload
            use = replace(use, n_ctx_seq=n_ctx)
            first, token, _ = _parts(clock, work, use)
            empty = first * work.requests + work.generate * token
            self._growths[params, n_ctx] = _over_depths(clock, work, use) / empty
        return self._growths[params, n_ctx]

    def _of(self, clock: Clock, use: Static) -> Speed:
        kind = self.kind(clock)
        corrections = self.calibration.of(kind, "pp"), self.calibration.of(kind, "tg")
        # The unknown figures that decide this launch's speed.
        defaults = [(name, rate) for name, rate in self._unknown if name in clock.tokens.places]
        if any(name in clock.work.token.visits for name in self._remote):
            defaults.append((NETWORK, NETWORK_RATE))
        if kind in IN_RAM:
            defaults += [("RAM", self.host.ram)] if not self.host.known else []
            defaults += [("cores", self.host.cores)] if not clock.host.counted else []
        if clock.cached is not None and not clock.cached.measured:
            defaults.append((UPLOAD, clock.cached.upload))
        # the Speed of a workload: its prompts one after another, its answers together
        assumed = tuple(defaults)
        n_ctx_seq = use.n_ctx_seq
        first, token, together = _parts(clock, self.workload, use)
        full = clock.token(n_ctx_seq, together)
        ram_known = all(name != "RAM" for name, _ in assumed)
        prompts, tokens = corrections
        upload = 1.0
        if clock.cached is not None:  # its pace is not that of launches without one
            upload = CACHE_DOUBT if clock.cached.measured else DOUBT_UNKNOWN
        speed = Speed(
            self.workload,
            self.workload.prompt / first,
            self.workload.requests / token,
            together / full,
            first * self.workload.requests + self.workload.generate * token,
            _doubt(clock, kind, "pp", ram_known, prompts.own),
            _doubt(clock, kind, "tg", ram_known, tokens.own and clock.cached is None, upload),
            kind,
            assumed,
            prompts,
            tokens,
            in_ram=clock.in_ram,
        )
        if self.deep and use.n_ctx_seq > _DEEP:
            speed = replace(speed, over_depths=_over_depths(clock, self.workload, use))
        speed = self._unsure(speed, clock, use)
        if clock.apart:
            # Factors that have nothing to do with each other add up in squares of their logarithms.
            doubt = hypot(log(speed.prompt_spread), log(unfused.DOUBT))
            speed = replace(speed, prompt_spread=exp(doubt))
        return speed if self.drafting is None else self._drafted(self.drafting, speed, clock, use)

    def _unsure(self, speed: Speed, clock: Clock, use: Static) -> Speed:
        """Return the speed with the wider range of launches that few measurements are like."""
        depth, _ = _middle(self.workload, use)
        seen = Seen(clock, self.machine.devices, self._generations, speed.kind, depth)
        rows = unsure(seen)
        if not rows:
            return speed
        prompts = [] if speed.prompt_correction.own else [log(row.prompts) for row in rows]
        tokens = [] if speed.generation_correction.own else [log(row.tokens) for row in rows]
        return replace(
            speed,
            unsure=tuple([row.what for row in rows]) if prompts or tokens else (),
            prompt_spread=exp(hypot(log(speed.prompt_spread), *prompts)),
            generation_spread=exp(hypot(log(speed.generation_spread), *tokens)),
        )

    @lazy
    def _generations(self) -> dict[str, str]:
        return {device.name: generation_of(device) for device in self.machine.devices}

    def _drafted(self, drafting: Drafting, speed: Speed, clock: Clock, use: Static) -> Speed:
        """Return the speed with a draft: of `drafting.n` tokens a step, or of as many as are
        best."""
        work = self.workload
        depth, together = _middle(work, use)
        step = DecodingStep(clock, depth, together)
        place = drafting.place or clock.work.token.last
        passes = step.passes(drafting.model or self.estimator.model, place, drafting.model is None)
        device = next((device for device in self.machine.devices if device.name == place), None)
        hybrid = any(cache is not None and cache.state for *_, cache in clock.tokens.caches)
        costs = checks_of(device, self.estimator.rules.number, hybrid)

        def gain(n: int, text: str = "mixed") -> float:
            share = accepted(n, text, drafting.share)
            return step.speedup(n, share, passes * (1 if drafting.kind in AT_ONCE else n), costs)

        n = best(gain) if drafting.n is None else drafting.n
        if n < 1:
            return speed
        texts = ("mixed",) if drafting.share else ("code", "prose")
        rates = tuple([(text, speed.generation * gain(n, text)) for text in texts])
        answers = work.generate * work.requests / speed.generation
        # Drafts save seconds of answers; prompts take as long as before.
        saved = answers * (1 - 1 / gain(n))
        over = (
            None if speed.over_depths is None else speed.over_depths * (1 - saved / speed.request)
        )
        return replace(
            speed,
            over_depths=over,
            generation=speed.generation * gain(n),
            generation_full=speed.generation_full * gain(n),
            request=speed.request - saved,
            generation_spread=exp(hypot(log(speed.generation_spread), log(WITHIN))),
            draft=Drafted(
                drafting.kind,
                n,
                place,
                accepted(n, "mixed", drafting.share),
                speed.generation,
                rates,
            ),
        )

    def later(self, launch: Launch) -> Callable[[], Speed]:
        """Return a function that computes `price`; if that is known already, it keeps nothing else
        in memory."""
        speed = self._own.get(_key(launch.params, launch.breakdown))
        if speed is None:
            return lambda: self.price(launch)
        return lambda: speed

    def _where(self, placement: Placement) -> list[str]:
        """Return the device of each layer that takes part in plain generation, the output layer
        last; HOST for none."""
        devices = layer_devices(placement)
        return [*devices[: self.weights.n_layer], devices[-1]]

    def placement(self, params: Params) -> Placement:
        return self.estimator.placement(params, self.machine.devices)

    def clock(self, params: Params, use: Static, work: Work | None = None) -> Clock:
        """Return the seconds of a launch's graphs; `work`: its own, if they were measured."""
        placement = self.placement(params)
        fused = params if use.flash_attn else replace(params, flash_attn="off")
        devices = {device.name: self.devices[device.name] for device in placement.devices}
        rules = self.estimator.rules
        # pipeline_parallel of llama_context's constructor.
        by_layers = params.split_mode in (None, "layer") and not params.overrides
        offloaded = params.kv_offload is not False and placement.n_gpu_layers > len(
            placement.dev_layer
        )
        several = len(devices) > 1 and not any(device.network for device in devices.values())
        pipelined = several and by_layers and offloaded
        pipelined = pipelined and all(
            on(device, rules=rules).pipelines() for device in placement.devices
        )
        # what the cache of experts has of them
        if not params.moe_cache_mib:
            cached = None
        else:
            banks = self.estimator.expert_banks(params, placement)
            cached = ExpertCache.of(
                banks, self.weights.hparams.n_expert_used_max, self.machine, self.host.bus
            )
        if work is None:
            work = self._work(fused, placement)
            # whether -fa auto ends without flash attention, as a layer's device has no kernel for
            # it (llama_context's constructor: "Flash Attention was auto, set to disabled"). A
            # quantised V cache keeps it.
            if fused.flash_attn not in (None, "auto") or is_quantised(fused.cache_type_v or "f16"):
                unfuses = False
            else:
                unfuses = work.token.attends_on_cpu
            if unfuses:
                fused = replace(params, flash_attn="off")
                work = self._work(fused, placement)
            if cached is not None:  # a token's experts run on their layers' devices
                resident = self.placement(
                    replace(
                        params,
                        overrides=tuple(
                            rule for rule in params.overrides if EXPERTS_REGEX not in rule[0]
                        ),
                    )
                )
                work = replace(work, token=self._work(fused, resident, placement).token)
        host = self.host.with_threads(params.n_threads, params.n_threads_batch)
        # the seconds that a prompt's token takes more where the delta net is not one op
        model = self.estimator.model
        if not unfused.parts(model, params, self.estimator.rules, placement):
            apart = 0.0
        else:
            apart = unfused.seconds(model, self._where(placement), devices)
        clock = Clock(
            self.weights,
            work,
            self._sums(work.token, fused),
            self._sums(work.prompt, fused),
            devices,
            host,
            n_batch=use.n_batch,
            n_ubatch=use.n_ubatch,
            pipelined=pipelined,
            shares=placement.shares or None,
            reduced=params.split_mode == "tensor",
            missing=self._missing(use),
            cached=cached,
            apart=apart,
            pinned=pinned(placement),
        )
        # With an expert cache the pace is another one, which no class of measurements has.
        if self.calibration.measured and cached is None:
            kind = self.kind(clock)
            prompts, tokens = self.calibration.of(kind, "pp"), self.calibration.of(kind, "tg")
            clock.paces = prompts.factor, tokens.factor
        return clock

    def _work(self, params: Params, placement: Placement, of: Placement | None = None) -> Work:
        """Return who computes what with the weights of a placement, in launches like `of`, by
        default its own."""
        homes = self.homes(params, of or placement)
        if not homes.knows(placement):
            self.estimator.meter.spent += WORK * self.weights.n_layer
        return homes.work(placement, self._where(of or placement))

    def _sums(self, load: Load, params: Params) -> Sums:
        """Return a Load with the caches of these flags, which launches share as they do their
        Work."""
        caches = self.caches(params)
        key = id(load), id(caches)  # both are kept as long as this is
        if key not in self._summed:
            self._summed[key] = Sums(load, caches)
        return self._summed[key]

    def parts(self, launch: Launch) -> bool:
        """Return whether the launch's delta net is not one op, though the build has one (see
        unfused)."""
        return unfused.parts(
            self.estimator.model, launch.params, self.estimator.rules, self.placement(launch.params)
        )

    def homes(self, params: Params, placement: Placement) -> Homes:
        """Return who computes what in launches of this kind, for any placement of the layers."""
        offload = params.op_offload is not False and placement.slices is None
        names = tuple(device.name for device in placement.devices)
        kind = (
            params.cache_type_k,
            params.cache_type_v,
            params.flash_attn,
            params.kv_offload,
            offload,
        )
        key = (kind, params.device, params.split_mode, names, self._alike)
        if key not in self._homes:
            script, listed = self._script(params, kind, names)
            self._homes[key] = Homes(
                self.weights, script, listed, params.kv_offload is not False, offload, names
            )
        return self._homes[key]

    def _script(
        self, params: Params, kind: object, names: tuple[str, ...]
    ) -> tuple[Steps | None, tuple[str, ...]]:
        """Return the graphs' steps, and the devices that its bits mean: of all devices in
        llama.cpp's own order, if these are some of them."""
        own = replace(params, device=None, split_mode=None, main_gpu=None)
        listed = tuple(
            [
                device.name
                for device in model_devices(own, self.machine.devices, self.estimator.rules)[0]
            ]
        )
        if params.split_mode not in (None, "layer", "none") or not set(names) <= set(listed):
            own = params
            listed = names
        key = kind, own.device, own.split_mode, listed, self._alike
        if key not in self._scripts:
            # Only who computes what is wanted: a short context and one sequence make the smallest
            # graphs.
            alike = replace(
                own,
                n_ctx=_SHORT,
                n_parallel=1,
                kv_unified=None,
                kv_unified_per_slot=None,
                n_gpu_layers=None,
                tensor_split=None,
                overrides=(),
                n_ubatch=None,
                n_batch=None,
            )
            try:
                self._scripts[key] = self.estimator.script(alike, self.machine.devices)
            except LaunchRefused:
                self._scripts[key] = None
        return self._scripts[key], listed

    @lazy
    def _unknown(self) -> list[tuple[str, float]]:
        """Devices of unknown bandwidth, and the assumed value."""
        return [
            (device.name, self.devices[device.name].bandwidth)
            for device in self.machine.devices
            if not device.bandwidth and not (device.kind == "igpu" and self.machine.host.bandwidth)
        ]

    @lazy
    def _remote(self) -> list[str]:
        """Devices of servers with an unknown link."""
        return [
            device.name
            for device in self.machine.devices
            if device.kind == "rpc" and not device.link
        ]

    def _missing(self, use: Static) -> float:
        """Return the share of the weights in RAM that is read from the disk for every token."""
        ram = self.machine.ram
        if ram is None or not use.host_resident:
            return 0.0
        # All that must be in RAM besides the weights stays there; of the weights the rest is read
        # again.
        lacking = (
            use.host_resident
            + use.host.context
            + use.host.compute
            + shared(use, self.machine.devices)
            - ram
        )
        return min(1.0, max(0.0, lacking / use.host_resident))

    def kind(self, clock: Clock) -> str:
        """Return the class of a launch, of machine.CLASSES."""
        rows = clock.work.token.rows
        if not clock.devices:
            return "CPU"
        experts = any(row.experts for row in rows)
        if clock.cached is not None:
            return "MoE in RAM"
        if any(row.place == HOST and (row.experts or row.dense > 1 << 20) for row in rows):
            return "MoE in RAM" if experts else "dense partial"
        if clock.shares or len({row.place for row in rows if row.place != HOST and row.dense}) > 1:
            return "multi-GPU"
        return "MoE resident" if experts else "dense resident"

    def doubt(self, speed: Speed) -> float:
        """Return the error factor of comparisons between this kind of placement and another."""
        # Weighted by the seconds that prompts and answers take.
        prompt = self.workload.prompt / speed.prompt
        answer = self.workload.generate / speed.generation
        return (BETWEEN[speed.kind, "pp"] * prompt + BETWEEN[speed.kind, "tg"] * answer) / (
            prompt + answer
        )

    def in_ram(self, launch: Launch) -> bool:
        """Return whether a significant part of the weights is in RAM."""
        return self.speed(launch).kind in IN_RAM

    def attends_on_cpu(self, launch: Launch) -> bool:
        """Return whether the CPU reads a cache that is on a device."""
        return self.clock(launch.params, launch.breakdown).work.token.attends_on_cpu

    def copies(self, launch: Launch) -> bool:
        """Return whether prompts copy weights in RAM to a device."""
        return any(
            row.copied for row in self.clock(launch.params, launch.breakdown).work.prompt.rows
        )

    def fastest(self, launches: Sequence[L]) -> L:
        """Return the launch with the shortest request; on a tie, the first."""
        if len(launches) == 1:
            return launches[0]
        return min(launches, key=lambda launch: self.speed(launch).compared)

    def hop(self, n_ubatch: int) -> float:
        """Return the seconds that one more hop between devices adds to the request."""
        return SHARED.hop * 1e-6 * (self.workload.generate + self.workload.prompt / n_ubatch)

    def visits(self, name: str, n_ubatch: int) -> float:
        """Return the seconds that visits to a device's server add to the request."""
        work = self.workload
        device = self.devices[name]
        size = sent(self.weights, work.depth + work.prompt)
        return work.generate * device.visit(size) + work.prompt / n_ubatch * device.visit(
            n_ubatch * size
        )

    def layer_seconds(self, params: Params, n_ctx_seq: int) -> dict[str, list[float]]:
        """Return the time of the request in each layer (output last) on each device. Weights in RAM
        take the same time wherever their layer is, and are left out."""
        work = self.workload
        depth = min(n_ctx_seq, work.depth + work.prompt + work.generate / 2)
        if self.deep and n_ctx_seq > _DEEP:
            depth = n_ctx_seq / 2
        key = (replace(params, n_ctx=None, n_gpu_layers=None, tensor_split=None), depth)
        if key in self._seconds:
            return self._seconds[key]
        caches = self.caches(params) if params.kv_offload is not False else []
        placement = self.placement(replace(params, n_gpu_layers=None, tensor_split=None))
        graphs = self._work(params, placement)
        by_device = {}
        alike: dict[Figures, list[float]] = {}
        for name, device in self.devices.items():
            if device in alike:
                by_device[name] = alike[device]
                continue
            # Equal devices take the same time for each layer.
            rates = device.rates
            seconds = [0.0] * (self.weights.hparams.n_layer_all + 1)
            if device.network:
                seconds[-1] = work.generate * 4 * self.weights.n_vocab / device.network
            read = device.bandwidth * rates.read
            rate = device.fp16 * rates.matmul
            weights = self.weights
            last = weights.n_layer  # MTP blocks come before it
            for row in graphs.token.rows:
                if row.place != HOST:
                    experts = row.experts * weights.used * weights.low / rates.chosen
                    size = row.dense * weights.low_dense + experts
                    seconds[row.layer if row.layer < last else -1] += work.generate * (
                        size / read + row.kernels * rates.kernel * 1e-6
                    )
            for row in graphs.prompt.rows:
                seconds[row.layer if row.layer < last else -1] += (
                    work.prompt * 2 * (row.work + 2 * row.expert_work) / rate
                )
            for layer, (cache, where) in enumerate(
                zip(caches, graphs.token.attention, strict=False)
            ):
                if cache is not None and where is not None and where[0] != HOST:
                    size = min(depth, cache.window) * cache.cell + 2 * cache.state
                    seconds[layer] += work.generate * size / (device.bandwidth * rates.cache)
                    flops = min(work.depth + work.prompt / 2, cache.window) * cache.flops
                    seconds[layer] += work.prompt * flops / (device.fp16 * rates.attention)
            by_device[name] = alike[device] = seconds
        self._seconds[key] = by_device
        return by_device

    def caches(self, params: Params) -> list[Attention | None]:
        """Return what attention reads and computes in each layer."""
        # their cells depend on the micro-batch
        windows = self.estimator.model.hparams.is_swa_any
        key = (
            self._alike,
            params.cache_type_k,
            params.cache_type_v,
            params.flash_attn,
            (params.swa_full, params.n_ubatch) if windows else (),
        )
        if key not in self._caches:
            # without the copies of states that drafts are rolled back to
            alone = replace(
                params, n_ctx=_LONG, n_parallel=1, kv_unified=None, kv_offload=None, spec_type=()
            )
            try:
                placement = self.placement(replace(params, n_gpu_layers=0, tensor_split=None))
                memory = self.estimator.caches(alone, placement)
                self._caches[key] = self.weights.attention(
                    memory, _LONG, params.flash_attn != "off"
                )
            except LaunchRefused:
                self._caches[key] = []
        return self._caches[key]


def _key(params: Params, use: Static) -> Params:
    return params if params.n_ctx is not None else replace(params, n_ctx=use.n_ctx)


def pinned(placement: Placement) -> bool:
    """Return whether weights in RAM are in memory that devices copy from directly, as they are
    unless the file is mapped."""
    buffers = {on(device).host_buffer for device in placement.devices} - {""}
    return not placement.mapped and any(placement.buffers.get(name) for name in buffers)


def layer_devices(placement: Placement) -> list[str]:
    """Return the device of each layer, the output layer last; HOST for none."""
    used = {device.name for device in placement.devices}
    return [name if name in used else HOST for name in (*placement.dev_layer, placement.dev_output)]


def _middle(work: Workload, use: Static) -> tuple[float, int]:
    """Return the depth of a request halfway through its answer, and how many run together: as many
    as the slots and the cache's cells allow. A request that does not fit into a slot is cut."""
    n_ctx_seq = use.n_ctx_seq
    cached = min(work.depth, max(0, n_ctx_seq - work.prompt - work.generate))
    before = cached + min(work.prompt, n_ctx_seq)
    depth = min(n_ctx_seq, before + work.generate / 2)
    cells = min(n_ctx_seq, before + work.generate)
    together = min(work.requests, use.n_seq_max, use.n_ctx // cells)
    return depth, max(1, together)


def _parts(clock: Clock, work: Workload, use: Static) -> tuple[float, float, int]:
    """Return the seconds of a prompt, and of a token of all answers; and how many are generated
    together."""
    n_ctx_seq = use.n_ctx_seq
    depth = min(work.depth, max(0, n_ctx_seq - work.prompt - work.generate))
    prompt = min(work.prompt, n_ctx_seq)
    first = clock.prompt(prompt, depth) * work.prompt / prompt
    middle, together = _middle(work, use)
    rounds, rest = divmod(work.requests, together)
    token = rounds * clock.token(middle, together) + (clock.token(middle, rest) if rest else 0.0)
    return first, token, together


def _over_depths(clock: Clock, work: Workload, use: Static) -> float:
    """Return the seconds of the workload, the mean of an empty, a half full and a full context."""
    deepest = max(0, use.n_ctx_seq - work.prompt - work.generate)
    seconds = 0.0
    for depth in (0, deepest // 2, deepest):
        first, token, _ = _parts(clock, replace(work, depth=depth), use)
        seconds += first * work.requests + work.generate * token
    return seconds / 3


def _doubt(
    clock: Clock, kind: str, part: str, ram_known: bool, measured: bool, upload: float = 1.0
) -> float:
    """Return the factor that 80 % of the predictions of this class and of the devices' backends are
    within; more if figures of the
    machine are defaults, less if a launch of the class was `measured` there. `upload`: that of an
    expert cache."""
    if measured:
        return CALIBRATED[kind, part]
    devices = clock.devices.values()
    spread = log(doubt_of(kind, part, {figures.backend for figures in devices}))
    if not all(figures.known for figures in devices):
        spread = hypot(spread, log(2.0))
    if any(figures.rates.sources < 2 for figures in devices):
        spread = hypot(spread, log(FEW_SOURCES[part]))
    if not ram_known:
        spread = hypot(spread, log(UNKNOWN_RAM[part]))
    return exp(hypot(spread, log(upload)))
