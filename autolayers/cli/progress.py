"""A progress line on a terminal, erased before anything else is printed."""

from __future__ import annotations

import os
import sys
from time import monotonic

from ..output import say
from ..quoting import printable
from ..report.table import shortened

_OFTEN = 0.2  # seconds between two states of the line
_PATIENCE = 1.0  # seconds in which nobody asks what happens
_ROOM = 50  # columns of a folder's name


class Progress:
    """Call `step` after each of `count` things, which are called `what`. Without a count: what is
    done while the `with` block runs."""

    def __init__(self, count: int = 0, what: str = "") -> None:
        self.count, self.what, self.done = count, what, 0
        self.began = self.said = 0.0  # of `looking`
        # A log file or an editor's shell would keep every state of the line
        self.on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def show(self) -> None:
        """Print the line as it is now."""
        if self.on:
            # The one in work counts, so the first line is "1 of 9" and the last stays at "9 of 9"
            how_far = f"{min(self.done + 1, self.count)} of {self.count}" if self.count else ""
            print(f"\r{self.what}{how_far}", end="", file=sys.stderr, flush=True)

    def step(self) -> None:
        """Count one more as done."""
        self.done += 1
        self.show()

    def now(self, what: str) -> None:
        """Say what is done now."""
        # The new text may be shorter than the old one
        self.clear()
        self.what = what
        self.show()

    def looking(self, folder: str) -> None:
        """Say which folder is looked through: on a terminal some times a second, elsewhere once
        after a second."""
        now = monotonic()
        self.began = self.began or now
        if self.on and now - self.said >= _OFTEN:
            self.said = now
            self.now(f"looking for GGUF files in {shortened(printable(folder), _ROOM)}")
        elif not self.on and not self.said and now - self.began >= _PATIENCE:
            self.said = now
            say(f"looking for GGUF files, now in {folder}")

    def clear(self) -> None:
        if self.on:
            # To the line's start, and delete to its end
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        self.show()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
