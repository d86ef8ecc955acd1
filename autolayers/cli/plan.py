"""`autolayers MODEL...`: the plan of one model, or of several that are loaded together."""

from __future__ import annotations

import os

from .. import __version__
from ..engines import LLAMA_SERVER
from ..errors import UsageError
from ..flags.check import read
from ..output import show
from ..request import meant
from .words import form_of, models_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Plan one model, or several together, and print the answer; 5 if it does not fit."""
    words, engine = meant(words)
    arguments = read("plan", words, os.environ)
    if arguments.own.get("version"):
        show(f"autolayers {__version__}\n")
        return 0
    names = models_named(arguments)
    if not names:
        raise UsageError("name a model: autolayers MODEL.gguf [flags]; see autolayers --help")
    # --table: into a pager or a file, too
    form = form_of(arguments, bool(arguments.own.get("table")))
    keeps = arguments.own.get("swap") or arguments.own.get("stay")
    turns = bool(keeps) or any(map(os.path.isdir, names))
    if turns or len(names) > 1:
        from .several import at_once, in_turns

        return (in_turns if turns else at_once)(names, arguments, form)
    from .one import plan_one

    return plan_one(names[0], arguments, form, engine or LLAMA_SERVER)
