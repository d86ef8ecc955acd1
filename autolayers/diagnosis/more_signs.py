"""What llama.cpp's programs and those that start them say of a request, of saved states, of pairs
of files, of a configuration and of faults of their own: words that are enough by themselves.

The words are those of b11549's sources (tools/messages.py lists them), of llama-swap to v250, of LM
Studio to 0.4 and of Ollama's llama-server to 0.33.
"""

from __future__ import annotations

from ..backends.sign import MIB, Sign


def _rows(
    cause: str, phase: str, *words: str, weight: int = 9, fatal: bool = True
) -> tuple[Sign, ...]:
    """Return a sign of each of these words; "word|pattern" has a pattern too."""
    return tuple(
        Sign(
            cause, word.partition("|")[0], word.partition("|")[2], phase, weight=weight, fatal=fatal
        )
        for word in words
    )


# --- a request that does not fit the micro-batch: embeddings, reranking, decisions
BATCH = (
    Sign(
        "batch_limit",
        "too large to process",
        r"\((?P<asked>\d{1,9}) tokens\) (?:is|are) too large to process"
        r"(?:.{0,60}current batch size: +(?P<has>\d{1,9}))?|too large to process",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign("batch_limit", "n_ubatch >= n_tokens", "", "run"),
    Sign("batch_limit", "must fit in one batch", "", "run", weight=6, fatal=False),
)

# --- what a client sent, or what the model made of it
REQUESTS = _rows(
    "bad_request",
    "run",
    # grammars: tools' schemas are made into one
    "parsing grammar|(?P<why>(?:number of re|number of rules|expecting|unknown|undefined|Undefined)"
    r"[^\"\n]{1,120})",
    "failed to parse grammar|(?P<why>failed to parse grammar)",
    "JSON schema|(?P<why>JSON schema (?:conversion failed|error at).{0,80})",
    "unsupported grammar|(?P<why>unsupported grammar.{0,80})",
    # images, sound, video
    "input is not supported|(?P<why>(?:image|audio|video) input is not supported)",
    "does not support multimodal|(?P<why>model does not support multimodal requests)",
    "failed to decode|(?P<why>failed to decode (?:image bytes|webp buffer|buffer as either))",
    "failed to load image|[fF]ailed to load image(?: or audio file)?",
    "failed to download image",
    "in PATH?|(?P<why>\\(?is ff(?:mpeg|probe) in PATH\\?\\)?)",
    "video is not supported in this build|(?P<why>video is not supported in this build)",
    "does not support audio input|(?P<why>does not support audio input)",
    "does not support vision input|(?P<why>does not support vision input)",
    "does not match number of|(?P<why>number of media .{0,40}does not match number of \\w+)",
    "Unable to read WAV audio",
    # what the model answered
    "does not match the expected|(?P<why>output that does not match the expected "
    "[\\w -]{0,30}format)",
    "Failed to parse tool call arguments",
    "Failed to parse messages",
    "Failed to parse tools",
    "Failed to tokenize prompt",
    "Prompt contains invalid tokens",
    "Invalid diff",
    # the server's own checks of a request's fields
    "unsupported content[].type",
    "must be|['\"](?P<why>[\\w.\\[\\]]{1,30}['\"] must be "
    "(?:an? |one of|provided|strings?).{0,60})",
    "is required|(?<![\\w-])['\"](?P<why>(?!--)[\\w.\\[\\]]{1,30}['\"] is required)",
    "Value must be between",
    "Output of tool call",
    "is not supported by llamacpp",
    "llama.cpp does not support '",
    "Cannot use both json_schema and grammar",
    "Cannot use custom grammar constraints with tools",
    "Cannot have 2 or more assistant messages",
    "assistant message must contain either",
    "non-assistant messages must contain",
    "Missing 'role' in message",
    "Unsupported content part type",
    "Invalid tool_choice",
    "logprobs is not supported",
    "Invalid slot ID",
    "must not be empty|['\"](?P<why>prompt['\"] must not be empty)",
    "does not support logits computation",
    "Cannot run multiple aLoRAs",
    "not supported by multimodal",
    "unsupported URL scheme",
    "Failed to format input",
    "does not exist or cannot be opened|file does not exist or cannot be opened",
    "URLs are not allowed unless --media-path",
    "Invalid base64 value",
    "uri must be base64 encoded",
    *(
        f'{kind}_error|"message": ?"(?P<why>[^"]{{1,120}})[^"]{{0,600}}"[^{{}}]{{0,80}}{kind}_error'
        for kind in ("invalid_request", "not_found")
    ),
    # Ollama
    'does not support|[\\w./:-]{1,120}"? does not support (?P<why>tools|thinking|chat|generate|'
    "insert|vision|embeddings?|completion|image generation)",
    "this model only supports one image",
    "model name=|(?P<why>model name=\\S{0,60} is not (?:found|running))",
    weight=5,
    fatal=False,
)

# --- a prompt that no cache in RAM takes
PROMPTS = (
    Sign(
        "prompt_cache",
        "exceeds cache size limit",
        rf"size ?=? ?{MIB} MiB\)? exceeds cache size limit \(?(?P<left>[\d.]{{1,12}}) MiB",
        "run",
        weight=5,
        fatal=False,
    ),
    # of models whose cache cannot go back: sliding windows, recurrent states
    Sign(
        "prompt_cache",
        "forcing full prompt re-processing",
        r"(?P<part>forcing full prompt re-processing)",
        "run",
        weight=4,
        fatal=False,
    ),
)

# A client that asks where nothing listens
CLIENTS = tuple(
    Sign("wrong_port", word, pattern, "start", weight=4, fatal=False)
    for word, pattern in (
        ("Failed to connect to", r"Failed to connect to \S{1,80} port (?P<port>\d{1,5})"),
        ("connection refused", r"dial tcp \S{1,80}:(?P<port>\d{1,5}): .{0,40}refused"),
        ("ECONNREFUSED", r"ECONNREFUSED \S{1,80}:(?P<port>\d{1,5})"),
        ("actively refused", r":(?P<port>\d{1,5}): .{0,80}actively refused"),
    )
)

# --- two files, or a file and a launch, that are not of one model
PAIRS = (
    *_rows(
        "pair_mismatch",
        "load",
        "failed to load lora adapter",
        "failed to apply lora adapter",
        "has unexpected suffix",
        "maybe wrong base model",
        "lora_a tensor is not transposed",
        "failed to allocate context for control vector",
        "requires a draft context",
        "target layer id|target layer id \\d{1,6} exceeds target n_layer",
        "row width must match the target",
        "failed to create MTP context",
        "failed to initialize speculative decoding context",
        "failed to load draft model",
        "between vision and audio mmproj",
        "failed to load multimodal model",
        weight=8,
    ),
    *_rows(
        "pair_mismatch",
        "run",
        *(
            f"{word}|(?P<part>){word}"
            for word in (
                "session file",
                "sequence state",
                "slot save file",
                "failed to restore kv cache",
                "error loading state",
                "error saving state",
                "error getting state size",
                "failed to restore state with size",
                "incompatible V transposition",
                "incompatible s transposition",
                "incompatible key rotation",
                "Unable to restore slot",
                "Restored prompt does not fit",
            )
        ),
        weight=5,
        fatal=False,
    ),
    Sign(
        "pair_mismatch",
        "mismatched ",
        r"mismatched (?:key|value|r|s|ple|GQA|layer) ",
        "run",
        weight=5,
        fatal=False,
    ),
    Sign("pair_mismatch", "wrong model arch", "", "run", weight=5, fatal=False),
)

# --- -sm tensor: ggml-backend-meta.cpp's checks depend on the model's shapes and the split
TENSOR_SPLIT = (
    Sign("bad_combo", "SPLIT_MODE_TENSOR requires flash_attn", "", "start"),
    Sign("bad_combo", "ggml-backend-meta.cpp:", r"ggml-backend-meta\.cpp:\d{1,6}: ", "start"),
    Sign("bad_combo", "-kvu flag", r"you may need to use the (?P<part>-kvu) flag", "run"),
    Sign("bad_combo", "GGML_ASSERT(tensor_axis_0 != nullptr)", "", "load"),
    Sign("bad_combo", "GGML_ASSERT(split_state", "", "start"),
    Sign("bad_combo", "GGML_ASSERT(src_ss[", "", "start"),
    Sign("bad_combo", "view of permuted tensor not implemented", "", "start"),
    Sign("bad_combo", "unsupported mul_mat split states", "", "start"),
    Sign(
        "bad_combo",
        "SPLIT_MODE_TENSOR and KV cache quantization",
        "",
        "start",
        first=8000,
    ),
)

# --- asserts of llama.cpp that some builds have and no flag is wrong for
FAULTS = (
    Sign(
        "program_fault",
        "GGML_SCHED_MAX_SPLIT_INPUTS",
        r"(?P<part>GGML_SCHED_MAX_SPLIT_INPUTS)",
        "start",
    ),
    Sign(
        "program_fault",
        "seq_id cannot be larger than n_tokens",
        r"(?P<part>seq_id cannot be larger than n_tokens)",
        "run",
    ),
    *_rows(
        "program_fault",
        "run",
        "checkpoint size mismatch",
        "failed to restore context checkpoint",
        "pos_min == -1, but n_past > 0",
        "please provide logs and repro in",
        "failed to remove sequence",
        "memory buffer mismatch",
    ),
    # llama-batch.cpp refuses what the server has put together
    *_rows(
        "program_fault",
        "run",
        "inconsistent sequence positions",
        "positions are not continuous",
        "positions are decreasing",
        "belongs to incompatible sequence sets",
        "size mismatch, got|(?:embedding|state) size mismatch, got",
        "conflicting outputs",
        weight=5,
        fatal=False,
    ),
    # ggml's own: an operation that a backend does not have
    Sign(
        "op_unsupported",
        "ggml-",
        r"ggml-\w{2,10}[/\\][\w-]{1,40}\.\w{1,4}:\d{1,6}: .{0,60}"
        r"(?:[uU]nsupport|not (?:yet )?(?:supported|implemented))",
        "run",
    ),
    Sign("op_unsupported", "error: unsupported op '", "", "run"),
    Sign("op_unsupported", "unsupported type combination (", "", "run"),
)

# --- the model's file
FILES = (
    *_rows(
        "bad_model",
        "load",
        "has wrong type|(?P<why>key \\S{1,80} has wrong (?:array element )?type.{0,60})",
        "has wrong array|(?P<why>\\S{1,80} has wrong array .{0,60})",
        "found array for key|(?P<why>expected scalar, found array for key: ?\\S{0,60})",
        "exceeds max|(?P<why>array length \\d{1,9} for key \\S{1,60} exceeds max.{0,20})",
        "N_MAX|(?P<why>n > N_MAX.{0,80})",
        "invalid n_rot|(?P<why>invalid n_rot.{0,40})",
        "no expert layers are used|(?P<why>model has expert layers but no expert layers are used)",
        "missing tensor info mapping|(?P<why>missing tensor info mapping for \\S{1,60})",
        "unsupported vocab type",
        "not found in the model|(?P<why>tensor '[^']{1,100}' not found in the model)",
        "requires the NextN block|(?P<why>\\S{1,30} MTP requires the NextN block)",
        "precompiled",
        "Index out of array bounds",
        "Byte token for <",
        "clip_init: failed to load model|clip_init: failed to load model '[^']{0,300}': "
        "(?P<why>.{1,120})",
        "Unsupported attempt to override",
        "array|(?P<why>\\S{1,80} (?:is not an? \\w{3,10}(?:/\\w{3,10}){0,5}|must be a bool) array)",
        "length mismatch|(?P<why>\\S{1,80} tensor/value length mismatch)",
        "invalid gguf type for",
        # Ollama's reader
        "architecture not set",
        "exceeds maximum|(?P<why>(?:GGUF|gguf|tensor) .{1,80} exceeds maximum \\d{1,20})",
        "overflow|(?P<why>(?:GGUF tensor offset|parameter count|tensor \\S{1,80} "
        "(?:elements|size|offset(?:\\+size)?)) overflows?)",
        "no longer compatible with your version of Ollama",
        "requires MLX support",
        "Unknown Model, cannot load",  # KoboldCpp
    ),
    *_rows(
        "old_build",
        "load",
        "unsupported decoder rope type",
        "unsupported minicpmv version",
        "unexpected vision projector type",
        "unexpected audio projector type",
        "may be incompatible with your version of Ollama",
    ),
    *_rows(
        "bad_file",
        "load",
        "in GGUF split|(?P<why>missing key \\S{1,60} in GGUF split)",
        "CreateFileMappingA failed",
        "MapViewOfFile failed",
        "byte aligned, cannot mmap",
        "seek error:",
        "ftell error:",
        "write error:",
        "unexpectedly failed to write bytes",
        "failed to copy file to snapshots",
        "HTTPS requested but",
        # Ollama
        "exceeds file size|(?P<why>tensor \\S{1,80} offset\\+size .{0,20}exceeds file size)",
        "not in GGUF format",
        "unsupported content type:",
        "unsupported model format",
        "split GGUF|(?P<why>split GGUF .{1,120})",
        "max retries exceeded",
        "unauthorized: access denied",
        "pull model manifest",
        "corrupt manifests detected",
        "failed to read tensor|failed to read tensor (?:name|dimensions|shape|kind|offset)",
        "HTTPLIB failed",
        "invalid HF repo format",
        "Docker Model|[fF]ailed to download Docker Model|Docker Model download failed",
        "Docker registry token",
        "Docker manifest",
        "error writing to file",
        "opening local file for writing",
        "unable to rename file",
        weight=8,
    ),
)

# --- flags and configuration
CONFIGURED = (
    *_rows(
        "bad_flag",
        "start",
        "cannot both be zero",
        "n_ctx_seq == 0",
        "exceeds models_max|(?P<why>number of models to load on startup .{0,60})",
        "appears multiple times|(?P<why>model '[^']{1,60}' appears multiple times)",
        "conflicts with|(?P<why>(?:alias|model name|preset) .{0,80}conflicts with .{1,60})",
        "MCP config|(?P<why>failed to (?:open|parse) MCP config.{0,60})",
        "tools-runtime|(?P<why>unknown --tools-runtime option.{0,40})",
        "static assets path not found",
        "is built without SSL support",
        "is not supported with multiple TCP addresses",
        "failed to parse server config file",
        "synthetic acceptance",
        "the argument has been removed",
        "is not allowed in remote presets",
        "has two values|(?P<why>option '[^']{1,60}' has two values)",
        "is not a directory|(?P<why>'[^']{1,200}' does not exist or is not a directory)",
        "an existing llama-server route|(?P<why>AIP_PREDICT_ROUTE=\\S{1,80})",
        "MCP starting failed|MCP starting failed: (?P<why>.{1,120})",
        "initialize router models|failed to initialize router models: (?P<why>.{1,120})",
        "tools setup failed|tools setup failed: (?P<why>.{1,120})",
        weight=8,
    ),
    # llama-swap reads its configuration before it starts anything
    *_rows(
        "bad_flag",
        "start",
        "load config|failed to (?:re)?(?P<part>load config)"
        '(?:".{0,600}? error="|: )(?P<why>[^"]{1,160})',
        "unknown macro|(?P<why>unknown macro '[^']{1,60}'.{0,60})",
        "duplicate alias|(?P<why>duplicate alias .{1,80})",
        "uses ${PORT} but cmd does not",
        "references unknown model|(?P<why>\\S{1,80} references unknown model \\S{1,60})",
        "is used in multiple groups|(?P<why>model \\S{1,60} is used in multiple groups.{0,60})",
        "invalid proxy URL|(?P<why>(?:model \\S{1,60}: )?invalid proxy URL.{0,80})",
        "config cannot use both|(?P<why>config cannot use both .{1,40})",
        "empty api key found",
        "is in multiple groups|(?P<why>model \\S{1,60} is in multiple groups.{0,60})",
        "matrix must define",
        "matrix router requires",
        "references undefined set",
        "unknown var or model",
        "circular reference detected involving set",
        "unsupported scheduler type",
        "no model config for",
        "DSL expression|(?P<why>empty DSL expression)",
        "at position|(?P<why>(?:expected set name|unexpected character) .{1,60} at position)",
        "missing closing parenthesis",
        "unable to get sanitized command",
        "upstream proxy missing",
        "startPort must be",
        "to decode macro",
        # KoboldCpp
        "kcpp config file invalid",
        "failed to start command|(?P<why>failed to start command '[^']{1,300}': .{1,80})",
        weight=8,
    ),
    *_rows(
        "port_busy",
        "start",
        "start HTTP listener",
        "failed to initialize HTTP server",
        "exiting due to HTTP server error",
        weight=8,
    ),
    *_rows(
        "rpc_lost",
        "start",
        "Failed to parse endpoint",
        "Cannot resolve host",
        "Invalid host address",
        "RPC handshake failed",
        "RPC transport initialization failed",
        "send failed (bytes_sent=",
        "update client|Expected HELLO command, update client",
        "Unsuccessful graph computations are not supported with RPC",
        weight=8,
    ),
    # rpc-server's own: what a client of another build asks of it
    *_rows(
        "rpc_lost",
        "run",
        "error deserializing tensor",
        "of buffer bounds|(?P<why>out of (?:buffer|tensor) bounds)",
        "of tensor bounds",
        "tensor data before buffer start",
        "invalid tensor type received",
        "failed to create graph node",
        "out-of-bounds write in rpc_server",
        "Null tensor pointer passed to server",
        "request size mismatch",
        weight=6,
        fatal=False,
    ),
)

# --- those that start llama-server
STARTERS = (
    Sign(
        "start_timeout",
        "health check",
        r"[hH]ealth check (?:timed out|failed) after (?P<after>[\w.]{1,12})",
        "start",
    ),
    Sign("start_timeout", "daemon did not become healthy", "", "start"),
    # LM Studio, which refuses by its own estimate
    Sign(
        "oom_host",
        "insufficient system resources",
        r"(?P<part>insufficient system resources)"
        r"(?:.{0,120}requires approximately (?P<gb>[\d.]{1,9}) GB)?",
        "start",
    ),
    Sign(
        "oom_host",
        "Not enough resources to load the model",
        r"(?P<part>Not enough resources to load the model)",
        "start",
    ),
    Sign(
        "missing_library",
        "Failed to load LLM engine",
        r"Failed to load (?P<library>LLM engine)",
        "start",
    ),
    Sign(
        "missing_library",
        "binary not found",
        r"(?P<library>llama-server) binary not found",  # Ollama
        "start",
    ),
    # a backend whose own libraries are not found; a build without it goes on
    Sign(
        "missing_library",
        "failed to load ",
        r"[fF]ailed to load .{0,300}?(?P<library>(?:lib)?ggml-[\w-]{2,40}\.(?:dll|so|dylib))",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign(
        "missing_library",
        "error 126",
        r"Win(?:32|dows)? ?[eE]rror:? ?126\b",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign("missing_library", "incompatible API version", "(?P<symbol>incompatible API)", "start"),
)

# --- Ollama's and KoboldCpp's own, before and beside the load
OTHERS = (
    Sign(
        "no_gpu",
        "driver",
        r"(?P<why>(?:NVIDIA|AMD) driver (?:is )?too old)",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign(
        "no_gpu",
        "no rocblas support for gfx target",
        r"(?P<why>no rocblas support for gfx target)",
        "start",
        weight=6,
        fatal=False,
    ),
    *(
        Sign("no_gpu", said, "", "start", weight=6, fatal=False)
        for said in (
            "GPU discovery watchdog timed out",
            "failure during GPU discovery",
            "llama-server discovery: timed out",
            "llama-server --list-devices failed",
            "failed to finish discovery before timeout",
        )
    ),
    # a driver's library that does not answer
    Sign(
        "no_gpu",
        "failed",
        r"(?P<why>(?:cuInit|cuDeviceGetCount|nvmlInit_v2|hipGetDeviceCount|vkCreateInstance) failed"
        r".{0,40})",
        "start",
        weight=6,
        fatal=False,
    ),
    *(
        Sign(
            "missing_library",
            f"{name} runtime DLL",
            f"(?P<library>{name}) runtime",
            "start",
            weight=6,
            fatal=False,
        )
        for name in ("amdhip64", "vulkan-1.dll")
    ),
    # NVIDIA's driver for Tegra, without the rights of its group
    Sign(
        "no_gpu",
        "NvRmMemInit",
        r"NvRmMemInit\w{0,10} failed with (?P<why>.{1,60})",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign(
        "no_gpu",
        " detected",
        r"\b[nN]o (?:CUDA|ROCm|Vulkan|NVIDIA|AMD|GPU)(?: GPUs?| devices?)? detected",
        "start",
        weight=5,
        fatal=False,
    ),
    # NVIDIA's container hook
    Sign(
        "missing_library",
        "load library failed",
        r"load library failed: (?P<library>\S{1,80}?):",
        "start",
    ),
    Sign("oom_device", "runtime OOM detected", "", "run", weight=5, fatal=False),
    Sign("oom_device", "predicted usage exceeds VRAM", "", "load", weight=3, fatal=False),
    Sign(
        "no_gpu",
        "library file not found. CPU library will be used",
        r"(?P<why>\w{3,10} library file not found)",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign(
        "oom_device",
        "reported out-of-memory during startup",
        r"reported out-of-memory during startup(?!.{0,300}failed to allocate)",
        "start",
        weight=8,
    ),
    Sign(
        "partial_offload",
        "unable to load full model on GPU",
        "",
        "load",
        weight=4,
        fatal=False,
    ),
    Sign(
        "context_limit",
        "maximum context length",
        r"exceeds (?:the )?maximum context length",
        "run",
        weight=5,
        fatal=False,
    ),
    Sign(
        "context_limit",
        "requested context size too large for model",
        "",
        "start",
        weight=3,
        fatal=False,
    ),
    Sign(
        "context_limit",
        "exceeds allocated context size of",
        r"max_context_length=(?P<asked>\d{1,9}) exceeds allocated context size of (?P<has>\d{1,9})",
        "run",
        weight=5,
        fatal=False,
    ),
    Sign("bad_combo", "quantkv requires --flashattention", "", "start"),
    Sign(
        "bad_file",
        "Cannot find ",
        r"Cannot find (?:text model|mmproj|lora|lora base|image model|whisper model)(?: file)?: ",
        "load",
    ),
)

# --- more sequences than states; a cache that cannot be shifted
SLOTS = (
    Sign(
        "busy",
        "bigger --parallel value",
        r"(?P<part>Try using a bigger --parallel value)",
        "run",
        weight=5,
        fatal=False,
    ),
    Sign(
        "busy",
        "to find available cell",
        r"(?P<part>failed to find available cell)",
        "run",
        weight=5,
        fatal=False,
    ),
    Sign("busy", "model limit reached, try again later", "", "run", weight=5, fatal=False),
    Sign("busy", "maximum pending requests exceeded", "", "run", weight=5, fatal=False),
    Sign("context_limit", "does not support K-shift", "", "run"),
    Sign("context_limit", "available cells in kv cache", "", "run", weight=5, fatal=False),
    Sign("context_limit", "not enough cells in kv cache", "", "run", weight=5, fatal=False),
    Sign("context_limit", "> size = ", r"n_tokens = \d{1,9} > size", "run", weight=5, fatal=False),
    Sign("context_limit", "do not fit in the context", "", "run", weight=5, fatal=False),
    Sign(
        "context_limit",
        "find a slot for",
        r"failed to find a slot for",
        "run",
        weight=4,
        fatal=False,
    ),
)
# before the general ones of signs.py
FIRST = (*BATCH, *TENSOR_SPLIT, *FAULTS, *PROMPTS, *STARTERS, *OTHERS, *SLOTS)
# after them: words that may also stand in a more special line
LAST = (*CLIENTS, *PAIRS, *FILES, *CONFIGURED, *REQUESTS)
