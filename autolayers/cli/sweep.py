"""`autolayers sweep MODEL...`: what if."""

from __future__ import annotations

import csv
import io
import json
import os
import sys

from ..errors import DoesNotFit, UsageError
from ..flags.check import read
from ..output import emit, say, show
from ..planner.compare.sweep import cases, sweep
from ..records import replace
from ..report.sweep import FIELDS, SweepBars, SweepTable, fields, title
from ..report.table import Style, wrap
from ..request import Request
from .model import load
from .progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..planner.compare.sweep import Case, Point


def main(words: list[str]) -> int:
    """Prints the sweep's table, bars, CSV or JSON."""
    arguments = read("sweep", words, os.environ)
    own, params = arguments.own, arguments.params
    names = list(arguments.positional) or [name for name in (params.model,) if name]
    if not names:
        raise UsageError("name a model: autolayers sweep MODEL.gguf; see autolayers sweep --help")
    if "gpus" in own and "gpu" in own:
        raise UsageError("--gpus and --gpu both set the machines: give one of them")
    if "contexts" in own and params.n_ctx is not None:
        raise UsageError("--contexts and -c both set the contexts: give one of them")
    if "types" in own and params.cache_type_k is not None:
        raise UsageError("--types and -ctk both set the cache types: give one of them")
    contexts = own.get("contexts") or ((params.n_ctx,) if params.n_ctx else ())
    specs = own.get("gpus") or (own.get("gpu"),)
    if len(specs) == 1 and "," in (spec := str(specs[0])) and "gpus" in own:
        say(
            f"--gpus {spec} is one machine with all of these; blanks separate machines: "
            f"--gpus '{spec.replace(',', ' ')}'"
        )
    requests = [
        Request.of(replace(arguments, own={**own, "gpu": spec}), os.environ) for spec in specs
    ]
    for note in dict.fromkeys(note for request in requests for note in request.notes):
        say(note)
    named = [
        (spec or "this machine", request) for spec, request in zip(specs, requests, strict=True)
    ]
    models = [load(name, arguments) for name in names]
    asked = cases(models, named, contexts, own.get("types", ()))
    counted = Progress(len(asked))
    fits = False
    try:
        points = _watched(sweep(asked), counted)
        if own.get("format") == "json":
            found = list(points)
            fits = _any(found)
            emit(
                json.dumps({"schema": 1, "points": [point.to_dict() for point in found]}, indent=1)
                + "\n"
            )
        elif own.get("format") == "csv":
            fits = _any(_csv(points))
        else:
            fits = _any(_print(points, asked if own.get("plot") else ()))
    finally:
        counted.clear()
    return 0 if fits else DoesNotFit.exit_code


def _watched(points: Iterator[Point], progress: Progress) -> Iterator[Point]:
    """The points, with a progress line while they are planned."""
    for _ in range(progress.count):
        progress.show()
        point = next(points)
        progress.clear()
        progress.done += 1
        yield point


def _any(points: Iterable[Point]) -> bool:
    """Whether any of them fits; consumes all of them."""
    return sum(point.plan is not None and point.plan.fits for point in points) > 0


def _print(points: Iterator[Point], plotted: Sequence[Case]) -> Iterator[Point]:
    """Prints each row as soon as it is known."""
    style = Style.of(sys.stdout, os.environ)
    report = SweepBars(style, plotted) if plotted else SweepTable(style)
    before: tuple[int, str] | None = None
    for point in points:
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

    emit(line(FIELDS))
    for point in points:
        emit(line(fields(point)))
        sys.stdout.flush()
        yield point
