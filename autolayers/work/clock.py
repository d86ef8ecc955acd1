"""The seconds of a launch's graphs: a Work on the figures of a machine.

seconds of n tokens  =  token                                  whatever is read
  + on each device      weights   hypot(bytes / bandwidth, arithmetic / fp16 rate)
                        experts   the same, of those that n tokens choose, by tokens per expert
                        cache     hypot(bytes / bandwidth, arithmetic / fp16 rate) at the request's
                                  depth, and without flash attention the scores' bytes / bandwidth
                        kernels   one for each node of the graph
  + on the CPU          weights and cache by RAM's bandwidth and cores
  + copies              of weights in RAM that a device computes with, of a cache read elsewhere
  + handovers, hops     each time the graph moves between a device and the CPU, or between devices
  + network             for each visit to an RPC server a round trip, and what is sent both ways
  + disk                what of the weights in RAM has no space there
  + expert cache        chosen experts that it does not have, and a handover for each layer
"""

from __future__ import annotations

from collections import Counter
from math import exp, hypot, inf, sqrt

from ..flags.params import N_BATCH, N_UBATCH
from ..records import dataclass
from .expert_cache import MOST_TOKENS, PROMPT
from .rates import SHARED
from .streams import CPU, SCANNED, touched
from .unfused import CHUNK
from .work import HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .expert_cache import ExpertCache
    from .figures import Figures, HostFigures
    from .rates import Rates, Shared
    from .work import Attention, Load, WeightCosts, Work

# least tokens for which matrix kernels are those of prompts and weights in RAM are copied
MANY = 32
# Heads that compute on one head's f16 cache, an operation for each of its bytes; twice those of
# measured launches
GROUP = 16
# Bytes of a layer's cache that stay in the processor's own cache while all heads read them
NEAR = 16 << 20


def sent(weights: WeightCosts, depth: float) -> float:
    """Return the bytes that a token's visit to an RPC server transfers: activations both ways in
    f32, the mask in f16."""
    return 2 * 4 * weights.n_embd + 2 * depth


class Sums:
    """A Load summed by place, as Clock needs it."""

    def __init__(self, load: Load, caches: Sequence[Attention | None]) -> None:
        # Summed once, as a launch is predicted at many depths and numbers of tokens.
        self.load = load
        # dense, experts, work, expert work, bf16, kernels
        self.places: dict[str, list[float]] = {}
        # dense, experts: weights in RAM that devices compute with
        self.copied = [0.0, 0.0]
        for row in load.rows:
            sums = self.places.get(row.place)
            if sums is None:
                sums = self.places[row.place] = [0] * 6
            sums[0] += row.dense
            sums[1] += row.experts
            sums[2] += row.work
            sums[3] += row.expert_work
            sums[4] += row.bf16
            sums[5] += row.kernels
            if row.copied:
                self.copied[0] += row.dense
                self.copied[1] += row.experts
        # how many layers: (where it is read, where it is stored, one layer's); layers alike share
        # an Attention
        # By id, as Attention's fields would be hashed for every layer.
        counts = Counter(zip(load.attention, map(id, caches), strict=False))
        kinds = {id(cache): cache for cache in caches}
        self.caches: dict[tuple[str, str, Attention], int] = {}
        for (where, number), count in counts.items():
            cache = kinds[number]
            if cache is not None and where is not None:
                key = (*where, cache)
                self.caches[key] = count


@dataclass
class Clock:
    """The seconds of one launch's graphs. The fit of the rates changes figures of it."""

    weights: WeightCosts
    work: Work
    tokens: Sums  # of the token's Load,
    prompts: Sums  # and of the prompt's
    devices: Mapping[str, Figures]
    host: HostFigures
    n_batch: int = N_BATCH
    n_ubatch: int = N_UBATCH
    pipelined: bool = False
    shares: Mapping[str, float] | None = None
    # by the devices themselves (split mode tensor): slices have kernels of their own
    reduced: bool = False
    missing: float = 0.0
    cached: ExpertCache | None = None
    apart: float = 0.0  # seconds of a prompt's token in a delta net that is not one op
    pinned: bool = False  # weights in RAM, so that devices copy them without the CPU
    paces: tuple[float, float] = (1.0, 1.0)  # measured / predicted rates of prompts and of tokens
    shared: Shared = SHARED

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU reads weights to generate a token."""
        sums = self.tokens.places.get(HOST)
        return sums is not None and sums[0] + sums[1] > 0

    @property
    def in_ram(self) -> float:
        """Bytes of weights that the CPU reads to generate a token."""
        dense, experts, *_ = self.tokens.places.get(HOST, (0.0, 0.0))
        return dense + experts * self.weights.used

    def step(
        self, n: int, depth: float, sequences: int = 1, *, few: bool = False
    ) -> tuple[float, dict[str, float]]:
        """Return the seconds of a graph of n tokens with `depth` before each in its sequence: the
        part of no device, and each device's part. `few`: tokens that are decoded or checked, whose
        kernels are those of a token."""
        shared = self.shared
        host = self.host
        few = few and n > 1
        # 32 tokens are the least for op offload and for matrix kernels; fewer use a token's graph.
        many = n >= MANY and not few
        keeps_kernels = n < MANY or not self.on_cpu
        uses_cache = self.cached is None or n <= MOST_TOKENS
        in_tokens = not many and keeps_kernels and uses_cache
        sums = self.tokens if in_tokens else self.prompts
        chosen = self._chosen(n, CPU.spread if few else 1.0)
        stages = dict.fromkeys(self.devices, 0.0)
        common = shared.token * 1e-6
        # Weights in RAM that a device computes with.
        in_ram = sums.copied[0] + sums.copied[1] * chosen
        if in_ram:
            # the bytes of weights in RAM that are copied to a device for n tokens: matrices whole,
            # and the chosen experts
            if not self.weights.n_expert:
                copied = sums.copied[0] + sums.copied[1]
            else:
                # Many tokens choose nearly all experts; sqrt as the choices are far from even.
                part = 1 - exp(-self.shared.copied * sqrt(n * self.weights.used))
                copied = sums.copied[0] + sums.copied[1] * part
            common += self._copy(copied)
        for place, values in sums.places.items():
            if place == HOST:
                dense, experts, multiplies, expert_multiplies, _, kernels = values
                in_ram += dense + experts * chosen
                common += self._on_cpu(
                    n, dense, experts * chosen, multiplies, expert_multiplies, few
                )
                common += kernels * shared.core_kernel * 1e-6
                continue
            for name, share in self._parts(place):
                stages[name] += self._on_device(
                    self.devices[name], n, many, few, chosen, values, share
                )
        for (place, lies, cache), count in sums.caches.items():
            # A sliding window reads no more than its own cells.
            cells = min(depth, cache.window)
            size = count * cells * cache.cell * sequences
            flops = count * n * cells * cache.flops
            # A recurrent state is read and written, whatever the depth.
            state = 2 * count * cache.state * (1 + self.weights.scan * (sequences - 1))
            # The cache is in RAM and read by a device, or the other way round: it crosses the bus.
            if place != lies:
                common += self._copy(size)
            if place == HOST:
                attends = self._attends(
                    n, many, flops, size, size / count / sequences, fused=not cache.scores
                )
                common += hypot((size + state) / (host.ram * shared.ram), attends)
                continue
            # Without flash attention: the scores, and a latent cache that each head reads again.
            moved = n * cache.scores + (0 if many else sequences * cache.again)
            for name, share in self._parts(place):
                device = self.devices[name]
                stages[name] += share * self._reading(device, cache, size + state, flops, many)
                read = device.bandwidth * device.rates.read
                stages[name] += share * count * cells * moved / read
        load = sums.load
        # Of all devices the slowest handover.
        handover = max([figures.rates.handover for figures in self.devices.values()], default=0.0)
        common += load.handovers * handover * 1e-6
        common += load.hops * shared.hop * 1e-6
        common += self._network(load, n, depth, sequences)
        common += in_ram * self.missing / host.disk
        # each layer waits for its chosen experts
        if self.cached is not None and n <= MOST_TOKENS:
            common += self.cached.size * chosen * self.cached.missed / self.cached.upload
            common += self.cached.layers * handover * 1e-6
        if self.shares:  # each device waits for the others twice per layer
            # the seconds in which the devices sum a layer's results of n tokens, in f32. With split
            # mode tensor each sends to each of the others, whatever links them.
            others = max(1, len(self.shares or ()) - 1) if self.reduced else 1
            wait = self.shared.reduction if self.reduced else self.shared.hop
            common += 2 * self.weights.n_layer * (
                others * (wait * 1e-6 + 4 * n * self.weights.n_embd / self.host.bus)
            ) + max(stages.values())
            stages = dict.fromkeys(stages, 0.0)
        return common, stages

    @staticmethod
    def _reading(device: Figures, cache: Attention, size: float, flops: float, many: bool) -> float:
        """Return the seconds in which a device reads this much of a cache and computes on it."""
        rates = device.rates
        read = rates.cache * (rates.quantised if cache.quantised and not many else 1.0)
        rate = device.fp16 * (rates.matmul if cache.scores else rates.attention)
        return hypot(size / (device.bandwidth * read), flops / rate)

    def _parts(self, home: str) -> Sequence[tuple[str, float]]:
        """Return what computes on a layer's device, and which share: with split modes row and
        tensor, each device its slice."""
        return tuple(self.shares.items()) if self.shares else ((home, 1.0),)

    def _chosen(self, n: int, spread: float) -> float:
        """Return the share of the experts that n tokens read."""
        return touched(self.weights.used, n, spread) if self.weights.n_expert else 1.0

    def _bf16(self, rates: Rates, bf16: float, read: float) -> tuple[float, float]:
        """Return how many times slower a prompt's matrices are because of the bytes that are bf16
        among those read, and experts of prompts and tokens. Under Vulkan (llama.cpp 12554) kernels
        for matrices need VK_KHR_shader_bfloat16 and sum in f32, those for vectors widen bf16
        themselves: a token's matrices are as quick as in f16."""
        share = bf16 / max(1.0, read)
        return 1 + (1 / rates.bf16 - 1) * share, 1 + (1 / rates.bf16_experts - 1) * share

    def _on_device(
        self,
        device: Figures,
        n: int,
        many: bool,
        few: bool,
        chosen: float,
        sums: Sequence[float],
        share: float,
    ) -> float:
        """Return the seconds for `share` of each matrix, plus kernel launches, which do not shrink
        with the share. `many`: by the kernels of prompts; `few`: tokens that are decoded together;
        `chosen`: the share of the experts that n tokens read."""
        shared = self.shared
        rates, streams = device.rates, device.streams
        dense, experts, multiplies, expert_multiplies, bf16 = [share * value for value in sums[:5]]
        kernels = sums[5]
        bandwidth = device.bandwidth * rates.read
        rate = device.fp16 * rates.matmul
        if many:
            bandwidth *= shared.prompt_read
        slow, slow_experts = self._bf16(rates, bf16, dense + experts * self.weights.used)
        dense *= 1.0 if many else self.weights.low_dense
        reading = dense / bandwidth
        if few:
            reading = streams.read(reading, 2 * multiplies / bandwidth, n)
        # Reading and arithmetic overlap in part: hypot is between the larger one and the sum.
        seconds = hypot(reading, 2 * n * multiplies / rate) * (slow if many else 1.0)
        if experts:
            if few:
                chosen = self._chosen(n, streams.spread)
                chosen *= streams.mixed if n >= streams.matrix else 1.0
            each = n * self.weights.used  # tokens per expert
            rate *= rates.experts
            if many:
                rate *= each / (each + rates.tile)
            reading = (
                experts * chosen / (bandwidth * shared.prompt_experts)
                if many
                else experts * chosen * self.weights.low / (bandwidth * rates.chosen)
            )
            seconds += hypot(reading, 2 * n * expert_multiplies / rate) * slow_experts
        if not many:
            return seconds + self._kernels(rates.kernel, kernels, share)
        # Activations are written and read between nodes.
        moved = kernels * share * n * self.weights.n_embd * shared.activations / bandwidth
        return seconds + self._kernels(rates.launch, kernels, share) + moved

    def _kernels(self, each: float, kernels: float, share: float) -> float:
        """Return the seconds of kernels of `each` microseconds. Several devices' graphs change with
        each token, so that they are not launched whole (CUDA graphs); those of a slice's `share`
        are as much shorter (split mode tensor)."""
        return (
            kernels
            * each
            * 1e-6
            * (share if self.reduced else 1.0)
            * (self.shared.several if len(self.devices) > 1 else 1.0)
        )

    def _network(self, load: Load, n: int, depth: float, sequences: int) -> float:
        """Return the seconds of the network. Each visit sends a server the activations and the mask
        of n tokens, and returns the activations, or the logits at the end; commands and results are
        one message each (ggml-rpc.cpp: all but GET_TENSOR are sent without waiting)."""
        seconds = 0.0
        for name, visits in load.visits.items():
            device = self.devices.get(name)
            if device is None or not device.network:
                continue
            seconds += visits * device.visit(n * sent(self.weights, depth))
            if name == load.last:
                seconds += (
                    4
                    * (sequences * self.weights.n_vocab - n * self.weights.n_embd)
                    / device.network
                )
        return seconds

    def _on_cpu(
        self,
        n: int,
        dense: float,
        experts: float,
        multiplies: float,
        expert_multiplies: float,
        few: bool,
    ) -> float:
        shared = self.shared
        host = self.host
        cores = self._cores(n) * shared.core * 1e9 / self.weights.low_core

        def read(size: float, share: float) -> float:
            share *= 1.0 if self.devices else shared.alone
            return float(size * ((host.ram * share) ** -4 + cores**-4) ** 0.25)

        seconds = read(dense, shared.ram)
        if few:
            seconds = CPU.read(seconds, read(2 * multiplies, shared.ram), n)
        rate = self.shared.core_flops * self.host.arithmetic
        rate *= 1.0 if self.devices else self.weights.core_rate
        return hypot(
            seconds + read(experts, shared.ram_experts),
            2
            * n
            * (multiplies + expert_multiplies / shared.core_experts)
            / (self._cores(n) * rate * 1e9),
        )

    def _cores(self, n: int) -> int:
        """Return the cores of a graph of n tokens: -tb's of more than one
        (llama_context::graph_compute)."""
        return self.host.batch_cores or self.host.cores if n > 1 else self.host.cores

    def _attends(
        self, n: int, many: bool, flops: float, size: float, layer: float, *, fused: bool
    ) -> float:
        """Return the seconds of attention on the CPU: `fused` (flash attention), each head reads a
        layer's cache by itself, of one token from RAM what the processor's own cache does not hold;
        without it, scores are matrices."""
        shared = self.shared
        cores = self._cores(n) * 1e9
        flops = flops if many else min(flops, GROUP * size)
        if not fused:
            return flops / (cores * shared.core_unfused)
        cores *= self.host.flash
        if many:
            return flops / (cores * shared.core_scores)
        near = min(1.0, NEAR / max(1.0, layer))
        each = near / shared.core_attention + (1 - near) / shared.core_attention_far
        return flops * each / cores

    def _copy(self, size: float) -> float:
        """Return the seconds of a copy over the bus, after the CPU's own of memory that is not
        pinned."""
        host = self.host
        if self.pinned:
            return size / min(host.bus, host.ram)
        if host.pageable:
            return size / host.pageable
        return size * (1 / host.bus + 1 / (host.ram * self.shared.ram_copy))

    def prompt(self, n: int, depth: float) -> float:
        """Return the seconds of a prompt of n tokens after `depth` others."""
        seconds = self._batches(n, depth, self.n_ubatch)
        gain = min([each.streams.gain for each in self.devices.values()], default=inf)
        # A mixture on cards that were not measured to gain as much as larger micro-batches promise.
        if self.weights.n_expert and self.n_ubatch > N_UBATCH and gain < inf:
            seconds = max(seconds, self._batches(n, depth, N_UBATCH) / gain)
        # An expert cache slows prompts down; a delta net that is not one op costs each token.
        return seconds / self.paces[0] * (1.0 if self.cached is None else PROMPT) + n * self.apart

    def _batches(self, n: int, depth: float, size: int) -> float:
        """Return the seconds of n tokens in micro-batches of this size."""
        # All but the last one are full.
        whole, rest = divmod(n, size)
        seconds = 0.0
        middle = depth + n / 2
        if whole:
            common, stages = self.step(size, middle)
            total = common + sum(stages.values())
            # The devices work on different micro-batches at once: after the first, only the slowest
            # counts, and a part of the others.
            if self.pipelined and len(stages) > 1:
                together = min(whole, max(1, self.n_batch // size))
                slowest = common + max(stages.values())
                follow = slowest + self.shared.stages * (total - slowest)
                total = (total + (together - 1) * follow) / together
            seconds += whole * total
        if rest:
            common, stages = self.step(rest, depth + n - rest / 2)
            seconds += common + sum(stages.values())
        return seconds

    def token(self, depth: float, requests: int = 1) -> float:
        """Return the seconds of one token for each request."""
        common, stages = self.step(requests, depth, requests, few=True)
        seconds = (common + sum(stages.values())) / self.paces[1]
        if requests > 1 and self.weights.scan > 1:
            # With a selective scan a further sequence takes at most the share SCANNED of one's
            # step.
            seconds = min(seconds, self.token(depth) * (1 + SCANNED * (requests - 1)))
        return seconds

    def checked(self, n: int, depth: float, sequences: int = 1) -> float:
        """Return the seconds of n tokens of each sequence, which a draft has proposed."""
        common, stages = self.step(n * sequences, depth, sequences, few=True)
        apart = sequences * max(n, CHUNK) * self.apart if n > 1 else 0.0
        return (common + sum(stages.values())) / self.paces[1] + apart
