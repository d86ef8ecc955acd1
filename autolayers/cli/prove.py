"""`autolayers prove [own flags] llama-server -m MODEL ...`: does a launch hold when it is full?"""

from __future__ import annotations

import os
import shutil

from ..errors import DoesNotFit, UsageError
from ..flags.check import read
from ..launch import cannot_start
from ..launch import command as commands
from ..launch.prove import Prover
from ..launch.session import Session
from ..output import emit_json, say, say_all, show
from ..report.table import Style, stacked, wrap
from ..units import mib
from .progress import Progress
from .words import warnings_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_QUICK = 0.25  # of each slot's context
_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Start the planned launch, fill it, and print what it took; 0 only if it held, 5 if the plan
    does not fit, 1 if it did not hold, 130 after Ctrl-C."""
    own = read("prove", argv[: commands.own_end(argv, "prove")]).own
    command = commands.read(argv, "prove")
    if command.container or command.bench or not command.program.startswith("llama-server"):
        raise UsageError("prove fills a llama-server: autolayers prove llama-server -m MODEL ...")
    if not shutil.which(program := command.launcher[0]):
        return cannot_start(program)
    quick, form = "quick" in own, own.get("json")
    session = Session(command, {k: v for k, v in own.items() if k != "quick"}, os.environ)
    plan, added = session.plan()
    say_all(warnings_of(plan))
    if not plan.fits:
        say("nothing is started: the plan does not fit")
        return DoesNotFit.exit_code
    with Progress(what="starting") as progress:
        proof = Prover(session, plan, added, _QUICK if quick else 1.0, progress.now).prove()
    if form:
        emit_json({"schema": 1, **proof.to_dict()})
    else:
        style = Style.here()
        if proof.held:
            verdict = "held" + (", filled to a quarter" if quick else ", filled to the end")
        elif proof.interrupted:
            verdict = "interrupted: this is what it took so far"
        elif proof.failed:
            verdict = f"did not hold: {proof.failed}"
        elif proof.short:
            verdict = (
                f"did not hold: {', '.join(row.name for row in proof.short)} took more than it has"
            )
        else:
            verdict = "did not hold: the context was not filled"
        slots = f"{proof.slots} slot{'s' * (proof.slots != 1)}"
        lines = wrap(style(verdict, "bold"), style.width)
        lines += wrap(f"{proof.filled} of {proof.wanted} tokens in {slots}", style.width)
        rows = [
            (row.name, mib(row.predicted), _size(row.start), _size(row.end), _size(row.left))
            for row in proof.rows
        ]
        heads = ("MiB", "predicted", "at the start", "at the end", "left")
        show("\n".join([*lines, "", *stacked(heads, rows, style, (0,))]) + "\n")
    if proof.interrupted:
        return _INTERRUPTED
    return 0 if proof.held else 1


def _size(size: int | None) -> str:
    return "not known" if size is None else mib(size)
