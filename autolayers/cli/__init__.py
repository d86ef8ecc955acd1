"""The command line: words in, one call of the library, its answer out.

Errors end here and nowhere else: an AutolayersError is one line on stderr and its exit code.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..flags.parse import Arguments
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
    except OSError as error:
        why = error.strerror or str(error)
        say(f"{error.filename}: {why}" if error.filename else f"cannot write the answer: {why}")
        discard()
        return 1
    except (MemoryError, RecursionError) as error:
        say(str(error) or type(error).__name__)
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
    if _asks_for_cards(name, rest):
        from ..devices.cards import table
        from ..output import show

        show(table())
        return 0
    from importlib import import_module

    # Each command is the main of the module of its name
    command: Callable[[list[str]], int] = import_module(f"{__name__}.{name}").main
    return command(rest)


def load(name: str, arguments: Arguments | None = None) -> Model:
    """The model a user named: a path, or anything autolayers.sources knows, with the -hft and --offline of `arguments`.

    Raises ModelError, with what may have been meant where there is no such file."""
    import os

    from ..errors import ModelError
    from ..model import read_model
    from ..sources import needs_download, network_environ, open_source

    if not name:
        raise ModelError("an empty word names no model")
    if not os.path.isfile(name) and not needs_download(name):
        _refuse_name(name)
    return read_model(open_source(name, network_environ(os.environ, arguments) if arguments else None))


def _asks_for_cards(command: str, words: list[str]) -> bool:
    """Whether the words have --gpu list, of a command that plans for GPUs."""
    from ..flags.own import own_flags

    if command == "ollama":
        command = " ".join(["ollama", *words[:1]])
    if "--gpu" not in own_flags(command):
        return False
    return "--gpu=list" in words or "--gpu list" in " ".join(words)


def _of_the_hub(name: str) -> str:
    """USER/REPO[:QUANT] of "hf.co/USER/REPO:QUANT" and of "USER/REPO-GGUF"; "" of other names."""
    for site in ("hf.co/", "huggingface.co/", "www.huggingface.co/"):
        if name.lower().startswith(site):
            return name[len(site):]
    repository = name.partition(":")[0]
    user, _, rest = repository.partition("/")
    return name if user.strip(".") and rest.lower().endswith("gguf") and not set(rest) & set("/\\.") else ""


def _refuse_name(name: str) -> None:
    """Raises ModelError for a name that is no file and that a person may have meant otherwise."""
    import os

    from ..errors import ModelError
    from ..flags.check import nearest
    from ..flags.own import COMMANDS
    from ..gguf.nearest import nearest_file

    if os.path.isdir(name):
        found = sorted(entry for entry in os.listdir(name) if entry.endswith(".gguf"))
        inside = f"; it has {', '.join(found[:4])}{' ...' if len(found) > 4 else ''}" if found else ""
        raise ModelError(f"{name}: a directory, not a model{inside}")
    if os.path.lexists(name):
        return
    repository = _of_the_hub(name)
    if repository:
        raise ModelError(f"{name}: no such file; a repository of Hugging Face is hf:{repository}")
    if file := nearest_file(name):
        raise ModelError(f"{name}: no such file; did you mean {file}?")
    if name.lower().endswith(".gguf") or "\\" in name:
        return
    if "/" in name or ":" in name:
        owner, slash, rest = name.partition("/")
        if not slash:
            raise ModelError(f"{name}: no such file; a model of Ollama's is ollama:{name}")
        if owner and owner[0] not in ".~" and rest and not set(rest) & set("/\\") and not os.path.lexists(owner):
            raise ModelError(f"{name}: no such file; a repository of Hugging Face is hf:{name}")
        return
    near = nearest(name, [command for command in COMMANDS if " " not in command]) if name.isalpha() else None
    if near:
        raise ModelError(f"{name}: no such file; did you mean {'' if near == 'plan' else 'the command '}autolayers "
                         f"{'MODEL' if near == 'plan' else near}?")
    raise ModelError(f"{name}: no such file; a model of Ollama's is ollama:{name}, one of Hugging Face hf:USER/REPO")
