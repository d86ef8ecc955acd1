"""llama-swap: github.com/mostlygeek/llama-swap, config.example.yaml."""

from __future__ import annotations

import os
import shlex

from ...errors import UsageError
from ...quoting import yaml
from .launch_file import LaunchFile, named, sizes_note, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Sequence


def write(
    *launches: LaunchFile,
    together: bool = False,
    groups: Sequence[Sequence[int]] = (),
    most: int = 0,
    kept: Sequence[int] = (),
) -> str:
    """`together`: the models fit together, so they form a group whose members stay loaded;
    `groups`: the launches, by number, that fit together; `kept`: those that no group unloads. A
    single model is in llama-swap's default group, which unloads all others."""
    # Of one group nothing makes room for another
    never = (*kept, *(groups[0] if len(groups) == 1 else ()))
    lines, models = models_of(launches, sized=bool(groups), kept=never)
    sets = (
        {"together": models}
        if together
        else {
            f"group-{number}": [models[i] for i in members]
            for number, members in enumerate((members for members in groups if len(members) > 1), 1)
        }
    )
    if kept:
        sets["kept"] = [models[i] for i in kept]
    # swap: false keeps the members loaded together; exclusive: true ends those of other groups when
    # one of these is requested
    lines += ["groups:"] if sets else []
    for group, names in sets.items():
        lines += [f"  {group}:", "    swap: false"]
        # No other group ends these, and they end none
        stay = group == "kept" and bool(kept)
        lines += (
            ["    exclusive: false", "    persistent: true"] if stay else ["    exclusive: true"]
        )
        lines += ["    members:"]
        lines += [f"      - {yaml(name)}" for name in names]
    return "\n".join(lines) + "\n"


def models_of(
    launches: Sequence[LaunchFile], sized: bool, kept: Container[int] = ()
) -> tuple[list[str], list[str]]:
    """Return the lines of the section `models`, and the models' names. `sized`: they take turns,
    all but the `kept` ones, so each one's memory is there, and when it is idle."""
    notes = dict.fromkeys(
        note
        for launch in launches
        for note in (*launch.notes, *launch.secret_notes("llama-swap's environment"))
    )
    models = dict(named(launches))
    # Seconds until llama-swap ends a server that does not answer; its default is 120
    patience = max((launch.patience for launch in launches), default=0)
    lines = [*notes, f"healthCheckTimeout: {patience}", "models:"]
    for i, (name, launch) in enumerate(models.items()):
        # The key is the name that clients send as "model"
        lines += [f"  {yaml(name)}:", *([f"    # {sizes_note(launch)}"] if sized else [])]
        # The key's variable: llama-swap refuses a file that names one which is not set.
        key = "LLAMA_API_KEY"
        env = ["    env:", f"      - {yaml(f'{key}=${{env.{key}}}')}"] * (key in launch.secrets)
        lines += [f"    cmd: {yaml(_command(launch))}", *_proxy(launch), *env]
        # Its memory is another program's then. Without it, and with 0, a model is never idle
        lines += [f"    ttl: {0 if i in kept else launch.idle}"] * sized
    return lines, list(models)


def _command(launch: LaunchFile) -> str:
    # llama-swap counts ports up from its startPort and puts each in place of ${PORT}
    words = without(launch.words, "--port")
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


def _proxy(launch: LaunchFile) -> list[str]:
    """Return how llama-swap reaches the server, if not at http://localhost:PORT/health."""
    scheme, path = launch.health
    host = launch.host or "localhost"
    if launch.private or host in ("0.0.0.0", "::"):
        host = "localhost"
    address = f"[{host}]" if ":" in host else host
    lines = []
    if (scheme, host) != ("http", "localhost"):
        # where requests are sent; default http://localhost:${PORT}
        lines.append(f"    proxy: {yaml(f'{scheme}://{address}:${{PORT}}')}")
    if path != "/health":
        # asked until it answers 200, e.g. "/api/health" with --api-prefix api
        lines.append(f"    checkEndpoint: {yaml(path)}")
    return lines
