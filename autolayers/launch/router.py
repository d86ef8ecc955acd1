"""llama-server's router: every model of --models-dir planned for this machine, as a preset in the
state directory.

    router = read_router(command, environ)            # None: its command has a model
    routed = plan_router(router, command, own)        # raises UsageError, ModelError, DeviceError
    routed.preset, routed.words                       # the text; --models-max N for the command

The router's own words go to every model and replace what a preset says
(server_models::load_models), so they are the request of each plan. It never loads a model itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

from .. import state
from ..errors import LaunchRefused, ModelError, UsageError
from ..flags.parse import Arguments, parse
from ..gguf import first_part
from ..model import read_model
from ..model.models import Models
from ..output import say
from ..planner.several.groups import plan_routed
from ..records import dataclass, replace
from ..request import Request, companions_of
from .formats.launch_file import plain_name
from .formats.preset import section

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..planner import Plan
    from .command import WrappedCommand

# files next to a model that are loaded with it (preset.cpp: is_mmproj_file, is_draft_file)
_PROJECTOR = "mmproj"
_DRAFTS = ("mtp-", "dspark-", "dflash-")
# a split model's first part
_FIRST = "-00001-of-"


@dataclass(frozen=True)
class Listed:
    """A model of the directory under the router's name, with the files of its own directory."""

    name: str
    path: str
    mmproj: str | None = None
    draft: str | None = None


@dataclass(frozen=True)
class _Routed:
    """`preset`: its text; `words`: those that it needs in the command; `plans`: by the router's
    names."""

    preset: str
    words: tuple[str, ...]
    plans: Mapping[str, Plan]


def read_router(command: WrappedCommand, environ: Mapping[str, str]) -> Arguments | None:
    """Return the words of a llama-server without a model, which makes it a router; None of any
    other command."""
    if not command.program.startswith("llama-server"):
        return None
    read = parse(command.plannable, *command.read_besides(environ), command=None)
    return None if read.params.model is not None or read.positional else read


def nothing_to_plan(read: Arguments, command: WrappedCommand) -> str:
    """Return why a router's models are not planned; "" where they are."""
    router = f"without a model {command.program} is a router"
    if command.container:
        return (
            f"{router}, and a preset here is not in its container: autolayers DIR --format preset "
            "writes one for --models-preset"
        )
    if read.value("--models-preset"):
        return f"{router}, and --models-preset says how it loads them: nothing to plan"
    if not read.value("--models-dir"):
        return (
            f"{router} of the models that it has downloaded: nothing to plan; --models-dir DIR "
            f"plans those of DIR"
        )
    return ""


def listed(directory: str) -> list[Listed]:
    """Return the models that the router finds in a directory
    (common_preset_context::load_from_models_dir): its files, and one model in each directory in it.
    Raises ModelError."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise ModelError(f"--models-dir {directory}: {error.strerror}") from None
    models = []
    for entry in entries:
        # One model in a directory, named by it; files next
        # to the directories are models of their own
        if entry.is_dir():
            # The model of a directory, with its projector and its draft; none if
            # there is none
            files = []
            # None if it cannot be read
            with contextlib.suppress(OSError):
                inner = [each for each in os.scandir(entry.path) if each.is_file()]
                files = sorted(each.name for each in inner if each.name.endswith(".gguf"))
            # The router loads the last first part, otherwise the last whole file
            own = [name for name in files if not _loaded_with_another(name)]
            parts = [name for name in own if _FIRST in name]
            whole = [name for name in own if not first_part(name)]
            if parts or whole:
                model = (parts or whole)[-1]
                # The router assigns as it walks, so its last projector counts
                projectors = [name for name in files if _PROJECTOR in name]
                drafts = [
                    name for name in files if name.startswith(_DRAFTS) and name not in projectors
                ]
                mmproj = os.path.join(entry.path, projectors[-1]) if projectors else None
                draft = os.path.join(entry.path, drafts[0]) if drafts else None
                models += [Listed(entry.name, os.path.join(entry.path, model), mmproj, draft)]
        elif (
            entry.is_file()
            and entry.name.endswith(".gguf")
            and not _loaded_with_another(entry.name)
        ):
            # As string_replace_all there: wherever ".gguf" stands in the name
            models.append(Listed(entry.name.replace(".gguf", ""), entry.path))
    if not models:
        raise ModelError(f"--models-dir {directory}: no GGUF model in it")
    return models


def _loaded_with_another(name: str) -> bool:
    return _PROJECTOR in name or name.startswith(_DRAFTS)


def plan_router(
    read: Arguments, command: WrappedCommand, own: Mapping[str, Any], environ: Mapping[str, str]
) -> _Routed:
    """Plan all models of --models-dir so that any --models-max fit together, or as many as do."""
    models = listed(os.path.abspath(str(read.value("--models-dir"))))
    # the router does not pass it on (unset_reserved_args)
    # Each model has its own projector, or none
    params = replace(read.params, mmproj=None)
    request = Request.of(
        replace(read, params=params, own=dict(own)),
        environ,
        program=command.launcher,
        verbatim=command.words,
    ).said()
    # Older builds have no router: without a model they end
    if why := request.build.lacks("--models-preset"):
        raise UsageError(f"{why}: leave out autolayers run")
    given = read.value("--models-max")
    # The models whose own files can be read, and the requests of those that have some
    chosen: list[Listed] = []
    asked: dict[int, Request] = {}
    for each in models:
        try:
            if each.mmproj or each.draft:
                params = replace(
                    request.params,
                    mmproj=each.mmproj,
                    model_draft=request.params.model_draft or each.draft,
                )
                companions = companions_of(params, request.arguments)
                asked[len(chosen)] = replace(request.with_params(params), companions=companions)
            chosen.append(each)
        except (ModelError, LaunchRefused) as error:
            say(f"{each.name}: {error}")
    answer = plan_routed(
        Models([entry.path for entry in chosen], read_model), request, given, own=asked
    )
    for i, reason in answer.refused:
        say(reason if chosen[i].name in reason else f"{chosen[i].name}: {reason}")
    plans = {chosen[i].name: plan for i, plan in zip(answer.numbers, answer.plans, strict=True)}
    if not plans:
        raise ModelError(
            f"--models-dir {read.value('--models-dir')}: none of its models can be planned"
        )
    fitting = {name: plan for name, plan in plans.items() if plan.fits}
    paths = {entry.name: entry.path for entry in chosen}
    sections = []
    for name, plan in fitting.items():
        try:
            sections.append(section(name, ["-m", paths[name], *plan.flags]))
        except UsageError as error:  # the router serves it all the same, as it stands
            say(f"{error}: left out")
    text = "\n".join(["version = 1", "", *sections])
    # Without it the router keeps four models loaded (params.models_max), fitting or not
    words = () if given else ("--models-max", str(answer.most))
    return _Routed(text, words, plans)


def keep(routed: _Routed, directory: str, environ: Mapping[str, str]) -> str:
    """Write the preset, one file for each directory of models; return its path. Raises
    AutolayersError."""
    whole = os.path.realpath(directory)
    # two directories of the same name keep their presets apart
    digest = hashlib.sha256(os.fsencode(whole)).hexdigest()[:8]
    name = plain_name(os.path.basename(whole))
    path = state.path(environ, "presets", f"{name}-{digest}.ini")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    # Paths of models are the user's own business
    state.write(path, routed.preset.encode(), mode=0o600)
    return path
