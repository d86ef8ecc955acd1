"""llama-server's log: the sizes of its buffers while it loads, and its messages when memory runs out.

    reader = LogReader()
    reader.feed(b"load_tensors:        CUDA0 model buffer size =  4403.49 MiB\\n")
    reader.finish()
    reader.launch.loads[0].buffers["model"]["CUDA0"]      # [4403.49]

Formats as printed by src/llama-model.cpp, src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp,
src/llama-context.cpp, tools/mtmd/clip.cpp and common/fit.cpp as modelled, and those of builds back to 2023:
the function names before the colon have changed often and are ignored; the words around the numbers have
hardly changed.
"""

from __future__ import annotations

import json
import re

from ..backends import HOST, canonical, signs
from ..backends.cpu import BUFFERS
from ..backends.rpc import Rpc
from ..backends.sign import BYTES, NAME, Sign
from ..records import dataclass, field
from ..units import MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

META = "Meta()"             # all devices of -sm tensor: sizes are the largest of any of them
_DIGITS = 20                # digits of a size in bytes
_LINE_LIMIT = 1 << 16      # llama.cpp's own lines are short; longer ones (prompts, base64 images) are irrelevant

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^(?:\d+\.\d\d\.\d\d\d\.\d\d\d )?(?:[DIWE] )?")

# "sched_reserve:      CUDA0 compute buffer size =   304.75 MiB",
# "llm_load_tensors:        CPU buffer size =  4165.37 MiB"
_BUFFER = re.compile(r"(?P<where>\w+): +(?P<name>[^\s:]\S*) +"
                     r"(?P<what>model|KV|RS|LoRA|output|compute|DSV4 \S+ state)? ?"
                     r"buffer size = +(?P<size>\d{1,15}\.\d+) MiB")
# "clip_ctx: CLIP using CUDA0 backend", then "load_hparams: model size:         811.82 MiB"
_PROJECTOR = re.compile(r"CLIP using (?P<backend>\S+) backend|\w+: model size: +(?P<size>\d{1,15}\.\d+) MiB")
# "load_tensors: offloaded 33/33 layers to GPU"
_OFFLOADED = re.compile(r"offloaded (\d{1,9})/(\d{1,9}) layers to GPU")
# "llama_prepare_model_devices: using device CUDA0 (NVIDIA ...) (0000:01:00.0) - 23306 MiB free"
_DEVICE = re.compile(r"using device (\S+) \(([^)]*)\).* - (\d{1,15}) MiB free")
# "| - CUDA0 (RTX 4090)  | 24077 = 17900 + (5430 = 4403 + 1024 + 3) + 747 |", "| - Host |  345 = 281 + 0 + 64
# |"
_ROW_DEVICE = re.compile(r"\| +- (\S+) .*\| +(\d+) = (\d+) \+ \( *(\d+) = +(\d+) \+ +(\d+) \+ +(\d+)\) \+ "
                         r"+(-?\d+) \|"
                         .replace(r"\d+", r"\d{1,15}"))
_ROW_HOST = re.compile(r"\| +- (\S+) +\| +(\d+) = +(\d+) \+ +(\d+) \+ +(\d+) +\|".replace(r"\d+", r"\d{1,15}"))
# Builds of 2023: "llm_load_tensors: VRAM used: 4095.05 MB", "... kv self size  =  256.00 MB"
_OLD = re.compile(r"(VRAM used|kv self size|mem required) *[:=] +(\d{1,15}\.\d+) Mi?B")

# not "HTTP server is listening": builds of 2024 and 2025 print that before they load
_READY = re.compile(r"model loaded|: listening on |server is listening on|llama server listening at")
_LISTENING = re.compile(r"listening (?:on|at) (https?://\S+)")
_NEW_LOAD = re.compile(r"llama_model_loader: loaded meta data|loading model tensors")
_NEW_CONTEXT = re.compile(
    r"constructing llama_context|(?:llama_new_context_with_model|llama_init_from_model): n_ctx +=")

# Out of memory, most certain first: (sign, backends that print it)
_FULL = ("oom_device", "oom_host", "buffer_limit")
_OOM: tuple[tuple[Sign, tuple[str, ...]], ...] = (
    # ggml-alloc.c, any backend
    (Sign("oom_device", "buffer of size", rf"failed to allocate {NAME} buffer of size {BYTES}"), ()),
    *((sign, names) for sign, names in signs().items() if sign.cause in _FULL and sign.fatal),
    # llama.cpp's message after any of these
    (Sign("oom_device", "unable to allocate", rf"unable to allocate {NAME} buffer"), ()),
    (Sign("oom_device", "failed to allocate",
          r"failed to allocate (?:buffer for (?:kv|rs) cache|compute (?:pp|tg)? ?buffers)"), ()),
)
# allocations whose failure llama.cpp tolerates
_HARMLESS = re.compile(r"pinned memory|retrying without|falling back|fallback|skipping reorder|async uploads")


@dataclass
class Load:
    """One loaded model. `buffers`: part -> buffer name -> the MiB of each buffer, in the log's order."""

    buffers: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    offloaded: tuple[int, int] | None = None
    contexts: int = 0


@dataclass(frozen=True)
class OutOfMemory:
    """`device` as llama.cpp names it, or "Host"; `requested` in bytes; both None if the log lacks them."""

    device: str | None
    requested: int | None
    message: str
    certain: bool = True      # whether the line names the device; else it is the backend's first


@dataclass
class LaunchLog:
    """The log of one run of llama-server. Numbers are MiB as printed."""

    loads: list[Load] = field(default_factory=list)
    free: dict[str, int] = field(default_factory=dict)                  # device -> MiB free before the load
    # device -> total free model context compute unaccounted
    breakdown: dict[str, tuple[int, ...]] = field(default_factory=dict)
    host: tuple[int, int, int] | None = None                            # model context compute
    projector: dict[str, float] = field(default_factory=dict)           # the multimodal projector's compute buffers
    projector_model: dict[str, list[float]] = field(default_factory=dict)     # its weights, of each modality
    old: dict[str, float] = field(default_factory=dict)                 # sums, as printed by builds of 2023
    ready: bool = False
    url: str | None = None
    failures: list[OutOfMemory] = field(default_factory=list)
    endpoints: dict[str, list[str]] = field(default_factory=dict)       # host:port -> names of its devices

    def device_of(self, buffer: str) -> str:
        """The device of a buffer's name. RPC buffers are numbered per server, RPC devices across all
        servers."""
        if buffer.startswith("Meta("):
            return META
        name, _, endpoint = buffer.partition("[")
        behind = self.endpoints.get(endpoint.rstrip("]"), [])
        number = name[len(Rpc.name):]
        index = int(number) if number.isdecimal() and len(number) < _DIGITS else 0
        return behind[index] if name.startswith(Rpc.name) and index < len(behind) else device_of(buffer)

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """The first failed allocation, completed by later lines; None if there was none."""
        if not self.failures:
            return None
        first = self.failures[0]
        with_device = [f for f in self.failures if f.device]
        named = next((f for f in with_device if f.certain), with_device[0] if with_device else first)
        requested = next((f.requested for f in self.failures if f.requested), None)
        return OutOfMemory(named.device, requested, first.message, named.certain)


class LogReader:
    """Reads a log in pieces of any size. Never fails: logs of killed programs have invalid text, endless
    lines and truncated lines."""

    def __init__(self) -> None:
        self.launch = LaunchLog()
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            else:
                self._line(line)
        if len(rest) > _LINE_LIMIT:
            self._skipping, rest = True, b""
        self._rest = b"" if self._skipping else rest

    def finish(self) -> LaunchLog:
        """The end of the log: the rest is a line, even without a newline."""
        if self._rest and not self._skipping:
            self._line(self._rest)
        self._rest = b""
        return self.launch

    def _line(self, raw: bytes) -> None:
        if len(raw) > _LINE_LIMIT:
            return
        text = _PREFIX.sub("", _ESCAPE.sub("", raw.decode("utf-8", "replace")).strip(" \x00"))
        if text.startswith("{") and '"msg"' in text:      # --log-jsonl
            text = _json_message(text)
        launch = self.launch
        if "buffer size" in text and (match := _BUFFER.search(text)):
            self._buffer(match)
        elif "offloaded" in text and (match := _OFFLOADED.search(text)):
            self._load().offloaded = int(match[1]), int(match[2])
        elif (" model size: " in text or "CLIP using" in text) and (match := _PROJECTOR.search(text)):
            self._projector(match)
        elif "using device" in text and (match := _DEVICE.search(text)):
            launch.free[match[1]] = int(match[3])
            if match[1].startswith(Rpc.name):
                launch.endpoints.setdefault(match[2], []).append(match[1])
        elif "| " in text and (match := _ROW_DEVICE.search(text)):
            total, free, _, model, context, compute, unaccounted = map(int, match.groups()[1:])
            launch.breakdown[match[1]] = (total, free, model, context, compute, unaccounted)
        elif "| " in text and (match := _ROW_HOST.search(text)):
            if match[1] == "Host":
                launch.host = int(match[3]), int(match[4]), int(match[5])
        elif match := _OLD.search(text):
            launch.old[match[1]] = float(match[2])
        elif _NEW_LOAD.search(text):
            if not launch.loads or launch.loads[-1].buffers:
                launch.loads.append(Load())
        elif _NEW_CONTEXT.search(text):
            self._load().contexts += 1
        if _READY.search(text):
            launch.ready = True
            if match := _LISTENING.search(text):
                launch.url = match[1].rstrip("/")
        if not launch.ready and (failure := out_of_memory(text, launch.device_of)):
            launch.failures.append(failure)

    def _load(self) -> Load:
        if not self.launch.loads:
            self.launch.loads.append(Load())
        return self.launch.loads[-1]

    def _buffer(self, match: re.Match[str]) -> None:
        name, size = match["name"], float(match["size"])
        if match["where"] in ("alloc_compute_meta", "reserve_compute_meta"):
            self.launch.projector[name] = size
            return
        load = self._load()
        part = _PARTS.get(match["what"] or "model", "context")
        if load.contexts > 1 and part in ("context", "compute", "output"):
            part += " (second)"                   # a second context on the same weights (MTP)
        sizes = load.buffers.setdefault(part, {}).setdefault(name, [])
        if part.startswith(("compute", "output")):
            sizes.clear()                         # reserved anew: the new buffer replaces the old one
        sizes.append(size)

    def _projector(self, match: re.Match[str]) -> None:
        weights = self.launch.projector_model
        if match["backend"]:
            weights.setdefault(match["backend"], [])
        elif weights:
            weights[next(reversed(weights))].append(float(match["size"]))


_PARTS = {"model": "model", "KV": "context", "RS": "context", "LoRA": "lora", "output": "output",
          "compute": "compute"}


def _json_message(text: str) -> str:
    try:
        message = json.loads(text).get("msg", "")
    except (ValueError, AttributeError, RecursionError):
        return text
    return message.strip() if isinstance(message, str) else ""


def device_of(buffer: str) -> str:
    """The device of a buffer's name: "CUDA0", "RPC0[127.0.0.1:50052]", "MTL0_Mapped", "Metal"; "Host" for
    system RAM (CPU, CPU_Mapped, CPU_REPACK, CUDA_Host, AMX...)."""
    base = buffer.partition("[")[0]
    if base.endswith("_Host") or base.startswith(BUFFERS):
        return "Host"
    for suffix in ("_Mapped", "_Private", "_Shared", "_Split"):
        base = base.removesuffix(suffix)
    name = base.rstrip("0123456789")
    return canonical(name) + (base[len(name):] or "0")


def out_of_memory(text: str, device_of: Callable[[str], str] = device_of) -> OutOfMemory | None:
    """The failed allocation that a line reports, None if it reports none. `device_of` gives a buffer's
    device."""
    if _HARMLESS.search(text):
        return None
    lower = text.lower()
    for sign, backends in _OOM:
        groups = sign.match(text, lower)
        if groups is not None:
            n_bytes, mib = groups.get("bytes") or "", groups.get("mib") or ""
            requested = int(n_bytes) if 0 < len(n_bytes) < _DIGITS else \
                round(float(mib.replace(",", ".")) * MiB) if 0 < len(mib) < _DIGITS else None
            device, certain = backends[0] + "0" if backends else None, False
            if groups.get("name"):
                device, certain = device_of(groups["name"]), True
            elif backends == (HOST,):
                device, certain = "Host", True
            elif groups.get("index"):
                device, certain = backends[0] + groups["index"], len(backends) == 1
            return OutOfMemory(device, requested, text[:300], certain)
    return None
