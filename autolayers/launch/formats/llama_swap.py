"""llama-swap: github.com/mostlygeek/llama-swap, config.example.yaml."""

from __future__ import annotations

from ...errors import UsageError
from ...quoting import shell, yaml
from .launch_file import LaunchFile, named, without


def write(*launches: LaunchFile, together: bool = False) -> str:
    """`together`: several models fit at the same time, so they form a group whose members stay loaded."""
    notes = dict.fromkeys(note for launch in launches for note in launch.secret_notes("llama-swap's environment"))
    models = dict(named(launches))
    lines = [*notes, "models:"]
    for name, launch in models.items():
        lines += [f"  {yaml(name)}:", f"    cmd: {yaml(_command(launch))}"]
    if together:
        lines += ["groups:", "  together:", "    swap: false", "    exclusive: true", "    members:"]
        lines += [f"      - {yaml(name)}" for name in models]
    return "\n".join(lines) + "\n"


def _command(launch: LaunchFile) -> str:
    words = without(launch.absolute_words, "--port")
    for word in [*launch.program, *words]:
        if "${" in word:
            raise UsageError(f"{word!r}: llama-swap would replace ${{...}} in it, and has no other way to say it")
    return f"{shell(launch.program)} --port ${{PORT}} {shell(words)}"
