"""Starts a llama-server command with a plan's flags: supervised, verified by its log, retried with
less memory."""

from __future__ import annotations

import os

from ..output import say

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # exit codes, as a shell's
LLAMA_CPP = "https://github.com/ggml-org/llama.cpp/releases"


def cannot_start(program: str, error: OSError | None = None) -> int:
    """Prints why a program cannot be started, by default because it is not in PATH, or not
    executable where a path is given; returns the exit code."""
    if error is None:
        # a file of the name here is neither
        is_there = os.path.dirname(program) and os.path.exists(program)
        error = PermissionError() if is_there else FileNotFoundError()
    reason = {FileNotFoundError: "not found", PermissionError: "cannot be executed"}.get(
        type(error)
    )
    way = ""
    # e.g. `autolayers run model.gguf`: no program stands in the words at all
    if reason == "not found" and "/" not in program:
        way = "; a program starts here: autolayers run llama-server -m MODEL"
        if program.startswith("llama-"):
            way = (
                f"; it comes with llama.cpp: {LLAMA_CPP}, brew install llama.cpp, winget install "
                "llama.cpp"
            )
    say(f"{program}: {reason or error.strerror}{way}")
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
