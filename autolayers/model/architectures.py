"""One row per architecture: how llama.cpp's loader, caches and graphs differ from the generic rule.

A row is the difference to a plain transformer whose layers all keep keys and values (llama). Rows
and the builders of autolayers.graph are the only places that know an architecture by name. A row
mirrors src/models/<name>.cpp (load_arch_hparams, load_arch_tensors), create_memory of
src/llama-model.cpp, and what src/llama-graph.cpp and src/llama-context.cpp ask by name (as
modelled, see autolayers.builds).
"""

from __future__ import annotations

from ..builds import Rule, Rules
from ..records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from typing import Any, Literal

    State = Literal["", "ssm", "ssm-groups", "kda", "rwkv", "shortconv", "linear"]


@dataclass(frozen=True)
class SlidingWindow:
    """Sliding-window attention: the last of every `period` layers is full (the first, if
    `dense_first`); 0: all slide."""

    period: int = 0
    # which models slide: window: with a sliding_window above 0; attention: the same, in layers that
    # are not recurrent; always; required: always, and not without the key; deep: those of 64
    # layers; not-zero: unless the key is 0
    when: Literal["window", "attention", "always", "required", "deep", "not-zero"] = "window"
    kind: Literal["standard", "symmetric", "chunked"] = "standard"
    size: int = 0  # used if the file has no sliding_window
    fixed: int = 0  # used whatever the file has
    dense_first: bool = False
    # builds before Rules.window_lists read an array too, and want the key; of others only a period
    list_before: bool = False
    array: bool = False  # the pattern is always an array; without one no layer slides
    # every layer slides in a model with residual streams (hyper_connection.count)
    all_with_streams: bool = False


@dataclass(frozen=True)
class Architecture:
    """Fields with their meaning; the defaults make llama."""

    name: str

    # hyperparameters
    # llama_model_rope_type; mrope|x: mrope if the file has sections, otherwise x; hc-norm: norm
    # with residual streams
    rope: Literal[
        "none", "norm", "neox", "mrope", "imrope", "mrope|norm", "mrope|neox", "mrope|hc-norm|neox"
    ] = "norm"
    # what turns rope off: the key rope.scaling.finetuned, or by layer attention.rope_pattern
    rope_switch: Literal["", "finetuned", "pattern"] = ""
    half_rope: bool = False  # full attention rotates half of rope.dimension_count
    whole_rope: bool = False  # a head is rotated as a whole, or llama.cpp does not load the file
    defaults: Mapping[str, float] = field(default_factory=dict)  # unusual defaults of missing keys
    # key_length and value_length are read even if the first layer has no heads
    head_sizes: bool = False
    latent_value: bool = False  # a value head is kv_lora_rank wide
    mla: Literal["", "required", "optional"] = ""  # key_length_mla and value_length_mla are read
    features: bool = False  # the layers are features_length wide, the output embedding_length
    one_expert: bool = True  # False: expert_count 1 means no experts
    loops: bool = False  # num_loops passes over the blocks, each with its own cache
    router: bool = False  # one more block with a single head routes between adapters
    ple: bool = False  # ple.layers: layers that add embeddings of n-grams
    embd_out: Literal["", "streams"] = ""  # n_embd_out is of all residual streams
    # n_embd_inp: n_embd_out, or with its parts
    embd_inp: Literal["", "output", "deepstack_mapping"] = ""
    # a batch may mix tokens and embeddings (llm_arch_supports_mixed_batch)
    mixed_batch: bool = True

    # caches
    memory: Literal[
        "none", "kv", "recurrent", "hybrid", "hybrid-idx", "dsa", "dsa-iswa", "msa", "dsv4"
    ] = "kv"
    window: SlidingWindow | None = None
    causal: bool = True
    # layers with their own cache; 0: n_layer_all - attention.shared_kv_layers; -1: all
    shared_kv: int = -1
    trunk_only: bool = False  # the attention cache leaves the MTP blocks out
    # the same in builds in which not all architectures' do (Rules.nextn_apart)
    trunk_before: bool = False
    # recurrent layers: all; no-kv: with head_count_kv 0 (-all: MTP blocks too, -no-ff: and without
    # FFN); interval: all but every n-th; every: all, and attention too
    recurrent: Literal["", "all", "no-kv", "no-kv-all", "no-kv-no-ff", "interval", "every"] = ""
    interval: int = 4  # n without full_attention_interval
    state: State = ""  # what a recurrent layer keeps; ssm-groups: ssm.group_count is read
    rollback: bool = False  # keeps n_rs_seq more recurrent rows for speculative decoding
    # layers with an indexer: trunk: all but MTP blocks; glm: GLM's table; types:
    # attention.indexer.types, otherwise none (or all); after-dense: after
    # leading_dense_block_count; attention: those that are not recurrent
    indexer: Literal["", "trunk", "glm", "types", "types-or-all", "after-dense", "attention"] = ""
    indexer_optional: bool = False  # no indexer without attention.indexer.top_k
    rotated_indexer: bool = False  # its keys are rotated for any cache type

    # tensors
    # output = token_embd: when output is absent; always; first: as absent, and created before
    # token_embd; never
    tied: Literal["absent", "always", "first", "never"] = "absent"
    output_twice: bool = False  # without token_embd the output matrix is stored twice
    # tensors outside of blocks that lie with another layer than usual
    places: Mapping[str, Literal["input", "output"]] = field(default_factory=dict)
    # tensors of blocks that an unusual op reads
    ops: Mapping[str, str] = field(default_factory=dict)
    # layers that use rope_freqs and rope_factors: below n_layer; all; full: those that do not slide
    # (-all: MTP blocks too); physical: one pass over the blocks
    rope_users: Literal["", "all", "full", "full-all", "physical"] = ""
    lazy_embd: bool = False  # --lazy-mode reads per_layer_token_embd row by row from the file
    mtp_tensors: bool = True  # False: tensors of MTP blocks are never loaded
    mtp_leaks: str = ""  # regex of tensors of skipped MTP blocks that are loaded anyway
    # builds without it load MTP blocks fully, whether they draft or not
    mtp_whole: Rule | None = None
    # builds without the graph of MTP blocks leave these out; others refuse such a file
    mtp_skipped: bool = False

    # graphs
    # the graph of its MTP block picks the output rows after the head's norm, before it (layer), or
    # after attention (Decoder.mtp); own: in its model's file; "": llama.cpp has none
    mtp: Literal["", "norm", "layer", "attention", "own"] = ""
    mtp_after: int = 0  # the newest build seen without it
    # swiglu_clamp_exp and _shexp are read: experts: only of the experts; fused: of all FFNs of a
    # model with residual streams, as one op; ops: of all, as several ops
    swiglu_clamp: Literal["", "experts", "fused", "ops"] = ""
    cls_act: Literal["TANH", "GELU"] = "TANH"  # of the classification head
    cls_softmax: bool = False  # rank pooling ends in a softmax
    flash_attn: bool = True  # False: flash attention is forced off
    split_tensor: bool = True  # -sm tensor is allowed
    # exceptions to its cuts: whole: nothing is cut; states: no recurrent states; groups: heads by
    # output groups, if there are residual streams; gated: Q with a gate of each head, and delta
    # nets whose keys and values alternate (-apart: whose values follow all keys)
    slices: Literal["", "whole", "states", "groups", "gated", "gated-apart"] = ""
    # graphs in use may be larger than reserved: with the tokens of a sequence; cache: also with
    # what the cache holds
    graph_grows: Literal["", "sequence", "cache"] = ""
    all_outputs: bool = False  # every token of a batch may be an output (encoders)
    # builds with it abort unless every slot has the same share of n_ubatch
    even_slots: Rule | None = None
    one_stream: bool = False  # llama.cpp aborts on several slots with a cache each
    cross_attends: bool = False  # its decoder reads what llama_encode made
    needs_window: bool = False  # llama.cpp aborts on a file without a sliding window

    # drafts and projectors
    # the target's tensors that it uses if its file has none; "cache": the target's
    borrows: tuple[str, ...] = ()
    reads_target: bool = False  # its target keeps the inputs of target_layers
    draft_type: str = ""  # the default --spec-type
    projector: bool = False  # not a model; --mmproj takes it

    ollama_single: bool = False  # Ollama serves it with one slot
    # (rule, what a build without it does otherwise)
    before: tuple[tuple[Rule, Mapping[str, Any]], ...] = ()
    # the newest build whose source was seen without it; llama.cpp refuses it up to there
    after: int = 0
    # (end of a tensor's name, the newest build that refuses a file with such a tensor)
    newer: tuple[tuple[str, int], ...] = ()
    # the oldest build that it was compared with and equal; 0: the oldest of all compared ones
    exact_from: int = 0
    # its graph was rewritten more than once between these builds: their sizes bound none of those
    # in between, for which it is an unknown one
    rewritten: tuple[int, int] | None = None
    # (from this build on, at most this factor more): its graph is another, known by its sizes alone
    changed: tuple[tuple[int, float], ...] = ()
    reads_gating: Rule | None = None  # from which on a gating function of 0 aborts
    proven: bool = True  # its numbers have been compared with llama.cpp's own
    known: bool = True  # False: generated for a name without a row
    note: str = ""  # for docs/architectures.md

    def grown(self, build: int) -> float:
        """Return how many times its graph's size a build takes at most, 0 where that is known."""
        return next((factor for first, factor in reversed(self.changed) if first <= build), 0)

    @property
    def delta_net(self) -> bool:
        """Whether its recurrent layers are delta nets."""
        return self.state == "kda" or "ssm_a" in self.ops


if TYPE_CHECKING:
    _row = Architecture  # a type checker reads this, so it checks every row
else:

    def _row(name, rope="norm", **facts):
        """Return a row, which is built as an Architecture when a model needs it: building all would
        add a third of a millisecond to each start."""
        return name, {"rope": rope, **facts}


_LATE_EMBD: Any = (
    (
        Rules.layer_embd_with_input,
        {
            "places": dict.fromkeys(
                ("per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"), "output"
            )
        },
    ),
)
_LAST_NORM: Any = {"token_embd_norm": "output"}  # misnamed: it is the output norm
_FIRST_NORM: Any = (Rules.lfm2_norm_with_output, {"places": {"token_embd_norm": "input"}})
_LATE = 11311  # exact_from of architectures that no older build was compared for
_UNSPLIT: Any = {"split_tensor": False}
_SIGMOID = {"expert_gating_func": 2}
_ALIBI = {"f_max_alibi_bias": 8.0}
_DELTA = {"ssm_a": "MUL"}  # the decay is a factor, not what SSM_SCAN reads
# older loaders took ssm_a of KDA for SSM_SCAN's
_DECAY_SCANNED: Any = ((Rules.decay_factor, {"ops": {}}),)
_SKIPS_MTP = Rules.skips_undrafted  # for mtp_whole
_MTP_HEAD = r"nextn\.(embed_tokens|shared_head_)"

_TABLE: Any = (
    _row(
        "clip",
        "none",
        memory="none",
        tied="never",
        projector=True,
        proven=False,
        note="only llama-quantize reads it",
    ),
    _row("llama", whole_rope=True),
    _row("llama4", window=SlidingWindow(4, "not-zero", "chunked", fixed=8192), after=4880),
    _row("llama-embed", whole_rope=True, after=7465),
    _row(
        "deci", whole_rope=True, note="layers without attention keep caches of width 0", after=4090
    ),
    _row("falcon", "neox", whole_rope=True),
    _row(
        "grok",
        "neox",
        flash_attn=False,
        split_tensor=False,
        defaults={
            # 1 / sqrt(3), sqrt(6144) and 1 / sqrt(128), as Grok-1's own code has them
            "f_logit_scale": 0.5773502691896257,
            "f_embedding_scale": 78.38367176906169,
            "f_attn_out_scale": 0.08838834764831845,
            "f_attn_logit_softcapping": 30.0,
            "f_router_logit_softcapping": 30.0,
            "f_final_logit_softcapping": 0.0,
        },
    ),
    _row("gpt2", "none", exact_from=9905),
    _row("gptj", "none", proven=False),
    _row("gptneox", "neox", tied="never"),
    _row("mpt", "none", split_tensor=False, exact_from=9905),
    _row("baichuan", tied="never", exact_from=9905),
    _row("starcoder", "norm", exact_from=9905),
    _row("refact", "none", defaults=_ALIBI),
    _row("bert", "neox", memory="none", tied="never"),
    _row(
        "modern-bert",
        "neox",
        defaults={"pooling_type_cls": 1},
        memory="none",
        window=SlidingWindow(3, "window", "symmetric", dense_first=True),
        tied="never",
        cls_act="GELU",
        after=7465,
    ),
    _row("nomic-bert", "neox", memory="none", tied="never"),
    _row("nomic-bert-moe", "neox", memory="none", tied="never", after=4880),
    _row("neo-bert", "norm", memory="none", tied="never", after=5310),
    _row("jina-bert-v2", "none", defaults=_ALIBI, memory="none", tied="never"),
    _row("jina-bert-v3", "neox", memory="none", tied="never", after=6170),
    _row("eurobert", "neox", memory="none", tied="never", after=8135),
    _row("bloom", "none", defaults=_ALIBI, exact_from=9905),
    _row("stablelm", "neox", tied="never"),
    _row("qwen", "neox", tied="never"),
    _row("qwen2", "neox"),
    _row("qwen2moe", "neox", tied="never"),
    _row("qwen2vl", "mrope", after=4090, exact_from=9905),
    _row("qwen3", "neox", cls_softmax=True, after=4880),
    _row("qwen3moe", "neox", after=4880),
    _row(
        "qwen3next",
        "neox",
        memory="hybrid",
        trunk_only=True,
        recurrent="interval",
        state="ssm-groups",
        ops=_DELTA,
        slices="gated-apart",
        mtp="attention",
        mtp_after=10235,
        ollama_single=True,
        after=7055,
        newer=(("attn_gate.weight", 7490),),
    ),
    _row("qwen3vl", "imrope", cls_softmax=True, ollama_single=True, after=6735),
    _row("qwen3vlmoe", "imrope", ollama_single=True, after=6735),
    _row("qwen3tts", "imrope", split_tensor=False, after=10261, exact_from=10280),
    _row(
        "qwen35",
        "imrope",
        memory="hybrid",
        trunk_only=True,
        recurrent="interval",
        state="ssm-groups",
        rollback=True,
        slices="gated",
        ops=_DELTA,
        mtp_whole=_SKIPS_MTP,
        mtp="norm",
        mtp_after=9113,
        ollama_single=True,
        after=7935,
        newer=(("cls.output.weight", 11349),),
        exact_from=10068,
    ),
    _row(
        "qwen35moe",
        "imrope",
        memory="hybrid",
        trunk_only=True,
        recurrent="interval",
        state="ssm-groups",
        rollback=True,
        slices="gated",
        ops=_DELTA,
        mtp_whole=_SKIPS_MTP,
        mtp="norm",
        mtp_after=9113,
        ollama_single=True,
        after=7935,
    ),
    _row(
        "qwen4exp",
        "imrope",
        ple=True,
        embd_out="streams",
        memory="hybrid-idx",
        trunk_only=True,
        recurrent="interval",
        state="ssm-groups",
        rollback=True,
        indexer="attention",
        ops=_DELTA,
        lazy_embd=True,
        slices="gated",
        before=((Rules.qwen4exp_splits_tensors, _UNSPLIT),),
        after=10644,
        exact_from=_LATE,
        rewritten=(11321, 11434),
        changed=((11739, 1.0), (12211, 1.001)),
    ),
    _row("phi2", "neox", tied="never"),
    _row("phi3", "neox", note="the window is read and then disabled"),
    _row("phimoe", "neox", after=4440, exact_from=9905),
    _row("plamo", "neox", tied="never", exact_from=9905),
    _row(
        "plamo2",
        "neox",
        head_sizes=True,
        memory="hybrid",
        recurrent="no-kv",
        state="ssm-groups",
        split_tensor=False,
        after=5830,
    ),
    _row("plamo3", "neox", window=SlidingWindow(8), after=7525, exact_from=9905),
    _row(
        "codeshell",
        "neox",
        output_twice=True,
        note="without token_embd the output matrix is stored twice",
    ),
    _row("orion", "neox", tied="never"),
    _row("internlm2", tied="never"),
    _row("minicpm", defaults={"f_embedding_scale": 12.0}),
    _row("minicpm3", "neox", split_tensor=False, exact_from=9905),
    _row("gemma", "neox", tied="always", exact_from=9905),
    _row("gemma2", "neox", window=SlidingWindow(2, "always", size=4096), tied="always"),
    _row(
        "gemma3",
        "neox",
        defaults={"f_final_logit_softcapping": 0.0},
        window=SlidingWindow(6),
        after=4440,
    ),
    _row(
        # layers 20 and above read the cache of layer 18 or 19
        "gemma3n",
        "neox",
        defaults={"f_attention_scale": 1.0},
        window=SlidingWindow(5, "required"),
        shared_kv=20,
        tied="first",
        split_tensor=False,
        before=_LATE_EMBD,
        after=5310,
    ),
    _row(
        "gemma4",
        "neox",
        defaults={"f_attention_scale": 1.0},
        window=SlidingWindow(0, "required", array=True),
        shared_kv=0,
        tied="first",
        rope_users="full",
        lazy_embd=True,
        before=_LATE_EMBD,
        after=8470,
    ),
    _row(
        "gemma4-assistant",
        "neox",
        defaults={"f_attention_scale": 1.0},
        embd_inp="output",
        window=SlidingWindow(0, "required", array=True),
        tied="always",
        rope_users="full-all",
        mtp_leaks=".",
        mtp="own",
        borrows=("cache",),
        note="its context borrows the target's cache",
        after=9548,
        exact_from=10280,
    ),
    _row(
        "gemma-embedding",
        "neox",
        memory="none",
        window=SlidingWindow(6, "required", "symmetric"),
        causal=False,
        after=6170,
    ),
    _row(
        "gemma-embedding2",
        "neox",
        memory="none",
        defaults={"f_attention_scale": 1.0},
        causal=False,
        window=SlidingWindow(6, "required", "symmetric"),
        tied="never",
        after=11434,
        exact_from=11549,
    ),
    _row("starcoder2", "neox"),
    _row("mamba", "none", memory="recurrent", recurrent="all", state="ssm", split_tensor=False),
    _row(
        "mamba2",
        "none",
        memory="recurrent",
        recurrent="all",
        state="ssm-groups",
        split_tensor=False,
        after=5760,
        exact_from=10068,
    ),
    _row(
        "maple",
        "neox",
        window=SlidingWindow(0, "required", array=True),
        tied="never",
        swiglu_clamp="experts",
        after=10950,
        exact_from=11063,
    ),
    _row(
        "jamba",
        "none",
        memory="hybrid",
        recurrent="no-kv",
        state="ssm",
        split_tensor=False,
        after=5830,
    ),
    _row(
        "falcon-h1",
        "neox",
        memory="hybrid",
        recurrent="every",
        state="ssm-groups",
        split_tensor=False,
        after=5830,
    ),
    _row("xverse", tied="never", exact_from=9905),
    _row("command-r", tied="always"),
    _row(
        "cohere2", window=SlidingWindow(4, "required"), tied="always", after=4090, exact_from=9905
    ),
    _row(
        "cohere2moe",
        defaults=_SIGMOID,
        window=SlidingWindow(4, "required", dense_first=True, list_before=True),
        mtp_leaks=_MTP_HEAD,
        mtp_whole=_SKIPS_MTP,
        mtp="norm",
        after=9621,
        exact_from=9905,
    ),
    _row("dbrx", "neox", tied="never"),
    _row("olmo"),
    _row(
        "olmo2",
        "neox",
        window=SlidingWindow(4),
        tied="never",
        split_tensor=False,
        before=((Rules.olmo2_window, {"window": None}),),
        after=4090,
    ),
    _row("olmoe", "neox", tied="never", split_tensor=False),
    _row(
        "muse-glimmer",
        window=SlidingWindow(4, "required", list_before=True),
        tied="never",
        after=10338,
        exact_from=10566,
    ),
    _row("openelm", "neox", tied="always"),
    _row("arctic"),
    _row("deepseek", after=4090),
    _row(
        "deepseek2",
        mla="optional",
        mtp="norm",
        mtp_after=10248,
        split_tensor=False,
        newer=(("attn_k_b.weight", 4875),),
    ),
    _row("deepseek2-ocr", defaults={"expert_gating_func": 1}, after=8470, exact_from=_LATE),
    _row(
        "deepseek32",
        defaults={"f_norm_eps": 1e-6},
        mla="optional",
        memory="dsa",
        trunk_only=True,
        indexer="trunk",
        rotated_indexer=True,
        mtp_leaks=r"exp_probs_b",
        mtp_skipped=True,
        mtp="norm",
        mtp_after=10235,
        split_tensor=False,
        after=9409,
        exact_from=10068,
    ),
    _row(
        "deepseek4",
        mixed_batch=False,
        embd_out="streams",
        memory="dsv4",
        window=SlidingWindow(0, "required"),
        rollback=True,
        rotated_indexer=True,
        tied="never",
        mtp="own",
        mtp_after=10227,
        swiglu_clamp="fused",
        note="every layer slides, MTP blocks too",
        slices="groups",
        before=((Rules.dsv4_splits_tensors, _UNSPLIT),),
        after=9837,
        newer=(("exp_probs_b_vl.bias", 10760),),
        exact_from=_LATE,
    ),
    _row("chatglm", exact_from=9905),
    _row(
        "glm4",
        "mrope|norm",
        mtp_tensors=False,
        before=((Rules.glm_sections, {"rope": "norm"}),),
        after=4880,
    ),
    _row(
        "glm4moe",
        "mrope|neox",
        defaults=_SIGMOID,
        mtp_skipped=True,
        mtp="norm",
        mtp_after=10593,
        before=((Rules.glm_sections, {"rope": "neox"}),),
        after=5930,
    ),
    _row(
        "glm-dsa",
        defaults=_SIGMOID,
        mla="optional",
        memory="dsa",
        trunk_only=True,
        indexer="glm",
        rotated_indexer=True,
        before=((Rules.glm_dsa_indexes, {"memory": "kv", "indexer": ""}),),
        mtp_leaks=r"exp_probs_b",
        mtp_whole=_SKIPS_MTP,
        mtp_skipped=True,
        mtp="norm",
        mtp_after=10173,
        split_tensor=False,
        after=7935,
        exact_from=10068,
    ),
    _row(
        "bitnet",
        "neox",
        tied="never",
        split_tensor=False,
        note="the GPU reads token_embd from the CPU's buffer",
    ),
    _row("t5", "none", split_tensor=False, all_outputs=True, one_stream=True, cross_attends=True),
    _row("t5encoder", "none", all_outputs=True),
    _row("jais", "none", tied="never"),
    _row("jais2", "neox", after=7935),
    _row("nemotron", "neox", tied="never"),
    _row(
        "nemotron_h",
        "none",
        memory="hybrid",
        recurrent="no-kv-no-ff",
        state="ssm-groups",
        rollback=True,
        split_tensor=False,
        ollama_single=True,
        after=6170,
    ),
    _row(
        "nemotron_h_moe",
        "none",
        memory="hybrid",
        recurrent="no-kv-no-ff",
        state="ssm-groups",
        rollback=True,
        mtp="attention",
        mtp_after=10338,
        split_tensor=False,
        ollama_single=True,
        after=7465,
        exact_from=10068,
    ),
    _row("exaone", "neox"),
    _row(
        "exaone4", "neox", window=SlidingWindow(4, "deep", size=4096), mtp_tensors=False, after=5930
    ),
    _row("exaone-moe", "neox", window=SlidingWindow(4, "required"), mtp_tensors=False, after=7695),
    _row("rwkv6", "none", memory="recurrent", recurrent="all", state="rwkv", tied="never"),
    _row(
        "rwkv6qwen2",
        "none",
        memory="recurrent",
        recurrent="all",
        state="rwkv",
        tied="never",
        after=4440,
    ),
    _row(
        "rwkv7", "none", memory="recurrent", recurrent="all", state="rwkv", tied="never", after=4880
    ),
    _row(
        "arwkv7",
        "none",
        memory="recurrent",
        recurrent="all",
        state="rwkv",
        tied="never",
        after=4880,
    ),
    _row("granite", rope_switch="finetuned", embd_inp="deepstack_mapping"),
    _row("granitemoe", before=((Rules.granite_moe_ropes, {"rope_switch": "finetuned"}),)),
    _row(
        "granitehybrid",
        rope_switch="finetuned",
        memory="hybrid",
        recurrent="no-kv",
        state="ssm-groups",
        split_tensor=False,
        after=5830,
    ),
    _row(
        "graniteswitch",
        mixed_batch=False,
        rope_switch="finetuned",
        router=True,
        note="one more layer routes between adapters",
        after=10338,
        exact_from=10566,
    ),
    _row(
        "granite_swa",
        rope_switch="pattern",
        embd_inp="deepstack_mapping",
        window=SlidingWindow(0, "required", array=True),
        after=10502,
        exact_from=10566,
    ),
    _row("chameleon", defaults={"f_norm_eps": 1e-5}),
    _row("wavtokenizer-dec", "none", features=True, memory="none", tied="never", after=4090),
    _row("plm", tied="always", after=4880, exact_from=_LATE),
    _row("bailingmoe", tied="never", after=4880, exact_from=9905),
    _row("bailingmoe2", "neox", tied="never", mtp_tensors=False, after=6735, exact_from=9905),
    _row(
        "bailingmoe3",
        "mrope|norm",
        mla="required",
        memory="hybrid",
        recurrent="no-kv",
        state="kda",
        rollback=True,
        ops=_DELTA,
        mtp="norm",
        swiglu_clamp="ops",
        split_tensor=False,
        after=10456,
        before=(*_DECAY_SCANNED, (Rules.bailing_sections, {"rope": "norm"})),
        exact_from=10566,
    ),
    _row("dots1", "neox", tied="never", after=5310, exact_from=9905),
    _row(
        "dots3note",
        defaults={"f_norm_eps": 1e-6},
        mla="required",
        memory="dsa-iswa",
        window=SlidingWindow(0, "required", array=True),
        indexer="types",
        rotated_indexer=True,
        mtp_tensors=False,
        split_tensor=False,
        after=10568,
        exact_from=10816,
    ),
    _row("arcee", after=5310, exact_from=9905),
    _row(
        "afmoe", "neox", defaults=_SIGMOID, window=SlidingWindow(4), needs_window=True, after=6880
    ),
    _row(
        "laguna",
        "neox",
        defaults={**_SIGMOID, "n_expert_shared": 1},
        window=SlidingWindow(4, dense_first=True),
        after=10078,
        exact_from=10280,
    ),
    _row("ernie4_5", after=5735, exact_from=9905),
    _row("ernie4_5-moe", after=5930, exact_from=9905),
    _row("paddleocr", "mrope", after=7935, exact_from=9905),
    _row("hunyuan-moe", "neox", after=5830, exact_from=9905),
    _row("hunyuan-dense", "neox", one_expert=False, after=5930),
    _row("hunyuan_vl", "mrope|neox", one_expert=False, after=8672),
    _row(
        "hy_v3",
        "neox",
        trunk_before=True,
        defaults=_SIGMOID,
        mtp_leaks=r"blk\.\d+\.(ffn_(gate|down|up)\.|ffn_gate_inp\.|exp_probs_b|"
        r"ffn_\w+_exps|ffn_\w+_shexp)|" + _MTP_HEAD,
        mtp_whole=_SKIPS_MTP,
        mtp="norm",
        after=9986,
        exact_from=10068,
    ),
    _row(
        "hy_v4",
        mla="required",
        memory="dsa",
        indexer="types",
        indexer_optional=True,
        tied="never",
        swiglu_clamp="experts",
        split_tensor=False,
        after=10798,
        exact_from=10816,
    ),
    _row("smollm3", after=5830, exact_from=9905),
    _row("gpt-oss", "neox", window=SlidingWindow(2, "required"), tied="never", after=5930),
    _row(
        "lfm2",
        "neox",
        memory="hybrid",
        window=SlidingWindow(0, "attention"),
        recurrent="no-kv",
        state="shortconv",
        rollback=True,
        places=_LAST_NORM,
        ollama_single=True,
        slices="states",
        before=(
            (Rules.lfm2_splits_tensors, _UNSPLIT),
            (Rules.lfm2_window, {"window": None}),
            _FIRST_NORM,
        ),
        after=5830,
        changed=((12211, 1.2),),
    ),
    _row(
        "lfm2moe",
        "neox",
        memory="hybrid",
        recurrent="no-kv",
        state="shortconv",
        rollback=True,
        places=_LAST_NORM,
        ollama_single=True,
        slices="states",
        before=((Rules.lfm2_splits_tensors, _UNSPLIT), _FIRST_NORM),
        after=6595,
    ),
    _row("dream", "neox", memory="none", causal=False, after=5930),
    _row(
        "smallthinker",
        "neox",
        window=SlidingWindow(4, fixed=4096, dense_first=True),
        after=5930,
        exact_from=9905,
    ),
    _row(
        # a diffusion model: it denoises the whole sequence, so there is no cache
        "llada",
        memory="none",
        causal=False,
        after=5930,
        newer=(("attn_q.bias", 10825),),
        exact_from=11063,
    ),
    _row("llada-moe", "neox", memory="none", causal=False, tied="never", after=6170),
    _row("rnd1", "neox", memory="none", causal=False, after=7055, exact_from=9905),
    _row("seed_oss", "neox", after=6170, exact_from=9905),
    _row("grovemoe", "neox", after=6170),
    _row("apertus", "neox", after=6595, exact_from=_LATE),
    _row(
        "minimax-01",
        "neox",
        memory="hybrid",
        trunk_only=True,
        recurrent="interval",
        interval=8,
        state="linear",
        split_tensor=False,
        graph_grows="sequence",
        even_slots=Rules.minimax_alone,
        after=10435,
        exact_from=10816,
    ),
    _row("minimax-m2", "neox", tied="never", split_tensor=False, after=6880, exact_from=9905),
    _row(
        "minimax-m3",
        "neox",
        memory="msa",
        indexer="after-dense",
        tied="never",
        split_tensor=False,
        graph_grows="cache",
        after=10133,
        exact_from=10280,
    ),
    _row(
        # layers share blocks and cache slots, so that -sm tensor can cut nothing
        "hrm_text",
        "neox",
        slices="whole",
        before=((Rules.hrm_init_in_block, {"places": {"hrm.z_l_init": "input"}}),),
        note="block_count counts cache slots; the weights are in the first blocks",
        after=10991,
        exact_from=11063,
    ),
    _row("cogvlm", "neox", mixed_batch=False, after=6735),
    _row("pangu-embedded", "neox", after=6880, exact_from=9905),
    _row("mistral3", after=7055, exact_from=9905),
    _row("mistral4", mla="optional", split_tensor=False, after=8355),
    _row(
        "eagle3",
        tied="never",
        all_outputs=True,
        borrows=("token_embd.weight", "output.weight"),
        reads_target=True,
        after=9601,
        newer=(("enc.output_norm.weight", 10156),),
        exact_from=10068,
    ),
    _row(
        "dflash",
        "mrope|hc-norm|neox",
        defaults={"f_final_logit_softcapping": 0.0},
        window=SlidingWindow(0, "window", array=True, all_with_streams=True),
        swiglu_clamp="fused",
        all_outputs=True,
        tied="never",
        borrows=("token_embd.weight", "output.weight"),
        reads_target=True,
        draft_type="draft-dflash",
        slices="groups",
        before=((Rules.draft_heads_lent, {"tied": "absent", "borrows": ("token_embd.weight",)}),),
        after=9830,
        newer=(
            ("markov_w1.weight", 10159),
            ("attn_sinks.weight", 10227),
            ("token_embd.weight", 10362),
            ("d2t", 10456),
            ("output.weight", 10456),
            ("selector_hidden.weight", 10644),
            ("rope_freqs.weight", 11117),
            ("layer_output_scale.weight", 11117),
        ),
        exact_from=10816,
    ),
    _row(
        "mimo2",
        "neox",
        trunk_before=True,
        window=SlidingWindow(0, "required", array=True),
        tied="never",
        mtp_whole=Rules.mimo2_skips_undrafted,
        mtp_skipped=True,
        mtp="layer",
        mtp_after=10182,
        after=7465,
        newer=tuple(
            (f"nextn.{name}.weight", 10182)
            for name in ("embed_tokens", "shared_head_head", "shared_head_norm")
        ),
    ),
    _row(
        "step35",
        "neox",
        trunk_before=True,
        half_rope=True,
        defaults=_SIGMOID,
        window=SlidingWindow(0, "required", array=True),
        tied="never",
        rope_users="all",
        mtp_leaks=r"blk\.\d+\.(attn_[qk]_norm|attn_gate|ffn_(?!norm)|exp_probs_b)|" + _MTP_HEAD,
        mtp_whole=_SKIPS_MTP,
        mtp="layer",
        mtp_after=9479,
        swiglu_clamp="ops",
        after=7815,
        exact_from=9905,
    ),
    _row("k2-horizon", "neox", defaults=_SIGMOID, after=11434),
    _row(
        "spark2_5",
        "neox",
        window=SlidingWindow(0, "required", array=True),
        after=10825,
        exact_from=11063,
    ),
    _row("maincoder", after=7525, exact_from=9905),
    _row(
        "kimi-linear",
        "none",
        mla="required",
        memory="hybrid",
        recurrent="no-kv",
        state="kda",
        tied="never",
        ops=_DELTA,
        split_tensor=False,
        graph_grows="sequence",
        even_slots=Rules.kimi_linear_alone,
        after=7815,
        before=_DECAY_SCANNED,
        exact_from=9905,
    ),
    _row(
        "kimi-k3",
        "none",
        latent_value=True,
        mla="required",
        memory="hybrid",
        recurrent="no-kv",
        state="kda",
        rollback=True,
        tied="never",
        ops=_DELTA,
        split_tensor=False,
        note="value head is the KV LoRA rank",
        after=10441,
        before=_DECAY_SCANNED,
        exact_from=10566,
    ),
    _row(
        "glm5-next",
        "none",
        defaults=_SIGMOID,
        latent_value=True,
        mla="required",
        memory="hybrid-idx",
        trunk_only=True,
        recurrent="no-kv-all",
        state="kda",
        rollback=True,
        indexer="types-or-all",
        tied="never",
        ops={**_DELTA, "indexer_compressor_ape": "ADD"},
        swiglu_clamp="fused",
        split_tensor=False,
        note="value head is the KV LoRA rank",
        after=11269,
        exact_from=_LATE,
        changed=((11739, 1.3), (12211, 1.1)),
    ),
    _row("talkie", "neox", tied="never", after=9326, exact_from=9905),
    _row(
        "mellum",
        "neox",
        window=SlidingWindow(4, list_before=True),
        tied="never",
        after=9479,
        exact_from=10068,
        reads_gating=Rules.reads_gating,
    ),
    _row(
        "maion-coder",
        "neox",
        window=SlidingWindow(0, "required", array=True),
        tied="never",
        after=11549,
        exact_from=11739,
    ),
    _row(
        "kolibri1",
        "neox",
        defaults=_SIGMOID,
        window=SlidingWindow(5, "required"),
        tied="never",
        after=11549,
        exact_from=11739,
    ),
    _row(
        "muse-spark",
        "neox",
        window=SlidingWindow(0, "required", array=True),
        tied="never",
        after=11549,
        exact_from=11739,
    ),
    _row(
        "beam",
        "neox",
        window=SlidingWindow(0, "required", array=True),
        after=11549,
        exact_from=11739,
    ),
    _row(
        "nanbeige",
        loops=True,
        rope_users="physical",
        note="num_loops passes over the same blocks, each with its own cache",
        after=10151,
        exact_from=10280,
    ),
    _row("pockettts", tied="always", after=10362),
)
_ROWS: dict[str, dict[str, Any]] = dict(_TABLE)
NAMES = tuple(_ROWS)

# an unknown architecture's keys for its recurrent state
_STATE_KEYS: dict[str, State] = {
    "wkv.head_size": "rwkv",
    "kda.head_dim": "kda",
    "shortconv.l_cache": "shortconv",
    "ssm.state_size": "ssm-groups",
}


def architecture(name: str, keys: Container[str] = ()) -> Architecture:
    """Return the row of `general.architecture`.

    A name without a row gets one that takes more than any known model with such `keys` would: full
    attention caches in every layer, and a recurrent state too if the file mentions one.
    """
    row = _ROWS.get(name)
    if row is not None:
        return Architecture(name, **row)
    state: State = next(
        (state for key, state in _STATE_KEYS.items() if f"{name}.{key}" in keys), ""
    )
    return Architecture(
        name,
        memory="hybrid" if state else "kv",
        recurrent="every" if state else "",
        state=state,
        split_tensor=False,
        ollama_single=name == "mllama" or name.startswith("nemotron_h"),
        proven=False,
        known=False,
        note="unknown to autolayers",
    )
