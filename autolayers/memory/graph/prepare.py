"""From placed weights and caches to the setting of a graph."""

from __future__ import annotations

from ...backends import backend
from ...backends.cpu_graph import ALIGNMENT as CPU_ALIGNMENT
from ...backends.cpu_graph import Cpu
from ...backends.cuda_graph import Cuda
from ...backends.plain_graph import Plain
from ...gguf import BY_NAME
from ..weights import HOST
from .llm import Cache, Llm, States
from .reserve import N_COPIES, Setting
from .tensor import Buffer, Tensor, block_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...model import Model
    from ...params import Params
    from ..cache import Cache as CacheLayout
    from ..cache import Memory
    from ..context import Context
    from ..weights import Lot, Placement
    from .archs import Builder

# their indexer keys are rotated whatever the cache's type
_ROTATED_INDEXERS = ("deepseek32", "deepseek4", "glm-dsa", "dots3note")


def prepare(model: Model, params: Params, context: Context, placement: Placement, memory: Memory,
            build: Builder) -> Setting:
    """Everything `reserve` needs, for one launch."""
    hp = model.hparams
    backends: list[Any] = []
    for i, device in enumerate(placement.devices):
        row = backend(device.backend)
        if row.name in ("CUDA", "ROCm", "MUSA"):
            backends.append(Cuda(i, device.name, device.compute_capability))
        else:
            backends.append(Plain(i, device.name, row))
    pinned = backend(placement.devices[0].backend).host_buffer if placement.devices else ""
    host = Buffer(pinned or HOST, -1, CPU_ALIGNMENT, host=True)
    backends.append(Cpu(host))
    buffers = {device.name: backends[i].buffer for i, device in enumerate(placement.devices)}
    buffers[host.name] = host
    borrowed = placement.target.buffers if placement.target is not None else ()
    for name in {HOST, "CPU_REPACK", *placement.buffers, *borrowed}:
        if name not in buffers:
            buffers[name] = Buffer(name, -1, CPU_ALIGNMENT, host=name != "CPU_REPACK", repack=name == "CPU_REPACK")
    index = {device.name: i for i, device in enumerate(placement.devices)}
    dev_layer = [index.get(name, len(backends) - 1) for name in placement.dev_layer]
    wanted = params.n_gpu_layers
    full = wanted is None or wanted < 0 or wanted > hp.n_layer_all
    pipeline = (len(placement.devices) > 1 and full and context.split_mode == "layer" and context.offload_kqv
                and not params.overrides)
    # of an MTP context one block is built, none repeats
    kinds = outlines = places = list(range(hp.n_layer_all))
    if context.kind != "mtp":
        kinds, outlines, places = _kinds(model, placement, dev_layer, context.layer_inputs, build)
    return Setting(
        hparams=hp, context=context, build=build, weights=lambda: _weights(model, placement, buffers),
        caches=lambda llm: _caches(llm, memory, context, hp, buffers), backends=backends, dev_layer=dev_layer,
        full_offload=full, kinds=kinds[:hp.n_layer], outlines=outlines[:hp.n_layer], places=places[:hp.n_layer],
        learned=model.memo.setdefault("layers", {}), begun=model.memo.setdefault("begun", {}),
        launch=(params, context, placement.lots, placement.dev_layer), n_copies=N_COPIES if pipeline else 1)


def _weights(model: Model, placement: Placement, buffers: dict[str, Buffer]) -> Callable[[str], Tensor | None]:
    """A lookup of weights for one graph. "name@il": the copy beside layer `il` (rope factors)."""
    made: dict[object, Tensor | None] = {}

    def weight(name: str) -> Tensor | None:
        if name in made:
            return made[name]
        base, at, il = name.partition("@")
        if base.startswith("target."):       # a draft's target lends it
            base = base[7:]
            theirs = placement.target
            placed = None if theirs is None else theirs.output if base == "output.weight" else theirs.lookup(base)
        elif base == "output.weight" and model.row.tied != "never":
            placed = placement.output
        else:
            placed = placement.lookup(base, int(il)) if at else placement.lookup(base)
        if placed is None:
            made[name] = None
            return None
        key = (base, placed.buffer)
        tensor = made.get(key)
        if tensor is None:
            info = placed.info
            tensor = Tensor("NONE", info.type if info.type in BY_NAME else "f32", info.ne)
            tensor.name = base
            tensor.buffer = buffers[placed.buffer]
            tensor.weight = True
            made[key] = tensor
        made[name] = tensor
        return tensor

    return weight


class _Layers(dict):  # type: ignore[type-arg]
    """Cache tensors by layer, made when a graph first asks for them."""

    def __init__(self, layout: CacheLayout, buffers: dict[str, Buffer], names: tuple[str, ...]) -> None:
        self._layout = layout
        self._buffers = buffers
        self._names = names
        self._made: dict[int, Any] = {}

    def __missing__(self, il: int) -> Any:
        layer = self._layout.layer(il)
        if layer is None:
            raise KeyError(il)
        made = self._made.get(layer.il)
        if made is None:
            made = self._made[layer.il] = tuple(self._tensor(getattr(layer, name)) for name in self._names)
        self[il] = made
        return made

    def _tensor(self, info: Any) -> Tensor | None:
        if info is None:
            return None
        tensor = Tensor("NONE", info.type, info.ne)
        tensor.name = info.name
        tensor.buffer = self._buffers[info.buffer]
        return tensor


def _caches(llm: Llm, memory: Memory, c: Context, hp: Any, buffers: dict[str, Buffer]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    own = hp
    if memory.owner is not None:             # lent, with the rotations of whoever made them
        hp, c = memory.owner
    for layout in memory.caches:
        if layout.kind == "recurrent" or layout.kind.endswith("-state"):
            names = ("r", "s", "p") if layout.kind == "recurrent" else ("kv", "score")
            found[layout.kind] = States(layout.n_cells, _Layers(layout, buffers, names))
            continue
        indexer = layout.kind in ("lid", "idx")
        k_heads = {hp.indexer_head_size if indexer else hp.head_k(layer.il) for layer in layout.layers}
        v_heads = {hp.head_v(layer.il) for layer in layout.layers}
        k_all = k_heads.pop() if len(k_heads) == 1 else 0
        v_all = v_heads.pop() if len(v_heads) == 1 else 0
        first_k = hp.indexer_head_size if indexer else hp.head_k(0)
        rotate_k = k_all > 0 and block_size(c.type_k) > 1 and first_k % 64 == 0
        if hp.architecture.name in _ROTATED_INDEXERS and \
                (indexer or hp.n_embd_head_k_full == hp.indexer_head_size):
            rotate_k = True
        rotate_v = v_all > 0 and block_size(c.type_v) > 1 and hp.head_v(0) % 64 == 0
        found[layout.kind] = Cache(
            llm, layout.n_cells, 1 if llm.use.get("one_stream") else layout.n_stream, _Layers(layout, buffers, ("k", "v")), llm.c.v_trans,
            _rotation(k_all) if rotate_k else 0, 64 if rotate_v else 0, own.n_embd_v_gqa_max)
    return found


def _rotation(head: int) -> int:
    """build_input_k_rot: the largest power of two, from 64 on, that divides the head."""
    side = 128
    while head > 0 and head % side == 0:
        side *= 2
    return side // 2


def _kinds(model: Model, placement: Placement, dev_layer: list[int], read: tuple[int, ...], build: Builder) -> tuple[list[Any], list[Any], list[Any]]:
    """Per layer everything its nodes depend on, so that equal kinds build equal nodes; and that where of the types
    of host weights only f32 is told from the others."""
    hp = model.hparams
    static = model.memo.get("kinds")
    if static is None:
        tensors: dict[int, list[object]] = {}
        for weight in model.weights:
            before, block, name = weight.info.name.partition("blk.")     # T5 has enc.blk. and dec.blk.
            if weight.layer == "repeating" and block:
                name = before + name.partition(".")[2]
                tensors.setdefault(weight.block, []).append((name, weight.info.ne))
        special = getattr(build, "kind", None)
        numbers: dict[object, int] = {}
        static = []
        limits = [hp.get(f"swiglu_clamp_{which}") for which in ("exp", "shexp")]
        for il in range(hp.n_layer_all):
            facts = (tuple(tensors.get(il, ())), hp.is_swa(il), hp.is_recr(il), hp.has_rope(il), hp.n_head(il),
                     hp.n_head_kv(il), hp.n_ff(il), hp.n_expert_used(il), hp.has_kv(il), hp.has_indexer(il),
                     hp.compress_ratios[il:il + 1], il < hp.n_deepstack_layers,
                     *(x[il:il + 1] for x in limits if isinstance(x, tuple)),
                     special(hp, il) if special is not None else None)
            static.append(numbers.setdefault(facts, len(numbers)))
        model.memo["kinds"] = static
    # a weight's type matters only where the weight may be copied: on its own device it is just there
    on_device = {device.name for device in placement.devices}
    known: dict[Lot, list[tuple[int, int, int, tuple[bool, ...]]]] = model.memo.setdefault("kinds of lots", {})
    numbers = model.memo.setdefault("numbers", {})       # short names of long tuples
    places: list[Any] = [()] * hp.n_layer_all
    types: list[Any] = [()] * hp.n_layer_all
    plain: list[Any] = [()] * hp.n_layer_all             # which of the types are f32
    for lot in placement.lots:
        rows = known.get(lot)
        if rows is None:
            rows = known[lot] = []
            for il in dict.fromkeys(placed.block for placed in lot.tensors.values()):
                mine = [placed for placed in lot.tensors.values() if placed.block == il]
                host = [placed.info.type for placed in mine if placed.buffer not in on_device]
                place, names = [numbers.setdefault(facts, len(numbers)) for facts in (tuple([p.buffer for p in mine]), tuple(host))]
                if 0 <= il < hp.n_layer_all:
                    rows.append((il, place, names, tuple([name == "f32" for name in host])))
        for il, place, names, f32 in rows:
            places[il], types[il], plain[il] = (*places[il], place), (*types[il], names), (*plain[il], *f32)
    where = [(dev_layer[il], places[il]) for il in range(hp.n_layer_all)]
    outlines = [(static[il], where[il], il in read, plain[il]) for il in range(hp.n_layer_all)]
    return [(outline, types[il]) for il, outline in enumerate(outlines)], outlines, where
