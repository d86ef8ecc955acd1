"""Runs other programs with bounded time and output.

    answer = ask(["llama-server", "--version"], os.environ, 30)
    answer.code, answer.out, answer.err
"""

from __future__ import annotations

import contextlib
import os

from .errors import AutolayersError
from .records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from typing import IO

MOST = 1 << 20         # bytes of each stream
_LOOK = 0.05           # seconds between two polls
_LEFT = 0.5            # seconds for its last output, if a child of its own keeps the pipes open


class NoAnswer(AutolayersError):
    """It cannot be started, does not end, or prints too much; the message does not name it."""


@dataclass(frozen=True)
class Answer:
    """A program's output, at most MOST bytes of each stream, and its exit code."""

    code: int      # negative: the signal that ended it
    out: str
    err: str


def ask(words: Sequence[str], environ: Mapping[str, str], timeout: float) -> Answer:
    """A program's output and exit code; afterwards none of its processes is left. Raises NoAnswer."""
    import subprocess
    import threading
    import time

    try:
        child = subprocess.Popen(list(words), env=dict(environ), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                                 start_new_session=os.name == "posix")
    except (OSError, ValueError) as error:
        raise NoAnswer(str(getattr(error, "strerror", None) or error)) from None
    said = bytearray(), bytearray()
    flooded = threading.Event()

    def read(pipe: IO[bytes], into: bytearray) -> None:
        while data := pipe.read(1 << 16):
            into += data
            if len(into) > MOST:
                flooded.set()
                return

    assert child.stdout is not None and child.stderr is not None
    threads = [threading.Thread(target=read, args=(pipe, into), daemon=True)
               for pipe, into in zip((child.stdout, child.stderr), said, strict=True)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout
    try:
        while not flooded.is_set() and child.poll() is None and time.monotonic() < end:
            threads[0].join(_LOOK)
        for thread in threads:
            thread.join(_LEFT)
        if flooded.is_set():
            raise NoAnswer(f"it prints more than {MOST >> 20} MiB")
        if child.poll() is None:
            raise NoAnswer(f"it did not end within {timeout:g} s")
    finally:
        _kill(child)
    out, err = (bytes(text).decode("utf-8", "replace") for text in said)
    return Answer(child.returncode, out, err)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends it and, on POSIX, its children."""
    import signal

    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        elif child.poll() is None:
            child.kill()
    child.wait()
