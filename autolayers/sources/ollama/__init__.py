"""Models of Ollama: its store on disk, its HTTP API, and headers from that API.

stored_or_shown("llama3.1", os.environ, Server.from_environment(os.environ))
"""

from __future__ import annotations

from ...gguf import Header
from ...gguf import read_header as read
from .api import NoSuchModel, NotRunning, OllamaServer
from .show import header
from .store import NotInStore, Stored, StoreUnreadable, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def stored_or_shown(
    text: str, environ: Mapping[str, str], server: OllamaServer
) -> Stored | Mapping[str, Any]:
    """Return a model of the local store or, if that is unreadable or lacks it, the server's
    /api/show answer.

    Raises ModelError if neither has it, OllamaError if the server is needed but cannot be asked.
    """
    try:
        # the store is that server's, not this machine's
        if not server.is_local:
            raise StoreUnreadable(f"the Ollama server is {server.url}")
        return find(text, environ)
    except (NotInStore, StoreUnreadable) as reason:
        try:
            return server.show(text)
        except NotRunning as error:
            raise type(reason)(f"{reason}; {error}") if server.is_local else error from None
        except NoSuchModel as error:
            # a partial download and a store that may not be read are the reason; the server knows
            # neither
            raise (
                NoSuchModel(f"{error}; {reason}")
                if server.is_local and isinstance(reason, StoreUnreadable)
                else error
            ) from None


def read_header(text: str, environ: Mapping[str, str]) -> Header:
    """Return the header of the model that `ollama run TEXT` would load. Raises ModelError,
    OllamaError."""
    model = stored_or_shown(text, environ, OllamaServer.from_environment(environ))
    return read(model.model) if isinstance(model, Stored) else header(text, model)
