"""A llama-server command started with a plan's flags: watched, proved by its log, retried with less."""

from __future__ import annotations

NOT_EXECUTABLE, NOT_FOUND = 126, 127     # exit codes, as a shell's


def say(text: str) -> None:
    """One line for the user, on stderr."""
    import sys

    print(f"autolayers: {text}", file=sys.stderr, flush=True)


def cannot_start(program: str, error: OSError) -> int:
    """Says why a program cannot be started; its exit code."""
    reason = {FileNotFoundError: "not found", PermissionError: "cannot be executed"}.get(type(error))
    say(f"{program}: {reason or error.strerror}")
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
