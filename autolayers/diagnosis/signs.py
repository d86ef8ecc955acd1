"""What llama.cpp and Ollama print when something fails: one row each, with the builds that print it.

A sign is first looked for by its `word`, in lower case and cheap, then by its `pattern`, whose groups are figures:
`bytes`, `mib`, `gib` (what was asked for), `name` (a buffer or a device), `index` (of a device).
`phase`: where it always happens; "" where the lines after it tell. `weight`: of several signs the heaviest is the
cause, of equals the first in the log: 9 says why it failed, 8 that it failed and little of why, below that nothing
failed. `first`, `last`: the builds whose source has the words; 0: not bounded.
"""

from __future__ import annotations

import re

A_LAST, B_FIRST, B_LAST, C_FIRST = 4500, 4400, 9100, 9000      # the three eras, overlapping where a rename took weeks


class Sign:
    __slots__ = ("cause", "fatal", "first", "last", "pattern", "phase", "said", "weight", "word")

    def __init__(self, cause: str, word: str, pattern: str = "", phase: str = "", *, weight: int = 9,
                 fatal: bool = True, first: int = 0, last: int = 0) -> None:
        self.cause, self.said, self.phase, self.weight, self.fatal = cause, word, phase, weight, fatal
        self.word = word.lower()
        self.pattern = re.compile(pattern) if pattern else None
        self.first, self.last = first, last

    def match(self, text: str, lower: str) -> dict[str, str] | None:
        if self.word not in lower:
            return None
        if self.pattern is None:
            return {}
        found = self.pattern.search(text)
        return {key: value for key, value in found.groupdict().items() if value} if found else None

    def __repr__(self) -> str:
        return f"Sign({self.cause!r}, {self.word!r})"


_BYTES = r"(?P<bytes>\d{1,18})"
_MIB = r"(?P<mib>\d{1,9}[.,]\d+|\d{1,9})"
_NAME = r"(?P<name>\S{1,80})"

SIGNS = (
    # --- device memory, or RAM where the buffer is the host's: decide.py tells them apart
    Sign("host_lock", "failed to mlock", "", "load", weight=3, fatal=False),
    Sign("host_lock", "pinned memory", rf"[fF]ailed to allocate (?:{_MIB} MiB of )?pinned memory", "load", weight=3,
         fatal=False),
    Sign("oom_device", "Malloc failed", rf"allocating {_MIB} MiB on device (?P<index>\d{{1,3}}): (?:cuda|hip|musa|"
         r"aclrt)Malloc(?:Managed)? failed"),
    Sign("oom_device", "alloc_tensor_range", rf"failed to allocate {_NAME} buffer of size {_BYTES}", "load",
         last=11434),
    Sign("oom_device", "buffer of size", rf"failed to allocate {_NAME} buffer of size {_BYTES}"),
    Sign("oom_device", "unable to allocate", rf"unable to allocate {_NAME} buffer", "load"),
    Sign("oom_device", "unable to allocate backend buffer", "", "load", last=A_LAST),
    Sign("oom_device", "error: out of memory", r"(?:CUDA|ROCm|MUSA|HIP) error: out of memory", "run"),
    Sign("oom_device", "OutOfMemory", r"hipErrorOutOfMemory|cudaErrorMemoryAllocation", "run"),
    Sign("oom_device", "CUBLAS_STATUS_ALLOC_FAILED", "", "run"),
    Sign("oom_device", "CUBLAS_STATUS_NOT_INITIALIZED", "", "run"),
    Sign("oom_device", "the resource allocation failed", "", "run"),
    Sign("oom_device", "Device memory allocation of size", rf"Device memory allocation of size {_BYTES} failed"),
    Sign("oom_device", "ErrorOutOfDeviceMemory"),
    Sign("oom_device", "Insufficient Memory (0", r"Insufficient Memory \(0+8", "run"),
    Sign("oom_device", "kIOGPUCommandBufferCallbackErrorOutOfMemory", "", "run"),
    Sign("oom_device", "failed to allocate buffer, size", rf"failed to allocate buffer, size = *{_MIB} MiB"),
    Sign("oom_device", "allocate Metal buffer", rf"failed to allocate Metal buffer of {_BYTES} bytes"),
    Sign("oom_device", "Bytes of memory on device", rf"can't allocate {_BYTES} Bytes of memory on device"),
    Sign("oom_device", "OUT_OF_DEVICE_MEMORY", r"(?:UR_RESULT|PI)_ERROR_OUT_OF_DEVICE_MEMORY", "run"),
    Sign("oom_device", "VK_ERROR_OUT_OF_DEVICE_MEMORY"),
    Sign("oom_device", "failed to allocate", rf"[fF]ailed to allocate {_NAME} buffer\b(?! of size)(?! for)"),
    Sign("oom_device", "failed with status 5", "", "run", weight=8),
    Sign("oom_device", "OUT_OF_HOST_MEMORY", r"(?:PI_ERROR|UR_RESULT_ERROR)_OUT_OF_HOST_MEMORY", "run"),
    Sign("oom_device", "allocate buffer for", r"failed to allocate buffer for (?:kv|rs) cache", "cache", weight=8),
    Sign("oom_device", "failed to allocate", r"failed to allocate (?:the MoE cache buffers|DSV4 compressor state)",
         "cache", weight=8),
    Sign("oom_device", "failed to allocate compute", r"failed to allocate compute (?:pp |tg )?buffers", "compute",
         weight=8),
    Sign("oom_device", "recommended max working set size",
         r"current allocated size is greater than the recommended max working set size", "load", weight=5,
         fatal=False),

    # --- one allocation over a driver's limit
    Sign("buffer_limit", "Requested buffer size exceeds",
         r"Requested buffer size exceeds device (?:memory allocation|buffer size) limit"),
    Sign("buffer_limit", "Buffer Validation"),
    Sign("buffer_limit", "max buffer size", r"(?:exceeds|larger than) (?:the )?(?:maximum|max) buffer size"),
    Sign("buffer_limit", "maxBufferLength", r"(?:exceeds|greater than|larger than).{0,60}maxBufferLength"),

    # --- RAM
    Sign("oom_host", "cpu_buffer_type_alloc_buffer", rf"failed to allocate buffer of size {_BYTES}"),
    Sign("oom_host", "insufficient memory (attempted", rf"insufficient memory \(attempted to allocate *{_MIB} MB\)"),
    Sign("oom_host", "requires more system memory", r"requires more system memory \((?P<gib>[\d.,]{1,9}) GiB\) than is "
         r"available \((?P<left>[\d.,]{1,9}) [MG]iB\)", "start"),
    Sign("oom_host", "Out of memory: Killed process"),
    Sign("oom_host", "oom-kill"),
    Sign("oom_host", "OOMKilled"),
    Sign("oom_host", "OOM killer"),
    Sign("oom_host", "signal: killed"),
    Sign("oom_host", "137", r"\b(?:exit(?:ed)?(?: with)?(?: code| status)?:?|returned|code=) ?\(?137\b"),
    Sign("oom_host", "bad_alloc", weight=8),
    Sign("oom_host", "Cannot allocate memory", weight=8),
    Sign("oom_host", "paging file is too small"),
    Sign("oom_host", "cache state:", rf"cache state: \d+ prompts, {_MIB} MiB \(limits: (?P<left>[\d.]{{1,9}}) MiB",
         "run", weight=3, fatal=False, first=6500),

    # --- the file and the program
    Sign("old_build", "unknown model architecture", r"unknown model architecture: '(?P<what>[^']{0,80})'", "load"),
    Sign("old_build", "unknown pre-tokenizer type", r"unknown pre-tokenizer type: '(?P<what>[^']{0,80})'", "load"),
    Sign("old_build", "invalid ggml type", r"invalid ggml type (?P<type>-?\d{1,9})", "load"),
    Sign("old_build", "unknown projector type", r"[uU]nknown projector type(?P<colon>:)? ?(?P<what>\S{0,60})", "load"),
    Sign("old_build", "wrong number of tensors",
         r"wrong number of tensors; expected (?P<due>\d{1,6}), got (?P<there>\d{1,6})", "load"),
    Sign("old_build", "missing tensor", r"missing tensor '(?P<tensor>[^']{1,120})'", "load"),
    Sign("old_build", "not found", r"check_tensor_dims: tensor '(?P<tensor>[^']{1,120})' not found", "load"),
    Sign("old_build", "has wrong shape",
         r"tensor '(?P<tensor>[^']{1,120})' has wrong shape; "
         r"expected (?P<due>[\d, ]{1,80}), got (?P<there>[\d, ]{1,80})",
         "load"),
    Sign("old_build", "unknown tokenizer", r"unknown (?:tokenizer|vocab type)", "load"),
    Sign("old_build", "unsupported GGUF version", "", "load"),
    Sign("bad_model", "key not found in model", r"key not found in model: (?P<key>\S{1,80})", "load"),
    Sign("bad_model", "cannot be used as main model", "", "load"),
    Sign("bad_model", "unsupported model architecture", "", "load"),
    Sign("bad_model", "vocab mismatch", r"error loading model vocabulary", "load"),
    Sign("bad_model", "cannot find tokenizer", r"cannot find tokenizer (?:vocab|merges)", "load"),
    Sign("bad_file", "failed to open GGUF", r"failed to open GGUF (?:file|split) ?(?:'[^']{0,300}')?"
         r"(?: \((?P<why>.{1,80}?)\))?", "load"),
    Sign("bad_file", "failed to open", r"failed to open '?[^']{1,300}\.gguf", "load"),
    Sign("bad_file", "No such file or directory", r"\.gguf\b.{0,40}No such file or directory", "load"),
    Sign("bad_file", "invalid magic", r"invalid magic (?:characters:? '?(?P<magic>.{1,8}?)'?(?:,|$| )"
         r"|number (?P<hex>[0-9a-f]{8}))",
         "load"),
    Sign("bad_file", "bad magic", "", "load"),
    Sign("bad_file", "(magic, version) combination", "", "load", last=A_LAST),
    Sign("bad_file", "not within the file bounds", r"tensor '(?P<tensor>[^']{1,120})' data is not within", "load"),
    Sign("bad_file", "not within file bounds", "", "load"),
    Sign("bad_file", "failed to read key-value pairs", "", "load", weight=8),
    Sign("bad_file", "failed to read tensor info", "", "load", weight=8),
    Sign("bad_file", "failed to read tensor data", "", "load"),
    Sign("bad_file", "unexpectedly reached end of file", "", "load"),
    Sign("bad_file", "read error:", "", "load"),
    Sign("bad_file", "illegal split file", r"illegal split file", "load"),
    Sign("bad_file", "invalid split file", "", "load"),
    Sign("bad_file", "failed to load GGUF split", r"failed to load GGUF split from (?P<path>.{1,300})", "load"),
    Sign("bad_file", "invalid GGUF", r"invalid GGUF|not a (?:valid )?GGUF", "load"),
    Sign("bad_file", "failed to load model from", r"llama_model_loader: failed to load model from (?P<path>.{1,300})",
         "load", weight=8),

    # --- flags
    Sign("bad_flag", "invalid argument:", r"error: invalid argument: (?P<flag>\S{1,60})", "start", first=4000),
    Sign("bad_flag", "unknown argument", r"(?:error: )?unknown argument:? (?P<flag>\S{1,60})", "start", last=A_LAST),
    Sign("bad_flag", "error while handling argument",
         r'error while handling argument "(?P<flag>[^"]{1,60})": (?P<why>.{1,200})', "start"),
    Sign("bad_flag", "invalid parameter for argument", r"invalid parameter for argument: (?P<flag>\S{1,60})", "start",
         last=A_LAST),
    Sign("bad_flag", "expected value for argument", "", "start"),
    Sign("bad_flag", "Unsupported cache type", r"Unsupported cache type: (?P<why>\S{1,60})", "start"),
    Sign("bad_flag", "unknown buffer type", "", "start", weight=8),
    Sign("bad_flag", "invalid device:", r"invalid device: (?P<device>\S{1,40})", "start", weight=8),

    # --- each flag is fine, together they are not
    Sign("bad_combo", "V cache quantization requires flash_attn", "", "start", last=B_LAST),
    Sign("bad_combo", "quantized V cache", r"quantized V cache (?:requires flash_attn|was requested, but)", "start",
         first=9000),
    Sign("bad_combo", "does not support different K", r"model does not support different K \(.{1,20}\) and V", "start"),
    Sign("bad_combo", "cache type", r"[KV] cache type \S{1,20} with block size", "start"),
    Sign("bad_combo", "LLAMA_SPLIT_MODE_", r"LLAMA_SPLIT_MODE_\w{3,10}.{0,30} "
         r"(?:not implemented|not supported|needs|requires)",
         "start", first=8000),
    Sign("bad_combo", "does not support split buffers", "", "start"),
    Sign("bad_combo", "!(split && ne02", "", "run"),
    Sign("bad_combo", "suffix_fallback.empty()", "", "start", first=8000),
    Sign("bad_combo", "GGML_BACKEND_SPLIT_AXIS_UNKNOWN", "", "start", first=8000),
    Sign("bad_combo", "not supported with", r"(?:is|are) not supported with (?:--|multimodal|-)", "start"),
    Sign("bad_combo", "cannot be used together", "", "start"),

    # --- the GPU, its driver, the binary
    Sign("gpu_build", "no kernel image is available", "", "start"),
    Sign("gpu_build", "unsupported toolchain", r"provided PTX was compiled with", "start"),
    Sign("gpu_build", "no device code compatible", r"has no device code compatible with CUDA arch", "start"),
    Sign("gpu_build", "hipErrorNoBinaryForGpu", "", "start"),
    Sign("gpu_build", "Could not initialize Tensile host", "", "start"),
    Sign("gpu_build", "TensileLibrary", r"Cannot read .{0,200}TensileLibrary", "start"),
    Sign("device_lost", "ErrorDeviceLost", "", "run"),
    Sign("device_lost", "DEVICE_LOST", r"VK_ERROR_DEVICE_LOST|UR_RESULT_ERROR_DEVICE_LOST|PI_ERROR_DEVICE", "run"),
    Sign("device_lost", "timeout", r"ring (?:comp|gfx|sdma)\S{0,20} timeout", "run"),
    Sign("device_lost", "SubmissionsIgnored", r"[sS]ubmissionsIgnored|for prior/excessive GPU errors", "run"),
    Sign("device_lost", "error: 20", r"level_zero backend failed with error: 20\b", "run"),
    Sign("device_lost", "unspecified launch failure", r"CUDA error: unspecified launch failure", "run", weight=8),
    Sign("device_lost", "fallen off the bus", "", "run"),
    Sign("device_lost", "Impacting Interactivity", "", "run"),
    Sign("device_lost", "CallbackErrorTimeout", "", "run"),
    Sign("op_unsupported", "OUT_OF_RESOURCES", "UR_RESULT_ERROR_OUT_OF_RESOURCES", "run"),
    Sign("op_unsupported", "unsupported op", r"unsupported op '(?P<op>[A-Z_0-9]{1,40})'", "run"),
    Sign("partial_offload", "is assigned to device CPU but", r"layer \d{1,4} is assigned to device CPU but", "start",
         weight=4, fatal=False, first=B_FIRST),
    Sign("op_unsupported", "tensor is assigned to device CPU", "", "start", weight=4, fatal=False, first=B_FIRST),
    Sign("op_unsupported", "Flash Attention was auto, set to disabled", "", "start", weight=4, fatal=False,
         first=B_FIRST),
    Sign("op_unsupported", "forcing off", r"flash_attn .{0,80}forcing off", "start", weight=4, fatal=False),
    Sign("op_unsupported", "flash attention not supported", r"^(?!.*(?:warmup:|clip)).*flash attention not "
         r"supported by",
         "start", weight=4, fatal=False),

    # --- other machines, other files, the port
    Sign("rpc_lost", "RPC server crashed", r"Remote RPC server crashed or returned malformed response", "run",
         first=5600),
    Sign("rpc_lost", "ggml-rpc", r"ggml-rpc\.cpp.{0,60}GGML_ASSERT\(status\) failed"
         r"|GGML_ASSERT\(status\) failed.{0,60}ggml-rpc",
         "run", last=5700),
    Sign("rpc_lost", "recv failed", r"recv failed \(bytes_recv=", "run"),
    Sign("rpc_lost", "failed to connect to", r"[fF]ailed to connect to \S{3,80}:\d{2,5}", "start"),
    Sign("pair_mismatch", "mismatch between text model", "", "load"),
    Sign("pair_mismatch", "draft model", r"draft model .{0,60}(?:must match|not compatible|incompatible)", "load"),
    Sign("pair_mismatch", "arch and LoRA arch mismatch", "", "load"),
    Sign("pair_mismatch", "expect general.type to be 'adapter'", "", "load"),
    Sign("pair_mismatch", "LoRA tensor", r"LoRA tensor .{0,120}(?:does not exist|not found|incorrect shape)", "load"),
    Sign("pair_mismatch", "vocab_type", r"(?:draft|target) .{0,60}vocab_type .{0,60}(?:match|differ)", "load"),
    Sign("pair_mismatch", "Failed to load CLIP model", "", "load", weight=8),
    Sign("port_busy", "couldn't bind", "", "start"),
    Sign("port_busy", "Address already in use", "", "start"),
    Sign("port_busy", "Only one usage of each socket address", "", "start"),
    Sign("start_timeout", "timed out waiting for", r"timed out waiting for llama", "start"),
    Sign("start_timeout", "getting device memory data for initial parameters", "", "start", weight=2, first=7400),

    # --- nothing failed, but it is slow, small or at the edge
    Sign("no_gpu", "no usable GPU found", "", "start", weight=6, fatal=False, first=B_FIRST),
    Sign("no_gpu", "not compiled with GPU offload", "", "start", weight=6, fatal=False),
    Sign("no_gpu", "compiled without GPU", "", "start", weight=6, fatal=False),
    Sign("no_gpu", "failed to initialize", r"failed to initialize (?:CUDA|ROCm|HIP|Vulkan)(?:: (?P<why>.{1,120}))?",
         "start", weight=6, fatal=False),
    Sign("no_gpu", "no CUDA-capable device", "", "start", weight=6, fatal=False),
    Sign("no_gpu", "No devices found", r"ggml_vulkan: No devices found|no (?:CUDA|ROCm|GPU) devices found", "start",
         weight=6, fatal=False),
    Sign("no_gpu", "compatible gpu libraries", r"compatible gpu libraries\S* compatible=\[\]", "start", weight=6,
         fatal=False),
    Sign("no_gpu", "no compatible GPUs", "", "start", weight=6, fatal=False),
    Sign("no_gpu", "library=cpu", r"\blibrary=cpu\b", "start", weight=6, fatal=False),
    Sign("no_gpu", "offloaded 0/", r"offloaded 0/\d+ layers to GPU", "load", weight=6, fatal=False),
    Sign("fit_gave_up", "failed to fit params to free device memory", r"failed to fit params to free device memory: "
         r"(?P<why>.{1,160})", "start", weight=5, fatal=False, first=7400),
    Sign("fit_gave_up", "was unable to fit model into system memory", "", "start", weight=5, fatal=False, first=7400),
    Sign("partial_offload", "CPU/GPU", r"\b\d{1,2}%/\d{1,2}% CPU/GPU", "run", weight=4, fatal=False),
    Sign("no_gpu", "100% CPU", r"\b100% CPU\b", "run", weight=4, fatal=False),
    Sign("partial_offload", "cannot meet free memory target",
         r"cannot meet free memory targets?.{0,60} need to (?:reduce|use) .{0,60}?(?P<mib>\d{1,9}) MiB", "start",
         weight=4, fatal=False, first=7400),
    Sign("context_limit", "possible training context overflow", "", "start", weight=3, fatal=False),
    Sign("context_limit", "exceeds the training context", "", "start", weight=3, fatal=False),
    Sign("context_limit", "exceeds the available context size",
         r"exceeds the available context size|exceed_context_size_error", "run", weight=6, fatal=False),
    Sign("context_limit", "is too large to process", "", "run", weight=5, fatal=False),
    Sign("context_limit", "context size exceeded", "", "run", weight=6, fatal=False),
    Sign("context_limit", "context size has been exceeded", "", "run", weight=6, fatal=False),
    Sign("host_lock", "RLIMIT_MEMLOCK", "", "load", weight=3, fatal=False),
)

# Lines that sound like a cause and are none: printed before every failed load, or when nothing is wrong
HARMLESS = ("encountered an error while trying to fit params", "full capacity of the model will not be utilized",
            "control-looking token", "cannot be used with preferred buffer type", "retrying without", "falling back",
            "skipping reorder", "async uploads", "deficit")

# What the lines after a refusal say of it
PHASES = (
    ("load", re.compile(r"error loading model: unable to allocate|alloc_tensor_range|load_all_data|"
                        r"error loading model: .{0,60}buffer|load_tensors:.{0,40}failed|"
                        r"unable to allocate backend buffer")),
    ("cache", re.compile(r"(?:allocate|buffer).{0,20} (?:kv|rs|KV) cache|llama_kv_cache_init\(\) failed"
                         r"|MoE cache buffers|DSV4 compressor|failed to initialize the memory"
                         r"|for self-attention cache")),
    ("compute", re.compile(r"ggml_gallocr_reserve|failed to allocate compute|compute (?:pp|tg) buffers|graph_reserve|"
                           r"sched_reserve.{0,60}failed|failed to reserve")),
)
