"""ik_llama.cpp's cache: llama_kv_cache_init and llama_model::cache_size (src/llama.cpp,
src/llama-model.cpp, 8337e4cd).

One cache of n_ctx cells serves all sequences, in every layer; K has a row for each head and
position, V is one row.
"""

from __future__ import annotations

from ....backends import CPU, HOST, on
from ....errors import LaunchRefused
from ....ggml.tensor import block_size
from ....ggml.types import is_quantised
from ....gguf import n_bytes, row_size
from ....memory.cache import Cache, CacheTensor, Memory
from ....records import dataclass
from ..architectures import has

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ....flags.params import Params
    from ....memory.cache import Tensors
    from ....memory.context import Context
    from ....memory.weights import Placement
    from ....model import Hparams, Model
    from .. import Said

    Part = tuple[str, str, tuple[int, int]]  # name, type, elements of a row, rows


_PADDED = 512  # MATRIX_ROW_PADDING: a cut row is filled up to it, whatever its type


@dataclass(frozen=True)
class Heads:
    """What each device keeps of a layer: rows of K and of V, or the whole latent cache. By
    layer."""

    rows: tuple[tuple[tuple[int, int], ...] | None, ...]
    # (tensor, dimension or -1: all of it, rows of each)
    parts: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
    whole: bool = True  # no tensor of a layer that is cut is elsewhere


def row_padding(type_: str, ne0: int) -> int:
    if ne0 % _PADDED == 0:
        return 0
    return row_size(type_, -(-ne0 // _PADDED) * _PADDED) - row_size(type_, ne0)


_MLA_WANTS = "-sm graph for MLA archs (DEEPSEEK2/GLM_DSA/MISTRAL4) requires -fa on and -mla >= 1"


def latent_heads(hp: Hparams, architecture: str) -> tuple[int, int] | None:
    """Return the elements of a head's keys and values as if there were no latent cache; None for
    other attention."""
    if not has(architecture, "mla") or not hp.n_lora_kv:
        return None
    return (
        hp.n_embd_head_k_mla or hp.n_embd_head_k_full,
        hp.n_embd_head_v_mla or hp.n_embd_head_v_full,
    )


def derived_type(source: str) -> str:
    """Return the type of what llm_prepare_mla makes of a weight."""
    return "q8_0" if is_quantised(source) else source


def is_latent(model: Model) -> bool:
    return latent_heads(model.hparams, model.architecture) is not None


def estimated(model: Model, params: Params, settings: Said, mla: int, il: int, n_ctx: int) -> int:
    """Return the bytes of one layer as llm_load_tensors counts them, before anything is padded."""
    hp = model.hparams
    type_k, type_v = (
        settings.type_k or params.cache_type_k or "f16",
        settings.type_v or params.cache_type_v or "f16",
    )
    # f32, one row for each sequence
    if hp.is_recr(il):
        return 4 * (hp.n_embd_r() + hp.n_embd_s()) * min(max(1, params.n_parallel or 1), n_ctx)
    if is_latent(model) and mla:
        width = hp.n_lora_kv + hp.n_rot(il)
        if params.flash_attn != "off":
            return row_size(type_k, width) * n_ctx
        more = row_size(type_v, hp.n_lora_kv * n_ctx) if mla == 1 else 0
        return row_size(type_k if mla == 1 else type_v, width) * n_ctx + more
    head, heads, width = _heads(model, il)
    return row_size(type_k, head) * heads * n_ctx + row_size(type_v, width) * n_ctx


def _heads(model: Model, il: int) -> tuple[int, int, int]:
    """Return (elements of a head of K, heads, elements of V) at each position."""
    hp = model.hparams
    latent = latent_heads(hp, model.architecture)
    if latent is not None:
        return latent[0], hp.n_head(il), latent[1] * hp.n_head(il)
    return hp.head_k(il), hp.n_head_kv(il), hp.n_embd_v_gqa(il)


def allocate(
    model: Model, context: Context, placement: Placement, settings: Said, mla: int
) -> Memory:
    """Return every layer's cache on its device. Raises LaunchRefused where it aborts."""
    hp = model.hparams
    rows = {device.name: on(device) for device in placement.devices}
    buffers: dict[str, int] = {}
    heads = placement.heads if isinstance(placement.heads, Heads) else None
    layers: list[tuple[int, Tensors]] = []
    states: list[tuple[int, Tensors]] = []
    for il in range(hp.n_layer):
        where = placement.dev_layer[il] if context.offload_kqv else HOST
        recurrent = hp.is_recr(il)
        made: dict[str, CacheTensor] = {}
        parts = list(_parts(model, context, settings, mla, il))
        rows_of = (
            heads.rows[il] if heads is not None and context.offload_kqv and not recurrent else None
        )
        if rows_of is not None:
            _cut(buffers, placement, parts, rows_of, context.n_ctx, is_latent(model) and mla > 0)
            continue
        for name, type_, (width, count) in parts:
            ne = (width, count, 1, 1)
            size = rows.get(where, CPU).padded(type_, ne, n_bytes(type_, ne))
            buffers[where] = buffers.get(where, 0) + size
            made[name] = CacheTensor(f"cache_{name}", type_, ne, where, size)
        # keys of glm-dsa's indexer (indexer_is_full of llm_load_hparams)
        full = model.architecture == "glm-dsa" and (il <= 1 or il % 4 == 2)
        keys = f"blk.{il}.indexer.attn_k.weight" in model.tensors
        if is_latent(model) and mla and full and keys:
            ne = (hp.indexer_head_size, context.n_ctx, 1, 1)
            buffers[where] = buffers.get(where, 0) + n_bytes("f16", ne)
        if made:
            (states if recurrent else layers).append((il, made))
    caches = [Cache("attn", context.n_ctx, 1, tuple(layers), {})] if layers else []
    if states:
        caches.append(
            Cache("recurrent", min(max(1, context.n_seq_max), context.n_ctx), 1, tuple(states), {})
        )
    return Memory(tuple(caches), buffers)


def _cut(
    buffers: dict[str, int],
    placement: Placement,
    parts: Sequence[Part],
    rows: Sequence[tuple[int, int]],
    cells: int,
    latent: bool,
) -> None:
    """Add the caches of -sm graph: each device's heads, or all of the latent cache."""
    for device, (keys, values) in zip(placement.devices, rows, strict=True):
        if not keys and not values:
            continue
        for name, type_, (width, count) in parts:
            if not latent:
                width, count = (
                    (width, keys // width * cells) if name == "k" else (values * cells, 1)
                )
            size = n_bytes(type_, (width, count, 1, 1)) + row_padding(type_, width)
            buffers[device.name] = buffers.get(device.name, 0) + size


def types(context: Context, settings: Said, il: int, n_layer: int) -> tuple[str, str]:
    """Return the types of K and V in a layer; those of the first and the last ones may be given
    apart."""
    types_of = {"k": settings.type_k or context.type_k, "v": settings.type_v or context.type_v}
    # the last of several flags for one end wins
    ends = {end: (type_, count) for end, type_, count in settings.ends}
    for end in ("first", "last"):
        for letter in "kv":
            type_, count = ends.get(f"{letter}-{end}", ("", 0))
            inside = il < count if end == "first" else il >= n_layer - count
            if count and inside:
                types_of[letter] = type_
    return types_of["k"], types_of["v"]


def _parts(model: Model, context: Context, settings: Said, mla: int, il: int) -> Iterator[Part]:
    hp, cells, flash = model.hparams, context.n_ctx, context.flash_attn != "off"
    if hp.is_recr(il):
        slots = min(max(1, context.n_seq_max), cells)
        yield "s", "f32", (hp.n_embd_r() + hp.n_embd_s(), slots)
        return
    type_k, type_v = types(context, settings, il, hp.n_layer)
    if is_latent(model) and mla:
        k, v = settings.type_k or context.type_k, settings.type_v or context.type_v
        width = hp.n_lora_kv + hp.n_rot(il)
        # -mla 2 and 3 without flash attention keep the latent in V's type (mla == 1: a V
        # of its own)
        yield "k", k if flash or mla == 1 else v, (width, cells)
        if not flash and mla == 1:
            yield "v", v, (hp.n_lora_kv * cells, 1)
        return
    if not hp.has_kv(il):
        return
    head, heads, width = _heads(model, il)
    yield "k", type_k, (head, heads * cells)
    yield "v", type_v, (width * cells, 1)


def refuse(model: Model, context: Context, settings: Said, mla: int) -> None:
    """Raise LaunchRefused with its words where the context is refused or ends at once."""
    hp = model.hparams
    latent = is_latent(model) and mla > 0
    types_v = [types(context, settings, il, hp.n_layer)[1] for il in range(hp.n_layer)]
    cuts_latent = bool(settings.split) and is_latent(model)
    # an encoder has a cache too, which its attention does not read
    reads_v = hp.causal and not latent and model.row.memory != "recurrent"
    if context.flash_attn == "off":
        # refuse types of V that only flash attention reads
        if any(is_quantised(type_) for type_ in types_v):
            raise LaunchRefused("Quantized V cache cannot be used without flash attention")
        if "f32" in types_v:
            raise LaunchRefused("V cache quantization requires flash_attn")
        if cuts_latent and has(model.architecture, "mla_cut"):
            raise LaunchRefused(_MLA_WANTS)
    elif cuts_latent and mla < 1:
        raise LaunchRefused(_MLA_WANTS)
    elif "q8_KV" in types_v and reads_v:
        raise LaunchRefused("-ctv q8_KV: it aborts with it and flash attention; as -ctk it works")
    if cuts_latent and not context.offload_kqv:
        raise LaunchRefused(
            "-nkvo: build_deepseek2_tp_attention of layers that are cut ends without the cache on "
            "their GPUs (GGML_ASSERT(cache_repl))"
        )
    if settings.split and model.architecture == "gemma4" and not hp.n_embd_per_layer:
        raise LaunchRefused(
            "-sm graph: how it cuts gemma4's layers is not modelled, so nothing is planned for it: "
            "give -sm layer"
        )
    type_k = types(context, settings, 0, hp.n_layer)[0]
    head = _heads(model, 0)[0] if not latent else hp.n_lora_kv + hp.n_rot(0)
    if head % block_size(type_k):
        raise LaunchRefused(
            f"-ctk {type_k}: the head size of {head} is not a multiple of its block "
            "(GGML_ASSERT of llama_init_from_model)"
        )
