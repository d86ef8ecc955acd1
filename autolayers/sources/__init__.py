"""What a user types for a model, and where its header comes from.

    open_source("model.gguf")                                the path, as it is
    open_source("https://example.org/m-00001-of-00003.gguf") its parts, read over HTTP as far as their headers go
    open_source("hf:USER/REPO:Q4_K_M")                       the file that `llama-server -hf USER/REPO:Q4_K_M` takes
    open_source("hf:USER/REPO/dir/FILE.gguf@REVISION")       this file
    open_source("ollama:llama3.1:8b")                        a model of Ollama's store, or as its server describes it

    read_model(open_source(name))                            takes any of them

Nothing is kept on disk: the header is fetched each time.
"""

from __future__ import annotations

from os import environ as _environ
from os import path as _path

from ..errors import AutolayersError, ModelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..gguf import Header
    from .http import Remote

__all__ = ["needs_download", "open_source"]

_ELSEWHERE = ("http://", "https://", "hf:", "docker:", "ollama:")


def needs_download(name: str) -> bool:
    """Whether it names a model that is not a file of this machine, so that no launch can be given it as a path."""
    return not _path.exists(name) and (name.lower().startswith(_ELSEWHERE) or "://" in name)


def open_source(name: str, environ: Mapping[str, str] | None = None) -> str | Header | list[Remote]:
    """What autolayers.gguf.read_header takes for this name; a file of that very name comes first.

    `environ` (None: the process's) may have HF_ENDPOINT, HF_TOKEN, OLLAMA_HOST and OLLAMA_MODELS.

    Raises ModelError: one line that names the model, what is wrong, and the way out.
    """
    environ = _environ if environ is None else environ
    if not needs_download(name):
        return name
    kind = name.partition(":")[0].lower()
    if kind in ("http", "https", "hf"):
        from ..net import NetError
        from .http import open_url
        from .huggingface import Hub

        try:
            hub = Hub(environ)
            return hub.header(name) if kind == "hf" else open_url(hub.file_url(name), hub.token_for)
        except NetError as error:
            raise ModelError(str(error)) from None
    if kind == "ollama":
        return _ollama(name.partition(":")[2].removeprefix("//"), environ)
    raise ModelError(f"{name}: cannot be read from here; give a path, http(s)://..., hf:USER/REPO or ollama:NAME")


def _ollama(name: str, environ: Mapping[str, str]) -> Header:
    from .ollama import read_header

    try:
        return read_header(name, environ)
    except ModelError:
        raise
    except AutolayersError as error:
        raise ModelError(f"ollama:{name}: {error}") from None
