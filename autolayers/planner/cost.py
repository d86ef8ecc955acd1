"""How fast a placement would be: a prediction from bytes and bandwidths, never a measurement.

Generation reads every weight that takes part in a token once, and the caches up to the current depth. Each part
is read where it lies, so the time of a token is the sum of bytes over bandwidths, plus a small cost for each time
the work moves between the processor and a GPU. A prompt is bound by arithmetic where weights lie on a GPU, and
by the bus where llama.cpp copies weights of the host to the GPU for each micro-batch (op offload).

The constants are public figures of cards and boards, not measurements of this machine, so the answer is given with
a range; `autolayers devices --measure` replaces the host's and the bus's figures by measured ones.
"""

from __future__ import annotations

from ..records import dataclass, lazy, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..flags.params import Params
    from ..memory.breakdown import Static, Usage
    from ..memory.weights import PlacedTensor, Placement, WeightGroup
    from ..model import Model
    from .evaluate import Candidate, Evaluator

# The request by which two placements are compared: a prompt and its answer, in tokens.
PROMPT, ANSWER = 2048, 512
DEPTH = PROMPT + ANSWER        # tokens in the cache at its end

_MATMUL_EFFICIENCY = 0.70      # of the bandwidth, weights read in generation
_GPU_ATTENTION_EFFICIENCY = 0.50
_CPU_ATTENTION_EFFICIENCY = 0.10   # the processor computes attention far below its bandwidth
_QUERIES = 64                  # tokens of a prompt that attention serves with one pass over the cache
_SWITCH = 150e-6               # seconds for a hand-over from GPU to processor and back
_HOP = 30e-6                   # seconds for a hand-over between GPUs
_TOKEN = 300e-6                # seconds a token costs whatever is read
_GPU_FLOPS_PER_BYTE = 60.0     # arithmetic a GPU reaches for a byte per second of its bandwidth
_CPU_FLOPS_PER_BYTE = 8.0

_DEFAULT_GPU = 400e9           # bytes per second, where the card is not known
_DEFAULT_IGPU = 80e9
_DEFAULT_RPC = 100e9
_DEFAULT_RAM = 50e9
_DEFAULT_BUS = 12e9


@dataclass(frozen=True)
class Bandwidths:
    """Bytes per second. `known` says that none of them is a default."""

    devices: Mapping[str, float]
    ram: float
    bus: float
    known: bool


@dataclass(frozen=True)
class Speed:
    """Predicted tokens per second. The truth is expected between a `spread`-th and `spread` times of it."""

    prompt: float
    generation: float         # at the depth of the reference request
    generation_full: float    # with the context of one slot full
    spread: float

    @property
    def request(self) -> float:
        """Seconds for the reference request of PROMPT and ANSWER tokens: what placements are compared by."""
        return PROMPT / self.prompt + ANSWER / self.generation

    def to_dict(self) -> dict[str, object]:
        return {
            "predicted": True, "prompt_tokens_per_second": round(self.prompt, 1),
            "generation_tokens_per_second": round(self.generation, 2),
            "generation_tokens_per_second_full_context": round(self.generation_full, 2),
            "uncertainty_factor": self.spread,
        }


class Traffic:
    """What one token makes a model read, by tensor name: bytes and multiply-adds. Made once per model."""

    def __init__(self, model: Model) -> None:
        hparams = model.hparams
        self.n_layer = hparams.n_layer_all
        self.reads: dict[str, tuple[int, float, float]] = {}     # layer (n_layer: output), bytes, multiply-adds
        for weight in model.weights:
            name, tensor = weight.info.name, weight.info
            layer = weight.block if weight.layer == "repeating" else self.n_layer
            if weight.op in ("NONE", "ROPE") or (weight.layer == "input" and name != "token_embd.weight"):
                continue             # of the input tables single rows are read, rope factors are tiny
            if weight.layer == "repeating" and layer >= hparams.n_layer:
                continue             # MTP blocks take no part in plain generation
            part = 1.0
            if weight.op == "MUL_MAT_ID" and hparams.n_expert:
                part = max(1, hparams.n_expert_used(layer)) / hparams.n_expert
            self.reads[name] = (layer, tensor.n_bytes * part, tensor.n_elements * part)
        self._groups: dict[WeightGroup, list[tuple[int, str, float, float, int]]] = {}

    def placed(self, placement: Placement) -> list[tuple[int, str, float, float, int]]:
        """(layer, place, bytes and multiply-adds per token, bytes in all) of what a token reads, by layer and place."""
        found = []
        output = placement.output
        for group in placement.groups:
            rows = self._groups.get(group)
            if rows is None:
                tensors = [tensor for tensor in group.tensors.values() if tensor.name != "token_embd.weight"]
                rows = self._groups[group] = self._rows(tensors, placement)
            found += rows
        if output is not None and output.name == "token_embd.weight":      # of the input table single rows are read
            found += self._rows([output], placement)
        return found

    def _rows(self, tensors: list[PlacedTensor], placement: Placement) -> list[tuple[int, str, float, float, int]]:
        sums: dict[tuple[int, str], tuple[float, float, int]] = {}
        for tensor in tensors:
            read = self.reads.get(tensor.name)
            if read is not None:
                key = (read[0], "Host" if placement.is_host(tensor.buffer) else tensor.buffer)
                size, multiplies, whole = sums.get(key, (0.0, 0.0, 0))
                sums[key] = (size + read[1], multiplies + read[2], whole + tensor.info.n_bytes)
        return [(*key, *row) for key, row in sums.items()]

    def costs(self, placement: Placement, caches: Sequence[Usage]) -> list[float]:
        """For each layer (output last) what the reference request costs on the device it lies on: seconds times that
        device's bytes per second. What is in RAM costs the same wherever its layer lies, and is left out."""
        costs = [0.0] * (self.n_layer + 1)
        for layer, cache in enumerate(caches):
            costs[layer] = cache.context / _GPU_ATTENTION_EFFICIENCY * (ANSWER + PROMPT / _QUERIES)
        for layer, place, size, multiplies, _ in self.placed(placement):
            if place != "Host":
                costs[layer] += ANSWER * size / _MATMUL_EFFICIENCY
            costs[layer] += PROMPT * 2 * multiplies / _GPU_FLOPS_PER_BYTE
        return costs


class CostModel:
    """Predicts the speed of launches of one model on one machine, each only once."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self._speeds: dict[Params, Speed] = {}

    @lazy
    def traffic(self) -> Traffic:
        return Traffic(self.evaluator.model)

    @lazy
    def bandwidths(self) -> Bandwidths:
        machine = self.evaluator.machine
        return bandwidths(machine.devices, machine.ram_bandwidth, machine.bus_bandwidth)

    def speed(self, candidate: Candidate) -> Speed:
        return self.predict(candidate.params, candidate.breakdown)

    def predict(self, params: Params, use: Static) -> Speed:
        """The speed of a launch; of what it allocates only the context and the micro-batch count."""
        if params not in self._speeds:
            shallow, deep = self._caches(params, min(DEPTH, use.n_ctx_seq)), self._caches(params, use.n_ctx_seq)
            self._speeds[params] = predict(
                self.traffic, self.evaluator.placement(params), params, shallow, deep, self.bandwidths, use.n_ubatch)
        return self._speeds[params]

    def fastest(self, candidates: Sequence[Candidate]) -> Candidate:
        """The candidate with the shortest reference request; the first of equals."""
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=lambda candidate: self.speed(candidate).request)

    def layer_costs(self, params: Params, n_ctx_seq: int) -> list[float]:
        """What each layer (output last) costs the reference request on a device, in bytes: seconds x the device's
        bandwidth."""
        caches = self._caches(params, min(DEPTH, n_ctx_seq)) if params.kv_offload is not False else ()
        placement = self.evaluator.placement(replace(params, n_gpu_layers=None, tensor_split=None))
        return self.traffic.costs(placement, caches)

    def _caches(self, params: Params, depth: int) -> tuple[Usage, ...]:
        """Each layer's cache with `depth` tokens of one sequence in it."""
        alone = replace(params, overrides=(), n_ctx=depth, n_parallel=1, kv_unified=None, kv_offload=None)
        return self.evaluator.layers(alone) or ()


def hop(n_ubatch: int) -> float:
    """Seconds that one more hand-over between GPUs costs the reference request."""
    return _HOP * (ANSWER + PROMPT / n_ubatch)


def layer_devices(placement: Placement) -> list[str]:
    """The device of each layer, the output layer last; "Host" for none."""
    used = {device.name for device in placement.devices}
    return [name if name in used else "Host" for name in (*placement.dev_layer, placement.dev_output)]


def predict(traffic: Traffic, placement: Placement, params: Params, shallow: Sequence[Usage], deep: Sequence[Usage],
            bandwidths: Bandwidths, n_ubatch: int) -> Speed:
    """The speed of a placement. `shallow` and `deep` hold each layer's caches in bytes, at the reference request's
    depth and with a full context."""
    weights = dict.fromkeys([*bandwidths.devices, "Host"], 0.0)
    arithmetic = dict(weights)
    streamed = 0.0                                       # bytes a micro-batch copies over the bus
    offload = params.op_offload is not False and n_ubatch >= 32 and bool(placement.devices)
    switched: set[int] = set()
    where = layer_devices(placement)
    for layer, place, size, multiplies, whole in traffic.placed(placement):
        weights[place] += size
        home = where[layer]
        if place == "Host" and offload:
            streamed += whole
            arithmetic[home if home != "Host" else placement.devices[0].name] += multiplies
        else:
            arithmetic[place] += multiplies
        if place != home:
            switched.add(layer)
    hops = sum(1 for i in range(1, len(where)) if where[i] != where[i - 1])
    speed = {**bandwidths.devices, "Host": bandwidths.ram}
    base = _TOKEN + len(switched) * _SWITCH + hops * _HOP
    base += sum(size / (speed[place] * _MATMUL_EFFICIENCY) for place, size in weights.items() if size)
    on_host = params.kv_offload is False
    generation = base + _attention(where, shallow, speed, on_host)
    full = base + _attention(where, deep, speed, on_host)
    flops = {place: value * (_CPU_FLOPS_PER_BYTE if place == "Host" else _GPU_FLOPS_PER_BYTE)
             for place, value in speed.items()}
    prompt = sum(2 * n_ubatch * count / flops[place] for place, count in arithmetic.items())
    if offload:        # the GPU computes attention for layers of the host too, with their caches copied like weights
        on_gpu = [placement.devices[0].name if home == "Host" else home for home in where]
        streamed += sum(cache.context for home, cache in zip(where, shallow, strict=False) if on_host or home == "Host")
        attention = _attention(on_gpu, shallow, speed, False)
    else:
        attention = _attention(where, shallow, speed, on_host)
    prompt += streamed / bandwidths.bus + hops * _HOP + attention * n_ubatch / _QUERIES
    return Speed(n_ubatch / max(prompt, 1e-9), 1 / generation, 1 / full, 1.5 if bandwidths.known else 2.5)


def _attention(homes: Sequence[str], caches: Sequence[Usage], speed: Mapping[str, float], on_host: bool) -> float:
    seconds = 0.0
    for home, cache in zip(homes, caches, strict=False):
        place = "Host" if on_host else home
        efficiency = _CPU_ATTENTION_EFFICIENCY if place == "Host" else _GPU_ATTENTION_EFFICIENCY
        seconds += cache.context / (speed[place] * efficiency)
    return seconds


def bandwidths(devices: Sequence[object], ram: float | None = None, bus: float | None = None) -> Bandwidths:
    """Known figures where a device or the host has them, defaults by kind where not."""
    found: dict[str, float] = {}
    known = ram is not None and bus is not None
    for device in devices:
        figure = getattr(device, "bandwidth", None)
        if not figure:
            known = False
            kind = getattr(device, "kind", "gpu")
            figure = _DEFAULT_IGPU if kind == "igpu" else _DEFAULT_RPC if kind == "rpc" else _DEFAULT_GPU
        found[getattr(device, "name", "")] = float(figure)
    return Bandwidths(found, ram or _DEFAULT_RAM, bus or _DEFAULT_BUS, known)
