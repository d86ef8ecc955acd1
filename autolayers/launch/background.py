"""A server in the background: started in its own session, its output in a file, watched until it is ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from .. import state
from ..diagnosis.lines import read
from ..diagnosis.log import LogReader
from ..output import say
from ..quoting import printable
from .supervise import ENDING, Outcome, end_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType
    from typing import Any

_PAUSE = 0.2      # seconds between two polls
_TAIL = 4000      # bytes of the log that are shown when it fails


def run(words: Sequence[str], environ: Mapping[str, str], port: int,
        healthy: Callable[[int], bool]) -> tuple[int, Outcome]:
    """Starts `words` and returns when `healthy` is true of its process id, (that id, an outcome with code 0), or it
    has ended, (0, how).

    A signal before that ends the server. Progress goes to a terminal; if it fails, the end of the log goes to
    stderr. Raises OSError if it cannot be started, AutolayersError if its log cannot be written.
    """
    path = state.path(environ, "logs", f"{port}.log")      # only the newest of each port is kept
    options: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {
        "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    with state.create(path) as output:
        child = subprocess.Popen(list(words), env=dict(environ), stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT, **options)
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    # signals that nohup or a shell ignores stay ignored
    before = {number: signal.signal(number, stop) for number in ENDING
              if signal.getsignal(number) is not signal.SIG_IGN}
    reader = LogReader()
    start = time.monotonic()
    terminal = sys.stderr.isatty()
    try:
        with open(path, "rb") as log:
            while True:
                code = child.poll()
                reader.feed(log.read())
                if code is not None or stopped:
                    break
                if healthy(child.pid) and child.poll() is None:
                    reader.feed(log.read())
                    return child.pid, Outcome(0, reader.finish(), False, False, False)
                if terminal:
                    waited = time.monotonic() - start
                    print(f"\rautolayers: loading, {waited:.0f} s ", end="", file=sys.stderr, flush=True)
                time.sleep(_PAUSE)
            end_group(child)
            reader.feed(log.read())
    finally:
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        for number, handler in before.items():
            signal.signal(number, handler)
    code = child.wait()
    _show_end(path)
    killed = code == -9 and not stopped
    # it was never ready: not a success
    shown = 128 + stopped[0] if stopped else 128 - code if code < 0 else code or 1
    with open(path, "rb") as log:
        first, last, _ = read(log)
    return 0, Outcome(shown, reader.finish(), bool(stopped), killed, False, first + last)


def _show_end(path: str) -> None:
    with open(path, "rb") as log:
        log.seek(max(0, os.path.getsize(path) - _TAIL))
        data = log.read()
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        print(printable(line.expandtabs()), file=sys.stderr)
    say(f"it ended before it was ready; its whole output: {path}")
