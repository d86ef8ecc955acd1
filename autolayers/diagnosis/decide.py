"""Which of the signs in a log is the cause, where it happened and of how many bytes.

verdict = decide(lines, facts)
verdict.cause, verdict.phase, verdict.device, verdict.bytes, verdict.fatal, verdict.evidence
verdict.trace      # the rule that counted on each line

Signs are words: what they mean the rules say (sign_rules.py). Layers, buffers and backends show
what no line says.
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise, zip_longest

from ..backends import HOST
from ..backends.logs import SYSTEM_INFO
from ..backends.rpc import Rpc
from ..builds import Build
from ..records import replace
from ..units import MiB
from .hits import NEAR, SECRET_WORD, Findings, Hit, Verdict, bytes_of, first
from .sign_rules import GONE, JUDGING, TELLING
from .signs import HARMLESS, SIGNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .facts import Facts
    from .lines import Line
    from .sign_rules import SignRule

_HITS = 2000  # signs that are looked at: a log can repeat one refusal for every request
_STEPS = 60  # of a trace's beginning, and as many of its end
_MUCH = 0.25  # of the weights, in RAM: more than the embeddings
# Flags that want weights or the cache in RAM, by the part of the figure
_WANTED = {
    "experts": ("-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor"),
    "cache": ("-nkvo", "--no-kv-offload"),
}
_SEEN_IN_FIGURES = ("no_gpu", "partial_offload", "vram_spill")
_START = re.compile(
    r"srv +llama_server: initializing|llama_server: initializing|msg=\"starting "
    r"(?:llama|runner|go)"
    r"|main: build = |build: \d+ \(|build_info: b\d|llama_model_loader: loaded "
    r"meta data"
)
_STRUCK = re.compile(
    r"(?i)\berror\b|\bfailed\b|\bfatal\b|\bpanic\b|exception|abort|assert|Segmentation fault|core "
    r"dumped|terminate called|not enough space|premature|crashed|exit ?code[:=] ?[1-9]|"
    r"unexpectedly (?:stopped|exited)|"
    r"terminated: exit status|(?:exited|terminated) with (?:exit )?code (?!0\b)"
)
# What those who start a server say of its end: its reason is in its own log
_STARTER = re.compile(
    r"upstream (?:command |process )?exited (?:prematurely|unexpectedly)"
    r"|crashed without additional information|model runner has unexpectedly stopped"
    r"|exited before becoming healthy|Unknown error\. Try a different model|\(Exit code: \d"
    r"|model name=\S{0,60} failed to load|cmd\.Wait\(\) returned error|POST predict: .{0,120}EOF"
)


def decide(lines: Sequence[Line], facts: Facts) -> Verdict:
    """Return the cause, with what else the log shows behind it."""
    log = Findings(lines, facts)
    hits, figures = _judged(log), [*_by_figures(log)]
    # without words of a failure: "healthy", "unknown" or "not_in_log", or what is slow or unused
    verdict = _of_signs(log, hits, figures) if hits else _nothing(log)
    if not hits:
        # Nothing is wrong with what the command wants so
        wanted = {*facts.words}
        for figure in figures if not verdict.fatal else ():
            if not wanted & {*_WANTED.get(figure.detail.get("part", ""), ())}:
                verdict = figure
                break
        others = tuple(figure for figure in figures if figure is not verdict)
        verdict = replace(verdict, others=others)
    won, steps = verdict.trace[0], log.steps
    for step in (*(hit.step for hit in hits), *log.whole):
        if not step.overruled_by and step is not won and step.gives != verdict.cause:
            step.overruled_by = f"line {won.line}: {won.rule}" if won.line else won.rule
    # the first signs, and the cause's own rules, which come last
    cut = steps if len(steps) <= 2 * _STEPS else [*steps[:_STEPS], *steps[-_STEPS:]]
    return replace(verdict, trace=tuple(cut))


def _of_signs(log: Findings, hits: list[Hit], figures: list[Verdict]) -> Verdict:
    """Return what the signs show, or what the figures do where signs are light."""
    chosen = _chosen(log, hits)
    verdict = _verdict(chosen)
    # of something that no sign names
    if chosen.weight < 5 and (ended := _nothing(log)).fatal:
        verdict, figures[:0] = ended, [verdict]
    # a light sign, such as a warning, is less than what the figures show
    # The two change places, so that the sign is still named behind it
    elif chosen.weight < 4 and figures and figures[0].cause in _SEEN_IN_FIGURES:
        verdict, figures[0] = figures[0], verdict
    others: dict[str, Verdict] = {}
    for hit in sorted(hits, key=lambda hit: -hit.weight):
        # 9 is why something failed: with another cause named it is part of that one's event.
        # 2 and less say nothing by themselves
        if 2 < hit.weight < 9 and hit.cause != verdict.cause and hit.cause not in others:
            others[hit.cause] = _verdict(hit)
    for figure in figures:
        if figure.cause != verdict.cause:
            others.setdefault(figure.cause, figure)
    # what ended the launch is one cause: others of that kind followed from it
    if verdict.fatal:
        others = {name: other for name, other in others.items() if not other.fatal}
    return replace(verdict, others=tuple(others.values())[:6])


def _judged(log: Findings) -> list[Hit]:
    """Return the signs of the log that mean something, with the causes that they mean."""
    for at, line in enumerate(log.lines):
        lower = line.text.lower()
        # why pinned memory was refused, where that line does not say it
        # e.g. "failed to allocate 64 MiB of pinned memory" and the reason on the next line: it runs
        reason = at and re.search(r"pinned memory(?!: \w)", log.lines[at - 1].text)
        if reason or any(words in line.text for words in HARMLESS):
            continue
        for sign in SIGNS:
            groups = sign.match(line.text, lower)
            if groups is not None:
                log.hits[at] = Hit(sign, at, groups, log)
                # One sign a line: rows are in the order in which they count
                break
        if len(log.hits) > _HITS:
            break
    hits = [*log.hits.values()]
    _apply(JUDGING, hits)
    return [hit for hit in hits if hit.cause]


def _apply(rules: Sequence[SignRule], hits: Sequence[Hit]) -> None:
    """Let rules judge signs: of the rows of one field, which stand together, the first that holds
    counts."""
    for field, rows in groupby(rules, lambda row: row[0]):
        of_field = [*rows]
        for hit in hits:
            for _, causes, rule, gives, when in of_field:
                if (not causes or hit.cause in causes.split()) and (value := when(hit)):
                    hit.take(field, value if gives is None else gives, rule)
                    break


def _chosen(log: Findings, hits: Sequence[Hit]) -> Hit:
    """Return the heaviest sign of the last start that failed, of equals the first: later ones
    mostly follow from it."""
    # 8 and 9 are failures (sign.py)
    failures = [hit.at for hit in hits if hit.weight >= 8]
    begin = 0
    # a service's journal has several starts; an older failure may be mended by now
    for at, line in enumerate(log.lines if failures else ()):
        # A start writes several of these lines; what lies within one is one run
        if (
            at <= failures[-1]
            and _START.search(line.text)
            and not any(at - 40 <= failure < at for failure in failures)
        ):
            begin = at
    chosen = max((hit for hit in hits if hit.at >= begin), key=lambda hit: hit.weight)
    for hit in hits:
        if hit.at < begin:
            hit.step.overruled_by = f"the later start in line {log.lines[begin].number}"
        elif hit is not chosen:
            than = "heavier" if hit.weight < chosen.weight else "first of equal weight"
            hit.step.overruled_by = f"line {chosen.line.number}: {than}"
    return chosen


def _verdict(hit: Hit) -> Verdict:
    """Return the cause that a sign shows, with its phase, device, bytes and evidence."""
    if hit.verdict is not None:
        return hit.verdict
    # a driver refuses one buffer with the words of full memory, too
    same = (hit.cause, "oom_device") if hit.cause == "buffer_limit" else (hit.cause,)
    hit.near = [other for other in hit.around(0, NEAR + 1) if other.cause in same]
    hit.after = hit.log.lines[hit.at : hit.near[-1].at + NEAR]
    hit.bytes = bytes_of(hit.near)
    _apply(TELLING, [hit])
    hit.verdict = Verdict(
        hit.cause,
        hit.phase,
        hit.device,
        hit.bytes,
        hit.fatal,
        # Lines of one event, each once: Ollama's line and its msg= have one number
        tuple(dict.fromkeys(other.line.number for other in (hit.near if not hit.alone else [hit])))[
            :8
        ],
        {**hit.detail, "sign": hit.word},
        trace=(hit.step,),
    )
    return hit.verdict


# --- logs in which no line says what is wrong


def _by_figures(log: Findings) -> Iterator[Verdict]:
    """Yield what layers, buffers, splits and backends tell that no line says, the most certain
    first."""
    facts, loaded = log.facts, log.loaded
    layers, of, line = facts.offloaded or (0, 0, 0)
    weights, cache = facts.share_of_host("model"), facts.share_of_host("context")
    buffers = {name for load in facts.launch.loads for name in load.buffers.get("model", ())}
    on_host = buffers and all(facts.launch.device_of(name) == "Host" for name in buffers)
    # -ngl of an old build, which then meant none, though there is a GPU: since --fit the default is
    # all layers that fit
    left_out = (
        facts.words
        and facts.launch.free
        and not facts.offloaded
        and not {"-ngl", "--gpu-layers", "--n-gpu-layers"} & {*facts.words}
        and not Build(facts.build).knows("--fit")
    )
    # the line of --list-devices after which no device comes
    none = next(
        (
            row.number
            for row, after in zip_longest(log.lines, log.lines[1:])
            if row.text.strip() == "Available devices:"
            and not (after and re.match(r"\s*[A-Za-z]\w{1,11}: ", after.text))
        ),
        0,
    )
    alone = _cpu_alone(log, loaded)
    # fmt: off
    rows = (
        # "offloaded N/N layers to GPU" is also printed by a build without a GPU: buffers tell
        ("the weights are all in RAM", "no_gpu", "start", "", line, layers and on_host),
        ("-ngl is left out", "partial_offload", "load", "", 0, left_out),
        ("layers are in RAM", "partial_offload", "load", "", line, 0 < layers < of),
        ("weights are in RAM", "partial_offload", "load", "experts", line,
         layers and weights > _MUCH),
        # -nkvo, or a backend that cannot hold the cache
        ("the cache is in RAM", "partial_offload", "start", "cache", line, layers and cache == 1),
        ("--list-devices lists none", "no_gpu", "start", "", none, none),
        ("the CPU's backend is alone", "no_gpu", "start", "backends" if loaded else "", alone,
         alone),
    )
    # fmt: on
    for name, cause, phase, part, shown, holds in rows:
        if holds:
            detail = {"part": part} if part else {}
            if part == "backends":
                detail["backends"] = " and ".join(dict.fromkeys(name for _, name in loaded))
            device = HOST if cause == "partial_offload" else None
            yield log.seen(name, Verdict(cause, phase, device, None, False, (shown,), detail))
            break
    # An operation in each layer that the GPU does not have, where neither the weights nor the cache
    # are in RAM: layers there make many splits by themselves
    count, line = facts.splits or (0, 0)
    if count >= 100 and max(weights, cache) <= _MUCH and not 0 < layers < of:
        device = facts.gpu() or None
        verdict = Verdict("op_unsupported", "start", device, None, False, (line,))
        yield log.seen("the graph is cut into many pieces", verdict)
    serves = facts.ready or facts.measured
    for name, device_ in facts.devices.items():
        held = facts.held(name)
        # Windows' driver moves to system memory without a
        # line; 64 MiB for rounding and other buffers
        if device_.free and held > device_.free + 64 * MiB and serves:
            verdict = Verdict("vram_spill", "run", name, held, False, (serves,))
            yield log.seen("the device holds more than was free", verdict)
            return


def _cpu_alone(log: Findings, loaded: list[tuple[int, str]]) -> int:
    """Return the line that shows that the program has the CPU's backend and no other, 0 without, or
    where no GPU was wanted."""
    layers = ("-ngl", "--n-gpu-layers", "--gpu-layers", "-dev", "--device")
    if any(a in layers and b in ("0", "none") for a, b in pairwise(log.facts.words)):
        return 0
    if loaded and {name for _, name in loaded} <= {HOST, Rpc.name, "BLAS"}:
        return loaded[-1][0]
    # e.g. "system_info: n_threads = 8 / 16 | CPU : SSE3
    # = 1 | ...": a GPU's backend stands before CPU
    for line in log.lines:
        text = line.text
        if (text.startswith("system_info:") and "| CPU :" in text) or re.match(
            r"system_info: n_threads.{0,60}\| CPU : ", text
        ):
            is_first = re.search(r"\d \| CPU :", text) and not SYSTEM_INFO.search(text)
            return line.number if is_first and log.facts.words else 0
    return 0


def _nothing(log: Findings) -> Verdict:
    """Return "healthy" for a server without an error, "unknown" for an error that is not known,
    otherwise that the failure is not in these lines."""
    ready = log.facts.ready
    struck = [
        line
        for line in log.lines
        if (line.level in ("E", "F") or _STRUCK.search(line.text))
        and not any(words in line.text for words in HARMLESS)
    ]
    # What was struck before it served is over
    if struck and not (ready and struck[-1].number < ready):
        said = struck[0].text.strip()[:160]
        # a key or a token may stand in a line of any form
        detail = {} if SECRET_WORD.search(said) else {"why": said}
        detail |= {"part": "upstream"} if first(_STARTER, struck) else {}
        ended = bool(first(GONE, struck))
        verdict = Verdict("unknown", None, None, None, ended, (struck[0].number,), detail)
        return log.seen("a line that no sign knows says that something failed", verdict)
    if ready:
        verdict = Verdict("healthy", "start", None, None, False, (ready,))
        return log.seen("it serves, and no line after that says that something failed", verdict)
    return log.seen("no line says that something failed", Verdict("not_in_log", "start"))
