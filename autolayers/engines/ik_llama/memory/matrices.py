"""Layers whose matrices ik_llama.cpp keeps apart on several GPUs: -sm none, which moves them to
one, and -sm graph, which cuts them (create_tensors, prepare_split_tensors and create_split of
src/llama-load-tensors.cpp, 8337e4cd)."""

from __future__ import annotations

from ....backends import HOST
from ....errors import LaunchRefused
from ....ggml.tensor import block_size
from ....ggml.types import is_quantised
from ....gguf import n_bytes
from ....memory.split import float32
from ....memory.weights import PlacedTensor, WeightGroup
from ....records import replace
from ..architectures import has, own_of
from .cache import Heads, row_padding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....machine import Device
    from ....model import Model
    from .split import Split

ALIGNED = 128
_LEFT = ("attn_kv_b.weight", "_exps.bias")  # whole on the layer's device


def matrices(
    model: Model, used: Sequence[Device], layout: Split, groups: Sequence[WeightGroup], main: int
) -> tuple[list[WeightGroup], bool]:
    """Return (groups, exactly so) with -sm none: the main GPU has the matrices of all layers; where
    it is not known which tensors these are, it has all, and their layers' devices too."""
    if not 0 <= main < len(used):
        raise LaunchRefused(f"invalid value for main_gpu: {main} (there are {len(used)} devices)")
    if has(model.architecture, "stays"):
        return list(groups), True
    own = own_of(model.architecture)
    names, target = own or (), used[main].name
    # rope factors are created for each layer with the matrices, unless listed as left
    moves = own is not None and "rope_freqs" not in names and has(model.architecture, "factors")
    made = []
    for group in groups:
        copy = WeightGroup(group.layer)
        copy.resident = group.resident
        for name, tensor in group.tensors.items():
            layer = group.layer if name.startswith(("blk.", "rope_f")) else -1
            here = (
                0 <= layer < model.hparams.n_layer and tensor.buffer == layout.layers[layer] != HOST
            )
            matrix = (
                moves if name.startswith("rope_f") else _short(name) not in names if here else False
            )
            if here and matrix:
                # unknown which: counted on both, an upper bound
                if own is None:
                    copy.buffers[tensor.buffer] = copy.buffers.get(tensor.buffer, 0) + tensor.size
                tensor = replace(tensor, buffer=target)
            copy.tensors[name] = tensor
            copy.buffers[tensor.buffer] = copy.buffers.get(tensor.buffer, 0) + tensor.size
        made.append(copy)
    return made, own is not None


def factors_to(model: Model, layout: Split, target: str) -> bool:
    """Whether -sm none moves the rope factors of a layer, too."""
    names = own_of(model.architecture) or ()
    return has(model.architecture, "factors") and "rope_freqs" not in names and target != ""


def _short(name: str) -> str:
    """Return a name without "blk.N." and ".weight"."""
    return name.split(".", 2)[2].removesuffix(".weight")


def create_split(n: int, granule: int, shares: Sequence[float], used: Sequence[int]) -> list[int]:
    """Return the rows of each device, in chunks (create_split); a device with more than its part so
    far gets fewer."""
    if granule < 0:
        return [n] * len(shares)
    total, chunks = 1 + sum(used), n // granule
    wants, last = [], 0.0
    # p + (p - used / total): the next tensor evens out what a device got too much of before
    for share, mine in zip(shares, used, strict=True):
        part = float32(share - last)
        part = float32(part + float32(part - float32(float32(float(mine)) / float32(float(total)))))
        wants.append(float32(part * chunks))
        last = share
    taken = [max(0, int(want + 0.5)) if want >= 0 else 0 for want in wants]
    # the device furthest above its share gives a chunk back, the first of several
    while sum(taken) > chunks:
        taken[
            max(
                (i for i in range(len(taken)) if taken[i]),
                key=lambda i: (float32(taken[i] - wants[i]), -i),
            )
        ] -= 1
    while sum(taken) < chunks:
        taken[max(range(len(taken)), key=lambda i: (float32(wants[i] - taken[i]), -i))] += 1
    return [count * granule for count in taken]


class _Cut:
    """The layers of -sm graph, in order. `where`: the device of the current one, `here`: its
    tensors."""

    def __init__(self, model: Model, layout: Split, count: int, cached: bool) -> None:
        self.model, self.shares, self.cached = model, layout.shares, cached
        self.mirror = [1] * count
        self.used = [0] * count  # mem_used: without padding
        self.sizes = [0] * count
        self.parts: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.whole = True
        self.where = ""
        self.here: Mapping[str, PlacedTensor] = {}

    def split(self, n: int, granule: int) -> list[int]:
        """Return how many of `n` rows each device gets, in multiples of `granule`. Raises
        LaunchRefused where ik_llama.cpp aborts."""
        if granule > 0 and n % granule:
            raise LaunchRefused(
                f"-sm graph: {n} rows of a layer are no multiple of {granule}, where it aborts "
                f"(GGML_ASSERT(nr % granularity == 0))"
            )
        return create_split(n, granule, self.shares, self.used)

    def put(self, name: str, dim: int, split: Sequence[int]) -> None:
        """Mirror prepare_split_tensors: a part on each device with rows, the whole of it with `dim`
        -1."""
        tensor = self.here.get(name)
        if tensor is None:
            return
        # counted once: an override's tensor is elsewhere and stays whole
        fresh = tensor.name not in self.parts and tensor.buffer == self.where
        self.parts[tensor.name] = dim, tuple(split)
        self.whole = self.whole and tensor.buffer == self.where
        for device, rows in enumerate(split):
            if rows > 0:
                ne = list(tensor.info.ne)
                if dim >= 0:
                    ne[dim] = rows
                size = n_bytes(tensor.info.type, tuple(ne))
                self.used[device] += size
                # one that is cut twice has the later cut; one of another buffer is whole there
                self.sizes[device] += size + row_padding(tensor.info.type, ne[0]) if fresh else 0

    def copy(self, *names: str) -> None:
        """Put the whole of tensors on each device."""
        for name in names:
            self.put(name, -1, self.mirror)

    def reduced(self, split: Sequence[int]) -> None:
        if sum(rows > 0 for rows in split) < 2:
            raise LaunchRefused(
                "-sm graph leaves a tensor on one device alone, where it aborts (ggml_reduce: "
                "GGML_ASSERT(nhave > 1)): give devices or -ts of similar size"
            )


def _granule(tensor: PlacedTensor, smallest: int) -> int:
    return (
        max(smallest, block_size(tensor.info.type)) if is_quantised(tensor.info.type) else smallest
    )


def shared_out(
    model: Model,
    used: Sequence[Device],
    layout: Split,
    groups: Sequence[WeightGroup],
    buffers: Mapping[str, int],
    cached: bool = True,
) -> tuple[dict[str, int], bool, Heads]:
    """Return (bytes by buffer, exactly so, what the cache needs) with -sm graph. `cached`: GPUs
    have the cache, otherwise attention is not cut. Raises LaunchRefused where it aborts."""
    n_layer, cut = model.hparams.n_layer, _Cut(model, layout, len(used), cached)
    if has(model.architecture, "all_cut") and HOST in layout.layers[:n_layer]:
        raise LaunchRefused(
            "-sm graph: it ends with layers of minimax-m2 in RAM (GGML_ASSERT(wq && wk && wv && "
            "wo)): give all layers with -ngl, or -sm layer"
        )
    layers: dict[int, dict[str, PlacedTensor]] = {}
    for group in groups:
        if 0 <= group.layer < n_layer and layout.layers[group.layer] != HOST:
            here = layers.setdefault(group.layer, {})
            for name, tensor in group.tensors.items():
                if name.startswith("blk."):
                    here[_short(name)] = tensor
    named = [group.tensors.get("rope_freqs.weight") for group in groups]
    factors = next((tensor for tensor in named if tensor is not None), None)
    rows: list[tuple[tuple[int, int], ...] | None] = []
    for il in range(n_layer):
        cut.where, cut.here = layout.layers[il], layers.get(il, {})
        rows.append(None if cut.where == HOST else _cut_layer(cut, il, factors))
    # the bytes by buffer without the tensors that were cut, which were counted whole
    result, exact, whole = dict(buffers), True, cut.whole
    for il, tensors in layers.items():
        for tensor in tensors.values():
            if tensor.buffer != layout.layers[il]:
                # an override moved it: experts alone may be elsewhere
                whole = whole and "_exps." in tensor.name
            elif tensor.name in cut.parts:
                result[tensor.buffer] -= tensor.size
            elif not tensor.name.endswith(_LEFT):
                exact = False  # where it is, is not known: on each
                for other in used:
                    if other.name != tensor.buffer:
                        result[other.name] = result.get(other.name, 0) + tensor.size
    if factors is not None:  # counted as on their layers' devices before
        for layer in layout.layers[:n_layer]:
            if layer != HOST:
                result[layer] -= -(-factors.info.n_bytes // ALIGNED) * ALIGNED
    for part, size in zip(used, cut.sizes, strict=True):
        result[part.name] = result.get(part.name, 0) + size
    parts = tuple([(name, *part) for name, part in cut.parts.items()])
    return result, exact, Heads(tuple(rows), parts, whole)


def _cut_layer(
    cut: _Cut, il: int, factors: PlacedTensor | None
) -> tuple[tuple[int, int], ...] | None:
    """Cut the tensors of a layer, or copy them to each device; return the rows of K and V there."""
    architecture = cut.model.architecture
    cut.copy("attn_norm")
    if factors is not None:
        # rope factors: a copy per layer on every device
        size, padding = factors.info.n_bytes, row_padding(factors.info.type, factors.info.ne[0])
        for device in range(len(cut.mirror)):
            cut.used[device] += size
            cut.sizes[device] += size + padding
    if architecture == "muse-glimmer":
        cut.copy("post_attention_norm")
    rows = _attention(cut, il)
    cut.copy("ffn_norm", "post_ffw_norm")
    if architecture in ("gpt-oss", "seed_oss", "glm4moe"):
        cut.copy("post_attention_norm")
    # the rest is cut only where no override moved it
    here = cut.here
    cut.here = {name: tensor for name, tensor in here.items() if tensor.buffer == cut.where}
    _feed_forward(cut)
    cut.here = here
    cut.copy("ffn_gate_inp", "ffn_gate_inp.bias", "exp_probs_b.bias")
    return rows


def _attention(cut: _Cut, il: int) -> tuple[tuple[int, int], ...] | None:
    """Cut a layer's attention by heads; rows of K and V on each device."""
    hp, here = cut.model.hparams, cut.here
    wo, wq, wk, wv = (here.get(f"attn_{part}") for part in ("output", "q", "k", "v"))
    if wo is None:
        return None
    if has(cut.model.architecture, "mla_cut"):
        # mirror distribute_mla_tensors_for_split_mode_graph: by heads, four at a time; the latent
        # cache on each device. Four: wo's rows stay aligned to 256, and flash attention wants
        # groups of four
        heads = cut.split(hp.n_head(il), 4)
        cut.reduced(heads)
        cut.copy("attn_q_a_norm", "attn_kv_a_norm", "attn_q_a", "attn_kv_a_mqa", "ffn_norm")
        cut.put("attn_k_b", 2, heads)
        cut.put("attn_v_b", 2, heads)
        for name, dim in (("attn_q_b" if "attn_q_b" in here else "attn_q", 1), ("attn_output", 0)):
            if name in here:
                each = here[name].info.ne[dim] // hp.n_head(il)
                cut.put(name, dim, [count * each for count in heads])
        return tuple([(count, count) for count in heads])
    if wq is None or wk is None or wv is None:
        return None
    head_k, head_v = hp.head_k(il), hp.head_v(il)
    ratio = hp.n_head(il) // hp.n_head_kv(il)
    # whole groups of heads, and at least a block of a quantised wo's rows
    granule_kq, block = head_k * ratio, _granule(wo, 1)
    if cut.model.architecture == "command-r" and wq.info.ne[1] % block == 0:
        granule_kq = max(granule_kq, block)
    vo = cut.split(wo.info.ne[0], _granule(wo, head_v * ratio))
    kq = cut.split(wq.info.ne[1], granule_kq)
    if cut.cached:
        cut.reduced(vo)
    by_head = [rows // head_k for rows in kq]
    _queries_or_keys(cut, "attn_q", wq, kq, vo, head_k)
    cut.put("attn_output", 0, vo)
    gate = here.get("attn_gate")
    of_values = gate is not None and gate.info.ne[1] == wo.info.ne[0]
    cut.put("attn_gate", 1, vo if of_values else by_head)
    cut.put("attn_output.bias", -1, vo)
    cut.put("attn_sinks", 0, by_head)
    # K and V in step with the groups of Q's heads
    kq, vo = [rows // ratio for rows in kq], [rows // ratio for rows in vo]
    whole = _queries_or_keys(cut, "attn_k", wk, kq, vo, head_k)
    cut.put("attn_v", 1, vo)
    cut.put("attn_v.bias", 0, vo)
    keys = [rows // head_v * head_k for rows in vo] if whole else kq
    return tuple(zip(keys, vo, strict=True))


def _queries_or_keys(
    cut: _Cut, name: str, weight: PlacedTensor, kq: list[int], vo: list[int], head: int
) -> bool:
    """Cut what makes Q or K; return whether it is whole on each device, as one norm over all heads
    needs them all (minimax-m2)."""
    norm = cut.here.get(f"{name}_norm")
    if norm is not None and norm.info.ne[0] == weight.info.ne[1]:
        for part in (name, f"{name}_norm", f"{name}.bias"):
            cut.put(part, -1, vo)
        return True
    cut.put(name, 1, kq)
    cut.put(f"{name}.bias", 0, kq)
    if norm is not None and norm.info.ne[1] > 1:
        cut.put(f"{name}_norm", 1, [rows // head for rows in kq])
    else:
        cut.put(f"{name}_norm", -1, kq)
    return False


def _feed_forward(cut: _Cut) -> None:
    """Cut a layer's feed forward networks by rows of the inner dimension."""
    experts: list[int] = []
    for suffix in ("", "_exps", "_shexp"):
        down, up, gate, both = (
            cut.here.get(f"ffn_{part}{suffix}") for part in ("down", "up", "gate", "gate_up")
        )
        if down is None or (both is None and (up is None or gate is None)):
            continue
        rows, granule = down.info.ne[0], _granule(down, 16)
        split = cut.split(rows, granule)
        if suffix != "_shexp":
            cut.reduced(split)
        # shared experts are on the devices that have experts, in their proportion
        elif experts and [bool(rows) for rows in experts] != [bool(rows) for rows in split]:
            total, shares = 0.0, []
            for part in experts:
                total = float32(total + part)
                shares.append(total)
            shares = [float32(share / total) for share in shares]
            split = create_split(rows, granule, shares, cut.used)
        cut.put(f"ffn_down{suffix}", 0, split)
        cut.put(f"ffn_up{suffix}", 1, split)
        cut.put(f"ffn_gate{suffix}", 1, split)
        if suffix == "_exps":
            experts, twice = split, [2 * rows for rows in split]
            cut.put("ffn_gate_up_exps", 1, twice)
            cut.put("ffn_gate_up_exps.bias", 0, twice)
            cut.put("ffn_down_exps.bias", -1, split)
            if both is None:
                cut.put("ffn_up_exps.bias", 0, split)
                cut.put("ffn_gate_exps.bias", 0, split)
        elif suffix == "_shexp":
            cut.put("ffn_gate_inp_shexp", -1, split)
