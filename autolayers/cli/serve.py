"""`autolayers serve`: the same JSON over HTTP on loopback, for front ends."""

from __future__ import annotations

import os

from ..errors import UsageError
from ..flags.check import read
from ..garbage import often
from ..output import say
from ..web.service import Service
from .model import load

TOKEN = "AUTOLAYERS_TOKEN"
_SHORTEST = 8  # characters of a token


def main(words: list[str]) -> int:
    """Serve until interrupted."""
    # A server lives for days: garbage of each question must not wait for the end
    often()
    arguments = read("serve", words)
    # `autolayers serve model.gguf` wants llama-server, and gets a hint
    if arguments.positional:
        raise UsageError(
            f"autolayers serve takes no {arguments.positional[0]!r:.60}: each "
            f"question names its models"
        )
    # 0: the system picks a free port; the token is in no flag, because ps shows those
    port, given = arguments.own.get("port", 0), os.environ.get(TOKEN, "")
    # Whether a client can send this token in a header, and nobody guesses it
    if given and not (
        len(given) >= _SHORTEST and given.isascii() and given.isprintable() and " " not in given
    ):
        raise UsageError(
            f"{TOKEN}: a token has {_SHORTEST} or more printable ASCII characters without spaces; "
            "unset it to get a new one"
        )
    try:
        service = Service(load, os.environ, port, given)
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror or error}") from None
    # A token that the user chose is not printed: stderr often ends in a journal
    token = f"the token of {TOKEN}" if given else f"token {service.token}"
    say(
        f"{service.url} answers who has {token} (GET /openapi.json says what); press Ctrl-C to stop"
    )
    with service:
        service.serve_forever()
    return 0
