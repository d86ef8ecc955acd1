"""A llama-server command started with a plan's flags: watched, proved by its log, retried with less."""

from __future__ import annotations

from ..output import say

NOT_EXECUTABLE, NOT_FOUND = 126, 127     # exit codes, as a shell's


def cannot_start(program: str, error: OSError) -> int:
    """Says why a program cannot be started; its exit code."""
    reason = {FileNotFoundError: "not found", PermissionError: "cannot be executed"}.get(type(error))
    say(f"{program}: {reason or error.strerror}")
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
