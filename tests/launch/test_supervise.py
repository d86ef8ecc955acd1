"""Watched children: what is started, and what is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autolayers.errors import AutolayersError
from autolayers.launch import background

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")


def test_code_in_the_current_directory_is_not_run(tmp_path: Path) -> None:
    here, script = tmp_path / "model", tmp_path / "bin" / "run.py"
    here.mkdir()
    script.parent.mkdir()
    for name in ("signal", "os", "time", "re", "ctypes"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    script.write_text("import os\nfrom autolayers.launch.supervise import run\n"
                      "raise SystemExit(run(['true'], os.environ).code)\n")
    done = subprocess.run([sys.executable, script], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and not (tmp_path / "ran").exists()


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AutolayersError, match=r"cannot write .*8080\.log: "):
        background.run(["true"], {**os.environ, "XDG_STATE_HOME": str(tmp_path / "file")}, 8080, lambda: False)


def test_a_defect_behind_the_log_does_not_stall_the_child() -> None:
    """What the child says goes on being copied: it would wait for ever at a full pipe."""
    code = ("import os, sys; from autolayers.launch import supervise\n"
            "def defect(launch): raise ZeroDivisionError('a defect')\n"
            "child = ['sh', '-c', 'echo main: model loaded >&2; sleep 0.2; yes | head -c 1000000 >&2']\n"
            "sys.exit(supervise.run(child, os.environ, defect).code)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and b"ZeroDivisionError: a defect" in done.stderr
    assert done.stderr.count(b"y\n") == 500_000


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_no_signal_of_a_burst_is_lost() -> None:
    """As `timeout` and systemd send them: TERM, TERM to the group, CONT, CONT."""
    code = ("import os, sys; from autolayers.launch import supervise; print('up', flush=True);"
            "sys.exit(0 if supervise.run(['sleep', '60'], os.environ).asked else 3)")
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        time.sleep(0.5)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGCONT, signal.SIGCONT):
            os.kill(child.pid, number)
        try:
            child.wait(30)
        finally:
            child.kill()
            child.stdout.close()
