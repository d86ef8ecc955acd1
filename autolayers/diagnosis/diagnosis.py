"""explain(): a log in, a Diagnosis out, as text and as JSON."""

from __future__ import annotations

import os
from io import BytesIO
from itertools import pairwise

from ..builds import NEWEST, Build
from ..errors import NoLog, UsageError
from ..quoting import printable, shell
from ..records import dataclass, replace
from ..units import MiB, human, mib
from .advice import ik_type, of
from .causes import CAUSES, Remedy, remedies_of
from .decide import Verdict, decide
from .facts import Facts
from .lines import lines, read
from .mended import Mended, mended
from .slow import Compared, compared
from .working import Inputs, merged, working

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike
    from typing import Any, BinaryIO

    from ..machine import Device, Host
    from ..model import Model
    from .working import Launch

_WHAT = {
    "load": "loading weights",
    "cache": "allocating the KV cache",
    "compute": "allocating graph buffers",
    "run": "serving",
    "start": "starting",
}
# of a card's memory that one request has only where a flag did not do what it was meant for
_TIMES = 3
_ON = (1, "enabled", "on", "true")  # of flash_attn, as contexts print it
_OLD = 2000  # builds, about four months
# characters of a refusal that stand behind the flag's name; a longer one is a figure
_REASON = 50
_WIDTH = 100  # characters of the line that names the cause


@dataclass(frozen=True)
class Diagnosis:
    """What a log shows. `others`: what it shows besides the cause; `figures`: (what, how much, from
    what line)."""

    verdict: Verdict
    facts: Facts
    remedies: tuple[Remedy, ...] = ()
    launch: Launch | None = None
    rates: Compared | None = None
    mended: Mended | None = None

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
            "schema": 1,
            "autolayers": __version__,
            "cause": self.cause,
            "phase": self.phase,
            "device": self.device,
            "bytes": self.bytes,
            "fatal": self.fatal,
            "evidence": list(self.evidence),
            "line": self.line,
            "figures": {name: value for name, value, _ in self.figures() if isinstance(value, int)},
            "also": [
                {
                    "cause": other.cause,
                    "phase": other.phase,
                    "device": other.device,
                    "evidence": list(other.evidence),
                    "line": said(other, self.facts),
                }
                for other in self.verdict.others
            ],
            "remedies": [remedy.to_dict() for remedy in self.remedies],
            "launch": self._launch(),
            "rates": self.rates.to_dict() if self.rates is not None else None,
        }

    def _launch(self) -> dict[str, object] | None:
        """The launch that works, planned or with other words."""
        if self.launch is not None:
            return self.launch.to_dict()
        return self.mended.to_dict(self.facts.build) if self.mended is not None else None

    def figures(self) -> list[tuple[str, int | str, str]]:
        """(name, bytes or text, a word on it)."""
        facts, verdict, figures = self.facts, self.verdict, list[tuple[str, int | str, str]]()
        device = facts.devices.get(verdict.device or "")
        # oom_device and oom_host
        if (verdict.bytes and verdict.cause.startswith("oom")) or (
            verdict.cause == "buffer_limit" and verdict.bytes
        ):
            figures.append(
                ("asked", verdict.bytes, f"line {verdict.evidence[0]}" if verdict.evidence else "")
            )
        if device is not None and device.free:
            figures.append(("free", device.free, "before the load"))
        if verdict.device and (held := facts.held(verdict.device)):
            figures.append(("held", held, "buffers that lie there"))
        if device is not None and device.total:
            figures.append(("total", device.total, device.description))
        if self.launch is not None and self.launch.predicted is not None and verdict.bytes:
            figures.append(
                ("predicted", self.launch.predicted, "of that part for the flags that were given")
            )
        if self.launch is not None and self.launch.header:
            figures.append(
                ("model", self.launch.header, "its bundled header stands for the file's: not exact")
            )
        if facts.build:
            # ik_llama.cpp counts its own builds
            old = not facts.ik and facts.build < NEWEST - _OLD
            figures.append(
                (
                    "build",
                    f"b{facts.build}",
                    f"b{NEWEST} is the newest known: some of it may be mended" if old else "",
                )
            )
        # The program's own words, e.g. "CUDA driver version
        # is insufficient for CUDA runtime version"
        why = verdict.detail.get("why", "").strip().removeprefix("error: ")
        # the line may quote the reason already
        if why and printable(why[:20]) not in self.line:
            figures.append(("said", why, f"line {verdict.evidence[0]}" if verdict.evidence else ""))
        figures += [("context", text, note) for text, note in _contexts(facts)]
        if facts.swap is not None:
            figures.append(
                (
                    "swap",
                    facts.swap,
                    "free" if facts.swap else "none is free: what RAM lacks is refused",
                )
            )
        if facts.shared:
            figures.append(("shared", facts.shared, "its memory is the system's"))
        if facts.offloaded:
            figures.append(
                (
                    "layers",
                    "{} of {} on the GPU".format(*facts.offloaded),
                    f"line {facts.offloaded[2]}",
                )
            )
        if self.rates is not None:
            figures.append(("speed", self.rates.text, ""))
            if self.rates.prompts is not None:
                figures.append(("prompts", self.rates.prompts.text, ""))
        # more than a split per device and the way back: the CPU computes in between
        if facts.splits and facts.splits[0] > 2 + 2 * len(facts.devices):
            figures.append(("splits", f"{facts.splits[0]} of the graph", f"line {facts.splits[1]}"))
        return figures

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
            # None: nothing was planned with it
            fits = {True: "fits: ", False: "does not fit yet: ", None: ""}[remedy.fits]
            rows.append(f"{'try':<12}{flags}{'   ' if flags else ''}{fits}{remedy.why}")
        works = self.launch or self.mended
        if works is not None:
            rows += ["", shell(["llama-server", *works.words])]
            # What is pasted into an issue must not give a key away
            if {"--api-key", "-hft", "--hf-token"} & {*self.facts.words}:
                rows.append(
                    f"{'without':<12}the command's key or token, which is not repeated "
                    f"here: give it again"
                )
        if self.evidence:
            rows.append(f"{'lines':<12}{', '.join(map(str, self.evidence))}")
        # A log is anybody's text: escape sequences in it stay visible
        return "\n".join(map(printable, rows)) + "\n"


def explain(
    *logs: str | PathLike[str] | bytes | BinaryIO,
    words: Sequence[str] = (),
    model: Model | None = None,
    devices: Sequence[Device] | None = None,
    host: Host | None = None,
    own: Mapping[str, Any] | None = None,
    files: bool = True,
) -> Diagnosis:
    """Why the launch of this log failed or is slow.

    `logs`: files by name, open files or bytes; several are the parts of one. `words`: of the
    launch, after those of the command that the log may show; `model`, `devices`, `host`: what the
    launch that works is planned with, otherwise what the log says; `files`: a model's file that the
    log names may be read. Raises NoLog for a log that cannot be read, UsageError for what is no
    log.
    """
    all_lines, numbered = [], 0
    for log in logs:
        first, last, dropped = _read(log)
        part = lines(first, last, dropped)
        all_lines += [type(line)(line.number + numbered, line.text, line.level) for line in part]
        # line numbers go on over several files
        numbered += first.count(b"\n") + last.count(b"\n") + dropped
    facts = Facts.of(all_lines)
    # given words count more than those of the log
    facts.words = merged(facts.words, words)
    verdict = decide(all_lines, facts)
    machine = Inputs(model, own, tuple(devices) if devices is not None else None, host, files)
    # A text is what is missing for a plan, "" that no plan helps
    works = working(verdict, facts, machine)
    launch, missing = (None, works) if isinstance(works, str) else (works, "")
    # Only where the log has the rate of an answer
    rates = compared(verdict, facts, machine, launch)
    if rates is not None:
        verdict, launch = _slow(verdict, rates), launch or rates.launch
    build = Build(facts.build) if facts.build else None
    remedies = [
        remedy
        for remedy in remedies_of(verdict.cause, verdict.phase, build)
        # Never what the launch has already
        if not (remedy.flags[:1] == ("-fa",) and facts.values.get("flash_attn") in _ON)
    ]
    for advice in of(verdict, facts):
        # an advice replaces the general remedy with the same flags
        replaced = {remedy.flags for remedy in advice.remedies} - {()}
        general = (
            []
            if advice.instead
            else [remedy for remedy in remedies if remedy.flags not in replaced]
        )
        remedies = [*(remedy for remedy in advice.remedies if _has_flag(remedy, build)), *general]
    device = facts.devices.get(verdict.device or "")
    if (
        verdict.cause == "oom_device"
        and device is not None
        and (verdict.bytes or 0) > _TIMES * device.total > 0
    ):
        # no card has that much: the flags did not do what was meant
        times = f"{(verdict.bytes or 0) / device.total:.0f} times"
        remedies.insert(
            0,
            Remedy(
                (),
                f"{times} the card's memory in one buffer: -ot or -cmoe matched no tensor, or the "
                "context is not the intended one",
            ),
        )
    if launch is not None:
        flags = launch.changed or launch.words
        given = devices is not None or bool(own and (own.get("gpu") or own.get("machine")))
        # What was planned has tried the general ones
        tried = {remedy.why for remedy in CAUSES[verdict.cause].remedies if remedy.flags}
        # Remedies with flags are in the planned launch, or were not needed
        if launch.plan.fits:
            remedies = [
                remedy for remedy in remedies if not remedy.flags and remedy.why not in tried
            ]
        planned = "planned for the machine that " + ("was given" if given else "the log shows")
        # the launch failed as it is, and a plan finds nothing to change
        if not launch.changed and not launch.dropped:
            planned = "nothing better is known than this launch, " + planned
        remedies.insert(0, Remedy(tuple(flags), planned, "", launch.plan.fits))
    elif missing:
        remedies.append(Remedy((), missing))
    remedies += rates.remedies() if rates is not None else ()
    # Other words help where no plan does: a busy port, a mistyped flag
    other = mended(verdict, facts, machine) if launch is None else None
    if other is not None:
        remedies = [remedy for remedy in remedies if not remedy.flags]
        remedies.insert(0, Remedy(other.changed, other.why + ", in the command below"))
    return Diagnosis(verdict, facts, tuple(remedies), launch, rates, other)


def _slow(verdict: Verdict, rates: Compared) -> Verdict:
    """A server that is well, and slower than the machine can be: by another launch, or than it is
    predicted."""
    if verdict.cause not in ("healthy", "not_in_log") or not (rates.slow or rates.launch):
        return verdict
    detail = {"part": "launch"} if rates.launch is not None else {}
    # Only its prompts are slow
    if not detail and not rates.answers.slow:
        detail = {"part": "prompts"}
    return replace(verdict, cause="slow", phase="run", device=None, detail=detail)


def _has_flag(remedy: Remedy, build: Build | None) -> bool:
    """Whether a build has the remedy's flag."""
    return (
        build is None
        or not remedy.flags
        or not remedy.flags[0].startswith("-")
        or build.knows(remedy.flags[0])
    )


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
    requested = next(
        (
            int(value)
            for flag, value in pairwise(facts.words)
            if flag in ("-c", "--ctx-size") and value.isdecimal() and len(value) < 10
        ),
        0,
    )
    # A slot's context by the names of three eras of the log
    n_ctx = (
        facts.values.get("n_ctx_seq")
        or facts.values.get("n_ctx_per_seq")
        or facts.values.get("n_ctx_slot")
    )
    slots = facts.values.get("n_seq_max") or facts.values.get("n_slots")
    if facts.reduced:
        yield f"{facts.reduced[1]}", f"--fit made it smaller, from {facts.reduced[0]}"
    elif isinstance(n_ctx, int) and 0 < n_ctx < requested:
        shared = (
            f"{slots} slots share it"
            if isinstance(slots, int) and slots > 1
            else "the model was trained for less"
        )
        yield f"{n_ctx} a slot", f"of the {requested} that -c asks for: {shared}"


# --- the line


def said(verdict: Verdict, facts: Facts) -> str:
    """What is said of a cause: at most 100 characters, nothing of the log's that could steer a
    terminal."""
    device = facts.devices.get(verdict.device or "")
    part, cause = verdict.detail.get("part", ""), CAUSES[verdict.cause]
    size_asked = f": {_size(verdict.bytes)} asked" if verdict.bytes else ""
    if (verdict.cause == "buffer_limit" or (part and not verdict.fatal)) and verdict.bytes:
        size_asked = f" of {_size(verdict.bytes)}"
    left = ""
    if verdict.bytes and device is not None and device.free and verdict.phase != "run":
        held = facts.held(device.name)
        # Free at the start, less the buffers that the log shows
        left = f", {_size(max(0, device.free - held))} left"
        if device.free - held >= verdict.bytes:  # other buffers that no line shows lay there
            left = f", {_size(device.free)} free before the load"
        elif not held and verdict.phase != "load":
            left = f" of {_size(device.free)} free at first"
    elif verdict.detail.get("left") and "gib" in verdict.detail:
        left = f", {verdict.detail['left'][:8]} GiB available"
    line, of_device = cause.lines.get(part, cause.line), verdict.device or "the GPU"
    # A card's name says more here than "CUDA0"
    if verdict.cause == "gpu_build" and device is not None and device.description:
        of_device = device.description[:40]
    held_ = _size(verdict.bytes) if verdict.bytes else "more than it has"
    free = _size(device.free) if device is not None and device.free else "less"

    def filled(detail: str, left: str) -> str:
        return printable(
            " ".join(
                line.format(
                    device=of_device,
                    what=_what(verdict),
                    asked=size_asked,
                    left=left,
                    detail=detail,
                    held=held_,
                    free=free,
                    backends=verdict.detail.get("backends", "")[:30],
                ).split()
            )
        )

    # Whole or not at all: a figure shows what has no room here
    tries = ((_detail(verdict, facts), left), (_detail(verdict, facts), ""), ("", left), ("", ""))
    return next(
        (text for detail, rest in tries if len(text := filled(detail, rest)) <= _WIDTH), cause.title
    )


def _what(verdict: Verdict) -> str:
    if (
        verdict.cause == "oom_host"
        and verdict.phase == "run"
        and verdict.bytes
        and not verdict.fatal
    ):
        return "keeping saved prompts"
    return _WHAT.get(verdict.phase or "", "starting")


def _size(size: int) -> str:
    return f"{size / MiB:.0f} MiB" if size >= MiB else mib(size)


# signs of a file that ends too early
_ENDS = ("not within the file bounds", "not within file bounds", "failed to seek for tensor")


def _detail(verdict: Verdict, facts: Facts) -> str:
    """What the sign says besides: an architecture, a flag, a file."""
    groups, cause = verdict.detail, verdict.cause
    if cause in ("old_build", "bad_model") and "what" in groups:
        since = _first_build(groups["what"])
        # e.g. ": qwen3next, which b7056 knows": the build to update to
        first_build = f", which b{since} knows" if since else ""
        return f": {groups['what'][:40]}{first_build}"
    if "type" in groups:
        return f": tensors of type {ik_type(groups['type']) or groups['type']}"
    if cause == "bad_file" and "tensor" in groups and groups["sign"] in _ENDS:
        return f": it ends before its tensor {groups['tensor'][:40]} does"
    if "tensor" in groups:
        return f": tensor {groups['tensor'][:40]}"
    if cause == "bad_flag" and "flag" in groups:
        why = groups.get("why", "").strip().removeprefix("error: ")
        return f": {groups['flag'][:30]}" + (f", {why}" if 0 < len(why) <= _REASON else "")
    if cause == "bad_file" and "magic" in groups:
        return f": it begins with {groups['magic'][:8]!r}" + {
            "vers": ", a pointer of Git LFS",
            "<!do": ", a web page",
            "<htm": ", a web page",
        }.get(groups["magic"][:4].lower(), "")
    if cause == "bad_file" and "idx" in groups:
        return ": this is not the first part of a split model"
    if cause == "bad_file" and "status" in groups:
        return f": its download was refused with status {groups['status']}"
    if cause == "missing_library" and "library" in groups:
        return f": {groups['library'][:40]}"
    if cause == "missing_library" and "symbol" in groups:
        return " or of another build"
    if cause == "fit_gave_up" and "flag" in groups:
        return f", because {groups['flag']} is given"
    if cause == "context_limit":
        return _limit(groups, facts)
    if cause == "partial_offload" and facts.offloaded:
        return ": {} of {}".format(*facts.offloaded)
    if cause == "partial_offload" and verdict.bytes:
        return f", short by {_size(verdict.bytes)}"
    if groups.get("why"):
        return f": {groups['why'].strip()}"
    return ""


def _limit(groups: dict[str, str], facts: Facts) -> str:
    """What a request took and what its slot has."""
    slot = (
        facts.values.get("n_ctx_slot")
        or facts.values.get("n_ctx_seq")
        or facts.values.get("n_ctx_per_seq")
    )
    n_ctx = groups.get("has") or (str(slot) if isinstance(slot, int) else "")
    if "asked" in groups and n_ctx:
        return f": {groups['asked']} tokens asked of a slot of {n_ctx}"
    if "lost" in groups:
        return f", {groups['lost']} tokens"
    return f" after {n_ctx} tokens" if "part" in groups and n_ctx else ""


def _first_build(architecture: str) -> int:
    """The first build of llama.cpp that knows an architecture, 0 where that is not known."""
    from ..model.architectures import NAMES
    from ..model.architectures import architecture as row

    return row(architecture).after + 1 if architecture in NAMES and row(architecture).after else 0
