"""The signs in a log, and what the lines around them, the launch and the machine say of each.

log = Findings(lines, facts)
hit = Hit(sign, at, groups, log)
hit.says("retrying", 0, 8), hit.serves, hit.refusing
"""

from __future__ import annotations

import re
from itertools import pairwise

from ..backends import HOST
from ..backends.logs import old_name
from ..quoting import printable
from ..records import dataclass, field, replace
from ..units import GiB, MiB, whole
from .log import device_of
from .signs import BACKENDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backends.sign import Sign
    from .facts import Facts
    from .lines import Line

NEAR = 8  # lines after a sign that still speak of the same event
_QUOTED = 160  # characters of a line in a trace
_LIMIT = int(3.9 * GiB)  # from here on a refusal may be a driver's limit for one allocation
SECRET_WORD = re.compile(r"key|token\W|hf_|bearer|password|://\S{0,80}@", re.IGNORECASE)
# What --fit would have changed and found set (common/fit.cpp), and the flags that set it
_FIT = {
    "n_gpu_layers": "-ngl --gpu-layers --n-gpu-layers",
    "tensor_split": "-ts --tensor-split",
    "tensor_buft_overrides": "-cmoe --cpu-moe -ncmoe --n-cpu-moe -ot --override-tensor",
    "SPLIT_MODE": "-sm --split-mode",
}
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
# What the lines after a refusal say of it
# (Vulkan and CUDA refuse with the same words, whatever the memory was for)
_NEXT = (
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
            r"(?:allocate|buffer).{0,20} (?:kv|rs|KV) cache|llama_kv_cache_init\(\) failed"
            r"|MoE cache buffers|DSV4 compressor|failed to initialize the memory"
            r"|for self-attention cache"
        ),
    ),
    (
        "compute",
        re.compile(
            r"ggml_gallocr_reserve|failed to allocate compute|compute (?:pp|tg) buffers|"
            r"graph_reserve|sched_reserve.{0,60}failed|failed to reserve"
        ),
    ),
)
SIZES = re.compile("KV buffer size|KV self size|output buffer size|compute buffer size")
WEIGHTS = re.compile("load_tensors|llm_load_tensors|loading model tensors")
_EARLY = (
    ("warmup", re.compile("warming up the model")),
    (
        "probe",
        re.compile(
            "MemGetInfo failed|returning 0/0|fitting params to device"
            "|device memory data for initial"
        ),
    ),
    ("", re.compile(f"{SIZES.pattern}|{WEIGHTS.pattern}")),  # past both
)
_LOADED = re.compile(r"loaded (\w{2,12}) backend from")  # of a library of its own
# The image encoder's own lines (tools/mtmd/clip.cpp, tools/server) beside a refusal
_PROJECTOR = re.compile(
    r"\bclip\w{0,60}:|\bmtmd_|(?:alloc|reserve)_compute_meta|\bwarmup: |multimodal model|mmproj"
)
_OF_MODEL = re.compile(
    r"llama_context|llama_init|create.context|kv cache|error loading model|llama_model_lo"
)
_WARMED = re.compile(r"(?:alloc|reserve)_compute_meta|\bwarmup: ")
_CRASHED = re.compile(r"[Ss]egmentation fault|SIGSEGV|core dumped")
_LOST = re.compile(
    "failed to load|unable to allocate|GGML_ASSERT|Aborted|failed to create|llama_context"
)


@dataclass
class Fired:
    """A rule of a trace that applied to a line (0: to the log as a whole): what it gives, and what
    counts instead, "" where it counts itself."""

    rule: str
    line: int
    text: str
    gives: str
    overruled_by: str = ""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        instead = f" (overruled: {self.overruled_by})" if self.overruled_by else ""
        said = f": {self.text}" if self.text and self.rule.startswith("sign") else ""
        return f"{where}{self.rule} -> {self.gives}{instead}{said}"

    def to_dict(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "line": self.line or None,
            "text": self.text or None,
            "gives": self.gives,
            "overruled_by": self.overruled_by or None,
        }


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
    trace: tuple[Fired, ...] = ()


class Findings:
    """A log's lines and facts, the signs in them by their index, and which rules applied."""

    def __init__(self, lines: Sequence[Line], facts: Facts) -> None:
        self.lines, self.facts = lines, facts
        self.hits: dict[int, Hit] = {}
        self.steps: list[Fired] = []
        self.whole: list[Fired] = []  # those of the log as a whole

    def note(self, rule: str, gives: str, line: Line | None = None) -> Fired:
        """Add a step to the trace, with its line as far as it can be shown."""
        # a key or a token may stand in a line of any form
        text = SECRET_WORD.split(line.text.strip()[:_QUOTED])[0] if line else ""
        self.steps.append(Fired(rule, line.number if line else 0, printable(text), gives))
        return self.steps[-1]

    def seen(self, rule: str, verdict: Verdict) -> Verdict:
        """Return a verdict of the log as a whole, with the step that led to it."""
        evidence = tuple(filter(None, verdict.evidence))
        line = next((line for line in self.lines if line.number in evidence), None)
        self.whole.append(self.note(rule, verdict.cause, line))
        return replace(verdict, evidence=evidence, trace=(self.whole[-1],))

    @property
    def loaded(self) -> list[tuple[int, str]]:
        """(line, name) of each backend that was loaded from a library of its own."""
        found = _LOADED.search
        return [(line.number, m[1]) for line in self.lines if (m := found(line.text))]


class Hit:
    """A sign in a line, and what the rules say of it."""

    def __init__(self, sign: Sign, at: int, detail: dict[str, str], log: Findings) -> None:
        self.sign, self.at, self.detail, self.log = sign, at, detail, log
        self.line, self.facts, self.word = log.lines[at], log.facts, sign.word
        self.cause, self.weight, self.phase = sign.cause, sign.weight, sign.phase or "start"
        self.fatal = False
        self.device: str | None = None
        self.bytes: int | None = None
        self.verdict: Verdict | None = None
        self.alone = False  # nothing else is of its event
        self.near: list[Hit] = []  # signs of the same event
        self.after: Sequence[Line] = ()  # its lines
        self.step = log.note(
            f"sign {sign.said!r}", f"{sign.cause}, weight {sign.weight}", self.line
        )

    def take(self, name: str, value: object, rule: str) -> None:
        """Take what a rule gives."""
        gives = ("no", "yes")[value] if isinstance(value, bool) else value or "none"
        step = self.log.note(rule, f"{name} {gives}", self.line)
        if name in ("cause", "weight"):
            self.step.overruled_by, self.step = rule, step
        if name in ("part", "flag", "why"):
            self.detail = {**self.detail, name: str(value)}
        else:
            setattr(self, name, value)

    def says(self, pattern: str | re.Pattern[str], before: int, after: int) -> re.Match[str] | None:
        """Return where one of the lines around says it, `before` and `after` counted from it."""
        return first(pattern, self.log.lines[max(0, self.at - before) : self.at + after])

    def done(
        self, before: int, after: int, rows: Sequence[tuple[str, re.Pattern[str]]], step: int = -1
    ) -> str:
        """Return what the nearest line says that a row knows; "" where none does."""
        for line in self.log.lines[max(0, self.at - before) : self.at + after][::step]:
            for name, pattern in rows:
                if pattern.search(line.text):
                    return name
        return ""

    def around(self, before: int, after: int) -> list[Hit]:
        """Return the signs in the lines around."""
        hits, places = self.log.hits, range(self.at - before, self.at + after)
        return [hits[at] for at in places if at in hits]

    @property
    def serves(self) -> bool:
        """Whether a line before it says that the server serves."""
        return any(0 < n <= self.line.number for n in (self.facts.ready, self.facts.measured))

    @property
    def next_phase(self) -> str:
        """The phase that the lines after a refusal tell."""
        return self.done(0, 6, _NEXT, 1)

    @property
    def early(self) -> str:
        """ "warmup" or "probe" where a graph was refused before the server served."""
        return self.done(40, 0, _EARLY) if self.phase == "run" and not self.serves else ""

    @property
    def stopped(self) -> bool:
        """Whether a request that was too long ended the program with it."""
        return bool(first("failed to generate|exiting main loop", self.after))

    @property
    def ignored(self) -> bool:
        """Whether the projector's warm-up was refused its graph, which clip.cpp goes on from."""
        return bool(self.says(_WARMED, 0, NEAR) and not self.says(_LOST, 0, NEAR))

    @property
    def crashed(self) -> bool:
        """Whether it went on from that until the first image (alloc_compute_meta reserves no
        graph)."""
        return self.ignored and bool(self.says(_CRASHED, -1, len(self.log.lines)))

    @property
    def of_projector(self) -> bool:
        """Whether the projector of images or sound was refused, and not the model."""
        # The lines after it name who asked, e.g. "clip_model_loader: ..." or "llama_context: ..."
        asked = self.done(0, 5, (("model", _OF_MODEL), ("projector", _PROJECTOR)), 1)
        return asked == "projector" or (not asked and bool(self.says(_PROJECTOR, 2, 0)))

    @property
    def over_limit(self) -> bool:
        """Whether the allocation was over the driver's limit for one, though memory was free."""
        # Mesa's driver says so where the kernel had no memory
        if self.says("amdgpu: Failed to allocate a buffer", self.at, 0):
            return False
        size = bytes_of([self])
        left = [device.free or device.total for device in self.facts.devices.values()]
        largest = max(left, default=0)
        if size is not None:
            # 100 MiB refused is a full card; 4.5 GiB on a card that has more is a limit
            is_full = bool(left) and all(left) and largest < size
            return size >= _LIMIT and not is_full
        # without a size, the free memory around it must tell
        # "Error OP": SYCL's line for an operation that the driver refused
        return largest >= 16 * GiB or bool(self.says("Error OP", 3, 4))

    @property
    def within_limit(self) -> bool:
        """Whether the prompt cache holds no large part of RAM: then it is no failure."""
        size, limit = bytes_of([self]) or 0, _number(self.detail.get("left", "0")) * MiB
        return size < 2 * GiB or size < 0.75 * limit

    @property
    def is_never_written(self) -> bool:
        """Whether a missing tensor is of a file that was converted wrongly."""
        tensor = self.detail["tensor"]
        block = re.match(r"blk\.(\d{1,4})\.", tensor)
        if block is None:
            return "token_embd" in tensor
        # experts that are missing in the first block were never converted; a tensor behind the last
        # block is a draft's (MTP), which newer builds know
        return int(block[1]) == 0 and "exps" in tensor

    @property
    def has_fewer_heads(self) -> bool:
        """Whether a K or V is a whole number of times smaller than expected: the file does not say
        its KV heads."""
        due, got = (
            [
                size
                for part in re.split(r"[,x]", self.detail[key].replace(" ", "").strip(","))
                if (size := whole(part)) is not None
            ]
            for key in ("due", "there")
        )
        # e.g. expected 4096, 4096, got 4096, 1024: the key head_count_kv is missing
        if (
            not re.search(r"attn_(?:k|v|qkv)\.", self.detail["tensor"])
            or min(map(len, (due, got))) < 2
        ):
            return False
        return due[0] == got[0] and 0 < got[1] < due[1] and due[1] % got[1] == 0

    @property
    def flag_device(self) -> str | None:
        """The device that a flag names and the build does not have."""
        if "device" in self.detail:
            return self.detail["device"]
        if invalid := self.says(r"invalid device: (\S{1,40})", 0, NEAR):
            return invalid[1]
        value = next(
            (b for a, b in pairwise(self.facts.words) if a in ("-ot", "--override-tensor")), ""
        )
        # e.g. "exps=CUDA1"
        match = re.search(r"=([A-Z][A-Za-z]{1,10}\d{1,2})['\"]?$", value)
        return match[1] if match else None

    @property
    def refusing(self) -> str | None:
        """The device that refused memory, or was lost."""
        facts = self.facts
        # the buffer's name is the surest: it names the device
        if names := [hit.detail["name"] for hit in self.near if "name" in hit.detail]:
            return device_named(names[0], facts)
        # then the number in the driver's line, or in those after it
        numbers = [hit.detail["index"] for hit in self.near if "index" in hit.detail]
        if current := self.says(r"current device: (\d{1,3})", 0, NEAR):
            numbers.append(current[1])
        # then the command, of several devices the one with the draft model too, otherwise the first
        given = {flag: value.split(",") for flag, value in pairwise(facts.words)}
        main = given.get("-dev") or given.get("--device") or []
        drafts = ("-devd", "--device-draft", "--spec-draft-device")
        draft = [name for flag in drafts for name in given.get(flag, ())]
        # A draft on the same device is what its memory was short for
        only = next((name for name in main if name in draft), main[0] if main else "")
        if not numbers and re.fullmatch(r"[A-Za-z]{2,12}\d{1,3}", only):
            return only
        if not numbers and self.cause == "gpu_build" and len(facts.devices) > 1:
            return None  # the line does not say which
        # ROCm prints CUDA's words: the backends of the sign, as far as the log shows them, decide
        name = facts.gpu(int(numbers[0]) if numbers else 0, BACKENDS.get(self.sign, ()))
        return old_name(name) or name or None

    @property
    def given_to_fit(self) -> str:
        """The flag that --fit may not change: as the command has it, otherwise as llama.cpp's help
        has it."""
        for word, flags in _FIT.items():
            # e.g. "n_gpu_layers already set by user to 99, abort"
            if word in self.detail.get("why", ""):
                # as the user wrote it, because that is what can be left out
                given = next((flag for flag in self.facts.words if flag in flags.split()), "")
                is_places = word == "tensor_buft_overrides"
                return given or ("-ot, -cmoe or -ncmoe" if is_places else flags.split()[0])
        return ""

    @property
    def why_no_gpu(self) -> str:
        """What another line says of a GPU that is not used."""
        for pattern in _NO_GPU:
            if match := first(pattern, self.log.lines):
                return match.groupdict().get("why") or f"{match['gpu']} is not supported"
        return ""


def first(pattern: str | re.Pattern[str], lines: Sequence[Line]) -> re.Match[str] | None:
    """Return where the first of these lines says it."""
    search = re.compile(pattern).search
    return next(filter(None, (search(line.text) for line in lines)), None)


def device_named(buffer: str, facts: Facts) -> str:
    """Return the device of a buffer as the log calls it: "RPC0" of "RPC0[host:port]", Metal of
    builds that say so."""
    base = buffer.partition("[")[0]
    if old_name(base):
        return old_name(base)
    device = facts.launch.device_of(buffer) if "[" in buffer else device_of(buffer)
    return HOST if device == "Host" else device


def bytes_of(near: Sequence[Hit]) -> int | None:
    """Return what was asked for: bytes before MiB, which are rounded."""
    for units in ({"bytes": 1}, {"mib": MiB, "gib": GiB}):
        for hit in near:
            for unit, scale in units.items():
                if unit in hit.detail:
                    value = hit.detail[unit]
                    return int(value) if scale == 1 else int(_number(value) * scale)
    return None


def _number(text: str) -> float:
    try:
        # A comma where the system's language writes one
        return float(text.replace(",", "."))
    except ValueError:
        return 0.0
