"""`autolayers MODEL...`: the plan of one model, or of several that are to run at the same time."""

from __future__ import annotations

import os
import re
import sys

from ..errors import UsageError
from ..flags.check import read
from ..flags.parse import config_files
from ..output import emit, say, show
from ..quoting import shell
from ..records import replace
from . import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..flags.parse import Arguments
    from ..model import Model
    from ..planner import Plan
    from ..planner.multi import Together


def main(words: list[str]) -> int:
    """Plans one model, or several at once; prints the answer; 5 where it does not fit."""
    arguments = read("plan", words, os.environ)
    if arguments.own.get("version"):
        from .. import __version__

        show(f"autolayers {__version__}\n")
        return 0
    names = list(arguments.positional)
    if arguments.params.model and not names:
        names = [arguments.params.model]
    if not names:
        raise UsageError("which model? autolayers MODEL.gguf [flags]; autolayers --help says more")
    form = str(arguments.own.get("format") or ("text" if sys.stdout.isatty() else "flags"))
    return _one(names[0], arguments, form) if len(names) == 1 else _several(names, arguments, form)


def _one(name: str, arguments: Arguments, form: str) -> int:
    from ..api import plan

    model = load(name, arguments)

    def make(arguments: Arguments) -> Plan:
        return plan(model, arguments, environ=os.environ, explain=form in ("text", "json"),
                    advise=True)

    if form in ("text", "flags", "json"):
        answer = _measured(make(arguments), model, arguments, make)
    elif form == "number":
        answer = make(arguments)
    else:
        from ..launch.formats import plan_for

        answer, arguments = plan_for(form, arguments, make)
    if form == "number" and not answer.fits:
        whole = make(replace(arguments, own={**arguments.own, "format": "flags"}))
        if whole.fits:
            say("no n_gpu_layers fits by itself; this does: " + shell([*whole.flags, *_printable(arguments)]))
            return 5
    (show if form == "text" else emit)(_render(answer, form, arguments))
    if form not in ("text", "json"):
        for line in warnings_of(answer):
            say(line)
    return 0 if answer.fits else 5


def _measured(plan: Plan, model: Model, arguments: Arguments, make: Callable[[Arguments], Plan]) -> Plan:
    """The plan that `autolayers tune` measured to be the fastest on this machine, where it did."""
    from ..launch.tuned import measured_plan

    own = arguments.own
    if own.get("gpu") or own.get("machine") or own.get("ram"):
        return plan
    build = own.get("llama-build")
    plan, line = measured_plan(plan, model, plan.devices, arguments, f"b{build}" if build else "", os.environ, make)
    return replace(plan, reasons=(line, *plan.reasons)) if line else plan


def _several(names: list[str], arguments: Arguments, form: str) -> int:
    from ..api import plan_together
    from ..model.models import Models
    from ..sources import needs_download

    if form == "number":
        raise UsageError("-q is for one model: several at once are only right with all their flags (--format flags)")
    names, weights = weighted(names)
    fetched = {name: load(name, arguments) for name in names if needs_download(name)}
    models = Models(names, lambda name: fetched.get(name) or load(name, arguments))
    together = plan_together(models, arguments, environ=os.environ, weights=weights)
    (show if form == "text" else emit)(_render_several(together, form, arguments))
    if form not in ("text", "json"):
        for line in dict.fromkeys(line for plan in together.plans for line in warnings_of(plan)):
            say(line)
    return 0 if together.fits else 5


def weighted(names: Sequence[str]) -> tuple[list[str], list[float]]:
    """Names and weights: of "A.gguf@3" A.gguf's requests count three times. A file of the whole name comes first."""
    found: list[str] = []
    weights: list[float] = []
    for name in names:
        model, at, text = name.rpartition("@")
        number = re.fullmatch(r"\d+(\.\d+)?", text) if at and model and not os.path.lexists(name) else None
        if number and float(text) == 0:
            raise UsageError(f"{name}: a model's weight is more than 0, such as {model}@2 or {model}@0.5")
        found.append(model if number else name)
        weights.append(float(text) if number else 1.0)
    return found, weights


def _render(plan: Plan, form: str, arguments: Arguments) -> str:
    """The plan in one of the output formats."""
    if form == "number":
        return f"{plan.n_gpu_layers}\n" if plan.fits else ""
    if form == "flags":
        # Words for $(...), which splits at blanks and knows no quotes
        return " ".join([*plan.flags, *_printable(arguments)]) + "\n"
    if form == "json":
        import json

        return json.dumps(plan.to_dict(), indent=1) + "\n"
    if form == "text":
        from ..report.table import Style
        from ..report.text import plan_text

        arguments, verbose = _verbose(arguments)
        return plan_text(plan, Style.of(sys.stdout, os.environ), _printable(arguments), verbose)
    from ..launch import formats

    return formats.write(form, plan, arguments, environ=os.environ, config_files=config_files(os.environ))


def _render_several(together: Together, form: str, arguments: Arguments) -> str:
    """The plans in one of the output formats; flags are one line per model, the model's path first."""
    if form == "json":
        import json

        return json.dumps(together.to_dict(), indent=1) + "\n"
    if form not in ("flags", "text"):
        from ..launch.formats import write_several

        return write_several(form, together.plans, arguments, together.fits, os.environ, config_files(os.environ))
    from ..report.multi import model_words, together_text

    if form == "flags":
        rest = _printable(arguments)
        return "".join(" ".join([shell(model_words(plan)), *plan.flags, *rest]) + "\n" for plan in together.plans)
    from ..report.table import Style

    return together_text(together, Style.of(sys.stdout, os.environ), _printable(_verbose(arguments)[0]))


def _verbose(arguments: Arguments) -> tuple[Arguments, bool]:
    """Whether the page is to show everything: -v, llama-server's flag too, is about the page where there is one."""
    from ..flags.parse import items
    from ..flags.table import Argument

    found = list(items(arguments.rest, None))
    kept = [item for item in found if not (isinstance(item.flag, Argument) and item.flag.canonical == "-v")]
    return replace(arguments, rest=tuple(word for item in kept for word in item.words)), len(kept) < len(found)


def _printable(arguments: Arguments) -> list[str]:
    """The user's words that do not touch memory, without secrets; a line on stderr says where those go."""
    if not arguments.rest:
        return []
    from ..launch.secrets import without_secrets

    words, secrets = without_secrets(arguments.rest)
    for name in secrets:
        say(f"{name} is left out of the output: set it in llama-server's environment")
    return words


def warnings_of(plan: Plan) -> list[str]:
    """What a plan whose output cannot carry it says on stderr."""
    if plan.fits:
        return list(plan.warnings)
    from ..report.text import remedy_words, shortage

    return [*plan.warnings, f"does not fit: {shortage(plan)}",
            *(f"it fits with {remedy_words(remedy)}" for remedy in plan.remedies)]
