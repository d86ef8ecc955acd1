"""The command line: words in, one call of the library, its answer out.

Errors end here and nowhere else: an AutolayersError is one line on stderr and its exit code.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import pairwise

from ..errors import AutolayersError
from ..flags.own import COMMANDS, own_flags
from ..output import discard, emit, one_line, open_streams, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code: 0 fits, 2 usage, 3 model, 4 devices, 5 does not fit, 130
    interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    try:
        code = _command(words)
        sys.stdout.flush()
        return code
    except AutolayersError as error:
        say(str(error))
        if _asks_for_json(words):
            _print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard()
        return 1
    except OSError as error:
        say(_of_system(error))
        discard()
        return 1
    except ModuleNotFoundError as error:  # autolayers.pyz brings no psutil along
        if _is_own(error):
            raise
        say(f"the Python package {error.name} is missing: pip install {error.name}")
        return 1
    except (MemoryError, RecursionError) as error:
        say(_of_system(error))
        discard()
        return 1


def _of_system(error: Exception) -> str:
    """Return what the system says of an error, in one line."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    why = error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else f"cannot write the answer: {why}"


def _is_own(error: ModuleNotFoundError) -> bool:
    """Return whether the missing module is one of autolayers, or has no name."""
    return not error.name or error.name.startswith("autolayers")


def _command(words: list[str]) -> int:
    if not words:
        from .help import short

        sys.stderr.write(short())
        return 2
    if words[0] in ("-h", "--help", "help"):
        from .help import help_of, overview

        sys.stdout.write(help_of(" ".join(words[1:])) if words[1:] else overview())
        return 0
    if words == ["version"]:
        words = ["--version"]
    if words[0] == "__complete":  # asked by the scripts of `autolayers completion`
        from .completion import complete

        return complete(words[1:])
    return _named(words)


def _named(words: list[str]) -> int:
    """Runs the command that the first word names, or plan."""
    name, rest = (words[0], words[1:]) if words[0] in COMMANDS else ("plan", words)
    if name != "run" and ("-h" in rest or "--help" in rest):
        from .help import help_of

        sys.stdout.write(help_of(name if name != "ollama" else f"ollama {rest[0]}"))
        return 0
    if _asks_for_cards(name, rest):
        from ..devices.cards import table

        show(table())
        return 0
    # Each command is the main of the module of its name
    command: Callable[[list[str]], int] = import_module(f"{__name__}.{name}").main
    return command(rest)


def _asks_for_json(words: list[str]) -> bool:
    """Return whether the words of a command that has --json ask for it."""
    name, rest = (words[0], words[1:]) if words[:1] and words[0] in COMMANDS else ("plan", words)
    if "--json" not in own_flags(_whole(name, rest)):
        return False
    return "--json" in rest or "--format=json" in rest or ("--format", "json") in pairwise(rest)


def _print_error(error: AutolayersError) -> None:
    """What `autolayers serve` answers for the same, for a program that reads stdout."""
    import json

    try:
        emit(json.dumps({"error": one_line(str(error)), "exit_code": error.exit_code}) + "\n")
        sys.stdout.flush()
    except OSError:
        discard()


def _whole(command: str, words: list[str]) -> str:
    """Return the command's name: of Ollama's with the second word."""
    return " ".join(["ollama", *words[:1]]) if command == "ollama" else command


def _asks_for_cards(command: str, words: list[str]) -> bool:
    """Return whether the words of a command that plans for GPUs have --gpu list."""
    command = _whole(command, words)
    if "--gpu" not in own_flags(command):
        return False
    return "--gpu=list" in words or "--gpu list" in " ".join(words)
