"""Names of models, and where their headers come from.

    open_source("model.gguf")                                 the path, unchanged
    open_source("https://example.org/m-00001-of-00003.gguf")  its shards' headers, read over HTTP
    open_source("hf:USER/REPO:Q4_K_M")                        what `-hf USER/REPO:Q4_K_M` loads
    open_source("hf:USER/REPO/dir/FILE.gguf@REVISION")        this file
    open_source("ollama:llama3.1:8b")                         a model of Ollama's store or server

    read_model(open_source(name))                             takes any of them

A model of the Hub that llama-server or the Hub's own client has downloaded is read from their
cache, without the network. Nothing is written to disk: other models are fetched each time.
"""

from __future__ import annotations

from os import environ as _environ
from os import path as _path

from ..errors import AutolayersError, ModelError
from ..gguf import Header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..flags.parse import Arguments
    from .http import Remote

__all__ = ["needs_download", "network_environ", "open_source"]

_ELSEWHERE = ("http://", "https://", "hf:", "docker:", "ollama:")


def needs_download(name: str) -> bool:
    """Return whether the model is not a file of this machine, so that it cannot be given to a
    launch as a path."""
    # A file named "hf:x" exists on somebody's disk: it wins
    return not _path.exists(name) and (name.lower().startswith(_ELSEWHERE) or "://" in name)


def open_source(name: str, environ: Mapping[str, str] | None = None) -> str | Header | list[Remote]:
    """Return the argument of autolayers.gguf.read_header for this name. A file of exactly that name
    takes precedence.

    `environ` (None: the process's) may have HF_ENDPOINT, HF_TOKEN, the variables of its caches
    (hf_cache.directories), LLAMA_ARG_OFFLINE, HF_HUB_OFFLINE, OLLAMA_HOST and OLLAMA_MODELS.

    Raises ModelError: one line with the model, the problem, and its fix.
    """
    environ = _environ if environ is None else environ
    if not needs_download(name):
        return name
    kind = name.partition(":")[0].lower()
    if kind == "hf":
        return _hub(name, environ)
    if kind in ("http", "https"):
        # Imported here: planning for a file imports no HTTP client
        from ..net import NetError
        from .http import open_url
        from .huggingface import Hub

        try:
            hub = Hub(environ)
            # people paste the page's address: the repository alone names no file
            if repository := hub.repository_of(name):
                raise ModelError(
                    f"{name}: a repository's page; for its models write hf:{repository}"
                )
            return open_url(hub.file_url(name), hub.token_for)
        except NetError as error:
            raise ModelError(str(error)) from None
    if kind == "ollama":
        return _ollama(name.partition(":")[2].removeprefix("//"), environ)
    raise ModelError(
        f"{name}: cannot be read from here; give a path, http(s)://..., hf:USER/REPO or ollama:NAME"
    )


def network_environ(environ: Mapping[str, str], arguments: Arguments) -> Mapping[str, str]:
    """Return the environment with the values of -hft and --offline."""
    token, offline = arguments.value("-hft"), arguments.value("--offline")
    return {
        **environ,
        **({"HF_TOKEN": token} if token else {}),
        **({"LLAMA_ARG_OFFLINE": "1"} if offline is not None else {}),
    }


def is_offline(environ: Mapping[str, str]) -> bool:
    """Return whether llama-server or the Hub's client is told to stay off the network."""
    return any(
        environ.get(name, "").strip().lower() in ("1", "on", "true", "yes", "enabled")
        for name in ("LLAMA_ARG_OFFLINE", "HF_HUB_OFFLINE")
    )


def _hub(name: str, environ: Mapping[str, str]) -> Header:
    """Read the header from a cache of this machine, otherwise from the Hub."""
    from ..net import NetError
    from . import hf_cache

    cached_header, cached = hf_cache.header(name, environ)
    if cached_header is not None:
        return cached_header
    partly = hf_cache.what_is_unfinished(cached)
    try:
        if is_offline(environ):
            raise ModelError(
                f"{name}: not in the caches of this machine, and the network is off "
                f"(--offline){hf_cache.what_there_is(cached)}"
            )
        from .huggingface import Hub

        header = Hub(environ).header(name)
        # The Hub has it whole, but a launch would first finish this download
        notes = (*header.notes, partly) if partly else header.notes
        return Header(
            header.version, header.alignment, header.metadata, header.tensors, header.files, notes
        )
    except (ModelError, NetError) as error:
        raise ModelError(f"{error}; {partly}" if partly else str(error)) from None


def _ollama(name: str, environ: Mapping[str, str]) -> Header:
    from .ollama import read_header

    try:
        return read_header(name, environ)
    except ModelError:
        raise
    except AutolayersError as error:
        raise ModelError(f"ollama:{name}: {error}") from None
