"""`autolayers run [own flags] COMMAND ...`: plan, add the plan's flags, start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

from ..engines import of_program
from ..errors import DoesNotFit, UsageError
from ..flags.check import read
from ..launch import cannot_start, forks, router
from ..launch import command as commands
from ..launch.attempts import Attempts
from ..launch.formats import plan_for, write
from ..launch.secrets import launcher_without_secrets, without_secrets
from ..launch.session import Session
from ..output import emit, say, say_all, show
from ..planner import Plan, plan_request
from ..quoting import command_line
from ..report.multi import of_models
from .help import help_of
from .words import warnings_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..flags.parse import Arguments
    from ..launch.command import WrappedCommand
    from ..launch.session import Planner


def main(argv: Sequence[str], planner: Planner | None = None) -> int:
    """Return the exit code of the program; 126 or 127 if it cannot be started."""
    # Only the words before the program are ours: `run --retry 2 llama-server --port 80`
    own = read("run", argv[: commands.own_end(argv)]).own
    if own.get("help"):
        show(help_of("run"))
        return 0
    command = commands.read(argv)
    environ = dict(os.environ)
    kind = own.get("format")
    for name in ("verify", "retry", "wait"):
        # A file that starts it elsewhere cannot be watched from here
        if kind and name in own:
            raise UsageError(f"--{name} starts a program and --format does not: give one of them")
    # e.g. koboldcpp, which knows none of llama-server's words
    program = of_program(command.program)
    if program.written_by.startswith("--format"):
        raise UsageError(
            f"{program.name} has its own flags: autolayers MODEL {program.written_by} writes them"
        )
    # A launch file may be for another machine, where the program is
    if own.get("backend") and not kind and not own.get("dry-run"):
        raise UsageError(
            "--backend: the program that is started has its own; with --format or --dry-run it "
            "says which one it is for"
        )
    # The launcher's first word, as `nice -n 5 llama-server` starts nice: before any time is spent
    # on planning
    first = command.launcher[0]
    if not kind and not own.get("dry-run") and not shutil.which(first):
        return cannot_start(first)
    # e.g. llama-server --version
    alone = commands.needs_no_plan(command)
    if alone and not kind:
        say(f"with {alone} {command.program} loads no model: nothing to plan")
        return _started(command, [], own, environ)
    # ik_llama.cpp with its own --fit: a plan would contradict it
    if not kind and (why := forks.places_itself(command, environ, own.get("engine", ""))):
        # Raise UsageError for flags that need a plan where there is none
        for name in ("verify", "retry", "wait"):
            if name in own:
                raise UsageError(f"--{name} needs a plan, and {why}")
        say(why)
        return _started(command, [], own, environ)
    # From here on the words that a plan is made for; the program still gets its own
    command, notes = forks.understood(command, environ, own.get("engine", ""))
    say_all(notes)
    # llama-server without a model serves a folder of them
    if not alone and (read_words := router.read_router(command, environ)) is not None:
        return _route(read_words, command, own, environ)
    # Everything that stays the same over several attempts: model, machine, build
    session = Session(command, own, environ, planner or plan_request)
    if kind:
        # The plan for the program that reads a launch file, and the words it adds
        # make is called twice for a program with other defaults: the last words count
        added: list[str] = []

        def make(arguments: Arguments) -> Plan:
            session.ask_for(arguments)
            plan, added[:] = session.plan()
            return plan

        plan, _ = plan_for(kind, session.arguments, make)
        emit(write(kind, plan, session.arguments, command, added, session.seen, session.files))
        return _say_warnings(plan)
    plan, added = session.plan()
    # A plan that does not fit is started all the same: llama.cpp has the last word
    code = _say_warnings(plan)
    if own.get("dry-run"):
        _print(command, added)
        return code
    retries, verify, wait = own.get("retry", 0), "verify" in own, "wait" in own
    # On a terminal somebody reads why the server died; a service has a journal for
    # `autolayers explain`
    watched = command.program.startswith("llama-server") and sys.stderr.isatty()
    if retries or verify or wait or watched:
        return Attempts(session, plan, added, retries, verify, wait).run()
    # Nothing to watch: the server takes this process's place, and gets its signals
    return _become(commands.complete(command, added), environ)


def _print(command: WrappedCommand, added: Sequence[str]) -> None:
    """Print the command, without secrets."""
    launcher, names = launcher_without_secrets(command)
    # The printed command is for a person or a file: keys stay in the environment
    words, of_words = without_secrets([*command.words, *added])
    for name in dict.fromkeys((*names, *of_words)):
        say(f"secret omitted from the output: set it in the environment as {name}")
    emit(command_line([*launcher, *words]) + "\n")


def _started(
    command: WrappedCommand, added: Sequence[str], own: Mapping[str, Any], environ: dict[str, str]
) -> int:
    """Start a command that nothing is planned for itself; with --dry-run it is printed."""
    if own.get("dry-run"):
        _print(command, added)
        return 0
    return _become(commands.complete(command, added), environ)


def _route(
    read: Arguments, command: WrappedCommand, own: Mapping[str, Any], environ: dict[str, str]
) -> int:
    """Start llama-server's router, with a preset of the plans for --models-dir."""
    kind = own.get("format")
    # There is no launch whose sizes could be compared, and no failure of this process
    for name in ("verify", "retry", "wait"):
        if name in own:
            raise UsageError(
                f"--{name} is for a command with a model: the router starts its servers later"
            )
    if kind not in (None, "preset"):
        raise UsageError(
            f"--format {kind} is for a command with a model; --format preset writes the router's"
        )
    if why := router.nothing_to_plan(read, command):
        if kind:
            raise UsageError(why)
        say(why)
        return _started(command, [], own, environ)
    routed = router.plan_router(read, command, own, environ)
    plans = list(routed.plans.values())
    say_all(of_models(plans, [warnings_of(plan) for plan in plans]))
    if kind:
        emit(routed.preset)
        return 0
    # The preset lies in the state directory, since the router reads a file
    path = router.keep(routed, str(read.value("--models-dir")), environ)
    return _started(command, ["--models-preset", path, *routed.words], own, environ)


def _say_warnings(plan: Plan) -> int:
    """Print a plan's warnings and, if it does not fit, what would; the exit code if nothing is
    started."""
    say_all(warnings_of(plan))
    return 0 if plan.fits else DoesNotFit.exit_code


def _become(words: list[str], environ: dict[str, str]) -> int:
    """exec: this process becomes the server. Windows has no exec: there the server is a child
    process, and this one waits."""
    # exec drops what is still in Python's buffers
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "posix":
            # Python ignores it, and exec keeps ignored signals ignored
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvpe(words[0], words, environ)
        return subprocess.call(words, env=environ)
    except OSError as error:
        return cannot_start(words[0], error)
