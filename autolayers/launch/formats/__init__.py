"""The planned launch as a file for other launchers; one module per row of flags/formats.py.

    plan, arguments = plan_for("systemd", arguments, make)
    write("systemd", plan, arguments)
    write_several("llama-swap", [plan, other], arguments, SharedMemory(together=True))

Secrets are never written: the file names the environment variable that carries them. A launch that
a format cannot express is refused; a word that does not affect memory is omitted with a warning.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from ...engines import LLAMA_SERVER, engine, of_program
from ...errors import UsageError
from ...flags.formats import FORMATS
from ...output import say
from ...records import replace
from .launch_file import LaunchFile, SharedMemory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from ...flags.parse import Arguments
    from ...planner import Plan
    from ..command import WrappedCommand


def plan_for(
    kind: str | None, arguments: Arguments, make: Callable[[Arguments], Plan]
) -> tuple[Plan, Arguments]:
    """`make`'s plan for the format's program, and its arguments. Programs other than llama-server
    fix some things (such as one sequence), and cannot choose flash attention while loading."""
    # Only programs that are not llama-server have a `settle`: llama-cpp-python and koboldcpp
    own = getattr(_module(kind), "settle", None) if kind in FORMATS else None
    if own is None:
        # Raise UsageError for a program of llama.cpp that the format does not start.
        named = engine(arguments.own.get("engine", LLAMA_SERVER.name))
        if named.is_llama_cpp and named is not LLAMA_SERVER:
            raise UsageError(
                f"--format {kind} starts a llama-server, not {named.name}: plan without --engine"
            )
        arguments = _without_cache(kind, arguments)
        plan = make(arguments)
        # Words of a plan that a format has no place for; a given one is refused when it is written
        words = getattr(_module(kind), "WORDS", ()) if kind in FORMATS else ()
        if not set(words).isdisjoint(plan.flags):
            arguments = replace(arguments, own={"strategy": "layers", **arguments.own})
            plan = make(arguments)
        return plan, arguments
    arguments = replace(arguments, own={"engine": kind, **arguments.own})
    # A given --engine wins in the line above, so another program than the file's is seen here
    if arguments.own["engine"] != kind:
        raise UsageError(f"--format {kind} is for {kind}, not --engine {arguments.own['engine']}")
    params = own(arguments)
    # Llama() of llama-cpp-python has no argument for tensor overrides: it places only whole layers
    if params.n_gpu_layers is None and "overrides" not in _module(kind).FIELDS:
        arguments = replace(arguments, own={"strategy": "layers", **arguments.own})
    arguments = _without_cache(kind, replace(arguments, params=params))
    plan = make(arguments)
    # Their switch is on or off: what "auto" resolved to is fixed, and the plan is made with it
    # again, so that its flags say the same
    if arguments.params.flash_attn in (None, "auto"):
        chosen = "on" if plan.breakdown.flash_attn else "off"
        arguments = replace(arguments, params=replace(arguments.params, flash_attn=chosen))
        plan = make(arguments)
    return plan, arguments


def _without_cache(kind: str | None, arguments: Arguments) -> Arguments:
    """Return the words for a format whose FIELDS, where it has some, lack the expert cache: a plan
    may choose it with new builds, and 0 forbids it."""
    fields = getattr(_module(kind), "FIELDS", None) if kind in FORMATS else None
    if fields is None or arguments.params.moe_cache_mib is not None or "moe_cache_mib" in fields:
        return arguments
    return replace(arguments, params=replace(arguments.params, moe_cache_mib=0))


def write(
    kind: str,
    plan: Plan,
    arguments: Arguments,
    command: WrappedCommand | None = None,
    added: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    config_files: Sequence[str] = (),
    warn: Callable[[str], None] = say,
) -> str:
    """Return the text of one format for a `command` and the words added to it (None: the plan's);
    without a command, for a llama-server with the plan's flags and the other words of `arguments`.
    Settings in `environ` and `config_files` are written too. Raises UsageError for an unknown kind,
    or for a launch that the format cannot express."""
    writer = _writer(kind, tuple(FORMATS))
    if not (FORMATS[kind].starts or of_program(plan.engine).is_llama_cpp):
        kinds = ", ".join(row.name for row in FORMATS.values() if row.starts)
        raise UsageError(
            f"--format {kind} starts llama.cpp's own program, not {plan.engine}: use {kinds}"
        )
    # `plan MODEL --format` has no command: the file starts the llama-server that is in PATH
    if command is None:
        launch = LaunchFile.of_plan(plan, arguments, arguments.params.model, environ, config_files)
    else:
        launch = LaunchFile(
            command, plan.flags if added is None else added, plan, environ, config_files
        )
    # e.g. "hami": only a pod's resources can name a part of a GPU
    launch.shares = arguments.own.get("gpumem", "")
    launch.build = arguments.own.get("llama-build") or 0
    if launch.shares and kind != "kubernetes":
        raise UsageError(f"--gpumem {launch.shares} is for --format kubernetes, not {kind}")
    launch.refuse_unreached(kind)
    return _written(writer, [launch], warn)


def write_several(
    kind: str,
    plans: Sequence[Plan],
    arguments: Arguments,
    sharing: SharedMemory,
    environ: Mapping[str, str] | None = None,
    config_files: Sequence[str] = (),
    warn: Callable[[str], None] = say,
) -> str:
    """Return one file for several models. Raises UsageError as `write` does."""
    writer = _writer(kind, tuple(row.name for row in FORMATS.values() if row.several))
    launches = [LaunchFile.of_plan(plan, arguments, None, environ, config_files) for plan in plans]
    return _written(partial(writer, sharing=sharing), launches, warn)


def _written(
    writer: Callable[..., str], launches: Sequence[LaunchFile], warn: Callable[[str], None]
) -> str:
    text = writer(*launches)
    # Launches of one directory mostly share their warnings: each is said once
    for warning in dict.fromkeys(warning for launch in launches for warning in launch.warnings):
        warn(warning)
    return text


def _writer(kind: str, names: Sequence[str]) -> Callable[..., str]:
    """Return the `write` of the module with the format's name."""
    if kind in FORMATS and kind not in names:
        several = ", ".join(("text", "flags", "json", *names))
        raise UsageError(f"--format {kind} is for one model; for several: {several}")
    if kind not in names:
        raise UsageError(f"--format {kind}: expected one of {', '.join(names)}")
    writer: Callable[..., str] = _module(kind).write
    return writer


def _module(kind: str | None) -> ModuleType:
    # One module is loaded, not all: starting time is part of every command
    return import_module(f"{__name__}.{str(kind).replace('-', '_')}")
