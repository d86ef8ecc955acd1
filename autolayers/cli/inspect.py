"""`autolayers inspect MODEL`: the facts in the header, and the size of each layer."""

from __future__ import annotations

from ..errors import UsageError
from ..flags.check import read
from ..memory.layers import model_layers
from ..output import emit_json, show
from ..report.inspect import inspect_text
from ..report.table import Style
from .model import load
from .words import models_named


def main(words: list[str]) -> int:
    """Print the facts of a model's header and the sizes of its layers."""
    arguments = read("inspect", words)
    names = models_named(arguments)
    if len(names) != 1:
        raise UsageError("inspect takes one model: autolayers inspect MODEL.gguf")
    # -c, -ctk and -ctv decide the size of the cache that is shown
    layers = model_layers(load(names[0], arguments), arguments.params)
    if arguments.own.get("format") == "json":
        emit_json(layers.to_dict())
        return 0
    show(inspect_text(layers, Style.here()))
    return 0
