"""Watched children: what is started, and what is not."""

from __future__ import annotations

import os
import subprocess
import sys
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
