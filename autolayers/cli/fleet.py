"""`autolayers fleet FILE MODEL...`: several machines, several models, users."""

from __future__ import annotations

import os

from ..devices.fleet_file import read as read_fleet
from ..errors import DoesNotFit, UsageError
from ..flags.check import read
from ..flags.users import Users
from ..launch import fleet as launches
from ..output import emit, emit_json, say, say_all, show
from ..planner.compare.fleet.answer import FleetPlan, Wanted
from ..planner.compare.fleet.plan import plan_fleet
from ..records import replace
from ..report.fleet import fleet_flags, fleet_text, to_dict
from ..report.table import Style
from ..request import Request
from .cluster import write
from .model import load
from .progress import Progress
from .several import weighted
from .words import form_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.parse import Arguments

# 128 + SIGINT: what was found is printed, and a script still learns of it
_INTERRUPTED = 130
_OF_USERS = ("users", "ctx-per-user", "min-rate", "ttft")  # flags of the whole fleet


def main(words: list[str]) -> int:
    """Print the plan, or write the files of each machine; 5 if a user is not served, 130 if the
    search was interrupted."""
    arguments = read("fleet", words, os.environ)
    # The name of the machines and those of the models
    names = list(arguments.positional)
    if len(names) < 2 or names[0].lower().endswith(".gguf"):
        raise UsageError(
            "name the machines and the models: autolayers fleet FILE.json|DIRECTORY "
            "MODEL.gguf[@WEIGHT] ..."
        )
    # A pasted command's model or servers would be one of several, or contradict the file
    for flag, value in (("-m", arguments.params.model), ("--rpc", arguments.params.rpc)):
        if value:
            raise UsageError(f"fleet plans each model and its servers: omit {flag}")
    machines, *names = names
    own = arguments.own
    form = form_of(arguments)
    if form not in launches.KINDS and ("output" in own or "image" in own):
        raise UsageError(f"--output and --image need --format {', '.join(launches.KINDS)}")
    fleet = read_fleet(machines)
    # The models' paths and weights. The same model twice may mean twice its users, which @2 says
    paths, weights = weighted(names)
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(
                f"{path} is given twice: {path}@2 gives it twice the users of the others"
            )
    models = [load(path, arguments) for path in paths]
    # The promise to each user, whichever model and machine serves them
    each = Users(None, own.get("ctx-per-user", 0), own.get("min-rate", 0.0), own.get("ttft", 0.0))
    wanted = Wanted(own.get("users"), each)
    # Each kind of machine replaces these devices in the request
    first = fleet.kinds[0]
    # --users of the fleet is not --users of each of its servers
    of_models = {key: value for key, value in own.items() if key not in _OF_USERS}
    plain = replace(arguments, own=of_models)
    request = Request.of(plain, os.environ, devices=first.devices, host=first.host).said()
    # Kubernetes alone divides no GPU: shared where all models have no place otherwise, and refused
    shares = form != "kubernetes" or "gpumem" in own
    with Progress(what="planning") as progress:
        question = models, request, fleet, weights, wanted, launches.names_of(paths), progress.now
        plan = plan_fleet(*question, shares=shares)
        if not (plan.fits or shares or plan.interrupted):
            plan = plan_fleet(*question)
    _print(plan, form, paths, arguments)
    if plan.interrupted:
        return _INTERRUPTED
    return 0 if plan.fits else DoesNotFit.exit_code


def _print(plan: FleetPlan, form: str, paths: list[str], arguments: Arguments) -> None:
    if form == "text":
        show(fleet_text(plan, Style.here()))
        return
    if form == "json":
        emit_json(to_dict(plan))
        return
    if form == "flags":
        emit(fleet_flags(plan))
    else:
        write(launches.files(form, plan, paths, arguments, say), arguments.own.get("output"))
    # On stderr: text and JSON have them inside
    say_all([*(each.why for each in plan.unserved), *plan.notes])
    if plan.wanted.users is not None and plan.most < plan.wanted.users:
        say(f"{plan.wanted.users} users cannot be served: {sum(plan.users)} can")
