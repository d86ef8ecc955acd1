"""A preset of llama-server's own router: --models-preset FILE (common/preset.cpp)."""

from __future__ import annotations

from ...errors import UsageError
from ...flags.params import Params
from ...flags.parse import items, parse
from ...flags.table import lookup
from ...flags.write import to_words
from ...quoting import ini
from .launch_file import LaunchFile, named, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUTERS = ("--port", "--host", "--models-preset", "--models-dir", "--models-max")      # the router's own business


def write(*launches: LaunchFile, together: bool = False) -> str:
    """A section for each model; the router itself decides which stay loaded, so `together` changes nothing."""
    notes = dict.fromkeys(note for launch in launches for note in launch.secret_notes("the router's environment"))
    sections = [section(name, without(launch.absolute_words, *_ROUTERS)) for name, launch in named(launches)]
    return "\n".join(["version = 1", "", *notes, *sections])


def section(name: str, words: Sequence[str]) -> str:
    """One [section]: long names without dashes. Raises UsageError for values an INI file cannot say."""
    arguments = parse(words, command=None)
    if "]" in name:
        raise UsageError(f"-a {name!r}: a preset cannot hold it (] ends a section's name)")
    lines = [f"[{ini('-a', name)}]"]
    for flag, value in _flat(arguments.params):
        lines.append(_entry(flag, value))
    for flag, value in arguments.given:
        found = lookup(flag)
        if found and not found[0].field:
            lines.append(_entry(flag, value))
    return "\n".join(lines) + "\n"


def _flat(params: Params) -> list[tuple[str, str]]:
    """Each flag once: a preset keeps one value per argument and applies them in its own order."""
    words = to_words(params)
    if sum(word in ("-ot", "-cmoe", "-ncmoe", "-ncffn") for word in words) > 1:
        words = without(words, "-ot", "-cmoe", "-ncmoe", "-ncffn")
        words += ["-ot", ",".join(f"{pattern}={buffer}" for pattern, buffer in params.overrides)]
    return [(item.name, item.value) for item in items(words)]


def _entry(flag: str, value: str) -> str:
    found = lookup(flag)
    if found is None:
        raise UsageError(f"{flag}: not an argument of llama-server, so no preset can hold it")
    row, positive = found
    key = row.names[-1].lstrip("-")
    if not value and not row.takes_value:
        value = "true" if positive else "false"
    return f"{key} = {ini(flag, value)}"
