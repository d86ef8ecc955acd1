"""A server that crashes would not be started again, or one that was stopped would be.

Watched children: what is started, and what is not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import slow

from autolayers.errors import AutolayersError
from autolayers.launch import background, supervise

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")


def test_code_in_the_current_directory_is_not_run(tmp_path: Path) -> None:
    here, script = tmp_path / "model", tmp_path / "bin" / "run.py"
    here.mkdir()
    script.parent.mkdir()
    for name in ("signal", "os", "time", "re", "ctypes"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    script.write_text(
        "import os\nfrom autolayers.launch.supervise import run\n"
        "raise SystemExit(run(['true'], os.environ).code)\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=here, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "") and not (tmp_path / "ran").exists()


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AutolayersError, match=r"cannot write .*8080\.log: "):
        background.run(
            ["true"], {**os.environ, "XDG_STATE_HOME": str(tmp_path / "file")}, 8080, lambda: False
        )


@pytest.mark.slow
def test_a_defect_behind_the_log_does_not_stall_the_child() -> None:
    """What the child says goes on being copied: it would wait for ever at a full pipe."""
    code = (
        "import os, sys; from autolayers.launch import supervise\n"
        "def defect(launch): raise ZeroDivisionError('a defect')\n"
        "child = ['sh', '-c', 'echo main: model loaded >&2; sleep 0.2; yes | head -c 200000 "
        ">&2']\n"
        "sys.exit(supervise.run(child, os.environ, defect).code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0 and b"ZeroDivisionError: a defect" in done.stderr
    assert done.stderr.count(b"y\n") == 100_000


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_no_signal_of_a_burst_is_lost() -> None:
    """As `timeout` and systemd send them: TERM, TERM to the group, CONT, CONT."""
    code = (
        "import os, sys; from autolayers.launch import supervise\n"
        "sys.exit(0 if supervise.run(['sh', '-c', 'echo up; exec sleep 600'], "
        "os.environ).requested else 3)"
    )
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
        )
        # its words pass once signals do
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGCONT, signal.SIGCONT):
            os.kill(child.pid, number)
        try:
            child.wait(300)
        finally:
            child.kill()
            child.stdout.close()


# --- nothing survives


def _gone(pid: int) -> bool:
    """Whether a process ends; the limit only ends a wait in vain."""
    for _ in range(15_000):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def _script(tmp_path: Path, call: str, **options: Any) -> subprocess.Popen[bytes]:
    """A process that evaluates `call` with both modules, and exits with the outcome's code."""
    code = (
        "import os, signal, sys\nfrom autolayers.launch import background, supervise\n"
        "background._PAUSE = 0.05\nsupervise._PATIENCE = supervise._GRACE = 0.5\n"
        # nohup before pytest would be inherited
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"found = {call}\nsys.exit(getattr(found, 'code', found))"
    )
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "HERE": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **options,
    )


def _pid(tmp_path: Path) -> int:
    """The process id that a server of these tests writes down."""
    for _ in range(15_000):
        if (text := (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else "").endswith(
            "\n"
        ):
            return int(text)
        time.sleep(0.02)
    raise AssertionError("the server never started")


@pytest.mark.parametrize("name", ["INT", slow("TERM"), slow("HUP")])
def test_a_signal_as_soon_as_the_server_starts_ends_it(tmp_path: Path, name: str) -> None:
    server = f"echo $$ > $HERE/pid; kill -{name} $PPID; exec sleep 60"
    with _script(
        tmp_path,
        f"background.run(['sh', '-c', {server!r}], os.environ, 8080, lambda pid: False)[1]",
    ):
        pass
    assert _gone(_pid(tmp_path))


@pytest.mark.parametrize(
    "call",
    [
        "background.run(['sh', '-c', {server!r}], os.environ, 8080, lambda pid: False)",
        "supervise.run(['sh', '-c', {server!r}], os.environ)",
    ],
)
def test_no_server_outlives_a_kill(tmp_path: Path, call: str) -> None:
    """SIGKILL as soon as the server starts: its children end, too."""
    server = "sleep 60 & echo $! > $HERE/pid; kill -KILL $PPID; wait"
    with _script(tmp_path, call.format(server=server)):
        pass
    assert _gone(_pid(tmp_path))


def test_a_server_that_is_ready_outlives_a_kill(tmp_path: Path) -> None:
    server = "echo $$ > $HERE/pid; exec sleep 60"
    call = f"background.run(['sh', '-c', {server!r}], os.environ, 8080, lambda pid: True)"
    with _script(tmp_path, f"{call}, os.kill(os.getpid(), 9)"):
        pass
    process = psutil.Process(_pid(tmp_path))
    assert process.status() != psutil.STATUS_ZOMBIE
    process.kill()


def test_a_defect_while_waiting_leaves_no_server(tmp_path: Path) -> None:
    server = "echo $$ > $HERE/pid; exec sleep 60"
    with _script(
        tmp_path,
        f"background.run(['sh', '-c', {server!r}], os.environ, 8080, "
        "lambda pid: os.path.exists(os.environ['HERE'] + '/pid') and 1 / 0)",
    ):
        pass
    assert _gone(_pid(tmp_path))


def test_a_thread_that_the_system_does_not_admit_is_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining it was a traceback of its own (ulimit -d)."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    environ = {**os.environ, "HERE": str(tmp_path)}
    with pytest.raises(RuntimeError, match="can't start new thread"):
        supervise.run(["sh", "-c", "echo $$ > $HERE/pid; exec sleep 60"], environ)
    # it may be ended before it has said who it is
    said = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    assert not said.endswith("\n") or _gone(int(said))


def test_a_server_that_prints_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[int] = []
    feed = background.LogReader.feed
    monkeypatch.setattr(background, "_LOG_LIMIT", 4 << 20)
    monkeypatch.setattr(
        background.LogReader,
        "feed",
        lambda self, data: (pieces.append(len(data)), feed(self, data)),
    )
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HERE": str(tmp_path)}
    with pytest.raises(AutolayersError, match=r"printed more than 4\.00 MiB before it was ready"):
        background.run(
            ["sh", "-c", "echo $$ > $HERE/pid; exec yes $PATH"], environ, 8080, lambda pid: False
        )
    assert max(pieces) <= 1 << 20 and _gone(_pid(tmp_path))


def test_a_server_that_stays_silent_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_SILENCE", 0.3)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with pytest.raises(AutolayersError, match="is not ready: ended"):
        background.run(["sleep", "60"], environ, 8080, lambda pid: False)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_CHILD_SUBREAPER")
def test_a_descendant_that_left_the_group_ends_too(tmp_path: Path) -> None:
    server = "setsid sh -c 'echo $$ > $HERE/pid; exec sleep 60' & sleep 0.5"
    with _script(tmp_path, f"supervise.run(['sh', '-c', {server!r}], os.environ)") as child:
        assert child.wait(300) == 0
    assert _gone(_pid(tmp_path))


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    server = "trap '' TERM; echo $$ > $HERE/pid; while :; do sleep 0.1; done"
    with _script(tmp_path, f"supervise.run(['sh', '-c', {server!r}], os.environ)") as child:
        pid = _pid(tmp_path)
        child.terminate()
        assert child.wait(300) == 128 + signal.SIGKILL
    assert _gone(pid)


def test_an_interrupt_reaches_the_server_of_a_background_job(tmp_path: Path) -> None:
    """A shell starts `command &` in a script with SIGINT ignored; llama-server handles it all the
    same."""
    server = (
        "import os, signal, sys, time\n"
        # a shell could not trap it
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(7))\n"
        "open(os.environ['HERE'] + '/pid', 'w').write(f'{os.getpid()}\\n')\n"
        "time.sleep(60)"
    )
    call = f"supervise.run([sys.executable, '-c', {server!r}], os.environ)"
    with _script(
        tmp_path, call, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    ) as child:
        _pid(tmp_path)
        child.send_signal(signal.SIGINT)
        assert child.wait(300) == 7
