"""`autolayers compare [own flags] -- llama-server -m MODEL ...`: a command that somebody wrote,
beside a better one."""

from __future__ import annotations

import os

from ..errors import DoesNotFit, LaunchRefused
from ..flags.check import read
from ..launch import command as commands
from ..launch.session import Session
from ..output import emit_json, show
from ..planner.compare.yours import beside, is_better
from ..records import replace
from ..report.multi import model_words
from ..report.table import Style
from ..report.yours import difference, yours_text
from .words import other_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Print both launches; 5 if none of them fits. Nothing is started."""
    own = read("compare", argv[: commands.own_end(argv, "compare")]).own
    command = commands.read(argv, "compare")
    # As nothing is started, the program and its devices need not be here
    session = Session(command, {**own, "dry-run": True, "confirm": False}, os.environ)
    yours, better = beside(session.model, session.request)
    taken = better if isinstance(yours, LaunchRefused) or is_better(yours, better) else yours
    bare = replace(command, words=(*model_words(better), *other_words(session.arguments)))
    added, _ = commands.additions(bare, better.flags, session.build, {})
    words = [*command.launcher, *bare.words, *added]
    if own.get("json"):
        said = {
            "schema": 1,
            "text": difference(yours, taken),
            "is_better": taken is better,
            "words": words,
            "refused": str(yours) if isinstance(yours, LaunchRefused) else None,
            "yours": None if isinstance(yours, LaunchRefused) else yours.to_dict(),
            "better": better.to_dict(),
        }
        emit_json(said)
    else:
        show(yours_text(yours, taken, words, Style.here()))
    return 0 if taken.fits else DoesNotFit.exit_code
