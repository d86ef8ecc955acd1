"""Opens the model that a user names, and suggests another name if there is no such file."""

from __future__ import annotations

import os

from ..errors import ModelError
from ..flags.check import nearest
from ..flags.own import COMMANDS
from ..model import read_model
from ..sources import needs_download, network_environ, open_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.parse import Arguments
    from ..model import Model

# words of other programs, and the commands that do what they say
_MEANT = {
    "start": "run",
    "serve": "run",
    "launch": "run",
    "server": "run",
    "list": "ollama list",
    "ls": "ollama list",
    "compare": "choose",
    "recommend": "choose",
    "bench": "tune",
    "benchmark": "tune",
    "log": "explain",
    "logs": "explain",
    "diagnose": "explain",
    "gpus": "devices",
    "gpu": "devices",
    "info": "inspect",
    "show": "inspect",
    "status": "ps",
    "top": "ps",
}


def load(name: str, arguments: Arguments | None = None) -> Model:
    """The model a user named: a path, or anything autolayers.sources knows, with the -hft and
    --offline of `arguments`.

    Raises ModelError, with a suggestion if there is no such file."""
    if not name:
        raise ModelError("the model's name is empty")
    if not os.path.isfile(name) and not needs_download(name):
        _refuse_name(name)
    return read_model(
        open_source(name, network_environ(os.environ, arguments) if arguments else None)
    )


def _of_the_hub(name: str) -> str:
    """USER/REPO[:QUANT] of "hf.co/USER/REPO:QUANT" and of "USER/REPO-GGUF"; "" of other names."""
    for site in ("hf.co/", "huggingface.co/", "www.huggingface.co/"):
        if name.lower().startswith(site):
            return name[len(site) :]
    repository = name.partition(":")[0]
    user, _, rest = repository.partition("/")
    return (
        name
        if user.strip(".") and rest.lower().endswith("gguf") and not set(rest) & set("/\\.")
        else ""
    )


def _refuse_name(name: str) -> None:
    """Raises ModelError with a suggestion for a name that is not a file."""
    if os.path.isdir(name):
        found = sorted(entry for entry in os.listdir(name) if entry.endswith(".gguf"))
        inside = (
            f"; it has {', '.join(found[:4])}{' ...' if len(found) > 4 else ''}" if found else ""
        )
        raise ModelError(f"{name}: a directory, not a model{inside}")
    if os.path.lexists(name):
        return
    repository = _of_the_hub(name)
    if repository:
        raise ModelError(
            f"{name}: no such file; for a Hugging Face repository write hf:{repository}"
        )
    from ..gguf.nearest import nearest_file

    if file := nearest_file(name):
        raise ModelError(f"{name}: no such file; did you mean {file}?")
    if name.lower().endswith(".gguf") or "\\" in name:
        return
    if "/" in name or ":" in name:
        owner, slash, rest = name.partition("/")
        if not slash:
            raise ModelError(f"{name}: no such file; for an Ollama model write ollama:{name}")
        two_parts = owner and rest and not set(rest) & set("/\\")
        if two_parts and owner[0] not in ".~" and not os.path.lexists(owner):
            raise ModelError(f"{name}: no such file; for a Hugging Face repository write hf:{name}")
        return
    near = _MEANT.get(name) or (
        nearest(name, [command for command in COMMANDS if " " not in command])
        if name.isalpha()
        else None
    )
    if near:
        raise ModelError(
            f"{name}: no such file; did you mean "
            f"{'' if near == 'plan' else 'the command '}autolayers "
            f"{'MODEL' if near == 'plan' else near}?"
        )
    raise ModelError(
        f"{name}: no such file; for an Ollama model write ollama:{name}, for a "
        f"Hugging Face one "
        "hf:USER/REPO"
    )
