"""What ik_llama.cpp (8337e4cd) allocates unlike llama.cpp, as upper bounds: where a formula holds
for some launches alone, the larger of it and of llama.cpp's own graph counts.

Sources: llm_load_tensors and llm_prepare_mla (src/llama-load-tensors.cpp), llama_kv_cache_init and
llm_build_context (src/llama.cpp, src/llama-build-context.cpp), read as facts; compared with
launches that its own library recorded.
"""

from __future__ import annotations

from ....backends import HOST
from ....errors import LaunchRefused
from ....gguf import n_bytes
from ....memory.breakdown import Extra
from .. import ABSENT_TYPES, KEYS
from ..architectures import is_known, unread
from .cache import derived_type, is_latent, latent_heads
from .placer import settings_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ....flags.params import Params
    from ....memory.cache import Memory
    from ....memory.context import Context
    from ....memory.weights import Placement
    from ....model import Model

_MANY = 128  # tokens from which on keys and values are made of the latent cache (pp_opt)


def refuse(model: Model, params: Params, context: Context) -> None:
    """Raise LaunchRefused for what it does not load."""
    name = context.rules.engine.name
    if not is_known(model.architecture) or not model.row.known:
        raise LaunchRefused(
            f"unknown model architecture: '{model.architecture}' ({name} of 2026-08-15 has it not)"
        )
    for keys in KEYS.get(model.architecture, ()):
        names = keys.split("|")
        if all(model.hparams.get(key) is None for key in names):
            raise LaunchRefused(
                f"key not found in model: {model.architecture}.{names[0]} ({name} wants it)"
            )
    if model.architecture == "t5encoder":
        # build_t5_encoder reads wq, create_tsencoder_tensors makes wq_enc
        raise LaunchRefused(f"{name} of 2026-08-15 ends where it builds the graph of t5encoder")
    shallow = f"dec.blk.{model.hparams.n_layer - 1}.attn_norm.weight"
    if model.architecture == "t5" and shallow not in model.tensors:
        raise LaunchRefused(f"tensor '{shallow}' not found: {name} wants as many layers in both")
    types = sorted({info.type for info in model.tensors.values()} & ABSENT_TYPES)
    if types:
        raise LaunchRefused(f"{name} has no tensor type {', '.join(types)}")
    more = unread(model.architecture, model.tensors)
    if more:
        count = len(model.tensors)
        raise LaunchRefused(
            f"wrong number of tensors; expected {count}, got {count - len(more)}: {name} of "
            f"2026-08-15 does not read {more[0]}, and loads no file with it"
        )


def derived(model: Model, placement: Placement, mla: int) -> Iterator[Extra]:
    """Yield attn_kv_b computed of attn_k_b and attn_v_b, or the other way, beside them, in each
    layer (llm_prepare_mla)."""
    hp = model.hparams
    heads = latent_heads(hp, model.architecture)
    if heads is None:
        return
    sizes: dict[str, int] = {}
    for il, where in enumerate(placement.dev_layer[: hp.n_layer]):
        k, v, kv = (
            model.tensors.get(f"blk.{il}.attn_{part}_b.weight") for part in ("k", "v", "kv")
        )
        size = 0
        if kv is not None and k is None and mla:
            nope, rank = heads[0] - hp.n_rot(il), kv.ne[0]
            type_ = derived_type(kv.type)
            size = n_bytes(type_, (nope, rank, hp.n_head(il), 1))
            size += n_bytes(type_, (rank, heads[1], hp.n_head(il), 1))
        elif kv is None and k is not None and v is not None and mla != 1:
            size = n_bytes(
                derived_type(k.type),
                (v.ne[0], (k.n_elements + v.n_elements) // v.ne[0], 1, 1),
            )
        name = "Host" if placement.is_host(where) else where
        sizes[name] = sizes.get(name, 0) + size
    for name, size in sizes.items():
        if size:
            yield Extra("derived MLA weights", name, size, False)


def compute(
    model: Model, context: Context, placement: Placement, memory: Memory, sizes: Sequence[int]
) -> tuple[int, ...]:
    """Return the bytes of the compute buffers, at least: logits and two hidden states, a copied
    output matrix, the cache of a layer in RAM, and what latent attention makes."""
    hp, u = model.hparams, min(context.n_ctx, context.n_ubatch)
    output = placement.output
    copied = (
        output.size
        if output is not None and placement.devices and placement.is_host(output.buffer)
        else 0
    )
    hidden = int(4 * u * hp.n_embd)
    logits = 4 * u * hp.n_vocab * (2 if hp.get("final_logit_softcapping") else 1)
    # an output matrix in RAM is copied beside what it reads
    smallest = copied + logits + (3 if copied else 2) * hidden
    more = 4 * max(0, settings_of(context.rules).logit_rows - u) * hp.n_vocab
    in_ram = [
        sum([tensor.size for tensor in layer.tensors if tensor.buffer == HOST])
        for cache in memory.caches
        for layer in cache.layers
    ]
    # a layer in RAM beside a GPU has its cache copied once more
    cached = max(in_ram, default=0) if placement.devices else 0
    first = max(sizes[0], smallest) + more + (cached + 2 * hidden if cached else 0)
    if is_latent(model):
        first = max(
            first,
            _latent(model, context, bool(placement.devices)) + copied + cached + 2 * hidden + more,
        )
    first = max(first, _pair(model, placement, u) + 6 * hidden)
    if model.architecture == "glm-dsa":  # what its indexer scores
        first += 4 * hidden + 4 * u * context.n_ctx
    if not placement.devices:
        return (first,)
    in_ram_too = any(map(placement.is_host, (*placement.dev_layer, placement.dev_output)))
    host = sizes[-1] + (8 * hidden if in_ram_too else 0)
    if len(placement.devices) == 1:
        return first, host
    # what crosses to another device is copied there, and any of them may have the output
    inputs = 2 * hidden + 4 * context.n_ctx * -(-u // 64) * 64
    each = [max(first, size) + inputs for size in sizes[:-1]]
    # cut, or computed on one for all
    if placement.heads is not None or context.split_mode == "none":
        return (*[sum(each)] * len(each), host + inputs + 16 * hidden)
    return (*each, host + inputs)


def _pair(model: Model, placement: Placement, u: int) -> int:
    """Bound both inner matrices of a layer in RAM, which one operation (ggml_moe_up_gate) has
    copied at once beside a GPU, and its result."""
    if not placement.devices:
        return 0
    sizes: dict[str, int] = {}
    for tensor in placement.tensors:
        block, _, part = tensor.name.partition(".ffn_")  # e.g. "blk.12"
        if not part.startswith(("up", "gate")) or not placement.is_host(tensor.buffer):
            continue
        _, rows, experts, _ = tensor.info.ne
        rows *= model.hparams.n_expert_used_max if experts > 1 else 1
        # the result has as many rows as one of the two
        sizes[block] = sizes.get(block, 0) + tensor.size + 2 * u * rows
    return max(sizes.values(), default=0)


def _latent(model: Model, context: Context, on_device: bool) -> int:
    """Bound latent attention with flash attention: keys and values of as many heads as -amb has
    room for (build_deepseek2), or for few tokens all in the latent space."""
    hp, u = model.hparams, min(context.n_ctx, context.n_ubatch)
    heads, latent, rope = hp.n_head(0), hp.n_lora_kv, hp.n_rot()
    sizes = latent_heads(hp, model.architecture)
    assert sizes is not None
    nope, value = sizes[0] - rope, sizes[1]
    cells = context.n_ctx
    mask = 2 * cells * -(-u // 64) * 64
    few = int(mask + heads * u * 4 * (2 * latent + 2 * rope + nope + value))
    if u < _MANY:
        return few
    whole = 4 * heads * (nope + value) * cells
    settings = settings_of(context.rules)
    # layers that are cut have no limit
    largest = (0 if settings.split else settings.attention_mib) << 20 or 1 << 60
    steps = next(
        (n for n in range(2, heads + 1) if heads % n == 0 and whole // n <= largest), heads
    )
    steps = 1 if whole <= largest else steps
    taken = heads // steps
    # alone, the CPU has them in the cache's type
    half = 4 if context.type_k == "f32" and not on_device else 2
    made = taken * cells * (4 * (nope + value) + half * (2 * nope + rope))
    queries = heads * u * 4 * (nope + 2 * rope) + 2 * heads * value * u * 4 + (1 << 20)
    return max(few, int(made + mask + queries))
