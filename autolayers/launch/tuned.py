"""What `autolayers tune` measured on this machine, for later plans of the same model, machine and
build.

An answer holds for the question that it was measured for: the flags that were given, and the
workload.
"""

from __future__ import annotations

import os

from .. import state
from ..engines import LLAMA_SERVER
from ..errors import AutolayersError
from ..flags.params import Params
from ..flags.parse import Arguments, parse
from ..flags.write import to_words
from ..records import replace
from ..store import Tuned, digest, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..builds import Build
    from ..model import Model
    from ..planner import Plan

# --ctx, --kv-types and the like say how to search; a complete launch has nothing left to search
_ANSWERED = ("ctx", "ctx-min", "kv-types", "strategy")  # own flags that a complete launch answers
_AIMS = (*_ANSWERED, "workload", "margin", "budget")


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


def with_all(arguments: Arguments, flags: Sequence[str]) -> Arguments:
    """Return the arguments with all flags of a launch that was kept: nothing is left to search."""
    params = replace(parse(flags, command=None).params, model=arguments.params.model)
    own = {name: value for name, value in arguments.own.items() if name not in _ANSWERED}
    return replace(arguments, params=params, own=own)


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
    complete = with_all(arguments, answer.flags)
    params = complete.params
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
    # Planned again with all flags given: the memory that is free may be less than then
    measured = again(complete)
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
            for tuned in reversed(read(Tuned, environ, name) if name else [])
            if (tuned.machine, tuned.question) == (machine, question) and build in ("", tuned.build)
        ),
        None,
    )
