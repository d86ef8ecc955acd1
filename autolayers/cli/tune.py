"""`autolayers tune [own flags] llama-server -m MODEL ...`: measure the launches that predictions
cannot tell apart."""

from __future__ import annotations

import json
import os
import shutil

from .. import state
from ..devices.system import cpus
from ..engines import engine
from ..errors import AutolayersError, DoesNotFit, UsageError
from ..flags.check import read
from ..flags.write import to_words
from ..launch import calibrate, cannot_start
from ..launch import command as commands
from ..launch.bench import BenchFailed, Program, in_its_words, read_program, rest_in_its_words
from ..launch.calibrate import ratios, runs_of
from ..launch.session import Session
from ..launch.speed_rows import rows_of
from ..launch.tune import Bench, Outcome, TunedLaunch, quick, tune
from ..launch.tuned import key, machine_of, question_of
from ..output import emit, emit_json, say, say_all, show
from ..planner import Plan, plan_request
from ..planner.compare.rivals import Rival, of_each_class, rivals, room_in
from ..planner.problem import Problem
from ..quoting import command_line
from ..records import replace
from ..report.table import Style, stacked
from ..store import Tuned, keep, now
from .calibrate import answer, forget, from_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..launch.command import WrappedCommand

LIMIT = 300.0  # seconds
_QUICK_LIMIT = 120.0
_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Measure, keep and print the fastest launch; 1 if nothing could be measured, 5 if none
    fits."""
    end = commands.own_end(argv, "tune")
    own = read("tune", argv[:end]).own
    if "forget" in own:
        return forget()
    if "bench" in own:
        return from_file(own, argv[end:])
    # `tune --quick MODEL` is short for the whole command
    if "quick" in own and len(argv) == end + 1:
        argv = [*argv[:end], "llama-server", "-m", argv[end]]
    # --forget and --bench FILE need no program, so the command is read after them
    command = commands.read(argv, "tune")
    # Raise UsageError for what is no llama-server of this machine.
    # llama-bench is looked for next to it, and must see the same devices
    if command.container or command.bench or not command.program.startswith("llama-"):
        raise UsageError(
            "autolayers tune measures a llama-server of this machine: autolayers tune "
            "llama-server -m MODEL ...; for a container run it inside"
        )
    name, words = _bench_words(command, own)
    try:
        program = read_program(words, os.environ)
    # 126 or 127 where it cannot start, 1 where it is no llama-bench
    except BenchFailed as error:
        if shutil.which(name) is None:
            return cannot_start(name)
        raise AutolayersError(str(error)) from None
    session = Session(command, own, os.environ)
    # Before minutes of measuring: rates of one build say nothing about another
    _refuse_other_build(session, program, program.commit)
    problem = Problem(session.model, session.request)
    if "quick" in own:
        # One launch a class of placement: its ratio corrects all predictions of that class
        return _calibrated(session, program, of_each_class(problem), own)
    host = session.request.host
    # Logical cores, with SMT twice the physical ones: some machines are faster with them
    usable = cpus()
    more = (usable,) if host is not None and host.cores and usable > host.cores else ()
    # The plan's launch and those that predictions cannot tell from it, five at most
    return _fastest(session, program, rivals(problem, more), own)


def _calibrated(
    session: Session, program: Program, launches: list[Rival], own: dict[str, Any]
) -> int:
    """Measure one launch of each class for the predictions of every model."""
    outcome, shared = _measured(session, program, launches, own)
    devices = session.request.machine.devices
    # Without runs that are 20 times off, or whose repetitions differ
    rows = ratios(runs_of(outcome.measured, outcome.test, devices))
    if not rows:
        raise AutolayersError(
            "the measured speeds are not plausible: other programs, or another machine's clock"
        )
    calibrate.keep(rows, devices, os.environ)
    # stdout has the rows then
    if own.get("share") != "-":
        answer(rows, bool(own.get("json")))
    return _INTERRUPTED if outcome.interrupted else 0 if shared else AutolayersError.exit_code


def _fastest(session: Session, program: Program, launches: list[Rival], own: dict[str, Any]) -> int:
    """Measure the launches of one question, keep the fastest and print it."""
    # --share wants the rates themselves, whatever they decide
    if len(launches) == 1 and "share" not in own:
        say(f"nothing to measure: no other launch is predicted close to {launches[0].placement}")
        return _answer(session, launches[0], own)
    outcome, shared = _measured(session, program, launches, own)
    best = outcome.measured[0]
    _keep(session, best, own)
    # Keep the measured speeds for the predictions of every model.
    devices = session.request.machine.devices
    try:
        calibrate.keep(
            ratios(runs_of(outcome.measured, outcome.test, devices)), devices, os.environ
        )
    except AutolayersError as error:
        say(f"the speeds cannot be kept: {error}")
    code = _answer(session, best.rival, own, launches, outcome.measured)
    # Ctrl-C keeps what was measured, and still says that it was not all
    return _INTERRUPTED if outcome.interrupted else code if shared else AutolayersError.exit_code


def _measured(
    session: Session, program: Program, launches: list[Rival], own: dict[str, Any]
) -> tuple[Outcome, bool]:
    """Return what was measured, and whether --share wrote it. Raises AutolayersError, or
    KeyboardInterrupt, if nothing was."""
    # An older llama-bench lacks flags such as -ncmoe: the launch is measured without
    rest, lacks = _named(session.command, program, launches)
    if lacks:
        say(f"llama-bench has no {', '.join(lacks)}: measuring without")
    bench = _bench(session, program, rest)
    if "quick" in own:
        outcome = quick(launches, bench, own.get("limit", _QUICK_LIMIT))
    else:
        if launches[0].speed.workload.requests > 1:
            say(
                "llama-bench measures one request at a time: the cost of parallel requests is "
                "predicted"
            )
        outcome = tune(launches, bench, own.get("limit", LIMIT))
    if not outcome.measured:
        if outcome.interrupted:
            raise KeyboardInterrupt
        raise AutolayersError("no launch could be measured")
    # Again: some builds say their commit only in their results
    _refuse_other_build(session, program, outcome.measured[0].rates.commit)
    # Before anything else can fail: the measurement took minutes
    return outcome, _share(session, outcome, own.get("share"))


def _bench(session: Session, program: Program, rest: Sequence[str]) -> Bench:
    """Return what measures the launches: llama-bench, in the memory that it needs itself."""
    # It keeps logits for a whole micro-batch: a launch that just fits may not fit it
    missing = room_in(engine("llama-bench"), session.model, session.request)
    return Bench(program, session.model.size, os.environ, tuple(rest), missing)


def _bench_words(command: WrappedCommand, own: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the llama-bench that was given, or the one next to the llama-server, or in PATH;
    `llama bench` for `llama serve`."""
    # Its name for messages, and the words that start it
    if name := own.get("llama-bench"):
        return name, [shutil.which(name) or name]
    # The combined program: `llama serve` measures by `llama bench`
    if command.launcher[-1] == "serve":
        return command.launcher[-2], [*command.launcher[:-1], "bench"]
    bench = _bench_next_to(command.launcher[-1]) or shutil.which("llama-bench") or "llama-bench"
    # With what starts the server, too: `numactl --membind 0 llama-server`
    return bench, [*command.launcher[:-1], bench]


def _bench_next_to(program: str) -> str | None:
    """Return the llama-bench in the folder of a program, or of the file that it links to."""
    server = shutil.which(program)
    if not server:
        return None
    name = "llama-bench.exe" if os.name == "nt" else "llama-bench"
    # /usr/local/bin/llama-server is often a link into the build's bin/
    folders = map(os.path.dirname, (server, os.path.realpath(server)))
    near = [os.path.join(folder, name) for folder in folders]
    return next(filter(os.path.isfile, near), None)


def _named(
    command: WrappedCommand, program: Program, rivals: list[Rival]
) -> tuple[list[str], list[str]]:
    """Return (words that llama-bench shares with the launch, the launch's flags that llama-bench
    lacks)."""
    rest, missing = rest_in_its_words(command.words, program.flags)
    for rival in rivals:
        missing += in_its_words(rival.params, program.flags)[1]
    return rest, [name for name in dict.fromkeys(missing) if name]


def _refuse_other_build(session: Session, program: Program, commit: str) -> None:
    """Raise AutolayersError if llama-bench and llama-server are different builds."""
    server = session.build.commit
    # One may be longer than the other, e.g. 8337e4cd and 8337e4c
    if server and commit and not (server.startswith(commit) or commit.startswith(server)):
        raise AutolayersError(
            f"{program.name} is commit {commit}, llama-server {server}: name a llama-bench of the "
            "same build with --llama-bench"
        )


def _keep(session: Session, best: TunedLaunch, own: dict[str, Any]) -> None:
    tuned = Tuned(
        # A build without number and commit is known by what llama-bench says
        key(session.build) or best.rates.commit,
        machine_of(session.request.machine.devices),
        question_of(session.arguments.params, own),
        _plan_of(session, best.rival).flags,
        # More digits than five are noise
        float(f"{best.rates.prompt:.5g}"),
        float(f"{best.rates.token:.5g}"),
        now(),
    )
    # The digest of the model's header: a file that was moved or renamed keeps its answers
    name = session.digest
    try:
        if not name:
            raise AutolayersError("the model cannot be read again")
        keep([tuned], os.environ, name)
    except AutolayersError as error:
        say(f"the result cannot be kept: {error}")


def _share(session: Session, outcome: Outcome, name: str | None) -> bool:
    """Write the rows; False if the file cannot be written: the measurement is kept all the same."""
    # No --share
    if name is None:
        return True
    request = session.request
    rows = rows_of(
        outcome.measured, session.model, request.machine.devices, request.host, outcome.test
    )
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if name == "-":
        emit(text)
        return True
    try:
        state.write(name, text.encode())
        say(f"{len(rows)} rows written to {name}")
    except AutolayersError as error:
        say(str(error))
        return False
    return True


def _plan_of(session: Session, rival: Rival) -> Plan:
    """Return the launch of a rival as a plan."""
    # What the user wants of a launch stays; context, cache types and strategy are answered now
    own = {
        key: value
        for key, value in session.arguments.own.items()
        if key in ("margin", "budget", "workload")
    }
    arguments = replace(session.arguments, params=rival.params, own=own)
    return plan_request(session.model, session.request.asking(arguments))


def _answer(
    session: Session,
    rival: Rival,
    own: dict[str, Any],
    rivals: Sequence[Rival] = (),
    measured: Sequence[TunedLaunch] = (),
) -> int:
    """Print the launch, on stderr where stdout is for the rows of --share -."""
    plan = _plan_of(session, rival)
    added, notes = commands.additions(
        session.command, plan.flags, session.build, session.seen, session.files
    )
    say_all(notes)
    words = commands.complete(session.command, added)
    # The command would be no row
    if own.get("share") == "-":
        pass
    elif own.get("json"):
        emit_json(
            {
                "schema": 1,
                "command": list(words),
                "launches": [
                    {
                        "placement": launch.rival.placement,
                        "flags": to_words(replace(launch.rival.params, model=None)),
                        "seconds": round(launch.seconds, 3),
                        "runs": launch.runs,
                        "prompt_tokens_per_second": launch.rates.prompt,
                        "generation_tokens_per_second": launch.rates.token,
                        "predicted": launch.rival.speed.to_dict(),
                    }
                    for launch in measured
                ],
            }
        )
    else:
        style = Style.here()
        show(_table(measured, rivals, style) + style(command_line(words), "bold") + "\n")
    return 0 if plan.fits else DoesNotFit.exit_code


def _table(measured: Sequence[TunedLaunch], rivals: Sequence[Rival], style: Style) -> str:
    """Return one line per launch, fastest first: seconds of the workload, measured and
    predicted."""
    if not measured:
        return ""
    work = rivals[0].speed.workload
    rows: list[tuple[str, ...]] = []
    for launch in measured:
        speed = launch.rival.speed
        figures = (
            launch.seconds,
            speed.request,
            launch.rates.token,
            speed.generation,
            launch.rates.prompt,
            speed.prompt,
        )
        rows.append((launch.rival.placement, *(f"{value:.4g}" for value in figures)))
    # Launches that time did not suffice for, or that failed: predicted only
    rows += [
        (
            rival.placement,
            "",
            f"{rival.speed.request:.4g}",
            "",
            f"{rival.speed.generation:.4g}",
            "",
            f"{rival.speed.prompt:.4g}",
        )
        for rival in rivals
        if all(launch.rival is not rival for launch in measured)
    ]
    head = (
        f"launch ({work.prompt}+{work.generate}@{work.depth})",
        "s",
        "predicted",
        "tokens/s",
        "predicted",
        "prompts",
        "predicted",
    )
    return "\n".join(stacked(head, rows, style, marks={0: "bold"})) + "\n\n"
