"""Which of the signs in a log is the cause, where it happened and of how many bytes.

verdict = decide(lines, facts)
verdict.cause, verdict.phase, verdict.device, verdict.bytes, verdict.fatal, verdict.evidence
"""

from __future__ import annotations

import re
from itertools import pairwise, zip_longest

from ..backends import HOST
from ..backends.cpu import BUFFERS
from ..backends.logs import SYSTEM_INFO, old_name
from ..backends.rpc import Rpc
from ..builds import Build
from ..model.architectures import NAMES
from ..records import dataclass, field, replace
from ..units import GiB, MiB, whole
from .log import device_of
from .signs import BACKENDS, HARMLESS, SIGNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..backends.sign import Sign
    from .facts import Facts
    from .lines import Line

_RETRIED = 8  # lines after a refusal that say that it is done without
_NEAR = 8  # lines after a sign that still speak of the same event
_LIMIT = int(3.9 * GiB)  # from here on a refusal may be a driver's limit for one allocation
# types of tensors, and about the first build that has each
_OFFICIAL = {39: 6096, 40: 8400, 41: 8700, 42: 9500}
_PLACED = ("-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor")
_MUCH = 0.25  # of the weights, in RAM: more than the embeddings
_YEAR = 3000  # builds; a file that came later than that was not meant for this program
# Of Ollama's engine of before 0.30, of image, video and sound models and of forks: no release of
# llama.cpp has these
# (names in neither list are taken for newer than the program)
_FOREIGN = frozenset(
    (
        "mllama",
        "gptoss",
        "qwen25vl",
        "deepseekocr",
        "glmocr",
        "flux",
        "sd1",
        "sd2",
        "sd3",
        "sdxl",
        "wan",
        "ltxv",
        "hyvid",
        "hunyuan_video",
        "qwen_image",
        "lumina2",
        "cosmos",
        "hidream",
        "aura",
        "z_image",
        "pig",
        "whisper",
        "bitnet-25",
        "bitnet-b1.58",
    )
)
# "layer 0 is assigned to device CUDA0 but the Flash Attention tensor is ...", "... not supported by
# CUDA0, ..."
_LACKING = re.compile(
    r"layer \d{1,4} is assigned to device (\S{1,40})|supported by (\S{1,40}?)[,. ]"
)
_SPLIT = re.compile(r"device (\S{1,40}) does not support split buffers")
_CURRENT = re.compile(r"current device: (\d{1,3})")
_START = re.compile(
    r"srv +llama_server: initializing|llama_server: initializing|msg=\"starting "
    r"(?:llama|runner|go)"
    r"|main: build = |build: \d+ \(|build_info: b\d|llama_model_loader: loaded "
    r"meta data"
)


@dataclass(frozen=True)
class Hit:
    """A sign in a line. `cause` and `weight` are the sign's, unless the lines around it say
    otherwise."""

    sign: Sign
    at: int  # index among the lines
    line: Line
    groups: dict[str, str]
    cause: str
    weight: int


@dataclass(frozen=True)
class Verdict:
    """`bytes`: what was asked for and refused. `detail`: what else the sign says: a flag, an
    architecture, a file."""

    cause: str
    phase: str | None = None
    device: str | None = None
    bytes: int | None = None
    fatal: bool = False
    evidence: tuple[int, ...] = ()
    detail: dict[str, str] = field(default_factory=dict)
    others: tuple[Verdict, ...] = ()  # what else the log shows, of other causes


def decide(lines: Sequence[Line], facts: Facts) -> Verdict:
    """Return the cause, with what else the log shows behind it."""
    # signs are words; what they mean depends on the lines around them
    # e.g. "buffer of size": of the GPU, of RAM, or over a driver's limit
    hits = _refined(_signs(lines), lines, facts)
    figures = [*_by_figures(lines, facts)]
    if not hits:
        return _without_signs(figures, lines, facts)
    chosen = _chosen(lines, hits)
    verdict = _verdict(chosen, hits, lines, facts)
    # of something that no sign names
    if chosen.weight < 5 and (ended := _nothing(lines, facts)).fatal:
        verdict, figures = ended, [verdict, *figures]
    # a light sign, such as a warning, is less than what the figures show
    # The two change places, so that the sign is still named behind it
    elif chosen.weight < 4 and figures and figures[0].cause in _SEEN_IN_FIGURES:
        verdict, figures[0] = figures[0], verdict
    others = {
        hit.cause: _verdict(hit, hits, lines, facts) for hit in _other_hits(hits, verdict.cause)
    }
    for figure in figures:
        if figure.cause != verdict.cause:
            others.setdefault(figure.cause, figure)
    # what ended the launch is one cause: others of that kind followed from it
    if verdict.fatal:
        others = {name: other for name, other in others.items() if not other.fatal}
    return replace(verdict, others=tuple(others.values())[:6])


_SEEN_IN_FIGURES = ("no_gpu", "partial_offload", "vram_spill")


def _without_signs(figures: list[Verdict], lines: Sequence[Line], facts: Facts) -> Verdict:
    """Return what a log without words of a failure shows: figures of what is slow or unused."""
    # "healthy", "unknown" or "not_in_log"
    verdict = _nothing(lines, facts)
    # Nothing is wrong with what the command wants so
    unwanted = [figure for figure in figures if not _asked_for(figure, facts)]
    if unwanted and not verdict.fatal:
        verdict = unwanted[0]
    return replace(verdict, others=tuple(figure for figure in figures if figure is not verdict))


def _other_hits(hits: Sequence[Hit], cause: str) -> list[Hit]:
    """Return the heaviest hit of each other cause."""
    others: dict[str, Hit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.weight):
        # 9 is why something failed: with another cause named it is part of that one's event.
        # 2 and less say nothing by themselves
        if 2 < hit.weight < 9 and hit.cause != cause:
            others.setdefault(hit.cause, hit)
    return [*others.values()]


def _signs(lines: Sequence[Line]) -> list[Hit]:
    hits = []
    for at, line in enumerate(lines):
        lower = line.text.lower()
        # why pinned memory was refused, where that line does not say it
        # e.g. "failed to allocate 64 MiB of pinned memory" and the reason on the next line: it runs
        reason = at and re.search(r"pinned memory(?!: \w)", lines[at - 1].text)
        if reason or any(words in line.text for words in HARMLESS):
            continue
        for sign in SIGNS:
            groups = sign.match(line.text, lower)
            if groups is not None:
                hits.append(Hit(sign, at, line, groups, sign.cause, sign.weight))
                # a log can repeat one refusal for every request
                if len(hits) > 2000:
                    return hits
                # One sign a line: rows are in the order in which they count
                break
    return hits


def _chosen(lines: Sequence[Line], hits: Sequence[Hit]) -> Hit:
    """Return the heaviest sign of the last start that failed, of equals the first."""
    # 8 and 9 are failures (sign.py)
    failures = [hit.at for hit in hits if hit.weight >= 8]
    # a service's journal has several starts; an older failure may be mended by now
    if failures:
        begin = _last_start(lines, failures)
        hits = [hit for hit in hits if hit.at >= begin]
    heaviest = max(hit.weight for hit in hits)
    # Later ones mostly follow from the first
    return min((hit for hit in hits if hit.weight == heaviest), key=lambda hit: hit.at)


def _last_start(lines: Sequence[Line], failures: Sequence[int]) -> int:
    """Return the index of the line with which the last run that failed began, 0 if none shows."""
    starts = [at for at, line in enumerate(lines) if _START.search(line.text)]
    for start in reversed(starts):
        # A start writes several of these lines; what lies within one is one run
        goes_on = any(start - 40 <= failure < start for failure in failures)
        if start <= max(failures) and not goes_on:
            return start
    return 0


def _verdict(chosen: Hit, hits: Sequence[Hit], lines: Sequence[Line], facts: Facts) -> Verdict:
    """Return the cause that a sign shows, with its phase, device, bytes and evidence."""
    # a driver refuses one buffer with the words of full memory, too
    same = (chosen.cause, "oom_device") if chosen.cause == "buffer_limit" else (chosen.cause,)
    near = [hit for hit in hits if chosen.at <= hit.at <= chosen.at + _NEAR and hit.cause in same]
    device, size = _device(chosen, near, lines, facts), _bytes(near)
    # The chosen sign is one of `near`
    after = lines[chosen.at : max(hit.at for hit in near) + _NEAR]
    if chosen.cause == "context_limit" and any(_STOPPED.search(line.text) for line in after):
        return Verdict(chosen.cause, "run", None, None, True, (chosen.line.number,), chosen.groups)
    fatal = _is_fatal(chosen, after, lines, facts)
    phase = _phase(chosen, near, lines, facts)
    if early := _early(chosen, phase, lines, facts):
        phase = "start"
        # of memory its line says so, too
        chosen = _with(chosen, "part", early) if chosen.cause == "oom_device" else chosen
    elif (
        chosen.cause == "bad_combo" and _TENSOR.search(chosen.line.text) and _serves(chosen, facts)
    ):
        phase = "run"
    if _ended_by_image(chosen, lines):
        phase, fatal = "run", True
    if part := _part(chosen, phase, fatal, lines):
        chosen = _with(chosen, "part", part)
    # "cannot meet free memory target ... need to reduce device memory by N MiB": how much is short
    if chosen.cause == "partial_offload" and size and not facts.offloaded:
        chosen = _with(chosen, "part", "short")
    chosen = _explained(chosen, lines, facts)
    return Verdict(
        chosen.cause,
        phase,
        device,
        size,
        fatal,
        # Lines of one event, each once: Ollama's line and its msg= have one number
        tuple(dict.fromkeys(hit.line.number for hit in near))[:8],
        {**chosen.groups, "sign": chosen.sign.word},
    )


def _is_fatal(chosen: Hit, after: Sequence[Line], lines: Sequence[Line], facts: Facts) -> bool:
    """Return whether the launch ended by it."""
    may_survive = chosen.cause in ("rpc_lost", "oom_device", "buffer_limit")
    # A line says that the server serves or answers later than that
    if may_survive and _survived(chosen, facts):
        return False
    if _ignored(chosen, lines):
        return False
    # `weight` may have been lowered since, e.g. where a retry follows
    return chosen.weight >= 8 or _asserted(chosen, after)


def _explained(chosen: Hit, lines: Sequence[Line], facts: Facts) -> Hit:
    """Return the hit with what other lines, or the command, say of its reason."""
    if chosen.cause == "fit_gave_up":
        flag = _given_to_fit(chosen, facts)
        chosen = _with(chosen, "flag", flag) if flag else chosen
        return _with(chosen, "part", "shortened") if facts.reduced else chosen
    if chosen.cause == "partial_offload" and facts.offloaded and not facts.offloaded[0]:
        return _with(chosen, "part", "none")
    if chosen.cause == "no_gpu" and "why" not in chosen.groups and (why := _why_no_gpu(lines)):
        return _with(chosen, "why", why)
    return chosen


# A request that was too long ended the program with it
_STOPPED = re.compile(r"failed to generate|exiting main loop")


def _asserted(chosen: Hit, after: Sequence[Line]) -> bool:
    """Return whether the program ended on a warning of full memory."""
    return chosen.cause == "oom_device" and any("GGML_ASSERT" in line.text for line in after)


def _with(sign: Hit, figure: str, value: str) -> Hit:
    """Return a found sign with one more figure."""
    return replace(sign, groups={**sign.groups, figure: value})


# What --fit would have changed and found set (common/fit.cpp), and the flags that set it
_FIT = {
    "n_gpu_layers": ("-ngl", "--gpu-layers", "--n-gpu-layers"),
    "tensor_split": ("-ts", "--tensor-split"),
    "tensor_buft_overrides": (
        "-cmoe",
        "--cpu-moe",
        "-ncmoe",
        "--n-cpu-moe",
        "-ot",
        "--override-tensor",
    ),
    "SPLIT_MODE": ("-sm", "--split-mode"),
}


def _given_to_fit(chosen: Hit, facts: Facts) -> str:
    """Return the flag that --fit may not change: as the command has it, otherwise as llama.cpp's
    help has it."""
    for word, flags in _FIT.items():
        # e.g. "n_gpu_layers already set by user to 99, abort"
        if word in chosen.groups.get("why", ""):
            # as the user wrote it, because that is what can be left out
            given = next((flag for flag in facts.words if flag in flags), "")
            return given or (
                "-ot, -cmoe or -ncmoe" if word == "tensor_buft_overrides" else flags[0]
            )
    return ""


# The image encoder's own lines (tools/mtmd/clip.cpp, tools/server) beside a refusal
_PROJECTOR = re.compile(
    r"\bclip\w{0,60}:|\bmtmd_|(?:alloc|reserve)_compute_meta|\bwarmup: |multimodal model|mmproj"
)
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
# a check of what -sm tensor made of a model
_TENSOR = re.compile(r"ggml-backend-meta\.cpp|split_state|src_ss\[")
_OF_FILE = ("old_build", "bad_model", "bad_file")  # causes that are a file's
_OF_MODEL = re.compile(
    r"llama_context|llama_init|create.context|kv cache|error loading model|llama_model_lo"
)


def _survived(chosen: Hit, facts: Facts) -> bool:
    """Return whether the launch came up after it."""
    return any(chosen.line.number < number for number in (facts.ready, facts.measured))


def _part(chosen: Hit, phase: str, fatal: bool, lines: Sequence[Line]) -> str:
    """Return what a cause is said of, where that is not the model's launch as a whole: a row of
    Cause.lines."""
    after = [line.text for line in lines[chosen.at : chosen.at + _RETRIED]]
    if "part" in chosen.groups:
        return chosen.groups["part"]
    if chosen.cause == "oom_host":
        word = chosen.sign.word
        return word if word in ("killed", "137") else "killed" if word in _KILLED else ""
    if chosen.cause == "bad_combo":
        return _COMBINED.get(chosen.sign.word, "")
    if chosen.cause == "missing_library":
        return "" if fatal else "backend"
    if chosen.cause in _OF_FILE:
        return "projector" if _of_projector(chosen, lines) else ""
    if chosen.sign.word == "failed to load clip model":
        return "no reason"
    if chosen.cause != "oom_device":
        return ""
    if _of_projector(chosen, lines):
        return "projector" if fatal else "projector runs"
    if any("retrying without pipeline" in text for text in after):
        return "" if fatal else "pipeline"
    again = any("retrying" in text for text in after)
    return "retried" if not fatal and (again or (chosen.weight >= 8 and phase != "run")) else ""


def _ignored(chosen: Hit, lines: Sequence[Line]) -> bool:
    """Return whether the projector's warm-up was refused its graph, which clip.cpp goes on from."""
    after = [line.text for line in lines[chosen.at : chosen.at + _NEAR]]
    return (
        chosen.cause == "oom_device"
        and any(_WARMED.search(text) for text in after)
        and not any(_LOST.search(text) for text in after)
    )


def _ended_by_image(chosen: Hit, lines: Sequence[Line]) -> bool:
    """Return whether it went on from that until the first image (alloc_compute_meta reserves no
    graph)."""
    return _ignored(chosen, lines) and any(
        _CRASHED.search(line.text) for line in lines[chosen.at + 1 :]
    )


_WARMED = re.compile(r"(?:alloc|reserve)_compute_meta|\bwarmup: ")
_CRASHED = re.compile(r"[Ss]egmentation fault|SIGSEGV|core dumped")
_LOST = re.compile(
    r"failed to load|unable to allocate|GGML_ASSERT|Aborted|failed to create|llama_context"
)


def _of_projector(chosen: Hit, lines: Sequence[Line]) -> bool:
    """Return whether the projector of images or sound was refused, and not the model."""
    # The lines after it name who asked, e.g. "clip_model_loader: ..." or "llama_context: ..."
    for line in lines[chosen.at : chosen.at + 5]:
        if _OF_MODEL.search(line.text):
            return False
        if _PROJECTOR.search(line.text):
            return True
    return any(_PROJECTOR.search(line.text) for line in lines[max(0, chosen.at - 2) : chosen.at])


# What else a log says of a GPU that is not used: Ollama's discovery, the drivers, the container's
# devices
_NO_GPU = tuple(
    map(
        re.compile,
        (
            r"(?P<why>amdgpu is not supported.{0,60})",
            r"(?P<why>(?:CUDA|NVIDIA) driver version is insufficient.{0,40})",
            r"(?P<why>(?:NVIDIA |CUDA )?driver too old.{0,60})",
            r"gpu_type=(?P<gpu>gfx\w{3,5})",
            r"(?P<why>[pP]ermission "
            r"denied.{0,20}/dev/(?:kfd|dri|nvidia)\S{0,30}|/dev/(?:kfd|dri|nvidia)\S{0,30}.{0,30}"
            r"[pP]ermission denied)",
            r"(?P<why>CUDA_VISIBLE_DEVICES:-1\b|HIP_VISIBLE_DEVICES:-1\b)",
            r"(?P<why>(?:unable to load|failed to load|cannot open) "
            r"\S{0,40}(?:cudart|libcuda|nvcuda|amdhip|nvml)\S{0,40})",
            r"(?P<why>lib(?:cuda|cudart|cublas|amdhip64)\S{0,20}: cannot open shared object file)",
            r"(?P<why>CPU does not have (?:AVX|vector)\w{0,12}.{0,40})",
        ),
    )
)


def _why_no_gpu(lines: Sequence[Line]) -> str:
    for pattern in _NO_GPU:
        for line in lines:
            if match := pattern.search(line.text):
                return match.groupdict().get("why") or f"{match['gpu']} is not supported"
    return ""


# --- what a sign really says


def _refined(hits: list[Hit], lines: Sequence[Line], facts: Facts) -> list[Hit]:
    """Return the hits with what the lines around them make of their causes."""
    refined = []
    for hit in hits:
        # e.g. "oom_device" -> `_memory`, which may return "oom_host" or "buffer_limit"
        rule = _RULES.get(hit.cause)
        cause, weight = rule(hit, lines, facts) if rule else (hit.cause, hit.weight)
        if cause:
            refined.append(replace(hit, cause=cause, weight=weight))
    # What follows a refusal says what kind it was
    for i, hit in enumerate(refined):
        if hit.cause == "oom_device" and hit.weight >= 8:
            cause = _kind_of_refusal(i, refined)
            refined[i] = replace(hit, cause=cause)
    return [hit for hit in refined if not _is_over(hit, lines, facts)]


def _kind_of_refusal(i: int, hits: Sequence[Hit]) -> str:
    """Return the cause of a refusal of the GPU's memory, by the hits before and after it."""
    hit, cause = hits[i], "oom_device"
    # a driver first says that memory is short, then that one buffer was too large
    after = {other.cause for other in hits[i + 1 : i + 6] if other.at - hit.at <= 3}
    if "buffer_limit" in after:
        cause = "buffer_limit"
    # a refusal without a buffer's name right after one of host memory is the same refusal
    if hit.weight == 8 and not hit.groups:
        before = {other.cause for other in hits[:i] if hit.at - other.at <= 4}
        if "oom_host" in before:
            cause = "oom_host"
    return cause


def _is_over(hit: Hit, lines: Sequence[Line], facts: Facts) -> bool:
    """Return whether a start that takes long went on: it is a cause only where nothing follows."""
    if hit.sign.cause != "start_timeout" or hit.weight > 2:
        return False
    ended = any(_GONE.search(line.text) for line in lines[hit.at + 1 :])
    return bool(facts.ready) or ended or hit.at < len(lines) - 2


def _memory(hit: Hit, lines: Sequence[Line], facts: Facts) -> tuple[str, int]:
    """Judge a refusal: of RAM where the buffer is the host's, of a driver's limit where the size
    says so."""
    name = hit.groups.get("name", "")
    # pinned memory is RAM, whatever device it is for
    # e.g. "CUDA_Host", "CPU_Mapped", "CPU_REPACK"
    if name and (name.partition("[")[0].endswith("_Host") or name.startswith(BUFFERS)):
        return "oom_host", hit.weight
    if _resources(hit, lines):
        return "op_unsupported", hit.weight
    if hit.sign.limit and _over_limit(hit, lines, facts):
        return "buffer_limit", hit.weight
    after = lines[hit.at + 1 : hit.at + _RETRIED]
    # pipeline parallelism: it goes on
    if any("retrying without" in line.text for line in after):
        return "oom_device", min(hit.weight, 5)
    return "oom_device", hit.weight


def _over_limit(hit: Hit, lines: Sequence[Line], facts: Facts) -> bool:
    """Return whether the allocation was over the driver's limit for one, though memory was free."""
    # Mesa's driver says so where the kernel had no memory
    if any("amdgpu: Failed to allocate a buffer" in line.text for line in lines[: hit.at]):
        return False
    size = _bytes([hit])
    left = [device.free or device.total for device in facts.devices.values()]
    largest = max(left, default=0)
    if size is not None:
        # 100 MiB refused is a full card; 4.5 GiB on a card that has more is a limit
        is_full = bool(left) and all(left) and largest < size
        return size >= _LIMIT and not is_full
    # without a size, the free memory around it must tell
    if largest >= 16 * GiB:
        return True
    # "Error OP": SYCL's line for an operation that the driver refused
    around = lines[max(0, hit.at - 3) : hit.at + 4]
    return any("Error OP" in line.text for line in around)


def _host(hit: Hit, lines: Sequence[Line], facts: Facts) -> tuple[str, int]:
    if hit.sign.word != "cache state:":
        return "oom_host", hit.weight
    # the prompt cache within its own limit is no failure: only a large part of RAM is
    size = _bytes([hit]) or 0
    limit = _number(hit.groups.get("left", "0")) * MiB
    is_large = size >= 2 * GiB and size >= 0.75 * limit
    return ("oom_host", hit.weight) if is_large else ("", 0)


def _file(hit: Hit, lines: Sequence[Line], facts: Facts) -> tuple[str, int]:
    """Judge whether a newer program reads the file, or none."""
    groups, word = hit.groups, hit.sign.word
    what, bad = groups.get("what", ""), False
    if word in ("unknown model architecture", "unknown pre-tokenizer type"):
        # a name that llama.cpp never had belongs to another program
        is_foreign = what not in NAMES and what.lower() in _FOREIGN
        bad = not what or is_foreign
    # An empty type: a projector of before the key, which no newer build reads either
    elif word == "unknown projector type":
        bad = not what.strip("'\"") and "colon" in groups
    elif word == "invalid ggml type":
        bad = _is_far_type(int(groups["type"]), facts.build)
    elif word == "wrong number of tensors":
        # one or two tensors more are a newer revision; many are another model
        missing = int(groups["due"]) - int(groups["there"])
        bad = not 0 < missing <= 2 or _trained(lines)
    elif "tensor" in groups and "due" not in groups:
        bad = _is_never_written(groups["tensor"])
    elif "due" in groups:
        bad = _fewer_heads(groups["tensor"], groups["due"], groups["there"])
    return ("bad_model" if bad else "old_build"), hit.weight


def _is_far_type(number: int, build: int) -> bool:
    """Return whether no build of these years reads a type of tensors."""
    first = _OFFICIAL.get(number)
    if first is None:
        return True
    return bool(build) and first - build > _YEAR


def _is_never_written(tensor: str) -> bool:
    """Return whether a missing tensor is of a file that was converted wrongly."""
    block = re.match(r"blk\.(\d{1,4})\.", tensor)
    if block is None:
        return "token_embd" in tensor
    # experts that are missing in the first block were never converted; a tensor behind the last
    # block is a draft's (MTP), which newer builds know
    return int(block[1]) == 0 and "exps" in tensor


def _trained(lines: Sequence[Line]) -> bool:
    return any("training." in line.text for line in lines)


def _fewer_heads(tensor: str, due: str, got: str) -> bool:
    """Return whether a K or V is a whole number of times smaller than expected: the file does not
    say its KV heads."""
    first, second = (
        [
            size
            for part in re.split(r"[,x]", text.replace(" ", "").strip(","))
            if (size := whole(part)) is not None
        ]
        for text in (due, got)
    )
    # e.g. expected 4096, 4096, got 4096, 1024: the key head_count_kv is missing
    if not re.search(r"attn_(?:k|v|qkv)\.", tensor) or len(first) < 2 or len(second) < 2:
        return False
    return first[0] == second[0] and 0 < second[1] < first[1] and first[1] % second[1] == 0


def _gpu(hit: Hit, lines: Sequence[Line], facts: Facts) -> tuple[str, int]:
    """Judge a backend without a device: it says little where another one has a device."""
    # A build with several backends says of each that it found nothing
    has_gpu = any(device.free for device in facts.devices.values())
    # it is there, and no layer fits
    if hit.sign.word in ("offloaded 0/", "100% cpu") and facts.sees_gpu:
        return "partial_offload", hit.weight
    # Ollama tries one driver after another
    if hit.sign.said in _TRIED and any(_DISCOVERED.search(line.text) for line in lines):
        return "", 0
    return (
        hit.cause,
        2
        if has_gpu and "failed to initialize" in hit.sign.word + " no cuda-capable device"
        else hit.weight,
    )


_TRIED = (
    "symbol lookup for cu",
    "init failure: ",
    "cuda driver library failed",
    "cudaSetDevice err",
    "Dynamic LLM libraries",
)
_DISCOVERED = re.compile(r"inference compute\b.{0,200}\blibrary=(?!cpu)|offloaded [1-9]\d*/")


def _resources(hit: Hit, lines: Sequence[Line]) -> bool:
    """Return whether SYCL had no registers for one operation's kernel: a line names the
    operation."""
    around = lines[max(0, hit.at - 3) : hit.at + 5]
    return hit.sign.word == "out_of_resources" and any("Error OP" in line.text for line in around)


def _offload(hit: Hit, lines: Sequence[Line], facts: Facts) -> tuple[str, int]:
    """Judge what --fit says before it changes something: a later line may say that all layers
    are on the GPU."""
    return ("", 0) if facts.all_offloaded else (hit.cause, hit.weight)


# cause of a sign -> what makes another cause or weight of it; "" drops the sign
_RULES: dict[str, Callable[[Hit, Sequence[Line], Facts], tuple[str, int]]] = {
    "oom_device": _memory,
    "oom_host": _host,
    "old_build": _file,
    "no_gpu": _gpu,
    "partial_offload": _offload,
}


# --- where, when, how much


def _device(chosen: Hit, near: Sequence[Hit], lines: Sequence[Line], facts: Facts) -> str | None:
    """Return the device that the cause is of; None where no line says it, or it is of none."""
    cause, after = chosen.cause, lines[chosen.at : chosen.at + _NEAR]
    if cause in ("oom_host", "partial_offload"):
        return HOST
    # Which of several servers it was no line says
    if cause == "rpc_lost":
        return Rpc.name
    if cause == "host_lock":
        pinned = chosen.sign.word == "pinned memory" and facts.gpu()
        return f"{facts.gpu()[:-1]}_Host" if pinned else HOST
    if cause == "bad_flag":
        return _of_flag(chosen, after, facts)
    if cause == "op_unsupported":
        return _lacking(chosen, facts)
    # -sm row on a backend without split buffers
    if cause == "bad_combo" and (split := _SPLIT.search(chosen.line.text)):
        return split[1]
    of_device = cause in ("oom_device", "buffer_limit", "device_lost", "gpu_build")
    if of_device or chosen.sign.word == "!(split && ne02":
        return _refusing(chosen, near, after, facts)
    return None


def _of_flag(chosen: Hit, after: Sequence[Line], facts: Facts) -> str | None:
    """Return the device that a flag names and the build does not have."""
    if "device" in chosen.groups:
        return chosen.groups["device"]
    for line in after:
        if match := _INVALID.search(line.text):
            return match[1]
    return _overridden(facts)


_INVALID = re.compile(r"invalid device: (\S{1,40})")


def _lacking(chosen: Hit, facts: Facts) -> str | None:
    """Return the device that does not have an operation."""
    if "name" in chosen.groups:
        return named(chosen.groups["name"], facts)
    match = _LACKING.search(chosen.line.text)
    return (match[1] or match[2]) if match else facts.gpu() or None


def _refusing(chosen: Hit, near: Sequence[Hit], after: Sequence[Line], facts: Facts) -> str | None:
    """Return the device that refused memory, or was lost."""
    # the buffer's name is the surest: it names the device
    names = [hit.groups["name"] for hit in near if "name" in hit.groups]
    if names:
        return named(names[0], facts)
    # then the number in the driver's line, or in those after it
    numbers = [hit.groups["index"] for hit in near if "index" in hit.groups]
    numbers += [match[1] for line in after if (match := _CURRENT.search(line.text))]
    if not numbers and (only := _of_command(facts)):
        return only
    if not numbers and chosen.cause == "gpu_build" and len(facts.devices) > 1:
        return None  # the line does not say which
    # ROCm prints CUDA's words: the backends of the sign, as far as the log shows them, decide
    index = int(numbers[0]) if numbers else 0
    name = facts.gpu(index, BACKENDS.get(chosen.sign, ()))
    return old_name(name) or name or None


def _of_command(facts: Facts) -> str:
    """Return the device that the command names; of several the one with the draft model too,
    otherwise the first."""
    named_ = {
        flag: value.split(",")
        for flag, value in pairwise(facts.words)
        if flag in ("-dev", "--device", "-devd", "--device-draft", "--spec-draft-device")
    }
    main = next((names for flag, names in named_.items() if flag in ("-dev", "--device")), [])
    draft = [
        name for flag, names in named_.items() if flag not in ("-dev", "--device") for name in names
    ]
    # A draft on the same device is what its memory was short for
    both = [name for name in main if name in draft] or main
    return both[0] if both and re.fullmatch(r"[A-Za-z]{2,12}\d{1,3}", both[0]) else ""


def _overridden(facts: Facts) -> str | None:
    """Return the device that -ot names, of a build that has none of that name."""
    words = facts.words
    value = next((b for a, b in pairwise(words) if a in ("-ot", "--override-tensor")), "")
    # e.g. "exps=CUDA1"
    match = re.search(r"=([A-Z][A-Za-z]{1,10}\d{1,2})['\"]?$", value)
    return match[1] if match else None


def named(buffer: str, facts: Facts) -> str:
    """Return the device of a buffer as the log calls it: "RPC0" of "RPC0[host:port]", Metal of
    builds that say so."""
    base = buffer.partition("[")[0]
    if old_name(base):
        return old_name(base)
    device = facts.launch.device_of(buffer) if "[" in buffer else device_of(buffer)
    return HOST if device == "Host" else device


def _bytes(near: Sequence[Hit]) -> int | None:
    for hit in near:
        # Bytes before MiB, which are rounded
        if "bytes" in hit.groups:
            return int(hit.groups["bytes"])
    for hit in near:
        if "mib" in hit.groups:
            # A comma where the system's language writes one
            return int(float(hit.groups["mib"].replace(",", ".")) * MiB)
        if "gib" in hit.groups:
            return int(_number(hit.groups["gib"]) * GiB)
    return None


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return 0.0


def _phase(chosen: Hit, near: Sequence[Hit], lines: Sequence[Line], facts: Facts) -> str:
    """Return when it failed: by the sign, then the lines after it, then those before it."""
    # e.g. "cache" of "failed to allocate buffer for kv cache", "" of "cudaMalloc failed"
    own = chosen.sign.phase
    serving = _serves(chosen, facts)
    if chosen.cause in ("rpc_lost", "device_lost", "gpu_build"):
        return "run" if serving else _before(chosen, lines, facts) or own
    if chosen.cause not in ("oom_device", "oom_host", "buffer_limit"):
        return own or "start"
    # the next lines say which buffer was refused
    if phase := _phase_after(chosen, lines):
        # A graph that is allocated again in a request: the server was up
        in_request = phase == "compute" and (serving or _in_request(chosen, lines))
        return "run" if in_request else phase
    if chosen.sign.word == "out_of_device_memory" and not serving:
        return _before(chosen, lines, facts) or own
    if own and own != "load":
        return own
    if serving or _was_killed_serving(chosen, lines):
        return "run"
    # otherwise what was done last
    for line in reversed(lines[max(0, chosen.at - 6) : chosen.at]):
        # Sizes are printed once a part is there: the next part was being allocated
        if _SIZES.search(line.text):
            return "compute"
        if _WEIGHTS.search(line.text):
            return "load"
    if chosen.sign.word in _BARE:
        return "start"
    return own or ("compute" if chosen.cause == "buffer_limit" else "load")


# What the lines after a refusal say of it
# (Vulkan and CUDA refuse with the same words, whatever the memory was for)
_PHASES = (
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
_BARE = ("malloc failed: out of memory", "nvmapmem")  # lines that do not say what it was for


def _serves(chosen: Hit, facts: Facts) -> bool:
    """Return whether a line before it says that the server serves."""
    return any(0 < number <= chosen.line.number for number in (facts.ready, facts.measured))


def _early(chosen: Hit, phase: str, lines: Sequence[Line], facts: Facts) -> str:
    """Return "warmup" or "probe" where a graph was refused at the start: before a line of serving,
    and after that of the warm-up or of the first look at the device."""
    if chosen.cause not in ("oom_device", "device_lost") or phase != "run":
        return ""
    if _serves(chosen, facts):
        return ""
    for line in reversed(lines[max(0, chosen.at - 40) : chosen.at]):
        if _WARMING.search(line.text):
            return "warmup"
        if _PROBING.search(line.text):
            return "probe"
        # past both
        if _SIZES.search(line.text) or _WEIGHTS.search(line.text):
            break
    return ""


_WARMING = re.compile(r"warming up the model")
_PROBING = re.compile(
    r"MemGetInfo failed|returning 0/0|fitting params to device|device memory data for initial"
)
_SIZES = re.compile(r"KV buffer size|KV self size|output buffer size|compute buffer size")
_WEIGHTS = re.compile(r"load_tensors|llm_load_tensors|loading model tensors")


def _phase_after(chosen: Hit, lines: Sequence[Line]) -> str:
    """Return the phase that the lines after a refusal tell, "" if none does."""
    for line in lines[chosen.at : chosen.at + 6]:
        for phase, pattern in _PHASES:
            if pattern.search(line.text):
                return phase
    return ""


def _was_killed_serving(chosen: Hit, lines: Sequence[Line]) -> bool:
    """Return whether the kernel killed a program whose last lines are not of a load."""
    if chosen.sign.word not in _KILLED:
        return False
    return not _LOADING.search(" ".join(line.text for line in lines[-200:]))


def _in_request(chosen: Hit, lines: Sequence[Line]) -> bool:
    """Return whether graph buffers were refused in a request: no line after it says that the
    context was not made, and one that the program was ended by it."""
    after = " ".join(line.text for line in lines[chosen.at : chosen.at + _NEAR])
    return bool(_ENDED.search(after)) and not _AT_START.search(after)


_AT_START = re.compile(
    r"graph_reserve|sched_reserve|failed to allocate compute|initialize the "
    r"context|create.context"
    r"|compute_meta|failed to reserve|retrying without|error loading llama "
    r"server"
    # what Ollama says of a load; of a request it is another
    r"|process has terminated: \S"
)
_ENDED = re.compile(
    r"GGML_ASSERT|has terminated|server terminated|runtime OOM|failed to "
    r"decode|graph_compute"
    r"|process_ubatch|Invalid input batch|Aborted"
)
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
_LOADING = re.compile(
    r"load_tensors|llm_load_|loading model|llama_model_loader|process has "
    r"terminated|fitting params"
)


def _before(chosen: Hit, lines: Sequence[Line], facts: Facts) -> str:
    """Return the phase by what was done last before a device or a machine was gone; "" where
    nothing tells."""
    for line in reversed(lines[max(0, chosen.at - 40) : chosen.at + 2]):
        if re.search(r"warming up|graph splits|Error OP|compute buffer size", line.text):
            return ""
        if re.search(r"KV buffer size|RS buffer size|KV self size", line.text):
            return "cache"
        if re.search(
            r"load_tensors|llm_load_tensors|loading model tensors|^\s*SYCL\d+: .{1,90} MiB\)",
            line.text,
        ):
            return "load"
    return ""


# --- logs in which no line says what is wrong


def _by_figures(lines: Sequence[Line], facts: Facts) -> Iterator[Verdict]:
    """Yield what layers, buffers, splits and backends tell that no line says, the most certain
    first."""
    figure = _of_layers(facts) or _of_backends(lines, facts)
    if figure is not None:
        yield figure
    # An operation in each layer that the GPU does not have, where neither the weights nor the cache
    # are in RAM
    in_ram = max(facts.share_of_host("model"), facts.share_of_host("context")) > _MUCH
    # Layers in RAM make many splits by themselves
    if facts.splits and facts.splits[0] >= 100 and not in_ram and not _is_partial(facts):
        yield Verdict(
            "op_unsupported", "start", facts.gpu() or None, None, False, (facts.splits[1],)
        )
    for name, device in facts.devices.items():
        serves = facts.ready or facts.measured
        # Windows' driver moves to system memory without a
        # line; 64 MiB for rounding and other buffers
        if device.free and facts.held(name) > device.free + 64 * MiB and serves:
            yield Verdict("vram_spill", "run", name, facts.held(name), False, (serves,))
            return


def _is_partial(facts: Facts) -> bool:
    """Return whether some layers are on the GPU and some are not."""
    return bool(facts.offloaded and 0 < facts.offloaded[0] < facts.offloaded[1])


def _of_layers(facts: Facts) -> Verdict | None:
    """Return what the layers' and buffers' places show, None if they are as usual."""
    layers, _, line = facts.offloaded or (0, 0, 0)
    # "offloaded N/N layers to GPU" is also printed by a build without a GPU: buffers' names tell
    if layers and _all_on_host(facts):
        return Verdict("no_gpu", "start", None, None, False, (line,))
    if _left_out(facts):
        return Verdict("partial_offload", "load", HOST, None, False, ())
    if _is_partial(facts):
        return Verdict("partial_offload", "load", HOST, None, False, (line,))
    if layers and facts.share_of_host("model") > _MUCH:
        detail = {"part": "experts"}
        return Verdict("partial_offload", "load", HOST, None, False, (line,), detail)
    # -nkvo, or a backend that cannot hold the cache
    if layers and facts.share_of_host("context") == 1:
        detail = {"part": "cache"}
        return Verdict("partial_offload", "start", HOST, None, False, (line,), detail)
    return None


def _all_on_host(facts: Facts) -> bool:
    """Return whether the log shows weights, and all of them in RAM."""
    buffers = {name for load in facts.launch.loads for name in load.buffers.get("model", ())}
    return bool(buffers) and all(facts.launch.device_of(name) == "Host" for name in buffers)


def _of_backends(lines: Sequence[Line], facts: Facts) -> Verdict | None:
    """Return that the program sees no GPU, None where it may see one."""
    line = _none_listed(lines)
    if line is not None:
        return Verdict("no_gpu", "start", None, None, False, (line,))
    line = _cpu_alone(lines, facts)
    if line is None:
        return None
    names = dict.fromkeys(name for _, name in _loaded_backends(lines))
    detail = {"part": "backends", "backends": " and ".join(names)} if names else {}
    return Verdict("no_gpu", "start", None, None, False, (line,), detail)


def _loaded_backends(lines: Sequence[Line]) -> list[tuple[int, str]]:
    """Return (line, name) of each backend that was loaded from a library of its own."""
    return [
        (line.number, match[1]) for line in lines if (match := _LOADED_BACKEND.search(line.text))
    ]


_LOADED_BACKEND = re.compile(r"loaded (\w{2,12}) backend from")


def _asked_for(figure: Verdict, facts: Facts) -> bool:
    """Return whether the command wants it so."""
    flags = {"experts": _PLACED, "cache": ("-nkvo", "--no-kv-offload")}.get(
        figure.detail.get("part", ""), ()
    )
    return any(word in flags for word in facts.words)


def _none_listed(lines: Sequence[Line]) -> int | None:
    """Return the line of --list-devices after which no device comes."""
    listed = re.compile(r"\s*[A-Za-z]\w{1,11}: ")
    return next(
        (
            line.number
            for line, after in zip_longest(lines, lines[1:])
            if line.text.strip() == "Available devices:"
            and not (after and listed.match(after.text))
        ),
        None,
    )


def _cpu_alone(lines: Sequence[Line], facts: Facts) -> int | None:
    """Return the line that shows that the program has the CPU's backend and no other, unless no GPU
    was wanted."""
    if _wants_no_gpu(facts):
        return None
    loaded = _loaded_backends(lines)
    if loaded and {name for _, name in loaded} <= _NO_GPU_BACKENDS:
        return loaded[-1][0]
    # e.g. "system_info: n_threads = 8 / 16 | CPU : SSE3
    # = 1 | ...": a GPU's backend stands before CPU
    info = next(
        (
            line
            for line in lines
            if (line.text.startswith("system_info:") and "| CPU :" in line.text)
            or re.match(r"system_info: n_threads.{0,60}\| CPU : ", line.text)
        ),
        None,
    )
    if info is None or SYSTEM_INFO.search(info.text):
        return None
    is_first = re.search(r"\d \| CPU :", info.text)
    return info.number if is_first and facts.words else None


_NO_GPU_BACKENDS = {HOST, Rpc.name, "BLAS"}


def _left_out(facts: Facts) -> bool:
    """Return whether the command of an old build says no -ngl, which then meant none, though there
    is a GPU."""
    if not facts.words or not facts.launch.free or facts.offloaded:
        return False
    given = {"-ngl", "--gpu-layers", "--n-gpu-layers"} & set(facts.words)
    # Since --fit the default is all layers that fit
    return not given and not Build(facts.build).knows("--fit")


def _wants_no_gpu(facts: Facts) -> bool:
    words = facts.words
    return any(
        a in ("-ngl", "--n-gpu-layers", "--gpu-layers", "-dev", "--device") and b in ("0", "none")
        for a, b in pairwise(words)
    )


_STRUCK = re.compile(
    r"\berror\b|\bfailed\b|\bfatal\b|\bpanic\b|exception|abort|assert|Segmentation fault|core "
    r"dumped|terminate called|not enough space|premature|crashed|exit ?code[:=] ?[1-9]|"
    r"unexpectedly (?:stopped|exited)|"
    r"terminated: exit status|(?:exited|terminated) with (?:exit )?code (?!0\b)",
    re.IGNORECASE,
)


# ... and that the program has ended
_GONE = re.compile(
    r"(?:process|runner|server) (?:has )?(?:terminated|exited)|exit "
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
    r"|POST predict: .{0,120}EOF",
    re.IGNORECASE,
)
_SECRET = re.compile(r"key|token\W|hf_|bearer|password|://\S{0,80}@", re.IGNORECASE)
# What those who start a server say of its end: its reason is in its own log
_STARTER = re.compile(
    r"upstream (?:command |process )?exited (?:prematurely|unexpectedly)"
    r"|crashed without additional information|model runner has unexpectedly stopped"
    r"|exited before becoming healthy|Unknown error\. Try a different model|\(Exit code: \d"
    r"|model name=\S{0,60} failed to load|cmd\.Wait\(\) returned error|POST predict: .{0,120}EOF"
)


def _nothing(lines: Sequence[Line], facts: Facts) -> Verdict:
    """Return "healthy" for a server without an error, "unknown" for an error that is not known,
    otherwise that the failure is not in these lines."""
    struck = [
        line
        for line in lines
        if (line.level in ("E", "F") or _STRUCK.search(line.text))
        and not any(words in line.text for words in HARMLESS)
    ]
    # What was struck before it served is over
    if struck and not (facts.ready and struck[-1].number < facts.ready):
        ended = any(_GONE.search(line.text) for line in struck)
        starter = any(_STARTER.search(line.text) for line in struck)
        said = struck[0].text.strip()[:160]
        # a key or a token may stand in a line of any form
        detail = {} if _SECRET.search(said) else {"why": said}
        detail |= {"part": "upstream"} if starter else {}
        return Verdict("unknown", None, None, None, ended, (struck[0].number,), detail)
    if facts.ready:
        return Verdict("healthy", "start", None, None, False, (facts.ready,))
    return Verdict("not_in_log", "start")
