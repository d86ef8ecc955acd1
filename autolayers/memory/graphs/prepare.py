"""From placed weights and caches to the setting of a graph."""

from __future__ import annotations

from ...backends import CPU, HOST, K_QUANTS, REPACK, Backend, Cpu, on, together
from ...ggml.tensor import Buffer, Tensor, block_size
from ...ggml.types import IK_NAMES
from ...gguf import BY_NAME
from ...graph.inputs import CacheView, StateView
from ...records import replace
from .laid_out import GraphCache, Setting
from .repeats import Layers
from .reserve import N_COPIES, structures_of
from .scheduled import within_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ...graph import Builder
    from ...graph.llm import Llm
    from ...model import Model
    from ...model.hparams import Hparams
    from ..cache import Cache as CacheLayout
    from ..cache import CacheTensor, Memory
    from ..context import Context
    from ..loaded import Loaded
    from ..weights import Placement

_FEW = 12  # layers of a model whose graph is never shortened


def prepare(
    loaded: Loaded,
    build: Builder,
    cache: GraphCache,
    weights: type[Weights] | None = None,
) -> Setting:
    """Return everything `reserve` needs, for one launch. `weights`: what looks them up."""
    lookup = weights or Weights
    model, context, placement, memory = (
        loaded.model,
        loaded.context,
        loaded.placement,
        loaded.memory,
    )
    hp = model.hparams
    backends, pinned = _backends(placement, context)
    buffers = _buffers(placement, backends, pinned)
    # layers in RAM are the last backend's
    index = {device.name: i for i, device in enumerate(placement.devices)}
    dev_layer = [index.get(name, len(backends) - 1) for name in placement.dev_layer]
    setting = Setting(
        hparams=hp,
        context=context,
        build=build,
        weights=lambda: lookup(model, placement, buffers, cache.absent).__getitem__,
        caches=_Caches(memory, context, hp, buffers).of,
        backends=backends,
        dev_layer=dev_layer,
        full_offload=_offloads_all(loaded),
        cache=cache,
        n_tensors=len(model.tensors),
        places=(*[device.name for device in placement.devices[: len(backends) - 1]], HOST),
        n_copies=N_COPIES if pipelined(loaded) else 1,
        slots=memory.slots,
        host_buffer=buffers[HOST],
    )
    # a short model's layers count as all different, so its graphs are built whole
    structures = range(hp.n_layer) if hp.n_layer < _FEW else structures_of(setting)
    hosts = frozenset(
        [name for name, buffer in buffers.items() if buffer.device < 0 and not buffer.repack]
    )
    outside, many, few, alike = _alike(hp.n_layer, context, placement, memory, cache, hosts)
    # a draft's graph reads its target's tensors too, and slices differ by -ts: no shared results
    if placement.target is not None or memory.owner is not None or placement.slices:
        outside = loaded.params, placement.groups

    def numbers(rows: Sequence[Hashable]) -> list[int]:
        return [cache.number(key) for key in zip(structures, rows, strict=True)]

    return replace(
        setting,
        # All that decides a graph besides its shape and its layers (Graphs.key): launches of a
        # search that are equal here share their results.
        outside=(
            setting.full_offload,
            setting.n_copies,
            context,
            tuple(dev_layer[hp.n_layer :]),
            outside,
            tuple([(backend.kind, backend.max_size) for backend in backends]),
            tuple([device.name for device in placement.devices]),
            tuple([(layout.kind, layout.n_cells, layout.n_stream) for layout in memory.caches]),
        ),
        many=Layers.of(numbers(many), numbers(alike), _FEW),
        few=Layers.of(numbers(few), numbers(alike), _FEW),
    )


def _backends(placement: Placement, context: Context) -> tuple[list[Backend], list[Buffer]]:
    """Return the backends of a launch, the CPU last, and the pinned memory of the devices."""
    backends: list[Backend] = [
        on(device, i, context.rules) for i, device in enumerate(placement.devices)
    ]
    # -sm tensor: llama.cpp's scheduler sees one meta device instead of the GPUs
    if placement.slices:
        backends = [together(placement.devices, context.rules)]
    # The CPU comes last, as in llama_context's constructor, and its graph buffer is the pinned
    # memory of the first device that has some: results of the host are copied to GPUs faster from
    # it.
    pinned = [buffer for backend in backends if (buffer := backend.host_buffer_type())]
    backends.append(Cpu(pinned[0] if pinned and backends[0].host_buffer else None, context.rules))
    return backends, pinned


def _buffers(
    placement: Placement, backends: Sequence[Backend], pinned: Sequence[Buffer]
) -> dict[str, Buffer]:
    """Return every buffer that weights and caches of the launch are in, by name."""
    # in reverse, so that the first device's pinned memory wins where several have the same name
    buffers = {
        buffer.name: buffer
        for buffer in (*reversed(pinned), *(backend.buffer for backend in backends))
    }
    borrowed = placement.target.buffers if placement.target is not None else ()
    # a draft reads tensors of its target that may be on devices which the draft does not use
    for name in {HOST, REPACK, *placement.buffers, *borrowed}:
        if name not in buffers:
            buffers[name] = Buffer(
                name, -1, CPU.alignment, host=name != REPACK, repack=name == REPACK
            )
    return buffers


def _alike(
    n_layer: int,
    context: Context,
    placement: Placement,
    memory: Memory,
    cache: GraphCache,
    hosts: frozenset[str],
) -> tuple[Hashable, list[Hashable], list[Hashable], list[Hashable]]:
    """Return what the weights outside of the layers are like, and what the weights and caches of
    each layer are: where weights in RAM may be copied, where they are not, and whatever the
    weights' types. `hosts`: buffers that are in RAM."""
    # layer -> what its groups are like, in three degrees
    groups: dict[int, list[tuple[int, int, int]]] = {}
    # launches of a model share these objects, so each is looked at once
    for group in placement.groups:
        if group not in cache.groups:
            # what a group's weights are like in three degrees, as hashes: with the types of those
            # that may be copied, without those, and without any type
            facts: tuple[list[Hashable], list[Hashable], list[Hashable]] = [], [], []
            for name, tensor in group.tensors.items():
                # "blk.12.ffn_up_exps.weight" -> "ffn_up_exps.weight"
                short = within_block(name)
                # K quants run on the same kernels, so one stands for all where no bytes are copied
                info, alike = tensor.info, "K" if tensor.info.type in K_QUANTS else tensor.info.type
                # op offload copies a weight into the compute buffer: its size, so its type, decides
                copied = tensor.buffer in hosts
                facts[0].append((short, info.type if copied else alike, info.ne, tensor.buffer))
                facts[1].append((short, alike, info.ne, tensor.buffer))
                facts[2].append((short, info.ne, tensor.buffer))
            cache.groups[group] = (
                hash(tuple(facts[0])),
                hash(tuple(facts[1])),
                hash(tuple(facts[2])),
            )
        groups.setdefault(group.layer, []).append(cache.groups[group])
    beyond = [layer for layer in groups if not 0 <= layer < n_layer]
    outside = tuple([(layer, *[many for many, _, _ in groups[layer]]) for layer in beyond])
    rows: tuple[list[Hashable], list[Hashable], list[Hashable]] = [], [], []
    for il in range(n_layer):
        row = (
            placement.dev_layer[il],
            il in context.layer_inputs,
            _caches_of(memory, il),
            (memory.slots or {}).get(il, 0),
        )
        for i in range(3):
            rows[i].append((*row, *[each[i] for each in groups.get(il, ())]))
    return outside, *rows


def _caches_of(memory: Memory, il: int) -> Hashable:
    """Return what the caches of a layer are like: kind, owning layer, tensors."""
    rows = []
    for layout in memory.caches:
        layer = layout.layer(il)
        if layer is not None:
            tensors = tuple([(tensor.type, tensor.ne, tensor.buffer) for tensor in layer.tensors])
            rows.append((layout.kind, layer.il != il and layer.il, tensors))
    return tuple(rows)


def _offloads_all(loaded: Loaded) -> bool:
    # n_gpu_layers() > n_layer_all: the output layer is counted too; -1 and None mean everything
    wanted = loaded.params.n_gpu_layers
    return wanted is None or wanted < 0 or wanted > loaded.model.hparams.n_layer_all


def pipelined(loaded: Loaded) -> bool:
    """Whether prompts are pipelined over the devices, with copies of each input: pipeline_parallel
    of llama_context's constructor."""
    context, devices = loaded.context, loaded.placement.devices
    if not context.rules.engine.pipelines:
        return False
    # the conditions of llama_context's constructor
    if len(devices) < 2 or context.split_mode != "layer" or not context.offload_kqv:
        return False
    if loaded.params.overrides or context.moe_cache or not _offloads_all(loaded):
        return False
    # caps.async and caps.events: OpenCL and CANN lack them, others did in older builds
    return all(on(device, rules=context.rules).pipelines() for device in devices)


class Weights(dict):  # type: ignore[type-arg]
    """Weights of one graph by name, None where the file has none. "name@il": the copy on the device
    of layer `il` (rope factors)."""

    def __init__(
        self,
        model: Model,
        placement: Placement,
        buffers: dict[str, Buffer],
        absent: dict[str, None],
    ) -> None:
        """`absent`: names that the file is known to lack; it grows."""
        # a dict: graphs look up each name of each layer, mostly one that is known already
        super().__init__(absent)
        self._model, self._placement, self._buffers, self._absent = (
            model,
            placement,
            buffers,
            absent,
        )
        self._made: dict[tuple[str, str], Tensor] = {}

    def __missing__(self, name: str) -> Tensor | None:
        """Return the tensor of a weight on the buffer where it was placed, None if the file has
        none."""
        # "rope_freqs.weight@7" -> the name, "@", "7"
        base, at, il = name.partition("@")
        placement = self._placement
        if base.startswith("target."):  # of a draft's target
            base = base[7:]
            theirs = placement.target
            placed = (
                None
                if theirs is None
                else theirs.output
                if base == "output.weight"
                else theirs.lookup(base)
            )
        # a tied output: the copy of token_embd on the output's device
        elif base == "output.weight" and self._model.row.tied != "never":
            placed = placement.output
        else:
            placed = placement.lookup(base, int(il)) if at else placement.lookup(base)
            # e.g. a bias that this file has not: asked for in every graph, so remembered
            if placed is None and base not in self._model.tensors:
                made = self.lacking(base)
                if made is None:
                    self._absent[name] = None
                self[name] = made
                return made
        if placed is None:
            self[name] = None
            return None
        # one tensor for all that read it: the scheduler then copies it once per device
        key = (base, placed.buffer)
        tensor = self._made.get(key)
        if tensor is None:
            info = placed.info
            tensor = Tensor(
                "NONE",
                # f32 stands for an unknown type; such a model is inexact
                info.type if info.type in BY_NAME or info.type in IK_NAMES else "f32",
                info.ne,
            )
            tensor.name = base
            tensor.buffer = self._buffers[placed.buffer]
            tensor.weight = True
            self._made[key] = tensor
        self[name] = tensor
        return tensor

    def lacking(self, name: str) -> Tensor | None:
        """Return what stands for a weight that the file has not."""
        return None


class _Layers(dict):  # type: ignore[type-arg]
    """Cache tensors by layer, made when a graph first asks for them."""

    def __init__(
        self, layout: CacheLayout, buffers: dict[str, Buffer], names: tuple[str, ...]
    ) -> None:
        self._layout = layout
        self._buffers = buffers
        self._names = names
        self._made: dict[int, tuple[Tensor | None, ...]] = {}

    def __missing__(self, il: int) -> tuple[Tensor | None, ...]:
        layer = self._layout.layer(il)
        if layer is None:
            raise KeyError(il)
        # layers that reuse a cache get the same tensors, as copies of it are then made once
        made = self._made.get(layer.il)
        if made is None:
            made = self._made[layer.il] = tuple(
                self._tensor(getattr(layer, name), layer.il) for name in self._names
            )
        self[il] = made
        return made

    def _tensor(self, info: CacheTensor | None, il: int) -> Tensor | None:
        if info is None:
            return None
        tensor = Tensor("NONE", info.type, info.ne)
        tensor.name = f"{info.name}_l{il}"
        tensor.buffer = self._buffers[info.buffer]
        return tensor


class _Caches:
    """The caches and states of a launch's graphs; of another context's (`memory.owner`) with its
    rotations."""

    def __init__(
        self, memory: Memory, context: Context, hp: Hparams, buffers: dict[str, Buffer]
    ) -> None:
        self.buffers, self.v_trans, self.n_embd_v_gqa_max = (
            buffers,
            context.v_trans,
            hp.n_embd_v_gqa_max,
        )
        owner, theirs = memory.owner or (hp, context)
        self.states = [
            (layout, ("r", "s", "p") if layout.kind == "recurrent" else ("kv", "score"))
            for layout in memory.caches
            if layout.recurrent
        ]
        self.caches = [
            (layout, *_rotations(layout, theirs, owner))
            for layout in memory.caches
            if not layout.recurrent
        ]

    def of(self, llm: Llm) -> tuple[dict[str, CacheView], dict[str, StateView]]:
        """Return new tensors for one graph."""
        # a micro-batch of one sequence sees its own stream of the cache
        alone = llm.fused_ops.get("one_stream")
        caches = {
            layout.kind: CacheView(
                llm.graph,
                layout.n_cells,
                1 if alone else layout.n_stream,
                _Layers(layout, self.buffers, ("k", "v")),
                self.v_trans,
                k_rot,
                v_rot,
                self.n_embd_v_gqa_max,
            )
            for layout, k_rot, v_rot in self.caches
        }
        states = {
            layout.kind: StateView(layout.n_cells, _Layers(layout, self.buffers, names))
            for layout, names in self.states
        }
        return caches, states


def _rotations(layout: CacheLayout, c: Context, hp: Hparams) -> tuple[int, int]:
    """Return the sides of the Hadamard matrices of a quantised cache's keys and values, 0: none."""
    indexer = layout.kind in ("lid", "idx")
    k_head, v_head = _heads(layout, hp) if c.rules.rotates_apart else _equal_heads(hp)
    # llama_kv_cache asks layer 0 for the head's size (n_embd_head_k()), whatever this cache holds
    first_k = hp.indexer_head_size if indexer else hp.head_k(0)
    # a Hadamard matrix spreads outliers over a head before it is quantised; queries turn with it
    rotates_k = k_head > 0 and block_size(c.type_k) > 1 and first_k % 64 == 0
    rotates_v = v_head > 0 and block_size(c.type_v) > 1 and hp.head_v(0) % 64 == 0
    side_k = _rotation(k_head) if c.rules.rotates_cache and rotates_k else 0
    # llama_kv_cache compares the model's own head, so equal sizes rotate the main cache too
    of_indexer = indexer or hp.n_embd_head_k_full == hp.indexer_head_size
    if hp.architecture.rotated_indexer and of_indexer:
        side_k = _rotation(k_head)
    # V takes the smallest matrix: better in llama.cpp's own measurements (#21038)
    return side_k, 64 if c.rules.rotates_cache and rotates_v else 0


def _heads(layout: CacheLayout, hp: Hparams) -> tuple[int, int]:
    """Return the sizes of the heads of K and V in a cache, 0 if its layers differ."""
    if layout.kind in ("lid", "idx"):
        k_heads = {hp.indexer_head_size for _ in layout.layers}
    else:
        k_heads = {hp.head_k(layer.il) for layer in layout.layers}
    v_heads = {hp.head_v(layer.il) for layer in layout.layers}
    return _only(k_heads), _only(v_heads)


def _only(sizes: set[int]) -> int:
    """Return the one size, 0 if there are several or none."""
    return next(iter(sizes)) if len(sizes) == 1 else 0


def _equal_heads(hp: Hparams) -> tuple[int, int]:
    """Return the sizes of the heads of K and V, 0 if the layers' rows differ.

    is_n_embd_k_gqa_variable, of all layers, whatever this cache holds.
    """
    layers = range(hp.n_layer_all)
    k_varies = len({hp.n_embd_k_gqa(il) for il in layers}) != 1
    v_varies = len({hp.n_embd_v_gqa(il) for il in layers}) != 1
    return 0 if k_varies else hp.head_k(0), 0 if v_varies else hp.head_v(0)


def _rotation(head: int) -> int:
    """Return the largest power of two, from 64 on, that divides the head (build_input_k_rot)."""
    # e.g. 128 for a head of 128 or 384, 64 for 192
    side = 128
    while head > 0 and head % side == 0:
        side *= 2
    return side // 2
