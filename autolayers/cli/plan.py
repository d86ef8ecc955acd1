"""`autolayers MODEL...`: the plan of one model, or of several that are to run at the same time."""

from __future__ import annotations

import os
import sys

from ..errors import UsageError
from ..flags.check import read
from ..flags.parse import config_files
from ..output import emit, say, show
from ..quoting import shell
from ..records import replace
from . import load
from .progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..flags.parse import Arguments
    from ..model import Model
    from ..planner import Plan


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
    if arguments.own.get("swap") or any(map(os.path.isdir, names)):
        from .several import in_turns

        return in_turns(names, arguments, form)
    if len(names) > 1:
        from .several import at_once

        return at_once(names, arguments, form)
    return _one(names[0], arguments, form)


def _one(name: str, arguments: Arguments, form: str) -> int:
    from ..api import plan
    from ..gguf import first_part
    from ..parallel import cores

    model = load(name, arguments)
    if first := first_part(name):
        say(f"llama-server loads a split model by its first part: -m {shell([first])}")
        if arguments.params.model:
            arguments = replace(arguments, params=replace(arguments.params, model=first))

    def make(arguments: Arguments) -> Plan:
        with Progress(what="planning"):
            return plan(model, arguments, environ=os.environ, explain=form in ("text", "json"), advise=True,
                        processes=cores())

    given = arguments
    if form in ("text", "flags", "json", "number"):
        answer = make(arguments)
    else:
        from ..launch.formats import plan_for

        answer, arguments = plan_for(form, arguments, make)
    if arguments is given:      # another program than llama-server does some things its own way
        answer = _measured(answer, model, arguments, make, form)
    if form == "number" and not answer.fits:
        whole = make(replace(arguments, own={**arguments.own, "format": "flags"}))
        if whole.fits:
            say("no n_gpu_layers fits by itself; this does: " + shell([*whole.flags, *printable(arguments)]))
            return 5
    (show if form == "text" else emit)(_render(answer, form, arguments))
    if form not in ("text", "json"):
        for line in warnings_of(answer):
            say(line)
    return 0 if answer.fits else 5


def _measured(plan: Plan, model: Model, arguments: Arguments, make: Callable[[Arguments], Plan], form: str) -> Plan:
    """The plan that `autolayers tune` measured to be the fastest on this machine, where it did."""
    own = arguments.own
    if own.get("gpu") or own.get("machine") or own.get("ram"):
        return plan
    from ..launch.tuned import measured_plan

    build = own.get("llama-build")
    plan, line = measured_plan(plan, model, plan.devices, arguments, f"b{build}" if build else "", os.environ, make)
    if line and form not in ("text", "json"):
        say(line)
    return replace(plan, reasons=(line, *plan.reasons)) if line else plan


def _render(plan: Plan, form: str, arguments: Arguments) -> str:
    """The plan in one of the output formats."""
    if form == "number":
        return f"{plan.n_gpu_layers}\n" if plan.fits else ""
    if form == "flags":
        # Words for $(...), which splits at blanks and knows no quotes
        return " ".join([*plan.flags, *printable(arguments)]) + "\n"
    if form == "json":
        import json

        return json.dumps(plan.to_dict(), indent=1) + "\n"
    if form == "text":
        from ..report.table import Style
        from ..report.text import plan_text

        arguments, verbose = without_verbose(arguments)
        return plan_text(plan, Style.of(sys.stdout, os.environ), printable(arguments), verbose)
    from ..launch import formats

    return formats.write(form, plan, arguments, environ=os.environ, config_files=config_files(os.environ))


def without_verbose(arguments: Arguments) -> tuple[Arguments, bool]:
    """Whether the page is to show everything: -v, llama-server's flag too, is about the page where there is one."""
    from ..flags.parse import items
    from ..flags.table import Argument

    found = list(items(arguments.rest, None))
    kept = [item for item in found if not (isinstance(item.flag, Argument) and item.flag.canonical == "-v")]
    return replace(arguments, rest=tuple(word for item in kept for word in item.words)), len(kept) < len(found)


def printable(arguments: Arguments) -> list[str]:
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
