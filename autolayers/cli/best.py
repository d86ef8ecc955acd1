"""`autolayers best`: which model of today to take for this machine."""

from __future__ import annotations

import os

from .. import __version__
from ..devices.given import NO_GPU
from ..errors import AutolayersError, DoesNotFit, UsageError
from ..flags.check import read
from ..output import emit_json, show
from ..parallel import in_processes
from ..planner.compare import best
from ..planner.compare.choose import wanted_ctx
from ..records import replace
from ..report.best import ranking_text
from ..report.table import Style
from ..request import Request
from .progress import Progress
from .words import other_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..bundled.published import Published


def main(words: list[str]) -> int:
    """Print the list and the command for the first; 5 if none fits."""
    arguments = read("best", words, os.environ)
    if arguments.positional or arguments.params.model:
        raise UsageError("best takes no model: autolayers choose compares files of one")
    job = best.JOBS[str(arguments.own.get("for") or "chat")]
    # What the user gives counts, the rest is the job's
    # The request; `--gpu none`, of a machine without one
    if str(arguments.own.get("gpu")).strip().lower() not in NO_GPU:
        asked = Request.of(arguments, os.environ)
    else:
        own = {name: value for name, value in arguments.own.items() if name != "gpu"}
        asked = Request.of(replace(arguments, own=own), os.environ, devices=[])
    request = job.asked(asked.said(), "workload" in arguments.own)
    models = best.candidates(job)

    def work(model: Published) -> best.BestRow:
        return best.take(model, request, job)

    with Progress(len(models), "planning ") as progress:
        answers = in_processes(work, models, done=progress.step)
    for answer in answers:
        if isinstance(answer, AutolayersError):
            raise answer
    rows = best.ordered(row for row in answers if isinstance(row, best.BestRow))
    taken = rows[0] if rows and rows[0].choice.fits else None
    command = (
        ["llama-server", *taken.words(), *taken.choice.flags, *other_words(arguments)]
        if taken
        else []
    )
    if arguments.own.get("format") == "json":
        whole = {
            "schema": 1,
            "autolayers": __version__,
            "for": job.name,
            "n_ctx": wanted_ctx(request),
            "take": taken.name if taken else None,
            "command": command,
            "models": [row.to_dict() for row in rows],
        }
        emit_json(whole)
    else:
        style = Style.here()
        show(ranking_text(job, rows, request, command, style))
    return 0 if taken else DoesNotFit.exit_code
