"""What must stay free on a device beyond llama.cpp's own buffers, in named parts.

llama.cpp's default is a flat 1024 MiB (--fit-target). Here it is the sum of actual uses, which is
less for most launches and more for some (flash attention off, bf16 weights on old GPUs, sorting
long rows).

    parts(device, ops)                      # ((name, bytes), ...)
    margin(device, model, params, use)      # the same for a launch

The backend itself knows its own uses (a context, temporaries of operations): see
autolayers.backends and docs/devices.md.
"""

from __future__ import annotations

from ..backends import on
from ..backends.ops import Matmul, Ops, Parts, Scan
from ..gguf import BY_NAME
from ..records import replace
from ..units import MiB, pad
from .breakdown import CONTEXTS, Breakdown, Static, Usage
from .context import CELL_BLOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from ..machine import Device
    from ..model import Model
    from ..model.hparams import Hparams

    # those for every token, and those for tokens with output
    Shapes = tuple[tuple[Matmul, ...], tuple[Matmul, ...]]

PAGE = 2 * MiB  # the driver rounds every buffer up to this
_DISPLAY = 128 * MiB  # growth of a desktop that draws on the device
# before Windows' driver model refuses memory, it moves memory to RAM, silently and slowly
_WDDM = 768 * MiB
SYSTEM = 1024 * MiB  # of a memory that the device shares with the system
# one part in this many of the graph buffers, for changes in other builds
_DRIFT = 50


def parts(
    device: Device, ops: Ops, usage: Usage | None = None, n_buffers: int = 3, growth: int = 0
) -> Parts:
    """Return the margin of one device as (name, bytes), none of them 0.

    `usage` is the contents of its `n_buffers` buffers, `growth` what a graph in real use needs
    above the reserved buffers.
    """
    usage = usage or Usage()
    # the backend's own first: its context and the temporaries of its operations
    named = [
        *on(device).margin(ops),
        ("rounding to pages", PAGE * n_buffers),
        ("growth in use", max(0, growth) + usage.compute // _DRIFT),
    ]
    if device.kind == "igpu":
        named.append(("system", SYSTEM))
    # Windows' own reserve covers a display as well
    if device.wddm:
        named.append(("Windows", _WDDM))
    elif device.display:
        named.append(("display", _DISPLAY))
    return tuple((name, size) for name, size in named if size)


def least(device: Device) -> int:
    """Return the bytes that stay free on a device in any launch that uses it, mainly its
    context."""
    # one token and no buffer: what even an empty launch keeps free
    return sum([size for _, size in parts(device, Ops(n_tokens=1), n_buffers=0)])


def without_model(device: Device) -> int:
    """Return the bytes of a device that a process holds which only asked it for its memory: the
    backend's context, whatever the free memory was read with."""
    own = on(replace(device, includes_context=False))
    return sum([size for name, size in own.margin(Ops(n_tokens=1)) if name.endswith(" context")])


def margin(
    device: Device,
    model: Model,
    params: Params,
    use: Static,
    ops: Ops | None = None,
    draft: Model | None = None,
) -> Parts:
    """Return the margin of `device` in the launch that allocates `use`, as (name, bytes); `ops`:
    ops_of() if known already; `draft`: the model of a second context, if it is not `model` (MTP).

    `--fit-target` is llama.cpp's name for a user-defined margin: if given, exactly that stays free
    and nothing else is reserved. Several values are one per device in `use`'s order; the last also
    applies to the devices after it.
    """
    if params.fit_target:
        # "-fitt 1024,2048" with three devices: 1024, 2048, 2048
        place = list(use.devices).index(device.name) if device.name in use.devices else 0
        return (("given", params.fit_target[min(place, len(params.fit_target) - 1)] * MiB),)
    usage = use.devices.get(device.name) or Usage()
    peak = use.runtime_peak or {} if isinstance(use, Breakdown) else {}
    # 2 with a sliding window or a recurrent state, which have a cache of their own.
    hp = model.hparams
    recurs = any(hp.is_recr(il) for il in range(hp.n_layer_all))
    caches = 2 if hp.is_swa_any or recurs else 1
    # weights, caches and graph are allocated apart, and each is rounded up to a page
    n_buffers = bool(usage.model) + bool(usage.context) * caches + bool(usage.compute)
    ops = ops or ops_of(model, params, use)
    named = parts(device, ops, usage, n_buffers, peak.get(device.name, 0))
    more = (
        ("temporaries of the draft", _again(device, params, use, ops, draft)),
        ("sums between devices", _sums(device, model, params, use)),
    )
    found = (*named, *[(name, size) for name, size in more if size])
    # what a launch held here by the driver's figures, where that is more than these rules say
    seen = 0 if device.includes_context else device.beside - sum(size for _, size in found)
    return (*found, ("seen on this machine", seen)) if seen > 0 else found


def _again(device: Device, params: Params, use: Static, ops: Ops, draft: Model | None) -> int:
    """Return the bytes of temporaries of a draft's context on the device."""
    extras = use.extras if isinstance(use, Breakdown) else ()
    if not any(extra.device == device.name and extra.name in CONTEXTS for extra in extras):
        return 0
    if draft is not None:
        ops = ops_of(
            draft,
            replace(
                params,
                cache_type_k=params.cache_type_k_draft,
                cache_type_v=params.cache_type_v_draft,
            ),
            use,
        )
    # a second llama_context has temporaries of its own
    return on(device).again(ops)


def _sums(device: Device, model: Model, params: Params, use: Static) -> int:
    """Return the bytes for summing a matrix's partial results from the devices of -sm tensor: in
    each step of a butterfly the largest such result, of all experts of a token
    (ggml_backend_meta_graph_compute, as modelled), plus the backend's own."""
    n_devices = sum(usage.total > 0 for usage in use.devices.values())
    if params.split_mode != "tensor" or n_devices < 2:
        return 0
    hp = model.hparams
    # f32; with experts the results of all that a token uses
    largest = 4 * hp.n_embd * use.n_ubatch * (max(1, hp.n_expert_used_max) if hp.n_expert else 1)
    return (n_devices - 1).bit_length() * largest + on(device).communicator


def ops_of(
    model: Model,
    params: Params,
    use: Static,
    shapes: Shapes | None = None,
    reads_all: bool = False,
    windows: bool = True,
) -> Ops:
    """Return what a device computes in this launch: `shapes` of the matrices that it multiplies
    with (matmuls); if that is unknown, all of them. `reads_all`: every token has output. `windows`:
    layers with a sliding window have a cache of their own."""
    embeds = bool(params.embedding or params.reranking or params.pooling not in (None, "none"))
    hp = model.hparams
    # layers with attention; recurrent ones have no heads
    layers = [il for il in range(hp.n_layer_all) if hp.n_head(il)] or [0]
    body, head = shapes or matmuls(model)
    # the head multiplies all tokens of a micro-batch, or one per slot
    n_outputs = use.n_ubatch if embeds or reads_all else use.n_seq_max
    # (columns, rows) that are sorted: cells by an indexer, or logits by samplers
    # argsort of an indexer's scores: every token ranks all cells
    if any(map(hp.has_indexer, range(hp.n_layer_all))):
        sort_columns, sort_rows = use.n_ctx_seq, use.n_ubatch
    else:
        sort_columns, sort_rows = (hp.n_vocab, n_outputs) if params.backend_sampling else (0, 0)
    cells = _window_cells(hp, params, use) if windows else use.n_ctx_seq
    # of one layer: widths, in rows as long as the longest cache
    shares = [(il, cells if hp.is_swa(il) else use.n_ctx_seq) for il in layers]
    n_kv = max(1, use.n_ctx_seq)
    return Ops(
        n_tokens=use.n_ubatch,
        n_kv=use.n_ctx_seq,
        n_stream=max(1, use.n_ctx // max(1, use.n_ctx_seq)),
        n_head=max(map(hp.n_head, layers)),
        head_v=max(map(hp.head_v, layers)),
        n_embd_k_gqa=max(-(-hp.n_embd_k_gqa(il) * cells // n_kv) for il, cells in shares),
        flash_attn=use.flash_attn,
        weights=body,
        outputs=head,
        n_outputs=n_outputs,
        n_seqs=use.n_seq_max,
        scan=_scan(model),
        sort_columns=sort_columns,
        sort_rows=sort_rows,
        n_embd_v_gqa=max(-(-hp.n_embd_v_gqa(il) * cells // n_kv) for il, cells in shares),
        quantised_cache=_quantised(params.cache_type_k) and _quantised(params.cache_type_v),
    )


def _window_cells(hp: Hparams, params: Params, use: Static) -> int:
    """Return the cells of a sliding layer's cache, at most (llama_kv_cache_iswa)."""
    if params.swa_full:
        return use.n_ctx_seq
    cells = hp.n_swa * (use.n_seq_max if use.kv_unified else 1) + use.n_ubatch
    return min(use.n_ctx_seq, pad(cells, CELL_BLOCK))


def _quantised(cache_type: str | None) -> bool:
    """Return whether a cache type stores blocks."""
    return BY_NAME[cache_type or "f16"].blck_size > 1


def _scan(model: Model) -> Scan | None:
    """Return the shape of Mamba-2's scans: one decay per head, where Mamba-1 has a row of them."""
    hp = model.hparams
    # ssm_a: [1, n_head] in Mamba-2, [d_state, d_inner] in Mamba-1
    decays = [weight.info.ne for weight in model.weights if weight.op == "SSM_SCAN"]
    n_head = max([ne[1] for ne in decays if ne[0] == 1], default=0)
    if not n_head:
        return None
    return Scan(hp.ssm_d_state, hp.ssm_d_inner // n_head, n_head, hp.ssm_n_group)


def matmuls(model: Model, computed: tuple[frozenset[str], frozenset[str]] | None = None) -> Shapes:
    """Return each shape once: of the matrices for every token, and of those for output tokens only.
    `computed`: the names of both (Steps.multiplied), None for all."""
    body: set[Matmul] = set()
    head: set[Matmul] = set()
    used = model.hparams.n_expert_used_max
    tied = "output.weight" not in model.tensors
    for weight in model.weights:
        name, op = weight.info.name, weight.op
        is_head = weight.layer != "repeating"
        # the embedding is multiplied with as the output matrix
        if tied and name.startswith("token_embd."):
            name, op = "output.weight", "MUL_MAT"
        if op not in ("MUL_MAT", "MUL_MAT_ID"):
            continue
        # columns, rows, and matrices of a stack of experts
        k, m, n_mat, more = weight.info.ne
        matmul = Matmul(
            weight.info.type, k, m, n_mat * more, max(1, used) if op == "MUL_MAT_ID" else 0
        )
        if computed is None:
            (head if is_head else body).add(matmul)
        else:
            if name in computed[0]:
                body.add(matmul)
            if name in computed[1]:
                head.add(matmul)
    return tuple(body), tuple(head)
