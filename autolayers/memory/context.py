"""From flags to the values of llama.cpp's context: llama-server's defaults, roundings and refusals
in one place. It follows these functions, as modelled, in their order: tools/server/server.cpp
(slots, embedding batch, pool size), tools/server/server-context.cpp:server_output_limits,
common/fit.cpp (its effect on n_ctx), src/llama-context.cpp:llama_init_from_model (refusals) and
llama_context's constructor (roundings)."""

from __future__ import annotations

from ..builds import NEWEST_RULES, Rules
from ..engines import LLAMA_SERVER
from ..errors import LaunchRefused
from ..flags.kinds import CACHE_TYPES
from ..flags.params import N_BATCH, N_PARALLEL, N_UBATCH, POOLING_TYPES, Params
from ..ggml.types import IK_NAMES
from ..gguf import BY_NAME
from ..records import dataclass, replace
from ..tables import rows
from ..units import MiB, pad

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Model
    from ..model.hparams import Hparams

CELL_BLOCK = 256  # a context is a multiple of this many cells (GGML_PAD of n_ctx)
_MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
_TASK_SEQUENCES = 4  # of llama-perplexity's tasks
DRAFT_N_MAX = 3  # --spec-draft-n-max
_SPECULATIVE = {row["type"]: row for row in rows("memory/speculative.tsv")}


@dataclass(frozen=True)
class Context:
    """llama.cpp's context parameters after every automatic change. `kind` is "default", or "mtp"
    for the second context of a model that drafts with its own MTP blocks."""

    n_ctx: int  # cells of all sequences together
    n_ctx_seq: int  # cells one sequence may use
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    kv_unified: bool
    flash_attn: str  # on, off, auto (decided by the graph)
    type_k: str
    type_v: str
    offload_kqv: bool = True
    op_offload: bool = True
    swa_full: bool = False
    n_outputs_max: int = 1
    n_rs_seq: int = 0  # tokens by which a recurrent state can be rolled back
    causal: bool = True
    embeddings: bool = False
    pooling: str = "none"  # none mean cls last rank
    load_mtp: bool = False
    split_mode: str = "layer"
    kind: str = "default"
    moe_cache: int = 0  # bytes for experts that are cached on devices
    moe_split: tuple[float, ...] = ()  # the devices' shares of them; empty: by free memory
    # outputs per sequence that its backend samples (as drafts do); 0: the CPU does
    n_sampled: int = 0
    backend_sampling: bool = False  # -bs: each output's samplers are part of the graph
    layer_inputs: tuple[int, ...] = ()  # layers whose inputs a draft reads
    rules: Rules = NEWEST_RULES  # of the build

    @property
    def n_stream(self) -> int:
        """Separate caches: one shared by all sequences, or one each."""
        return 1 if self.kv_unified else self.n_seq_max

    @property
    def v_trans(self) -> bool:
        """V is stored transposed only if flash attention is explicitly off; auto counts as on."""
        return self.flash_attn == "off"


def cell_block(flash_attn: str, rules: Rules) -> int:
    """Return the number that a cache's cells are a multiple of."""
    return CELL_BLOCK if rules.cells_by_256 or flash_attn != "off" else 32


def resolve(
    model: Model, params: Params, rules: Rules = NEWEST_RULES, kind: str = "default"
) -> Context:
    """Return the Context of `params` on `model`; None in params is llama-server's default. Raises
    LaunchRefused with llama.cpp's reason if it would not create the context."""
    hp, row = model.hparams, model.row
    _refuse_types(model, rules)
    _refuse_file(model, rules)
    # llama-perplexity changes its own flags before anything is loaded
    if rules.engine.chunk:
        params = _in_chunks(params, rules.engine.chunk)
    embeddings = bool(params.embedding or params.reranking)
    n_batch, n_ubatch = _batches(params, embeddings)
    # slots come before the context: --fit and --kv-unified-per-slot multiply by them
    n_seq_max, unified = _sequences(params, rules)
    if n_seq_max > _MAX_SEQUENCES:
        raise LaunchRefused(f"n_seq_max must be <= {_MAX_SEQUENCES}")
    if n_batch == 0 and n_ubatch == 0:
        raise LaunchRefused("n_batch and n_ubatch cannot both be zero")

    n_ctx = _wanted_context(model, params, n_seq_max, unified)
    # not causal: encoders and diffusion models read a batch as a whole
    causal = hp.causal
    n_outputs_max = _outputs(params, embeddings, n_batch, n_seq_max)
    # llama_context::llama_context: causal attention cannot use a batch longer than the context
    n_batch = min(n_ctx, n_batch) if causal else n_batch
    if rules.engine.whole_batches or not rules.output_limit:
        n_outputs_max = n_batch  # the head's buffer holds every token of a micro-batch
    # -ub 0 means the batch
    n_ubatch = min(n_batch, n_ubatch or n_batch)
    # llama_model_has_encoder: the encoder's result has a row for each token
    if row.all_outputs:
        n_outputs_max = n_batch
    if not rules.streams:
        unified = True  # one cache for all sequences
    # flash attention depends on the types, and the size of a block on flash attention
    type_k, type_v = params.cache_type_k or "f16", params.cache_type_v or "f16"
    # refuse cache types that came after this build
    types = (type_k, type_v)
    for type_ in types:
        if rules.lacks(CACHE_TYPES.get(type_, 0)):
            raise LaunchRefused(
                f"Unsupported cache type: {type_} (llama.cpp build {rules.number} is older)"
            )
    split_mode = params.split_mode or "layer"
    flash_attn = _flash_attention(
        model, params.flash_attn or "auto", type_k, type_v, split_mode, rules
    )
    block = cell_block(flash_attn, rules)
    n_ctx, n_ctx_seq = _padded(n_ctx, n_seq_max, unified, block, model, rules)
    if kind == "mtp":
        _refuse_mtp(model, rules)
    # llama_moe_cache splits its budget by -ts, or by free memory if all of it is 0
    split = params.moe_cache_mib and any(params.tensor_split or ())
    # what --pooling says, or else the file
    if params.pooling or params.reranking:
        pooling = params.pooling or "rank"
    else:
        pooling = dict(enumerate(POOLING_TYPES)).get(hp.pooling_type, "none")
    context = Context(
        n_ctx=n_ctx,
        n_ctx_seq=n_ctx_seq,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_seq_max=n_seq_max,
        kv_unified=unified,
        flash_attn=flash_attn,
        type_k=type_k,
        type_v=type_v,
        offload_kqv=params.kv_offload is not False,
        op_offload=params.op_offload is not False,
        # an engine with one cache keeps all cells for sliding layers as well
        swa_full=bool(params.swa_full) or rules.engine.one_cache,
        n_outputs_max=n_outputs_max,
        n_rs_seq=_rollback(params, rules) if row.rollback and kind == "default" else 0,
        causal=causal,
        embeddings=embeddings,
        pooling=pooling,
        load_mtp="draft-mtp" in params.spec_type,
        split_mode=split_mode,
        kind=kind,
        rules=rules,
        backend_sampling=bool(params.backend_sampling) and kind == "default",
        moe_cache=(params.moe_cache_mib or 0) * MiB if kind == "default" else 0,
        moe_split=tuple(params.tensor_split or ()) if split else (),
    )
    _refuse_aborts(model, context)
    return context


def _batches(params: Params, embeddings: bool) -> tuple[int, int]:
    """Return -b and -ub, or llama-server's defaults."""
    n_batch = N_BATCH if params.n_batch is None else params.n_batch
    n_ubatch = N_UBATCH if params.n_ubatch is None else params.n_ubatch
    # an embedding needs its whole input in one micro-batch
    return min(n_batch, n_ubatch) if embeddings else n_batch, n_ubatch


def _padded(
    n_ctx: int, n_seq_max: int, unified: bool, block: int, model: Model, rules: Rules
) -> tuple[int, int]:
    """Return the cells of the context and those of a sequence, as llama_context::llama_context
    pads the context and each sequence's share of it."""
    n_ctx = pad(n_ctx, block)
    if model.row.memory == "hybrid" and not rules.cells_by_256:
        # what a request may use; each slot's cache has n_ctx
        return n_ctx, n_ctx // (1 if unified else n_seq_max)
    if unified:
        return n_ctx, n_ctx
    # n_ctx is divided by the slots and each part rounded up, so the sum may exceed -c
    n_ctx_seq = pad(n_ctx // n_seq_max, block)
    return n_ctx_seq * n_seq_max, n_ctx_seq


def _wanted_context(model: Model, params: Params, n_seq_max: int, unified: bool) -> int:
    """Return the cells that the flags ask for, or the model's trained context. Raises LaunchRefused
    without both."""
    n_ctx = params.n_ctx or 0
    # a given -c wins over a context per slot
    if params.kv_unified_per_slot and params.n_ctx is None:
        n_ctx = n_seq_max * params.kv_unified_per_slot
    if n_ctx == 0:
        # llama-server's own --fit, on by default, gives every slot the full trained context. A
        # launch that autolayers writes sets the context or turns --fit off, so only a requested
        # --fit counts here
        n_ctx = _trained_context(model, params) * (n_seq_max if params.fit and not unified else 1)
    if n_ctx == 0:
        raise LaunchRefused("n_ctx and model->hparams.n_ctx_train cannot both be zero")
    return n_ctx


def _refuse_mtp(model: Model, rules: Rules) -> None:
    """Raise LaunchRefused if the file has no MTP blocks, or this build no graph for them."""
    hp, row = model.hparams, model.row
    if hp.n_layer_nextn == 0 or hp.router_layer >= 0:
        raise LaunchRefused("context type MTP requested but model doesn't contain MTP layers")
    if row.known and (not row.mtp or rules.lacks(row.mtp_after)):
        # "" where no build has a graph for them
        build = f"build {rules.number} " * bool(row.mtp)
        raise LaunchRefused(
            f"context type MTP requested but llama.cpp {build}has no graph for the MTP blocks of "
            f"{row.name}"
        )


def _refuse_aborts(model: Model, context: Context) -> None:
    """Refuse launches that llama.cpp accepts but then aborts on while it builds its graphs
    (GGML_ASSERT)."""
    hp, row = model.hparams, model.row
    slots = context.n_seq_max
    if context.rules.output_limit and context.n_outputs_max < slots:
        raise LaunchRefused(
            f"llama.cpp aborts with a batch (-b {context.n_batch}) below the {slots} slots; use "
            f"-np {context.n_batch} or a larger -b"
        )
    # ubatch_reserve gives every slot as many tokens as the others
    if min(context.n_ctx, context.n_ubatch) % slots:
        # refuse micro-batches that the slots do not divide, where llama.cpp needs them to
        mean = context.embeddings and _pools_mean(model.hparams, context)
        if mean or _divides_by_streams(model, context):
            what = "mean pooling" if mean else f"{model.row.name} without --kv-unified"
            sizes = (
                f"n_ubatch ({context.n_ubatch}) is a multiple of the slots ({context.n_seq_max})"
            )
            raise LaunchRefused(f"{what}: llama.cpp aborts unless {sizes}")
    # its graph is written for one stream
    if row.one_stream and context.n_stream > 1:
        raise LaunchRefused(
            f"{row.name}: llama.cpp aborts with {slots} slots that have a cache each; use "
            "--kv-unified"
        )
    if row.needs_window and hp.swa_type == "none":
        raise LaunchRefused(
            f"{row.name} without attention.sliding_window: llama.cpp aborts while it builds the "
            "graph"
        )


def _pools_mean(hp: Hparams, context: Context) -> bool:
    """Return whether embeddings are means, a reranker's before its head too."""
    if context.pooling == "rank":
        return bool(hp.pooling_type_cls == POOLING_TYPES.index("mean"))
    return context.pooling == "mean"


def _divides_by_streams(model: Model, context: Context) -> bool:
    """Return whether the tokens of a prompt must divide by the slots: a prompt of one sequence is
    reserved too, and attention divides its tokens by the streams of all slots."""
    hp, row = model.hparams, model.row
    if row.even_slots is None or context.kv_unified or not context.rules.has(row.even_slots):
        return False
    return any(not hp.is_recr(il) for il in range(hp.n_layer - 1))


def refuse_first_token(model: Model, context: Context) -> None:
    """Raise LaunchRefused for a launch whose buffers llama.cpp allocates, and that ends at its
    first token (GGML_ASSERT of b11549).

    ggml_backend_meta_graph_compute (ggml/src/ggml-backend-meta.cpp) cannot cut the graph of caches
    in host memory with several streams. tools/server/ never calls llama_encode, in any build; nor
    does llama-cli since it is its client.
    """
    engine = context.rules.engine
    apart = context.n_stream > 1 and not context.offload_kqv
    if context.split_mode == "tensor" and apart:
        raise LaunchRefused(
            f"-sm tensor and -nkvo with {context.n_stream} slots that have a cache each: llama.cpp "
            "aborts at the first token (ggml-backend-meta.cpp: GGML_ASSERT(i_start == "
            "cgraph->n_nodes)); use --kv-unified or -np 1"
        )
    serves = engine is LLAMA_SERVER or (engine.name == "llama-cli" and context.rules.output_limit)
    if model.row.cross_attends and serves:
        raise LaunchRefused(
            f"{model.row.name} with its decoder: {engine.name} aborts at the first token "
            "(llama_encode must be called first); llama-completion runs it"
        )


def _in_chunks(params: Params, chunk: int) -> Params:
    """Return the parameters of llama_perplexity (tools/perplexity/perplexity.cpp): -c is of one
    chunk, and a batch has as many chunks as it holds. Tasks (--hellaswag) have four sequences in
    one cache."""
    n_ctx = chunk if params.n_ctx is None else params.n_ctx
    if n_ctx <= 0:
        raise LaunchRefused("perplexity tool requires '--ctx-size' > 0")
    n_batch = N_BATCH if params.n_batch is None else params.n_batch
    # n_parallel = max(1, n_batch / n_ctx) there
    chunks = max(1, n_batch // n_ctx, _TASK_SEQUENCES if params.kv_unified else 1)
    n_batch = min(n_batch, chunks * n_ctx)
    return replace(params, n_ctx=chunks * n_ctx, n_parallel=chunks, n_batch=n_batch)


def _refuse_types(model: Model, rules: Rules) -> None:
    """Raise LaunchRefused for tensor types of ik_llama.cpp alone ("invalid ggml type")."""
    types = sorted(model.tensor_types & IK_NAMES) if rules.engine.is_llama_cpp else []
    if types:
        raise LaunchRefused(
            f"{', '.join(types)}: llama.cpp does not load this file; ik_llama.cpp does (--engine "
            "ik_llama.cpp)"
        )


def _sequences(params: Params, rules: Rules) -> tuple[int, bool]:
    """Return (n_seq_max, kv_unified)."""
    # server.cpp: -np -1 becomes four slots that share one cache
    if params.n_parallel is None or params.n_parallel < 0:
        return (N_PARALLEL, True) if rules.auto_slots else (1, False)
    # Jan adds background slots to those of the user
    if rules.engine.hidden_slots:
        unified = params.kv_unified is not False
        return max(1, params.n_parallel) + rules.engine.hidden_slots, unified
    # KoboldCpp's continuous batching: n_seq_max is its slots + 1
    if rules.engine.spare_sequence and params.n_parallel > 1:
        return params.n_parallel + 1, True
    return max(1, params.n_parallel), bool(params.kv_unified)


def _refuse_file(model: Model, rules: Rules) -> None:
    """Raise LaunchRefused if this build would not load the file: its architecture, a tensor or a
    missing key."""
    hp, row = model.hparams, model.row
    if rules.lacks(row.after):
        raise LaunchRefused(
            f"unknown model architecture: '{row.name}' (llama.cpp build {rules.number} is older)"
        )
    # refuse a file with tensors that this build does not load (done_getting_tensors)
    # done_getting_tensors counts: a tensor that the build does not create is one too many
    for end, after in row.newer:
        # Whether a tensor's name ends with these words.
        if rules.lacks(after) and any(f".{name}".endswith(f".{end}") for name in model.tensors):
            raise LaunchRefused(
                f"wrong number of tensors: llama.cpp build {rules.number} knows no {end} of "
                f"{row.name}"
            )
    # some architectures skipped the MTP blocks' tensors before they could run them
    drafts = hp.n_layer_nextn and hp.router_layer < 0
    if drafts and rules.lacks(row.mtp_after) and not row.mtp_skipped:
        raise LaunchRefused(
            f"wrong number of tensors: llama.cpp build {rules.number} has no MTP blocks of "
            f"{row.name}"
        )
    # builds that do not read the key take the architecture's own function
    gates = row.reads_gating is not None and rules.has(row.reads_gating)
    if gates and hp.get("expert_gating_func") == 0:
        raise LaunchRefused(
            f"{row.name} with an expert_gating_func of 0: llama.cpp build {rules.number} aborts "
            "while it builds the graph (build_moe_ffn)"
        )
    window, pattern = row.window, "attention.sliding_window_pattern"
    # these architectures need the key in older builds, as an array
    wants_list = window is not None and window.list_before and not rules.window_lists
    if wants_list and hp.n_swa and hp.get(pattern) is None:
        raise LaunchRefused(
            f"key not found in model: {row.name}.{pattern} (llama.cpp build {rules.number} needs "
            "it)"
        )


def _trained_context(model: Model, params: Params) -> int:
    """Return n_ctx_train; --fit reads it after a custom YaRN scale has stretched it."""
    hp = model.hparams
    scaling = params.rope_scaling or hp.rope_scaling_type
    if not params.fit or scaling != "yarn" or not params.rope_scale:
        return hp.n_ctx_train
    trained = hp.rope_scaling_factor or hp.rope_scale_linear or 1.0
    if params.rope_scale == trained:
        return hp.n_ctx_train
    # YaRN stretches the original context, not the trained one
    original = params.yarn_orig_ctx or hp.n_ctx_orig_yarn or hp.n_ctx_train
    return int(original * params.rope_scale)


def _outputs(params: Params, embeddings: bool, n_batch: int, n_seq_max: int) -> int:
    # server_output_limits: an embedding needs the result of every token
    if embeddings or params.pooling not in (None, "none"):
        return n_batch
    # a draft model alone is loaded but not used
    most = [_SPECULATIVE[t]["tokens"] for t in params.spec_type if t in _SPECULATIVE]
    # a slot verifies its draft's tokens and one more in a batch
    n_draft = max([drafted(params) if n == "draft" else int(n) for n in most], default=0)
    return max(1, min(n_batch, n_seq_max * (1 + n_draft)))


def _rollback(params: Params, rules: Rules) -> int:
    """Return the tokens by which a draft makes a recurrent state go back."""
    # KoboldCpp keeps earlier states for a draft of any kind
    going_back = speculates(params, "drafts" if rules.engine.rolls_back else "rolls_back")
    return drafted(params) if going_back else 0


def speculates(params: Params, column: str) -> bool:
    """Return whether --spec-type names a kind with that column of speculative.tsv."""
    return any(_SPECULATIVE.get(name, {}).get(column) for name in params.spec_type)


def drafted(params: Params) -> int:
    """Return the tokens that a draft proposes at most."""
    return DRAFT_N_MAX if params.draft_n_max is None else max(0, params.draft_n_max)


def _flash_attention(
    model: Model, wanted: str, type_k: str, type_v: str, split_mode: str, rules: Rules
) -> str:
    """Return on, off or auto, as llama_init_from_model and the context change what is `wanted`.
    Raises LaunchRefused for cache types that it excludes."""
    hp, row = model.hparams, model.row
    # ik_llama.cpp: on but for -fa off
    if wanted == "auto" and rules.engine.one_cache:
        wanted = "on"
    # builds whose -fa is a switch, off by default
    if wanted == "auto" and not rules.flash_word:
        wanted = "off"
    # llama_init_from_model: some architectures (Grok) have none
    flash_attn = wanted if row.flash_attn else "off"
    # older builds force it off for such models (llama_init_from_model)
    if not rules.flash_unlike_heads and hp.head_k(0) != hp.head_v(0):
        flash_attn = "off"
    if split_mode == "tensor":
        # refuse where -sm tensor does not run
        if not rules.splits_tensors:
            raise LaunchRefused("this llama.cpp has no -sm tensor")
        if not model.row.split_tensor:
            raise LaunchRefused(
                f"split mode tensor is not implemented for architecture {model.row.name}"
            )
        if flash_attn == "off":
            raise LaunchRefused("SPLIT_MODE_TENSOR requires flash_attn to be enabled")
        flash_attn = "on"
    # with latent attention V is a view of K's cells, so both have one type
    if (hp.is_mla or row.memory == "dsv4") and type_k != type_v and rules.mla_one_type:
        raise LaunchRefused(
            f"model does not support different K ({type_k}) and V ({type_v}) cache types"
        )
    # without flash attention V is stored transposed, a row for each channel: a new token would
    # write one element into each row, which a quantised block cannot take
    if BY_NAME[type_v].blck_size > 1:
        if flash_attn == "off":
            reason = "quantized V cache requires flash_attn to be enabled"
            raise LaunchRefused(
                reason if row.flash_attn else f"{reason}, which {row.name} does not support"
            )
        # newer builds enable it where a quantised V requires it
        if rules.quantised_v_flash:
            flash_attn = "on"
    if flash_attn != "off":
        _refuse_heads("K", type_k, hp.head_k, hp.n_layer)
        _refuse_heads("V", type_v, hp.head_v, hp.n_layer)
    return flash_attn


def _refuse_heads(letter: str, type_: str, head: Callable[[int], int], n_layer: int) -> None:
    """Raise LaunchRefused if blocks of the cache's type do not fill a layer's head."""
    block = BY_NAME[type_].blck_size
    # a block may not straddle two heads
    for il in range(n_layer) if block > 1 else ():
        if head(il) % block:
            raise LaunchRefused(
                f"{letter} cache type {type_} with block size {block} does not "
                f"divide n_embd_head_{letter.lower()}={head(il)}"
            )
