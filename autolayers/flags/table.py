"""llama-server's arguments as facts: one row each, taken from common/arg.cpp as modelled.

    lookup("--no-kv-offload")      # (the row of -kvo, False)

Rows keep llama.cpp's own order, because that is the order in which it reads the environment.
"""

from __future__ import annotations

from .kinds import (
    CACHE_TYPE,
    COUNT,
    COUNTS,
    DEFAULT_SPECULATION,
    DEVICES,
    DOCKER,
    DRAFT_SAMPLING,
    EXPERTS,
    EXPERTS_OF,
    FFN_OF,
    FILE_OF,
    FILES,
    FLAG,
    FLASH,
    INT,
    INVERSE,
    KV_OVERRIDES,
    LAYERS,
    LAZY_MODE,
    LOAD_MODE,
    MMPROJ_DEVICE,
    NAMES,
    NUMA,
    NUMBER,
    OLD_DIO,
    OLD_DRAFT,
    OLD_MLOCK,
    OLD_MMAP,
    ON_OFF,
    OUTPUT,
    OVERRIDES,
    PAIR,
    PATH,
    POOLING,
    POSITIVE,
    RATIOS,
    REPOSITORY,
    ROPE_SCALING,
    SCALE,
    SCALED,
    SLOTS,
    SPECULATION,
    SPLIT_MODE,
    SWITCH,
    TEXT,
    TOKENS,
    URL,
    Kind,
    preset,
)

# llama.cpp's other programs with flags of their own in common/arg.cpp, without "llama-"
_OTHERS = (
    "cli completion speculative lookup batched-bench perplexity imatrix embedding retrieval "
    "passkey parallel batched debug cvector-generator export-lora mtmd-cli tts diffusion-cli "
    "finetune fit-params results export-graph-ops download tokenize"
)
PROGRAMS = frozenset(("server", *_OTHERS.split()))
# arg.cpp's own groups of them
_SERVER = "server"
_CHATTING = "server cli completion"
_DRAFTING = "server cli speculative"
_SEEING = "server cli mtmd-cli tts"
GONE = 11548  # the newest source has it not: how long it had been gone was not looked up


class Argument:
    """One argument of llama-server or another program. The first name is the canonical one: the
    short form that every build knows. `field` is the Params field that it sets; without one it does
    not affect memory. `negated`: the names that switch it off. `first` and `last`: the first and
    last llama.cpp build that knows it (0: older than any supported build; still today). `of`: the
    programs that have it, as set_examples and set_excludes of common/arg.cpp say; all of them where
    it is empty. `now`: the flag that takes its value today."""

    __slots__ = ("env", "field", "first", "kind", "last", "names", "negated", "now", "of")

    def __init__(
        self,
        names: str,
        kind: Kind,
        field: str = "",
        env: str = "",
        negated: str = "",
        *,
        first: int = 0,
        last: int = 0,
        of: str = "",
        now: str = "",
    ) -> None:
        self.names = tuple(names.split())
        self.kind = kind
        self.field = field
        self.env = env
        self.negated = tuple(negated.split())
        self.first, self.last = first, last
        self.of = tuple(of.split())
        self.now = now

    @property
    def canonical(self) -> str:
        return self.names[0]

    @property
    def takes_value(self) -> bool:
        return self.kind.words > 0

    @property
    def accumulates(self) -> bool:
        return self.kind.adds

    def is_of(self, program: str) -> bool:
        """Return whether a program has it, as "server"; one that is not known may have it."""
        return not self.of or program in self.of or program not in PROGRAMS

    def written(self, positive: bool) -> str:
        """Return the canonical name that switches it on or off."""
        return self.names[0] if positive or not self.negated else self.negated[0]

    def __repr__(self) -> str:
        return f"Argument({' '.join(self.names)!r})"


# arguments of builds since 2024 that today's refuses: the user's build may be old
LEGACY = (
    # Before --load-mode; builds from 10108 to 10867 have both
    Argument("--mmap", OLD_MMAP, "load_mode", "", "--no-mmap", last=10867),
    Argument("--mlock", OLD_MLOCK, "load_mode", last=10867),
    Argument("-dio --direct-io", OLD_DIO, "load_mode", "", "-ndio --no-direct-io", last=10867),
    Argument("-cd --ctx-size-draft --spec-draft-ctx-size", NUMBER, last=9101),
    Argument("-dkvc --dump-kv-cache", FLAG, last=GONE),
    Argument("--log-new", FLAG, last=GONE),
    Argument("--verbose-kv", FLAG, last=GONE),
    Argument("-ld --logdir", TEXT, last=GONE),
    Argument("-ps --p-split", TEXT, last=GONE, now="--spec-draft-p-split"),
    Argument("--penalize-nl", FLAG, last=GONE),
    Argument("--perplexity --all-logits", FLAG, last=GONE),
    Argument(
        # Flags that stand for a whole launch: common/arg.cpp sets these fields of common_params
        "--embd-bge-small-en-default",
        preset(
            model="hf:ggml-org/bge-small-en-v1.5-Q8_0-GGUF/bge-small-en-v1.5-q8_0.gguf",
            n_ctx=512,
            pooling="none",
            embedding=True,
        ),
        "model",
        last=GONE,
    ),
    Argument(
        "--embd-e5-small-en-default",
        preset(
            model="hf:ggml-org/e5-small-v2-Q8_0-GGUF/e5-small-v2-q8_0.gguf",
            n_ctx=512,
            pooling="none",
            embedding=True,
        ),
        "model",
        last=GONE,
    ),
    Argument(
        "--embd-gte-small-default",
        preset(
            model="hf:ggml-org/gte-small-Q8_0-GGUF/gte-small-q8_0.gguf",
            n_ctx=512,
            pooling="none",
            embedding=True,
        ),
        "model",
        last=GONE,
    ),
    Argument("--spec-ngram-check-rate", NUMBER, last=GONE),
    Argument("--clear-idle", SWITCH, "", "", "--no-clear-idle", last=GONE),
    Argument("-cpent --checkpoint-every-n-tokens", NUMBER, last=9305),
    Argument("--spec-replace --spec-draft-replace", PAIR, last=9101),
    Argument("-hfv -hfrv --hf-repo-v", TEXT, last=10261),
    Argument("-hffv --hf-file-v", TEXT, last=10261),
    Argument("-mv --model-vocoder", PATH, last=10261),
    Argument("--tts-oute-default", FLAG, last=GONE),
    Argument("--tts-use-guide-tokens", FLAG, last=10261),
    # -lzm under its first name
    Argument("--tensor-read-lazy", LAZY_MODE, "lazy_mode", first=10662, last=10698),
    Argument("--license", FLAG, last=9388),
)

ARGUMENTS = (
    # Also of llama.cpp's other programs: `run` plans for them, too
    Argument("-h --help --usage", FLAG),
    Argument("--version", FLAG),
    Argument("-cl --cache-list", FLAG),
    Argument("--completion-bash", FLAG),
    Argument("--server-base", TEXT, of="cli"),
    Argument("--verbose-prompt", FLAG, of="cli completion embedding retrieval"),
    Argument("--display-prompt", SWITCH, "", "", "--no-display-prompt", of="cli completion"),
    Argument("-co --color", TEXT, of="cli completion speculative lookup"),
    Argument("-t --threads", INT, "n_threads", "LLAMA_ARG_THREADS"),
    Argument("-tb --threads-batch", INT, "n_threads_batch"),
    Argument("-C --cpu-mask", TEXT),
    Argument("-Cr --cpu-range", TEXT),
    Argument("--cpu-strict", TEXT),
    Argument("--prio", NUMBER),
    Argument("--poll", TEXT),
    Argument("-Cb --cpu-mask-batch", TEXT),
    Argument("-Crb --cpu-range-batch", TEXT),
    Argument("--cpu-strict-batch", NUMBER),
    Argument("--prio-batch", NUMBER),
    Argument("--poll-batch", NUMBER),
    Argument("-lcs --lookup-cache-static", PATH, of="server lookup"),
    Argument("-lcd --lookup-cache-dynamic", OUTPUT, of="server lookup"),
    # 0: the trained context, and --fit must not make it smaller (fit_params_min_ctx)
    Argument("-c --ctx-size", TOKENS, "n_ctx", "LLAMA_ARG_CTX_SIZE"),
    Argument(
        "--kv-unified-per-slot",
        TOKENS,
        "kv_unified_per_slot",
        "LLAMA_ARG_KV_UNIFIED_PER_SLOT",
        first=10662,
        of=_SERVER,
    ),
    Argument("-n --predict --n-predict", NUMBER, "", "LLAMA_ARG_N_PREDICT"),
    Argument("-b --batch-size", POSITIVE, "n_batch", "LLAMA_ARG_BATCH"),
    # 0: as n_batch
    Argument("-ub --ubatch-size", COUNT, "n_ubatch", "LLAMA_ARG_UBATCH"),
    Argument("--keep", NUMBER),
    Argument("--swa-full", FLAG, "swa_full", "LLAMA_ARG_SWA_FULL", first=5427),
    Argument(
        "-ctxcp --ctx-checkpoints --swa-checkpoints",
        INT,
        "ctx_checkpoints",
        "LLAMA_ARG_CTX_CHECKPOINTS",
        first=6710,
        of="server cli",
    ),
    Argument(
        "-cms --checkpoint-min-step",
        NUMBER,
        "",
        "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
        first=9310,
        of=_SERVER,
    ),
    Argument(
        "-cram --cache-ram", INT, "cache_ram", "LLAMA_ARG_CACHE_RAM", first=6726, of="server cli"
    ),
    Argument(
        "-kvu --kv-unified",
        SWITCH,
        "kv_unified",
        "LLAMA_ARG_KV_UNIFIED",
        "-no-kvu --no-kv-unified",
        first=5913,
        of="server batched-bench perplexity parallel batched",
    ),
    Argument(
        "--cache-idle-slots",
        SWITCH,
        "",
        "LLAMA_ARG_CACHE_IDLE_SLOTS",
        "--no-cache-idle-slots",
        of=_SERVER,
    ),
    Argument(
        "--context-shift",
        SWITCH,
        "",
        "LLAMA_ARG_CONTEXT_SHIFT",
        "--no-context-shift",
        of="server cli completion perplexity imatrix",
    ),
    Argument("--chunks", NUMBER, of="perplexity imatrix retrieval"),
    # It decides whether the scores of a whole micro-batch have a buffer
    Argument("-fa --flash-attn", FLASH, "flash_attn", "LLAMA_ARG_FLASH_ATTN"),
    Argument("-p --prompt", TEXT, of=_OTHERS),
    Argument("-sys --system-prompt", TEXT, of="cli completion mtmd-cli diffusion-cli"),
    Argument("--perf", SWITCH, "", "LLAMA_ARG_PERF", "--no-perf"),
    Argument("--show-timings", SWITCH, "", "LLAMA_ARG_SHOW_TIMINGS", "--no-show-timings", of="cli"),
    Argument("-f --file", PATH, of=_OTHERS),
    Argument("-sysf --system-prompt-file", PATH, of="cli completion diffusion-cli"),
    Argument("--in-file", PATH, of="imatrix"),
    Argument("-bf --binary-file", PATH, of=_OTHERS),
    Argument("-e --escape", SWITCH, "", "", "--no-escape"),
    Argument("-ptc --print-token-count", NUMBER, of="completion"),
    Argument("--prompt-cache", OUTPUT, of="completion"),
    Argument("--prompt-cache-all", FLAG, of="completion"),
    Argument("--prompt-cache-ro", FLAG, of="completion"),
    Argument("-r --reverse-prompt", TEXT, of=_CHATTING),
    Argument("-sp --special", FLAG, of=_CHATTING),
    Argument("-cnv --conversation", SWITCH, "", "", "-no-cnv --no-conversation", of="completion"),
    Argument("-st --single-turn", FLAG, of="cli completion"),
    Argument("-i --interactive", FLAG, of="completion"),
    Argument("-if --interactive-first", FLAG, of="completion"),
    Argument("-mli --multiline-input", FLAG, of="cli completion"),
    Argument("--in-prefix-bos", FLAG, of="completion"),
    Argument("--in-prefix", TEXT, of="completion"),
    Argument("--in-suffix", TEXT, of="completion"),
    # An empty run at the start; without it a projector has no buffers before its first image
    Argument(
        "--warmup",
        SWITCH,
        "warmup",
        "",
        "--no-warmup",
        of="server cli completion perplexity embedding retrieval debug mtmd-cli",
    ),
    Argument("--spm-infill", FLAG, of=_SERVER),
    Argument("--samplers", TEXT),
    Argument("-s --seed", TEXT),
    Argument("--sampler-seq --sampling-seq", TEXT),
    Argument("--ignore-eos", FLAG),
    Argument("--temp --temperature", TEXT, "", "LLAMA_ARG_TEMPERATURE"),
    Argument("--top-k", NUMBER, "", "LLAMA_ARG_TOP_K"),
    Argument("--top-p", TEXT, "", "LLAMA_ARG_TOP_P"),
    Argument("--min-p", TEXT, "", "LLAMA_ARG_MIN_P"),
    Argument("--top-nsigma --top-n-sigma", TEXT),
    Argument("--xtc-probability", TEXT),
    Argument("--xtc-threshold", TEXT),
    Argument("--typical --typical-p", TEXT),
    Argument("--repeat-last-n", NUMBER),
    Argument("--repeat-penalty", TEXT, "", "LLAMA_ARG_REPEAT_PENALTY"),
    Argument("--presence-penalty", TEXT, "", "LLAMA_ARG_PRESENCE_PENALTY"),
    Argument("--frequency-penalty", TEXT, "", "LLAMA_ARG_FREQUENCY_PENALTY"),
    Argument("--dry-multiplier", TEXT),
    Argument("--dry-base", TEXT),
    Argument("--dry-allowed-length", NUMBER),
    Argument("--dry-penalty-last-n", NUMBER),
    Argument("--dry-sequence-breaker", TEXT),
    Argument("--adaptive-target", TEXT),
    Argument("--adaptive-decay", TEXT),
    Argument("--dynatemp-range", TEXT),
    Argument("--dynatemp-exp", TEXT),
    Argument("--mirostat", NUMBER),
    Argument("--mirostat-lr", TEXT),
    Argument("--mirostat-ent", TEXT),
    Argument("-l --logit-bias", TEXT),
    Argument("--grammar", TEXT),
    Argument("--grammar-file", PATH),
    Argument("-j --json-schema", TEXT),
    Argument("-jf --json-schema-file", PATH),
    Argument(
        # Samplers become nodes of the graph
        "-bs --backend-sampling",
        FLAG,
        "backend_sampling",
        "LLAMA_ARG_BACKEND_SAMPLING",
        first=7625,
    ),
    Argument(
        "--pooling", POOLING, "pooling", "LLAMA_ARG_POOLING", of="server embedding retrieval debug"
    ),
    Argument("--attention", TEXT, of="embedding"),
    Argument("--rope-scaling", ROPE_SCALING, "rope_scaling", "LLAMA_ARG_ROPE_SCALING_TYPE"),
    Argument("--rope-scale", SCALE, "rope_scale", "LLAMA_ARG_ROPE_SCALE"),
    Argument("--rope-freq-base", TEXT, "", "LLAMA_ARG_ROPE_FREQ_BASE"),
    # Its inverse, in the same field
    Argument("--rope-freq-scale", INVERSE, "rope_scale", "LLAMA_ARG_ROPE_FREQ_SCALE"),
    Argument("--yarn-orig-ctx", TOKENS, "yarn_orig_ctx", "LLAMA_ARG_YARN_ORIG_CTX"),
    Argument("--yarn-ext-factor", TEXT, "", "LLAMA_ARG_YARN_EXT_FACTOR"),
    Argument("--yarn-attn-factor", TEXT, "", "LLAMA_ARG_YARN_ATTN_FACTOR"),
    Argument("--yarn-beta-slow", TEXT, "", "LLAMA_ARG_YARN_BETA_SLOW"),
    Argument("--yarn-beta-fast", TEXT, "", "LLAMA_ARG_YARN_BETA_FAST"),
    Argument("-gan --grp-attn-n", NUMBER, "", "LLAMA_ARG_GRP_ATTN_N", of="completion passkey"),
    Argument("-gaw --grp-attn-w", NUMBER, "", "LLAMA_ARG_GRP_ATTN_W", of="completion"),
    Argument(
        "-kvo --kv-offload", SWITCH, "kv_offload", "LLAMA_ARG_KV_OFFLOAD", "-nkvo --no-kv-offload"
    ),
    # Weights in the CPU's own layout: copied, so that they cannot stay mapped
    Argument("--repack", SWITCH, "repack", "LLAMA_ARG_REPACK", "-nr --no-repack"),
    Argument("--no-host", FLAG, "no_host", "LLAMA_ARG_NO_HOST", first=6710),
    Argument("-ctk --cache-type-k", CACHE_TYPE, "cache_type_k", "LLAMA_ARG_CACHE_TYPE_K"),
    Argument("-ctv --cache-type-v", CACHE_TYPE, "cache_type_v", "LLAMA_ARG_CACHE_TYPE_V"),
    Argument("--hellaswag", FLAG, of="perplexity"),
    Argument("--hellaswag-tasks", NUMBER, of="perplexity"),
    Argument("--winogrande", FLAG, of="perplexity"),
    Argument("--winogrande-tasks", NUMBER, of="perplexity"),
    Argument("--multiple-choice", FLAG, of="perplexity"),
    Argument("--multiple-choice-tasks", NUMBER, of="perplexity"),
    Argument("--kl-divergence", FLAG, of="perplexity"),
    Argument("--save-all-logits --kl-divergence-base", OUTPUT, of="perplexity"),
    Argument("--ppl-stride", NUMBER, of="perplexity"),
    Argument("--ppl-output-type", NUMBER, of="perplexity"),
    Argument("-dt --defrag-thold", TEXT, "", "LLAMA_ARG_DEFRAG_THOLD"),
    # llama-server's meaning: other programs have 1 as their default
    Argument("-np --parallel", SLOTS, "n_parallel", "LLAMA_ARG_N_PARALLEL"),
    Argument("-ns --sequences", NUMBER, of="parallel"),
    Argument(
        "-cb --cont-batching",
        SWITCH,
        "",
        "LLAMA_ARG_CONT_BATCHING",
        "-nocb --no-cont-batching",
        of=_SERVER,
    ),
    # Loaded with the model: its weights and its graph take memory as well
    Argument("-mm --mmproj", PATH, "mmproj", "LLAMA_ARG_MMPROJ", of=_SEEING),
    Argument("-mmu --mmproj-url", URL, "mmproj", "LLAMA_ARG_MMPROJ_URL", of=_SEEING),
    Argument(
        "--mmproj-auto",
        SWITCH,
        "",
        "LLAMA_ARG_MMPROJ_AUTO",
        "--no-mmproj --no-mmproj-auto",
        of="server cli mtmd-cli download",
    ),
    Argument(
        "--mmproj-offload",
        SWITCH,
        "mmproj_offload",
        "LLAMA_ARG_MMPROJ_OFFLOAD",
        "--no-mmproj-offload",
        of=_SEEING,
    ),
    # After --rpc in a preset's order, so that it may name an RPC device
    Argument(
        "-mmdev --mmproj-device", MMPROJ_DEVICE, "mmproj_device", "MTMD_BACKEND_DEVICE", of=_SEEING
    ),
    Argument("--image --audio --video", PATH, of="cli mtmd-cli"),
    Argument("--image-min-tokens", NUMBER, "", "LLAMA_ARG_IMAGE_MIN_TOKENS", of=_SEEING),
    Argument(
        "--image-max-tokens", INT, "image_max_tokens", "LLAMA_ARG_IMAGE_MAX_TOKENS", of=_SEEING
    ),
    Argument(
        "--mtmd-batch-max-tokens",
        NUMBER,
        "",
        "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS",
        first=9621,
        of=_SERVER,
    ),
    Argument("--video-fps", TEXT, "", "LLAMA_ARG_VIDEO_FPS", first=10662, of=_SEEING),
    Argument(
        "--video-timestamp-interval",
        NUMBER,
        "",
        "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL",
        first=10662,
        of=_SEEING,
    ),
    Argument("--video-ffmpeg-dir", PATH, "", "LLAMA_ARG_VIDEO_FFMPEG_DIR", first=10662, of=_SEEING),
    # Its devices come before the local ones in llama.cpp's list
    Argument("--rpc", NAMES, "rpc", "LLAMA_ARG_RPC"),
    Argument("-lm --load-mode", LOAD_MODE, "load_mode", "LLAMA_ARG_LOAD_MODE", first=10108),
    Argument("-lzm --lazy-mode", LAZY_MODE, "lazy_mode", "LLAMA_ARG_LAZY_MODE", first=10705),
    Argument("--numa", NUMA, "numa", "LLAMA_ARG_NUMA"),
    Argument("-dev --device", DEVICES, "device", "LLAMA_ARG_DEVICE"),
    Argument("--list-devices", FLAG),
    Argument(
        # These four write one field: the order of the words is the order of the patterns
        "-ot --override-tensor",
        OVERRIDES,
        "overrides",
        "LLAMA_ARG_OVERRIDE_TENSOR",
        first=5030,
    ),
    Argument("-cmoe --cpu-moe", EXPERTS, "overrides", "LLAMA_ARG_CPU_MOE", first=6050),
    Argument("-ncmoe --n-cpu-moe", EXPERTS_OF, "overrides", "LLAMA_ARG_N_CPU_MOE", first=6093),
    Argument("--moe-cache-mib", COUNT, "moe_cache_mib", "LLAMA_ARG_MOE_CACHE_MIB", first=11507),
    Argument("-ncffn --n-cpu-ffn", FFN_OF, "overrides", "LLAMA_ARG_N_CPU_FFN", first=10662),
    # n_layer + 1 is everything: the output layer counts
    Argument("-ngl --gpu-layers --n-gpu-layers", LAYERS, "n_gpu_layers", "LLAMA_ARG_N_GPU_LAYERS"),
    Argument("-sm --split-mode", SPLIT_MODE, "split_mode", "LLAMA_ARG_SPLIT_MODE"),
    Argument("-ts --tensor-split", RATIOS, "tensor_split", "LLAMA_ARG_TENSOR_SPLIT"),
    Argument("-mg --main-gpu", INT, "main_gpu", "LLAMA_ARG_MAIN_GPU"),
    # llama.cpp's own planner, which the plan's flags leave nothing to do
    Argument("-fit --fit", ON_OFF, "fit", "LLAMA_ARG_FIT", first=7407),
    Argument("-fitp --fit-print", TEXT, "", "LLAMA_ARG_FIT_ESTIMATE", of="fit-params"),
    Argument("-fitt --fit-target", COUNTS, "fit_target", "LLAMA_ARG_FIT_TARGET", first=7407),
    Argument("-fitc --fit-ctx", TOKENS, "fit_ctx", "LLAMA_ARG_FIT_CTX", first=7407),
    Argument("--check-tensors", FLAG),
    Argument("--override-kv", KV_OVERRIDES, "override_kv"),
    # Whether a GPU computes large batches with weights that are in RAM
    Argument("--op-offload", SWITCH, "op_offload", "", "--no-op-offload", first=5342),
    Argument("--lora", FILES, "lora"),
    Argument("--lora-scaled", SCALED, "lora"),
    Argument("--control-vector", FILES, "control_vector"),
    Argument("--control-vector-scaled", SCALED, "control_vector"),
    Argument("--control-vector-layer-range", PAIR),
    Argument("-a --alias", TEXT, "", "LLAMA_ARG_ALIAS", of=_SERVER),
    Argument("--tags", TEXT, "", "LLAMA_ARG_TAGS", of=_SERVER),
    # Five flags name the model, each with its own prefix in the field: see kinds
    Argument("-m --model", PATH, "model", "LLAMA_ARG_MODEL"),
    Argument("-mu --model-url", URL, "model", "LLAMA_ARG_MODEL_URL"),
    Argument("-dr --docker-repo", DOCKER, "model", "LLAMA_ARG_DOCKER_REPO"),
    Argument("-hf -hfr --hf-repo", REPOSITORY, "model", "LLAMA_ARG_HF_REPO"),
    Argument("-hff --hf-file", FILE_OF, "model", "LLAMA_ARG_HF_FILE"),
    # Not LLAMA_ARG_: the Hub's own variable
    Argument("-hft --hf-token", TEXT, "", "HF_TOKEN"),
    # Of llama-download: which drafts to fetch with the model
    Argument("--mtp", FLAG, of="download"),
    Argument("--dflash", FLAG, of="download"),
    Argument("--eagle3", FLAG, of="download"),
    Argument("--context-file", PATH, of="retrieval"),
    Argument("--chunk-size", NUMBER, of="retrieval"),
    Argument("--chunk-separator", TEXT, of="retrieval"),
    Argument("--junk", NUMBER, of="passkey parallel"),
    Argument("--pos", NUMBER, of="passkey"),
    Argument(
        "-o --output --output-file",
        OUTPUT,
        of="cli imatrix cvector-generator export-lora tts finetune results export-graph-ops",
    ),
    Argument("-ofreq --output-frequency", NUMBER, of="imatrix"),
    Argument("--output-format", TEXT, of="batched-bench imatrix"),
    Argument("--save-frequency", NUMBER, of="imatrix"),
    Argument("--process-output", FLAG, of="imatrix"),
    Argument("--nextn", FLAG, of="imatrix"),
    Argument("--ppl", SWITCH, "", "", "--no-ppl", of="imatrix"),
    Argument("--chunk --from-chunk", NUMBER, of="imatrix"),
    Argument("--show-statistics", FLAG, of="imatrix"),
    Argument("--parse-special", FLAG, of="imatrix"),
    Argument("--ids", FLAG, of="tokenize"),
    Argument("--stdin", FLAG, of="tokenize"),
    Argument("--no-bos", FLAG, of="tokenize"),
    Argument("--no-parse-special", FLAG, of="tokenize"),
    Argument("--show-count", FLAG, of="tokenize"),
    Argument("-pps", FLAG, of="batched-bench parallel"),
    Argument("-tgs", FLAG, of="batched-bench parallel"),
    Argument("-npp", TEXT, of="batched-bench"),
    Argument("-ntg", TEXT, of="batched-bench"),
    Argument("-npl", TEXT, of="batched-bench"),
    Argument("--embd-normalize", NUMBER, of="server embedding debug"),
    Argument("--embd-output-format", TEXT, of="embedding"),
    Argument("--embd-separator", TEXT, of="embedding"),
    Argument("--cls-separator", TEXT, of="embedding"),
    Argument("--host", TEXT, "", "LLAMA_ARG_HOST", of=_SERVER),
    Argument("--port", NUMBER, "", "LLAMA_ARG_PORT", of=_SERVER),
    Argument("--reuse-port", FLAG, "", "LLAMA_ARG_REUSE_PORT", of=_SERVER),
    Argument("--path", PATH, "", "LLAMA_ARG_STATIC_PATH", of=_SERVER),
    Argument("--cors-origins", TEXT, "", "LLAMA_ARG_CORS_ORIGINS", first=10012, of=_SERVER),
    Argument("--cors-methods", TEXT, "", "LLAMA_ARG_CORS_METHODS", first=10012, of=_SERVER),
    Argument("--cors-headers", TEXT, "", "LLAMA_ARG_CORS_HEADERS", first=10012, of=_SERVER),
    Argument(
        "--cors-credentials",
        SWITCH,
        "",
        "LLAMA_ARG_CORS_CREDENTIALS",
        "--no-cors-credentials",
        first=10012,
        of=_SERVER,
    ),
    Argument("--api-prefix", TEXT, "", "LLAMA_ARG_API_PREFIX", of=_SERVER),
    Argument("--ui-config --webui-config", TEXT, "", "LLAMA_ARG_UI_CONFIG", of=_SERVER),
    Argument(
        "--ui-config-file --webui-config-file", PATH, "", "LLAMA_ARG_UI_CONFIG_FILE", of=_SERVER
    ),
    Argument(
        "--ui-mcp-proxy --webui-mcp-proxy",
        SWITCH,
        "",
        "LLAMA_ARG_UI_MCP_PROXY",
        "--no-ui-mcp-proxy --no-webui-mcp-proxy",
        of=_SERVER,
    ),
    Argument("--tools", TEXT, "", "LLAMA_ARG_TOOLS", of=_SERVER),
    Argument("--tools-runtime", TEXT, "", "LLAMA_ARG_TOOLS_RUNTIME", first=10331, of=_SERVER),
    Argument(
        "--mcp-servers-config", PATH, "", "LLAMA_ARG_MCP_SERVERS_CONFIG", first=10133, of=_SERVER
    ),
    Argument("--mcp-servers-json", TEXT, "", "LLAMA_ARG_MCP_SERVERS_JSON", first=10133, of=_SERVER),
    Argument(
        "-ag --agent", SWITCH, "", "LLAMA_ARG_AGENT", "-no-ag --no-agent", first=9733, of=_SERVER
    ),
    Argument("--ui --webui", SWITCH, "", "LLAMA_ARG_UI", "--no-ui --no-webui", of=_SERVER),
    Argument(
        "--embedding --embeddings", FLAG, "embedding", "LLAMA_ARG_EMBEDDINGS", of="server debug"
    ),
    # Sets embedding and the pooling type "rank" in llama.cpp
    Argument("--rerank --reranking", FLAG, "reranking", "LLAMA_ARG_RERANKING", of=_SERVER),
    # Never printed: launch.secrets
    Argument("--api-key", TEXT, "", "LLAMA_API_KEY", of=_SERVER),
    Argument("--api-key-file", PATH, "", "LLAMA_ARG_API_KEY_FILE", of=_SERVER),
    Argument("--ssl-key-file", PATH, "", "LLAMA_ARG_SSL_KEY_FILE", of=_SERVER),
    Argument("--ssl-cert-file", PATH, "", "LLAMA_ARG_SSL_CERT_FILE", of=_SERVER),
    Argument("--chat-template-kwargs", TEXT, "", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS", of="server cli"),
    Argument("-to --timeout", NUMBER, "", "LLAMA_ARG_TIMEOUT", of=_SERVER),
    Argument(
        "--sse-ping-interval", NUMBER, "", "LLAMA_ARG_SSE_PING_INTERVAL", first=9479, of=_SERVER
    ),
    Argument("--threads-http", NUMBER, "", "LLAMA_ARG_THREADS_HTTP", of=_SERVER),
    Argument(
        "--cache-prompt", SWITCH, "", "LLAMA_ARG_CACHE_PROMPT", "--no-cache-prompt", of=_SERVER
    ),
    # By shifting the cache, which is computed in a graph of its own
    Argument("--cache-reuse", INT, "cache_reuse", "LLAMA_ARG_CACHE_REUSE", of=_SERVER),
    Argument("--metrics", FLAG, "", "LLAMA_ARG_ENDPOINT_METRICS", of=_SERVER),
    Argument("--props", FLAG, "", "LLAMA_ARG_ENDPOINT_PROPS", of=_SERVER),
    Argument("--slots", SWITCH, "", "LLAMA_ARG_ENDPOINT_SLOTS", "--no-slots", of=_SERVER),
    Argument("--slot-save-path", OUTPUT, of=_SERVER),
    Argument("--media-path", PATH, of=_SERVER),
    # The router's, in a llama-server without a model
    Argument("--models-dir", PATH, "", "LLAMA_ARG_MODELS_DIR", of=_SERVER),
    Argument("--models-preset", PATH, "", "LLAMA_ARG_MODELS_PRESET", of=_SERVER),
    Argument("--models-max", NUMBER, "", "LLAMA_ARG_MODELS_MAX", of=_SERVER),
    Argument(
        "--models-memory-margin",
        NUMBER,
        "",
        "LLAMA_ARG_MODELS_MEMORY_MARGIN",
        of=_SERVER,
        first=11930,
    ),
    Argument(
        "--models-autoload",
        SWITCH,
        "",
        "LLAMA_ARG_MODELS_AUTOLOAD",
        "--no-models-autoload",
        of=_SERVER,
    ),
    Argument(
        "--jinja", SWITCH, "", "LLAMA_ARG_JINJA", "--no-jinja", of="server cli completion mtmd-cli"
    ),
    Argument("--reasoning-format", TEXT, "", "LLAMA_ARG_THINK", of=_CHATTING),
    Argument("-rea --reasoning", TEXT, "", "LLAMA_ARG_REASONING", of=_CHATTING),
    Argument(
        "--reasoning-effort", TEXT, "", "LLAMA_ARG_REASONING_EFFORT", first=10435, of=_CHATTING
    ),
    Argument("--reasoning-budget", NUMBER, "", "LLAMA_ARG_THINK_BUDGET", of=_CHATTING),
    Argument(
        "--reasoning-budget-message", TEXT, "", "LLAMA_ARG_THINK_BUDGET_MESSAGE", of=_CHATTING
    ),
    Argument(
        "--reasoning-preserve",
        SWITCH,
        "",
        "LLAMA_ARG_REASONING_PRESERVE",
        "--no-reasoning-preserve",
        first=9837,
        of=_CHATTING,
    ),
    Argument(
        "--chat-template", TEXT, "", "LLAMA_ARG_CHAT_TEMPLATE", of="server cli completion mtmd-cli"
    ),
    Argument("--chat-template-file", PATH, "", "LLAMA_ARG_CHAT_TEMPLATE_FILE", of=_CHATTING),
    Argument(
        "--skip-chat-parsing",
        SWITCH,
        "",
        "LLAMA_ARG_SKIP_CHAT_PARSING",
        "--no-skip-chat-parsing",
        of=_CHATTING,
    ),
    Argument(
        "--prefill-assistant",
        SWITCH,
        "",
        "LLAMA_ARG_PREFILL_ASSISTANT",
        "--no-prefill-assistant",
        of=_SERVER,
    ),
    Argument("-sps --slot-prompt-similarity", TEXT, of=_SERVER),
    Argument("--lora-init-without-apply", FLAG, of=_SERVER),
    Argument("--sleep-idle-seconds", NUMBER, of=_SERVER),
    Argument("--simple-io", FLAG, of="cli completion"),
    Argument("--positive-file", PATH, of="cvector-generator"),
    Argument("--negative-file", PATH, of="cvector-generator"),
    Argument("--pca-batch", NUMBER, of="cvector-generator"),
    Argument("--pca-iter", NUMBER, of="cvector-generator"),
    Argument("--method", TEXT, of="cvector-generator"),
    Argument("--log-disable", FLAG),
    Argument("--log-file", OUTPUT, "", "LLAMA_ARG_LOG_FILE"),
    Argument("--log-jsonl", SWITCH, "", "LLAMA_ARG_LOG_JSONL", "--no-log-jsonl", first=10825),
    Argument("--log-prompts-dir", OUTPUT, first=9581, of="server cli"),
    Argument("--log-colors", TEXT, "", "LLAMA_ARG_LOG_COLORS"),
    # Where autolayers prints a page it means the whole page
    Argument("-v --verbose --log-verbose", FLAG),
    Argument("--offline", FLAG, "", "LLAMA_ARG_OFFLINE"),
    Argument("-lv --verbosity --log-verbosity", NUMBER, "", "LLAMA_ARG_LOG_VERBOSITY"),
    Argument("--log-prefix", SWITCH, "", "LLAMA_ARG_LOG_PREFIX", "--no-log-prefix"),
    Argument("--log-timestamps", SWITCH, "", "LLAMA_ARG_LOG_TIMESTAMPS", "--no-log-timestamps"),
    Argument(
        # The draft: its cache, layers and devices are its own
        "-hfd --spec-draft-hf -hfrd --hf-repo-draft",
        REPOSITORY,
        "model_draft",
        "LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        of=_DRAFTING,
    ),
    Argument("--spec-draft-threads -td --threads-draft", NUMBER, of=_DRAFTING),
    Argument("--spec-draft-threads-batch -tbd --threads-batch-draft", NUMBER, of=_DRAFTING),
    Argument("--spec-draft-cpu-mask -Cd --cpu-mask-draft", TEXT, of=_DRAFTING),
    Argument("--spec-draft-cpu-range -Crd --cpu-range-draft", TEXT, of=_DRAFTING),
    Argument("--spec-draft-cpu-strict --cpu-strict-draft", NUMBER, of=_DRAFTING),
    Argument("--spec-draft-prio --prio-draft", NUMBER, of=_DRAFTING),
    Argument("--spec-draft-poll --poll-draft", NUMBER, of=_DRAFTING),
    Argument("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", TEXT, of=_DRAFTING),
    Argument("--spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft", TEXT, of="speculative"),
    Argument("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft", NUMBER, of=_DRAFTING),
    Argument("--spec-draft-prio-batch --prio-batch-draft", NUMBER, of=_DRAFTING),
    Argument("--spec-draft-poll-batch --poll-batch-draft", NUMBER, of=_DRAFTING),
    Argument(
        "-ctkd --spec-draft-type-k --cache-type-k-draft",
        CACHE_TYPE,
        "cache_type_k_draft",
        "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
    ),
    Argument(
        "-ctvd --spec-draft-type-v --cache-type-v-draft",
        CACHE_TYPE,
        "cache_type_v_draft",
        "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
    ),
    Argument(
        "-otd --spec-draft-override-tensor --override-tensor-draft",
        OVERRIDES,
        "overrides_draft",
        of=_DRAFTING,
    ),
    Argument(
        "-cmoed --spec-draft-cpu-moe --cpu-moe-draft",
        EXPERTS,
        "overrides_draft",
        "LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
        of=_DRAFTING,
    ),
    Argument(
        "-ncmoed --spec-draft-n-cpu-moe --spec-draft-ncmoe --n-cpu-moe-draft",
        EXPERTS_OF,
        "overrides_draft",
        "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
        of=_DRAFTING,
    ),
    Argument(
        "--spec-draft-n-max",
        COUNT,
        "draft_n_max",
        "LLAMA_ARG_SPEC_DRAFT_N_MAX",
        of="server cli speculative lookup",
    ),
    Argument(
        "--spec-draft-n-min",
        NUMBER,
        "",
        "LLAMA_ARG_SPEC_DRAFT_N_MIN",
        of="server cli speculative lookup",
    ),
    Argument(
        "--spec-synth-len", TEXT, "", "LLAMA_ARG_SPEC_SYNTH_LEN", first=10662, of="server cli"
    ),
    Argument(
        "--spec-synth-rates", TEXT, "", "LLAMA_ARG_SPEC_SYNTH_RATES", first=10662, of="server cli"
    ),
    Argument(
        "--spec-draft-p-split --draft-p-split",
        TEXT,
        "",
        "LLAMA_ARG_SPEC_DRAFT_P_SPLIT",
        of=_DRAFTING,
    ),
    Argument(
        "--spec-draft-p-min --draft-p-min", TEXT, "", "LLAMA_ARG_SPEC_DRAFT_P_MIN", of=_DRAFTING
    ),
    Argument(
        "--spec-draft-backend-sampling",
        SWITCH,
        "",
        "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
        "--no-spec-draft-backend-sampling",
        first=9265,
        of=_DRAFTING,
    ),
    Argument(
        "--spec-draft-sampling",
        DRAFT_SAMPLING,
        "",
        "LLAMA_ARG_SPEC_DRAFT_SAMPLING",
        first=11368,
        of=_DRAFTING,
    ),
    Argument("-devd --spec-draft-device --device-draft", DEVICES, "device_draft", of=_DRAFTING),
    Argument(
        "-ngld --spec-draft-ngl --gpu-layers-draft --n-gpu-layers-draft",
        LAYERS,
        "n_gpu_layers_draft",
        "LLAMA_ARG_N_GPU_LAYERS_DRAFT",
        of=_DRAFTING,
    ),
    Argument(
        "-md --spec-draft-model --model-draft",
        PATH,
        "model_draft",
        "LLAMA_ARG_SPEC_DRAFT_MODEL",
        of="server cli speculative imatrix",
    ),
    # ngram-* draft without a model, and take no device memory
    Argument("--spec-type", SPECULATION, "spec_type", "LLAMA_ARG_SPEC_TYPE", of=_DRAFTING),
    Argument("--spec-ngram-mod-n-min", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-mod-n-max", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-mod-n-match", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-simple-size-n", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-simple-size-m", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-simple-min-hits", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-map-k-size-n", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-map-k-size-m", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-map-k-min-hits", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-map-k4v-size-n", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-map-k4v-size-m", NUMBER, of=_DRAFTING),
    Argument("--spec-ngram-map-k4v-min-hits", NUMBER, of=_DRAFTING),
    # Today's llama.cpp refuses it and names --spec-draft-n-max
    Argument(
        "--draft --draft-n --draft-max",
        OLD_DRAFT,
        "draft_n_max",
        "LLAMA_ARG_DRAFT_MAX",
        of="server cli speculative lookup",
    ),
    Argument(
        "--draft-min --draft-n-min",
        NUMBER,
        "",
        "LLAMA_ARG_DRAFT_MIN",
        last=9101,
        of="server cli speculative lookup",
        now="--spec-draft-n-min",
    ),
    Argument("--spec-ngram-size-n", NUMBER, last=9101, of=_SERVER),
    Argument("--spec-ngram-size-m", NUMBER, last=9101, of=_SERVER),
    Argument("--spec-ngram-min-hits", NUMBER, last=9101, of=_SERVER),
    Argument("--tts-lang", TEXT, of="tts"),
    Argument("--tts-speaker-file", PATH, of="tts"),
    Argument("--diffusion-steps", NUMBER, of="diffusion-cli"),
    Argument("--diffusion-visual", FLAG, of="diffusion-cli"),
    Argument("--diffusion-eps", TEXT, of="diffusion-cli"),
    Argument("--diffusion-algorithm", NUMBER, of="diffusion-cli"),
    Argument("--diffusion-alg-temp", TEXT, of="diffusion-cli"),
    Argument("--diffusion-block-length", NUMBER, of="diffusion-cli"),
    Argument("--diffusion-cfg-scale", TEXT, of="diffusion-cli"),
    Argument("--diffusion-add-gumbel-noise", TEXT, of="diffusion-cli"),
    Argument("-lr --learning-rate", TEXT, of="finetune"),
    Argument("-lr-min --learning-rate-min", TEXT, of="finetune"),
    Argument("-decay-epochs --learning-rate-decay-epochs", TEXT, of="finetune"),
    Argument("-wd --weight-decay", TEXT, of="finetune"),
    Argument("-val-split --val-split", TEXT, of="finetune"),
    Argument("-epochs --epochs", NUMBER, of="finetune"),
    Argument("-opt --optimizer", TEXT, of="finetune"),
    Argument("--check", FLAG, of="results"),
    Argument("--save-logits", FLAG, of="debug"),
    Argument("--logits-output-dir", OUTPUT, of="debug"),
    Argument("--tensor-filter", TEXT, of="debug"),
    Argument(
        # Whole launches again, as in LEGACY
        "--embd-gemma-default",
        preset(
            model="hf:ggml-org/embeddinggemma-300M-qat-q4_0-GGUF/embeddinggemma-300M-qat-Q4_0.gguf",
            n_ubatch=2048,
            n_batch=2048,
            n_parallel=32,
            n_ctx=65536,
            embedding=True,
        ),
        "model",
        of="server embedding",
    ),
    Argument(
        "--fim-qwen-1.5b-default",
        preset(
            model="hf:ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF/qwen2.5-coder-1.5b-q8_0.gguf",
            n_ubatch=1024,
            n_batch=1024,
            n_ctx=0,
        ),
        "model",
        of=_SERVER,
    ),
    Argument(
        "--fim-qwen-3b-default",
        preset(
            model="hf:ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF/qwen2.5-coder-3b-q8_0.gguf",
            n_ubatch=1024,
            n_batch=1024,
            n_ctx=0,
        ),
        "model",
        of=_SERVER,
    ),
    Argument(
        "--fim-qwen-7b-default",
        preset(
            model="hf:ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF/qwen2.5-coder-7b-q8_0.gguf",
            n_ubatch=1024,
            n_batch=1024,
            n_ctx=0,
        ),
        "model",
        of=_SERVER,
    ),
    Argument(
        # With a draft of the same family
        "--fim-qwen-7b-spec",
        preset(
            model="hf:ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF/qwen2.5-coder-7b-q8_0.gguf",
            model_draft="hf:ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF/qwen2.5-coder-0.5b-q8_0.gguf",
            n_ubatch=1024,
            n_batch=1024,
            n_ctx=0,
        ),
        "model",
        of=_SERVER,
    ),
    Argument(
        "--fim-qwen-14b-spec",
        preset(
            model="hf:ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF/qwen2.5-coder-14b-q8_0.gguf",
            model_draft="hf:ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF/qwen2.5-coder-0.5b-q8_0.gguf",
            n_ubatch=1024,
            n_batch=1024,
            n_ctx=0,
        ),
        "model",
        of=_SERVER,
    ),
    Argument(
        "--fim-qwen-30b-default",
        preset(
            model="hf:ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF/"
            "qwen3-coder-30b-a3b-instruct-q8_0.gguf",
            n_ubatch=1024,
            n_batch=1024,
            n_ctx=0,
        ),
        "model",
        of=_SERVER,
    ),
    Argument(
        "--gpt-oss-20b-default",
        preset(
            model="hf:ggml-org/gpt-oss-20b-GGUF/gpt-oss-20b-mxfp4.gguf",
            n_ubatch=2048,
            n_batch=32768,
            n_parallel=2,
            n_ctx=262144,
        ),
        "model",
        of="server cli",
    ),
    Argument(
        "--gpt-oss-120b-default",
        preset(
            model="hf:ggml-org/gpt-oss-120b-GGUF",
            n_ubatch=2048,
            n_batch=32768,
            n_parallel=2,
            n_ctx=262144,
        ),
        "model",
        of="server cli",
    ),
    Argument(
        "--vision-gemma-4b-default",
        preset(model="hf:ggml-org/gemma-3-4b-it-qat-GGUF", n_ctx=0),
        "model",
        of="server cli",
    ),
    Argument(
        "--vision-gemma-12b-default",
        preset(model="hf:ggml-org/gemma-3-12b-it-qat-GGUF", n_ctx=0),
        "model",
        of="server cli",
    ),
    Argument("--spec-default", DEFAULT_SPECULATION, "spec_type", of="server cli"),
)


_by_name: dict[str, tuple[Argument, bool]] = {}
_by_field: dict[str, list[Argument]] = {}


def lookup(word: str) -> tuple[Argument, bool] | None:
    """Return the row of a name, and False for a negated one. llama.cpp reads _ as - in words that
    start with two dashes."""
    # Made at the first use: a library that parses no words pays nothing
    if not _by_name:
        # Today's last: where a name is in both, today's meaning counts
        for row in (*LEGACY, *ARGUMENTS):
            for name in row.names:
                _by_name[name] = row, True
            for name in row.negated:
                _by_name[name] = row, False
    return _by_name.get(word.replace("_", "-") if word.startswith("--") else word)


def rows_of(field: str) -> list[Argument]:
    """Return the arguments that set a Params field, in their order."""
    if not _by_field:
        for row in ARGUMENTS:
            _by_field.setdefault(row.field, []).append(row)
    return _by_field[field]
