"""explain(): a log in, a Diagnosis out, as text and as JSON."""

from __future__ import annotations

import os
from io import BytesIO
from itertools import pairwise

from ..builds import NEWEST, Build
from ..errors import NoLog, UsageError
from ..quoting import printable, shell
from ..records import dataclass
from ..units import MiB, human, mib
from .causes import CAUSES, Remedy, remedies_of
from .decide import Verdict, decide
from .facts import Facts
from .lines import lines, read
from .working import Asked, merged, working

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike
    from typing import Any, BinaryIO

    from ..machine import Device, Host
    from ..model import Model
    from .working import Launch

_WHAT = {"load": "loading weights", "cache": "allocating the KV cache", "compute": "allocating graph buffers",
         "run": "serving", "start": "starting"}
_TIMES = 3        # of a card's memory that one request has only where a flag did not do what it was meant for
_OLD = 2000       # builds, about four months
_WIDTH = 100      # characters of the line that names the cause


@dataclass(frozen=True)
class Diagnosis:
    """What a log shows. `others`: what it shows beside the cause; `figures`: (what, how much, of which line)."""

    verdict: Verdict
    facts: Facts
    remedies: tuple[Remedy, ...] = ()
    launch: Launch | None = None

    @property
    def cause(self) -> str:
        return self.verdict.cause

    @property
    def phase(self) -> str | None:
        return self.verdict.phase

    @property
    def device(self) -> str | None:
        return self.verdict.device

    @property
    def bytes(self) -> int | None:
        return self.verdict.bytes

    @property
    def fatal(self) -> bool:
        return self.verdict.fatal

    @property
    def evidence(self) -> tuple[int, ...]:
        return self.verdict.evidence

    @property
    def known(self) -> bool:
        """Whether the log explains anything."""
        return self.cause not in ("unknown", "not_in_log")

    @property
    def line(self) -> str:
        """The cause on one line."""
        return said(self.verdict, self.facts)

    def to_dict(self) -> dict[str, object]:
        """The --json document; sizes in bytes."""
        from .. import __version__

        return {
            "schema": 1, "autolayers": __version__, "cause": self.cause, "phase": self.phase, "device": self.device,
            "bytes": self.bytes, "fatal": self.fatal, "evidence": list(self.evidence), "line": self.line,
            "figures": {name: value for name, value, _ in self.figures() if isinstance(value, int)},
            "also": [{"cause": other.cause, "phase": other.phase, "device": other.device,
                      "evidence": list(other.evidence), "line": said(other, self.facts)}
                     for other in self.verdict.others],
            "remedies": [remedy.to_dict() for remedy in self.remedies],
            "launch": self.launch.to_dict() if self.launch else None,
        }

    def figures(self) -> list[tuple[str, int | str, str]]:
        """(name, bytes or text, a word on it)."""
        facts, verdict, found = self.facts, self.verdict, list[tuple[str, int | str, str]]()
        device = facts.devices.get(verdict.device or "")
        if (verdict.bytes and verdict.cause.startswith("oom")) or (verdict.cause == "buffer_limit" and verdict.bytes):
            found.append(("asked", verdict.bytes, f"line {verdict.evidence[0]}" if verdict.evidence else ""))
        if device is not None and device.free:
            found.append(("free", device.free, "before the load"))
        if verdict.device and (held := facts.held(verdict.device)):
            found.append(("held", held, "buffers that were allocated there before"))
        if device is not None and device.total:
            found.append(("total", device.total, device.description))
        if self.launch is not None and self.launch.predicted is not None and verdict.bytes:
            found.append(("predicted", self.launch.predicted, "of that part for the flags that were given"))
        if self.launch is not None and self.launch.header:
            found.append(("model", self.launch.header, "its bundled header stands for the file's: not exact"))
        if facts.build:
            old = facts.build < NEWEST - _OLD
            found.append(("build", f"b{facts.build}", f"b{NEWEST} is the newest known: some of it may be mended" if old
                          else ""))
        found += [("context", text, note) for text, note in _contexts(facts)]
        if facts.swap is not None:
            found.append(("swap", facts.swap, "free" if facts.swap else "none is free: what RAM lacks is refused"))
        if facts.shared:
            found.append(("shared", facts.shared, "its memory is the system's"))
        if facts.offloaded:
            found.append(("layers", "{} of {} on the GPU".format(*facts.offloaded), f"line {facts.offloaded[2]}"))
        if facts.splits and facts.splits[0] > 2 + 2 * len(facts.devices):
            found.append(("splits", f"{facts.splits[0]} of the graph", f"line {facts.splits[1]}"))
        return found

    def text(self) -> str:
        """The page, without colours; nothing in it can steer a terminal."""
        rows = [self.line, ""]
        for name, value, note in self.figures():
            size = human(value) if isinstance(value, int) else value
            rows.append(f"{name:<12}{size}{'   ' + note if note else ''}")
        for other in self.verdict.others:
            rows.append(f"{'also':<12}{said(other, self.facts)}")
        for remedy in self.remedies:
            flags = shell(remedy.flags)
            fits = {True: "fits: ", False: "does not fit yet: ", None: ""}[remedy.fits]
            rows.append(f"{'try':<12}{flags}{'   ' if flags else ''}{fits}{remedy.why}")
        if self.launch is not None:
            rows += ["", shell(["llama-server", *self.launch.words])]
        if self.evidence:
            rows.append(f"{'lines':<12}{', '.join(map(str, self.evidence))}")
        return "\n".join(map(printable, rows)) + "\n"


def explain(*logs: str | PathLike[str] | bytes | BinaryIO, words: Sequence[str] = (), model: Model | None = None,
            devices: Sequence[Device] | None = None, host: Host | None = None,
            own: Mapping[str, Any] | None = None, files: bool = True) -> Diagnosis:
    """Why the launch of this log failed or is slow.

    `logs`: files by name, open files or bytes; several are the parts of one. `words`: of the launch, after those
    of the command that the log may show; `model`, `devices`, `host`: what the launch that works is planned with, else
    what the log says; `files`: a model's file that the log names may be read. Raises NoLog for a log that cannot be
    read, UsageError for what is no log.
    """
    found, numbered = [], 0
    for log in logs:
        first, last, dropped = _read(log)
        part = lines(first, last, dropped)
        found += [type(line)(line.number + numbered, line.text, line.level) for line in part]
        numbered += first.count(b"\n") + last.count(b"\n") + dropped
    facts = Facts.of(found)
    facts.words = merged(facts.words, words)
    verdict = decide(found, facts)
    works = working(verdict, facts, Asked(model, own, tuple(devices) if devices is not None else None, host, files))
    launch, missing = (None, works) if isinstance(works, str) else (works, "")
    build = Build(facts.build) if facts.build else None
    remedies = [*remedies_of(verdict.cause, verdict.phase, build)]
    device = facts.devices.get(verdict.device or "")
    if verdict.cause == "oom_device" and device is not None and (verdict.bytes or 0) > _TIMES * device.total > 0:
        times = f"{(verdict.bytes or 0) / device.total:.0f} times"
        remedies.insert(0, Remedy((), f"{times} the card's memory in one buffer: -ot or -cmoe matched no tensor, or "
                                      "the context is not the intended one"))
    if launch is not None:
        flags = launch.changed or launch.words
        given = devices is not None or bool(own and (own.get("gpu") or own.get("machine")))
        remedies.insert(0, Remedy(tuple(flags), "planned for the machine that "
                                  + ("was given" if given else "the log shows"), "", launch.plan.fits))
    elif missing:
        remedies.append(Remedy((), missing))
    return Diagnosis(verdict, facts, tuple(remedies), launch)


def _read(log: object) -> tuple[bytes, bytes, int]:
    if isinstance(log, bytes):
        return read(BytesIO(log))
    if isinstance(log, (str, os.PathLike)):
        try:
            with open(log, "rb") as file:
                return read(file)
        except (OSError, ValueError) as error:
            raise NoLog(f"{os.fspath(log)}: {getattr(error, 'strerror', None) or error}") from None
    if hasattr(log, "read"):
        return read(log)  # type: ignore[arg-type]
    raise UsageError(f"a log is a file's name, an open file or bytes, not {log!r:.60}")


def _contexts(facts: Facts) -> Iterator[tuple[str, str]]:
    """A context that is smaller than was asked for, and why."""
    asked = next((int(value) for flag, value in pairwise(facts.words) if flag in ("-c", "--ctx-size")
                  and value.isdecimal() and len(value) < 10), 0)
    has = facts.values.get("n_ctx_seq") or facts.values.get("n_ctx_per_seq") or facts.values.get("n_ctx_slot")
    slots = facts.values.get("n_seq_max") or facts.values.get("n_slots")
    if facts.reduced:
        yield f"{facts.reduced[1]}", f"--fit made it smaller, from {facts.reduced[0]}"
    elif isinstance(has, int) and 0 < has < asked:
        shared = f"{slots} slots share it" if isinstance(slots, int) and slots > 1 else "the model was trained for less"
        yield f"{has} a slot", f"of the {asked} that -c asks for: {shared}"


# --- the line

def said(verdict: Verdict, facts: Facts) -> str:
    """What is said of a cause: at most 100 characters, nothing of the log's that could steer a terminal."""
    device = facts.devices.get(verdict.device or "")
    asked = f": {_size(verdict.bytes)} asked" if verdict.bytes else ""
    if verdict.cause in ("buffer_limit", "vram_spill") and verdict.bytes:
        asked = f" of {_size(verdict.bytes)}"
    left = ""
    if verdict.bytes and device is not None and device.free and verdict.phase != "run":
        held = facts.held(device.name)
        left = f", {_size(max(0, device.free - held))} left"
        if not held and verdict.phase != "load":       # what lay there is not in the log
            left = f" of {_size(device.free)} free at first"
    elif verdict.detail.get("left") and "gib" in verdict.detail:
        left = f", {verdict.detail['left'][:8]} GiB available"
    text = CAUSES[verdict.cause].line.format(
        device=verdict.device or "the GPU", what=_what(verdict), asked=asked, left=left, detail=_detail(verdict, facts))
    text = printable(" ".join(text.split()))
    return text if len(text) <= _WIDTH else text[:_WIDTH - 3] + "..."


def _what(verdict: Verdict) -> str:
    if verdict.cause == "oom_host" and verdict.phase == "run" and verdict.bytes and not verdict.fatal:
        return "keeping saved prompts"
    return _WHAT.get(verdict.phase or "", "starting")


def _size(size: int) -> str:
    return f"{size / MiB:.0f} MiB" if size >= MiB else mib(size)


def _detail(verdict: Verdict, facts: Facts) -> str:
    """What the sign says besides: an architecture, a flag, a file."""
    said, cause = verdict.detail, verdict.cause
    if cause in ("old_build", "bad_model") and "what" in said:
        since = first_build(said["what"])
        known = f", which b{since} knows" if since else ""
        return f": {said['what'][:40]}{known}"
    if "type" in said:
        return f": tensors of type {said['type']}"
    if "tensor" in said:
        return f": tensor {said['tensor'][:40]}"
    if cause == "bad_flag" and "flag" in said:
        return f": {said['flag'][:30]}" + (f", {said['why'][:50]}" if said.get("why") else "")
    if cause == "bad_file" and "magic" in said:
        return f": it begins with {said['magic'][:8]!r}" + {"vers": ", a pointer of Git LFS", "<!DO": ", a web page",
                                                           "<htm": ", a web page"}.get(said["magic"][:4], "")
    if said.get("part") == "experts":
        return ": a quarter of the weights or more is in RAM, as -ot, -ncmoe or --fit placed them"
    if said.get("part") == "cache":
        return ": the KV cache is in RAM (-nkvo)"
    if cause == "partial_offload" and facts.offloaded:
        return ": {} of {}".format(*facts.offloaded)
    if cause == "partial_offload" and verdict.bytes:
        return f", short by {_size(verdict.bytes)}"
    if said.get("why"):
        return f": {said['why'][:60]}"
    return ""


def first_build(architecture: str) -> int:
    """The first build of llama.cpp that knows an architecture, 0 where that is not known."""
    from ..model.architectures import NAMES
    from ..model.architectures import architecture as row

    return row(architecture).after + 1 if architecture in NAMES and row(architecture).after else 0
