"""Keys, tokens and URLs with credentials in a command; llama-server reads each from an environment
variable too.

    without_secrets(["--api-key", "x", "--port", "80"])     # (["--port", "80"], ["LLAMA_API_KEY"])
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ..flags.parse import Item, items_of_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .command import WrappedCommand

_FLAGS = ("--api-key", "-hft")  # always
_URL_FLAGS = ("-mu", "-mmu")  # if the URL has a user or a query
_VARIABLES = ("LLAMA_API_KEY", "HF_TOKEN")


def without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (the words without secrets, the environment variables that carry them instead)."""
    public, names = public_items(items_of_fork(words))
    return [word for item in public for word in item.words], names


def public_items(found: Iterable[Item]) -> tuple[list[Item], list[str]]:
    """Return the same for words that are read already."""
    public: list[Item] = []
    names: list[str] = []
    for item in found:
        row = item.argument
        # e.g. -mu https://user:password@host/model.gguf
        if row and (
            row.canonical in _FLAGS
            or (row.canonical in _URL_FLAGS and _has_credentials(item.value))
        ):
            names.append(row.env)
        else:
            public.append(item)
    return public, names


def launcher_without_secrets(command: WrappedCommand) -> tuple[list[str], list[str]]:
    """Return the same for the words before the program: `env LLAMA_API_KEY=x`, and `docker run -e
    LLAMA_API_KEY=x`, which becomes `-e LLAMA_API_KEY`, the caller's variable."""
    public: list[str] = []
    names: list[str] = []
    for word in command.launcher:
        # `docker run -eNAME=x` is one word; of `-e NAME=x` the second word is without an option
        option = next(
            (
                option
                for option in ("--env=", "-e")
                if word.startswith(option) and command.container
            ),
            "",
        )
        name, equals, _ = word[len(option) :].partition("=")
        if equals and name in _VARIABLES:
            names.append(name)
            # Docker takes a variable without a value from its caller; `env` needs no word for that
            public += [option + name] if command.container else []
        else:
            public.append(word)
    return public, names


def _has_credentials(url: str) -> bool:
    try:
        split = urlsplit(url)
    except ValueError:
        # Not a URL that can be judged: rather too careful
        return True
    # as in the Hub's own links
    return "@" in split.netloc or split.query not in ("", "download=true")
