"""llama-server's log: the sizes of its buffers while it loads, and its messages when memory runs
out.

    reader = LogReader()
    reader.feed(b"load_tensors:        CUDA0 model buffer size =  4403.49 MiB\\n")
    reader.finish()
    reader.launch.loads[0].buffers["model"]["CUDA0"]      # [4403.49]

The lines are those of logs.py; what follows here is how they add up.
"""

from __future__ import annotations

import re

from ..backends import HOST, canonical, signs
from ..backends.cpu import BUFFERS
from ..backends.rpc import Rpc
from ..backends.sign import BYTES, NAME, Sign
from ..logs import LAUNCH, fields
from ..records import dataclass, field
from ..units import MiB
from .lines import json_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

META = "Meta()"  # all devices of -sm tensor: sizes are the largest of any of them
_DIGITS = 20  # digits of a size in bytes
# llama.cpp's own lines are short; longer ones (prompts, base64 images) are irrelevant
_LINE_LIMIT = 1 << 14

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# e.g. "0.00.147.118 E "
_PREFIX = re.compile(r"^(?:\d+\.\d\d\.\d\d\d\.\d\d\d )?(?:[DIWE] )?")

# Out of memory, most certain first: (sign, backends that print it)
_FULL = ("oom_device", "oom_host", "buffer_limit")
# Buffers' names before drivers' lines: ROCm prints
# "cudaMalloc failed", and only the buffer is ROCm0
_OOM: tuple[tuple[Sign, tuple[str, ...]], ...] = (
    # ggml-alloc.c, any backend
    (
        Sign("oom_device", "buffer of size", rf"failed to allocate {NAME} buffer of size {BYTES}"),
        (),
    ),
    *((sign, names) for sign, names in signs().items() if sign.cause in _FULL and sign.weight >= 8),
    # llama.cpp's message after any of these
    (Sign("oom_device", "unable to allocate", rf"unable to allocate {NAME} buffer"), ()),
    (
        Sign(
            "oom_device",
            "failed to allocate",
            r"failed to allocate (?:buffer for (?:kv|rs) cache|compute (?:pp|tg)? ?buffers)",
        ),
        (),
    ),
)
_PARTS = {
    "model": "model",
    "KV": "context",
    "RS": "context",
    "LoRA": "lora",
    "output": "output",
    "compute": "compute",
}
# of the breakdown that llama.cpp prints
_COLUMNS = ("total", "free", "model", "context", "compute", "unaccounted")
# allocations whose failure llama.cpp tolerates
_HARMLESS = re.compile(
    r"pinned memory|retrying without|falling back|fallback|skipping reorder|async uploads"
)


@dataclass
class LoadedModel:
    """One loaded model. `buffers`: part -> buffer name -> the MiB of each buffer, in the log's
    order."""

    buffers: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    offloaded: tuple[int, int] | None = None
    contexts: int = 0


@dataclass(frozen=True)
class OutOfMemory:
    """`device` as llama.cpp names it, or "Host"; `requested` in bytes; both None if the log lacks
    them."""

    device: str | None
    requested: int | None
    message: str
    certain: bool = True  # whether the line names the device; else it is the backend's first


@dataclass
class LaunchLog:
    """The log of one run of llama-server. Numbers are MiB as printed."""

    loads: list[LoadedModel] = field(default_factory=list)
    # device -> MiB free before the load
    free: dict[str, int] = field(default_factory=dict)
    # device -> total free model context compute unaccounted
    breakdown: dict[str, tuple[int, ...]] = field(default_factory=dict)
    host: tuple[int, int, int] | None = None  # model context compute
    # the multimodal projector's compute buffers
    projector: dict[str, float] = field(default_factory=dict)
    # its weights, of each modality
    projector_model: dict[str, list[float]] = field(default_factory=dict)
    # sums, as printed by builds of 2023
    old: dict[str, float] = field(default_factory=dict)
    ready: bool = False
    url: str | None = None
    failures: list[OutOfMemory] = field(default_factory=list)
    # host:port -> names of its devices
    endpoints: dict[str, list[str]] = field(default_factory=dict)

    def device_of(self, buffer: str) -> str:
        """Return the device of a buffer's name. RPC buffers are numbered per server, RPC devices
        across all servers."""
        if buffer.startswith("Meta("):
            return META
        name, _, endpoint = buffer.partition("[")
        # e.g. "RPC1[192.168.1.7:50052]": the second device of that server
        behind = self.endpoints.get(endpoint.rstrip("]"), [])
        number = name[len(Rpc.name) :]
        index = int(number) if number.isdecimal() and len(number) < _DIGITS else 0
        return (
            behind[index]
            if name.startswith(Rpc.name) and index < len(behind)
            else device_of(buffer)
        )

    def take(self, name: str, groups: dict[str, str]) -> None:
        """Add what a line says: a field of logs.LAUNCH and its figures; other fields are not this
        record's."""
        if name == "buffer":
            buffer, size = groups["name"], float(groups["mib"])
            if groups["where"] in ("alloc_compute_meta", "reserve_compute_meta"):
                self.projector[buffer] = size
                return
            load = self._load()
            part = _PARTS.get(groups.get("what", "model"), "context")
            # Weights and adapters belong to the model, whatever the number of its contexts
            if load.contexts > 1 and part in ("context", "compute", "output"):
                part += " (second)"  # a second context on the same weights (MTP)
            sizes = load.buffers.setdefault(part, {}).setdefault(buffer, [])
            if part.startswith(("compute", "output")):
                # reserved again: the new buffer replaces the old one
                sizes.clear()
            sizes.append(size)
        elif name == "offloaded":
            self._load().offloaded = int(groups["layers"]), int(groups["of"])
        elif name == "projector":
            weights = self.projector_model
            if "backend" in groups:
                weights.setdefault(groups["backend"], [])
            elif weights:
                # Sizes follow the line that names the backend; images and sound have one each
                weights[next(reversed(weights))].append(float(groups["mib"]))
        elif name == "device":
            self.free[groups["name"]] = int(groups["mib"])
            if groups["name"].startswith(Rpc.name):
                behind = self.endpoints.setdefault(groups.get("description", ""), [])
                behind.append(groups["name"])
        elif name == "breakdown":
            self.breakdown[groups["name"]] = tuple(int(groups[column]) for column in _COLUMNS)
        elif name == "host":
            self.host = int(groups["model"]), int(groups["context"]), int(groups["compute"])
        elif name == "old":
            self.old[groups["value"]] = float(groups["mib"])
        elif name == "load":
            # A line that starts a load is printed several times before the first buffer
            if not self.loads or self.loads[-1].buffers:
                self.loads.append(LoadedModel())
        elif name == "context":
            self._load().contexts += 1
        elif name == "ready":
            self.ready = True
            self.url = groups["url"].rstrip("/") if "url" in groups else self.url

    def _load(self) -> LoadedModel:
        if not self.loads:
            self.loads.append(LoadedModel())
        return self.loads[-1]

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """The first failed allocation, completed by later lines; None if there was none."""
        if not self.failures:
            return None
        first = self.failures[0]
        with_device = [f for f in self.failures if f.device]
        # A device that a line names, before one that is guessed by the backend
        named = next(
            (f for f in with_device if f.certain), with_device[0] if with_device else first
        )
        requested = next((f.requested for f in self.failures if f.requested), None)
        return OutOfMemory(named.device, requested, first.message, named.certain)


class LogReader:
    """Reads a log in pieces of any size. Never fails: logs of killed programs have invalid text,
    endless lines and truncated lines."""

    def __init__(self) -> None:
        self.launch = LaunchLog()
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> None:
        # A piece may end within a line, which waits for the next piece
        *lines, rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            else:
                self._line(line)
        # Dropped up to the next line end: memory stays bounded
        if len(rest) > _LINE_LIMIT:
            self._skipping, rest = True, b""
        self._rest = b"" if self._skipping else rest

    def finish(self) -> LaunchLog:
        """Read what is left as a line, even without a newline; return the launch."""
        if self._rest and not self._skipping:
            self._line(self._rest)
        self._rest = b""
        return self.launch

    def _line(self, raw: bytes) -> None:
        if len(raw) > _LINE_LIMIT:
            return
        text = _PREFIX.sub("", _ESCAPE.sub("", raw.decode("utf-8", "replace")).strip(" \x00"))
        if text.startswith("{") and '"msg"' in text:  # --log-jsonl
            text = json_message(text)
        launch = self.launch
        for name, groups in fields(text, LAUNCH):
            launch.take(name, groups)
        # Once it serves, a refusal is no failed load
        if not launch.ready and (failure := out_of_memory(text, launch.device_of)):
            launch.failures.append(failure)


def device_of(buffer: str) -> str:
    """Return the device of a buffer's name: "CUDA0", "RPC0[127.0.0.1:50052]", "MTL0_Mapped",
    "Metal"; "Host" for system RAM (CPU, CPU_Mapped, CPU_REPACK, CUDA_Host, AMX...)."""
    base = buffer.partition("[")[0]
    if base.endswith("_Host") or base.startswith(BUFFERS):
        return "Host"
    for suffix in ("_Mapped", "_Private", "_Shared", "_Split"):
        base = base.removesuffix(suffix)
    # "MTL0" and "Metal" of older builds are one device, MTL0
    name = base.rstrip("0123456789")
    return canonical(name) + (base[len(name) :] or "0")


def out_of_memory(text: str, device_of: Callable[[str], str] = device_of) -> OutOfMemory | None:
    """Return the failed allocation that a line reports, None if it reports none. `device_of` gives
    a buffer's device."""
    if _HARMLESS.search(text):
        return None
    lower = text.lower()
    for sign, backends in _OOM:
        groups = sign.match(text, lower)
        if groups is None:
            continue
        device, certain = backends[0] + "0" if backends else None, False
        if groups.get("name"):
            device, certain = device_of(groups["name"]), True
        elif backends == (HOST,):
            device, certain = "Host", True
        elif groups.get("index"):
            # Several backends share the words: the first may be wrong
            device, certain = backends[0] + groups["index"], len(backends) == 1
        # More digits are no size but damage
        n_bytes, mib = groups.get("bytes") or "", groups.get("mib") or ""
        requested = int(n_bytes) if 0 < len(n_bytes) < _DIGITS else None
        if requested is None and 0 < len(mib) < _DIGITS:
            requested = round(float(mib.replace(",", ".")) * MiB)
        return OutOfMemory(device, requested, text[:300], certain)
    return None
