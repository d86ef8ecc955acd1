"""The planned launch as a file for whatever starts it elsewhere; one module for each row of flags/formats.py.

    write("systemd", plan, arguments)
    write_several("llama-swap", [plan, other], arguments, together=True)

Secrets are never written: the file names the environment variable that carries them. A launch that a format cannot
express is refused.
"""

from __future__ import annotations

from ...errors import UsageError
from ...flags.formats import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...flags.parse import Arguments
    from ...planner import Plan
    from ..command import WrappedCommand


def write(kind: str, plan: Plan, arguments: Arguments, command: WrappedCommand | None = None,
          added: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The text of one format for a `command` and the words added to it (None: the plan's); without a command for a
    llama-server with the plan's flags and the other words of `arguments`. Raises UsageError for an unknown kind, or for
    what the format cannot express."""
    from .launch_file import LaunchFile

    writer = _writer(kind, tuple(FORMATS))
    if command is None:
        return writer(LaunchFile.of_plan(plan, arguments, arguments.params.model, environ or {}))
    return writer(LaunchFile(command, plan.flags if added is None else added, plan, environ or {}))


def write_several(kind: str, plans: Sequence[Plan], arguments: Arguments, together: bool) -> str:
    """One file for several models; `together`: they fit at the same time. Raises UsageError as `write` does."""
    from .launch_file import LaunchFile

    writer = _writer(kind, tuple(row.name for row in FORMATS.values() if row.several))
    return writer(*(LaunchFile.of_plan(plan, arguments, None, {}) for plan in plans), together=together)


def _writer(kind: str, names: Sequence[str]) -> Callable[..., str]:
    """The `write` of the module with the format's name."""
    from importlib import import_module

    if kind in FORMATS and kind not in names:
        several = ", ".join(("text", "flags", "number", "json", *names))
        raise UsageError(f"--format {kind} is for one model; for several: {several}")
    if kind not in names:
        raise UsageError(f"--format {kind}: expected one of {', '.join(names)}")
    writer: Callable[..., str] = import_module(f"{__name__}.{kind.replace('-', '_')}").write
    return writer
