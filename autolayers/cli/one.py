"""`autolayers MODEL`: the plan of one model."""

from __future__ import annotations

import os
import sys
from shutil import which

from .. import store
from ..backends import on
from ..engines import LLAMA_SERVER, Engine
from ..errors import AutolayersError, UsageError
from ..flags.parse import Arguments, config_files
from ..gguf import first_part
from ..memory.meter import Meter
from ..output import emit, say, say_all, show
from ..parallel import cores
from ..planner import Plan, plan_request
from ..quoting import shell
from ..records import replace
from ..request import Request, for_model
from .model import load
from .progress import Progress
from .words import other_words, warnings_of, without_verbose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..launch.confirm import Referee
    from ..model import Model


def plan_one(name: str, arguments: Arguments, form: str, engine: Engine = LLAMA_SERVER) -> int:
    """Print the answer, for this program; 5 if it does not fit."""
    model = load(name, arguments)
    # Any shard is planned as the whole model, but llama-server accepts the first alone
    if first := first_part(name):
        say(f"llama-server loads a split model by its first part: -m {shell([first])}")
        if arguments.params.model:
            # Flags and launch files must name the file that starts
            arguments = replace(arguments, params=replace(arguments.params, model=first))
    server = arguments.own.get("llama-server")
    if server and which(server) is None:
        raise UsageError(f"--llama-server {server}: no such program")
    request = for_model(
        model,
        Request.of(arguments, os.environ, program=(server,) if server else (), of_program=engine),
    )
    program = request.build.engine
    # llama-server's flags do not start this program
    if program.written_by and form in ("text", "flags"):
        raise UsageError(
            f"{program.name} has its own flags: {program.written_by}; --json prints the plan"
        )
    if arguments.own.get("why"):
        return _why(model, request, form)

    referee = _referee(model, request)
    if referee is not None:
        model = referee.measured(model, request.params)
    # One budget of graphs for all plans of this answer
    meter = Meter()

    def make(arguments: Arguments) -> Plan:
        with Progress(what="planning"):
            # Reasons take most of the time: only for the forms that show them
            return plan_request(
                model,
                request.asking(arguments),
                explain=form in ("text", "json"),
                advise=True,
                processes=cores(),
                meter=meter,
            )

    # As the request means them: a default of the program may have been added
    given = arguments = request.arguments
    # A picture is posted: with everything that a terminal shows
    if path := arguments.own.get("picture"):
        answer = plan_request(model, request, explain=True, advise=True, processes=cores())
        return _picture(answer, arguments, path)
    # Somebody waits: the answer first, its reasons when they are known
    if form == "text" and sys.stdout.isatty() and referee is None:
        return _in_steps(model, request, make)
    if form in ("text", "flags", "json", "number"):
        answer = make(arguments)
    else:
        from ..launch import formats

        # A launch file may ask for other flags than llama-server's defaults
        answer, arguments = formats.plan_for(form, arguments, make)
    if arguments is given:  # programs other than llama-server differ in some ways
        # A launch that `autolayers tune` measured is worth more than a prediction
        answer = _measured(answer, model, arguments, make, form)
    if referee is not None:
        # The plan with what the installed program says of it
        with Progress(what="asking llama-fit-params"):
            answer, line = referee.confirmed(
                answer, lambda less: plan_request(model, less, advise=True, processes=cores())
            )
        if line and form != "json":
            say(line)
        answer = replace(answer, found=(line, *answer.found)) if line else answer
    # -q prints nothing then, so that $(autolayers -q ...) is empty and not wrong
    if form == "number" and not answer.fits and _say_flags(arguments, make):
        return 5
    return _printed(answer, form, arguments)


def _say_flags(arguments: Arguments, make: Callable[[Arguments], Plan]) -> bool:
    """Say the flags that fit where no number of layers does; return whether there are any."""
    # With all flags free: experts in RAM or a smaller context may fit where -ngl alone cannot
    answer = make(replace(arguments, own={**arguments.own, "format": "flags"}))
    if not answer.fits:
        return False
    flags = shell([*answer.flags, *other_words(arguments)])
    say(f"no n_gpu_layers fits on its own; this does: {flags}")
    return True


def _printed(answer: Plan, form: str, arguments: Arguments) -> int:
    """Print an answer and its warnings; 5 if it does not fit."""
    # show escapes what could steer a terminal, emit prints the exact bytes for programs
    (show if form == "text" else emit)(_render(answer, form, arguments))
    # text and JSON carry their warnings themselves
    if form not in ("text", "json"):
        say_all(warnings_of(answer))
    return 0 if answer.fits else 5


def _in_steps(model: Model, request: Request, make: Callable[[Arguments], Plan]) -> int:
    """Return the answer on a terminal as soon as it is there, then its reasons."""
    from ..planner import plan_in_steps
    from ..report.summary import head, summary, tail
    from ..report.table import Style
    from ..report.text import head_text, plan_text, reasons_text

    # Yields the plan twice: without its reasons, then with all of them
    steps = plan_in_steps(model, request, cores())
    with Progress(what="planning"):
        answer = next(steps)
    measured = _measured(answer, model, request.arguments, make, "text")
    arguments, verbose = without_verbose(request.arguments)
    style = Style.here()
    rest = other_words(arguments)
    everything = verbose or bool(request.arguments.own.get("table"))
    # Its reasons would be those of another launch, so it is printed at once
    if measured is not answer:
        command = _command(measured)
        show(
            plan_text(measured, style, rest, verbose, command)
            if everything
            else summary(measured, style, rest, command)
        )
        return 0 if measured.fits else 5
    command = _command(answer)
    show(
        head_text(answer, style, rest, verbose, command)
        if everything
        else head(answer, style, rest, command)
    )
    # The reasons may take seconds: show what is known
    sys.stdout.flush()
    with Progress(what="comparing"):
        answer = next(steps)
    # The lines above stay: the second half only adds to them
    show(
        reasons_text(answer, style, verbose, rest)
        if everything
        else tail(answer, style, rest, command)
    )
    return 0 if answer.fits else 5


def _picture(plan: Plan, arguments: Arguments, path: str) -> int:
    """Write the summary as a picture."""
    from ..report.summary import summary
    from ..report.svg import write_picture
    from ..report.table import Style

    arguments, _ = without_verbose(arguments)
    # As on a terminal of 80 columns with Unicode, whatever stdout is now
    style = Style(True, 80, drawn=True, blocks=True, painted=True)
    try:
        write_picture(summary(plan, style, other_words(arguments), _command(plan)), path)
    # e.g. a directory that does not exist
    except OSError as error:
        raise AutolayersError(f"--picture {path}: {error.strerror}") from None
    say(f"{path}: written")
    return 0 if plan.fits else 5


def _command(plan: Plan) -> list[str]:
    """Return what starts before a plan's flags."""
    from ..report.multi import model_words

    # llama-completion has its own name; the server of ik_llama.cpp is called llama-server as well
    program = plan.engine if plan.engine.startswith("llama-") else LLAMA_SERVER.name
    return [program, *model_words(plan)]


def _why(model: Model, request: Request, form: str) -> int:
    """Print how the plan was chosen, in JSON with the plan itself."""
    from ..planner.why import why
    from ..report.why import why_text

    # with all that was tried
    trace = request.arguments.own["why"] == "all"
    explanation = why(model, request.said(), trace)
    if form == "json":
        plan = plan_request(model, request, explain=True, advise=True, processes=cores())
        emit(_json({**_document(plan, request.arguments), **explanation.to_dict()}))
    else:
        from ..report.table import Style

        show(why_text(explanation, Style.here()))
    # The row that comes closest is marked where none fits, with what rules it out
    return 0 if next(row for row in explanation.candidates if row.chosen).verdict == "chosen" else 5


def _measured(
    plan: Plan, model: Model, arguments: Arguments, make: Callable[[Arguments], Plan], form: str
) -> Plan:
    """Return the plan that `autolayers tune` measured to be the fastest on this machine, if it
    did."""
    own = arguments.own
    # What was measured here says nothing about another machine or program
    if own.get("gpu") or own.get("machine") or own.get("ram") or own.get("engine"):
        return plan
    from ..launch.tuned import measured_plan

    build = own.get("llama-build")
    plan, line = measured_plan(
        plan, model, plan.devices, arguments, f"b{build}" if build else "", os.environ, make
    )
    # On stderr where stdout has flags alone
    if line and form not in ("text", "json"):
        say(line)
    return replace(plan, found=(line, *plan.found)) if line else plan


def _referee(model: Model, request: Request) -> Referee | None:
    """Return who asks llama-fit-params: by --confirm, and on this machine where our rules are not
    proven for the build, the architecture or the backend."""
    own = request.arguments.own
    asked, server = own.get("confirm"), own.get("llama-server")
    if asked is False:
        return None
    # Devices that are not here: the tool is told where it sees them
    if (own.get("gpu") or own.get("machine") or own.get("ram")) and not (asked and server):
        if asked:
            say("--confirm: name the llama-server of these devices, --llama-server PATH")
        return None
    proven = all(on(device).proven for device in request.machine.devices)
    if not asked and proven and request.build.rules.exact and not model.inexact:
        return None
    from ..launch.confirm import TOOL, Referee, beside

    tool = beside(server or LLAMA_SERVER.name)
    if tool is None:
        if asked:
            say(f"--confirm: no {TOOL} beside {server or LLAMA_SERVER.name}")
        return None
    digest = store.digest(model.path, model.header.data_offset)
    return Referee(tool, model.path, digest, request, os.environ)


def _document(plan: Plan, arguments: Arguments) -> dict[str, object]:
    # What a given launch has besides: a front end that builds its command would lose the port
    other = other_words(arguments)
    return {**plan.to_dict(), **({"other_flags": other} if other else {})}


def _json(document: dict[str, object]) -> str:
    import json

    return json.dumps(document, indent=1) + "\n"


def _render(plan: Plan, form: str, arguments: Arguments) -> str:
    """Return the plan in one of the output formats."""
    if form == "number":
        return f"{plan.n_gpu_layers}\n" if plan.fits else ""
    if form == "flags":
        # for $(...), which splits at spaces and ignores quotes
        return " ".join([*plan.flags, *other_words(arguments)]) + "\n"
    if form == "json":
        return _json(_document(plan, arguments))
    if form == "text":
        from ..report.table import Style
        from ..report.text import plan_text

        arguments, verbose = without_verbose(arguments)
        return plan_text(plan, Style.here(), other_words(arguments), verbose, _command(plan))
    from ..launch import formats

    return formats.write(
        form, plan, arguments, environ=os.environ, config_files=config_files(os.environ)
    )
