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
from ..programs import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0 fits, 2 usage, 3 model, 4 devices, 5 does not fit, 130
    interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    # First of all: a daemon may start this with stderr closed, and the next file would be fd 2
    open_streams()
    waiting[:] = [lambda program: say(f"waiting for {program}, which does not answer yet")]
    try:
        code = _command(words)
        # A full disk or a closed pipe shows itself here, where it can still be caught
        sys.stdout.flush()
        return code
    except AutolayersError as error:
        # A program that reads stdout gets the error as JSON, a person the line on stderr
        say(str(error))
        # The words may be refused ones, so they are looked at and not parsed
        name, rest = _command_and_rest(words)
        asked = "--json" in rest or "--format=json" in rest
        # After `run` --json would be the program's
        if "--json" in own_flags(_whole(name, rest)) and (
            asked or ("--format", "json") in pairwise(rest)
        ):
            # Print what `autolayers serve` answers for the same, for a program that reads stdout.
            import json

            try:
                # Without a secret that a URL in the message may carry
                emit(
                    json.dumps({"error": one_line(str(error)), "exit_code": error.exit_code}) + "\n"
                )
                sys.stdout.flush()
            # stderr has said it: a stdout that is gone changes nothing
            except OSError:
                discard()
        return error.exit_code
    except KeyboardInterrupt:
        # 128 + SIGINT, as a shell reports it
        return 130
    except BrokenPipeError:
        # `autolayers MODEL | head` has what it wanted: nothing to say
        discard()
        return 1
    except ModuleNotFoundError as error:  # autolayers.pyz brings no psutil along
        # A missing module of our own is a defect: its traceback helps
        # Whether the missing module is one of autolayers, or has no name.
        if not error.name or error.name.startswith("autolayers"):
            raise
        say(f"the Python package {error.name} is missing: pip install {error.name}")
        return 1
    except (OSError, MemoryError, RecursionError) as error:
        # Of stdout on a full disk, of a file that a command opens without wrapping its errors, or
        # of Python's own limits: one line, with exit code 1
        say(_of_system(error))
        discard()
        return 1
    except RuntimeError as error:
        # what the system's limits do not admit (ulimit -u, -v) is no defect
        if "can't start new thread" not in str(error):
            raise
        say(f"{error}: this system's limits (ulimit) are too low")
        discard()
        return 1


def _of_system(error: Exception) -> str:
    """Return what the system says of an error, in one line."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    # "No such file or directory" without "[Errno 2]"
    why = error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else f"cannot write the answer: {why}"


def _command(words: list[str]) -> int:
    if not words:
        from .help import short

        # On stderr: $(autolayers) in a command line must not put words into it
        sys.stderr.write(short())
        return 2
    if words[0] in ("-h", "--help", "help"):
        from .help import help_of, overview

        # `autolayers help ollama plan` as `autolayers ollama plan --help`
        sys.stdout.write(help_of(" ".join(words[1:])) if words[1:] else overview())
        return 0
    # Alone: next to other words it is a model's name
    if words == ["version"]:
        words = ["--version"]
    if words[0] == "__complete":  # asked by the scripts of `autolayers completion`
        from .completion import complete

        return complete(words[1:])
    return _named(words)


def _named(words: list[str]) -> int:
    """Run the command that the first word names, or plan."""
    name, rest = _command_and_rest(words)
    # After `run` -h may be the wrapped program's: run itself reads the words before it
    if name != "run" and ("-h" in rest or "--help" in rest):
        from .help import help_of

        # help_of leaves words with dashes out, so `ollama --help` is the overview of Ollama's
        sys.stdout.write(help_of(name if name != "ollama" else f"ollama {rest[0]}"))
        return 0
    # Before the words are checked: the list of cards needs no model. A command without --gpu
    # refuses the word as unknown
    listed = "--gpu=list" in rest or "--gpu list" in " ".join(rest)
    if listed and "--gpu" in own_flags(_whole(name, rest)):
        from ..devices.cards import table

        show(table())
        return 0
    # Each command is the main of the module of its name
    # and is imported only now, so that a plan for a given GPU pays for no other command
    command: Callable[[list[str]], int] = import_module(f"{__name__}.{name}").main
    return command(rest)


def _command_and_rest(words: list[str]) -> tuple[str, list[str]]:
    """Return the command that the first word names, and the words after it; plan has no word."""
    if words and words[0] in COMMANDS:
        return words[0], words[1:]
    return "plan", words


def _whole(command: str, words: list[str]) -> str:
    """Return the command's name: of Ollama's with the second word, where that is one of them."""
    if command != "ollama":
        return command
    name = " ".join(["ollama", *words[:1]])
    return name if name in COMMANDS else "ollama plan"
