"""`autolayers inspect MODEL`: what the header says, and the size of each layer."""

from __future__ import annotations

import os
import sys

from ..errors import UsageError
from ..flags.check import read
from ..output import emit, show
from . import load


def main(words: list[str]) -> int:
    """Prints the facts of a model's header and the sizes of its layers."""
    from ..memory.layers import model_layers

    arguments = read("inspect", words)
    names = list(arguments.positional) or [name for name in (arguments.params.model,) if name]
    if len(names) != 1:
        raise UsageError("inspect takes one model: autolayers inspect MODEL.gguf")
    found = model_layers(load(names[0], arguments), arguments.params)
    if arguments.own.get("format") == "json":
        import json

        emit(json.dumps(found.to_dict(), indent=1) + "\n")
        return 0
    from ..report.inspect import inspect_text
    from ..report.table import Style

    show(inspect_text(found, Style.of(sys.stdout, os.environ)))
    return 0
