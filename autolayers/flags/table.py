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


class Argument:
    """One argument of llama-server. The first name is the canonical one: the short form that every
    build knows. `field` is the Params field that it sets; without one it does not affect memory.
    `negated`: the names that switch it off. `first` and `last`: the first and last llama.cpp build
    that knows it (0: older than any supported build; still today)."""

    __slots__ = ("env", "field", "first", "kind", "last", "names", "negated")

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
    ) -> None:
        self.names = tuple(names.split())
        self.kind = kind
        self.field = field
        self.env = env
        self.negated = tuple(negated.split())
        self.first, self.last = first, last

    @property
    def canonical(self) -> str:
        return self.names[0]

    @property
    def takes_value(self) -> bool:
        return self.kind.words > 0

    @property
    def accumulates(self) -> bool:
        return self.kind.adds

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
    Argument("-dkvc --dump-kv-cache", FLAG),
    Argument("--log-new", FLAG),
    Argument("--verbose-kv", FLAG),
    Argument("-ld --logdir", TEXT),
    Argument("-ps --p-split", TEXT),
    Argument("--penalize-nl", FLAG),
    Argument("--perplexity --all-logits", FLAG),
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
    ),
    Argument("--spec-ngram-check-rate", NUMBER),
    Argument("--clear-idle", SWITCH, "", "", "--no-clear-idle"),
    Argument("-cpent --checkpoint-every-n-tokens", NUMBER, last=9305),
    Argument("--spec-replace --spec-draft-replace", PAIR, last=9101),
    Argument("-hfv -hfrv --hf-repo-v", TEXT, last=10261),
    Argument("-hffv --hf-file-v", TEXT, last=10261),
    Argument("-mv --model-vocoder", PATH, last=10261),
    Argument("--tts-oute-default", FLAG),
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
    Argument("--server-base", TEXT),
    Argument("--verbose-prompt", FLAG),
    Argument("--display-prompt", SWITCH, "", "", "--no-display-prompt"),
    Argument("-co --color", TEXT),
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
    Argument("-lcs --lookup-cache-static", PATH),
    Argument("-lcd --lookup-cache-dynamic", OUTPUT),
    # 0: the trained context, and --fit must not make it smaller (fit_params_min_ctx)
    Argument("-c --ctx-size", TOKENS, "n_ctx", "LLAMA_ARG_CTX_SIZE"),
    Argument(
        "--kv-unified-per-slot",
        TOKENS,
        "kv_unified_per_slot",
        "LLAMA_ARG_KV_UNIFIED_PER_SLOT",
        first=10662,
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
    ),
    Argument(
        "-cms --checkpoint-min-step", NUMBER, "", "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", first=9310
    ),
    Argument("-cram --cache-ram", INT, "cache_ram", "LLAMA_ARG_CACHE_RAM", first=6726),
    Argument(
        "-kvu --kv-unified",
        SWITCH,
        "kv_unified",
        "LLAMA_ARG_KV_UNIFIED",
        "-no-kvu --no-kv-unified",
        first=5913,
    ),
    Argument(
        "--cache-idle-slots", SWITCH, "", "LLAMA_ARG_CACHE_IDLE_SLOTS", "--no-cache-idle-slots"
    ),
    Argument("--context-shift", SWITCH, "", "LLAMA_ARG_CONTEXT_SHIFT", "--no-context-shift"),
    Argument("--chunks", NUMBER),
    # It decides whether the scores of a whole micro-batch have a buffer
    Argument("-fa --flash-attn", FLASH, "flash_attn", "LLAMA_ARG_FLASH_ATTN"),
    Argument("-p --prompt", TEXT),
    Argument("-sys --system-prompt", TEXT),
    Argument("--perf", SWITCH, "", "LLAMA_ARG_PERF", "--no-perf"),
    Argument("--show-timings", SWITCH, "", "LLAMA_ARG_SHOW_TIMINGS", "--no-show-timings"),
    Argument("-f --file", PATH),
    Argument("-sysf --system-prompt-file", PATH),
    Argument("--in-file", PATH),
    Argument("-bf --binary-file", PATH),
    Argument("-e --escape", SWITCH, "", "", "--no-escape"),
    Argument("-ptc --print-token-count", NUMBER),
    Argument("--prompt-cache", OUTPUT),
    Argument("--prompt-cache-all", FLAG),
    Argument("--prompt-cache-ro", FLAG),
    Argument("-r --reverse-prompt", TEXT),
    Argument("-sp --special", FLAG),
    Argument("-cnv --conversation", SWITCH, "", "", "-no-cnv --no-conversation"),
    Argument("-st --single-turn", FLAG),
    Argument("-i --interactive", FLAG),
    Argument("-if --interactive-first", FLAG),
    Argument("-mli --multiline-input", FLAG),
    Argument("--in-prefix-bos", FLAG),
    Argument("--in-prefix", TEXT),
    Argument("--in-suffix", TEXT),
    # An empty run at the start; without it a projector has no buffers before its first image
    Argument("--warmup", SWITCH, "warmup", "", "--no-warmup"),
    Argument("--spm-infill", FLAG),
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
    Argument("--pooling", POOLING, "pooling", "LLAMA_ARG_POOLING"),
    Argument("--attention", TEXT),
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
    Argument("-gan --grp-attn-n", NUMBER, "", "LLAMA_ARG_GRP_ATTN_N"),
    Argument("-gaw --grp-attn-w", NUMBER, "", "LLAMA_ARG_GRP_ATTN_W"),
    Argument(
        "-kvo --kv-offload", SWITCH, "kv_offload", "LLAMA_ARG_KV_OFFLOAD", "-nkvo --no-kv-offload"
    ),
    # Weights in the CPU's own layout: copied, so that they cannot stay mapped
    Argument("--repack", SWITCH, "repack", "LLAMA_ARG_REPACK", "-nr --no-repack"),
    Argument("--no-host", FLAG, "no_host", "LLAMA_ARG_NO_HOST", first=6710),
    Argument("-ctk --cache-type-k", CACHE_TYPE, "cache_type_k", "LLAMA_ARG_CACHE_TYPE_K"),
    Argument("-ctv --cache-type-v", CACHE_TYPE, "cache_type_v", "LLAMA_ARG_CACHE_TYPE_V"),
    Argument("--hellaswag", FLAG),
    Argument("--hellaswag-tasks", NUMBER),
    Argument("--winogrande", FLAG),
    Argument("--winogrande-tasks", NUMBER),
    Argument("--multiple-choice", FLAG),
    Argument("--multiple-choice-tasks", NUMBER),
    Argument("--kl-divergence", FLAG),
    Argument("--save-all-logits --kl-divergence-base", OUTPUT),
    Argument("--ppl-stride", NUMBER),
    Argument("--ppl-output-type", NUMBER),
    Argument("-dt --defrag-thold", TEXT, "", "LLAMA_ARG_DEFRAG_THOLD"),
    # llama-server's meaning: other programs have 1 as their default
    Argument("-np --parallel", SLOTS, "n_parallel", "LLAMA_ARG_N_PARALLEL"),
    Argument("-ns --sequences", NUMBER),
    Argument(
        "-cb --cont-batching", SWITCH, "", "LLAMA_ARG_CONT_BATCHING", "-nocb --no-cont-batching"
    ),
    # Loaded with the model: its weights and its graph take memory as well
    Argument("-mm --mmproj", PATH, "mmproj", "LLAMA_ARG_MMPROJ"),
    Argument("-mmu --mmproj-url", URL, "mmproj", "LLAMA_ARG_MMPROJ_URL"),
    Argument("--mmproj-auto", SWITCH, "", "LLAMA_ARG_MMPROJ_AUTO", "--no-mmproj --no-mmproj-auto"),
    Argument(
        "--mmproj-offload",
        SWITCH,
        "mmproj_offload",
        "LLAMA_ARG_MMPROJ_OFFLOAD",
        "--no-mmproj-offload",
    ),
    # After --rpc in a preset's order, so that it may name an RPC device
    Argument("-mmdev --mmproj-device", MMPROJ_DEVICE, "mmproj_device", "MTMD_BACKEND_DEVICE"),
    Argument("--image --audio --video", PATH),
    Argument("--image-min-tokens", NUMBER, "", "LLAMA_ARG_IMAGE_MIN_TOKENS"),
    Argument("--image-max-tokens", INT, "image_max_tokens", "LLAMA_ARG_IMAGE_MAX_TOKENS"),
    Argument("--mtmd-batch-max-tokens", NUMBER, "", "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS", first=9621),
    Argument("--video-fps", TEXT, "", "LLAMA_ARG_VIDEO_FPS", first=10662),
    Argument(
        "--video-timestamp-interval", NUMBER, "", "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL", first=10662
    ),
    Argument("--video-ffmpeg-dir", PATH, "", "LLAMA_ARG_VIDEO_FFMPEG_DIR", first=10662),
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
    Argument("-fitp --fit-print", TEXT, "", "LLAMA_ARG_FIT_ESTIMATE"),
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
    Argument("-a --alias", TEXT, "", "LLAMA_ARG_ALIAS"),
    Argument("--tags", TEXT, "", "LLAMA_ARG_TAGS"),
    # Five flags name the model, each with its own prefix in the field: see kinds
    Argument("-m --model", PATH, "model", "LLAMA_ARG_MODEL"),
    Argument("-mu --model-url", URL, "model", "LLAMA_ARG_MODEL_URL"),
    Argument("-dr --docker-repo", DOCKER, "model", "LLAMA_ARG_DOCKER_REPO"),
    Argument("-hf -hfr --hf-repo", REPOSITORY, "model", "LLAMA_ARG_HF_REPO"),
    Argument("-hff --hf-file", FILE_OF, "model", "LLAMA_ARG_HF_FILE"),
    # Not LLAMA_ARG_: the Hub's own variable
    Argument("-hft --hf-token", TEXT, "", "HF_TOKEN"),
    # Of llama-download: which drafts to fetch with the model
    Argument("--mtp", FLAG),
    Argument("--dflash", FLAG),
    Argument("--eagle3", FLAG),
    Argument("--context-file", PATH),
    Argument("--chunk-size", NUMBER),
    Argument("--chunk-separator", TEXT),
    Argument("--junk", NUMBER),
    Argument("--pos", NUMBER),
    Argument("-o --output --output-file", OUTPUT),
    Argument("-ofreq --output-frequency", NUMBER),
    Argument("--output-format", TEXT),
    Argument("--save-frequency", NUMBER),
    Argument("--process-output", FLAG),
    Argument("--nextn", FLAG),
    Argument("--ppl", SWITCH, "", "", "--no-ppl"),
    Argument("--chunk --from-chunk", NUMBER),
    Argument("--show-statistics", FLAG),
    Argument("--parse-special", FLAG),
    Argument("--ids", FLAG),
    Argument("--stdin", FLAG),
    Argument("--no-bos", FLAG),
    Argument("--no-parse-special", FLAG),
    Argument("--show-count", FLAG),
    Argument("-pps", FLAG),
    Argument("-tgs", FLAG),
    Argument("-npp", TEXT),
    Argument("-ntg", TEXT),
    Argument("-npl", TEXT),
    Argument("--embd-normalize", NUMBER),
    Argument("--embd-output-format", TEXT),
    Argument("--embd-separator", TEXT),
    Argument("--cls-separator", TEXT),
    Argument("--host", TEXT, "", "LLAMA_ARG_HOST"),
    Argument("--port", NUMBER, "", "LLAMA_ARG_PORT"),
    Argument("--reuse-port", FLAG, "", "LLAMA_ARG_REUSE_PORT"),
    Argument("--path", PATH, "", "LLAMA_ARG_STATIC_PATH"),
    Argument("--cors-origins", TEXT, "", "LLAMA_ARG_CORS_ORIGINS", first=10012),
    Argument("--cors-methods", TEXT, "", "LLAMA_ARG_CORS_METHODS", first=10012),
    Argument("--cors-headers", TEXT, "", "LLAMA_ARG_CORS_HEADERS", first=10012),
    Argument(
        "--cors-credentials",
        SWITCH,
        "",
        "LLAMA_ARG_CORS_CREDENTIALS",
        "--no-cors-credentials",
        first=10012,
    ),
    Argument("--api-prefix", TEXT, "", "LLAMA_ARG_API_PREFIX"),
    Argument("--ui-config --webui-config", TEXT, "", "LLAMA_ARG_UI_CONFIG"),
    Argument("--ui-config-file --webui-config-file", PATH, "", "LLAMA_ARG_UI_CONFIG_FILE"),
    Argument(
        "--ui-mcp-proxy --webui-mcp-proxy",
        SWITCH,
        "",
        "LLAMA_ARG_UI_MCP_PROXY",
        "--no-ui-mcp-proxy --no-webui-mcp-proxy",
    ),
    Argument("--tools", TEXT, "", "LLAMA_ARG_TOOLS"),
    Argument("--tools-runtime", TEXT, "", "LLAMA_ARG_TOOLS_RUNTIME", first=10331),
    Argument("--mcp-servers-config", PATH, "", "LLAMA_ARG_MCP_SERVERS_CONFIG", first=10133),
    Argument("--mcp-servers-json", TEXT, "", "LLAMA_ARG_MCP_SERVERS_JSON", first=10133),
    Argument("-ag --agent", SWITCH, "", "LLAMA_ARG_AGENT", "-no-ag --no-agent", first=9733),
    Argument("--ui --webui", SWITCH, "", "LLAMA_ARG_UI", "--no-ui --no-webui"),
    Argument("--embedding --embeddings", FLAG, "embedding", "LLAMA_ARG_EMBEDDINGS"),
    # Sets embedding and the pooling type "rank" in llama.cpp
    Argument("--rerank --reranking", FLAG, "reranking", "LLAMA_ARG_RERANKING"),
    # Never printed: launch.secrets
    Argument("--api-key", TEXT, "", "LLAMA_API_KEY"),
    Argument("--api-key-file", PATH, "", "LLAMA_ARG_API_KEY_FILE"),
    Argument("--ssl-key-file", PATH, "", "LLAMA_ARG_SSL_KEY_FILE"),
    Argument("--ssl-cert-file", PATH, "", "LLAMA_ARG_SSL_CERT_FILE"),
    Argument("--chat-template-kwargs", TEXT, "", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS"),
    Argument("-to --timeout", NUMBER, "", "LLAMA_ARG_TIMEOUT"),
    Argument("--sse-ping-interval", NUMBER, "", "LLAMA_ARG_SSE_PING_INTERVAL", first=9479),
    Argument("--threads-http", NUMBER, "", "LLAMA_ARG_THREADS_HTTP"),
    Argument("--cache-prompt", SWITCH, "", "LLAMA_ARG_CACHE_PROMPT", "--no-cache-prompt"),
    # By shifting the cache, which is computed in a graph of its own
    Argument("--cache-reuse", INT, "cache_reuse", "LLAMA_ARG_CACHE_REUSE"),
    Argument("--metrics", FLAG, "", "LLAMA_ARG_ENDPOINT_METRICS"),
    Argument("--props", FLAG, "", "LLAMA_ARG_ENDPOINT_PROPS"),
    Argument("--slots", SWITCH, "", "LLAMA_ARG_ENDPOINT_SLOTS", "--no-slots"),
    Argument("--slot-save-path", OUTPUT),
    Argument("--media-path", PATH),
    # The router's, in a llama-server without a model
    Argument("--models-dir", PATH, "", "LLAMA_ARG_MODELS_DIR"),
    Argument("--models-preset", PATH, "", "LLAMA_ARG_MODELS_PRESET"),
    Argument("--models-max", NUMBER, "", "LLAMA_ARG_MODELS_MAX"),
    Argument("--models-autoload", SWITCH, "", "LLAMA_ARG_MODELS_AUTOLOAD", "--no-models-autoload"),
    Argument("--jinja", SWITCH, "", "LLAMA_ARG_JINJA", "--no-jinja"),
    Argument("--reasoning-format", TEXT, "", "LLAMA_ARG_THINK"),
    Argument("-rea --reasoning", TEXT, "", "LLAMA_ARG_REASONING"),
    Argument("--reasoning-effort", TEXT, "", "LLAMA_ARG_REASONING_EFFORT", first=10435),
    Argument("--reasoning-budget", NUMBER, "", "LLAMA_ARG_THINK_BUDGET"),
    Argument("--reasoning-budget-message", TEXT, "", "LLAMA_ARG_THINK_BUDGET_MESSAGE"),
    Argument(
        "--reasoning-preserve",
        SWITCH,
        "",
        "LLAMA_ARG_REASONING_PRESERVE",
        "--no-reasoning-preserve",
        first=9837,
    ),
    Argument("--chat-template", TEXT, "", "LLAMA_ARG_CHAT_TEMPLATE"),
    Argument("--chat-template-file", PATH, "", "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    Argument(
        "--skip-chat-parsing", SWITCH, "", "LLAMA_ARG_SKIP_CHAT_PARSING", "--no-skip-chat-parsing"
    ),
    Argument(
        "--prefill-assistant", SWITCH, "", "LLAMA_ARG_PREFILL_ASSISTANT", "--no-prefill-assistant"
    ),
    Argument("-sps --slot-prompt-similarity", TEXT),
    Argument("--lora-init-without-apply", FLAG),
    Argument("--sleep-idle-seconds", NUMBER),
    Argument("--simple-io", FLAG),
    Argument("--positive-file", PATH),
    Argument("--negative-file", PATH),
    Argument("--pca-batch", NUMBER),
    Argument("--pca-iter", NUMBER),
    Argument("--method", TEXT),
    Argument("--log-disable", FLAG),
    Argument("--log-file", OUTPUT, "", "LLAMA_ARG_LOG_FILE"),
    Argument("--log-jsonl", SWITCH, "", "LLAMA_ARG_LOG_JSONL", "--no-log-jsonl", first=10825),
    Argument("--log-prompts-dir", OUTPUT, first=9581),
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
    ),
    Argument("--spec-draft-threads -td --threads-draft", NUMBER),
    Argument("--spec-draft-threads-batch -tbd --threads-batch-draft", NUMBER),
    Argument("--spec-draft-cpu-mask -Cd --cpu-mask-draft", TEXT),
    Argument("--spec-draft-cpu-range -Crd --cpu-range-draft", TEXT),
    Argument("--spec-draft-cpu-strict --cpu-strict-draft", NUMBER),
    Argument("--spec-draft-prio --prio-draft", NUMBER),
    Argument("--spec-draft-poll --poll-draft", NUMBER),
    Argument("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", TEXT),
    Argument("--spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft", TEXT),
    Argument("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft", NUMBER),
    Argument("--spec-draft-prio-batch --prio-batch-draft", NUMBER),
    Argument("--spec-draft-poll-batch --poll-batch-draft", NUMBER),
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
        "-otd --spec-draft-override-tensor --override-tensor-draft", OVERRIDES, "overrides_draft"
    ),
    Argument(
        "-cmoed --spec-draft-cpu-moe --cpu-moe-draft",
        EXPERTS,
        "overrides_draft",
        "LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
    ),
    Argument(
        "-ncmoed --spec-draft-n-cpu-moe --spec-draft-ncmoe --n-cpu-moe-draft",
        EXPERTS_OF,
        "overrides_draft",
        "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
    ),
    Argument("--spec-draft-n-max", COUNT, "draft_n_max", "LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    Argument("--spec-draft-n-min", NUMBER, "", "LLAMA_ARG_SPEC_DRAFT_N_MIN"),
    Argument("--spec-synth-len", TEXT, "", "LLAMA_ARG_SPEC_SYNTH_LEN", first=10662),
    Argument("--spec-synth-rates", TEXT, "", "LLAMA_ARG_SPEC_SYNTH_RATES", first=10662),
    Argument("--spec-draft-p-split --draft-p-split", TEXT, "", "LLAMA_ARG_SPEC_DRAFT_P_SPLIT"),
    Argument("--spec-draft-p-min --draft-p-min", TEXT, "", "LLAMA_ARG_SPEC_DRAFT_P_MIN"),
    Argument(
        "--spec-draft-backend-sampling",
        SWITCH,
        "",
        "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
        "--no-spec-draft-backend-sampling",
        first=9265,
    ),
    Argument(
        "--spec-draft-sampling", DRAFT_SAMPLING, "", "LLAMA_ARG_SPEC_DRAFT_SAMPLING", first=11368
    ),
    Argument("-devd --spec-draft-device --device-draft", DEVICES, "device_draft"),
    Argument(
        "-ngld --spec-draft-ngl --gpu-layers-draft --n-gpu-layers-draft",
        LAYERS,
        "n_gpu_layers_draft",
        "LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    ),
    Argument(
        "-md --spec-draft-model --model-draft", PATH, "model_draft", "LLAMA_ARG_SPEC_DRAFT_MODEL"
    ),
    # ngram-* draft without a model, and take no device memory
    Argument("--spec-type", SPECULATION, "spec_type", "LLAMA_ARG_SPEC_TYPE"),
    Argument("--spec-ngram-mod-n-min", NUMBER),
    Argument("--spec-ngram-mod-n-max", NUMBER),
    Argument("--spec-ngram-mod-n-match", NUMBER),
    Argument("--spec-ngram-simple-size-n", NUMBER),
    Argument("--spec-ngram-simple-size-m", NUMBER),
    Argument("--spec-ngram-simple-min-hits", NUMBER),
    Argument("--spec-ngram-map-k-size-n", NUMBER),
    Argument("--spec-ngram-map-k-size-m", NUMBER),
    Argument("--spec-ngram-map-k-min-hits", NUMBER),
    Argument("--spec-ngram-map-k4v-size-n", NUMBER),
    Argument("--spec-ngram-map-k4v-size-m", NUMBER),
    Argument("--spec-ngram-map-k4v-min-hits", NUMBER),
    # Today's llama.cpp refuses it and names --spec-draft-n-max
    Argument("--draft --draft-n --draft-max", OLD_DRAFT, "draft_n_max", "LLAMA_ARG_DRAFT_MAX"),
    Argument("--draft-min --draft-n-min", NUMBER, "", "LLAMA_ARG_DRAFT_MIN"),
    Argument("--spec-ngram-size-n", NUMBER),
    Argument("--spec-ngram-size-m", NUMBER),
    Argument("--spec-ngram-min-hits", NUMBER),
    Argument("--tts-lang", TEXT),
    Argument("--tts-speaker-file", PATH),
    Argument("--diffusion-steps", NUMBER),
    Argument("--diffusion-visual", FLAG),
    Argument("--diffusion-eps", TEXT),
    Argument("--diffusion-algorithm", NUMBER),
    Argument("--diffusion-alg-temp", TEXT),
    Argument("--diffusion-block-length", NUMBER),
    Argument("--diffusion-cfg-scale", TEXT),
    Argument("--diffusion-add-gumbel-noise", TEXT),
    Argument("-lr --learning-rate", TEXT),
    Argument("-lr-min --learning-rate-min", TEXT),
    Argument("-decay-epochs --learning-rate-decay-epochs", TEXT),
    Argument("-wd --weight-decay", TEXT),
    Argument("-val-split --val-split", TEXT),
    Argument("-epochs --epochs", NUMBER),
    Argument("-opt --optimizer", TEXT),
    Argument("--check", FLAG),
    Argument("--save-logits", FLAG),
    Argument("--logits-output-dir", OUTPUT),
    Argument("--tensor-filter", TEXT),
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
    ),
    Argument(
        "--vision-gemma-4b-default",
        preset(model="hf:ggml-org/gemma-3-4b-it-qat-GGUF", n_ctx=0),
        "model",
    ),
    Argument(
        "--vision-gemma-12b-default",
        preset(model="hf:ggml-org/gemma-3-12b-it-qat-GGUF", n_ctx=0),
        "model",
    ),
    Argument("--spec-default", DEFAULT_SPECULATION, "spec_type"),
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
