"""Starts a llama-server command with a plan's flags: supervised, verified by its log, retried with less
memory."""

from __future__ import annotations

from ..output import say

NOT_EXECUTABLE, NOT_FOUND = 126, 127     # exit codes, as a shell's


def cannot_start(program: str, error: OSError) -> int:
    """Prints why a program cannot be started; returns the exit code."""
    reason = {FileNotFoundError: "not found", PermissionError: "cannot be executed"}.get(type(error))
    plain = reason == "not found" and "/" not in program and not program.startswith("llama-")
    say(f"{program}: {reason or error.strerror}"
        + ("; a program starts here: autolayers run llama-server -m MODEL" if plain else ""))
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
