"""Ollama's log: the server's settings and GPUs, how it started llama-server, and what that
allocated.

    Log(os.environ).server()          # Server(settings={"OLLAMA_NUM_PARALLEL": "1"}, gpus=(...))

once, when the server starts:

    msg="server config" env="map[... OLLAMA_NUM_PARALLEL:1 ...]"

then one line for each GPU:

    msg="inference compute" id=0 library=CUDA compute=8.6 name=CUDA0 description="..." type=discrete
        total="12.0 GiB" available="11.5 GiB"

and for each load the command, with llama-server's own lines after it:

    msg="starting llama-server" cmd="/usr/lib/ollama/llama-server --model ... -c 8192 -np 2 ..."
    ...: using device CUDA0 (NVIDIA RTX A2000) (0000:01:00.0) - 11800 MiB free
    load_tensors: CUDA0 model buffer size = 4403.49 MiB

The lines are those of Ollama 0.33 (2026-08-21).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time

from ..backends import DEFAULT, canonical
from ..diagnosis.log import LaunchLog
from ..files import opened
from ..logs import LAUNCH, capability_of, fields, lines_with, pairs, plain, rows_of, size_of
from ..machine import Device
from ..records import dataclass, field, replace
from ..units import MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# e.g. "OLLAMA_NUM_PARALLEL:4" in Go's print of a map
_SETTING = re.compile(r"\b((?:OLLAMA|LLAMA_ARG)_[A-Z_]{1,60}):([^ \]]*)")
_TIME = re.compile(r"time=([-+:.\dTZ]{10,40})")
_BUS = re.compile(r"\(([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)\)", re.IGNORECASE)
# e.g. "CUDA0", "Vulkan1", "RPC0[host:port]"; not "CPU", "CPU_Mapped", "CUDA_Host"
_GPU_BUFFER = re.compile(r"(?!CPU)[A-Za-z]+\d+(?:\[.*\])?$")
_SERVER = rows_of("settings", "gpu", "started", "device")
_LOAD = (*LAUNCH, *rows_of("started"))
_TAIL = 4 << 20  # bytes; one load writes well under one MiB
_LONG_TAIL = 64 << 20  # bytes that are searched for the server's start


@dataclass(frozen=True)
class ServerLog:
    """A server's last start by its log: its settings (as far as they differ from the defaults) and
    its GPUs. Their free memory is what the last load found on them, otherwise that of the server's
    start; `at` has the time of each, by the GPU's name."""

    settings: Mapping[str, str]
    gpus: tuple[Device, ...] = ()
    at: Mapping[str, str] = field(default_factory=dict)


def places(environ: Mapping[str, str], platform: str = sys.platform) -> list[str]:
    """Return the server's log file, if it is not a system service."""
    if platform == "win32":
        return [os.path.join(environ.get("LOCALAPPDATA", ""), "Ollama", "server.log")]
    return [
        os.path.join(
            environ.get("HOME") or os.path.expanduser("~"), ".ollama", "logs", "server.log"
        )
    ]


class Log:
    """The server's log; for a load, the part that is written from now on."""

    def __init__(self, environ: Mapping[str, str], path: str | None = None) -> None:
        self.path = path or next(
            (place for place in places(environ) if os.path.isfile(place)), None
        )
        # Lines from here on are the next load's
        self._start = os.path.getsize(self.path) if self.path and os.path.isfile(self.path) else 0
        # The same for the journal, which has no offsets
        self._since = int(time.time())
        self._environ = environ

    def server(self) -> ServerLog:
        """Return the last start of the server; empty if no readable log has it."""
        if self.path:
            text = self._tail(0, _LONG_TAIL)
        else:
            text = self._journal(
                [
                    "-n",
                    "2000",
                    "--grep",
                    "server config|inference compute|starting llama-server|using device",
                ]
            )
        return started(text)

    def recent(self) -> bytes:
        """Return what it wrote last, of several loads."""
        return (self._tail(0, _TAIL) if self.path else self._journal(["-n", "4000"])).encode(
            "utf-8", "replace"
        )

    def offloaded(self) -> tuple[int, int] | None:
        """Return (layers on the GPU, all layers) of the last load since, None if no readable log
        has it."""
        return next(
            (load.offloaded for load in reversed(self._last()[1].loads) if load.offloaded), None
        )

    def arguments(self) -> tuple[str, ...]:
        """Return the words of the last llama-server started since, () if no readable log has
        them."""
        return self._last()[0]

    def on_gpu(self) -> int:
        """Return the bytes on GPUs of the last load since: all buffers that llama-server logs,
        while /api/ps omits the first of two caches. 0 if unknown."""
        buffers = [
            item
            for load in self._last()[1].loads
            for part in load.buffers.values()
            for item in part.items()
        ]
        return sum(
            round(size * MiB)
            for name, sizes in buffers
            if _GPU_BUFFER.match(name)
            for size in sizes
        )

    def _last(self) -> tuple[tuple[str, ...], LaunchLog]:
        """Return the words of the last llama-server started since, and what it said."""
        words: tuple[str, ...] = ()
        launch = LaunchLog()
        for line in lines_with(
            self._tail(self._start, _TAIL)
            if self.path
            else self._journal(["-n", "20000", f"--since=@{self._since}"]),
            _LOAD,
        ):
            for name, groups in fields(line, _LOAD):
                if name == "started":
                    # Another start: what came before belongs to an earlier load
                    words, launch = tuple(plain(groups["command"]).split()[1:]), LaunchLog()
                launch.take(name, groups)
        return words, launch

    def _tail(self, start: int, limit: int) -> str:
        """Return the file's bytes from an offset on, at most its last `limit`."""
        try:
            with opened(str(self.path)) as stream:
                end = stream.seek(0, os.SEEK_END)
                # a log that was started again is shorter
                stream.seek(max(start if end >= start else 0, end - limit))
                return stream.read(limit).decode("utf-8", "replace")
        except OSError:
            return ""

    def _journal(self, words: Sequence[str]) -> str:
        program = (
            shutil.which("journalctl", path=self._environ.get("PATH"))
            if sys.platform.startswith("linux")
            else ""
        )
        if not program:
            return ""
        try:
            done = subprocess.run(
                # -o cat: messages alone, without journald's own beginning of a line
                [program, "-u", "ollama", "-o", "cat", "--no-pager", "-q", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout[-_TAIL:].decode("utf-8", "replace")


def started(text: str) -> ServerLog:
    """Return the last "server config" line of a log, the GPUs named after it, and what the loads
    since found free."""
    settings: dict[str, str] = {}
    gpus: dict[str, Device] = {}
    at: dict[str, str] = {}
    loads: list[_Load] = []
    for line in lines_with(text, _SERVER):
        for name, groups in fields(line, _SERVER):
            if name == "settings":
                # The variables that are set, of a "server config" line. For the others it prints
                # the zero of their type.
                values = dict(_SETTING.findall(groups["map"]))
                settings = {
                    key: value for key, value in values.items() if value not in ("", "0", "false")
                }
                # The server started again: GPUs and loads of before do not count
                gpus, at, loads = {}, {}, []
            elif name == "gpu" and (gpu := _gpu(groups["fields"])):
                gpus[gpu.name], at[gpu.name] = gpu, _time(line)
            elif name == "started":
                loads.append(_Load(_time(line), []))
            elif name == "device" and loads:
                loads[-1].free.append((groups["name"], line, int(groups["mib"]) * MiB))
    # Set the free memory of the GPUs to what the loads found, and its time.
    # e.g. {"0000:01:00.0": "CUDA0"}
    bus = {gpu.pci_id: name for name, gpu in gpus.items() if gpu.pci_id}
    for load in loads:
        for name, free in _free_by_gpu(load, gpus, bus):
            gpus[name] = replace(gpus[name], free=min(gpus[name].total, free))
            at[name] = load.time
    return ServerLog(settings, tuple(gpus.values()), at)


@dataclass(frozen=True)
class _Load:
    """The time of a load, and (device, line, bytes free) of those it found before it took any
    memory."""

    time: str
    free: list[tuple[str, str, int]]


def _free_by_gpu(
    load: _Load, gpus: Mapping[str, Device], bus: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield (GPU, bytes free). Ollama hides the other GPUs from a llama-server, whose first is
    CUDA0 then: the PCI address tells which it is."""
    for device, line, free in load.free:
        address = _BUS.search(line)
        name = bus.get(address[1].lower()) if address else None
        # Without addresses names are safe only where no GPU was hidden
        if name is None and not bus and len(load.free) == len(gpus):
            name = device
        if name in gpus:
            yield str(name), free


def _time(line: str) -> str:
    """Return the time that a line begins with, "" if it has none."""
    match = _TIME.search(line)
    return match[1] if match else ""


def _gpu(line: str) -> Device | None:
    """Return a GPU of an "inference compute" line; sizes are rounded to 0.1, so 0.05 is subtracted
    from the free memory."""
    values = pairs(line)
    library, total = values.get("library", ""), size_of(values.get("total", ""))
    if library.lower() in ("", "cpu") or not total:
        return None
    free = size_of(values.get("available", "")) or total
    # "11.5 GiB" -> GiB, whose 20th part is 0.05
    unit = size_of("1 " + values.get("available", "").rpartition(" ")[2]) or MiB
    return Device(
        name=values.get("name") or f"{library}0",
        total=total,
        free=max(0, min(total, free - unit // 20)),
        description=values.get("description", ""),
        backend=canonical(library),
        kind="igpu" if values.get("type", "").lower() in ("igpu", "integrated") else "gpu",
        compute_capability=capability_of(values.get("compute", ""))
        if canonical(library) == DEFAULT.name
        else None,
        pci_id=values.get("pci_id", "").lower() or None,
        source="Ollama's log",
    )
