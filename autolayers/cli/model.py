"""Opens the model that a user names, and suggests another name if there is no such file."""

from __future__ import annotations

import os

from ..errors import ModelError
from ..flags.check import nearest
from ..flags.own import COMMANDS
from ..model import Model, read_model
from ..sources import needs_download, network_environ, open_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.parse import Arguments

# words of other programs, and the commands that do what they say
# (plan takes a first word that is no command for a model, and finds no file of that name)
_WORDS = {
    "run": "start serve launch server",
    "ollama list": "list ls",
    "choose": "compare recommend",
    "tune": "bench benchmark",
    "explain": "log logs diagnose",
    "devices": "gpus gpu",
    "inspect": "info show",
    "ps": "status top",
}
_MEANT = {word: command for command, words in _WORDS.items() for word in words.split()}


def load(name: str, arguments: Arguments | None = None) -> Model:
    """Return the model a user named: a path, or anything autolayers.sources knows, with the -hft
    and --offline of `arguments`.

    Raises ModelError, with a suggestion if there is no such file."""
    if not name:
        raise ModelError("the model's name is empty")
    # With a suggestion here, before open_source says no more than that there is no such file
    if not os.path.isfile(name) and not needs_download(name):
        _refuse_name(name)
    # Of a remote model only the header is fetched
    return read_model(
        open_source(name, network_environ(os.environ, arguments) if arguments else None)
    )


def _of_the_hub(name: str) -> str:
    """USER/REPO[:QUANT] of "hf.co/USER/REPO:QUANT" and of "USER/REPO-GGUF"; "" of other names."""
    # As Ollama writes it, and as it stands in a browser's address line
    for site in ("hf.co/", "huggingface.co/", "www.huggingface.co/"):
        if name.lower().startswith(site):
            return name[len(site) :]
    repository = name.partition(":")[0]
    user, _, rest = repository.partition("/")
    return (
        name
        # "./my-gguf" and "../my-gguf" are paths
        if user.strip(".") and rest.lower().endswith("gguf") and not set(rest) & set("/\\.")
        else ""
    )


def _refuse_name(name: str) -> None:
    """Raise ModelError with a suggestion for a name that is not a file."""
    if os.path.isdir(name):
        names = sorted(entry for entry in os.listdir(name) if entry.endswith(".gguf"))
        # A folder of a hundred models must not fill the terminal
        some = f"; it has {', '.join(names[:4])}" if names else ""
        more = " ..." if len(names) > 4 else ""
        raise ModelError(f"{name}: a directory, not a model{some}{more}")
    # A pipe or a link whose target is gone: read_model says what is wrong with it
    if os.path.lexists(name):
        return
    repository = _of_the_hub(name)
    if repository:
        raise ModelError(
            f"{name}: no such file; for a Hugging Face repository write hf:{repository}"
        )
    from ..gguf.nearest import nearest_file

    # e.g. the ending was left out, or a letter is wrong
    if file := nearest_file(name):
        raise ModelError(f"{name}: no such file; did you mean {file}?")
    # A path for sure: read_model's own message names it
    if name.lower().endswith(".gguf") or "\\" in name:
        return
    if "/" in name or ":" in name:
        # Raise ModelError for NAME:TAG and OWNER/NAME, which need a prefix; let paths pass.
        owner, slash, rest = name.partition("/")
        # "qwen3:4b" is how Ollama names a model
        if not slash:
            raise ModelError(f"{name}: no such file; for an Ollama model write ollama:{name}")
        # "user/repo", but not "folder/model" where that folder exists
        two_parts = owner and rest and not set(rest) & set("/\\")
        if two_parts and owner[0] not in ".~" and not os.path.lexists(owner):
            raise ModelError(f"{name}: no such file; for a Hugging Face repository write hf:{name}")
        return
    # What a word may have meant: the command that it is, or nearly is
    command = _MEANT.get(name)
    if not command and name.isalpha():
        command = nearest(name, [command for command in COMMANDS if " " not in command])
    way = f"for an Ollama model write ollama:{name}, for a Hugging Face one hf:USER/REPO"
    if command:
        way = f"did you mean the command autolayers {command}?"
    if command == "plan":
        way = "did you mean autolayers MODEL?"
    raise ModelError(f"{name}: no such file; {way}")
