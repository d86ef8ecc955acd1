"""What `autolayers tune` measured on this machine, for later plans of the same model, machine and
build.

One JSON file for each model in tuned/ of the state directory, named by the digest of the model's
header. An answer holds for the question that it was measured for: the flags that were given, and
the workload.
"""

from __future__ import annotations

import os

from .. import state
from ..engines import LLAMA_SERVER
from ..errors import AutolayersError
from ..flags.params import Params
from ..flags.parse import Arguments, parse
from ..flags.write import to_words
from ..records import dataclass, replace
from . import store
from .observations import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..builds import Build
    from ..model import Model
    from ..planner import Plan

_LIMIT = 50  # answers kept per model, the newest
# --ctx, --kv-types and the like say how to search; a complete launch has nothing left to search
ANSWERED = ("ctx", "ctx-min", "kv-types", "strategy")  # own flags that a complete launch answers
_AIMS = (*ANSWERED, "workload", "margin", "budget")


@dataclass(frozen=True)
class Tuned:
    """The fastest launch measured. `build`: llama.cpp's number, or its commit where it has none;
    `machine` and `question` as `machine_of` and `question_of` say them; `flags`: the launch; rates
    in tokens per second."""

    build: str
    machine: str
    question: str
    flags: tuple[str, ...]
    prompt: float
    token: float
    date: str


def _of(entry: Any) -> Tuned:
    """Return an entry of the file. Raises if it is not one, or its flags are not
    llama-server's."""
    tuned = Tuned(**{**entry, "flags": tuple(entry["flags"])})
    launch = parse(tuned.flags, command=None)
    texts = (tuned.build, tuned.machine, tuned.question, tuned.date, *tuned.flags)
    if launch.rest or launch.positional or not all(isinstance(text, str) for text in texts):
        raise ValueError
    # Also refuses nan, which compares false
    if not 0 < tuned.prompt < 1e9 or not 0 < tuned.token < 1e9:
        raise ValueError
    return tuned


def key(build: Build) -> str:
    """Return what a build is called here: its number, otherwise its commit, and its program if that
    is not llama-server; "" where neither number nor commit is known."""
    name = f"b{build.number}" if build.number else build.commit
    return name if build.engine is LLAMA_SERVER or not name else f"{name} of {build.engine.name}"


def machine_of(devices: Iterable[Any]) -> str:
    """Return this machine: its name, its devices' names and what they are."""
    return "; ".join(
        [state.machine_name(), *(f"{device.name} {device.description}" for device in devices)]
    )


def question_of(params: Params, own: Mapping[str, Any]) -> str:
    """Return what was given, of all that decides the answer."""
    aims = [f"--{name} {own[name]}" for name in _AIMS if own.get(name)]
    return " ".join([*to_words(replace(params, model=None)), *aims])


def load(model: str, environ: Mapping[str, str]) -> list[Tuned]:
    """Return all answers for a model's digest, oldest first."""
    return store.entries("tuned", model, environ, _of)


def keep(model: str, tuned: Tuned, environ: Mapping[str, str]) -> None:
    """Add an answer, replacing one to the same question. Raises AutolayersError."""
    store.add("tuned", model, environ, tuned, _of, _LIMIT, ("build", "machine", "question"))


def measured_plan(
    plan: Plan,
    model: Model,
    devices: Iterable[Any],
    arguments: Arguments,
    build: str,
    environ: Mapping[str, str],
    again: Callable[[Arguments], Plan],
) -> tuple[Plan, str]:
    """Return the launch that was measured to be the fastest for this very question, planned by
    `again`, and a line that says so; `plan` and "" where none was. `build` "": any, the last that
    was measured. Where n_gpu_layers alone is asked for, a launch that needs more flags is only
    named."""
    answer = find(model, devices, arguments, build, environ)
    if answer is None or not plan.fits:
        return plan, ""
    params = replace(parse(answer.flags, command=None).params, model=arguments.params.model)
    rates = f"{answer.token:.1f} tokens/s, prompts {answer.prompt:.0f}"
    line = f"measured by autolayers tune on {answer.date[:10]}: {rates}"
    # `-q` prints n_gpu_layers alone: it must not name one that holds only with other flags
    if arguments.own.get("format") == "number":
        alone = replace(arguments.params, n_gpu_layers=params.n_gpu_layers)
        if to_words(alone) != to_words(params):
            return plan, (
                f"autolayers tune measured a launch on {answer.date[:10]} that -ngl alone does not "
                f"say: {' '.join(answer.flags)} ({rates})"
            )
        if plan.n_gpu_layers == params.n_gpu_layers:
            return plan, line
    own = {name: value for name, value in arguments.own.items() if name not in ANSWERED}
    # Planned again with all flags given: the memory that is free may be less than then
    measured = again(replace(arguments, params=params, own=own))
    if not measured.fits:
        return (
            plan,
            f"the launch that autolayers tune measured on {answer.date[:10]} does not fit now: "
            f"predicted again",
        )
    return measured, line


def find(
    model: Model,
    devices: Iterable[Any],
    arguments: Arguments,
    build: str,
    environ: Mapping[str, str],
) -> Tuned | None:
    """Return the newest answer for this model, machine, build and question."""
    try:
        if not os.path.isdir(state.path(environ, "tuned")):  # before the file's digest
            return None
    except AutolayersError:
        return None
    # data_offset: where the header ends and weights begin
    name = digest(model.path, model.header.data_offset)
    machine, question = machine_of(devices), question_of(arguments.params, arguments.own)
    return next(
        (
            tuned
            for tuned in reversed(load(name, environ) if name else [])
            if (tuned.machine, tuned.question) == (machine, question) and build in ("", tuned.build)
        ),
        None,
    )
