"""`autolayers check`: does the user's own build of llama.cpp allocate as predicted?

llama-server loads a tiny model of each architecture (bundled headers, with a hole in the file for
the weights). The buffer sizes in its log are compared with the prediction, and the server is ended.
Nothing is computed: there is no warmup. One model is also loaded with itself as its draft and with
an adapter, one with a projector (warmed up, for its compute buffer), and those with MTP blocks also
draft with them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

from ..api import estimate
from ..bundled import architectures, data, mtp, read
from ..diagnosis.log import LaunchLog, LogReader
from ..errors import LaunchRefused
from ..flags.parse import parse
from ..gguf import read_header
from ..quoting import printable
from ..records import dataclass, replace
from ..tables import listed
from .supervise import end_group, own_group
from .verify import compare, in_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..builds import Build
    from ..machine import Device

PATIENCE = 60.0  # seconds for one load
_TAIL = 1 << 14  # bytes at the end of a log that are searched for the reason of a failure
# What an older build says of a newer architecture, tokenizer or draft
_UNKNOWN = re.compile(
    rb"unknown model architecture|unknown (?:pre-tokenizer|tokenizer)|argument "
    rb'"--spec-type"'
)
_NOT_LOADED = re.compile(rb"error loading model")
# " E " marks an error in lines of builds since about b9014
_REASON = re.compile(rb"(?: E |GGML_ASSERT|error:)[^\n]*")
# launches of each model; those with layers on a device only if there is one
# the one with a draft and an adapter, the one with a projector
DRAFTED, SEEING = "llama-moe", "gemma3-dense"
# One and two sequences, with and without flash attention, all layers and two, the cache on the
# device and in RAM: what sizes depend on most
VARIANTS = (
    ("-ngl", "99", "-c", "1024", "-np", "1"),
    listed("-ngl 99 -c 2048 -np 2 -fa off -ub 64"),
    listed("-ngl 2 -c 4096 -np 4 -nkvo"),
)


@dataclass(frozen=True)
class Checked:
    """The result of one architecture. `parts`: of all launches, (part, device) -> bytes above the
    prediction (0: equal). `state`: "equal", "differs", "unknown" (to the build), "bound" (less than
    an upper bound) or "failed", with a `reason`."""

    name: str
    architecture: str
    state: str
    parts: tuple[tuple[str, str, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class _Job:
    """A model to load and its companions: `more` describes them, `files` are flags and their files'
    headers."""

    name: str
    more: str = ""
    drafts: bool = False  # with its MTP blocks, which a build that cannot load the file lacks
    files: tuple[tuple[str, bytes], ...] = ()
    # with llama.cpp's warmup, without which a projector's compute buffer is not allocated
    warm: bool = False


def check(
    program: str,
    devices: Sequence[Device],
    environ: Mapping[str, str],
    build: Build,
    names: Sequence[str] = (),
    quick: bool = False,
) -> Iterator[Checked]:
    """Load each bundled model (all, or those `names`) with `program`, two at a time, and compare;
    yield a Checked for each. `devices` as in --list-devices. `quick`: one launch of each instead
    of two or three."""
    # Without a device -ngl 2 and -nkvo change nothing
    variants = VARIANTS[:1] if quick else VARIANTS if devices else VARIANTS[:2]
    with (
        tempfile.TemporaryDirectory(prefix="autolayers-check-") as folder,
        # Loads wait for the disk and the start of a process more than for a core
        ThreadPoolExecutor(2) as pool,
    ):

        def one(job: _Job) -> Checked:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                # A directory of its own, removed after the load: files are large, if mostly holes
                path = _write(own, job.name.replace("/", "-"), data(job.name))
                added = [
                    word
                    for flag, header in job.files
                    for word in (flag, _write(own, flag.strip("-"), header))
                ]
                added += ["--spec-type", "draft-mtp"] * job.drafts
                launches = [(*VARIANTS[0], *added)] if job.more else variants
                result = _check_one(program, job, path, devices, environ, build, launches)
            if not job.more:
                return result
            return replace(
                result,
                name=f"{job.name} {job.more}",
                architecture=f"{result.architecture} {job.more}",
            )

        try:
            yield from pool.map(one, [*map(_Job, names or architectures()), *companions(names)])
        finally:
            pool.shutdown(cancel_futures=True)


def companions(names: Sequence[str] = ()) -> list[_Job]:
    """Return the launches with companions, of all models or those `names`."""
    drafted = (("-md", data(DRAFTED)), ("--lora", data("with/adapter")))
    seeing = (("--mmproj", data("with/projector")),)
    jobs = [
        _Job(DRAFTED, "with a draft and an adapter", files=drafted),
        _Job(SEEING, "with a projector", files=seeing, warm=True),
        *(_Job(name, "that drafts", drafts=True) for name in mtp()),
    ]
    return [job for job in jobs if not names or job.name in names]


def _check_one(
    program: str,
    job: _Job,
    path: str,
    devices: Sequence[Device],
    environ: Mapping[str, str],
    build: Build,
    variants: Sequence[Sequence[str]],
) -> Checked:
    name, model = job.name, read(job.name)
    parts: dict[tuple[str, str], int] = {}
    why = ""  # the prediction is an upper bound
    for variant in variants:
        # The flags that make the sizes depend only on the model: weights in their own
        # buffers, no warmup unless `warm`, and a verbose log
        plain = ["--override-kv", "tokenizer.ggml.model=str:none"]  # the vocabulary has only a size
        # Mapped weights have no buffer of their own in the log; newer builds call the switch -lm
        for flag in (("-lm", "none"), ("--no-mmap",)):
            if build.knows(flag[0]):
                plain += flag
                break
        plain += [
            flag
            for flag in ("--no-repack", "--no-warmup")[: 1 if job.warm else 2]
            if build.knows(flag)
        ]
        words = [*variant, *(plain + (["-lv", "4"] if build.buffers_need_trace else []))]
        params = parse(words, command=None).params
        try:
            # A refusal is a prediction too: the build must refuse the launch as well
            predicted = estimate(model, params, devices, build.rules.number, runtime=True)
        except LaunchRefused as refusal:
            if job.drafts:
                return Checked(name, model.architecture, "unknown")
            predicted = None
            refused = str(refusal)
        log, tail = load([program, "-m", path, *words], environ, os.path.dirname(path))
        # It ended before all buffers were there
        # Whether a log shows all buffers. With MTP blocks a token is decoded before the
        # server is ready, which fails on some machines after the sizes are logged.
        if not (log.ready or (log.loads and "compute (second)" in log.loads[0].buffers)):
            # Whether a log's end says that the build does not know the architecture
            if _UNKNOWN.search(tail) or (job.drafts and _NOT_LOADED.search(tail)):
                return Checked(name, model.architecture, "unknown")
            if predicted is None:
                continue  # refused, as predicted
            reasons = _REASON.findall(tail)
            text = (reasons[-1] if reasons else tail.strip().rpartition(b"\n")[2]).decode(
                "utf-8", "replace"
            )
            return Checked(
                name,
                model.architecture,
                "failed",
                reason=printable(" ".join(text.split()))[:200] or "it ended without a message",
            )
        if predicted is None:
            return Checked(
                name,
                model.architecture,
                "failed",
                reason=f"loads, but the prediction is a refusal: {refused}",
            )
        if not predicted.exact:
            why = "; ".join(predicted.warnings)
        for line in in_use(compare(log, predicted), predicted, len(devices)).lines:
            difference = line.difference
            if difference is None:
                continue
            key = line.part, line.device
            # The largest difference of all launches, in either direction
            parts[key] = max(parts.get(key, 0), 0 if line.equal else difference, key=abs)
    # "equal", "differs", or "bound" where an upper bound is nowhere exceeded
    sizes = parts.values()
    state = "bound" if why and max(sizes, default=0) <= 0 else "differs"
    state = state if any(sizes) else "equal"
    differences = tuple((*key, difference) for key, difference in parts.items())
    return Checked(name, model.architecture, state, differences, why if state == "bound" else "")


def load(words: Sequence[str], environ: Mapping[str, str], folder: str) -> tuple[LaunchLog, bytes]:
    """Start llama-server and end it when its model is loaded, or after PATIENCE; return (its log,
    the log's last bytes)."""
    # The user's LLAMA_ARG_* would change the launch
    quiet = {name: value for name, value in environ.items() if not name.startswith("LLAMA_")}
    reader, tail = LogReader(), b""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # Free once the socket is closed; a race for it would only fail one load
        port: int = taken.getsockname()[1]
    child = subprocess.Popen(
        [*words, "--host", "127.0.0.1", "--port", str(port)],
        cwd=folder,
        env=quiet,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        **own_group(),
    )
    assert child.stdout is not None
    # Ends the read below as well: the pipe closes with the last process of the group
    timer = threading.Timer(PATIENCE, end_group, (child,))
    timer.start()
    try:
        while not reader.launch.ready and (piece := os.read(child.stdout.fileno(), 1 << 16)):
            reader.feed(piece)
            tail = (tail + piece)[-_TAIL:]
        if not reader.launch.ready and child.wait(PATIENCE) < 0:
            tail += b"\nerror: ended by " + signal.Signals(-child.returncode).name.encode()
    finally:
        timer.cancel()
        end_group(child)
        child.wait()
        child.stdout.close()
    return reader.finish(), tail


def _write(folder: str, name: str, header: bytes) -> str:
    """Return the path of a new file with this header, and a hole for the weights."""
    path = os.path.join(folder, f"{name}.gguf")
    with open(path, "wb") as file:
        file.write(header)
    # `promised`: the size that the tensors' offsets need. A hole reads as zeros and takes no space
    os.truncate(path, read_header(path).files[0].promised)
    return path
