"""An upper bound of the compute buffers if the graph is unknown: from the header's shapes alone.
The largest sum of a layer's matmul widths approximates what is live at the peak. The factors are
the smallest that are never too small for the known graphs: tests/memory/test_bound.py applies the
bound to all of them, including partial offload, quantised caches and several GPUs, and compares
with llama.cpp."""

from __future__ import annotations

from ..backends import HOST, backend
from ..backends.backend import FLASH_ATTN_HEADS
from ..units import pad
from .breakdown import GraphBuffers
from .graphs.prepare import pipelined
from .graphs.reserve import N_COPIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..model import Model
    from ..model.hparams import Hparams
    from .cache import Cache
    from .context import Context
    from .loaded import Loaded
    from .weights import Placement

# multiples of what is live at once: tables of tokens and of widths, attention scores, recurrent
# layers' states
_HIDDEN, _WIDTHS, _SCORES, _STATES = 6.0, 2.0, 2.1, 4.0
_UNSEEN = 5 << 19  # bytes of windows that figures in whole MiB may hide
_RECURRENT = 2.5  # a scan's share of its layer's widths, more than attention's
_ATTENTION = ("attn", "swa", "lid", "idx", "csa", "hca")


def upper_bound(loaded: Loaded) -> GraphBuffers:
    """Return the bytes per device and, last, the host; llama.cpp is not expected to exceed any of
    them."""
    model, context, placement = loaded.model, loaded.context, loaded.placement
    hp = model.hparams
    # graph_reserve's rounding: each sequence has as many tokens as the others
    n = pad(max(min(context.n_ctx, context.n_ubatch), 1), context.n_seq_max)
    f = 4 * n  # one f32 column of all tokens
    devices = placement.devices
    pipeline = pipelined(loaded)
    copies = N_COPIES if pipeline else 1
    # those whose cells a graph attends to
    caches = [cache for cache in loaded.memory.caches if cache.kind in _ATTENTION]
    layers = range(hp.n_layer_all)

    width, looked_up = _widths(model)
    hidden = f * max(hp.n_embd, hp.n_embd_inp)
    handed = hidden + f * max(0, looked_up - hp.n_embd)  # what goes from device to device

    # how often the layers run, if the file repeats them (HRM's cycles)
    rounds = 1
    for key, value in model.header.metadata.items():
        # at most 8: a header may say any number
        if key.endswith("_cycles") and isinstance(value, int):
            rounds *= 2 * min(max(value, 1), 8)  # each cycle runs two stacks
    indexed = any(cache.kind in ("lid", "idx") for cache in caches)
    on_cpu = any(_lacks_kernel(hp, il) for il in layers)
    # the bytes of the attention's scores of `n` tokens, 0 where flash attention has none
    biased = _biased(model)
    if context.flash_attn == "on" and not biased and not indexed:
        scores = 0
    else:
        heads = max((hp.n_head(il) for il in range(hp.n_layer_all)), default=1)
        cells = max((cache.n_cells for cache in caches), default=n)
        # f32, for each pair of token and cell, of each head; then the bias, or the indexer's ranks
        scores = 4 * cells * n * heads * (1 + biased + 10 * indexed)
    inputs = _all_inputs(model, context, caches, n)
    recurrent = [cache for cache in loaded.memory.caches if cache not in caches]
    states = _STATES * max(_layer_sizes(recurrent), default=0)
    factor = _WIDTHS * (_RECURRENT if states else 1)

    # the bytes of the logits and of two hidden states of each output
    output = placement.output
    # the generation graph has an output for each slot
    n_outputs = min(n, max(context.n_outputs_max, context.n_seq_max))
    logits = 4 * n_outputs * ((output.ne[1] if output is not None else 0) + 2 * hp.n_embd)
    # with pipeline parallelism there are four of each input, and none is ever freed
    fed = copies * (inputs + (2 * rounds * handed if pipeline else 0))
    # each layer's visits to the CPU are inputs
    if pipeline and (on_cpu or states):
        fed += copies * f * width
    # either in the middle of a layer, or at the head with all logits
    peak = fed + int(
        max(_HIDDEN * handed + factor * f * width + _SCORES * scores + states, logits + 2 * handed)
    )

    kv = max(_layer_sizes(caches), default=0)
    converted = _converted(caches) if context.flash_attn != "off" else 0
    if not indexed and (at := _measured(model, context)):
        # what the program measured has the inputs and a sequence's states, once and on one device
        at += of_sequences(model, context.n_seq_max, context.n_ctx, n)
        head = logits + 2 * handed
        peak = min(peak, max(at, fed + head) if len(devices) < 2 else fed + max(at, head))
    # anything that may run, or be copied from, in RAM
    on_host = (
        HOST in placement.dev_layer or bool(loaded.params.overrides) or not context.offload_kqv
    )
    copied = (
        _offloaded(context, placement) + 3 * rounds * kv + 2 * hidden if on_host and devices else 0
    )
    sizes = [
        peak + converted + (copied if i == 0 or not context.offload_kqv else 0)
        for i in range(len(devices))
    ]
    # embeddings as an input alone and mixed with tokens
    mixed = 1 + context.rules.mixed_input
    # the host looks up embeddings and holds every input
    at_host = 2 * mixed * handed + copies * (inputs + mixed * hidden)
    if on_host or not devices:
        at_host += peak + kv + converted
    elif states or indexed or on_cpu:
        at_host += peak + _lifted(caches, copies)
    return GraphBuffers(
        (*sizes, at_host),
        context.flash_attn != "off",
        ""
        if model.body is not None and model.row.proven  # the backend is unknown, which is said
        else f"the graph of architecture {model.architecture} is unknown: its compute buffers are "
        "an upper bound",
    )


def of_sequences(model: Model, n_seq_max: int, n_ctx: int, n: int) -> int:
    """Return the bytes that sequences beyond the first add at most to a measured graph of `n`
    tokens: their windows' cells in a mask, their states, and rows of a cache that they share."""
    hp, more, body = model.hparams, n_seq_max - 1, model.body
    state = 4 * (hp.n_embd_r() + hp.n_embd_s()) if model.row.state else 0
    window = hp.get("attention.sliding_window") or hp.get("attention.chunk_size")
    if not isinstance(window, int):
        # the code may have one without a key
        slides = body is None or body.fixed - hp.n_layer * state > _UNSEEN
        window = n_ctx if slides else 0
    return 4 * n * min(n_ctx, more * window) + more * (int(_STATES) * state + 8 * n_ctx)


def _measured(model: Model, context: Context) -> int:
    """Return what the installed program measured of the graph without its head, 0 for nothing."""
    body, types = model.body, (context.type_k, context.type_v)
    if body is None or context.n_stream > 1:
        return 0
    if (context.flash_attn != "off", types) != (body.flash_attn, body.types):
        return 0
    return body.at(context.n_ubatch, context.n_ctx)


def _biased(model: Model) -> bool:
    """Whether scores have a relative position bias (T5: attn_rel_b), which excludes flash
    attention."""
    return any("rel_b" in name for name in model.tensors)


def _all_inputs(model: Model, context: Context, caches: Sequence[Cache], n: int) -> int:
    """Return the bytes of all inputs of a graph of `n` tokens: each mask's, and the encoder's."""
    hp = model.hparams
    # without a cache (encoders) tokens attend to each other
    masks = [cache.n_cells for cache in caches] or [n] * (1 if hp.swa_type == "none" else 2)
    # layers of an unknown architecture may slide in a cache of their own
    slides = not model.row.known and hp.get("attention.sliding_window")
    masks *= 2 if slides else 1
    v_rows = hp.n_embd_v_gqa_max if context.v_trans else 1
    if not _biased(model):
        return _inputs(n, masks, v_rows)
    # the index of each pair's bias, and the encoder's output
    masks.append(max((cache.n_cells for cache in caches), default=n))
    return _inputs(n, masks, v_rows) + 4 * hp.n_embd * hp.n_ctx_train


def _widths(model: Model) -> tuple[int, int]:
    """Return (rows of the widest layer's matrices, columns that embeddings add).

    Experts count as often as a token uses them; per-layer embeddings count too.
    """
    widths: dict[int, int] = {}
    looked_up = 0
    for weight in model.weights:
        ne = weight.info.ne
        if weight.layer == "repeating" and weight.op in ("MUL_MAT", "MUL_MAT_ID"):
            used = max(model.hparams.n_expert_used_max, 1)
            # an expert's rows are there once for each expert that a token uses
            times = used if weight.op == "MUL_MAT_ID" else ne[2]
            widths[weight.block] = widths.get(weight.block, 0) + ne[1] * times
        elif weight.layer == "input":
            looked_up += ne[0]
    return max(widths.values(), default=0), looked_up


def _lacks_kernel(hp: Hparams, il: int) -> bool:
    """Return whether a GPU may have no kernel for a layer's attention: its heads are of an
    uncommon or unlike size."""
    # no attention here, or the cache of another layer
    if not hp.has_kv(il):
        return False
    return hp.head_k(il) not in FLASH_ATTN_HEADS or hp.head_v(il) != hp.head_k(il)


def _inputs(n: int, masks: list[int], v_rows: int) -> int:
    """Return the bytes of a graph's inputs: per mask its row of cells, the indices of keys (i64)
    and of `v_rows` values of each token; then positions, ids, and a rotation of 128 x 128."""
    per_mask = [4 * n * cells + 8 * n + 8 * n * v_rows for cells in masks]
    return sum(per_mask) + 32 * n + 4 * 128 * 128 * 4


def _layer_sizes(caches: Iterable[Cache]) -> list[int]:
    """Return the bytes of each layer of these caches."""
    return [sum(t.size for t in layer.tensors) for cache in caches for layer in cache.layers]


def _converted(caches: Iterable[Cache]) -> int:
    """Return the bytes of the largest keys and values that a kernel converts to f16 first."""
    tensors = [t for cache in caches for layer in cache.layers for t in layer.tensors]
    sizes = [2 * t.ne[0] * t.ne[1] * t.ne[2] for t in tensors if t.type != "f16"]
    return 2 * max(sizes, default=0)


def _in_ram(placement: Placement) -> set[tuple[bool, int]]:
    """Return (whether they are experts, bytes) of the weights in RAM that a graph reads."""
    # a set: equal weights of many layers are copied into the same place
    host = {
        (placed.ne[2] > 1, placed.size)
        for placed in placement.tensors
        if placement.is_host(placed.buffer) and placed.name.startswith("blk.")
    }
    output = placement.output
    if output is not None and placement.is_host(output.buffer):
        host.add((False, output.size))
    return host


def _offloaded(context: Context, placement: Placement) -> int:
    """Return the bytes of host weights that the first device holds at once for op offload."""
    # op offload copies to the first device, if its backend asks for large batches
    copies = context.op_offload and backend(placement.devices[0].backend).offload_min_batch
    host = _in_ram(placement) if copies else set()
    if not host:
        return 0
    # one at a time, but the next one may not fit into the last one's gap: because it is larger, or,
    # among the many small tensors of experts, although it is not
    two = sorted((size for _, size in host), reverse=True)[:2]
    return 2 * two[0] if any(experts for experts, size in host if size == two[0]) else sum(two)


def _lifted(caches: list[Cache], copies: int) -> int:
    """Return the keys and values that the host may have to attend to: one layer's at a time, or all
    of them if they are inputs."""
    sizes = _layer_sizes(caches)
    return copies * sum(sizes) if copies > 1 else 3 * max(sizes, default=0)
