"""All models of one name: the files of a repository of the Hub, of a directory, or of Ollama's
store.

    # [Offer("Q4_K_M", "hf:USER/REPO/m-Q4_K_M.gguf", ("-hf", "USER/REPO:Q4_K_M"))]
    offers("hf:USER/REPO", environ)
    offers("/models", environ)           # every GGUF below it
    offers("ollama:", environ)           # as in `ollama list`
"""

from __future__ import annotations

import os

from ..errors import ModelError
from ..model.quantisation import named
from ..net import NetError
from ..records import dataclass
from . import is_offline, needs_download
from .hf_cache import look_up, what_is_unfinished
from .http import patience
from .huggingface import Hub, models_of, parse_name, words_of
from .ollama.api import OllamaError, OllamaServer
from .ollama.store import StoreUnreadable, find, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_FILES = 10000  # of a directory tree

_NO_FILES = ("/proc", "/sys", "/dev")


@dataclass(frozen=True)
class Offer:
    """A model to choose from: its short name, its name for open_source, llama-server's flags for
    it, and the command of the program that has it."""

    name: str
    source: str
    words: tuple[str, ...]
    starts: tuple[str, ...] = ()


def offers(
    name: str, environ: Mapping[str, str], at: Callable[[str], None] = lambda _: None
) -> tuple[list[Offer], list[str]]:
    """Return the models of a name, and notes about the list; `at` is told each folder of a
    directory. Raises ModelError if there are none."""
    if os.path.isdir(name):
        return _directory(name, at), []
    if os.path.exists(name) or not needs_download(name):
        if name == "ollama":
            return _ollama(environ), []
        return [Offer(_bare(os.path.basename(name)), name, ("-m", name))], []
    kind = name.partition(":")[0].lower()
    if kind == "ollama" and not name.partition(":")[2]:
        return _ollama(environ), []
    if kind == "hf":
        return _repository(name, environ)
    return [
        Offer(_bare(name.rpartition("/")[2]) or name, name, ("-mu", name) if "://" in name else ())
    ], []


def _bare(name: str) -> str:
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def _directory(place: str, at: Callable[[str], None]) -> list[Offer]:
    paths: list[str] = []
    for folder, folders, files in os.walk(place):
        at(folder)
        # Linux's own views of the machine below / hold no models
        folders[:] = sorted(name for name in folders if os.path.join(folder, name) not in _NO_FILES)
        paths += [
            os.path.join(folder, name) for name in sorted(files) if name.lower().endswith(".gguf")
        ]
        # A home directory or / would be walked for minutes
        if len(paths) > MAX_FILES:
            raise ModelError(
                f"{place}: more than {MAX_FILES} GGUF files; name a directory further down"
            )
    # Slashes: the names of shards are matched as the Hub writes them
    models = models_of([path.replace(os.sep, "/") for path in paths])
    if not models:
        raise ModelError(f"{place}: no GGUF model in this directory or below it")
    return [Offer(_bare(os.path.relpath(path, place)), path, ("-m", path)) for path in models]


def _repository(name: str, environ: Mapping[str, str]) -> tuple[list[Offer], list[str]]:
    repository, revision, wanted, quant = parse_name(name)
    words = (
        "-hf",
        f"{repository}:{quant}" if quant else repository,
        *(("-hff", wanted) if wanted else ()),
    )
    if wanted or quant:
        return [Offer(wanted.rpartition("/")[2] or quant, name, words)], []
    files, notes = _files_of(name, repository, revision, environ)
    models = models_of(files)
    if not models:
        raise ModelError(
            f"hf:{repository}: no GGUF model in it; look for a repository whose name "
            "ends with -GGUF"
        )
    # -hf takes no revision: `source` says it, for a plan
    at = "" if revision == "main" else f"@{revision}"
    offers = []
    # The quantisation of each model, or the paths if that does not tell them apart.
    quants = [match[1] if (match := named(path)) else "" for path in models]
    # Such as two models in one repository, both as Q4_K_M
    distinct = all(quants) and len({quant.upper() for quant in quants}) == len(quants)
    for path, label in zip(models, quants if distinct else list(models), strict=True):
        source = f"hf:{repository}/{path}{at}"
        offers.append(Offer(label, source, words_of(repository, files, path)))
    return offers, notes


def _files_of(
    name: str, repository: str, revision: str, environ: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return a repository's files, and a note if those in this machine's caches replace the
    Hub's answer. Raises ModelError."""
    cached = look_up(name, environ)[0]
    try:
        if is_offline(environ):
            raise ModelError(
                f"{name}: not in the caches of this machine, and the network is off (--offline)"
            )
        return list(Hub(environ).files(repository, revision, name, patience())), []
    except (ModelError, NetError) as error:
        # Without the network the files that are here can still be planned
        files = [path for path in cached.files if cached.whole(path)]
        if not models_of(files):
            reasons = filter(None, (str(error), what_is_unfinished(cached)))
            raise ModelError("; ".join(reasons)) from None
        return files, [f"{error}; these are the files on this machine"]


def _ollama(environ: Mapping[str, str]) -> list[Offer]:
    rows: list[Offer] = []
    offered: set[tuple[str, tuple[str, ...]]] = set()  # two tags of one file are one offer
    # :latest last, as it is mostly another tag's second name
    for name in sorted(names(environ), key=lambda name: str(name).endswith(":latest")):
        if name.is_cloud:
            continue
        try:
            words: tuple[str, ...] = "-m", find(str(name), environ).model
        except StoreUnreadable:
            # A store that may not be read: the server can still run the model
            words = ()
        except ModelError:
            continue  # made of safetensors
        same = str(name).rpartition(":")[0], words
        if words and same in offered:
            continue
        offered.add(same)
        rows.append(Offer(str(name), f"ollama:{name}", words, ("ollama", "run", str(name))))
    return rows or _listed(environ)


def _listed(environ: Mapping[str, str]) -> list[Offer]:
    """Return the models of the server. Raises ModelError if it has none, or none runs."""
    try:
        listed = [
            str(entry.get("name", "")) for entry in OllamaServer.from_environment(environ).tags()
        ]
    except OllamaError as error:
        raise ModelError(f"ollama: no model in its store, and {error}") from None
    if not listed:
        raise ModelError(
            "ollama: no model in its store, nor on the server: `ollama pull NAME` downloads one"
        )
    return [Offer(name, f"ollama:{name}", (), ("ollama", "run", name)) for name in listed if name]
