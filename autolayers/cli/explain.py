"""`autolayers explain LOG...|PID|MODEL`: why a launch failed, what a server holds, why this
plan."""

from __future__ import annotations

import os
import sys

from ..diagnosis.diagnosis import explain
from ..errors import UsageError
from ..files import opened
from ..flags.check import read
from ..output import emit_json, show
from ..report.diagnosis import diagnosis_text
from ..report.table import Style
from ..sources import needs_download
from ..units import whole
from .model import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def main(words: Sequence[str]) -> int:
    """Return 0 for a log that is explained, 1 for an unknown cause, 3 for no log."""
    arguments = read("explain", words)
    names = list(arguments.positional)
    if not names:
        raise UsageError("which log? autolayers explain FILE, or - for standard input")
    # A number is a process, except where a log has that name
    process = whole(names[0]) if len(names) == 1 else None
    if process is not None and not os.path.exists(names[0]):
        from .ps import print_server

        return print_server(process, arguments.own.get("format") == "json")
    # `explain model.gguf` asks why this plan: the same as --why
    if _is_model(names[0]):
        from .plan import main as plan

        return plan(["--why", *words])
    # The launch that works is planned for these, otherwise for what the log says
    of_machine = ("gpu", "machine", "ram", "backend", "llama-build")
    own: dict[str, Any] = {key: arguments.own[key] for key in of_machine if key in arguments.own}
    model = load(arguments.params.model, arguments) if arguments.params.model else None
    # The second read would be empty, and a log without its start explains less
    if names.count("-") > 1:
        raise UsageError("standard input can be read once: give - once")
    # Llama-server's flags among the words, as they were written, without the model's file,
    # which is here
    from ..flags.parse import items

    # Unknown flags too, which may be a fork's
    flags = [
        item
        for item in items(words, "explain")
        if item.name and (item.flag is None or (item.argument and item.argument.field != "model"))
    ]
    answer = explain(
        # Bytes: a log may be in any encoding
        *(sys.stdin.buffer if name == "-" else name for name in names),
        words=tuple(word for item in flags for word in item.words),
        model=model,
        own=own,
    )
    why = bool(arguments.own.get("why"))
    if arguments.own.get("format") == "json":
        emit_json(answer.to_dict(why))
    else:
        show(diagnosis_text(answer.text(why), answer.known, Style.here()))
    return 0 if answer.known else 1


def _is_model(name: str) -> bool:
    """Return whether it is a GGUF file, or a name that only a model has."""
    try:
        with opened(name) as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError):
        # A file that is not here yet is judged by its name
        return name != "-" and (needs_download(name) or name.lower().endswith(".gguf"))
