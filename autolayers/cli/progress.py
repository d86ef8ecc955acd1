"""A progress line on a terminal, erased before anything else is printed."""

from __future__ import annotations

import os
import sys


class Progress:
    """Call `step` after each of `count` things, which are called `what`. Without a count: what is
    done while the `with` block runs."""

    def __init__(self, count: int = 0, what: str = "") -> None:
        self.count, self.what, self.done = count, what, 0
        self.on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def show(self) -> None:
        """The line as it is now."""
        if self.on:
            how_far = f"{min(self.done + 1, self.count)} of {self.count}" if self.count else ""
            print(f"\r{self.what}{how_far}", end="", file=sys.stderr, flush=True)

    def step(self) -> None:
        """Counts one more as done."""
        self.done += 1
        self.show()

    def now(self, what: str) -> None:
        """Says what is done now."""
        self.clear()
        self.what = what
        self.show()

    def clear(self) -> None:
        if self.on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        self.show()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
