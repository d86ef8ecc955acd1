"""explain(): a log in, a Diagnosis out, as text and as JSON."""

from __future__ import annotations

import os
import re
from io import BytesIO
from itertools import pairwise

from ..builds import NEWEST, Build
from ..errors import NoLog, UsageError
from ..files import opened
from ..quoting import printable, shell
from ..records import dataclass, replace
from ..units import MiB, human, mib
from .advice import ik_type, of, vain
from .causes import CAUSES, CauseRemedy, remedies_of
from .decide import decide
from .facts import Facts
from .hits import Fired, Verdict
from .lines import Line, lines, read
from .mended import Mended, mended, with_flags
from .slow import SlowLaunch, compared
from .working import ChangedCommand, LogInputs, merged, working

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike
    from typing import Any, BinaryIO

    from ..machine import Device, Host
    from ..model import Model

    Figure = tuple[str, int | str, str]
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
_OLLAMA = {
    "-c": "num_ctx, OLLAMA_CONTEXT_LENGTH",
    "-ngl": "num_gpu",
    "-ub": "num_batch",
    "-np": "OLLAMA_NUM_PARALLEL=1",
    "-ctk": "OLLAMA_KV_CACHE_TYPE=q8_0",
    "-fa": "OLLAMA_FLASH_ATTENTION=1",
    "--cache-ram": "LLAMA_ARG_CACHE_RAM=0",
    "-fitt": "LLAMA_ARG_FIT_TARGET=2048 in the environment",
}
_NEXT = 8  # lines that still speak of the same event
_WIDTH = 100  # characters of the line that names the cause


@dataclass(frozen=True)
class Diagnosis:
    """What a log shows. `others`: what it shows besides the cause; `figures`: (what, how much, from
    what line)."""

    verdict: Verdict
    facts: Facts
    remedies: tuple[CauseRemedy, ...] = ()
    launch: ChangedCommand | None = None
    rates: SlowLaunch | None = None
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

    @property
    def trace(self) -> tuple[Fired, ...]:
        """The rules that applied, with their lines, and what counts instead."""
        return self.verdict.trace

    def to_dict(self, why: bool = False) -> dict[str, object]:
        """Return the --json document; sizes in bytes. `why`: with the trace."""
        from .. import __version__

        trace = {"trace": [step.to_dict() for step in self.trace]} if why else {}
        # the one that works, planned or with other words
        works = self.launch.to_dict() if self.launch is not None else None
        if works is None and self.mended is not None:
            works = self.mended.to_dict(self.facts.build)
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
            "launch": works,
            "rates": self.rates.to_dict() if self.rates is not None else None,
            **trace,
        }

    def figures(self) -> list[Figure]:
        """Return (name, bytes or text, a word on it) of each figure: of the device, the plan, the
        program, the machine and the work."""
        return [*self._figures()]

    def _figures(self) -> Iterator[Figure]:
        verdict, facts = self.verdict, self.facts
        held, device = facts.held(self.device or ""), facts.devices.get(self.device or "")
        first_line = f"line {self.evidence[0]}" if self.evidence else ""
        if verdict.bytes and verdict.cause in ("oom_device", "oom_host", "buffer_limit"):
            yield "asked", verdict.bytes, first_line
        only_free = device is not None and device.total == device.free
        if device is not None and device.free:
            # A log may say no more of a card
            of = f", of {device.description}" if only_free and device.description else ""
            yield "free", device.free, f"before the load{of}"
        if self.device and held:
            yield "held", held, "buffers that lie there"
        if device is not None and device.total and not only_free:
            sizes = facts.sizes.get(device.name, ())
            either = " or ".join(str(size // MiB) for size in sizes)
            unsure = f" of {either} MiB: --gpu says which" if either else ""
            yield "total", device.total, device.description + unsure
        if self.launch is not None and self.launch.predicted is not None and verdict.bytes:
            yield "predicted", self.launch.predicted, "of that part for the flags that were given"
        if self.launch is not None and self.launch.header:
            yield "model", self.launch.header, "its bundled header stands for the file's: not exact"
        if facts.build:
            # ik_llama.cpp counts its own builds
            old = not facts.ik and facts.build < NEWEST - _OLD
            note = f"b{NEWEST} is the newest known: some of it may be mended" if old else ""
            yield "build", f"b{facts.build}", note
        if "path" in verdict.detail and not facts.ready:
            yield "file", verdict.detail["path"].rpartition("/")[2], first_line
        # its reason in its own words, e.g. "CUDA driver version is insufficient for CUDA runtime
        # version"; the line may quote it already
        why = _why(verdict)
        if why and printable(why[:20]) not in self.line:
            yield "said", why, first_line
        yield from _contexts(facts)
        if facts.swap is not None:
            note = "free" if facts.swap else "none is free: what RAM lacks is refused"
            yield "swap", facts.swap, note
        if facts.shared:
            yield "shared", facts.shared, "its memory is the system's"
        if facts.offloaded:
            layers, of_all, line = facts.offloaded
            yield "layers", f"{layers} of {of_all} on the GPU", f"line {line}"
        if self.rates is not None:
            yield "speed", self.rates.text, ""
            if self.rates.prompts is not None:
                yield "prompts", self.rates.prompts.text, ""
        count, line = facts.splits or (0, 0)
        # more than a split per device and the way back: the CPU computes in between
        if count > 2 + 2 * len(facts.devices):
            yield "splits", f"{count} of the graph", f"line {line}"

    def text(self, why: bool = False) -> str:
        """Return the page, without colours; nothing in it can steer a terminal. `why`: with the
        trace."""
        rows = [self.line, ""]
        for name, value, note in self.figures():
            size = human(value) if isinstance(value, int) else value
            rows.append(f"{name:<12}{size}{'   ' + note if note else ''}")
        for other in self.verdict.others:
            rows.append(f"{'also':<12}{said(other, self.facts)}")
        works = self.launch or self.mended
        for remedy in self.remedies:
            flags = shell(remedy.flags)
            # None: nothing was planned with it
            fits = {True: "fits: ", False: "does not fit yet: ", None: ""}[remedy.fits]
            rows.append(f"{'try':<12}{flags}{'   ' if flags else ''}{fits}{remedy.why}")
            # that of the launch below stands there
            if remedy.whole and (works is None or remedy.whole != works.words):
                rows.append(f"{'':<12}{shell(['llama-server', *remedy.whole])}")
        if works is not None:
            rows += ["", shell(["llama-server", *works.words])]
        # What is pasted into an issue must not give a key away
        shown = works is not None or any(remedy.whole for remedy in self.remedies)
        if shown and {"--api-key", "-hft", "--hf-token"} & {*self.facts.words}:
            rows.append(
                f"{'without':<12}the command's key or token, which is not repeated "
                f"here: give it again"
            )
        if self.evidence:
            rows.append(f"{'lines':<12}{', '.join(map(str, self.evidence))}")
        rows += [f"{'why':<12}{step}" for step in self.trace if why]
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
    """Return why the launch of this log failed or is slow.

    `logs`: files by name, open files or bytes; several are the parts of one. `words`: of the
    launch, after those of the command that the log may show; `model`, `devices`, `host`: what the
    launch that works is planned with, otherwise what the log says; `files`: a model's file that the
    log names may be read. Raises NoLog for a log that cannot be read, UsageError for what is no
    log.
    """
    all_lines = _lines_of(logs)
    facts = Facts.of(all_lines)
    # given words count more than those of the log
    facts.words = merged(facts.words, words)
    verdict = decide(all_lines, facts)
    machine = LogInputs(model, own, tuple(devices) if devices is not None else None, host, files)
    # A text is what is missing for a plan, "" that no plan helps
    works = working(verdict, facts, machine)
    launch, missing = (None, works) if isinstance(works, str) else (works, "")
    # Only where the log has the rate of an answer
    rates = compared(verdict, facts, machine, launch)
    # a server that is well, and slower than the machine can be: by another launch, or than it is
    # predicted
    well = verdict.cause in ("healthy", "not_in_log")
    if rates is not None and well and (rates.slow or rates.launch):
        part = "launch" if rates.launch is not None else "" if rates.answers.slow else "prompts"
        step = Fired("rates are compared with the predicted ones", 0, "", "slow")
        for before in verdict.trace:
            before.overruled_by = before.overruled_by or step.rule
        verdict = replace(
            verdict,
            cause="slow",
            phase="run",
            device=None,
            detail={"part": part} if part else {},
            trace=(*verdict.trace, step),
        )
    if rates is not None:
        launch = launch or rates.launch
    remedies = _advised(verdict, facts)
    if launch is not None:
        is_given = devices is not None or bool(own and (own.get("gpu") or own.get("machine")))
        remedies = _with_launch(remedies, launch, verdict.cause, is_given)
    elif missing:
        remedies.append(CauseRemedy((), missing))
    remedies += rates.remedies() if rates is not None else ()
    # Other words help where no plan does: a busy port, a mistyped flag
    other = mended(verdict, facts, machine) if launch is None else None
    if other is not None:
        remedies = [remedy for remedy in remedies if not remedy.flags]
        why = other.why + ", in the command below"
        remedies.insert(0, CauseRemedy(other.changed, why, whole=other.words))
    path = facts.model or (model.path if model is not None else "")
    remedies = [_whole(remedy, facts, path) for remedy in remedies]
    return Diagnosis(verdict, facts, tuple(remedies), launch, rates, other)


def _whole(remedy: CauseRemedy, facts: Facts, path: str) -> CauseRemedy:
    """Return the remedy with the whole command, where the log shows the launch; Ollama's own is
    typed by nobody."""
    is_flag = remedy.flags and remedy.flags[0].startswith("-")
    # what its users set instead, in a Modelfile, a request or the environment
    if is_flag and facts.ollama and (setting := _OLLAMA.get(remedy.flags[0])):
        return replace(remedy, why=f"{remedy.why}; in Ollama {setting}")
    if not is_flag or remedy.whole or not facts.words or facts.ollama:
        return remedy
    return replace(remedy, whole=with_flags(facts.words, path, remedy.flags))


def _lines_of(logs: Sequence[object]) -> list[Line]:
    """Return the lines of the logs, whose numbers go on over several files."""
    all_lines: list[Line] = []
    numbered = 0
    for log in logs:
        if isinstance(log, (str, os.PathLike)):
            try:
                with opened(os.fspath(log)) as file:
                    first, last, dropped = read(file)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise NoLog(f"{os.fspath(log)}: {reason}") from None
        elif isinstance(log, bytes) or hasattr(log, "read"):
            source: Any = BytesIO(log) if isinstance(log, bytes) else log
            first, last, dropped = read(source)
        else:
            raise UsageError(f"a log is a file's name, an open file or bytes, not {log!r:.60}")
        for line in lines(first, last, dropped):
            all_lines.append(Line(line.number + numbered, line.text, line.level))
        numbered += first.count(b"\n") + last.count(b"\n") + dropped
    return all_lines


def _advised(verdict: Verdict, facts: Facts) -> list[CauseRemedy]:
    """Return what helps in general and on this machine, what is surer first."""
    build = Build(facts.build) if facts.build else None
    has_flash = facts.values.get("flash_attn") in _ON
    remedies = [
        remedy
        for remedy in remedies_of(verdict.cause, verdict.phase, build)
        # Never what the launch has already
        if not (has_flash and remedy.flags[:1] == ("-fa",))
    ]
    for advice in of(verdict, facts):
        # an advice replaces the general remedy with the same flags
        replaced = {remedy.flags for remedy in advice.remedies} - {()}
        general = [] if advice.instead else remedies
        remedies = [
            *(
                remedy
                for remedy in advice.remedies
                # a build without the flag would refuse it
                if not (remedy.flags and remedy.flags[0][0] == "-")
                or build is None
                or build.knows(remedy.flags[0])
            ),
            *(remedy for remedy in general if remedy.flags not in replaced),
        ]
    remedies = [remedy for remedy in remedies if not vain(remedy, verdict, facts)]
    device, size = facts.devices.get(verdict.device or ""), verdict.bytes or 0
    # what a buffer means that no card could hold: flags did not do what was meant
    if verdict.cause == "oom_device" and device and 0 < _TIMES * device.total < size:
        why = (
            f"{size / device.total:.0f} times the card's memory in one buffer: -ot or -cmoe "
            "matched no tensor, or the context is not the intended one"
        )
        remedies.insert(0, CauseRemedy((), why))
    return remedies


def _with_launch(
    remedies: Sequence[CauseRemedy], launch: ChangedCommand, cause: str, is_given: bool
) -> list[CauseRemedy]:
    """Return the planned launch before what else helps. `is_given`: the machine is, not the
    log's."""
    # What was planned has tried the general ones
    tried = {remedy.why for remedy in CAUSES[cause].remedies if remedy.flags}
    # Remedies with flags are in the planned launch, or were not needed
    if launch.plan.fits:
        remedies = [remedy for remedy in remedies if not remedy.flags and remedy.why not in tried]
    planned = "planned for the machine that " + ("was given" if is_given else "the log shows")
    # the launch failed as it is, and a plan finds nothing to change
    if not launch.changed and not launch.dropped:
        planned = "nothing better is known than this launch, " + planned
    flags = launch.changed or launch.words
    return [CauseRemedy(tuple(flags), planned, "", launch.plan.fits, launch.words), *remedies]


def _contexts(facts: Facts) -> Iterator[Figure]:
    """Yield a context that is smaller than was requested, and why."""
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
        yield "context", f"{facts.reduced[1]}", f"--fit made it smaller, from {facts.reduced[0]}"
    elif isinstance(n_ctx, int) and 0 < n_ctx < requested:
        shared = (
            f"{slots} slots share it"
            if isinstance(slots, int) and slots > 1
            else "the model was trained for less"
        )
        yield "context", f"{n_ctx} a slot", f"of the {requested} that -c asks for: {shared}"


# --- the line


def said(verdict: Verdict, facts: Facts) -> str:
    """Return what is said of a cause: at most 100 characters, nothing of the log's that could steer
    a terminal."""
    device = facts.devices.get(verdict.device or "")
    part, cause = verdict.detail.get("part", ""), CAUSES[verdict.cause]
    left, size_asked = _left(verdict, facts), ""
    if verdict.bytes:
        # The line has a verb of its own where it runs, or where a limit refused it
        runs = verdict.cause == "buffer_limit" or (part and not verdict.fatal)
        size = _size(verdict.bytes)
        size_asked = f" of {size}" if runs else f": {size} asked"
    line, of_device = cause.lines.get(part, cause.line), verdict.device or "the GPU"
    # A card's name says more here than "CUDA0"
    if verdict.cause == "gpu_build" and device is not None and device.description:
        of_device = device.description[:40]
    first = verdict.evidence[0] if verdict.evidence else 0
    # the next lines may say so too: what became of the request
    serving = any(0 < number <= first + _NEXT for number in (facts.ready, facts.measured))
    held_ = _size(verdict.bytes) if verdict.bytes else "more than it has"
    free = _size(device.free) if device is not None and device.free else "less"

    def filled(detail: str, left: str) -> str:
        return printable(
            " ".join(
                line.format(
                    device=of_device,
                    what=_what(verdict, serving),
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


def _left(verdict: Verdict, facts: Facts) -> str:
    """Return what was left of the device, or of RAM, as a part of the line."""
    device = facts.devices.get(verdict.device or "")
    if verdict.bytes and device is not None and device.free and verdict.phase != "run":
        held = facts.held(device.name)
        if device.free - held >= verdict.bytes:  # other buffers that no line shows lay there
            return f", {_size(device.free)} free before the load"
        if not held and verdict.phase != "load":
            return f" of {_size(device.free)} free at first"
        # Free at the start, less the buffers that the log shows
        return f", {_size(max(0, device.free - held))} left"
    if verdict.detail.get("left") and "gib" in verdict.detail:
        return f", {verdict.detail['left'][:8]} GiB available"
    return ""


def _what(verdict: Verdict, serving: bool) -> str:
    """Return what the program did. `serving`: a line says that it served before."""
    early = {"warmup": "warming up", "probe": "looking at its memory"}
    if verdict.detail.get("part", "") in early:
        return early[verdict.detail["part"]]
    if verdict.phase == "run" and not serving and not verdict.detail.get("left"):
        return "running" if verdict.cause == "oom_host" else "computing"
    goes_on = verdict.phase == "run" and not verdict.fatal
    if verdict.cause == "oom_host" and goes_on and verdict.bytes:
        return "keeping saved prompts"
    return _WHAT.get(verdict.phase or "", "starting")


def _size(size: int) -> str:
    return f"{size / MiB:.0f} MiB" if size >= MiB else mib(size)


# signs of a file that ends too early
_ENDS = ("not within the file bounds", "not within file bounds", "failed to seek for tensor")


def _detail(verdict: Verdict, facts: Facts) -> str:
    """Return what the sign says besides: an architecture, a flag, a file."""
    groups, cause = verdict.detail, verdict.cause
    if cause in ("old_build", "bad_model") and "what" in groups:
        from ..model.architectures import NAMES, architecture

        what = groups["what"]
        since = architecture(what).after if what in NAMES else 0
        # e.g. ": qwen3next, which b7056 knows": the build to update to
        return f": {what[:40]}" + (f", which b{since + 1} knows" if since else "")
    if "type" in groups:
        return f": tensors of type {ik_type(groups['type']) or groups['type']}"
    if "tensor" in groups:
        name = groups["tensor"][:40]
        is_cut = cause == "bad_file" and groups["sign"] in _ENDS
        return f": it ends before its tensor {name} does" if is_cut else f": tensor {name}"
    for name, figure, says in _DETAILS:
        needed = name == cause and (not figure or figure in groups)
        if needed and (text := says(groups, verdict, facts)):
            return str(text)
    is_said = groups.get("why") and cause != "context_limit"
    return f": {groups['why'].strip()}" if is_said else ""


def _why(verdict: Verdict) -> str:
    return verdict.detail.get("why", "").strip().removeprefix("error: ")


# of a file in a model's place
_BEGINNINGS = {"vers": ", a pointer of Git LFS", "<!do": ", a web page", "<htm": ", a web page"}
# (cause, figure of the sign that it needs, what is said of it): the first row that says something
# fmt: off
_DETAILS: tuple[tuple[str, str, Callable[[dict[str, str], Verdict, Facts], object]], ...] = (
    ("bad_flag", "flag", lambda has, verdict, _: f": {has['flag'][:30]}"
     + (f", {why}" if 0 < len(why := _why(verdict)) <= _REASON else "")),
    ("bad_file", "magic", lambda has, *_: f": it begins with {has['magic'][:8]!r}"
     + _BEGINNINGS.get(has["magic"][:4].lower(), "")),
    ("bad_file", "idx", lambda *_: ": this is not the first part of a split model"),
    ("bad_file", "path", lambda has, *_: (part := re.search(
        r"(\d{5})-of-(\d{5})\.gguf$", has["path"]))
     and f": part {int(part[1])} of {int(part[2])} is missing"),
    ("bad_file", "status", lambda has, *_:
     f": its download was refused with status {has['status']}"),
    ("missing_library", "library", lambda has, *_: f": {has['library'][:40]}"),
    ("missing_library", "symbol", lambda *_: " or of another build"),
    ("fit_gave_up", "", lambda has, _, facts: facts.reduced and f" to {facts.reduced[1]} tokens"
     + (f", then stopped at {has['flag']}" if has.get("flag") else "")),
    ("fit_gave_up", "flag", lambda has, *_: f", because {has['flag']} is given"),
    ("partial_offload", "", lambda _, __, facts: facts.offloaded
     and facts.offloaded[0] != facts.offloaded[1]
     and f": {facts.offloaded[0]} of {facts.offloaded[1]}"),
    ("partial_offload", "", lambda _, verdict, facts: not facts.offloaded and verdict.bytes
     and f", short by {_size(verdict.bytes)}"),
    # what a request took and what its slot has
    ("context_limit", "asked", lambda has, _, facts: (slot := _slot(has, facts))
     and f": {has['asked']} tokens asked of a slot of {slot}"),
    ("context_limit", "lost", lambda has, *_: f", {has['lost']} tokens"),
    ("context_limit", "part", lambda has, _, facts: (slot := _slot(has, facts))
     and f" after {slot} tokens"),
    # what a request took and what the micro-batch has
    ("batch_limit", "asked", lambda has, _, facts: f": {has['asked']} tokens"
     + (f", -ub {batch}" if (batch := has.get("has") or facts.number("n_ubatch")) else "")),
    ("prompt_cache", "left", lambda has, verdict, _: (limit := has["left"].partition(".")[0])
     and f": {_size(verdict.bytes or 0)} for one, of {limit} MiB"),
    ("wrong_port", "port", lambda has, *_: f": {has['port']}"),
)
# fmt: on


def _slot(has: dict[str, str], facts: Facts) -> str:
    """Return the context of a slot, by the names of three eras of the log; "" without."""
    keys = ("n_ctx_slot", "n_ctx_seq", "n_ctx_per_seq")
    slot = next((value for key in keys if (value := facts.values.get(key))), None)
    return has.get("has") or (str(slot) if isinstance(slot, int) else "")
