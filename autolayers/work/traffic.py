"""What a token makes a model read and compute, layer by layer: the work that cost.py turns into seconds.

    traffic = Traffic(model, kernels)
    traffic.placed(placement)        # Rows: what lies where, summed over a layer
    traffic.attention(memory)        # per layer: bytes and arithmetic by tokens in the cache
"""

from __future__ import annotations

from ..records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..memory.cache import Memory
    from ..memory.weights import PlacedTensor, Placement, WeightGroup
    from ..model import Model

HOST = "Host"

# Arithmetic that matrix kernels reach by type of the weights, as a share of q4_K's (benchmarks/fit_speed.py)
TYPE_WORK = {
    "f32": 0.5, "f16": 0.99, "bf16": 1.05, "q8_0": 1.02, "q6_K": 0.75, "q5_K": 1.0, "q4_K": 1.0, "q3_K": 0.87,
    "q2_K": 0.8, "q4_0": 0.95, "q5_0": 0.95, "q4_1": 0.95, "q5_1": 0.95, "mxfp4": 1.2,
}
KERNELS_UNKNOWN = 2.5       # per matrix, where the architecture's graph is not known
_SCORE = 16                 # bytes of a score without flash attention: f32, written and read twice


@dataclass(frozen=True)
class Row:
    """What one layer has in one place. `dense` and `experts` are bytes (experts: all of them), `work` and
    `expert_work` multiply-adds of one token in q4_K's, `bf16` the bytes of both in bf16."""

    layer: int
    place: str
    dense: int
    experts: int
    work: float
    expert_work: float
    bf16: int
    kernels: float


@dataclass(frozen=True)
class Attention:
    """One layer's cache. A token with `depth` tokens before it reads min(depth, window) x `cell` bytes and computes
    `flops` on each, and reads and writes `state` bytes; without flash attention it moves `scores` bytes on each."""

    cell: float
    window: int
    flops: float
    state: int
    quantised: bool
    scores: float = 0.0


@dataclass(frozen=True)
class Placed:
    """A placement's rows, and how often its layers in order go from one place to another."""

    rows: tuple[Row, ...]
    handovers: int      # between a device and the processor
    hops: int           # between devices
    layers: int         # that are wholly in RAM
    visits: Mapping[str, int]      # how often the graph comes to each place
    last: str                      # where it ends


class Traffic:
    """The work of one model. `kernels` is what memory.kernels found, empty where no graph is known."""

    def __init__(self, model: Model, kernels: Mapping[str, tuple[int, int]]) -> None:
        hparams = model.hparams
        self.hparams = hparams
        self.n_layer = hparams.n_layer_all
        self.n_embd, self.n_vocab = hparams.n_embd, hparams.n_vocab
        self.used = max(1, hparams.n_expert_used_max) / max(1, hparams.n_expert)      # of the experts, by a token
        self.n_expert = hparams.n_expert
        self.order = {name: number for number, name in enumerate(kernels)}
        self.kernels = kernels
        self.reads: dict[str, tuple[int, bool]] = {}        # layer (n_layer: output), an expert's
        for weight in model.weights:
            name = weight.info.name
            layer = weight.block if weight.layer == "repeating" else self.n_layer
            table = weight.layer == "input" or (weight.layer == "output" and weight.op == "GET_ROWS")
            if weight.op in ("NONE", "ROPE") or (table and name != "token_embd.weight"):
                continue             # of tables single rows are read, rope factors are tiny
            if weight.layer == "repeating" and layer >= hparams.n_layer:
                continue             # MTP blocks take no part in plain generation
            self.reads[name] = layer, weight.op == "MUL_MAT_ID" and hparams.n_expert > 0
        self._groups: dict[WeightGroup, tuple[list[Row], list[tuple[int, str]]]] = {}

    def sent(self, depth: float) -> float:
        """Bytes that a token's visit to an RPC server carries: activations there and back in f32, the mask in f16."""
        return 2 * 4 * self.n_embd + 2 * depth

    def placed(self, placement: Placement) -> Placed:
        """What lies where, by layer and place."""
        rows: list[Row] = []
        walk: list[tuple[int, str]] = []
        output = placement.output
        for group in placement.groups:
            known = self._groups.get(group)
            if known is None:
                tensors = [tensor for tensor in group.tensors.values() if tensor.name != "token_embd.weight"]
                known = self._groups[group] = self._rows(tensors, placement)
            rows += known[0]
            walk += known[1]
        if output is not None and output.name == "token_embd.weight":      # of the input table single rows are read
            more = self._rows([output], placement)
            rows += more[0]
            walk += more[1]
        walk.sort()
        handovers = hops = 0
        here = walk[0][1] if walk else HOST
        visits = {here: 1}
        for _, there in walk:
            if here != there:
                if HOST in (here, there):
                    handovers += 1
                else:
                    hops += 1
                here = there
                visits[here] = visits.get(here, 0) + 1
        return Placed(tuple(rows), handovers, hops, sum(1 for home in placement.dev_layer if placement.is_host(home)),
                      visits, here)

    def _rows(self, tensors: Sequence[PlacedTensor], placement: Placement) -> tuple[list[Row], list[tuple[int, str]]]:
        """A group's rows, and the places that its tensors are read in, in the graph's order, changes alone."""
        sums: dict[tuple[int, str], list[float]] = {}
        walk: list[tuple[int, str]] = []
        names = ["output.weight" if tensor.name == "token_embd.weight" else tensor.name for tensor in tensors]
        numbered = sorted([(self.order.get(name, -1), i) for i, name in enumerate(names)])
        place = ""
        for number, i in numbered:
            tensor = tensors[i]
            read = self.reads.get(tensor.name)
            if read is None:
                continue
            layer, expert = read
            info, before = tensor.info, place
            place = HOST if placement.is_host(tensor.buffer) else tensor.buffer
            row = sums.get((layer, place))
            if row is None:
                row = sums[layer, place] = [0, 0, 0.0, 0.0, 0, 0.0]
            row[expert] += info.n_bytes
            work = info.n_elements / TYPE_WORK.get(info.type, 0.95)
            row[2 + expert] += work * self.used if expert else work
            if info.type == "bf16":
                row[4] += info.n_bytes * self.used if expert else info.n_bytes
            if number >= 0:
                own, gap = self.kernels[names[i]]
                row[5] += own + gap
                if expert and place == HOST and before not in ("", HOST):    # what chooses the experts stays there
                    row[5] -= gap
                    if (layer, before) in sums:
                        sums[layer, before][5] += gap
                if place != before:
                    walk.append((number, place))
            elif not self.kernels and len([n for n in info.ne if n > 1]) > 1:
                row[5] += KERNELS_UNKNOWN
        if not self.kernels:
            walk = [(layer, place) for layer, place in sums]
        return [Row(layer, place, int(row[0]), int(row[1]), row[2], row[3], int(row[4]), row[5])
                for (layer, place), row in sums.items()], walk

    def attention(self, memory: Memory, n_ctx: int, flash: bool = True) -> list[Attention | None]:
        """Of each layer (output last), from caches that were allocated for `n_ctx` cells of one sequence."""
        found: list[Attention | None] = [None] * (self.n_layer + 1)
        hp = self.hparams
        for cache in memory.caches:
            sliding = cache.kind == "swa"
            recurrent = cache.kind == "recurrent" or cache.kind.endswith("-state")
            ratio = 1.0 if sliding else min(1.0, cache.n_cells / n_ctx)
            window = cache.n_cells if sliding else 1 << 62
            readers = [(layer.il, layer) for layer in cache.layers]
            readers += [(il, layer) for il in cache.reused if (layer := cache.layer(il)) is not None]
            for il, layer in readers:
                if il >= hp.n_layer:
                    continue
                before = found[il] or Attention(0.0, 1 << 62, 0.0, 0, False)
                if recurrent:
                    state = sum(tensor.size for tensor in layer.tensors)
                    found[il] = replace(before, state=before.state + state)
                    continue
                k, v = layer.k, layer.v
                size = sum(tensor.size for tensor in layer.tensors) / cache.n_cells / max(1, cache.n_stream)
                wide = (k.ne[0] if k else 0) + (v.ne[0] if v else k.ne[0] if k else 0)
                attends = cache.kind in ("attn", "swa")
                flops = 2.0 * hp.n_head(il) / max(1, hp.n_head_kv(il)) * wide if attends else 0.0
                scores = 0 if flash or not attends else _SCORE * hp.n_head(il)
                found[il] = Attention(before.cell + size * ratio, min(before.window, window), before.flops + flops,
                                      before.state, k is not None and k.type not in ("f32", "f16", "bf16"),
                                      before.scores + scores)
        return found
