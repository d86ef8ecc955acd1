"""llama-swap: github.com/mostlygeek/llama-swap, config.example.yaml."""

from __future__ import annotations

import os
import shlex

from ...errors import UsageError
from ...quoting import yaml
from . import document
from .launch_file import ALONE, LaunchFile, SharedMemory, named, sizes_note, words_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from .document import Document


def write(*launches: LaunchFile, sharing: SharedMemory = ALONE) -> str:
    """Models that fit together form a group whose members stay loaded. A single model is in
    llama-swap's default group, which unloads all others."""
    groups, kept = sharing.groups, sharing.kept
    # Of one group nothing makes room for another
    never = (*kept, *(groups[0] if len(groups) == 1 else ()))
    notes, file, models = models_of(launches, sized=bool(groups), kept=never)
    several = [members for members in groups if len(members) > 1]
    sets = {f"group-{number}": members for number, members in enumerate(several, 1)}
    if sharing.together:
        sets = {"together": range(len(models))}
    if kept:
        sets["kept"] = kept
    # swap: false keeps the members loaded together; exclusive: true ends those of other groups when
    # one of these is requested
    file["groups"] = {
        group: {
            "swap": False,
            # No other group ends those that are kept, and they end none
            "exclusive": group != "kept",
            "persistent": True if group == "kept" else None,
            "members": [yaml(models[i]) for i in members],
        }
        for group, members in sets.items()
    } or None
    return document.write(file, notes=notes)


def models_of(
    launches: Sequence[LaunchFile], sized: bool, kept: Container[int] = ()
) -> tuple[list[str], Document, list[str]]:
    """Return the notes, the sections up to `models`, and the models' names. `sized`: they take
    turns, all but the `kept` ones, so each one's memory is there, and when it is idle."""
    notes = dict.fromkeys(
        note for launch in launches for note in launch.comments("llama-swap's environment")
    )
    named_launches = dict(named(launches))
    # The key's variable: llama-swap refuses a file that names one which is not set.
    key = "LLAMA_API_KEY"
    models: Document = {}
    for i, (name, launch) in enumerate(named_launches.items()):
        # The key is the name that clients send as "model"
        # How llama-swap reaches the server, if not at http://localhost:PORT/health
        scheme, path = launch.health
        host = launch.host or "localhost"
        if launch.private or host in ("0.0.0.0", "::"):
            host = "localhost"
        address = f"[{host}]" if ":" in host else host
        usual = (scheme, host) == ("http", "localhost")
        models[yaml(name)] = {
            **({f"# {sizes_note(launch)}": ""} if sized else {}),
            "cmd": yaml(_command(launch)),
            # where requests are sent; default http://localhost:${PORT}
            "proxy": None if usual else yaml(f"{scheme}://{address}:${{PORT}}"),
            # asked until it answers 200, e.g. "/api/health" with --api-prefix api
            "checkEndpoint": None if path == "/health" else yaml(path),
            "env": [yaml(f"{key}=${{env.{key}}}")] if key in launch.secrets else None,
            # Its memory is another program's then. Without it, and with 0, a model is never idle
            "ttl": (0 if i in kept else launch.idle) if sized else None,
        }
    # Seconds until llama-swap ends a server that does not answer; its default is 120
    patience = max((launch.patience for launch in launches), default=0)
    return [*notes], {"healthCheckTimeout": patience, "models": models}, list(named_launches)


def _command(launch: LaunchFile) -> str:
    # llama-swap counts ports up from its startPort and puts each in place of ${PORT}
    words = words_of(launch.without("--port"))
    # read once: looking it up adds a warning
    program = launch.program
    for word in [*program, *words]:
        if "${" in word:
            raise UsageError(
                f"{word!r}: llama-swap would replace ${{...}} in it, which cannot be escaped"
            )
        if "\n" in word:
            raise UsageError(f"{word!r}: llama-swap reads a command line by line: rename it")
    return f"{_split(program)} --port ${{PORT}} {_split(words)}"


def _split(words: Sequence[str]) -> str:
    """Return the words as llama-swap splits them, without a shell (proxy/config: StripComments goes
    line by line, then SanitizeCommand): by POSIX's quotes, on Windows by those of
    CommandLineToArgvW."""
    if os.name == "nt":
        from subprocess import list2cmdline

        return list2cmdline(words)
    return shlex.join(words)
