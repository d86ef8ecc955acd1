"""A progress line on a terminal, erased before anything else is printed."""

from __future__ import annotations

import os
import sys


class Progress:
    """Call `step` after each of `count` things, which are called `what`. Without a count: what is
    done while the `with` block runs."""

    def __init__(self, count: int = 0, what: str = "") -> None:
        self.count, self.what, self.done = count, what, 0
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

    def clear(self) -> None:
        if self.on:
            # To the line's start, and delete to its end
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        self.show()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
