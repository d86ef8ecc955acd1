"""`autolayers sweep MODEL...`: what if."""

from __future__ import annotations

import csv
import io
import os
import sys

from ..errors import DoesNotFit, UsageError
from ..flags.check import read
from ..output import emit, emit_json, say, say_all, show
from ..planner.compare.sweep import Case, Point, cases, sweep
from ..records import replace
from ..report.sweep import FIELDS, SweepBars, SweepTable, fields, title
from ..report.table import Style, wrap
from ..request import Request
from .model import load
from .progress import Progress
from .words import models_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..flags.parse import Arguments


def main(words: list[str]) -> int:
    """Print the sweep's table, bars, CSV or JSON."""
    arguments = read("sweep", words, os.environ)
    own, params = arguments.own, arguments.params
    names = models_named(arguments)
    if not names:
        raise UsageError("name a model: autolayers sweep MODEL.gguf; see autolayers sweep --help")
    # Two flags that set the same side of the table
    if "gpus" in own and "gpu" in own:
        raise UsageError("--gpus and --gpu both set the machines: give one of them")
    if "contexts" in own and params.n_ctx is not None:
        raise UsageError("--contexts and -c both set the contexts: give one of them")
    if "types" in own and params.cache_type_k is not None:
        raise UsageError("--types and -ctk both set the cache types: give one of them")
    # (): each model's own powers of two
    contexts = own.get("contexts") or ((params.n_ctx,) if params.n_ctx else ())
    machines = _machines(arguments)
    models = [load(name, arguments) for name in names]
    # Known beforehand, so that bars have one scale and progress has an end
    launches = cases(models, machines, contexts, own.get("types", ()))
    progress = Progress(len(launches))
    fits = False
    try:
        # Planned one by one while rows are printed: a long sweep shows its first row at once
        points = _watched(sweep(launches), progress)
        form = own.get("format")
        shown: Iterable[Point] = points
        if form == "json":
            # One document: it cannot be printed in parts
            shown = list(points)
            emit_json({"schema": 1, "points": [point.to_dict() for point in shown]})
        elif form == "csv":
            shown = _csv(points)
        else:
            shown = _print(points, launches if own.get("plot") else ())
        # sum and not any, which would stop printing at the first that fits
        fits = sum(point.plan is not None and point.plan.fits for point in shown) > 0
    finally:
        # On an error too: its line must not follow half a progress line
        progress.clear()
    return 0 if fits else DoesNotFit.exit_code


def _machines(arguments: Arguments) -> list[tuple[str, Request]]:
    """Return each machine's name and request, and say their notes once."""
    own = arguments.own
    # (None,): this machine
    specs = own.get("gpus") or (own.get("gpu"),)
    only = str(specs[0]) if len(specs) == 1 and "gpus" in own else ""
    # --gpus 8GiB,24GiB reads as two machines, and is one with two GPUs
    if "," in only:
        say(
            f"--gpus {only} is one machine with all of these; blanks separate machines: "
            f"--gpus '{only.replace(',', ' ')}'"
        )
    requests: list[tuple[str, Request]] = []
    notes: dict[str, None] = {}
    for spec in specs:
        request = Request.of(replace(arguments, own={**own, "gpu": spec}), os.environ)
        requests.append((spec or "this machine", request))
        # Every machine has notes about the same RAM and build
        notes |= dict.fromkeys(request.notes)
    say_all(notes)
    return requests


def _watched(points: Iterator[Point], progress: Progress) -> Iterator[Point]:
    """Yield the points, with a progress line while they are planned."""
    for _ in range(progress.count):
        progress.show()
        point = next(points)
        progress.clear()
        # Not by step, which would print over the row that follows
        progress.done += 1
        yield point


def _print(points: Iterator[Point], plotted: Sequence[Case]) -> Iterator[Point]:
    """Print each row as soon as it is known."""
    style = Style.here()
    report = SweepBars(style, plotted) if plotted else SweepTable(style)
    before: tuple[int, str] | None = None
    for point in points:
        # A title for each model and machine; two files may have the same name
        here = id(point.model), point.machine
        if here != before:
            show(
                "\n".join(
                    [*([""] if before else []), title(point, style), *filter(None, [report.head()])]
                )
                + "\n"
            )
            before = here
        show(report.row(point) + "\n")
        sys.stdout.flush()
        yield point
    show("\n" + "\n".join(wrap(report.notes, style.width)) + "\n")


def _csv(points: Iterator[Point]) -> Iterator[Point]:
    def line(cells: Iterable[object]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue()

    # csv quotes: a flag's regex may have a comma
    emit(line(FIELDS))
    for point in points:
        emit(line(fields(point)))
        # A row at once, for who watches a pipe
        sys.stdout.flush()
        yield point
