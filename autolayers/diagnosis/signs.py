"""What llama.cpp and Ollama print when something fails: one row each, with the builds that print
it. What a backend or its driver prints is a row of that backend (backends/).
"""

from __future__ import annotations

import re

from ..backends import signs
from ..backends.sign import BYTES, MIB, NAME, Sign
from .more_signs import FIRST, LAST

# of the three eras, overlapping where a rename took weeks
A_LAST, B_FIRST, B_LAST = 4500, 4400, 9100

PART = r"[^/\\']{0,120}-\d{5}-of-\d{5}\.gguf"  # of a model in several files
EXIT = r"\b[eE]xit(?:ed)?(?: with)?(?: code| status)?:? ?\(?"  # before a process's code
BACKENDS = signs()  # and the names of the backends that print each

# The first row that matches a line counts: special ones stand before general ones
SIGNS = (
    Sign("host_lock", "failed to mlock", "", "load", weight=3, fatal=False),
    Sign(
        "host_lock",
        "pinned memory",
        rf"[fF]ailed to allocate (?:{MIB} Mi?B of )?pinned memory(?!.{{0,80}}-capable device)",
        "load",
        weight=3,
        fatal=False,
    ),
    Sign("host_lock", "RLIMIT_MEMLOCK", "", "load", weight=3, fatal=False),
    # before what its reason may sound like
    Sign(
        "fit_gave_up",
        "failed to fit params to free device memory",
        r"failed to fit params to free device memory: (?P<why>.{1,160})",
        "start",
        weight=5,
        fatal=False,
        first=7400,
    ),
    *FIRST,
    # Drivers' lines, e.g. "cudaMalloc failed: out of memory"
    *BACKENDS,
    # --- device memory, or RAM where the buffer is the host's: decide.py tells them apart
    Sign(
        "oom_device",
        "alloc_tensor_range",
        rf"failed to allocate {NAME} buffer of size {BYTES}",
        "load",
        last=11434,
    ),
    Sign("oom_device", "buffer of size", rf"failed to allocate {NAME} buffer of size {BYTES}"),
    Sign("oom_device", "unable to allocate backend buffer", "", "load", last=A_LAST),
    Sign("oom_device", "unable to allocate", rf"[uU]nable to allocate {NAME} buffer", "load"),
    Sign("oom_device", "allocate output buffer of size", "", "compute", weight=8),
    Sign("oom_device", "could not reserve space for batch", "", "run", weight=8),
    Sign(
        "oom_device",
        "failed to allocate",
        r"[fF]ailed to allocate (?P<name>[A-Z]\S{0,79}) buffer\b(?! of size)(?! for)",
    ),
    Sign("oom_device", "error loading model: failed to allocate buffer", "", "load", last=2500),
    Sign(
        "oom_device",
        "failed to allocate buffer for",
        r"failed to allocate buffer for (?:lora adapter|control vector)",
        "load",
    ),
    Sign("oom_device", "graph allocation: failed to reserve memory", "", "compute", weight=8),
    Sign("oom_device", "failed to reserve initial output buffer", "", "compute", weight=8),
    Sign(
        "oom_device",
        "allocate buffer for",
        r"failed to allocate buffer for (?:kv|rs) cache",
        "cache",
        weight=8,
    ),
    Sign(
        "oom_device",
        "failed to allocate",
        r"failed to allocate (?:the MoE cache buffers|DSV4 compressor state)",
        "cache",
        weight=8,
    ),
    Sign("oom_device", "failed to reserve graph", "", "compute", weight=8),
    # ", reserving" is ggml_backend_sched's own next step
    Sign("oom_device", "failed to allocate graph", r"allocate graph(?!, )", "run", weight=8),
    Sign("oom_device", "failed to allocate compute graph", "", "run", weight=8),
    # GGML_STATUS_ALLOC_FAILED
    Sign(
        "oom_device",
        " -2",
        r"(?:compute status:|graph_compute_async failed with error) -2\b",
        "run",
        weight=8,
    ),
    Sign(
        "oom_device",
        "failed to allocate compute",
        r"failed to allocate compute (?:pp |tg )?buffers",
        "compute",
        weight=8,
    ),
    # --- one allocation over a driver's limit
    Sign(
        "buffer_limit",
        "max buffer size",
        r"(?:exceeds|larger than) (?:the )?(?:maximum|max) buffer size",
    ),
    # --- RAM
    Sign(
        "oom_host",
        "requires more system memory",
        r"requires more system memory "
        r"\((?P<gib>[\d.,]{1,9}) GiB\) than is "
        r"available \((?P<left>[\d.,]{1,9}) [MG]iB\)",
        "start",
    ),
    Sign("oom_host", "Out of memory: Killed process"),
    Sign("oom_host", "oom-kill"),
    # `docker inspect` also prints "OOMKilled": false
    Sign("oom_host", "OOMKilled", r"OOMKilled(?!['\"]?\s{0,3}[:=]\s{0,3}false)"),
    Sign("oom_host", "OOM killer"),
    Sign("oom_host", "signal: killed"),
    Sign(
        "oom_host",
        "137",
        r"\b(?:[eE]xit(?:ed)?(?: with)?(?: code| status)?:?|returned|code=) ?\(?137\b",
    ),
    Sign("oom_host", "-9", rf"{EXIT}-9\b"),  # as Python's subprocess counts
    # what shells print: "Killed", "zsh: killed  llama-server", "run.sh: line 3: 12345 Killed
    # llama-server -m",
    # "[1]+  Killed    llama-server", "Killed: 9" on macOS, fish's "terminated by signal SIGKILL"
    Sign(
        "oom_host",
        "killed",
        r"^(?:\S{1,200}: line \d{1,6}: +\d{1,9} +|\[\d{1,4}\] ?[+-]? "
        r"+(?:\d{1,9} +)?|zsh: )?"
        r"[Kk]illed(?:: 9)?(?: +\(core dumped\))?(?: *$| {2,}| "
        r"+\S{0,200}(?:llama|server|ollama))",
    ),
    Sign("oom_host", "terminated by signal SIGKILL"),
    Sign("oom_host", "code=killed, status=9"),
    Sign("oom_host", "earlyoom", r"sending SIG(?:TERM|KILL) to process"),
    # It also writes lines when it starts
    Sign("oom_host", "systemd-oomd", r"[Kk]illed|killing"),
    Sign("oom_host", "memory for prompt cache state", "", "run", weight=4, fatal=False),
    Sign(
        "oom_host",
        "cache state:",
        rf"cache state: \d+ prompts, {MIB} MiB \(limits: (?P<left>[\d.]{{1,9}}) MiB",
        "run",
        weight=3,
        fatal=False,
        first=6500,
    ),
    # --- the file and the program
    Sign(
        "old_build",
        "unknown model architecture",
        r"unknown model architecture: '(?P<what>[^']{0,80})'",
        "load",
    ),
    Sign(
        "old_build",
        "unknown pre-tokenizer type",
        r"unknown pre-tokenizer type: '(?P<what>[^']{0,80})'",
        "load",
    ),
    # decide.py: the number tells a newer type from a fork's
    Sign("old_build", "invalid ggml type", r"invalid ggml type (?P<type>-?\d{1,9})", "load"),
    Sign(
        "old_build",
        "unknown projector type",
        r"[uU]nknown projector type(?P<colon>:)? ?(?P<what>\S{0,60})",
        "load",
    ),
    Sign("old_build", "don't support projector", "", "load", last=B_LAST),
    # decide.py: one or two more are of a newer revision, many are another model
    Sign(
        "old_build",
        "wrong number of tensors",
        r"wrong number of tensors; expected (?P<due>\d{1,6}), got (?P<there>\d{1,6})",
        "load",
    ),
    Sign("old_build", "missing tensor", r"missing tensor '(?P<tensor>[^']{1,120})'", "load"),
    Sign(
        "old_build",
        "not found",
        r"_tensor\w{0,12}: tensor '(?P<tensor>[^']{1,120})' not found",
        "load",
    ),
    Sign(
        "old_build",
        "has wrong shape",
        r"tensor '(?P<tensor>[^']{1,120})' has wrong shape; "
        r"expected (?P<due>[\dx, ]{1,80}), got (?P<there>[\dx, ]{1,80})",
        "load",
    ),
    # files before GGUF
    Sign(
        "bad_model",
        "error loading model: missing",
        r"error loading model: missing (?P<tensor>\S{1,80}\.weight)",
        "load",
        last=A_LAST,
    ),
    Sign(
        "bad_model",
        "is missing from model",
        r"tensor '(?P<tensor>[^']{1,120})' is missing from model",
        "load",
        last=A_LAST,
    ),
    Sign("old_build", "unknown tokenizer", r"unknown (?:tokenizer|vocab type)", "load"),
    Sign("old_build", "unsupported GGUF version", "", "load"),
    Sign("old_build", "only supports up to version", "", "load"),
    Sign("old_build", "too many tensors created", "", "load"),
    Sign("old_build", "unrecognized tensor type", "", "load", last=A_LAST),
    Sign("old_build", "unknown file version", "", "load", last=A_LAST),
    Sign("bad_model", "GGUFv1 is no longer supported", "", "load"),
    # converted for big-endian machines, such as s390x
    Sign("bad_model", "host and model endianness", "", "load"),
    Sign("bad_model", "error loading model hyperparameters", "", "load", weight=8),
    Sign(
        "bad_file", "has invalid data", r"tensor '(?P<tensor>[^']{1,120})' has invalid data", "load"
    ),
    Sign("bad_file", "found tensors with invalid data", "", "load"),
    Sign(
        "bad_file",
        "corrupted model",
        r"corrupted model: \d{1,6} tensors expected but \d{1,6} found",
        "load",
    ),
    Sign(
        "bad_file",
        "is duplicated",
        r"invalid model: tensor '(?P<tensor>[^']{1,120})' is duplicated",
        "load",
    ),
    Sign("bad_file", "invalid split count", "", "load"),
    Sign("bad_file", "failed to read magic", "", "load"),
    Sign("bad_file", "exceeds remaining file size", "", "load"),
    Sign("bad_file", "bad GGUF version", "", "load"),
    Sign("bad_file", "not available in cache (offline mode)", "", "load"),
    Sign("bad_file", "no GGUF files found in repository", "", "load"),
    Sign(
        "bad_file", "not found in repository", r"file '[^']{1,200}' not found in repository", "load"
    ),
    Sign(
        "bad_file",
        "Download",
        r"[Dd]ownload (?:'[^']{1,200}' )?failed(?: after \d|:? .{0,200}status)",
        "load",
    ),
    Sign("bad_file", "HEAD failed", r"HEAD failed, status: (?P<status>\d{3})", "load"),
    Sign("bad_file", "GET failed (", r"GET failed \((?P<status>[45]\d\d)\)", "load"),
    Sign("bad_file", "failed to download model", "", "load", weight=8),
    Sign("bad_file", "HTTPS is not supported", "", "load"),  # built without TLS
    Sign("bad_file", "digest mismatch, file must be downloaded again", "", "load"),  # Ollama
    Sign("bad_file", "cannot make GET request", "", "load", weight=8),
    Sign(
        "bad_file",
        "mmap failed",
        r"(?:mmap|CreateFileMappingA|MapViewOfFile) failed",
        "load",
        weight=8,
    ),
    Sign(
        "bad_model", "key not found in model", r"key not found in model: (?P<key>\S{1,80})", "load"
    ),
    Sign("bad_model", "cannot be used as main model", "", "load"),
    Sign("bad_model", "unsupported model architecture", "", "load"),
    Sign("bad_model", "vocab mismatch", r"error loading model vocabulary", "load"),
    Sign("bad_model", "cannot find tokenizer", r"cannot find tokenizer (?:vocab|merges)", "load"),
    Sign(
        "bad_file",
        "failed to open GGUF",
        r"failed to open GGUF (?:file|split) ?"
        rf"(?:'[^']{{0,300}}?(?P<path>{PART})'|'[^']{{0,300}}')?(?: \((?P<why>.{{1,80}}?)\))?",
        "load",
    ),
    Sign("bad_file", "failed to open", r"failed to open '?[^']{1,300}\.gguf", "load"),
    Sign(
        "bad_file", "No such file or directory", r"\.gguf\b.{0,40}No such file or directory", "load"
    ),
    Sign(
        "bad_file",
        "invalid magic",
        r"invalid magic (?:characters:? "
        r"'?(?P<magic>.{1,8}?)'?(?:,|$| )"
        r"|number (?P<hex>[0-9a-f]{8}))",
        "load",
    ),
    Sign("bad_file", "bad magic", "", "load"),
    Sign("bad_file", "invalid file magic", "", "load"),  # ollama create
    # "GGUF", read by a program that is older than it
    Sign("old_build", "(magic, version) combination: 46554747", "", "load", last=A_LAST),
    Sign("bad_file", "(magic, version) combination", "", "load", last=A_LAST),
    Sign(
        "bad_file",
        "not within the file bounds",
        r"tensor '(?P<tensor>[^']{1,120})' data is not within",
        "load",
    ),
    Sign("bad_file", "not within file bounds", "", "load"),
    # a projector that ends too early (clip.cpp)
    Sign(
        "bad_file",
        "failed to seek for tensor",
        r"failed to seek for tensor (?P<tensor>\S{1,80})",
        "load",
    ),
    Sign("bad_file", "failed to read key-value pairs", "", "load", weight=8),
    Sign("bad_file", "failed to read tensor info", "", "load", weight=8),
    Sign("bad_file", "failed to read tensor data", "", "load"),
    Sign("bad_file", "unexpectedly reached end of file", "", "load"),
    Sign("bad_file", "read error:", "", "load"),
    Sign(
        "bad_file",
        "illegal split file",
        r"illegal split file(?: idx)?: (?P<idx>\d{1,5})(?: \(file: "
        r"[^)]{0,300}?"
        r"(?P<split>[^/\\)]{1,120}-\d{5}-of-\d{5}\.gguf)\))?",
        "load",
    ),
    Sign("bad_file", "invalid split file", "", "load"),
    Sign(
        "bad_file",
        "failed to load GGUF split",
        rf"failed to load GGUF split from (?:.{{0,300}}?(?P<path>{PART}))?",
        "load",
    ),
    Sign("bad_file", "invalid GGUF", r"invalid GGUF|not a (?:valid )?GGUF", "load"),
    Sign(
        "bad_file",
        "failed to load model from",
        r"llama_model_loader: failed to load model from (?P<path>.{1,300})",
        "load",
        weight=8,
    ),
    # --- flags
    Sign(
        "bad_flag",
        "invalid argument:",
        r"error: invalid argument: (?P<flag>\S{1,60})",
        "start",
        first=4000,
    ),
    Sign("bad_flag", "invalid argument: -", r"^Invalid argument: (?P<flag>-\S{1,60}?),? ", "start"),
    Sign(
        "bad_flag",
        "unknown argument",
        r"(?:error: )?unknown argument:? (?P<flag>\S{1,60})",
        "start",
        last=A_LAST,
    ),
    Sign(
        "bad_flag",
        "error while handling argument",
        r'error while handling argument "(?P<flag>[^"]{1,60})": (?P<why>.{1,200})',
        "start",
    ),
    Sign(
        "bad_flag",
        "invalid parameter for argument",
        r"invalid parameter for argument: (?P<flag>\S{1,60})",
        "start",
        last=A_LAST,
    ),
    Sign(
        "bad_flag",
        "error while handling environment variable",
        r'error while handling environment variable "(?P<flag>[^"]{1,60})": '
        r"(?P<why>.{1,200})",
        "start",
    ),
    # A flag stands last, without its value
    Sign("bad_flag", "expected value for argument", "", "start"),
    Sign(
        "bad_flag",
        "unrecognized arguments",
        r"error: unrecognized arguments: (?P<flag>\S{1,60})",
        "start",
    ),
    Sign("bad_flag", "Failed to parse arguments", "", "start"),
    Sign(
        "bad_flag",
        "unknown value for --",
        r"(?:error: |^(?:-\S{1,30}: )?)unknown value for (?P<flag>--[\w-]{1,40}): (?P<why>.{1,80})",
        "start",
    ),
    Sign(
        "bad_flag",
        "not recognized in preset",
        r"option '(?P<flag>[^']{1,60})' not recognized in preset",
        "start",
    ),
    Sign("bad_flag", "invalid value for main_gpu", "", "start"),
    Sign("bad_flag", "n_seq_max must be <=", "", "start"),
    Sign("bad_flag", "--model is required", "", "start"),
    Sign(
        "bad_flag",
        "preset file",
        r"preset file does not exist|failed to open server preset file",
        "start",
    ),
    Sign("bad_flag", "chat template is not supported", "", "start"),
    Sign("bad_flag", "failed to find RPC backend", "", "start"),
    Sign(
        "bad_flag",
        "cache type: ",
        r"(?:Unsupported|Invalid) cache type: (?P<why>\S{1,60})",
        "start",
    ),
    Sign("bad_flag", "unknown buffer type", "", "start", weight=8),
    Sign("bad_flag", "invalid device:", r"invalid device: (?P<device>\S{1,40})", "start", weight=8),
    # --- each flag is fine, together they are not
    # Without flash attention V is stored transposed, which blocks of a quantised type do not allow
    Sign("bad_combo", "V cache quantization requires flash_attn", "", "start", last=B_LAST),
    Sign(
        "bad_combo",
        "quantized V cache",
        r"quantized V cache (?:requires flash_attn|was requested, but)",
        "start",
        first=9000,
    ),
    # Ollama leaves the type out and goes on
    Sign(
        "bad_combo",
        "quantized kv cache requested but",
        "",
        "start",
        weight=4,
        fatal=False,
    ),
    Sign(
        "bad_combo",
        "does not support different K",
        r"model does not support different K \(.{1,20}\) and V",
        "start",
    ),
    Sign(
        "bad_combo", "cache type", r"(?P<cache>[KV]) cache type \S{1,20} with block size", "start"
    ),
    Sign(
        "bad_combo",
        "LLAMA_SPLIT_MODE_",
        r"LLAMA_SPLIT_MODE_\w{3,10}.{0,30} (?:not implemented|not supported|needs|requires)",
        "start",
        first=8000,
    ),
    Sign("bad_combo", "does not support split buffers", "", "start"),
    Sign("bad_combo", "suffix_fallback.empty()", "", "start", first=8000),
    Sign("bad_combo", "GGML_BACKEND_SPLIT_AXIS_UNKNOWN", "", "start", first=8000),
    Sign(
        "bad_combo",
        "not supported with",
        r"(?:is|are) not supported with (?:--|multimodal|-)",
        "start",
    ),
    Sign("bad_combo", "cannot be used together", "", "start"),
    # ik_llama.cpp: llama_model_load
    Sign("bad_combo", "cannot be used with --fit", "cannot be used with --(?P<part>fit)", "start"),
    # ggml_reduce of ik_llama.cpp: -sm graph left a tensor on one device alone
    Sign("bad_combo", "GGML_ASSERT(nhave > 1)", "", "start"),
    Sign(
        "bad_combo",
        "with less than 2 devices",
        r"split mode '\w{1,20}' with less than 2 devices",
        "start",
    ),
    Sign(
        "bad_combo",
        "requires flash_attn",
        r"(?:SPLIT_MODE_TENSOR|[KV] cache).{0,40} requires flash_attn",
        "start",
    ),
    Sign(
        "bad_combo",
        "MoE cache",
        r"MoE cache (?:requires|does not support|is too small)",
        "start",
        first=10000,
    ),
    Sign(
        "bad_combo",
        "does not support embeddings",
        r"server does not support embeddings|embeddings are not supported",
        "run",
        weight=6,
        fatal=False,
    ),
    # --- the chat template: common/chat.cpp, its engines minja (to 2025) and jinja, and the
    # server's requests
    Sign(
        "template",
        "requires --jinja",
        r"(?P<why>tools? param requires --jinja)",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign(
        "template",
        "Jinja Exception",
        r"Jinja Exception: "
        r"(?P<why>[^\n\"\\]{1,160})",
        "run",
        weight=6,
        fatal=False,
    ),
    # minja's errors
    Sign(
        "template",
        "at row ",
        r"(?:\"message\": ?\")?(?P<why>[^\"\n]{1,120}?) at row \d{1,6}, column \d{1,6}:",
        "run",
        weight=6,
        fatal=False,
    ),
    # common/jinja's own, with the place before the reason
    Sign(
        "template",
        "While executing",
        r"While executing \w{3,40} at line \d{1,6}, column \d{1,6} in source"
        r"(?:.{0,600}?Error: (?P<why>[^\"\n\\]{1,160}))?",
        "run",
        weight=6,
        fatal=False,
    ),
    # of programs with an engine of their own
    Sign(
        "template",
        "Jinja template",
        r"[Ee]rror.{0,40}Jinja template|Jinja template.{0,40}(?:[Ff]ail|[Ee]rror)",
        "start",
        weight=4,
        fatal=False,
    ),
    Sign("template", "generate parser for this template", "", "run", weight=6, fatal=False),
    Sign("template", "failed to initialize chat template", "", "start"),
    Sign(
        "template", "template is not supported, try using --jinja", "", "run", weight=6, fatal=False
    ),
    Sign(
        "template",
        "failed to apply",
        r"failed to apply (?:chat )?template",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign(
        "template",
        "failed to parse",
        r"[Ff]ailed to parse (?:the )?(?:tool use )?chat template",
        "start",
        weight=4,
        fatal=False,
    ),
    Sign(
        "template",
        "chat template parsing error",
        r"chat template parsing error: (?P<why>.{1,160})",
        "start",
    ),
    # --- the program itself does not start: its libraries, the CPU
    Sign(
        "missing_library",
        "error while loading shared libraries",
        r"error while loading shared libraries: (?P<library>\S{1,80}?):",
        "start",
    ),
    # as Python says it of the library that it loads
    Sign(
        "missing_library",
        "cannot open shared object",
        r"(?:OSError|ImportError|RuntimeError): (?:.{1,400}: )?(?P<library>lib\S{1,80}?): "
        r"cannot open shared object",
        "start",
    ),
    Sign(
        "missing_library",
        "Could not find module",
        r"Could not find module '.{0,300}?(?P<library>[\w.-]{1,60}\.dll)'",
        "start",
    ),
    Sign(
        "missing_library",
        "Could not load library",
        r"Could not load library \"?.{0,300}?(?P<library>[\w.-]{1,60}\.(?:dll|so|dylib))\b",
        "start",
    ),
    Sign("missing_library", "no backends are loaded", "", "load"),
    Sign(
        "missing_library",
        ".dll",
        r"(?P<library>[\w.-]{1,60}\.dll)\W{0,3} (?:was not found|is missing|not found)",
        "start",
    ),
    Sign(
        "missing_library",
        "Library not loaded",
        r"Library not loaded: \S{0,200}?(?P<library>[^/\s]{1,80})$",
        "start",
    ),
    # of a newer system, as ld.so says it
    Sign(
        "missing_library",
        "' not found (required by",
        r"version \W(?P<library>(?:GLIBC|GLIBCXX|CXXABI)_[\w.]{1,20})\W not found \(required by",
        "start",
    ),
    # of another build, which is found first
    Sign(
        "missing_library",
        "symbol lookup error",
        r"symbol lookup error: .{1,300}?undefined symbol: (?P<symbol>\w{1,200})",
        "start",
    ),
    Sign(
        "missing_library",
        "undefined symbol",
        r"undefined symbol: (?P<symbol>(?:_Z\d{1,3})?(?:llama|ggml|gguf|mtmd|clip)_\w{1,200})",
        "start",
    ),
    Sign(
        "missing_library",
        "Shared library with base name",
        r"Shared library with base name '(?P<library>\w{1,40})' not found",
        "start",
    ),
    # Windows': a library, or a function in one
    *(
        Sign("missing_library", code, "", "start")
        for code in (
            *("0xC0000135", "3221225781", "-1073741515"),
            *("0xC0000139", "3221225785", "-1073741511"),
        )
    ),
    Sign("cpu_build", "CPU type in executable", r"(?P<made>[bB]ad CPU type)", "start"),
    Sign("cpu_build", "Exec format error", r"(?P<made>[eE]xec format error)", "start"),
    Sign(
        "cpu_build",
        "incompatible architecture",
        r"incompatible architecture \(ha(?:ve|s) \W?(?P<made>\w{1,20})",
        "start",
    ),
    Sign("cpu_build", "no CPU backend found", "", "load"),
    Sign(
        "cpu_build",
        "illegal",
        r"^(?:[^:]{1,200}: )*(?:line \d{1,6}: +\d{1,9} )?[Ii]llegal (?:hardware )?instruction",
        "start",
    ),
    Sign("cpu_build", "SIGILL", r"\bSIGILL\b", "start"),
    Sign("cpu_build", "signal: illegal instruction", "", "start"),  # Ollama, as Go says it
    *(Sign("cpu_build", code, "", "start") for code in ("0xC000001D", "3221225501", "-1073741795")),
    *(Sign("cpu_build", code, rf"{EXIT}{code}\b", "start") for code in ("132", "-4")),  # SIGILL
    # --- the GPU, its driver, the binary
    Sign(
        "device_lost",
        "GPU reset",
        r"amdgpu.{0,60}GPU reset (?:begin|\(|succeeded)",
        "run",
        weight=8,
    ),
    Sign("device_lost", "page fault", r"amdgpu.{0,60}hub\d?\] .{0,20}page fault", "run", weight=8),
    # Lines of the kernel, which a journal has between those of the server
    Sign("device_lost", "NVRM: Xid", "", "run", weight=8),
    Sign("device_lost", "GPU HANG", r"(?:i915|xe) .{0,60}GPU HANG", "run", weight=8),
    Sign("device_lost", "timeout", r"ring (?:comp|gfx|sdma)\S{0,20} timeout", "run"),
    Sign(
        "op_unsupported",
        "that cannot run the operation",
        r"in a buffer \((?P<name>\S{1,40})\) that cannot run the operation "
        r"\((?P<op>[A-Z_0-9]{1,40})\)",
        "run",
    ),
    Sign("op_unsupported", "unsupported op", r"unsupported op '(?P<op>[A-Z_0-9]{1,40})'", "run"),
    Sign(
        "partial_offload",
        "is assigned to device CPU but",
        r"layer \d{1,4} is assigned to device CPU but",
        "start",
        weight=4,
        fatal=False,
        first=B_FIRST,
    ),
    Sign(
        "op_unsupported",
        "not supported, set to disabled",
        r"(?P<part>fused) .{1,60} not supported, set to disabled",
        "start",
        weight=4,
        fatal=False,
        first=8000,
    ),
    Sign(
        "op_unsupported",
        "tensor is assigned to device CPU",
        "",
        "start",
        weight=4,
        fatal=False,
        first=B_FIRST,
    ),
    Sign(
        "op_unsupported",
        "Flash Attention was auto, set to disabled",
        "",
        "start",
        weight=4,
        fatal=False,
        first=B_FIRST,
    ),
    Sign(
        "op_unsupported",
        "forcing off",
        r"flash_attn .{0,80}forcing off",
        "start",
        weight=4,
        fatal=False,
    ),
    Sign(
        "op_unsupported",
        "flash attention not supported",
        r"^(?!.*(?:warmup:|clip)).*flash attention not supported by",
        "start",
        weight=4,
        fatal=False,
    ),
    # --- other machines, other files, the port
    # n_embd of the projector's output and of the model
    Sign("pair_mismatch", "mismatch between text model", "", "load"),
    Sign("pair_mismatch", "mmproj embedding mismatch", "", "load"),  # KoboldCpp
    Sign(
        "pair_mismatch",
        "draft model",
        r"draft model .{0,60}(?:must match|not compatible|incompatible)",
        "load",
    ),
    Sign("pair_mismatch", "arch and LoRA arch mismatch", "", "load"),
    Sign("pair_mismatch", "expect general.type to be 'adapter'", "", "load"),
    Sign(
        "pair_mismatch",
        "LoRA tensor",
        r"LoRA tensor .{0,120}(?:does not exist|not found|incorrect shape)",
        "load",
    ),
    Sign("pair_mismatch", "LoRA tensor pair", "", "load"),
    Sign("pair_mismatch", "adapter.type to be 'lora'", "", "load"),
    Sign("pair_mismatch", "control vector n_embd", r"control vector n_embd does not match", "load"),
    Sign(
        "pair_mismatch", "draft model is not", r"draft model is not (?:eagle3|dflash|mtp)", "load"
    ),
    Sign(
        "pair_mismatch",
        "vocab_type",
        r"(?:draft|target) .{0,60}vocab_type .{0,60}(?:match|differ)",
        "load",
    ),
    Sign("pair_mismatch", "Failed to load CLIP model", "", "load", weight=8),
    Sign("port_busy", "couldn't bind", "", "start"),
    Sign("port_busy", "Address already in use", "", "start"),
    Sign("port_busy", "Only one usage of each socket address", "", "start"),
    Sign("port_busy", "forbidden by its access permissions", r"bind: An attempt was made", "start"),
    # Ollama; the reason is in the system's language
    Sign("port_busy", ": bind: ", r"listen tcp \S{1,80}: bind: ", "start"),
    Sign("port_busy", "error while attempting to bind on address", "", "start"),
    Sign("start_timeout", "timed out waiting for", r"timed out waiting for llama", "start"),
    Sign(
        "start_timeout",
        "getting device memory data for initial parameters",
        "",
        "start",
        weight=2,
        first=7400,
    ),
    # --- nothing failed, but it is slow, small or at the edge
    Sign("no_gpu", "no usable GPU found", "", "start", weight=6, fatal=False, first=B_FIRST),
    Sign("no_gpu", "not compiled with GPU offload", "", "start", weight=6, fatal=False),
    Sign("no_gpu", "compiled without GPU", "", "start", weight=6, fatal=False),
    Sign(
        "no_gpu",
        "cannot open shared object",
        r"(?P<why>lib(?:cuda|cudart|cublas|amdhip64|hipblas|rocblas|vulkan)"
        r"\S{0,20}: cannot open shared object file)",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign(
        "no_gpu",
        "compatible gpu libraries",
        r"compatible gpu libraries\S* compatible=\[\]",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign("no_gpu", "no compatible GPUs", "", "start", weight=6, fatal=False),
    # Ollama's discovery of NVIDIA's GPUs: the driver lacks a function, or refuses; 2 is full memory
    Sign(
        "no_gpu",
        "symbol lookup for cu",
        r"(?P<why>symbol lookup for cu\w{1,40} failed)",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign(
        "no_gpu",
        "init failure: ",
        r"(?P<why>(?:cudart|cuda driver library) init failure: \d{1,4})",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign(
        "no_gpu",
        "cuda driver library failed",
        r"(?P<why>cuda driver library failed to get device context (?!2(?!\d))\d{1,4})",
        "start",
        weight=6,
        fatal=False,
    ),
    # a program of Ollama's that has runners for the CPU alone
    Sign(
        "no_gpu",
        "Dynamic LLM libraries",
        r"Dynamic LLM libraries(?:\"? runners=\"?)? ?\[cpu\w*(?: cpu\w*)*\]",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign(
        "no_gpu",
        "cudaSetDevice err",
        r"(?P<why>cudaSetDevice err: \d{1,4})",
        "start",
        weight=6,
        fatal=False,
    ),
    # LM Studio's survey
    Sign(
        "no_gpu",
        "gpus found",
        r"[Nn]o (?:supported )?(?:CUDA |ROCm |Vulkan )?[Gg][Pp][Uu]s found",
        "start",
        weight=6,
        fatal=False,
    ),
    Sign("no_gpu", "library=cpu", r"\blibrary=cpu\b", "start", weight=6, fatal=False),
    Sign("no_gpu", "offloaded 0/", r"offloaded 0/\d+ layers to GPU", "load", weight=6, fatal=False),
    # ik_llama.cpp
    Sign("fit_gave_up", "Unable to auto-fit model", "", "start", weight=5, fatal=False),
    Sign(
        "fit_gave_up",
        "was unable to fit model into system memory",
        "",
        "start",
        weight=5,
        fatal=False,
        first=7400,
    ),
    Sign(
        "partial_offload", "CPU/GPU", r"\b\d{1,2}%/\d{1,2}% CPU/GPU", "run", weight=4, fatal=False
    ),
    Sign("no_gpu", "100% CPU", r"\b100% CPU\b", "run", weight=4, fatal=False),
    Sign(
        "partial_offload",
        "cannot meet free memory target",
        r"cannot meet free memory targets?.{0,60} need to (?:reduce|use) .{0,60}?(?P<mib>\d{1,9}) "
        r"MiB",
        "start",
        weight=4,
        fatal=False,
        first=7400,
    ),
    # Weight 3: printed for a longer context than the trained one, which may be meant
    Sign("context_limit", "possible training context overflow", "", "start", weight=3, fatal=False),
    Sign("context_limit", "exceeds the training context", "", "start", weight=3, fatal=False),
    Sign(
        "context_limit",
        "context size",
        r"(?:\((?P<asked>\d{1,9}) tokens\) )?exceeds (?:the available )?context size(?: "
        r"\((?P<has>\d{1,9}) tokens\))?"
        r"|exceed_context_size_error",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign("context_limit", "context size exceeded", "", "run", weight=6, fatal=False),
    Sign("context_limit", "Prompt exceeds n_ctx", "", "run", weight=6, fatal=False),
    # ik_llama.cpp
    Sign("context_limit", "KV cache is full", "", "run", weight=5, fatal=False),
    Sign("context_limit", "too big compared to KV size", "", "run", weight=5, fatal=False),
    Sign(
        "context_limit",
        "exceed context window",
        r"tokens (?:\(\d{1,8}\) )?exceed context window of",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign("context_limit", "truncating input prompt", "", "run", weight=3, fatal=False),
    Sign(
        "context_limit",
        "input length exceeds",
        r"input length exceeds (?:the )?(?:maximum )?context",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign("context_limit", "larger than the max context size", "", "run", weight=6, fatal=False),
    Sign(
        "context_limit",
        "keep from the initial prompt is greater than",
        "",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign("context_limit", "find free space in the KV cache", "", "run", weight=5, fatal=False),
    Sign("context_limit", "could not find a KV slot", "", "run", weight=5, fatal=False),
    # Ollama's own runner (kvcache.ErrKvCacheFull)
    Sign("context_limit", "could not find a kv cache slot", "", "run", weight=8),
    Sign(
        "context_limit",
        "find a memory slot",
        r"failed to find a memory slot for batch",
        "run",
        weight=5,
        fatal=False,
    ),
    Sign("context_limit", "context size has been exceeded", "", "run", weight=6, fatal=False),
    Sign(
        "context_limit",
        "slot context shift",
        r"(?P<part>slot context shift)(?:.{0,60}n_discard = (?P<lost>\d{1,9}))?",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign(
        "context_limit",
        "truncated = 1",
        r"(?:n_tokens = (?P<has>\d{1,9}), )?(?P<part>truncated) = 1",
        "run",
        weight=6,
        fatal=False,
    ),
    # Ollama's own: the oldest messages are left out, or its engine's cache is shifted
    Sign("context_limit", "truncating input messages", "", "run", weight=5, fatal=False),
    Sign(
        "context_limit",
        "context limit hit",
        r"context limit hit - shifting",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign(
        "context_limit",
        "input truncated",
        r"(?P<part>input truncated)",
        "run",
        weight=6,
        fatal=False,
    ),
    Sign(
        "context_limit",
        "context shift is disabled",
        r"(?P<part>context shift is disabled)",
        "run",
        weight=6,
        fatal=False,
    ),
    # --- more requests than slots
    Sign(
        "busy",
        "no slot",
        r"[Nn]o slots? (?:is |are )?(?:currently )?available",
        "run",
        weight=5,
        fatal=False,
    ),
    Sign(
        "busy",
        "slots are busy",
        r"\b[Aa]ll slots are (?:currently )?busy",
        "run",
        weight=5,
        fatal=False,
    ),
    *LAST,
)

# Lines that sound like a cause and are none: printed before every failed load, or when nothing is
# wrong
# (the first: --fit's own dry run failed, and the load fails after it by itself)
HARMLESS = (
    "encountered an error while trying to fit params",
    "full capacity of the model will not be utilized",
    "control-looking token",
    "cannot be used with preferred buffer type",
    "retrying without",
    "falling back",
    "skipping reorder",
    "async uploads",
    "deficit",
    "this warning is normal during memory fitting",
    # libraries beside the program that it was not built to load
    "failed to find ggml_backend_init",
)

# What the lines after a refusal say of it
# (Vulkan and CUDA refuse with the same words, whatever the memory was for)
PHASES = (
    (
        "load",
        re.compile(
            r"error loading model: unable to allocate|load_all_data|"
            r"error loading model: .{0,60}buffer|load_tensors:.{0,40}failed|"
            r"unable to allocate backend buffer"
        ),
    ),
    (
        "cache",
        re.compile(
            r"(?:allocate|buffer).{0,20} (?:kv|rs|KV) cache|llama_kv_cache_init\(\) "
            r"failed"
            r"|MoE cache buffers|DSV4 compressor|failed to initialize the memory"
            r"|for self-attention cache"
        ),
    ),
    (
        "compute",
        re.compile(
            r"ggml_gallocr_reserve|failed to allocate compute|compute (?:pp|tg) "
            r"buffers|graph_reserve|"
            r"sched_reserve.{0,60}failed|failed to reserve"
        ),
    ),
)
