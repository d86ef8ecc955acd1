"""`autolayers web [MODEL...]`: the planner as a page in the browser, served on loopback."""

from __future__ import annotations

import sys
import webbrowser

from ..errors import UsageError
from ..flags.check import read
from ..web.engine import Engine
from ..web.server import PageServer
from .model import load


def main(words: list[str]) -> int:
    """Serves the page until interrupted."""
    arguments = read("web", words)
    engine = Engine(load, here=True)
    for name in arguments.positional:
        engine.model(name)
    port = arguments.own.get("port", 0)
    try:
        server = PageServer(engine, port)
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror or error}") from None
    print(f"{server.url}\npress Ctrl-C to stop", file=sys.stderr)
    if not arguments.own.get("no-browser"):
        webbrowser.open(server.url)
    with server:
        server.serve_forever()
    return 0
