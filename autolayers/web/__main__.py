"""`python -m autolayers.web build DIR [--pyodide URL|FOLDER] [--url URL] [--lists
chips|common|all|CARD,...]`: the page as static files."""

from __future__ import annotations

import sys
from pathlib import Path

from ..errors import AutolayersError
from .build import build, previews

USAGE = (
    "python -m autolayers.web build DIR [--pyodide URL|FOLDER] [--url URL] [--lists "
    "chips|common|all|CARD,...]"
)


def main(words: list[str]) -> int:
    """Return the exit code, as the command line's."""
    options = {"--pyodide": "", "--url": "", "--lists": ""}
    for name in options:
        if name in words[:-1]:
            at = words.index(name)
            options[name] = words[at + 1]
            words = words[:at] + words[at + 2 :]
    if len(words) != 2 or words[0] != "build" or words[1].startswith("-"):
        print(f"usage: {USAGE}", file=sys.stderr)
        return 2
    try:
        names = build(Path(words[1]), options["--pyodide"], options["--url"], options["--lists"])
    except (AutolayersError, OSError) as error:
        print(f"autolayers: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    if options["--url"] and previews() == "svg":
        print(
            "autolayers: no rsvg-convert here: previews of links have no picture", file=sys.stderr
        )
    print(f"{len(names)} files written to {words[1]}: serve them from any host, at any path")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
