"""The buffers of ik_llama.cpp's one reserved graph (llama_init_from_model, 8337e4cd)."""

from __future__ import annotations

from ....backends import CPU, HOST, Backend, on
from ....backends.cuda import Cuda
from ....ggml.allocator import Arena
from ....ggml.tensor import Buffer, Tensor
from ....memory.graphs.prepare import Weights
from ..architectures import has, split_of
from .cache import Heads, derived_type, is_latent, latent_heads
from .cut import CutBuilder
from .families import FAMILIES
from .graph import Builder
from .placer import elsewhere
from .scheduler import buffer_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....machine import Device
    from ....memory.cache import Memory
    from ....memory.context import Context
    from ....memory.weights import Placement
    from ....model import Model
    from .. import Said
    from .graph import Family

_BY_EIGHT = frozenset(["iq4_xs", "q4_0", "q8_0", "q8_K", "q8_KV", "mxfp4"])
_REPACKED_TEXT = """
iq2_k iq3_k iq4_k iq5_k iq4_ks iq5_ks iq4_nl iq2_bn iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s
q2_K q3_K q4_K q5_K q6_K q5_0 q6_0
"""
_REPACKED = frozenset(_REPACKED_TEXT.split()) | _BY_EIGHT
_KEPT = ("token_embd.weight", "per_layer_token_embd.weight")
# what building a graph of tensors that contradict the keys may raise
_BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


def reserved(
    model: Model,
    context: Context,
    placement: Placement,
    memory: Memory,
    settings: Said,
    mla: int,
    main: int = 0,
) -> tuple[tuple[int, ...], bool] | None:
    """Return (bytes on each device and, last, in RAM, exactly so); None where its graph is not
    modelled. `memory`: its own caches, `main`: the GPU that computes with -sm none."""
    family = FAMILIES.get(model.architecture)
    if family is None or not _modelled(model, context, placement, settings):
        return None
    several = len(placement.devices) > 1
    used = (
        placement.devices[main : main + 1]
        if several and context.split_mode == "none"
        else placement.devices
    )
    try:
        sizes = _sizes(model, context, placement, memory, settings, family, mla, used, main)
        on_device = dict(zip([device.name for device in used], sizes, strict=False))
        whole = (*[on_device.get(device.name, 0) for device in placement.devices], sizes[-1])
        # -rcache, -mqkv and -muge change the graph in ways that are bounded here, not modelled
        tabled = settings.rope_cache and has(model.architecture, "rope_table")
        if not (tabled or settings.merges or settings.merges_experts):
            return whole, True
        # what merged matrices (-mqkv, -muge) and a table of rotations (-rcache) may add to a buffer
        hp, u = model.hparams, min(context.n_ctx, context.n_ubatch)
        widths = max(
            [
                hp.n_embd_k_gqa(il) + hp.n_embd_v_gqa(il) + hp.head_k(il) * hp.n_head(il)
                for il in range(hp.n_layer)
            ]
        )
        in_ram = [
            placed.size
            for placed in placement.tensors
            if placement.is_host(placed.buffer) and placed.name.startswith("blk.")
        ]
        more = int(4 * u * (2 * widths + hp.n_embd + 2 * hp.n_rot(0))) + 2 * max(in_ram, default=0)
        return tuple([size + more if size else 0 for size in whole]), False
    except _BROKEN:
        return None


def _modelled(model: Model, context: Context, placement: Placement, settings: Said) -> bool:
    heads = placement.heads if isinstance(placement.heads, Heads) else None
    plain = context.flash_attn != "off" and context.offload_kqv
    # gated attention (attn_gate) is not cut in cut.py
    turns = any(name.endswith("attn_gate.weight") for name in model.tensors)
    follows_rules = plain and not turns and split_of(model.architecture) == "cut"
    cut = heads is not None and not (follows_rules and heads.whole)
    pooled = context.embeddings or not context.causal
    turned = settings.k_hadamard and is_latent(model)
    return not (cut or pooled or turned)


def _sizes(
    model: Model,
    context: Context,
    placement: Placement,
    memory: Memory,
    settings: Said,
    family: Family,
    mla: int,
    used: Sequence[Device],
    main: int,
) -> tuple[int, ...]:
    """Build the graph, schedule it and allocate it; return the bytes of each buffer."""
    backends = [on(device, i) for i, device in enumerate(used)]
    if not all(isinstance(backend, Cuda) for backend in backends):
        raise LookupError("a backend that is not modelled")
    host = Buffer(HOST, -1, CPU.alignment, host=True)
    buffers = {HOST: host, **{backend.buffer.name: backend.buffer for backend in backends}}
    away = {device.name for device in placement.devices} - {device.name for device in used}
    for name in {*placement.buffers, *memory.buffers}:
        # one of a GPU that does not compute is read by no backend
        buffers.setdefault(name, Buffer(name, -1, CPU.alignment, host=name not in away))
    own = [*[backend.buffer for backend in backends], host]
    at = {device.name: i for i, device in enumerate(used)}
    # norms are pinned for few tokens or with all layers on GPUs (llama_build_graph's callback)
    full = placement.n_gpu_layers > model.hparams.n_layer_all
    caches: dict[int, dict[str, Tensor]] = {}
    for layer in [layer for cache in memory.caches for layer in cache.layers]:
        # e.g. "cache_k" -> "k"
        caches[layer.il] = {
            part.name.split("_")[1]: _cached(part, buffers[part.buffer]) for part in layer.tensors
        }

    def pin(il: int) -> int:
        """Return the backend that the builder gives a layer's norm to, -1: none; of il -1 the
        CPU."""
        if il < 0:
            return len(backends)
        few = min(context.n_ctx, context.n_ubatch) < 32
        return at.get(placement.dev_layer[il], len(backends)) if full or few else -1

    lookup = IkWeights(model, placement, buffers, {})

    def weights(name: str) -> Tensor | None:
        tensor: Tensor | None = lookup[name]
        if tensor is not None and elsewhere(model.architecture, name) == "output":
            tensor.buffer = buffers[placement.dev_output]
        tied = name == "output.weight" and name not in model.tensors
        if tensor is not None and settings.repacks and not tied:
            # Repack a matrix in RAM, in a type that CUDA does not multiply (iqk_repack_tensor).
            assert tensor.buffer is not None
            # interleaved rows: 4 or 8, by type, and the matrix must divide by them
            rows = 8 if tensor.type in _BY_EIGHT else 4
            if (
                tensor.buffer.host
                and tensor.type in _REPACKED
                and tensor.name not in _KEPT
                and tensor.ne[1] % rows == 0
            ):
                tensor.type = (
                    f"{tensor.type.lower() if tensor.type.endswith('_K') else tensor.type}_r{rows}"
                )
        return tensor

    terms = family, model, context, settings, mla, weights, caches, pin, not backends
    if isinstance(placement.heads, Heads):
        last = at.get(placement.dev_output, -1)
        builder: Builder = CutBuilder(
            *terms, heads=placement.heads, buffers=own, output=last, main=main
        )
    else:
        builder = Builder(*terms)
    builder.graph.expand(family(builder))
    arenas = [Arena(backend.alignment, _alloc_size(backend)) for backend in backends]
    arenas.append(Arena(CPU.alignment, CPU.alloc_size))
    try:
        return buffer_sizes(builder.graph, own, arenas)
    finally:
        builder.graph.release()


class IkWeights(Weights):
    """With those that llm_prepare_mla makes of others, where they are."""

    def lacking(self, name: str) -> Tensor | None:
        block, _, part = name.rpartition(".attn_")
        hp = self._model.hparams
        heads = latent_heads(hp, self._model.architecture)
        if heads is None or part not in ("k_b.weight", "v_b.weight", "kv_b.weight"):
            return None
        il = int(block.split(".")[1])
        nope, value, rank, n_head = heads[0] - hp.n_rot(il), heads[1], hp.n_lora_kv, hp.n_head(il)
        source = f"{block}.attn_{'k_b' if part.startswith('kv') else 'kv_b'}.weight"
        if source not in self._model.tensors:
            return None
        of = self[source]
        ne = {
            "k": (nope, rank, n_head, 1),
            "v": (rank, value, n_head, 1),
            "kv": (rank, n_head * (nope + value), 1, 1),
        }
        made = Tensor("NONE", derived_type(of.type), ne[part.split("_")[0]])
        made.name, made.buffer, made.weight = name, of.buffer, True
        return made


def _alloc_size(backend: Backend) -> Callable[[Tensor], int]:
    """Mirror ggml_backend_cuda_buffer_type_get_alloc_size of a result."""

    def size(tensor: Tensor) -> int:
        return tensor.nbytes + backend.padding(tensor.type, tensor.ne)

    return size


def _cached(part: object, buffer: Buffer) -> Tensor:
    tensor = Tensor("NONE", part.type, part.ne)  # type: ignore[attr-defined]
    tensor.name, tensor.buffer = part.name, buffer  # type: ignore[attr-defined]
    return tensor
