"""`autolayers plan` with several models: loaded together, or in turns."""

from __future__ import annotations

import json
import os
import re

from ..errors import ModelError, UsageError
from ..flags.parse import Arguments, config_files
from ..launch.formats import write_several
from ..launch.formats.launch_file import SharedMemory
from ..model.models import Models
from ..output import emit, say, say_all, show
from ..planner.several.groups import beside_router, plan_routed
from ..planner.several.kept import numbers, plan_kept, plan_turns
from ..planner.several.matrix import plan_matrix
from ..planner.several.multi import plan_together
from ..quoting import shell
from ..report.multi import groups_text, model_words, of_models, together_text
from ..report.table import Style
from ..request import Request
from ..sources import needs_download, network_environ
from ..sources.offers import offers
from .model import load
from .progress import Progress
from .words import other_words, warnings_of, without_verbose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model import Model
    from ..planner import Plan


def at_once(names: list[str], arguments: Arguments, form: str) -> int:
    """Return the models that are loaded together; if they do not fit, launch files load them in
    turns."""
    _refuse_number(form)
    names, weights = weighted(names)
    # Headers alone, read when they are needed: a folder may hold a hundred models
    models = _models(names, arguments)
    with Progress(what="planning"):
        request = Request.of(arguments, os.environ)
        # The router is a process of its own beside them
        routed = beside_router(request) if form == "preset" else request
        # Files of llama-swap and of the router can load them one after another
        turns = form not in ("text", "json", "flags")
        together = plan_together(models, routed, weights, turns)
    arguments = request.arguments
    given = form == "preset" and arguments.value("--models-max")
    if given or (turns and not together.fits):
        if not together.fits:
            say("they do not fit together: they take turns")
        return _take_turns(names, weights, models, request, form)
    # The plans in one of the output formats; flags are one line per model, the model's path
    # first
    if form == "json":
        text = json.dumps(together.to_dict(), indent=1) + "\n"
    elif form == "flags":
        text = _lines(together.plans, arguments)
    elif form != "text":
        text = _launch_file(form, together.plans, arguments, SharedMemory(together.fits))
    else:
        text = together_text(together, Style.here(), other_words(without_verbose(arguments)[0]))
    _print(text, form, together.plans)
    if form == "flags" and not together.fits:
        say("they do not fit together: --swap plans them in turns")
    # Two servers on one port: the second would not start
    if form in ("text", "flags") and len(names) > 1 and arguments.value("--port") is not None:
        say("--port applies to every model here: set one port per model")
    return 0 if together.fits else 5


def in_turns(names: list[str], arguments: Arguments, form: str) -> int:
    """Return the models that need not all be loaded at once."""
    _refuse_number(form)
    # The models of directories, the others as named, and all weights
    paths: list[str] = []
    weights: list[float] = []
    for name in names:
        # Every model of the folder, each with weight 1
        if os.path.isdir(name):
            environ = network_environ(os.environ, arguments)
            with Progress() as progress:
                found, _ = offers(name, environ, progress.looking)
            paths += [offer.source for offer in found]
            weights += [1.0] * (len(paths) - len(weights))
        else:
            own, weight = weighted([name])
            paths, weights = paths + own, weights + weight
    names = paths
    return _take_turns(
        names, weights, _models(names, arguments), Request.of(arguments, os.environ), form
    )


def weighted(names: Sequence[str]) -> tuple[list[str], list[float]]:
    """Return the names and weights: "A.gguf@3" gives A.gguf the weight 3, unless a file has that
    whole name."""
    paths: list[str] = []
    weights: list[float] = []
    for name in names:
        # "hf:user/repo/file.gguf@main" names a revision, which is no number
        model, at, text = name.rpartition("@")
        number = (
            re.fullmatch(r"\d+(\.\d+)?", text)
            if at and model and not os.path.lexists(name)
            else None
        )
        if number and float(text) == 0:
            raise UsageError(
                f"{name}: a model's weight is more than 0, such as {model}@2 or {model}@0.5"
            )
        paths.append(model if number else name)
        weights.append(float(text) if number else 1.0)
    return paths, weights


def _refuse_number(form: str) -> None:
    if form == "number":
        raise UsageError(
            "-q is for one model: several together need all their flags (--format flags)"
        )


def _models(names: Sequence[str], arguments: Arguments) -> Models:
    """Return the models, each read on demand; downloaded headers are read once."""
    # Models forgets all but the latest: a remote header must not be fetched again
    fetched: dict[str, Model] = {}

    def read(name: str) -> Model:
        if not needs_download(name):
            return load(name, arguments)
        if name not in fetched:
            fetched[name] = load(name, arguments)
        return fetched[name]

    return Models(names, read)


def _take_turns(
    names: Sequence[str], weights: Sequence[float], models: Models, request: Request, form: str
) -> int:
    """Plan models that take turns: llama-server's router limits the number of loaded models,
    everything else uses groups."""
    # As the request resolved them, e.g. with a program's defaults
    arguments = request.arguments
    keep = numbers(names, str(arguments.own.get("stay", "")))
    if keep and form == "preset":
        raise UsageError(
            "--stay: the router unloads whichever model was used least recently: --format "
            "llama-swap keeps some"
        )
    if form == "preset":
        # The router loads any of its models at any time: any --models-max of them must fit
        any_of = plan_routed(models, request, arguments.value("--models-max"))
        for i in any_of.alone:
            say(f"{names[i]} does not fit on the GPUs even alone, so --models-max is 1")
        plans, refused, fits = list(any_of.plans), any_of.refused, any_of.fits
    # llama-swap's matrix names every set that may be loaded at once
    elif form == "llama-swap-matrix" and not keep:
        matrix = plan_matrix(models, request, weights)
        plans, refused, fits = list(matrix.plans), matrix.refused, matrix.fits
    else:
        # Everything else knows groups: all of one are loaded, and the others not
        groups = (
            plan_kept(models, keep, request, weights)
            if keep
            else plan_turns(models, request, weights)
        )
        plans, refused, fits = list(groups.plans().values()), groups.refused, groups.fits
    # A ModelError has the file's name already
    reasons = [reason if names[i] in reason else f"{names[i]}: {reason}" for i, reason in refused]
    # Say why models are not planned. Of one model the reason is the answer: exit code 3 and not 5
    if len(names) == 1 and reasons:
        raise ModelError(reasons[0])
    say_all(reasons)
    if not plans:
        raise ModelError("none of these can be planned")
    if form == "preset":
        text = _launch_file(form, plans, arguments, SharedMemory(most=any_of.most))
    elif form == "llama-swap-matrix" and not keep:
        text = _launch_file(
            form, plans, arguments, SharedMemory(groups=matrix.sets, costs=matrix.costs)
        )
    elif form == "flags":
        text = _lines(plans, arguments)
    elif form in ("text", "json"):
        if form == "json":
            text = json.dumps(groups.to_dict(), indent=1) + "\n"
        else:
            text = groups_text(groups, Style.here(), other_words(without_verbose(arguments)[0]))
    else:
        place = {i: position for position, i in enumerate(groups.plans())}
        # members count all models, a launch file only those with a plan
        sets = [[place[i] for i in members] for members in groups.members]
        kept = [place[i] for i, _ in groups.kept]
        text = _launch_file(form, plans, arguments, SharedMemory(groups=sets, kept=kept))
    _print(text, form, plans)
    return 0 if fits else 5


# --- the output


def _print(text: str, form: str, plans: Sequence[Plan]) -> None:
    (show if form == "text" else emit)(text)
    # They carry their warnings themselves
    if form in ("text", "json"):
        return
    say_all(of_models(plans, [warnings_of(plan) for plan in plans]))


def _lines(plans: Sequence[Plan], arguments: Arguments) -> str:
    rest = other_words(arguments)
    return "".join(shell([*model_words(plan), *plan.flags, *rest]) + "\n" for plan in plans)


def _launch_file(
    form: str, plans: Sequence[Plan], arguments: Arguments, sharing: SharedMemory
) -> str:
    return write_several(form, plans, arguments, sharing, os.environ, config_files(os.environ))
