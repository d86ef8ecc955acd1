"""The caches a context allocates before its first graph: keys and values, indexers, recurrent
states.

    memory = allocate(model, context, placement)
    memory.buffers                    # {"CUDA0": bytes, "CPU": bytes}
    memory.cache("attn").layer(3).k   # the K tensor that layer 3 uses: type, ne, buffer
    for cache in memory.caches: cache.kind, cache.n_cells, cache.n_stream, cache.layers

Mirrors llama_model::create_memory (src/llama-model.cpp) and the constructors it calls:
llama-kv-cache.cpp, -iswa, -dsa, -dsa-iswa, -msa, -dsv4, llama-memory-recurrent.cpp,
llama-memory-hybrid*.cpp, as modelled.
"""

from __future__ import annotations

from ..backends import CPU, HOST, on
from ..errors import LaunchRefused
from ..gguf import n_bytes
from ..model.hparams import CSA_RATIO, HCA_RATIO
from ..records import dataclass, lazy, replace
from ..units import pad
from .context import CELL_BLOCK, Context, cell_block
from .weights import Placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..ggml.tensor import Ne
    from ..model import Hparams, Model
    from ..model.body import Body

    Filter = Callable[[int], bool]
    Tensors = Mapping[str, "CacheTensor"]  # by CacheLayer's names
    Target = tuple[Hparams, Context, "Memory"]  # a draft's target, for its caches


@dataclass(frozen=True)
class CacheTensor:
    name: str  # without the layer's number, as layers alike share it
    type: str
    ne: Ne
    buffer: str  # a device's name, or CPU
    size: int  # with padding and alignment


@dataclass(frozen=True)
class CacheLayer:
    """What one layer keeps. Attention: k and v (no v if one tensor holds both, MLA). Recurrent: r,
    s and, in PLE layers, p. DeepSeek-V4's compressors: kv and score."""

    il: int
    k: CacheTensor | None = None
    v: CacheTensor | None = None
    r: CacheTensor | None = None
    s: CacheTensor | None = None
    p: CacheTensor | None = None
    kv: CacheTensor | None = None
    score: CacheTensor | None = None

    @property
    def tensors(self) -> tuple[CacheTensor, ...]:
        return tuple(
            t
            for t in (self.k, self.v, self.r, self.s, self.p, self.kv, self.score)
            if t is not None
        )


@dataclass(frozen=True)
class Cache:
    """kind: attn (full attention, MLA too), swa, lid (DSA's indexer), idx (other indexers),
    recurrent, csa, hca and csa-state, hca-state, lid-state (DeepSeek-V4). `reused` maps layers
    without a cache to the layer whose cache they read."""

    kind: str
    n_cells: int  # rows; in a recurrent cache one per sequence and rollback step
    n_stream: int
    # by layer; layers alike share their tensors
    rows: tuple[tuple[int, Tensors], ...]
    reused: dict[int, int]

    @lazy
    def layers(self) -> tuple[CacheLayer, ...]:
        return tuple([CacheLayer(il, **tensors) for il, tensors in self.rows])

    @property
    def recurrent(self) -> bool:
        """Whether it holds states, one row per sequence, instead of cells."""
        return self.kind == "recurrent" or self.kind.endswith("-state")

    def layer(self, il: int) -> CacheLayer | None:
        """Return the layer whose tensors layer `il` uses; None if it uses none of this cache."""
        # most layers read their own
        return self._by_number.get(self.reused.get(il, il))

    @lazy
    def _by_number(self) -> dict[int, CacheLayer]:
        return {layer.il: layer for layer in self.layers}


@dataclass(frozen=True)
class Memory:
    caches: tuple[Cache, ...]
    buffers: dict[str, int]
    # the model that owns the caches, if not this one
    owner: tuple[Hparams, Context] | None = None
    slots: Mapping[int, int] | None = None  # of the expert cache, by layer
    share: float = 1.0  # of the layers' sizes in all, which are bounds

    def cache(self, kind: str) -> Cache | None:
        return next((cache for cache in self.caches if cache.kind == kind), None)


class _Builder:
    """Places tensors and sums their sizes."""

    def __init__(self, model: Model, context: Context, placement: Placement) -> None:
        self.hp: Hparams = model.hparams
        self.context = context
        self.placement = placement
        self.rows = {device.name: on(device) for device in placement.devices}
        self.buffers: dict[str, int] = {}
        self.caches: list[Cache] = []
        # whether layers of the same widths in the same buffer may take different sizes
        one_cache = context.rules.engine.one_cache
        self.divided = bool(placement.slices or placement.shares or one_cache)
        # (name, type, dimensions, buffer) -> the record that such layers share
        self.tensors: dict[tuple[object, ...], CacheTensor] = {}

    def buffer(self, il: int) -> str:
        """Return where a layer's cache is (llama_kv_cache): on its device, or all of it in RAM."""
        return self.placement.dev_layer[il] if self.context.offload_kqv else HOST

    def again(self, made: Tensors) -> None:
        """Add the bytes of a layer whose cache is like the one of these tensors."""
        for tensor in made.values():
            self.buffers[tensor.buffer] += tensor.size

    def tensor(self, name: str, il: int, type_: str, *dims: int) -> CacheTensor:
        """Add a tensor of layer `il` to its buffer, and return it."""
        buffer = self.buffer(il)
        key = (name, type_, dims, buffer)
        # most layers are alike: one record for all of them
        twin = None if self.divided else self.tensors.get(key)
        if twin is not None:
            self.buffers[buffer] += twin.size
            return twin
        ne = (dims[0], dims[1], dims[2] if len(dims) > 2 else 1, 1)
        # padding is the device's own: 128 bytes on CUDA, 32 in RAM
        row = self.rows.get(buffer, CPU)
        size = row.padded(type_, self.shape(name, il, ne), n_bytes(type_, ne))
        parts: list[tuple[str, int]] = [(buffer, size)]
        if buffer != HOST and self.placement.slices:
            # -sm tensor: each device keeps its own heads
            parts = [
                (name, self.rows[name].padded(type_, part, n_bytes(type_, part)))
                for name, part in self.placement.slices.of(f"{name}_l{il}", type_, ne)
            ]
        elif buffer in self.placement.shares:  # split mode row: an upper bound, cut at a head
            head = size // max(1, self.hp.n_head_kv(il))
            parts = [
                (name, min(size, int(size * share) + head))
                for name, share in self.placement.shares.items()
                if share > 0
            ]
        for where, part in parts:
            self.buffers[where] = self.buffers.get(where, 0) + part
        made = self.tensors[key] = CacheTensor(name, type_, ne, buffer, size)
        return made

    def shape(self, name: str, il: int, ne: Ne) -> Ne:
        """Return a cache tensor's shape as this build creates it, which decides its padding."""
        rules = self.context.rules
        if rules.engine.one_cache and name.endswith("k"):  # a row of it is one head's
            n_head = max(1, self.hp.n_head_kv(il))
            heads = n_head if ne[0] % n_head == 0 else 1
            return ne[0] // heads, ne[1] * heads, ne[2], 1
        return ne if rules.cache_rows else (ne[0] * ne[1] * ne[2], 1, 1, 1)

    def keep(
        self,
        kind: str,
        n_cells: int,
        n_stream: int,
        rows: list[tuple[int, Tensors]],
        reused: dict[int, int] | None = None,
    ) -> None:
        self.caches.append(Cache(kind, n_cells, n_stream, tuple(rows), reused or {}))

    def attention(
        self,
        kind: str,
        wanted: Filter,
        *,
        n_cells: int = 0,
        k_only: bool | None = None,
        n_stream: int = 0,
        width: Callable[[int], int] | None = None,
        v_width: Callable[[int], int] | None = None,
        tag: str = "",
    ) -> None:
        """Mirror llama_kv_cache over those `wanted` layers that have their own cache, of as many
        cells as a sequence may use if no other number is given."""
        hp, context = self.hp, self.context
        n_cells = n_cells or context.n_ctx_seq
        # MLA: what V needs is a part of each cell of K (the compressed row)
        k_only = hp.is_mla and context.rules.mla_keys_only if k_only is None else k_only
        n_stream = n_stream or context.n_stream
        width = width or hp.n_embd_k_gqa
        if v_width is None:
            # a transposed V has the widest layer's rows in all, as layers share the row indices
            v_width = (lambda il: hp.n_embd_v_gqa_max) if context.v_trans else hp.n_embd_v_gqa
        rows: list[tuple[int, Tensors]] = []
        alike: dict[tuple[str, int, int], Tensors] = {}
        # MTP blocks are layers of the constructor too; `wanted` leaves them out
        for il in range(hp.n_layer_all):
            if not hp.has_kv(il) or not wanted(il):
                continue
            # layers alike in these three have tensors alike, so hundreds of them are built once
            key = self.buffer(il), width(il), 0 if k_only else v_width(il)
            made = None if self.divided else alike.get(key)
            if made is None:
                k = self.tensor(f"cache_{tag}k", il, context.type_k, key[1], n_cells, n_stream)
                made = {"k": k}
                if not k_only:
                    dims = key[2], n_cells, n_stream
                    made = {"k": k, "v": self.tensor(f"cache_{tag}v", il, context.type_v, *dims)}
                alike[key] = made
            else:
                self.again(made)
            rows.append((il, made))
        reused = self.reused(wanted, {il for il, _ in rows})
        self.keep(kind, n_cells, n_stream, rows, reused)

    def reused(self, wanted: Filter, owners: set[int]) -> dict[int, int]:
        """Return the layers without their own cache, and the layer whose cache each reads."""
        hp, own = self.hp, self.hp.n_layer_kv_from_start
        readers = {}
        # Gemma 3n and 4: the last layers read the last cache of their own kind
        # layer_reuse_cb: `own` is n_layer_kv_from_start, the number of layers with a cache
        for il in range(own, hp.n_layer_all) if own >= 2 else ():
            # the last full layer is the last with a cache, the last sliding one is before it
            source = own - (2 if hp.is_swa(il) else 1)
            if wanted(il) and source in owners:
                readers[il] = source
        return readers

    def window(
        self, wanted: Filter, *, k_only: bool | None = None, unified: bool | None = None
    ) -> None:
        """Mirror llama_kv_cache_iswa: sliding layers only need a window of cells."""
        hp, context = self.hp, self.context
        unified = context.kv_unified if unified is None else unified
        n_stream = 1 if unified else context.n_seq_max
        cells = self.window_cells(unified)
        for kind, slides, n_cells in (("attn", False, 0), ("swa", True, cells)):
            self.attention(
                kind,
                lambda il, slides=slides: hp.is_swa(il) == slides and wanted(il),  # type: ignore[misc]
                n_cells=n_cells,
                k_only=k_only,
                n_stream=n_stream,
            )

    def window_cells(self, unified: bool) -> int:
        context = self.context
        # --swa-full: the conversation can then go back to any earlier token
        if context.swa_full:
            return context.n_ctx_seq
        # a window for each sequence that shares the cache, and the micro-batch that is written
        # before the oldest cells may be dropped
        windows = self.hp.n_swa * (context.n_seq_max if unified else 1)
        block = cell_block(context.flash_attn, context.rules)
        # older builds bounded by the context after padding, not before
        if not context.rules.cells_by_256:
            return min(context.n_ctx_seq, pad(windows + context.n_ubatch, block))
        return pad(min(context.n_ctx_seq, windows + context.n_ubatch), block)

    def indexer(
        self, kind: str, wanted: Filter, *, k_only: bool = True, factor: int = 1, tag: str = ""
    ) -> None:
        """Add the cache of indexer keys: one head of indexer_head_size. Sliding layers keep their
        own key size."""
        hp = self.hp
        # V of the indexer is as wide as one head
        heads = [hp.head_v(il) for il in range(hp.n_layer_all)]
        self.attention(
            kind,
            wanted,
            k_only=k_only,
            tag=tag,
            width=lambda il: (
                hp.n_embd_head_k_swa if hp.is_swa(il) else hp.indexer_head_size * factor
            ),
            v_width=(lambda il: max(heads)) if self.context.v_trans else (lambda il: heads[il]),
        )

    def pooled(self) -> int:
        """Return head sizes per cell (indexer_kpool_row), if pooled keys are stored next to their
        sources."""
        if self.hp.indexer_kpool:
            return 3  # the key, what decides its share, and the pooled one
        ratios = self.hp.get("attention.compress_ratios", 0)
        pools = any(ratios) if isinstance(ratios, tuple) else ratios
        return 2 if pools and self.context.rules.qsa_pools else 1

    def recurrent(self, wanted: Filter) -> None:
        """Mirror llama_memory_recurrent: always f32, independent of the context's length."""
        hp, context = self.hp, self.context
        # a state cannot be cut back as cells can, so a draft keeps one more for each step that may
        # be taken back
        rows = max(1, context.n_seq_max) * (1 + context.n_rs_seq)
        # the convolution's last columns, the state itself, and the history of per-layer embeddings
        r, s, p = hp.n_embd_r(), hp.n_embd_s(), hp.ple_conv_state()
        layers: list[tuple[int, Tensors]] = []
        for il in range(hp.n_layer):
            if not wanted(il):
                continue
            made = {
                "r": self.tensor("cache_r", il, "f32", r, rows),
                "s": self.tensor("cache_s", il, "f32", s, rows),
            }
            if p and il in hp.ple_layers:
                made["p"] = self.tensor("cache_ple_r", il, "f32", p, rows)
            layers.append((il, made))
        self.keep("recurrent", rows, 1, layers)

    def compressor(self, name: str, ratio: int, width: int, rows: int) -> None:
        """Mirror llama_dsv4_comp_state."""
        hp, context = self.hp, self.context
        # one plane for each sequence, and for each step that a draft may take back
        planes = context.n_seq_max * (1 + context.n_rs_seq)
        layers: list[tuple[int, Tensors]] = []
        for il in range(hp.n_layer):
            if hp.compress_ratios[il] == ratio:
                made = {
                    part: self.tensor(f"dsv4_{name}_state_{part}", il, "f32", width, rows, planes)
                    for part in ("kv", "score")
                }
                layers.append((il, made))
        self.keep(f"{name}-state", rows, planes, layers)


def allocate(
    model: Model,
    context: Context,
    placement: Placement,
    target: Target | None = None,
) -> Memory:
    """Return every cache of `context`, on the devices of `placement`. `target`: for a draft, the
    model whose context it may use.

    Raises LaunchRefused if llama.cpp would abort or needs another model's context.
    """
    hp, row = model.hparams, model.row
    build = _Builder(model, context, placement)
    n = hp.n_layer
    mtp = context.kind == "mtp"
    kind = row.memory
    # older builds gave encoders with a window a cache
    if kind == "none" and hp.swa_type != "none" and not context.rules.windows_without_cache:
        kind = "kv"
    if target is not None and "cache" in row.borrows:
        # the target's caches. The assistant's layers read its last ones: its second to last if they
        # slide, otherwise its last.
        theirs, context, memory = target
        caches = []
        # llama_kv_cache's `share`: no tensor is new, so nothing is counted
        for cache in memory.caches:
            sliding = cache.kind == "swa"
            # a target without such a layer: any of its cache has the same shape
            lender = cache.layer(theirs.n_layer - (2 if sliding else 1)) or cache.layers[0]
            readers = {il: lender.il for il in range(hp.n_layer_all) if hp.is_swa(il) == sliding}
            caches.append(replace(cache, reused=readers))
        return Memory(tuple(caches), {}, (theirs, context))
    # llama_context's constructor asks for ctx_other where tok_embd or output is missing
    if target is None and not all(name in model.tensors for name in row.borrows):
        raise LaunchRefused(
            f"{row.name} requires ctx_other to be set: it drafts for another model (-md), not alone"
        )

    # only the MTP blocks, which come after the model's layers
    def block(il: int) -> bool:
        return il >= n

    # an MTP block attends to everything, without an indexer or a state
    if mtp and (kind in ("dsa", "dsa-iswa") or (kind == "hybrid" and row.mtp)):
        build.attention("attn", block)
    elif mtp and kind == "dsv4":
        build.window(block)
    else:
        _KINDS.get(kind, _plain)(build, model)
    memory = Memory(tuple(build.caches), build.buffers)
    return memory if model.body is None or mtp else _measured(memory, model.body, context)


def _measured(memory: Memory, body: Body, context: Context) -> Memory:
    """Return the caches of a model without rules with what the installed program measured of them:
    the layers' bounds tell which device has which part of it, to a layer."""
    bound = sum(memory.buffers.values())
    n = 1 if context.n_stream > 1 else context.n_seq_max
    cells = context.n_ctx_seq if context.n_stream > 1 else context.n_ctx
    one = body.cached(context.n_ubatch, cells)
    size = context.n_stream * one + (n - 1) * body.fixed
    if body.types != (context.type_k, context.type_v) or not one or size >= bound:
        return memory
    share = size / bound
    sizes = [t.size for cache in memory.caches for layer in cache.layers for t in layer.tensors]
    layer = 2 * max(sizes, default=0) if len(memory.buffers) > 1 else 0
    buffers = {
        name: min(whole, int(whole * share) + layer) for name, whole in memory.buffers.items()
    }
    return replace(memory, buffers=buffers, share=share)


def _every(il: int) -> bool:
    return True


def _without_cache(build: _Builder, model: Model) -> None:
    """Add the cache that older builds gave an encoder, which needs none."""
    if not build.context.rules.encoders_without_cache:
        build.attention("attn", _every)


def _msa(build: _Builder, model: Model) -> None:
    """Mirror llama_kv_cache with an indexer's keys and values."""
    build.attention("attn", _every)
    build.indexer("idx", model.hparams.has_indexer, k_only=False)


def _dsa(build: _Builder, model: Model) -> None:
    """Mirror llama_kv_cache with an indexer's keys, where the file has an indexer."""
    hp, row, context = model.hparams, model.row, build.context
    n = hp.n_layer
    # builds with a graph for MTP blocks leave them out of the trunk's cache (filter_mla)
    blocks_too = not row.trunk_only or context.rules.lacks(row.mtp_after)

    def indexes(il: int) -> bool:
        return hp.has_indexer(il) or (row.trunk_only and blocks_too and il >= n)

    build.attention("attn", _every if blocks_too else lambda il: il < n)
    # HY V4 also comes without an indexer
    if hp.indexer_top_k or not row.indexer_optional:
        build.indexer("lid", indexes, k_only=hp.is_mla)


def _dsa_iswa(build: _Builder, model: Model) -> None:
    """Add what `_dsa` adds, with sliding layers, which have no indexer."""
    hp, context = model.hparams, build.context
    n = hp.n_layer
    build.attention("attn", lambda il: il < n and not hp.is_swa(il))
    build.indexer("lid", hp.has_indexer)
    cells = build.window_cells(context.kv_unified)
    build.attention("swa", lambda il: il < n and hp.is_swa(il), n_cells=cells)


def _plain(build: _Builder, model: Model) -> None:
    """Mirror llama_kv_cache, or llama_kv_cache_iswa with a sliding window."""
    hp, context = model.hparams, build.context
    rules, n = context.rules, hp.n_layer
    wanted: Filter = _every
    # otherwise one cache has the trunk and the MTP blocks
    # builds, and architectures, that keep MTP blocks out of the trunk's cache
    apart = rules.nextn_apart or rules.nextn_left_out or model.row.trunk_before
    if hp.n_layer_nextn and n and hp.router_layer < 0 and apart:
        wanted = (lambda il: il >= n) if context.kind == "mtp" else (lambda il: il < n)
    # before Rules.window_cache sliding layers kept the whole context
    if hp.swa_type == "none" or not rules.window_cache:
        build.attention("attn", wanted)
    elif not hp.is_swa_any:
        raise LaunchRefused(
            "the model has a sliding window but no layer that uses it; llama.cpp aborts"
        )
    else:
        build.window(wanted)


def _hybrid(build: _Builder, model: Model) -> None:
    """Mirror llama_memory_hybrid: attention in some layers, a recurrent state in the others."""
    hp, row = model.hparams, model.row
    n = hp.n_layer
    # the draft head is a single attention layer with an indexer
    if row.memory == "hybrid-idx" and build.context.kind == "mtp":
        build.attention("attn", lambda il: il >= n)
        build.recurrent(lambda il: False)
        build.indexer("idx", lambda il: il >= n, factor=build.pooled(), tag="idx_")
        return
    # which layers have attention, and which have a recurrent state
    # Falcon-H1: attention and a state in each layer
    if row.recurrent == "every":
        attends, recurs = _every, _every
    # Nemotron-H: a layer is attention, or a state, or a feed-forward alone
    elif row.recurrent == "no-kv-no-ff":
        attends, recurs = (
            lambda il: not hp.is_recr(il) and hp.n_ff(il) == 0,
            lambda il: hp.is_recr(il) and hp.n_ff(il) == 0,
        )
    else:
        # MTP blocks of the others have their cells in the same cache
        trunk = hp.n_layer if row.trunk_only else hp.n_layer_all
        attends, recurs = (lambda il: not hp.is_recr(il) and il < trunk), hp.is_recr
    context = build.context
    if hp.swa_type == "none":
        n_cells = context.n_ctx_seq if context.rules.hybrid_cells else context.n_ctx
        build.attention("attn", attends, n_cells=n_cells)
    else:
        build.window(attends)
    build.recurrent(recurs)
    if row.memory == "hybrid-idx" and hp.indexer_head_size:
        build.indexer(
            "idx", lambda il: attends(il) and hp.has_indexer(il), factor=build.pooled(), tag="idx_"
        )


def _recurrent(build: _Builder, model: Model) -> None:
    build.recurrent(_every)


def _deepseek4(build: _Builder, model: Model) -> None:
    """Mirror llama_kv_cache_dsv4: a window of raw keys and two levels of compressed ones, always
    one stream per sequence."""
    hp, context = build.hp, build.context
    streams = context.n_seq_max
    ratios = hp.compress_ratios

    # dsv4_comp_size: rows of compressed tokens, rounded up, then padded like any cache
    def cells(ratio: int) -> int:
        return pad(max(1, -(-context.n_ctx_seq // ratio)), CELL_BLOCK)

    # every layer has the raw window, whatever else it reads
    build.window(lambda il: True, k_only=True, unified=False)
    for kind, ratio in (("csa", CSA_RATIO), ("hca", HCA_RATIO)):
        build.attention(
            kind,
            lambda il, ratio=ratio: ratios[il] == ratio,  # type: ignore[misc]
            n_cells=cells(ratio),
            k_only=True,
            n_stream=streams,
        )
    build.attention(
        "lid",
        lambda il: ratios[il] == CSA_RATIO,
        n_cells=cells(CSA_RATIO),
        k_only=True,
        n_stream=streams,
        width=lambda il: hp.indexer_head_size,
    )
    # (columns, rows): a row of CSA joins two windows, so both are twice as large
    build.compressor("csa", CSA_RATIO, 2 * hp.head_k(0), 2 * CSA_RATIO)
    build.compressor("hca", HCA_RATIO, hp.head_k(0), HCA_RATIO)
    build.compressor("lid", CSA_RATIO, 2 * hp.indexer_head_size, 2 * CSA_RATIO)


# by Architecture.memory; any other is a plain cache
_KINDS: dict[str, Callable[[_Builder, Model], None]] = {
    "none": _without_cache,
    "msa": _msa,
    "dsa": _dsa,
    "dsa-iswa": _dsa_iswa,
    "dsv4": _deepseek4,
    "recurrent": _recurrent,
    "hybrid": _hybrid,
    "hybrid-idx": _hybrid,
}
