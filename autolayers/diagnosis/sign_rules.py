"""What the lines around a sign make of it: rows of a field, causes, a name for the trace, what they
give and when.

JUDGING has what makes another cause or weight of any sign ("buffer of size" is of the GPU, of RAM,
or over a driver's limit), TELLING where, when and how the chosen cause came.
"""

from __future__ import annotations

import re

from ..backends import HOST
from ..backends.cpu import BUFFERS
from ..backends.rpc import Rpc
from ..model.architectures import NAMES
from .hits import NEAR, SIZES, WEIGHTS, Hit, device_named, first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # Of the rows of one field that stand together the first counts that is of the sign's cause (no
    # causes: of any) and whose condition holds. It gives a value, None: what the condition returned
    # (field, causes, name, value, condition)
    SignRule = tuple[str, str, str, object, Callable[[Hit], object]]

# types of tensors, and about the first build that has each
_OFFICIAL = {39: 6096, 40: 8400, 41: 8700, 42: 9500}
_YEAR = 3000  # builds; a file that came later than that was not meant for this program
# Of Ollama's engine of before 0.30, of image, video and sound models and of forks: no release of
# llama.cpp has these
# (names in neither list are taken for newer than the program)
# fmt: off
_FOREIGN = {
    "mllama", "gptoss", "qwen25vl", "deepseekocr", "glmocr", "flux", "sd1", "sd2", "sd3",
    "sdxl", "wan", "ltxv", "hyvid", "hunyuan_video", "qwen_image", "lumina2", "cosmos",
    "hidream", "aura", "z_image", "pig", "whisper", "bitnet-25", "bitnet-b1.58",
}
# fmt: on
# what does not go together, by sign
_COMBINED = {
    "v cache quantization requires flash_attn": "v cache",
    "quantized v cache": "v cache",
    "quantized kv cache requested but": "v cache",
    "quantkv requires --flashattention": "v cache",
    "cache type": "blocks",
    "llama_split_mode_": "split",
    "does not support split buffers": "split",
    "suffix_fallback.empty()": "split",
    "ggml_backend_split_axis_unknown": "split",
    "with less than 2 devices": "split",
    "split_mode_tensor and kv cache quantization": "tensor cache",
    "split_mode_tensor requires flash_attn": "tensor flash",
    "ggml-backend-meta.cpp:": "tensor",
    "ggml_assert(tensor_axis_0 != nullptr)": "tensor",
    "ggml_assert(split_state": "tensor",
    "ggml_assert(src_ss[": "tensor",
    "view of permuted tensor not implemented": "tensor",
    "unsupported mul_mat split states": "tensor",
}
# words of a program that was killed from outside
_KILLED = (
    "oomkilled",
    "137",
    "-9",
    "oom-kill",
    "oom killer",
    "out of memory: killed process",
    "killed",
    "terminated by signal sigkill",
    "code=killed, status=9",
    "earlyoom",
    "systemd-oomd",
)
# What Ollama's discovery says of one driver, before it tries another
_TRIED = (
    "symbol lookup for cu",
    "init failure: ",
    "cuda driver library failed",
    "cudaSetDevice err",
    "Dynamic LLM libraries",
)
_DISCOVERED = re.compile(r"inference compute\b.{0,200}\blibrary=(?!cpu)|offloaded [1-9]\d*/")
# What was done last before a device or a machine was gone
_BEFORE = (
    ("", re.compile("warming up|graph splits|Error OP|compute buffer size")),
    ("cache", re.compile("KV buffer size|RS buffer size|KV self size")),
    (
        "load",
        re.compile(
            r"load_tensors|llm_load_tensors|loading model tensors|^\s*SYCL\d+: .{1,90} MiB\)"
        ),
    ),
)
# What ends a request, unless the context was not made
_ENDED = re.compile(
    "GGML_ASSERT|has terminated|server terminated|runtime OOM|failed to decode|graph_compute"
    "|process_ubatch|Invalid input batch|Aborted"
)
_AT_START = re.compile(
    "graph_reserve|sched_reserve|failed to allocate compute|initialize the context|create.context"
    "|compute_meta|failed to reserve|retrying without|error loading llama server"
    # what Ollama says of a load; of a request it is another
    r"|process has terminated: \S"
)
_LOADING = re.compile(
    "load_tensors|llm_load_|loading model|llama_model_loader|process has terminated|fitting params"
)
# "layer 0 is assigned to device CUDA0 but the Flash Attention tensor is ...", "... not supported by
# CUDA0, ..."
_LACKING = re.compile(
    r"layer \d{1,4} is assigned to device (\S{1,40})|supported by (\S{1,40}?)[,. ]"
)
# ... and that the program has ended
GONE = re.compile(
    r"(?i)(?:process|runner|server) (?:has )?(?:terminated|exited)|exit "
    r"(?:code|status):? ?(?!0\b)[\dx]|"
    r"process no longer running|"
    r"llama.{0,10} failed to start|error starting llama|no suitable llama servers|"
    r"GGML_ASSERT|\w:\d{1,6}: fatal error|Aborted|core dumped|Segmentation fault|terminate called|"
    r"(?:failed|unable) to load (?:the )?model|"
    r"(?:CUDA|ROCm|MUSA|SYCL) error|exited prematurely|has crashed|unexpectedly (?:stopped|exited)"
    r"|[Cc]ould not load (?:text )?model|\(exit code: -?[1-9]|cmd\.Wait\(\) returned error"
    r"|Exception caught at file|ggml_abort|exitCode=[1-9]"
    r"|failed assertion `|Exception Code: 0xC0|Failed to execute script|AccessViolation"
    r"|terminating due to uncaught"
    r"|POST predict: .{0,120}EOF"
)


def _always(hit: Hit) -> bool:
    return True


_FULL, _LOST_GPU = "oom_device oom_host buffer_limit", "device_lost gpu_build rpc_lost"
_ASSERTIONS, _FILLED = ("ggml_assert", ".c"), ("oom_device", "oom_host", "context_limit", "busy")
_ARCHITECTURES = ("unknown model architecture", "unknown pre-tokenizer type")
# of every sign; the cause "" drops it
# fmt: off
JUDGING: tuple[SignRule, ...] = (
    ("cause", "oom_device", "the buffer is the host's", "oom_host",
     # pinned memory is RAM, whatever device it is for: "CUDA_Host", "CPU_Mapped", "CPU_REPACK"
     lambda hit: (name := hit.detail.get("name", "")).partition("[")[0].endswith("_Host")
     or name.startswith(BUFFERS)),
    ("cause", "oom_device", "the driver has no registers for the operation that a line names",
     "op_unsupported", lambda hit: hit.word == "out_of_resources" and hit.says("Error OP", 3, 5)),
    ("cause", "oom_device", "over the driver's limit for one allocation", "buffer_limit",
     lambda hit: hit.sign.limit and hit.over_limit),
    ("cause", "oom_host", "the prompt cache is within its limit", "",
     lambda hit: hit.word == "cache state:" and hit.within_limit),
    ("cause", "old_build", "no llama.cpp has such an architecture", "bad_model",
     lambda hit: hit.word in _ARCHITECTURES and (not (what := hit.detail.get("what", ""))
     or (what not in NAMES and what.lower() in _FOREIGN))),
    # An empty type: a projector of before the key, which no newer build reads either
    ("cause", "old_build", "the projector has no type", "bad_model",
     lambda hit: hit.word == "unknown projector type" and "colon" in hit.detail
     and not hit.detail.get("what", "").strip("'\"")),
    ("cause", "old_build", "no build of these years reads such a type", "bad_model",
     lambda hit: hit.word == "invalid ggml type"
     and (not (since := _OFFICIAL.get(int(hit.detail["type"])))
     or (hit.facts.build and since - hit.facts.build > _YEAR))),
    # one or two tensors more are a newer revision
    ("cause", "old_build", "that many tensors are of another model", "bad_model",
     lambda hit: hit.word == "wrong number of tensors"
     and (not 0 < int(hit.detail["due"]) - int(hit.detail["there"]) <= 2
     or first(r"training\.", hit.log.lines))),
    ("cause", "old_build", "the conversion left the tensor out", "bad_model",
     lambda hit: "tensor" in hit.detail and "due" not in hit.detail and hit.is_never_written),
    ("cause", "old_build", "the file does not say its KV heads", "bad_model",
     lambda hit: {"tensor", "due"} <= hit.detail.keys() and hit.has_fewer_heads),
    ("cause", "no_gpu", "the GPU is there, and no layer fits", "partial_offload",
     lambda hit: hit.word in ("offloaded 0/", "100% cpu") and hit.facts.sees_gpu),
    # Ollama tries one driver after another
    ("cause", "no_gpu", "another driver has a GPU", "",
     lambda hit: hit.sign.said in _TRIED and first(_DISCOVERED, hit.log.lines)),
    # what --fit says before it changes something
    ("cause", "partial_offload", "all layers are on the GPU in the end", "",
     lambda hit: hit.facts.all_offloaded),
    # a cause only where nothing follows
    ("cause", "start_timeout", "a start that takes long went on", "",
     lambda hit: hit.weight <= 2 and (hit.facts.ready or hit.at < len(hit.log.lines) - 2
     or first(GONE, hit.log.lines[hit.at + 1 :]))),
    ("weight", "oom_device", "llama.cpp goes on without pipelining", 5,
     lambda hit: hit.weight > 5 and hit.says("retrying without", -1, NEAR)),
    # A build with several backends says of each that it found nothing
    ("weight", "no_gpu", "another backend has a GPU", 2,
     lambda hit: "failed to initialize" in hit.word
     and any(device.free for device in hit.facts.devices.values())),
    # An assertion whose words no sign knows says little of why
    ("weight", "program_fault", "full memory or a full context stands before it", 4,
     lambda hit: hit.word in _ASSERTIONS
     and any(other.cause in _FILLED for other in hit.around(40, 0))),
    # What stands around a refusal says what kind it was
    ("cause", "oom_device", "the same refusal as that of RAM before it", "oom_host",
     lambda hit: hit.weight == 8 and not hit.detail
     and any(other.cause == "oom_host" for other in hit.around(4, 0))),
    ("cause", "oom_device", "a driver says next that one buffer was too large", "buffer_limit",
     lambda hit: hit.weight >= 8
     and any(other.cause == "buffer_limit" for other in hit.around(-1, 4))),
)
# of the cause: where, when, whether the launch ended by it, and what it is said of
TELLING: tuple[SignRule, ...] = (
    ("alone", "context_limit", "a request that was too long ended the program", True,
     lambda hit: hit.stopped),
    ("device", "oom_host partial_offload", "it is RAM", HOST, _always),
    ("device", "rpc_lost", "no line says which server it was", Rpc.name, _always),
    ("device", "host_lock", "pinned memory for the GPU", None,
     lambda hit: hit.word == "pinned memory" and (gpu := hit.facts.gpu()) and f"{gpu[:-1]}_Host"),
    ("device", "host_lock", "it is RAM", HOST, _always),
    ("device", "bad_flag", "a flag names it", None, lambda hit: hit.flag_device),
    ("device", "op_unsupported", "the line names the buffer", None,
     lambda hit: "name" in hit.detail and device_named(hit.detail["name"], hit.facts)),
    ("device", "op_unsupported", "the line names it", None,
     lambda hit: (found := _LACKING.search(hit.line.text)) and (found[1] or found[2])),
    ("device", "op_unsupported", "the log's GPU", None, lambda hit: hit.facts.gpu()),
    # -sm row on a backend without split buffers
    ("device", "bad_combo", "the line names it", None,
     lambda hit: (found := re.search(r"device (\S{1,40}) does not support split buffers",
                                         hit.line.text)) and found[1]),
    ("device", "oom_device buffer_limit device_lost gpu_build", "it refused, or was lost", None,
     lambda hit: hit.refusing),
    ("device", "", "it refused", None,
     lambda hit: hit.word == "!(split && ne02" and hit.refusing),
    ("fatal", "oom_device", "the first image ended it", True, lambda hit: hit.crashed),
    ("fatal", "rpc_lost oom_device buffer_limit", "it served or answered after it", False,
     lambda hit: hit.line.number < max(hit.facts.ready, hit.facts.measured)),
    ("fatal", "oom_device", "clip.cpp goes on without its warm-up", False,
     lambda hit: hit.ignored),
    ("fatal", "context_limit", "a request that was too long ended the program", True,
     lambda hit: hit.stopped),
    # `weight` may have been lowered, e.g. where a retry follows
    ("fatal", "", "such a line is of a failure", True, lambda hit: hit.weight >= 8),
    ("fatal", "oom_device", "the program ended on an assertion", True,
     lambda hit: first("GGML_ASSERT", hit.after)),
    ("phase", "context_limit", "a request was too long", "run", lambda hit: hit.stopped),
    ("phase", f"{_LOST_GPU} program_fault", "the server served before", "run",
     lambda hit: hit.serves),
    ("phase", _LOST_GPU, "what was done last before it", None,
     lambda hit: hit.done(40, 2, _BEFORE)),
    # A graph that is allocated again in a request: the server was up
    ("phase", _FULL, "a graph of a request, as the lines after it say", "run",
     lambda hit: hit.next_phase == "compute" and (hit.serves or (
         hit.says(_ENDED, 0, NEAR) and not hit.says(_AT_START, 0, NEAR)))),
    ("phase", _FULL, "the lines after it say what was refused", None,
     lambda hit: hit.next_phase),
    ("phase", _FULL, "what was done last before it", None,
     lambda hit: hit.word == "out_of_device_memory" and not hit.serves
     and (hit.done(40, 2, _BEFORE) or hit.sign.phase)),
    ("phase", _FULL, "such a line is of that part", None,
     lambda hit: hit.sign.phase != "load" and hit.sign.phase),
    ("phase", _FULL, "the server served before", "run", lambda hit: hit.serves),
    ("phase", _FULL, "killed, and no line is of a load", "run",
     lambda hit: hit.word in _KILLED and not first(_LOADING, hit.log.lines[-200:])),
    # Sizes are printed once a part is there: the next part was being allocated
    ("phase", _FULL, "what was done last before it", None,
     lambda hit: hit.done(6, 0, (("compute", SIZES), ("load", WEIGHTS)))),
    ("phase", _FULL, "the line does not say what it was for", "start",
     lambda hit: hit.word in ("malloc failed: out of memory", "nvmapmem")),
    ("phase", "buffer_limit", "no line says it: mostly graphs", "compute",
     lambda hit: not hit.sign.phase),
    ("phase", "oom_device oom_host", "no line says it: mostly weights", "load",
     lambda hit: not hit.sign.phase),
    # before a line of serving, and after that of the warm-up or of the first look at the device
    ("part", "oom_device", "a graph was refused before it served", None, lambda hit: hit.early),
    ("phase", "oom_device", "the first image ended it", "run", lambda hit: hit.crashed),
    ("phase", "oom_device device_lost", "a graph was refused before it served", "start",
     lambda hit: hit.early),
    # a check of what -sm tensor made of a model
    ("phase", "bad_combo", "the server served before", "run",
     lambda hit: re.search(r"ggml-backend-meta\.cpp|split_state|src_ss\[", hit.line.text)
     and hit.serves),
    # "cannot meet free memory target ... need to reduce device memory by N MiB"
    ("part", "partial_offload", "the line says how much is short", "short",
     lambda hit: hit.bytes and not hit.facts.offloaded),
    ("part", "partial_offload", "no layer is on the GPU", "none",
     lambda hit: hit.facts.offloaded and not hit.facts.offloaded[0]),
    ("part", "fit_gave_up", "the context was made smaller", "shortened",
     lambda hit: hit.facts.reduced),
    ("part", "", "the sign has it", None, lambda hit: hit.detail.get("part")),
    ("part", "oom_host", "the exit code", "137", lambda hit: hit.word == "137"),
    ("part", "oom_host", "it was killed", "killed", lambda hit: hit.word in _KILLED),
    ("part", "bad_combo", "what does not go together", None,
     lambda hit: _COMBINED.get(hit.word)),
    ("part", "missing_library", "the program goes on without it", "backend",
     lambda hit: not hit.fatal),
    ("part", "old_build bad_model bad_file", "the projector's lines stand around it",
     "projector", lambda hit: hit.of_projector),
    ("part", "", "no line says why", "no reason",
     lambda hit: hit.word == "failed to load clip model"),
    ("part", "oom_device", "the projector's lines stand around it", None,
     lambda hit: hit.of_projector and ("projector" if hit.fatal else "projector runs")),
    ("part", "oom_device", "llama.cpp goes on without pipelining", "pipeline",
     lambda hit: not hit.fatal and hit.says("retrying without pipeline", 0, NEAR)),
    ("part", "oom_device", "llama.cpp goes on with less", "retried",
     lambda hit: not hit.fatal and (hit.says("retrying", 0, NEAR)
     or (hit.weight >= 8 and hit.phase != "run"))),
    ("flag", "fit_gave_up", "the line names what --fit may not change", None,
     lambda hit: hit.given_to_fit),
    ("why", "no_gpu", "another line says why", None,
     lambda hit: "why" not in hit.detail and hit.why_no_gpu),
)
# fmt: on
