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
from .heads import Heads, row_padding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ....machine import Device
    from ....model import Model
    from .split import Split

ALIGNED = 128
_LEFT = ("attn_kv_b.weight", "_exps.bias")  # whole on the layer's device
# norms and routers that each device has whole
_WHOLE = (
    "ffn_norm",
    "post_ffw_norm",
    "post_attention_norm",
    "ffn_gate_inp",
    "ffn_gate_inp.bias",
    "exp_probs_b.bias",
)


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


def _of_layers(
    model: Model, groups: Sequence[WeightGroup], layout: Split
) -> Iterator[tuple[int, str, PlacedTensor]]:
    for group in groups:
        if not 0 <= group.layer < model.hparams.n_layer or layout.layers[group.layer] == HOST:
            continue
        for name, tensor in group.tensors.items():
            if name.startswith("blk."):
                yield group.layer, name, tensor


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
    """The layers of -sm graph, in order."""

    def __init__(self, model: Model, layout: Split, count: int) -> None:
        self.model, self.shares, self.count = model, layout.shares, count
        self.used = [0] * count  # mem_used: without padding
        self.sizes = [0] * count
        self.exact = True
        self.done: set[str] = set()
        self.cached = True
        self.parts: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.whole = True
        self.where = ""  # the device of the layer

    def split(self, n: int, granule: int) -> list[int]:
        """Return how many of `n` rows each device gets, in multiples of `granule`. Raises
        LaunchRefused where ik_llama.cpp aborts."""
        if granule > 0 and n % granule:
            raise LaunchRefused(
                f"-sm graph: {n} rows of a layer are no multiple of {granule}, where it aborts "
                f"(GGML_ASSERT(nr % granularity == 0))"
            )
        return create_split(n, granule, self.shares, self.used)

    def put(self, tensor: PlacedTensor | None, dim: int, split: Sequence[int]) -> None:
        """Mirror prepare_split_tensors: a part on each device with rows, the whole of it with `dim`
        -1."""
        if tensor is None:
            return
        # counted once: an override's tensor is elsewhere and stays whole
        fresh = tensor.name not in self.done and tensor.buffer == self.where
        self.done.add(tensor.name)
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
    hp, cut = model.hparams, _Cut(model, layout, len(used))
    cut.cached = cached
    if has(model.architecture, "all_cut") and HOST in layout.layers[: hp.n_layer]:
        raise LaunchRefused(
            "-sm graph: it ends with layers of minimax-m2 in RAM (GGML_ASSERT(wq && wk && wv && "
            "wo)): give all layers with -ngl, or -sm layer"
        )
    layers: dict[int, dict[str, PlacedTensor]] = {}
    for il, name, tensor in _of_layers(model, groups, layout):
        layers.setdefault(il, {})[_short(name)] = tensor
    factors = next(
        (
            group.tensors[name]
            for group in groups
            for name in group.tensors
            if name == "rope_freqs.weight"
        ),
        None,
    )
    rows: list[tuple[tuple[int, int], ...] | None] = []
    for il in range(hp.n_layer):
        cut.where = layout.layers[il]
        rows.append(None if cut.where == HOST else _cut_layer(cut, layers.get(il, {}), il, factors))
    result = _in_parts(cut, layers, layout, buffers, used)
    if factors is not None:  # counted as on their layers' devices before
        for layer in layout.layers[: hp.n_layer]:
            if layer != HOST:
                result[layer] -= -(-factors.info.n_bytes // 128) * 128
    for part, size in zip(used, cut.sizes, strict=True):
        result[part.name] = result.get(part.name, 0) + size
    parts = tuple([(name, *part) for name, part in cut.parts.items()])
    whole = cut.whole and not _moved(groups, layout, hp.n_layer)
    return result, cut.exact, Heads(tuple(rows), parts, whole)


def _cut_layer(
    cut: _Cut, here: dict[str, PlacedTensor], il: int, factors: PlacedTensor | None
) -> tuple[tuple[int, int], ...] | None:
    """Cut the tensors of a layer, or copy them to each device; return the rows of K and V there."""
    architecture, mirror = cut.model.architecture, [1] * cut.count
    cut.put(here.get("attn_norm"), -1, mirror)
    if architecture == "muse-glimmer":
        cut.put(here.get("post_attention_norm"), -1, mirror)
    if factors is not None:
        # rope factors: a copy per layer on every device
        size, padding = factors.info.n_bytes, row_padding(factors.info.type, factors.info.ne[0])
        for device in range(cut.count):
            cut.used[device] += size
            cut.sizes[device] += size + padding
    rows = _attention(cut, cut.model.hparams, here, il)
    for name in _WHOLE[:3]:
        if name != "post_attention_norm" or architecture in ("gpt-oss", "seed_oss", "glm4moe"):
            cut.put(here.get(name), -1, mirror)
    # the rest is cut only where no override moved it
    _feed_forward(
        cut, {name: tensor for name, tensor in here.items() if tensor.buffer == cut.where}
    )
    for name in _WHOLE[3:]:
        cut.put(here.get(name), -1, mirror)
    return rows


def _in_parts(
    cut: _Cut,
    layers: Mapping[int, Mapping[str, PlacedTensor]],
    layout: Split,
    buffers: Mapping[str, int],
    used: Sequence[Device],
) -> dict[str, int]:
    """Return the bytes by buffer without the tensors that were cut, which were counted whole."""
    result = dict(buffers)
    for il, tensors in layers.items():
        for tensor in tensors.values():
            if tensor.buffer != layout.layers[il]:
                continue
            if tensor.name in cut.done:
                result[tensor.buffer] -= tensor.size
            elif not tensor.name.endswith(_LEFT):
                cut.exact = False  # where it is, is not known: on each
                for other in used:
                    if other.name != tensor.buffer:
                        result[other.name] = result.get(other.name, 0) + tensor.size
    return result


def _moved(groups: Sequence[WeightGroup], layout: Split, n_layer: int) -> bool:
    """Whether an override moved a tensor, other than experts, of a layer on a GPU."""
    for group in groups:
        if not 0 <= group.layer < n_layer or layout.layers[group.layer] == HOST:
            continue
        where = layout.layers[group.layer]
        for placed in group.tensors.values():
            of_layer = placed.name.startswith("blk.") and "_exps." not in placed.name
            if of_layer and placed.buffer != where:
                return True
    return False


def _attention(
    cut: _Cut, hp: object, here: dict[str, PlacedTensor], il: int
) -> tuple[tuple[int, int], ...] | None:
    """Cut a layer's attention by heads; rows of K and V on each device."""
    wo, wq, wk, wv = (here.get(f"attn_{part}") for part in ("output", "q", "k", "v"))
    if wo is None:
        return None
    if has(cut.model.architecture, "mla_cut"):
        # mirror distribute_mla_tensors_for_split_mode_graph: by heads, four at a time; the latent
        # cache on each device
        n_head = hp.n_head(il)  # type: ignore[attr-defined]
        mirror = [1] * cut.count
        # four: wo's rows stay aligned to 256, and flash attention wants groups of four
        heads = cut.split(n_head, 4)
        cut.reduced(heads)
        for name in ("attn_q_a_norm", "attn_kv_a_norm", "attn_q_a"):
            cut.put(here.get(name), -1, mirror)
        q = here.get("attn_q_b") or here.get("attn_q")
        if q is not None:
            cut.put(q, 1, [count * (q.info.ne[1] // n_head) for count in heads])
        cut.put(here.get("attn_kv_a_mqa"), -1, mirror)
        cut.put(here.get("attn_k_b"), 2, heads)
        cut.put(here.get("attn_v_b"), 2, heads)
        cut.put(wo, 0, [count * (wo.info.ne[0] // n_head) for count in heads])
        cut.put(here.get("ffn_norm"), -1, mirror)
        return tuple([(count, count) for count in heads])
    if wq is None or wk is None or wv is None:
        return None
    head_k, head_v = hp.head_k(il), hp.head_v(il)  # type: ignore[attr-defined]
    ratio = hp.n_head(il) // hp.n_head_kv(il)  # type: ignore[attr-defined]
    # whole groups of heads, and at least a block of a quantised wo's rows
    granule_vo = _granule(wo, head_v * ratio)
    granule_kq = head_k * ratio
    if cut.model.architecture == "command-r" and wq.info.ne[1] % _granule(wo, 1) == 0:
        granule_kq = max(granule_kq, _granule(wo, 1))
    vo = cut.split(wo.info.ne[0], granule_vo)
    kq = cut.split(wq.info.ne[1], granule_kq)
    if cut.cached:
        cut.reduced(vo)
    q_norm, k_norm = here.get("attn_q_norm"), here.get("attn_k_norm")
    # one norm over all heads needs them all: Q is whole on each device (minimax-m2)
    if q_norm is not None and q_norm.info.ne[0] == wq.info.ne[1]:
        for tensor in (wq, q_norm, here.get("attn_q.bias")):
            cut.put(tensor, -1, vo)
    else:
        cut.put(wq, 1, kq)
        two = q_norm is not None and q_norm.info.ne[1] > 1
        cut.put(q_norm, 1 if two else -1, [rows // head_k for rows in kq] if two else kq)
        cut.put(here.get("attn_q.bias"), 0, kq)
    cut.put(wo, 0, vo)
    gate = here.get("attn_gate")
    if gate is not None:
        of_values = gate.info.ne[1] == wo.info.ne[0]
        cut.put(gate, 1, vo if of_values else [rows // head_k for rows in kq])
    cut.put(here.get("attn_output.bias"), -1, vo)
    cut.put(here.get("attn_sinks"), 0, [rows // head_k for rows in kq])
    # K and V in step with the groups of Q's heads
    kq, vo = [rows // ratio for rows in kq], [rows // ratio for rows in vo]
    whole = k_norm is not None and k_norm.info.ne[0] == wk.info.ne[1]
    if whole:
        for tensor in (wk, k_norm, here.get("attn_k.bias")):
            cut.put(tensor, -1, vo)
    else:
        cut.put(wk, 1, kq)
        cut.put(here.get("attn_k.bias"), 0, kq)
        two = k_norm is not None and k_norm.info.ne[1] > 1
        cut.put(k_norm, 1 if two else -1, [rows // head_k for rows in kq] if two else kq)
    cut.put(wv, 1, vo)
    cut.put(here.get("attn_v.bias"), 0, vo)
    keys = [rows // head_v * head_k for rows in vo] if whole else kq
    return tuple(zip(keys, vo, strict=True))


def _feed_forward(cut: _Cut, here: dict[str, PlacedTensor]) -> None:
    """Cut a layer's feed forward networks by rows of the inner dimension."""
    down, up, gate = (here.get(f"ffn_{part}") for part in ("down", "up", "gate"))
    if down is not None and up is not None and gate is not None:
        split = cut.split(down.info.ne[0], _granule(down, 16))
        cut.reduced(split)
        cut.put(down, 0, split)
        cut.put(up, 1, split)
        cut.put(gate, 1, split)
    experts = _experts(cut, here)
    down, up, gate = (here.get(f"ffn_{part}_shexp") for part in ("down", "up", "gate"))
    if down is None or up is None or gate is None:
        return
    split = cut.split(down.info.ne[0], _granule(down, 16))
    # shared experts are on the devices that have experts, in their proportion
    if experts and [bool(rows) for rows in experts] != [bool(rows) for rows in split]:
        total, shares = 0.0, []
        for rows in experts:
            total = float32(total + rows)
            shares.append(total)
        split = create_split(
            down.info.ne[0],
            _granule(down, 16),
            [float32(part / total) for part in shares],
            cut.used,
        )
    cut.put(down, 0, split)
    cut.put(up, 1, split)
    cut.put(gate, 1, split)
    cut.put(here.get("ffn_gate_inp_shexp"), -1, split)


def _experts(cut: _Cut, here: dict[str, PlacedTensor]) -> list[int]:
    """Return the rows of the experts' inner dimension on each device; empty if they are not cut."""
    down, up, gate = (here.get(f"ffn_{part}_exps") for part in ("down", "up", "gate"))
    both = here.get("ffn_gate_up_exps")
    if down is None or (both is None and (up is None or gate is None)):
        return []
    split = cut.split(down.info.ne[0], _granule(down, 16))
    cut.reduced(split)
    cut.put(down, 0, split)
    if both is not None:
        cut.put(both, 1, [2 * rows for rows in split])
        cut.put(here.get("ffn_gate_up_exps.bias"), 0, [2 * rows for rows in split])
    cut.put(up, 1, split)
    cut.put(gate, 1, split)
    cut.put(here.get("ffn_down_exps.bias"), -1, split)
    if both is None:
        cut.put(here.get("ffn_up_exps.bias"), 0, split)
        cut.put(here.get("ffn_gate_exps.bias"), 0, split)
    return split
