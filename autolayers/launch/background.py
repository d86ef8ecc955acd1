"""A server in the background: started in its own session, its output in a file, watched until it is
ready, and ended with us until then, however we end."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from .. import state
from ..diagnosis.lines import read
from ..diagnosis.log import LogReader
from ..errors import AutolayersError
from ..output import say
from ..quoting import printable
from ..units import human
from .supervise import Ended, end_group, handled, keeping, own_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType
    from typing import BinaryIO

_PAUSE = 0.2  # seconds between two polls
_TAIL = 4000  # bytes of the log that are shown when it fails
_PIECE = 1 << 20  # bytes of the log that are read between two polls
_LOG_LIMIT = 256 << 20  # bytes of the log of a server that loads; a load prints some 100 kB
_SILENCE = 3600.0  # seconds without a new line, after which a load is given up


def run(
    words: Sequence[str], environ: Mapping[str, str], port: int, healthy: Callable[[int], bool]
) -> tuple[int, Ended]:
    """Start `words` and return when `healthy` is true of its process id, (that id, an outcome with
    code 0), or it has ended, (0, how).

    A signal before that ends the server, as do a log above `_LOG_LIMIT` bytes and `_SILENCE`
    seconds without a new line. Progress goes to a terminal; if it fails, the end of the log goes to
    stderr. Raises OSError if it cannot be started, AutolayersError if its log cannot be written or
    it was given up.
    """
    # A file, not a pipe: the server writes on after this process has ended
    path = state.path(environ, "logs", f"{port}.log")  # only the newest of each port is kept
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    child: subprocess.Popen[bytes] | None = None
    reader = LogReader()
    ready = False
    # What the server leaves in a session of its own is found by this process as its parent
    with keeping(handled(), stop) as adopter:
        try:
            with state.create(path) as output:
                child = subprocess.Popen(
                    list(words),
                    env=dict(environ),
                    # The terminal's input belongs to what the user types next
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # A child that outlives us, once the watcher is dismissed
                    **own_group(adopter.watcher, lives_on=True),
                )
            with open(path, "rb") as log, _Progress() as progress:
                # Once it is ready the watcher is dismissed, and the server lives on
                ready = _until_ready(child, log, reader, stopped, healthy, progress)
                if ready:
                    return child.pid, Ended(0, reader.finish(), False, False, False)
                end_group(child)
                # what it printed last, before it was ended
                reader.feed(log.read(_PIECE))
        finally:
            if child is not None and not ready:
                end_group(child)
                adopter.end_all()
    code = child.wait()
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL))
        data = file.read()
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        print(printable(line.expandtabs()), file=sys.stderr)
    say(f"it ended before it was ready; its whole output: {path}")
    # by somebody else, such as the kernel
    killed = code == -9 and not stopped
    # A server that ends with 0 before it is ready has not done what --wait promises
    # The exit code of a server that was never ready, as a shell says it.
    shown = 128 + stopped[0] if stopped else (128 - code if code < 0 else code or 1)
    with open(path, "rb") as log:
        first, last, _ = read(log)
    return 0, Ended(shown, reader.finish(), bool(stopped), killed, False, first + last)


def _until_ready(
    child: subprocess.Popen[bytes],
    log: BinaryIO,
    reader: LogReader,
    stopped: list[int],
    healthy: Callable[[int], bool],
    progress: _Progress,
) -> bool:
    """Read the log until the server is healthy (True), has ended or a signal came (False). Raises
    AutolayersError for a log without end, or without a new line for too long."""
    heard = time.monotonic()
    while True:
        # Polled before the log is read: so nothing that it printed last is missed
        code = child.poll()
        data = log.read(_PIECE)
        reader.feed(data)
        if stopped:
            return False
        if os.fstat(log.fileno()).st_size > _LOG_LIMIT:
            raise AutolayersError(
                f"the server printed more than {human(_LOG_LIMIT)} before it was ready: ended"
            )
        if data:
            heard = time.monotonic()
        if len(data) == _PIECE:  # there is more to read
            continue
        if code is not None:
            return False
        # health may be another server's, if this one has just died
        if healthy(child.pid) and child.poll() is None:
            reader.feed(log.read(_PIECE))
            return True
        if time.monotonic() - heard > _SILENCE:
            raise AutolayersError(
                f"the server printed nothing for {_SILENCE / 60:.0f} minutes and "
                f"is not ready: ended"
            )
        progress.show()
        time.sleep(_PAUSE)


class _Progress:
    """The seconds that a load takes, on a terminal."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def show(self) -> None:
        if self._terminal:
            waited = time.monotonic() - self._start
            print(f"\rautolayers: loading, {waited:.0f} s ", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
