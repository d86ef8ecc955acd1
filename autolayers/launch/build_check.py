"""`autolayers check`: does the user's own build of llama.cpp allocate as predicted?

A tiny model of each architecture (bundled headers, the weights a hole in the file) is loaded by llama-server, the
buffer sizes of its log are compared with the prediction, and the server ended. Nothing is computed: there is no warmup.
One of them is also loaded with itself as its draft and with an adapter.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import tempfile

from ..api import estimate
from ..bundled import architectures, data, read
from ..errors import LaunchRefused
from ..flags.parse import parse
from ..gguf import read_header
from ..quoting import printable
from ..records import dataclass, replace
from .log import LogReader
from .supervise import end_group, own_group
from .verify import compare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..builds import Build
    from ..devices.device import Device
    from ..model import Model
    from .log import LaunchLog

PATIENCE = 60.0          # seconds for one load
_TAIL = 1 << 14          # bytes of the end of a log that are searched for the reason of a failure
_UNKNOWN = re.compile(rb"unknown model architecture|unknown (?:pre-tokenizer|tokenizer)")
_REASON = re.compile(rb"(?: E |GGML_ASSERT|error:)[^\n]*")
# Launches of each model; those with layers on a device only where there is one
COMPANIONS = "llama-moe"         # the one with a draft and an adapter
VARIANTS = (
    ("-ngl", "99", "-c", "1024", "-np", "1"),
    ("-ngl", "99", "-c", "2048", "-np", "2", "-fa", "off", "-ub", "64"),
    ("-ngl", "2", "-c", "4096", "-np", "4", "-nkvo"),
)


@dataclass(frozen=True)
class Checked:
    """What one architecture showed. `parts`: of all launches, (part, device) -> bytes above the prediction (0: equal).
    `state`: "equal", "differs", "unknown" (to the build), "bound" (less than an upper bound) or "failed",
    each for the `reason`."""

    name: str
    architecture: str
    state: str
    parts: tuple[tuple[str, str, int], ...] = ()
    reason: str = ""


def check(program: str, devices: Sequence[Device], environ: Mapping[str, str], build: Build,
          names: Sequence[str] = (), quick: bool = False) -> Iterator[Checked]:
    """Loads each bundled model (all, or those `names`) with `program`, two at a time, and compares; one Checked after
    the other. `devices` as --list-devices has them. `quick`: one launch of each instead of two or three."""
    from concurrent.futures import ThreadPoolExecutor

    variants = VARIANTS[:1] if quick else VARIANTS if devices else VARIANTS[:2]
    with tempfile.TemporaryDirectory(prefix="autolayers-check-") as folder, ThreadPoolExecutor(2) as pool:
        def one(name: str) -> Checked:
            path = os.path.join(folder, f"{name}.gguf")
            _write(path, name)
            try:
                return _check_one(program, name, path, devices, environ, build, variants)
            finally:
                os.unlink(path)

        def with_companions() -> Checked:
            path, draft, adapter = (os.path.join(folder, name)
                                    for name in (f"{COMPANIONS}.gguf", "draft.gguf", "adapter.gguf"))
            _write(path, COMPANIONS)
            _write(draft, COMPANIONS)
            with open(adapter, "wb") as out:
                out.write(_adapter(read(COMPANIONS)))
            variant = (*VARIANTS[0], "-md", draft, "--lora", adapter)
            checked = _check_one(program, COMPANIONS, path, devices, environ, build, (variant,))
            more = "with a draft and an adapter"
            return replace(checked, name=f"{COMPANIONS} {more}", architecture=f"{checked.architecture} {more}")

        try:
            yield from pool.map(one, names or architectures())
            if not names or COMPANIONS in names:
                yield with_companions()
        finally:
            pool.shutdown(cancel_futures=True)


def _check_one(program: str, name: str, path: str, devices: Sequence[Device], environ: Mapping[str, str], build: Build,
               variants: Sequence[Sequence[str]]) -> Checked:
    model = read(name)
    parts: dict[tuple[str, str], int] = {}
    why = ""                                 # the prediction is an upper bound
    for variant in variants:
        words = [*variant, *_plain(build)]
        params = parse(words, command=None).params
        try:
            predicted = estimate(model, params, devices, build.rules.number, runtime=True)
        except LaunchRefused as refusal:
            predicted = None
            refused = str(refusal)
        log, tail = load([program, "-m", path, *words], environ, os.path.dirname(path))
        if not log.ready:
            if _UNKNOWN.search(tail):
                return Checked(name, model.architecture, "unknown")
            if predicted is None:
                continue                     # refused, as predicted
            return Checked(name, model.architecture, "failed", reason=_reason(tail))
        if predicted is None:
            return Checked(name, model.architecture, "failed", reason=f"loads, though refused here: {refused}")
        if not predicted.exact:
            why = "; ".join(predicted.warnings)
        peak = predicted.runtime_peak or {}
        for line in compare(log, predicted).lines:
            more = line.difference
            if more is None:
                continue
            # A load keeps what measuring does not; where it grew by as much as predicted for use, it is equal too
            equal = line.equal or (line.part == "compute" and abs(more - peak.get(line.device, 0)) <= line.tolerance)
            key = line.part, line.device
            parts[key] = max(parts.get(key, 0), 0 if equal else more, key=abs)
    state = "differs" if any(parts.values()) else "equal"
    if why and all(more <= 0 for more in parts.values()):
        state = "bound" if state == "differs" else state
    found = tuple((*key, more) for key, more in parts.items())
    return Checked(name, model.architecture, state, found, why if state == "bound" else "")


def _adapter(model: Model) -> bytes:
    """A LoRA of rank 4, all zeros, for the queries of every layer."""
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    keys = [("general.type", 8, text("adapter")), ("general.architecture", 8, text(model.architecture)),
            ("adapter.type", 8, text("lora")), ("adapter.lora.alpha", 6, struct.pack("<f", 1.0))]
    queries = [info for name, info in model.tensors.items() if name.endswith(".attn_q.weight")]
    pairs = [pair for info in queries for pair in ((info.name + ".lora_a", info.ne[0], 4),
                                                   (info.name + ".lora_b", 4, info.ne[1]))]
    found = b"GGUF" + struct.pack("<IQQ", 3, len(pairs), len(keys))
    found += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in keys)
    offset = 0
    for name, *ne in pairs:
        found += text(name) + struct.pack("<IQQIQ", 2, *ne, 0, offset)      # two dimensions, f32
        offset += -(-4 * ne[0] * ne[1] // 32) * 32
    return found + bytes(-len(found) % 32 + offset)


def load(words: Sequence[str], environ: Mapping[str, str], folder: str) -> tuple[LaunchLog, bytes]:
    """Starts llama-server and ends it once its model is loaded, or after PATIENCE: (its log, the log's last bytes)."""
    import threading

    quiet = {name: value for name, value in environ.items() if not name.startswith("LLAMA_")}
    reader, tail = LogReader(), b""
    child = subprocess.Popen([*words, "--host", "127.0.0.1", "--port", str(_free_port())], cwd=folder, env=quiet,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
                             **own_group())
    assert child.stdout is not None
    timer = threading.Timer(PATIENCE, end_group, (child,))
    timer.start()
    try:
        while not reader.launch.ready and (piece := os.read(child.stdout.fileno(), 1 << 16)):
            reader.feed(piece)
            tail = (tail + piece)[-_TAIL:]
    finally:
        timer.cancel()
        end_group(child)
        child.wait()
        child.stdout.close()
    return reader.finish(), tail


def _plain(build: Build) -> list[str]:
    """Flags that leave the sizes to the model: weights in buffers of their own, no warmup; and a loud log."""
    words = ["--override-kv", "tokenizer.ggml.model=str:none"]      # of the vocabulary only the size is there
    for flag in (("-lm", "none"), ("--no-mmap",)):
        if build.knows(flag[0]):
            words += flag
            break
    words += [flag for flag in ("--no-repack", "--no-warmup") if build.knows(flag)]
    return words + (["-lv", "4"] if build.buffers_need_trace else [])


def _write(path: str, name: str) -> None:
    """The model's file: its header, and a hole for the weights."""
    header = data(name)
    with open(path, "wb") as file:
        file.write(header)
    promised = read_header(path).files[0].promised
    with open(path, "r+b") as file:
        file.truncate(promised)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _reason(tail: bytes) -> str:
    found = _REASON.findall(tail)
    text = (found[-1] if found else tail.strip().rpartition(b"\n")[2]).decode("utf-8", "replace")
    return printable(" ".join(text.split()))[:200] or "it ended without a word"
