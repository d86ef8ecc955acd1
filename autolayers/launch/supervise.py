"""A supervised child: its output is copied and parsed, signals are forwarded, none of its processes
outlives the supervisor.

The child leads its own session, so that a terminal's Ctrl-C reaches it once, through the
supervisor. However the supervisor dies, two mechanisms end the child: the kernel's parent-death
signal (Linux), and a small watcher process that sees the supervisor's end of a pipe close and
signals the child's process group (a wrapper script's children too). background.py has the watcher
until its server is ready. A descendant that leaves the group is adopted by the supervisor (Linux),
which ends it with the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

from ..diagnosis.lines import Tail
from ..diagnosis.log import LaunchLog, LogReader
from ..programs import prctl
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType
    from typing import IO, Any

_ENDING = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
    if hasattr(signal, name)
]
_FORWARDED = [
    *_ENDING,
    *(
        getattr(signal, name)
        for name in ("SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")
        if hasattr(signal, name)
    ),
]
# for which llama-server installs handlers, ignored before or not
_ALWAYS = {signal.SIGINT, signal.SIGTERM}
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_PATIENCE = 30.0  # seconds that a child may take to end after it was asked


@dataclass(frozen=True)
class Ended:
    """How it ended. `code` as in a shell: 128 + n for signal n. `requested`: the supervisor
    received a signal to end it."""

    code: int
    launch: LaunchLog
    requested: bool
    killed: bool  # by a SIGKILL from elsewhere
    oom_killed: bool  # and the kernel counts one more process killed for lack of memory
    log: bytes = b""  # the beginning and the end of what it printed


def run(
    words: Sequence[str],
    environ: Mapping[str, str],
    on_ready: Callable[[LaunchLog], None] | None = None,
    out: IO[bytes] | None = None,
    err: IO[bytes] | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> Ended:
    """Starts `words` and returns when it and all its children have ended. Raises OSError if it
    cannot be started.

    `on_ready` is called once, from another thread, when the log says that the model is loaded; its
    exceptions are printed and end nothing. `on_end` is called before a signal that ends the child
    is passed on.
    """
    # Read before the start: a count that grew while the child ran may be its own kill
    kills = _oom_kills()
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals that came before the child was there
    # signals that end it; a list, because a handler that a second signal interrupts in the middle
    # of Event.set would wait for its own lock for ever
    requested: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        # others, such as SIGUSR1, are the server's own business
        if number in _ENDING:
            requested.append(number)
            on_end()
        if child is None:
            early.append(number)
        else:
            _signal(child, number)

    # handlers can be set in the main thread alone
    main = threading.current_thread() is threading.main_thread()
    with keeping(handled(_FORWARDED) if main else (), forward) as adopter:
        child = subprocess.Popen(
            list(words),
            env=dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            **own_group(adopter.watcher),
        )
        for number in early:
            _signal(child, number)
        code, launch, log = _supervised(child, adopter.end_all, requested, on_ready, out, err)
    # 137: a shell between us and the server
    killed = code in (-9, 137) and not requested
    return Ended(
        128 - code if code < 0 else code,
        launch,
        bool(requested),
        killed,
        killed and _oom_kills() > kills,
        log,
    )


def _supervised(
    child: subprocess.Popen[bytes],
    end_all: Callable[[], None],
    requested: list[int],
    on_ready: Callable[[LaunchLog], None] | None,
    out: IO[bytes] | None,
    err: IO[bytes] | None,
) -> tuple[int, LaunchLog, bytes]:
    """Copy and read the child's output until it and all its descendants have ended; return its
    code, what the log says, and the log's beginning and end."""
    # The reader keeps figures, the tail the text that `explain` needs
    reader, tail = LogReader(), Tail()
    lock = threading.Lock()
    called = threading.Event()

    def pump(source: IO[bytes], target: IO[bytes]) -> None:
        # without Python's buffer, which would wait for whole lines
        while data := os.read(source.fileno(), 1 << 16):
            # Both streams feed one reader
            with lock:
                reader.feed(data)
                tail.feed(data)
                ready = reader.launch.ready and on_ready is not None and not called.is_set()
                if ready:
                    called.set()
            # Write to a target, whose closed pipe does not end the server.
            try:
                target.write(data)
                target.flush()
            except (OSError, ValueError):
                pass
            if ready and on_ready is not None:
                try:
                    with lock:  # the other stream must not mix into it
                        on_ready(reader.launch)
                # a defect, which must not stop the thread that empties the pipe
                except Exception:
                    sys.excepthook(*sys.exc_info())

    assert child.stdout is not None and child.stderr is not None
    streams = ((child.stdout, out or sys.stdout.buffer), (child.stderr, err or sys.stderr.buffer))
    ended = threading.Event()

    def enforce() -> None:
        """End a child that does not end when it is asked to."""
        # a second of delay at most, and no busy waiting
        while not requested:
            if ended.wait(1.0):
                return
        if not ended.wait(_PATIENCE):
            end_group(child)

    # One thread for each stream: a full pipe of one would stop a child that writes to the other
    pumps = [threading.Thread(target=pump, args=pair, daemon=True) for pair in streams]
    try:
        with _signals_to_this_thread():
            for thread in (*pumps, threading.Thread(target=enforce, daemon=True)):
                thread.start()
        code = _wait(child)
    finally:
        # whatever happened here, no descendant of the child survives
        ended.set()
        end_group(child)
        end_all()
        deadline = time.monotonic() + _GRACE
        for thread in pumps:
            # none that the system's limits did not let start
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
    with lock:
        return code, reader.finish(), tail.data()


def handled(signals: Sequence[int] = _ENDING) -> list[int]:
    """Return the signals that autolayers handles in llama-server's place. SIGINT and SIGTERM
    always, as llama-server does; the others unless nohup or a shell set them to be ignored."""
    return [
        number
        for number in signals
        if number in _ALWAYS or signal.getsignal(number) is not signal.SIG_IGN
    ]


@contextlib.contextmanager
def keeping(
    signals: Sequence[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[Adopter]:
    """While a child is started and watched, these signals go to `handler`, and nothing of the
    child outlives us: see Adopter and Watcher."""
    # the handlers are there before the child, which may signal its parent at once
    before = {number: signal.signal(number, handler) for number in signals}
    adopter = Adopter()
    try:
        with adopter:
            adopter.watcher = Watcher() if os.name == "posix" else None
            yield adopter
    finally:
        if adopter.watcher is not None:
            adopter.watcher.dismiss()
        for number, former in before.items():
            signal.signal(number, former)


class Adopter:
    """Makes this process the parent of descendants whose own parent has ended (prctl(2),
    PR_SET_CHILD_SUBREAPER, Linux), so that one that left the child's group can be found and
    ended."""

    def __init__(self) -> None:
        self._before: set[int] = set()
        self.watcher: Watcher | None = None  # of the child's group

    def __enter__(self) -> Adopter:
        # Such as another session's server in a long-lived library process
        self._before = {each.pid for each in self._children()}
        self._adopt(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._adopt(False)

    def end_all(self) -> None:
        """End every descendant that this process has not had before."""
        import psutil

        # what this process had before is not the child's, and the watcher no part of the launch
        own = {*self._before, self.watcher.pid if self.watcher else 0}
        left = [each for each in self._children() if each.pid not in own]
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.terminate()
        _, stubborn = psutil.wait_procs(left, timeout=_GRACE)
        for each in stubborn:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(stubborn, timeout=_GRACE)

    @staticmethod
    def _children() -> list[Any]:
        if _prctl is None:
            return []
        import psutil

        try:
            return psutil.Process().children(recursive=True)
        except psutil.Error:
            return []

    @staticmethod
    def _adopt(on: bool) -> None:
        if _prctl is not None:
            # PR_SET_CHILD_SUBREAPER
            _prctl(36, int(on), 0, 0, 0)


@contextlib.contextmanager
def _signals_to_this_thread() -> Iterator[None]:
    """Threads that are started here never receive a signal. Otherwise the second of two signals may
    reach a thread that waits in a read, while the main thread, where Python calls its handlers,
    sleeps until the next one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_group(watcher: Watcher | None = None, lives_on: bool = False) -> dict[str, Any]:
    """Return Popen's options for a child in its own process group that ends with us, unless it
    `lives_on`, and that a watcher knows."""

    def before_exec() -> None:
        # Between fork and exec: Linux ends the child when its parent dies (prctl(2),
        # PR_SET_PDEATHSIG = 1).
        if _prctl is not None and not lives_on:
            _prctl(1, signal.SIGTERM)
        if watcher is not None:
            watcher.watched()

    if os.name == "posix":
        return {"start_new_session": True, "preexec_fn": before_exec}
    return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the child's end. Not in one waitpid(2): a signal that comes after Python has last
    looked for one and before the kernel waits would be handled when the child ends by itself."""
    while True:
        try:
            return child.wait(1.0)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:  # before the handlers are in place
            _signal(child, signal.SIGINT)


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    """Signal the child's whole group, because a shell script would not forward it; once, because
    llama-server exits immediately on a second interrupt."""
    try:
        if os.name == "posix":
            # Its group has the child's id, as it leads a session of its own
            os.killpg(child.pid, number)
        elif number == signal.SIGINT or number == getattr(signal, "SIGBREAK", None):
            # Windows sends CTRL_C_EVENT to no other process group
            os.kill(child.pid, signal.CTRL_BREAK_EVENT)  # type: ignore[attr-defined]
        else:
            child.terminate()
    except (ProcessLookupError, PermissionError, OSError):
        pass


def end_group(child: subprocess.Popen[bytes]) -> None:
    """Terminate the rest of the child's group, and kill it if necessary."""
    if os.name != "posix":
        if child.poll() is None:
            child.terminate()
        return
    deadline = time.monotonic() + _GRACE
    number = signal.SIGTERM
    # SIGTERM first, SIGKILL after the grace
    while _alive(child):
        _signal(child, number)
        if number == signal.SIGKILL:
            child.poll()
            return
        while _alive(child) and time.monotonic() < deadline:
            child.poll()
            _collect(child)
            time.sleep(0.02)
        number = signal.SIGKILL


def _collect(child: subprocess.Popen[bytes]) -> None:
    """Take the exit codes of the group's processes that were adopted (Adopter): one that has ended
    is part of the group until somebody does."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(ChildProcessError):
        # Without taking it: the child's own code is Popen's
        while ended := os.waitid(os.P_PGID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == child.pid:
                return
            os.waitpid(ended.si_pid, 0)


def _alive(child: subprocess.Popen[bytes]) -> bool:
    try:
        # Signal 0 only asks whether the group has a process left
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_prctl = prctl()


class Watcher:
    """A process that outlives us long enough to end a process group.

    It is there before the group's leader, which writes its own id to it between fork and exec
    (`watched`), so that there is no moment in which we may die and leave a group that nobody knows.
    """

    def __init__(self) -> None:
        reading, self._pipe = os.pipe()
        os.set_inheritable(self._pipe, False)
        # The program ignores what ends us. It reads a process id, then waits for the end of the
        # pipe, which comes when we close it or die. An "x" after the id, from `dismiss`, or no id
        # at all means that nobody is to be ended.
        code = (
            f"import os,signal,time\n"
            f"for s in (1,2,3,15): signal.signal(s, signal.SIG_IGN)\n"
            f"said = b''\n"
            f"while piece := os.read({reading}, 64): said += piece\n"
            f"if not said.endswith(b'\\n'): raise SystemExit\n"
            f"for s in (15, 9):\n"
            f"    try: os.killpg(int(said), s)\n"
            f"    except OSError: break\n"
            f"    for _ in range(100):\n"
            f"        time.sleep(0.1)\n"
            f"        try: os.killpg(int(said), 0)\n"
            f"        except OSError: raise SystemExit\n"
        )
        # -I: -c alone puts the current directory first in sys.path, where a signal.py may lie
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            pass_fds=(reading,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # The watcher alone reads: with our end open too, a write to a dead watcher would not fail
        os.close(reading)

    @property
    def pid(self) -> int:
        return self._process.pid

    def watched(self) -> None:
        """Between fork and exec of the group's leader: says whom to end."""
        os.write(self._pipe, f"{os.getpid()}\n".encode())

    def dismiss(self) -> None:
        """What was watched may live on."""
        try:
            os.write(self._pipe, b"x")
            os.close(self._pipe)
        except OSError:
            pass
        # No zombie is left
        self._process.wait()


def _oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory, 0 if
    unknown."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except (OSError, ValueError):
        return 0
