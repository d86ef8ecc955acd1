"""Runs other programs, and functions of this package in their own process, with bounded time
and output.

    answer = ask(["llama-server", "--version"], os.environ, 30)
    answer.code, answer.out, answer.err
    # JSON values as they are yielded
    for value in apart("autolayers.devices.nvml", "answers", silence=10):
        ...
"""

from __future__ import annotations

import contextlib
import os
import sys

from .errors import AutolayersError
from .records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO

MOST = 1 << 20  # bytes of each stream
_LOOK = 0.05  # seconds between two polls
PATIENCE = 5.0  # seconds in which nobody asks what happens
_MARK = "AUTOLAYERS_ASKED"  # in the environment of what was asked, and of all that it starts
_LEFT = 0.5  # seconds for its last output, if its own child keeps the pipes open


# called with a program's name once it has not answered for a while; a command says it
waiting: list[Callable[[str], object]] = []


class NoAnswer(AutolayersError):
    """It cannot be started, does not end, or prints too much; the message does not name it. `out`:
    what it had printed; `hangs`: it does not end."""

    def __init__(self, message: str, out: str = "", hangs: bool = False) -> None:
        super().__init__(message)
        self.out = out
        self.hangs = hangs


@dataclass(frozen=True)
class Output:
    """A program's output, at most MOST bytes of each stream, and its exit code."""

    code: int  # negative: the signal that ended it
    out: str
    err: str


def ask(
    words: Sequence[str], environ: Mapping[str, str], timeout: float, folder: str | None = None
) -> Output:
    """Return a program's output and exit code, of one that is started in this folder; afterwards
    none of its processes is left. Raises NoAnswer."""
    import time

    mark = os.urandom(12).hex()
    with _signals() as stopped:
        child = _started(words, {**environ, _MARK: mark}, folder)
        output = _Output(child)
        end = time.monotonic() + timeout
        told = end - timeout + PATIENCE
        try:
            # poll, because a program may end while its child keeps the pipes open
            while not (output.flooded.is_set() or stopped) and child.poll() is None:
                if time.monotonic() >= end:
                    break
                if time.monotonic() > told:
                    told = end
                    for say in waiting:
                        say(words[0])
                # a program may close its streams and stay: then there is nothing to wait for
                open_ = next((each for each in output.readers if each.is_alive()), None)
                time.sleep(_LOOK) if open_ is None else open_.join(_LOOK)
            for reader in output.readers:
                reader.join(_LEFT)
            if output.flooded.is_set():
                raise NoAnswer(f"it prints more than {MOST >> 20} MiB")
            if child.poll() is None:
                raise NoAnswer(
                    f"it did not end within {timeout:g} s", output.texts()[0], hangs=True
                )
        finally:
            _kill(child)
            _kill_marked(f"{_MARK}={mark}\0".encode())
    out, err = output.texts()
    return Output(child.returncode, out, err)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that would end this process, and let the first end it afterwards: what
    was asked ends too, even if one comes while it starts. Handlers can be set in the main thread
    alone."""
    import signal
    import threading

    stopped: list[int] = []
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    found = {each: signal.getsignal(each) for each in signal.valid_signals()}
    # what somebody else handles, or a shell ignores (nohup), stays so
    before = {
        each: handler
        for each, handler in found.items()
        if handler in (signal.SIG_DFL, signal.default_int_handler)
        and getattr(each, "name", "") in names
        and threading.current_thread() is threading.main_thread()
    }
    for each in before:
        signal.signal(each, lambda number, _: stopped.append(number))
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if stopped:
            raise KeyboardInterrupt if stopped[0] == signal.SIGINT else SystemExit(128 + stopped[0])


def prctl() -> Callable[..., int] | None:
    """Return prctl(2) of Linux, None elsewhere."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        return ctypes.CDLL(None).prctl
    except (AttributeError, OSError):
        return None


def _end_with(parent: int, control: Callable[..., int]) -> None:
    """Let Linux end this process by SIGKILL when its parent's thread ends (PR_SET_PDEATHSIG), and
    now if the parent has ended already."""
    control(1, 9)
    if os.getppid() != parent:
        os._exit(1)


def _started(
    words: Sequence[str], environ: Mapping[str, str], folder: str | None
) -> subprocess.Popen[bytes]:
    """Return a running program, which Linux ends when this process is killed. Raises NoAnswer."""
    import subprocess

    us, control = os.getpid(), prctl()
    try:
        return subprocess.Popen(
            list(words),
            env=dict(environ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # readers get what there is at once
            bufsize=0,
            # a group of its own, so that _kill ends its children too
            start_new_session=os.name == "posix",
            preexec_fn=(lambda: _end_with(us, control)) if control else None,
        )
    except (OSError, ValueError) as error:
        raise NoAnswer(str(getattr(error, "strerror", None) or error)) from None


class _Output:
    """What a program prints, read while it runs; `flooded`: it was more than MOST bytes."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        import threading

        assert child.stdout is not None and child.stderr is not None
        self.streams = bytearray(), bytearray()
        self.flooded = threading.Event()
        self.readers = [
            threading.Thread(target=self._read, args=(pipe, into), daemon=True)
            for pipe, into in zip((child.stdout, child.stderr), self.streams, strict=True)
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, pipe: IO[bytes], into: bytearray) -> None:
        while data := pipe.read(1 << 16):
            into += data
            if len(into) > MOST:
                self.flooded.set()
                return

    def texts(self) -> list[str]:
        """Return the text of each stream."""
        return [bytes(stream).decode("utf-8", "replace") for stream in self.streams]


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends it and, on POSIX, its children."""
    import signal

    with contextlib.suppress(OSError):
        if os.name == "posix":
            # children that outlived it are in the same group
            os.killpg(child.pid, signal.SIGKILL)
        elif child.poll() is None:
            child.kill()
    child.wait()


def _kill_marked(mark: bytes) -> None:
    """End, on Linux, what has left the program's group (setsid), by what it has inherited."""
    import signal

    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        # processes of others cannot be read, and some end meanwhile
        with contextlib.suppress(OSError):
            if not name.isdecimal():
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read(MOST) + b"\0":
                    os.kill(int(name), signal.SIGKILL)


# --- this package's own functions, where a library could end the process


def apart(
    module: str,
    function: str,
    *words: str,
    silence: float,
    environ: Mapping[str, str] | None = None,
) -> Iterator[object]:
    """Yield the values that module.function(*words) yields, each as soon as it is there, from a
    process without its own streams: a library that it loads can neither end nor hang this
    process, nor print. The values end where the process ends. Raises NoAnswer after `silence`
    seconds without one.

    The process is a copy of this one on Linux, a new one elsewhere or with another environment.
    """
    if sys.platform == "linux" and environ is None:
        yield from _copied(module, function, words, silence)
        return
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # -I: else the current directory would come first in sys.path
    code = (
        f"import os, sys; sys.path.append({package!r}); from {__name__} import _answer; "
        f"_answer(os.dup(1), {module!r}, {function!r}, {words!r})"
    )
    failed = None
    try:
        out = ask(
            [sys.executable, "-I", "-c", code], os.environ if environ is None else environ, silence
        ).out
    except NoAnswer as error:
        out = error.out
        failed = error
    yield from _values(out.encode().splitlines())
    if failed:
        raise failed


def _copied(module: str, function: str, words: Sequence[str], silence: float) -> Iterator[object]:
    import select
    import time
    import warnings

    # a fork imports nothing again
    read_end, write_end = os.pipe()
    us = os.getpid()
    with warnings.catch_warnings():
        # of threads: the copy has this one alone
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os.close(read_end)
            if control := prctl():
                _end_with(us, control)
            _answer(write_end, module, function, words)
        os._exit(1)
    os.close(write_end)
    try:
        rest = b""
        size = 0
        while size <= MOST:
            if not select.select([read_end], [], [], silence)[0]:
                raise NoAnswer(f"it did not answer within {silence:g} s")
            data = os.read(read_end, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            size += len(data)
            yield from _values(lines)
    finally:
        os.close(read_end)
        with contextlib.suppress(OSError):
            os.kill(pid, 9)
            # a driver may hold it in the kernel
            for _ in range(200):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    break
                time.sleep(0.001)


def _values(lines: Sequence[bytes]) -> Iterator[object]:
    import json

    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            yield json.loads(line)


def _answer(to: int, module: str, function: str, words: Sequence[str]) -> None:
    """Print, in the other process, one line for each value, and no end that waits for the
    library's."""
    import importlib
    import json

    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(quiet, stream)
    for value in getattr(importlib.import_module(module), function)(*words):
        os.write(to, json.dumps(value).encode() + b"\n")
    os._exit(0)
