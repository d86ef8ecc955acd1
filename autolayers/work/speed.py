"""How fast a launch would be: a prediction from bytes, arithmetic and kernels, never a measurement.

    seconds of n tokens  =  token                                  whatever is read
      + on each device      weights   hypot(bytes / bandwidth, arithmetic / fp16 rate)
                            experts   the same, of those that n tokens choose, by tokens per expert
                            cache     hypot(bytes / bandwidth, arithmetic / fp16 rate) at the request's depth,
                                      and without flash attention the scores' bytes / bandwidth
                            kernels   one for each node of the graph
      + in RAM              weights and cache by bandwidth and cores; for prompts weights are copied to a device
      + handovers, hops     each time the graph goes from a device to the processor, or to another device
      + network             for each visit to an RPC server a round trip, and what is sent there and back
      + disk                what of the weights in RAM has no space there

What share of their makers' figures cards reach is in work/rates.py, fitted to measured launches. Where a figure of
the machine is not known there is a default, and the prediction is less sure. A Speed says how sure, by its class.
"""

from __future__ import annotations

from math import exp, hypot, log

from ..backends import backend, on
from ..devices.integrated import integrated
from ..devices.smbios import OF_PEAK
from ..flags.params import N_BATCH
from ..flags.workload import CHAT
from ..records import dataclass, lazy, replace
from .rates import BETWEEN, DOUBT, FP16_PER_BANDWIDTH, FP16_UNKNOWN, SHARED, generation_of, rates_of
from .traffic import HOST, Traffic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..flags.params import Params
    from ..flags.workload import Workload
    from ..machine import Device, Machine
    from ..memory.breakdown import Static
    from ..memory.weights import Placement
    from ..planner.evaluate import Candidate, Evaluator
    from .rates import Rates, Shared
    from .traffic import Attention, Placed

_MANY = 32                     # tokens from which on matrix kernels are those of prompts, and weights are copied
_IGPU_BANDWIDTH = 51e9         # bytes per second of an integrated GPU that is not known: two channels of DDR4-3200
RAM_BANDWIDTH = 38e9           # fits unknown machines best: two channels of DDR4-3200 have 51 at most
_RAM_BANDWIDTH_NEW = 55e9      # and those with a card of 2025 on: mostly two channels of DDR5
_BUS = 12e9
_UNIFIED_BUS = 100e9
_CORES = 8
IN_RAM = ("MoE in RAM", "dense partial")      # kinds of placement that RAM decides
_DISK = 2.5e9
NETWORK, NETWORK_RATE, ROUND_TRIP = "network", 1.25e8, 3e-4     # the way to a server of which nothing else is known


@dataclass(frozen=True)
class Figures:
    """What a device has: bytes and operations per second. `known` says that neither is a default."""

    rates: Rates
    bandwidth: float
    fp16: float
    offloads: bool       # weights in RAM are copied to it for prompts
    known: bool
    round_trip: float = 0.0      # seconds, to the server that has it
    network: float = 0.0         # bytes per second; 0: no server

    @classmethod
    def of(cls, device: Device, ram: float | None = None) -> Figures:
        """`ram`: bytes per second that reading the machine's RAM reaches, which an integrated GPU's memory is."""
        generation, kind = generation_of(device), backend(device.backend)
        built_in = integrated(device.description) if device.kind == "igpu" else None
        bandwidth = device.bandwidth or kind.bandwidth
        if device.kind == "igpu" and not device.bandwidth:
            bandwidth = ram / OF_PEAK if ram else built_in[1] if built_in else _IGPU_BANDWIDTH
        per_byte = kind.fp16_per_bandwidth or FP16_PER_BANDWIDTH.get(generation, FP16_UNKNOWN)
        fp16 = device.fp16_tflops * 1e12 if device.fp16_tflops else built_in[0] if built_in else bandwidth * per_byte
        network, round_trip = (0.0, 0.0) if device.kind != "rpc" else (
            device.link or NETWORK_RATE, ROUND_TRIP if device.latency is None else device.latency)
        return cls(rates_of(device), bandwidth, fp16, kind.offload_min_batch > 0,
                   bool((device.bandwidth or (built_in and ram)) and generation), round_trip, network)

    def visit(self, size: float) -> float:
        """Seconds of a visit to its server that carries so many bytes there and back; 0 where there is none."""
        return self.round_trip + size / self.network if self.network else 0.0


@dataclass(frozen=True)
class HostFigures:
    """What the rest of the machine has: bytes per second, and cores."""

    ram: float
    bus: float
    cores: int
    disk: float
    known: bool          # RAM's bandwidth is no default

    @classmethod
    def of(cls, machine: Machine) -> HostFigures:
        unified = [device for device in machine.devices if device.kind == "igpu" or device.unified]
        shared = max([device.bandwidth or 0 for device in unified], default=0.0)
        beside = [found[1] for device in unified if (found := integrated(device.description))]
        new = any(generation_of(device) == "Blackwell" for device in machine.devices if device.kind != "rpc")
        ram = machine.ram_bandwidth or shared or OF_PEAK * max(beside, default=0.0) \
            or (_RAM_BANDWIDTH_NEW if new else RAM_BANDWIDTH)
        bus = machine.bus_bandwidth or (_UNIFIED_BUS if unified else 0) \
            or min([device.link for device in machine.devices if device.link and device.kind != "rpc"], default=0.0) \
            or _BUS
        return cls(ram, bus, machine.cores or _CORES, machine.disk_bandwidth or _DISK,
                   bool(machine.ram_bandwidth or shared))


@dataclass(frozen=True)
class Speed:
    """Predicted tokens per second for a workload. The truth is expected between a `spread`-th and `spread` times of the
    whole request's; `prompt_spread` and `generation_spread` are its parts'."""

    workload: Workload
    prompt: float
    generation: float         # of all requests together, in the middle of the answer
    generation_full: float    # with the context of one slot full
    request: float            # seconds of the whole workload: what placements are compared by
    prompt_spread: float
    generation_spread: float
    kind: str = ""            # of placement, whose residuals the spreads are
    assumed: tuple[tuple[str, float], ...] = ()     # figures that are defaults: (RAM or a device, bytes per second)

    @property
    def spread(self) -> float:
        prompt, answer = self.workload.prompt / self.prompt, self.workload.generate / self.generation
        return (prompt * self.prompt_spread + answer * self.generation_spread) / (prompt + answer)

    def to_dict(self) -> dict[str, object]:
        return {
            "predicted": True, "workload": self.workload.to_dict(),
            "prompt_tokens_per_second": round(self.prompt, 1),
            "generation_tokens_per_second": round(self.generation, 3),
            "generation_tokens_per_second_full_context": round(self.generation_full, 3),
            "seconds": round(self.request, 3), "uncertainty_factor": round(self.spread, 2),
            "prompt_uncertainty_factor": round(self.prompt_spread, 2),
            "generation_uncertainty_factor": round(self.generation_spread, 2),
            "assumed": dict(self.assumed),
        }


class Clock:
    """The seconds of one launch's graphs."""

    def __init__(self, traffic: Traffic, placed: Placed, homes: Sequence[str], caches: Sequence[Attention | None],
                 devices: Mapping[str, Figures], host: HostFigures, shared: Shared = SHARED, *, n_batch: int = N_BATCH,
                 n_ubatch: int = 512, kv_offload: bool = True, op_offload: bool = True, pipelined: bool = False,
                 shares: Mapping[str, float] | None = None, missing: float = 0.0) -> None:
        self.traffic, self.placed, self.devices, self.host, self.shared = traffic, placed, devices, host, shared
        self.n_batch, self.n_ubatch, self.pipelined = n_batch, n_ubatch, pipelined
        self.shares, self.missing = shares, missing
        self.first = next((name for name in homes if name in devices), next(iter(devices), HOST))
        if self.first != HOST and not devices[self.first].offloads:      # ggml_backend_sched asks one after the other
            self.first = next((name for name in devices if devices[name].offloads), self.first)
        self.offloads = op_offload and self.first != HOST and devices[self.first].offloads
        sums: dict[tuple[str, str], list[float]] = {}       # (place, home)
        for row in placed.rows:
            home = homes[row.layer]
            key = (row.place, home if home != HOST else self.first) if row.place == HOST else (row.place, row.place)
            known = sums.get(key)
            if known is None:
                sums[key] = [row.dense, row.experts, row.work, row.expert_work, row.bf16, row.kernels]
            else:
                known[0] += row.dense
                known[1] += row.experts
                known[2] += row.work
                known[3] += row.expert_work
                known[4] += row.bf16
                known[5] += row.kernels
        self.sums = sums
        kinds: dict[tuple[str, str, Attention], int] = {}
        for home, cache in zip(homes, caches, strict=False):
            if cache is not None:
                place = home if kv_offload else HOST
                key3 = (place, home if home != HOST else self.first, cache)
                kinds[key3] = kinds.get(key3, 0) + 1
        self.caches = kinds

    def step(self, n: int, depth: float, sequences: int = 1) -> tuple[float, dict[str, float]]:
        """Seconds of a graph of n tokens with `depth` before each in its sequence: those that belong to no device, and
        each device's."""
        shared, host = self.shared, self.host
        many = n >= _MANY
        copied = many and self.offloads
        used = self.traffic.used
        touched = 1 - (1 - used) ** n if self.traffic.n_expert else 1.0
        stages = dict.fromkeys(self.devices, 0.0)
        common = shared.token * 1e-6
        work: dict[str, list[float]] = {}
        in_ram = 0.0
        for (place, home), (dense, experts, multiplies, expert_multiplies, bf16, kernels) in self.sums.items():
            if place == HOST:
                in_ram += dense + experts * touched
                if copied:
                    part = 1 - (1 - used) ** (shared.copied * n) if self.traffic.n_expert else 1.0
                    common += self._copy(dense + experts * part)
                else:
                    common += self._on_processor(n, dense, experts * touched, multiplies + expert_multiplies)
                    common += kernels * shared.core_kernel * 1e-6
                    continue
            known = work.setdefault(home, [0.0] * 6)
            for i, value in enumerate((dense, experts, multiplies, expert_multiplies, bf16, kernels)):
                known[i] += value
        for home, sums in work.items():
            for name, share in self._parts(home):
                stages[name] += self._on_device(self.devices[name], n, many, touched, sums, share)
        for (place, home, cache), count in self.caches.items():
            cells = min(depth, cache.window)
            size = count * cells * cache.cell * sequences
            flops = count * n * cells * cache.flops
            state = 2 * count * cache.state * sequences
            if place == HOST and not copied:
                common += hypot((size + state) / (host.ram * shared.ram_cache), flops / self._core_flops)
                continue
            if place == HOST:
                common += self._copy(size)
            for name, share in self._parts(home):
                device = self.devices[name]
                rates = device.rates
                read = rates.cache * (rates.quantised if cache.quantised and not many else 1.0)
                rate = device.fp16 * (rates.matmul if cache.scores else rates.attention)
                stages[name] += share * hypot((size + state) / (device.bandwidth * read), flops / rate)
                stages[name] += share * count * n * cells * cache.scores / (device.bandwidth * rates.read)
        if not many or not self.offloads:
            price = max([figures.rates.handover for figures in self.devices.values()], default=0.0)
            common += self.placed.handovers * price * 1e-6
        common += self.placed.hops * shared.hop * 1e-6
        common += self._network(n, depth, sequences)
        common += in_ram * self.missing / host.disk
        if self.shares:          # each device waits for the others twice a layer
            summed = 4 * n * self.traffic.hparams.n_embd / host.bus         # their results are added up, in f32
            common += 2 * self.traffic.n_layer * (shared.hop * 1e-6 + summed) + max(stages.values())
            stages = dict.fromkeys(stages, 0.0)
        return common, stages

    def _parts(self, home: str) -> Sequence[tuple[str, float]]:
        """What computes on a layer's device, and which part: with split modes row and tensor each device its slice."""
        return tuple(self.shares.items()) if self.shares else ((home, 1.0),)

    def _on_device(self, device: Figures, n: int, many: bool, touched: float, sums: Sequence[float],
                   share: float) -> float:
        """Seconds of `share` of every matrix; kernels start whatever their size."""
        shared, rates = self.shared, device.rates
        dense, experts, multiplies, expert_multiplies, bf16 = [share * value for value in sums[:5]]
        kernels = sums[5]
        bandwidth, rate = device.bandwidth * rates.read, device.fp16 * rates.matmul
        if many:
            bandwidth *= shared.prompt_read
        slow = 1 + (1 / rates.bf16 - 1) * bf16 / max(1.0, dense + experts * self.traffic.used)
        seconds = hypot(dense / bandwidth, 2 * n * multiplies / rate) * slow
        if experts:
            each = n * self.traffic.used          # tokens per expert
            rate *= rates.experts
            if many:
                rate *= each / (each + shared.expert_tokens)
            seconds += hypot(experts * touched / (bandwidth * shared.experts), 2 * n * expert_multiplies / rate) * slow
        return seconds + kernels * rates.kernel * 1e-6 * (shared.prompt_kernel if many else 1.0)

    def _network(self, n: int, depth: float, sequences: int) -> float:
        """Each visit sends a server the activations and the mask of n tokens, and takes the activations back, or the
        logits at the end; commands and results cross once (ggml-rpc.cpp: all but GET_TENSOR are sent without waiting).
        """
        seconds = 0.0
        for name, visits in self.placed.visits.items():
            device = self.devices.get(name)
            if device is None or not device.network:
                continue
            seconds += visits * device.visit(n * self.traffic.sent(depth))
            if name == self.placed.last:
                seconds += 4 * (sequences * self.traffic.n_vocab - n * self.traffic.n_embd) / device.network
        return seconds

    def _on_processor(self, n: int, dense: float, experts: float, multiplies: float) -> float:
        shared, host = self.shared, self.host
        cores = host.cores * shared.core * 1e9
        seconds = 0.0
        for size, share in ((dense, shared.ram), (experts, shared.ram_experts)):
            seconds += size * ((host.ram * share) ** -4 + cores ** -4) ** 0.25
        return hypot(seconds, 2 * n * multiplies / self._core_flops)

    @property
    def _core_flops(self) -> float:
        return self.host.cores * self.shared.core_flops * 1e9

    def _copy(self, size: float) -> float:
        """Pageable memory is copied by the processor first, so RAM counts as well as the bus."""
        shared, host = self.shared, self.host
        return size * max(1 / (host.bus * shared.bus_copy), 1 / (host.ram * shared.ram_copy))

    def prompt(self, n: int, depth: float) -> float:
        """Seconds of a prompt of n tokens behind `depth` others."""
        whole, rest = divmod(n, self.n_ubatch)
        seconds = 0.0
        middle = depth + n / 2
        if whole:
            common, stages = self.step(self.n_ubatch, middle)
            total = common + sum(stages.values())
            if self.pipelined and len(stages) > 1:
                together = min(whole, max(1, self.n_batch // self.n_ubatch))
                slowest = common + max(stages.values())
                follow = slowest + self.shared.stages * (total - slowest)
                total = (total + (together - 1) * follow) / together
            seconds += whole * total
        if rest:
            common, stages = self.step(rest, depth + n - rest / 2)
            seconds += common + sum(stages.values())
        return seconds

    def token(self, depth: float, requests: int = 1) -> float:
        """Seconds of one token for each request."""
        common, stages = self.step(requests, depth, requests)
        return common + sum(stages.values())


class CostModel:
    """Predicts the speed of launches of one model on one machine, each only once."""

    def __init__(self, evaluator: Evaluator, workload: Workload | None = None) -> None:
        self.evaluator = evaluator
        self.workload = workload or CHAT
        self._speeds: dict[Params, Speed] = {}
        self._seconds: dict[object, dict[str, list[float]]] = {}      # of layer_seconds
        self._caches: dict[object, list[Attention | None]] = {}

    @lazy
    def traffic(self) -> Traffic:
        return Traffic(self.evaluator.model, self.evaluator.kernels())

    @lazy
    def devices(self) -> dict[str, Figures]:
        machine = self.evaluator.machine
        return {device.name: Figures.of(device, machine.ram_bandwidth) for device in machine.devices}

    @lazy
    def host(self) -> HostFigures:
        return HostFigures.of(self.evaluator.machine)

    def speed(self, candidate: Candidate) -> Speed:
        return self.predict(candidate.params, candidate.breakdown)

    def predict(self, params: Params, use: Static) -> Speed:
        """The speed of a launch; of what it allocates only the context, the batches and what lies in RAM count."""
        key = _key(params, use)
        if key not in self._speeds:
            clock = self.clock(params, use)
            kind = self._kind(clock)
            self._speeds[key] = _speed(clock, self.workload, use.n_ctx_seq, kind, self._assumed(clock, kind))
        return self._speeds[key]

    def later(self, candidate: Candidate) -> Callable[[], Speed]:
        """What computes `speed`; where it is known already, it keeps nothing else in memory."""
        known = self._speeds.get(_key(candidate.params, candidate.breakdown))
        if known is None:
            return lambda: self.speed(candidate)
        return lambda: known

    def clock(self, params: Params, use: Static) -> Clock:
        """The seconds of a launch's graphs."""
        placement = self.evaluator.placement(params)
        caches = self.caches(params if use.flash_attn else replace(params, flash_attn="off"))
        devices = {device.name: self.devices[device.name] for device in placement.devices}
        rules = self.evaluator.estimator.rules
        pipelined = (len(devices) > 1 and params.kv_offload is not False and not params.overrides
                     and not any(device.network for device in devices.values())
                     and all(on(device, rules=rules).pipelines() for device in placement.devices)
                     and params.split_mode in (None, "layer") and placement.n_gpu_layers > placement_layers(placement))
        return Clock(
            self.traffic, self.traffic.placed(placement), layer_devices(placement), caches, devices,
            self.host, n_batch=use.n_batch, n_ubatch=use.n_ubatch, kv_offload=params.kv_offload is not False,
            op_offload=params.op_offload is not False and placement.slices is None, pipelined=pipelined,
            shares=placement.shares or None, missing=self._missing(use))

    @lazy
    def _unknown(self) -> list[tuple[str, float]]:
        """Devices whose bandwidth nothing tells, and what it is taken as."""
        return [(device.name, self.devices[device.name].bandwidth) for device in self.evaluator.machine.devices
                if not device.bandwidth and not (device.kind == "igpu" and self.evaluator.machine.ram_bandwidth)]

    @lazy
    def _remote(self) -> list[str]:
        """Devices of servers that nothing is known of the way to."""
        return [device.name for device in self.evaluator.machine.devices if device.kind == "rpc" and not device.link]

    def _assumed(self, clock: Clock, kind: str) -> tuple[tuple[str, float], ...]:
        """Bandwidths that decide this launch's speed and that nothing tells."""
        found = [(name, rate) for name, rate in self._unknown if (name, name) in clock.sums]
        if any(name in clock.placed.visits for name in self._remote):
            found.append((NETWORK, NETWORK_RATE))
        return (*found, *([("RAM", self.host.ram)] if kind in IN_RAM and not self.host.known else []))

    def _missing(self, use: Static) -> float:
        """The share of the weights in RAM that is read from the disk for every token."""
        ram = self.evaluator.machine.ram
        if ram is None or not use.host_resident:
            return 0.0
        lacking = use.host_resident + use.host.context + use.host.compute + self.evaluator.shared(use) - ram
        return min(1.0, max(0.0, lacking / use.host_resident))

    def _kind(self, clock: Clock) -> str:
        experts = sum(row.experts for row in clock.placed.rows)
        in_ram = any(row.place == HOST and (row.experts or row.dense > 1 << 20) for row in clock.placed.rows)
        if in_ram:
            return "MoE in RAM" if experts else "dense partial"
        if clock.shares or len({row.place for row in clock.placed.rows}) > 1:
            return "multi-GPU"
        return "MoE resident" if experts else "dense resident"

    def doubt(self, speed: Speed) -> float:
        """The factor that comparisons of this kind of placement with another on one machine are within."""
        prompt = self.workload.prompt / speed.prompt
        answer = self.workload.generate / speed.generation
        return (BETWEEN[speed.kind, "pp"] * prompt + BETWEEN[speed.kind, "tg"] * answer) / (prompt + answer)

    def in_ram(self, candidate: Candidate) -> bool:
        """Whether weights that are worth a word lie in RAM."""
        return self.speed(candidate).kind in IN_RAM

    def copies(self, candidate: Candidate) -> bool:
        """Whether prompts copy weights in RAM to a device."""
        clock = self.clock(candidate.params, candidate.breakdown)
        return clock.offloads and any(place == HOST for place, _ in clock.sums)

    def fastest(self, candidates: Sequence[Candidate]) -> Candidate:
        """The candidate with the shortest request; the first of equals."""
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=lambda candidate: self.speed(candidate).request)

    def hop(self, n_ubatch: int) -> float:
        """Seconds that one more hop between devices costs the request."""
        return SHARED.hop * 1e-6 * (self.workload.generate + self.workload.prompt / n_ubatch)

    def visits(self, name: str, n_ubatch: int) -> float:
        """Seconds that visits to a device's server cost the request."""
        work, device = self.workload, self.devices[name]
        size = self.traffic.sent(work.depth + work.prompt)
        return work.generate * device.visit(size) + work.prompt / n_ubatch * device.visit(n_ubatch * size)

    def layer_seconds(self, params: Params, n_ctx_seq: int) -> dict[str, list[float]]:
        """What each layer (output last) costs the request on each device. What is in RAM costs the same wherever its
        layer lies, and is left out."""
        work = self.workload
        depth = min(n_ctx_seq, work.depth + work.prompt + work.generate / 2)
        key = (replace(params, n_ctx=None, n_gpu_layers=None, tensor_split=None), depth)
        if key in self._seconds:
            return self._seconds[key]
        caches = self.caches(params) if params.kv_offload is not False else []
        placement = self.evaluator.placement(replace(params, n_gpu_layers=None, tensor_split=None))
        rows = self.traffic.placed(placement).rows
        found = {}
        alike: dict[Figures, list[float]] = {}
        for name, device in self.devices.items():
            if device in alike:
                found[name] = alike[device]
                continue
            rates, seconds = device.rates, [0.0] * (self.traffic.n_layer + 1)
            if device.network:
                seconds[-1] = work.generate * 4 * self.traffic.n_vocab / device.network
            read, rate = device.bandwidth * rates.read, device.fp16 * rates.matmul
            for row in rows:
                if row.place != HOST:
                    size = row.dense + row.experts * self.traffic.used / SHARED.experts
                    seconds[row.layer] += work.generate * (size / read + row.kernels * rates.kernel * 1e-6)
                seconds[row.layer] += work.prompt * 2 * (row.work + 2 * row.expert_work) / rate
            for layer, cache in enumerate(caches):
                if cache is not None:
                    size = min(depth, cache.window) * cache.cell + 2 * cache.state
                    seconds[layer] += work.generate * size / (device.bandwidth * rates.cache)
                    flops = min(work.depth + work.prompt / 2, cache.window) * cache.flops
                    seconds[layer] += work.prompt * flops / (device.fp16 * rates.attention)
            found[name] = alike[device] = seconds
        self._seconds[key] = found
        return found

    def caches(self, params: Params) -> list[Attention | None]:
        """What attention reads and computes in each layer."""
        windows = self.evaluator.model.hparams.is_swa_any        # whose cells follow from the micro-batch
        key = (params.cache_type_k, params.cache_type_v, params.flash_attn,
               (params.swa_full, params.n_ubatch) if windows else ())
        if key not in self._caches:
            found = self.evaluator.caches(params)
            self._caches[key] = [] if found is None else self.traffic.attention(*found, params.flash_attn != "off")
        return self._caches[key]


def _key(params: Params, use: Static) -> Params:
    return params if params.n_ctx is not None else replace(params, n_ctx=use.n_ctx)


def placement_layers(placement: Placement) -> int:
    """All blocks; a launch is pipelined where the output layer is on a device too."""
    return len(placement.dev_layer)


def layer_devices(placement: Placement) -> list[str]:
    """The device of each layer, the output layer last; HOST for none."""
    used = {device.name for device in placement.devices}
    return [name if name in used else HOST for name in (*placement.dev_layer, placement.dev_output)]


def _speed(clock: Clock, work: Workload, n_ctx_seq: int, kind: str,
           assumed: tuple[tuple[str, float], ...]) -> Speed:
    """The Speed of a workload: its prompts one after another, its answers together. A request that a slot has no space
    for is cut."""
    depth = min(work.depth, max(0, n_ctx_seq - work.prompt - work.generate))
    prompt = min(work.prompt, n_ctx_seq)
    first = clock.prompt(prompt, depth) * work.prompt / prompt
    token = clock.token(min(n_ctx_seq, depth + prompt + work.generate / 2), work.requests)
    full = clock.token(n_ctx_seq, work.requests)
    known = all(figures.known for figures in clock.devices.values())
    ram_known = all(name != "RAM" for name, _ in assumed)
    return Speed(work, work.prompt / first, work.requests / token, work.requests / full,
                 first * work.requests + work.generate * token, _doubt(kind, "pp", known, ram_known),
                 _doubt(kind, "tg", known, ram_known), kind, assumed)


def _doubt(kind: str, part: str, known: bool, ram_known: bool) -> float:
    """The factor that 8 in 10 predictions of this class are within, more where figures of the machine are defaults."""
    spread = log(DOUBT[kind, part])
    if not known:
        spread = hypot(spread, log(2.0))
    if not ram_known:
        spread = hypot(spread, log(1.5))
    return exp(spread)
