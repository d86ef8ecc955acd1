"""Who computes what: the graphs of a launch as rows, one per layer and place.

    work_of(weights, steps, homes)     # of a launch that was measured: as its graphs are scheduled
    # of others: one graph's steps, wherever a placement has their weights
    Homes(weights, script, ...)

A token's graph and a prompt's differ: for many tokens, weights in RAM are copied to a device (op
offload).
"""

from __future__ import annotations

import itertools

from ..backends import REPACK, backend_of
from ..memory.graphs.scheduled import ATTENTION, CACHE, INPUT, OUTPUT, WEIGHT, Step, within_block
from ..records import dataclass, lazy, replace
from ..tables import rows
from .streams import STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..memory.cache import CacheLayer, Memory
    from ..memory.graphs.scheduled import Steps
    from ..memory.weights import PlacedTensor, Placement, WeightGroup
    from ..model import Model

HOST = "Host"


def _by_type(column: str) -> dict[str, float]:
    return {row["type"]: float(row[column]) for row in rows("work/types.csv") if row[column]}


_TYPE_WORK, _TYPE_READ = _by_type("work"), _by_type("read")
_TYPE_READ_CORE, _TYPE_WORK_CORE = _by_type("read_core"), _by_type("work_core")
_KERNELS_UNKNOWN = 2.5  # per matrix, if the architecture's graph is unknown
# A device whose work begins or ends at the CPU cannot start kernels while others run. A visit of
# _MANY kernels or more costs a full handover each way, a shorter one at least _LEAST of it
_MANY, _LEAST = 16, 0.2
_SCORE = 16  # bytes of a score without flash attention: f32, written and read twice


@dataclass(frozen=True)
class Reads:
    """The cost of reading one weight: bytes, and multiply-adds of one token in q4_K's, with experts
    apart (bytes: of all of them), and the bytes of both in bf16."""

    dense: int
    experts: int
    work: float
    expert_work: float
    bf16: float


@dataclass(frozen=True)
class LayerWork:
    """What one layer (n_layer: the output) makes one place read and compute. `copied`: weights that
    are in RAM."""

    layer: int
    place: str
    copied: bool
    dense: int
    experts: int
    work: float
    expert_work: float
    bf16: float
    kernels: float


@dataclass(frozen=True)
class Load:
    """One graph. `attention` is per layer where its cache is read and where it is stored, None
    without one; `visits` counts how often the graph enters each place, `last` is where it ends."""

    rows: tuple[LayerWork, ...]
    attention: tuple[tuple[str, str] | None, ...]
    handovers: float  # between a device and the CPU; fewer kernels count as a fraction
    hops: int  # between devices
    visits: Mapping[str, int]
    last: str

    @property
    def attends_on_cpu(self) -> bool:
        """Whether the CPU reads a cache that is on a device."""
        pairs = [pair for pair in self.attention if pair is not None]
        return any(place == HOST and lies != HOST for place, lies in pairs)


@dataclass(frozen=True)
class Work:
    """A launch's two graphs: of one token for each sequence, and of a prompt's micro-batch."""

    token: Load
    prompt: Load


@dataclass(frozen=True)
class Attention:
    """One layer's cache. A token with `depth` tokens before it reads min(depth, window) x `cell`
    bytes, computes `flops` on each of them, and reads and writes `state` bytes; without flash
    attention it moves `scores` bytes for each, and reads `again` where each head reads the latent
    cache that they share."""

    cell: float
    window: int
    flops: float
    state: int
    quantised: bool
    scores: float = 0.0
    again: float = 0.0


class WeightCosts:
    """The cost of reading each weight of a model."""

    def __init__(self, model: Model) -> None:
        hparams = model.hparams
        self.model = model
        self.hparams = hparams
        self.n_layer = hparams.n_layer
        self.n_embd = hparams.n_embd
        self.n_vocab = hparams.n_vocab
        self.n_expert = hparams.n_expert
        self.used = hparams.n_expert_used_max / hparams.n_expert if hparams.n_expert else 1.0
        self.scan = STATE if any(name.endswith(".ssm_d") for name in model.tensors) else 1.0
        self.reads: dict[str, Reads] = {}
        # by layer: its weights without its number
        rows: dict[int, list[tuple[str, Reads | None]]] = {}
        read = 0.0
        low = 0.0
        core = 0.0
        computed, on_core = 0.0, 0.0
        size = 0
        for weight in model.weights:
            info = weight.info
            row = rows.setdefault(weight.block, [])
            rest = within_block(info.name)
            # whether a token reads nothing worth counting of a weight
            # MTP blocks take no part in plain generation
            if weight.layer == "repeating" and weight.block >= self.n_layer:
                is_negligible = True
            else:
                # only single rows of tables are read, and rope factors are tiny
                table = weight.layer == "input" or (
                    weight.layer == "output" and weight.op == "GET_ROWS"
                )
                is_other_table = table and weight.info.name != "token_embd.weight"
                is_negligible = is_other_table or weight.op in ("NONE", "ROPE")
            if is_negligible:
                row.append((rest, None))
                continue
            expert = weight.op == "MUL_MAT_ID" and hparams.n_expert > 0
            # In multiply-adds of q4_K, whose rate is 1.
            work = info.n_elements / _TYPE_WORK.get(info.type, 0.95)
            # bf16 has kernels of its own, slower ones on some GPUs: its bytes are counted apart.
            bf16 = info.n_bytes * (self.used if expert else 1) if info.type == "bf16" else 0
            slower = info.n_bytes * _TYPE_READ.get(info.type, 1.0)
            read += slower if expert else 0
            low += 0 if expert else slower
            core += info.n_bytes * _TYPE_READ_CORE.get(info.type, 1.0)
            size += 0 if expert else info.n_bytes
            computed += work * (self.used if expert else 1)
            on_core += work * (self.used if expert else 1) / _TYPE_WORK_CORE.get(info.type, 1.0)
            self.reads[info.name] = (
                Reads(0, info.n_bytes, 0.0, work * self.used, bf16)
                if expert
                else Reads(info.n_bytes, 0, work, 0.0, bf16)
            )
            row.append((rest, self.reads[info.name]))
        # by layer: equal for layers whose weights are
        self.alike = {layer: hash(tuple(row)) for layer, row in rows.items()}
        # reading a token's experts and its other matrices, relative to types that only bandwidth
        # limits
        self.low = read / max(1, sum(each.experts for each in self.reads.values())) if read else 1.0
        self.low_dense = low / max(1, size) if low else 1.0
        every = sum(each.dense + each.experts for each in self.reads.values())
        self.low_core = core / max(1, every) if core else 1.0
        # a processor's arithmetic on these types, relative to most
        self.core_rate = computed / on_core if on_core else 1.0

    def of(self, step: Step) -> Reads | None:
        """Return what a step reads; of the input's table only single rows, which are negligible."""
        if step.kind != WEIGHT or step.op == "GET_ROWS":
            return None
        reads = self.reads.get(step.name)
        # A tied output matrix is the embeddings', which a token reads whole.
        return (
            self.reads.get("token_embd.weight")
            if reads is None and step.name == "output.weight"
            else reads
        )

    @lazy
    def script(self) -> tuple[Step, ...]:
        """Steps for an architecture whose graph is unknown."""
        steps = []
        for weight in self.model.weights:
            if weight.info.name in self.reads and weight.layer != "input":
                matrix = sum(n > 1 for n in weight.info.ne) > 1
                layer = weight.block if weight.layer == "repeating" else OUTPUT
                steps.append(
                    Step(
                        WEIGHT,
                        weight.op,
                        weight.info.name,
                        "",
                        layer,
                        0,
                        _KERNELS_UNKNOWN if matrix else 0,
                    )
                )
        if "output.weight" not in self.model.tensors:
            steps.append(Step(WEIGHT, "MUL_MAT", "output.weight", "", OUTPUT, 0, _KERNELS_UNKNOWN))
        return tuple(sorted(steps, key=lambda step: step.layer))

    def attention(self, memory: Memory, n_ctx: int, flash: bool = True) -> list[Attention | None]:
        """Return one per layer (output last), from caches allocated for `n_ctx` cells of one
        sequence."""
        # One sequence of `n_ctx` cells, so that a share of the cells is a share of the context.
        by_layer: list[Attention | None] = [None] * (self.n_layer + 1)
        hp = self.hparams
        for cache in memory.caches:
            sliding = cache.kind == "swa"
            recurrent = cache.kind == "recurrent" or cache.kind.endswith("-state")
            # A cache of compressed tokens has fewer cells than the context.
            ratio = 1.0 if sliding else min(1.0, cache.n_cells / n_ctx)
            window = cache.n_cells if sliding else 1 << 62
            readers = [(layer.il, layer) for layer in cache.layers]
            # Layers that reuse another one's cache read it again.
            readers += [
                (il, layer) for il in cache.reused if (layer := cache.layer(il)) is not None
            ]
            for il, layer in readers:
                if il >= hp.n_layer:
                    continue
                before = by_layer[il] or Attention(0.0, 1 << 62, 0.0, 0, False)
                size = sum(tensor.size for tensor in layer.tensors)
                if recurrent:
                    by_layer[il] = replace(before, state=before.state + size)
                    continue
                cell = memory.share * size / cache.n_cells / max(1, cache.n_stream) * ratio
                attends = cache.kind in ("attn", "swa")
                scores = 0 if flash or not attends else _SCORE * hp.n_head(il)
                latent = layer.k is not None and layer.v is None
                again = cell * (hp.n_head(il) - 1) if scores and latent else 0
                by_layer[il] = Attention(
                    before.cell + cell,
                    min(before.window, window),
                    before.flops + (memory.share * self._flops(il, layer) if attends else 0.0),
                    before.state,
                    layer.k is not None and layer.k.type not in ("f32", "f16", "bf16"),
                    before.scores + scores,
                    before.again + again,
                )
        # Layers alike share one object, so that Sums can count them by its id.
        alike: dict[Attention, Attention] = {}
        return [cache and alike.setdefault(cache, cache) for cache in by_layer]

    def _flops(self, il: int, layer: CacheLayer) -> float:
        """Return the operations of a token's attention on one cell: query heads over each K and V
        head, a multiplication and an addition for each element."""
        k = layer.k.ne[0] if layer.k else 0
        # Without V (MLA) both products read the latent cache K.
        v = layer.v.ne[0] if layer.v else k
        heads = self.hparams.n_head(il) / max(1, self.hparams.n_head_kv(il))
        return 2.0 * heads * (k + v)


class _Sums:
    """Collects the rows of one graph, step by step."""

    def __init__(self, weights: WeightCosts) -> None:
        self.weights = weights
        self.sums: dict[tuple[int, str, bool], list[float]] = {}
        self.walk: list[tuple[str, float]] = []  # places, total changes, and kernels there
        self.attention: dict[int, tuple[str, str]] = {}

    def add(self, step: Step, place: str, lies: str) -> None:
        """Add a step that runs in one place and reads what is in another."""
        layer = min(step.layer, self.weights.n_layer)
        reads = self.weights.of(step)
        # Copied: a device computes with weights that stay in RAM.
        key = layer, place, reads is not None and place != HOST and lies == HOST
        row = self.sums.get(key)
        if row is None:
            row = self.sums[key] = [0, 0, 0.0, 0.0, 0, 0]
        if reads is not None:
            row[0] += reads.dense
            row[1] += reads.experts
            row[4] += reads.bf16
            if not step.few:
                row[2] += reads.work
                row[3] += reads.expert_work
        row[5] += step.kernels
        # Only a change of place is a handover or a hop, so neighbours are one visit.
        if self.walk and self.walk[-1][0] == place:
            self.walk[-1] = place, self.walk[-1][1] + step.kernels
        else:
            self.walk.append((place, step.kernels))
        if step.kind == ATTENTION and (step.op == "FLASH_ATTN_EXT" or layer not in self.attention):
            self.attention[layer] = place, lies

    def of_layer(self, layer: int) -> _Sums:
        """Return those of a layer that is like this one."""
        other = _Sums(self.weights)
        other.sums = {(layer, place, copied): row for (_, place, copied), row in self.sums.items()}
        other.walk = self.walk
        other.attention = dict.fromkeys([layer] * len(self.attention), *self.attention.values())
        return other

    @lazy
    def rows(self) -> tuple[LayerWork, ...]:
        return tuple(
            [
                LayerWork(layer, place, copied, int(row[0]), int(row[1]), *row[2:])
                for (layer, place, copied), row in self.sums.items()
            ]
        )


def work_of(weights: WeightCosts, steps: Steps, homes: Sequence[str]) -> Work:
    """Return the Work of a launch by its own graphs; `homes`: the device of each layer, the output
    last, HOST for none."""
    devices = steps.places[:-1]

    def load(graph: Sequence[Step]) -> Load:
        sums = _Sums(weights)
        for step in graph:
            if step.layer != INPUT:
                # The last place is the CPU, whatever its number.
                place = HOST if step.place >= len(devices) else devices[step.place]
                source = HOST if step.source else place
                if step.source in devices:
                    source = step.source
                sums.add(step, place, source)
        return _load(weights, sums.rows, sums.walk, sums.attention, homes)

    return Work(load(steps.token), load(steps.prompt))


def fallen(steps: Steps, homes: Sequence[str]) -> dict[tuple[str, str], int]:
    """Return a token's operations that run on the CPU because a kernel is missing: by device and
    op, the number of layers. Layers that have weights or a cache in RAM are not counted, since
    these may be the reason."""
    host = len(steps.places) - 1
    in_ram = {
        step.layer for step in steps.token if step.kind in (WEIGHT, CACHE) and step.place == host
    }
    on_cpu = {
        (homes[step.layer], step.op, step.layer)
        for step in steps.token
        if step.place == host and 0 <= step.layer < len(homes) and step.layer not in in_ram
    }
    counts: dict[tuple[str, str], int] = {}
    for device, op, _ in on_cpu:
        if device != HOST:
            counts[device, op] = counts.get((device, op), 0) + 1
    return counts


def _load(
    weights: WeightCosts,
    rows: tuple[LayerWork, ...],
    walk: Iterable[tuple[str, float]],
    attention: Mapping[int, tuple[str, str]],
    homes: Sequence[str],
) -> Load:
    stays: list[tuple[str, float]] = []
    for place, kernels in walk:
        if stays and stays[-1][0] == place:
            stays[-1] = place, stays[-1][1] + kernels
        else:
            stays.append((place, kernels))
    visits: dict[str, int] = {}
    for place, _ in stays:
        visits[place] = visits.get(place, 0) + 1
    handovers = 0.0
    hops = 0
    for (before_place, kernels_before), (after_place, kernels_after) in itertools.pairwise(stays):
        if HOST in (before_place, after_place):
            handovers += _LEAST + (1 - _LEAST) * min(
                1.0, (kernels_after if before_place == HOST else kernels_before) / _MANY
            )
        else:
            hops += 1
    read = tuple(
        [attention.get(layer, (home, home)) for layer, home in enumerate(homes[: weights.n_layer])]
    )
    return Load(rows, (*read, None), handovers, hops, visits, stays[-1][0] if stays else HOST)


class Homes:
    """Works of launches that were not measured: the steps of one graph, with a placement's weights.

    An op runs where its weight is; attention runs on the layer's device; other nodes run where
    their neighbours do, devices first (passes 1 and 2 of ggml_backend_sched_split_graph). If a
    device lacks a kernel, the node runs on the CPU. `script` are the graphs' steps (None: unknown),
    `devices` the meaning of its bits, `order` the launch's own devices in their order (None: the
    same), `kv_offload`: caches are on devices, `op_offload`: weights in RAM may be copied to one.
    """

    def __init__(
        self,
        weights: WeightCosts,
        script: Steps | None,
        devices: Sequence[str],
        kv_offload: bool,
        op_offload: bool,
        order: Sequence[str] | None = None,
    ) -> None:
        self.weights = weights
        self.kv_offload = kv_offload
        self.devices = devices
        self.op_offload = op_offload
        # the bit of each device
        self.bits = {
            name: 1 << devices.index(name) for name in (devices if order is None else order)
        }
        self.tokens = self._by_layer(script.token if script else weights.script)
        self.prompts = self._by_layer(script.prompt if script else self._offloading())
        self.script = script
        # Layers with the same groups and home share their sums: most launches differ in few layers.
        self._known: dict[object, tuple[_Sums, _Sums]] = {}
        # by what layers are like: most layers are like others
        self._alike: dict[object, tuple[_Sums, _Sums]] = {}
        # of each placement, which is kept with it
        self._works: dict[int, tuple[Placement, Work]] = {}

    def _offloading(self) -> list[Step]:
        """Return the steps of a prompt in an unknown graph: op offload asks a backend for its
        smallest batch, not the architecture."""
        places = sum(bit for name, bit in self.bits.items() if backend_of(name).offload_min_batch)
        return [
            Step(s.kind, s.op, s.name, s.source, s.layer, places, s.kernels, s.few)
            for s in self.weights.script
        ]

    def _by_layer(self, steps: Sequence[Step]) -> dict[int, list[Step]]:
        by_layer: dict[int, list[Step]] = {}
        for step in steps:
            if step.layer != INPUT:
                by_layer.setdefault(min(step.layer, self.weights.n_layer), []).append(step)
        return by_layer

    def knows(self, placement: Placement) -> bool:
        """Return whether its Work is known."""
        return id(placement) in self._works

    def work(self, placement: Placement, homes: Sequence[str]) -> Work:
        """Return the Work of a placement; `homes`: the device of each layer, the output last, HOST
        for none."""
        if id(placement) not in self._works:
            groups: dict[int, tuple[WeightGroup, ...]] = {}
            for group in placement.groups:
                if group.layer >= 0:
                    layer = min(group.layer, self.weights.n_layer)
                    groups[layer] = (*groups.get(layer, ()), group)
            by_layer = [
                self._layer(layer, groups.get(layer, ()), placement, homes[layer])
                for layer in sorted(self.tokens)
            ]
            token, prompt = (
                [
                    _load(
                        self.weights,
                        tuple([row for sums in graph for row in sums.rows]),
                        [visit for sums in graph for visit in sums.walk],
                        {
                            layer: places
                            for sums in graph
                            for layer, places in sums.attention.items()
                        },
                        homes,
                    )
                    for graph in zip(*by_layer, strict=True)
                ]
                if by_layer
                else [_load(self.weights, (), (), {}, homes)] * 2
            )
            self._works[id(placement)] = placement, Work(token, prompt)
        return self._works[id(placement)][1]

    def _layer(
        self, layer: int, groups: tuple[WeightGroup, ...], placement: Placement, home: str
    ) -> tuple[_Sums, _Sums]:
        """Return the sums of a layer in a token's graph and in a prompt's."""
        key = layer, groups, home
        if key not in self._known:
            buffers = tuple([buffer for group in groups for _, buffer, _ in group.rows])
            # What is equal for layers with the same steps and weights.
            steps = (None, None) if self.script is None else self.script.alike(layer)
            likeness = layer if None in steps else (*steps, self.weights.alike[layer])
            like = likeness, buffers, home
            if like not in self._alike:
                tensors = {
                    name: tensor for group in groups for name, tensor in group.tensors.items()
                }
                self._alike[like] = (
                    self._sums(self.tokens[layer], tensors, placement, home),
                    self._sums(self.prompts.get(layer, ()), tensors, placement, home),
                )
            token, prompt = self._alike[like]
            self._known[key] = token.of_layer(layer), prompt.of_layer(layer)
        return self._known[key]

    def _sums(
        self,
        steps: Sequence[Step],
        tensors: Mapping[str, PlacedTensor],
        placement: Placement,
        home: str,
    ) -> _Sums:
        """Return the bytes and operations of a layer's steps, by the device that computes each and
        by the memory that it reads."""
        cache = home if self.kv_offload else HOST
        places: list[str] = []
        memories: list[str] = []
        for step in steps:
            place = memory = ""
            if step.kind == WEIGHT:
                # a tied output matrix is the embeddings'
                tensor = tensors.get(step.name) or (
                    tensors.get("token_embd.weight") if step.name == "output.weight" else None
                )
                if tensor is not None:
                    place = memory = HOST if placement.is_host(tensor.buffer) else tensor.buffer
                    # Op offload: a device computes with a copy of a weight that stays in RAM, but
                    # not of repacked ones (CPU_REPACK), whose layout only the CPU reads.
                    may_copy = self.op_offload and tensor.buffer != REPACK
                    if may_copy and place == HOST and step.place:
                        # the first of the launch's devices that is one of these, "" for none
                        place = (
                            next((name for name, bit in self.bits.items() if step.place & bit), "")
                            or HOST
                        )
            elif step.kind == CACHE:
                place = memory = cache
            else:
                memory = cache if step.kind == ATTENTION else ""
                place = HOST if home != HOST and step.place & self.bits[home] else ""
            places.append(place)
            memories.append(memory)
        # assigns nodes without a place to a neighbour's: a device's before the CPU's, the previous
        # one's first
        # First devices' places spread, then those that are left get the CPU's.
        for skip in (HOST, ""):
            for order in (range(len(places)), range(len(places) - 1, -1, -1)):
                current = ""
                for i in order:
                    if places[i]:
                        current = "" if places[i] == skip else places[i]
                    elif current:
                        places[i] = current
        sums = _Sums(self.weights)
        for step, place, memory in zip(steps, places, memories, strict=True):
            sums.add(step, place or home, memory)
        return sums
