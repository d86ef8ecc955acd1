"""`autolayers web [MODEL...]`: the planner as a page in the browser, served on loopback."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import UsageError
from ..flags.check import read
from ..garbage import often
from ..web.engine import Engine
from ..web.server import PageServer
from .model import load


def main(words: list[str]) -> int:
    """Serve the page until interrupted."""
    often()
    arguments = read("web", words)
    # here: with this machine's devices; the static page in a browser has none
    engine = Engine(load, here=True)
    for name in arguments.positional:
        # Opened before the browser is, so that a wrong name is an error of the command
        engine.model(name)
    port = arguments.own.get("port", 0)
    try:
        server = PageServer(engine, port)
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror or error}") from None
    # Not by say, which would take the token in the address for a secret
    print(
        f"{server.url}\nopen it by hand if no browser does; press Ctrl-C to stop", file=sys.stderr
    )
    # The folder lives as long as the server: a browser may read the file late
    # for this user alone, as its file
    with server, TemporaryDirectory(prefix="autolayers-") as folder:
        if not arguments.own.get("no-browser"):
            # A file that leads to the page: everybody sees a browser's command line,
            # which must not have the token
            path = Path(folder) / "open.html"
            # The mode comes before the content: nobody else reads it in between
            path.touch(mode=0o600)
            path.write_text(
                '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0;url={server.url}">'
                f'<a href="{server.url}">autolayers</a>\n'
            )
            webbrowser.open(path.as_uri())
        server.serve_forever()
    return 0
