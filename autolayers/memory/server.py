"""What every server holds in system memory in addition to the breakdown, most of it only while it
serves.

Mirrors, as modelled: llama_context::output_reserve, server_prompt_cache of tools/server,
src/llama-kv-cells.h. The limits and their defaults are the same from build 9093 to 11549.
"""

from __future__ import annotations

from ..builds import NEWEST_RULES, Build, Rules
from ..units import MiB
from .breakdown import Extra
from .saved import State, checkpoint_of, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cache import Memory
    from .loaded import Loaded

CACHE_RAM = 8192  # --cache-ram, MiB
CTX_CHECKPOINTS = 32  # --ctx-checkpoints, per slot
# bytes of bookkeeping per cell of a cache, and as much again once it is used
# llama_kv_cells: position, `ext`, shift, and a bit for each of 256 sequences; then its set entry
_CELL = 52
_USED_CELL = 90


def serving(
    loaded: Loaded, rules: Rules = NEWEST_RULES, states: Sequence[State] = ()
) -> tuple[tuple[Extra, ...], tuple[str, ...]]:
    """Return the output buffer, and what grows up to a limit; and warnings about what has no limit.
    `states`: those of the launch's contexts, its own first."""
    params, context, memory = loaded.params, loaded.context, loaded.memory
    here = Build(rules.number)
    states = states or (state_of(loaded.model.hparams, context, memory),)
    checkpoint = checkpoint_of(memory, context, states)
    # 0 turns them off
    n = CTX_CHECKPOINTS if params.ctx_checkpoints is None else max(0, params.ctx_checkpoints)
    extras = _output(loaded)
    # other programs keep no prompts
    if not context.rules.engine.serves:
        return (*extras, *_bookkeeping(memory)), ()
    # builds without the flag make no checkpoints
    if checkpoint and n and here.knows("-ctxcp"):
        extras.append(
            Extra(
                "context checkpoints",
                "Host",
                context.n_seq_max * n * checkpoint,
                True,
                upper_limit=True,
                bounded_by="ctx_checkpoints",
            )
        )
    warnings: tuple[str, ...] = ()
    mib = CACHE_RAM if params.cache_ram is None else params.cache_ram
    # no limit, so no size: a warning instead
    if mib < 0:
        warnings = ("--cache-ram -1: saved prompts may take all of the host's memory",)
    elif mib and here.knows("-cram"):
        size = mib * MiB
        if not rules.prompt_limit:  # such a build saves a prompt of any size
            # the bytes of all caches, which a whole saved prompt takes
            layers = [layer for cache in memory.caches for layer in cache.layers]
            size = max(
                size,
                n * checkpoint + sum(tensor.size for layer in layers for tensor in layer.tensors),
            )
        extras.append(
            Extra("prompt cache", "Host", size, True, upper_limit=True, bounded_by="cache_ram")
        )
    return (*extras, *_bookkeeping(memory)), warnings


def _bookkeeping(memory: Memory) -> list[Extra]:
    """Return what llama_kv_cells takes: a record for each cell."""
    cells = sum(
        cache.n_cells * cache.n_stream
        for cache in memory.caches
        if cache.layers and cache.layers[0].k
    )
    size = cells * (_CELL + _USED_CELL)
    return [Extra("cache bookkeeping", "Host", size, False, upper_limit=True)] if cells else []


def _output(loaded: Loaded) -> list[Extra]:
    """Mirror llama_context::output_reserve: a row of logits (and of embeddings) per output, pinned
    host memory; first one per slot, more when more are asked for (embeddings, verified drafts)."""
    model, context = loaded.model, loaded.context
    hp = model.hparams
    output = model.tensors.get("output.weight") or model.tensors.get("token_embd.weight")
    n_vocab = hp.n_vocab or (output.ne[1] if output else 0)
    row = n_vocab + hp.n_embd_out * context.embeddings
    # sampled logits, probabilities, candidates, and the token
    if loaded.params.backend_sampling:
        row += 3 * n_vocab + 1
    extras = [Extra("output buffer", "Host", context.n_seq_max * row * 4, True)]
    engine = context.rules.engine
    # such a program reserves every token's logits, and asks for the last ones
    if engine.whole_batches and not (engine.reads_all or context.embeddings):
        return extras
    more = context.n_outputs_max - context.n_seq_max
    if more > 0:
        extras.append(Extra("more outputs", "Host", more * row * 4, True, upper_limit=True))
    return extras
