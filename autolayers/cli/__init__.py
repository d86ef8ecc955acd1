"""The command line: words in, one call of the library, its answer out.

Errors end here and nowhere else: an AutolayersError is one line on stderr and its exit code.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..model import Model

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code: 0 fits, 2 usage, 3 model, 4 devices, 5 does not fit, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    from ..errors import AutolayersError
    from ..output import discard, open_streams, say

    open_streams()
    try:
        code = _command(words)
        sys.stdout.flush()
        return code
    except AutolayersError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard()
        return 1
    except (OSError, MemoryError, RecursionError) as error:
        say(f"{error}" or type(error).__name__)
        discard()
        return 1


def _command(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        from .help import help_of, overview

        (sys.stdout if words else sys.stderr).write(help_of(" ".join(words[1:])) if words[1:] else overview())
        return 0 if words else 2
    from ..flags.own import COMMANDS

    name, rest = (words[0], words[1:]) if words[0] in COMMANDS else ("plan", words)
    if name != "run" and ("-h" in rest or "--help" in rest):
        from .help import help_of

        sys.stdout.write(help_of(name if name != "ollama" else f"ollama {rest[0]}"))
        return 0
    from importlib import import_module

    # Each command is the main of the module of its name
    command: Callable[[list[str]], int] = import_module(f"{__name__}.{name}").main
    return command(rest)


def load(name: str, token: str | None = None) -> Model:
    """The model a user named: a path, or anything autolayers.sources knows; `token` comes before HF_TOKEN."""
    import os

    from ..model import read_model
    from ..sources import open_source

    return read_model(open_source(name, {**os.environ, "HF_TOKEN": token} if token else None))

