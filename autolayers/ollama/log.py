"""Ollama's log: the server's settings and GPUs, how it started llama-server, and what that allocated.

    Log(os.environ).server()          # Server(settings={"OLLAMA_NUM_PARALLEL": "1"}, gpus=(...))

    msg="server config" env="map[... OLLAMA_NUM_PARALLEL:1 ...]"                     once, when the server starts
    msg="inference compute" id=0 library=CUDA compute=8.6 name=CUDA0 description="..." type=discrete
        total="12.0 GiB" available="11.5 GiB"                                          then one line for each GPU
    msg="starting llama-server" cmd="/usr/lib/ollama/llama-server --model ... -c 8192 -np 2 ..."      for each load
    ...: using device CUDA0 (NVIDIA RTX A2000) (0000:01:00.0) - 11800 MiB free       llama-server's own lines
    load_tensors: CUDA0 model buffer size = 4403.49 MiB

The lines of Ollama 0.33 (2026-08-21).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time

from ..backends import DEFAULT, canonical
from ..machine import Device
from ..records import dataclass, field, replace
from ..units import GiB, MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_OFFLOADED = re.compile(r"offloaded (\d{1,9})/(\d{1,9}) layers to GPU")
_CONFIG = re.compile(r'msg="server config" env="map\[(.*)\]"')
_SETTING = re.compile(r"\b((?:OLLAMA|LLAMA_ARG)_[A-Z_]+):([^ \]]*)")
_COMPUTE = re.compile(r'msg="inference compute" (.*)')
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
_STARTED = re.compile(r'msg="starting llama-server" cmd="((?:[^"\\]|\\.)*)"')
_TIME = re.compile(r"time=([-+:.\dTZ]{10,40})")
_FREE = re.compile(r"using device (\S{1,60}) \(.{0,200}\) - (\d{1,9}) MiB free")
_BUS = re.compile(r"\(([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)\)", re.IGNORECASE)
_BUFFER = re.compile(r"(\S+) +(?:model|KV|RS|compute|output)[a-z ()]* buffer size = *([0-9]{1,9}\.[0-9]+) "
                     r"MiB",
                     re.IGNORECASE)
_GPU_BUFFER = re.compile(r"(?!CPU)[A-Za-z]+\d+(?:\[.*\])?$")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MiB, "GiB": GiB, "TiB": GiB << 10}
_TAIL = 4 << 20        # bytes; one load writes well under one MiB
_LONG_TAIL = 64 << 20  # bytes that are searched for the server's start


@dataclass(frozen=True)
class ServerLog:
    """A server's last start by its log: its settings (as far as they differ from the defaults) and its
    GPUs. Their free memory is what the last load found on them, else that of the server's start; `at` has
    the time of each, by the GPU's name."""

    settings: Mapping[str, str]
    gpus: tuple[Device, ...] = ()
    at: Mapping[str, str] = field(default_factory=dict)


def places(environ: Mapping[str, str], platform: str = sys.platform) -> list[str]:
    """The server's log file, if it is not a system service."""
    if platform == "win32":
        return [os.path.join(environ.get("LOCALAPPDATA", ""), "Ollama", "server.log")]
    return [os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".ollama", "logs", "server.log")]


class Log:
    """The server's log; for a load, the part that is written from now on."""

    def __init__(self, environ: Mapping[str, str], path: str | None = None) -> None:
        self.path = path or next((place for place in places(environ) if os.path.isfile(place)), None)
        self._start = os.path.getsize(self.path) if self.path and os.path.isfile(self.path) else 0
        self._since = int(time.time())
        self._environ = environ

    def server(self) -> ServerLog:
        """The last start of the server; empty if no readable log has it."""
        if self.path:
            text = self._tail(0, _LONG_TAIL)
        else:
            text = self._journal(["-n", "2000", "--grep",
                                  "server config|inference compute|starting llama-server|using device"])
        return started(text)

    def recent(self) -> bytes:
        """What it wrote last, of several loads."""
        return (self._tail(0, _TAIL) if self.path else self._journal(["-n", "4000"])).encode("utf-8", "replace")

    def offloaded(self) -> tuple[int, int] | None:
        """(layers on the GPU, all layers) of the last load since, None if no readable log has it."""
        found = _OFFLOADED.findall(self._text())
        return (int(found[-1][0]), int(found[-1][1])) if found else None

    def arguments(self) -> tuple[str, ...]:
        """The words of the last llama-server started since, () if no readable log has them."""
        found = _STARTED.findall(self._text())
        return tuple(_plain(found[-1]).split()[1:]) if found else ()

    def on_gpu(self) -> int:
        """Bytes on GPUs of the last load since: all buffers that llama-server logs, while /api/ps omits the
        first of two caches. 0 if unknown."""
        text = self._text()
        starts = [match.end() for match in _STARTED.finditer(text)]
        buffers = _BUFFER.findall(text, starts[-1] if starts else 0)
        return sum(round(float(size) * MiB) for name, size in buffers if _GPU_BUFFER.match(name))

    def _text(self) -> str:
        if self.path:
            return self._tail(self._start, _TAIL)
        return self._journal(["-n", "20000", f"--since=@{self._since}"])

    def _tail(self, start: int, most: int) -> str:
        """The file's bytes from an offset on, at most its last `most`."""
        try:
            with open(str(self.path), "rb") as stream:
                end = stream.seek(0, os.SEEK_END)
                # a log that was started anew is shorter
                stream.seek(max(start if end >= start else 0, end - most))
                return stream.read(most).decode("utf-8", "replace")
        except OSError:
            return ""

    def _journal(self, words: Sequence[str]) -> str:
        program = shutil.which("journalctl",
                               path=self._environ.get("PATH")) if sys.platform.startswith("linux") else ""
        if not program:
            return ""
        try:
            done = subprocess.run([program, "-u", "ollama", "-o", "cat", "--no-pager", "-q", *words],
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout[-_TAIL:].decode("utf-8", "replace")


def started(text: str) -> ServerLog:
    """The last "server config" line of a log and the GPUs named after it."""
    configs = list(_CONFIG.finditer(text))
    settings = {}
    if configs:
        for name, value in _SETTING.findall(configs[-1][1]):
            # unset variables are printed as their type's zero
            if value not in ("", "0", "false"):
                settings[name] = value
    start = configs[-1].start() if configs else 0
    found = [(gpu, line) for line in _COMPUTE.finditer(text, start) if (gpu := _gpu(line[1]))]
    at = {gpu.name: _time(text, line.start()) for gpu, line in found}
    gpus = {gpu.name: gpu for gpu, _ in found}
    bus = {gpu.pci_id: gpu.name for gpu, _ in found if gpu.pci_id}
    for name, free, when in _free(text, start, list(gpus), bus):
        gpus[name], at[name] = replace(gpus[name], free=min(gpus[name].total, free)), when
    return ServerLog(settings, tuple(gpus.values()), at)


def _free(text: str, start: int, names: Sequence[str], bus: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    """(GPU, bytes, time) of the free memory that each load found, before it took any. Ollama hides the other
    GPUs from a llama-server, whose first is CUDA0 then: the PCI address tells which it is."""
    loads = [match.start() for match in _STARTED.finditer(text, start)]
    for i, load in enumerate(loads):
        lines = list(_FREE.finditer(text, load, loads[i + 1] if i + 1 < len(loads) else len(text)))
        for line in lines:
            address = _BUS.search(line[0])
            name = bus.get(address[1].lower()) if address else None
            if name is None and not bus and len(lines) == len(names):
                name = line[1]
            if name in names:
                yield str(name), int(line[2]) * MiB, _time(text, load)


def _time(text: str, at: int) -> str:
    """The time of the line that has a position, "" if it has none."""
    found = _TIME.search(text, text.rfind("\n", 0, at) + 1, at)
    return found[1] if found else ""


def _gpu(line: str) -> Device | None:
    """A GPU of an "inference compute" line; sizes are rounded to 0.1, so 0.05 is subtracted from the free
    memory."""
    found = {name: _plain(value[1:-1] if value.startswith('"') else value)
             for name, value in _FIELD.findall(line)}
    library, total = found.get("library", ""), _size(found.get("total", ""))
    if library.lower() in ("", "cpu") or not total:
        return None
    free = _size(found.get("available", "")) or total
    unit = _UNITS.get(found.get("available", "").rpartition(" ")[2], MiB)
    capability = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", found.get("compute", ""))
    return Device(
        name=found.get("name") or f"{library}0", total=total, free=max(0, min(total, free - unit // 20)),
        description=found.get("description", ""), backend=canonical(library),
        kind="igpu" if found.get("type", "").lower() in ("igpu", "integrated") else "gpu",
        compute_capability=(int(capability[1]), int(capability[2])) if capability
        and canonical(library) == DEFAULT.name
        else None, pci_id=found.get("pci_id", "").lower() or None, source="Ollama's log")


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?) ?([KMGT]?i?B)", text)
    return int(float(match[1]) * _UNITS.get(match[2], 0)) if match else 0


def _plain(text: str) -> str:
    """Removes Go's escapes of quotes and backslashes."""
    return re.sub(r'\\(["\\])', r"\1", text)
