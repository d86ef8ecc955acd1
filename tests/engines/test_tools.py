"""Users of llama-bench and other tools would get buffers that those programs do not allocate.

The programs are started, and their buffers compared with those of `--engine` (tools.py).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tools
from autolayers.detect import read_help
from autolayers.flags.table import ARGUMENTS

pytestmark = pytest.mark.llamacpp


@pytest.mark.parametrize("name", tools.PROGRAMS)
def test_buffers_are_those_of_the_engine(name: str, binaries: Path, tmp_path: Path) -> None:
    mock, source = binaries / "libmockcuda.so", binaries.parent.parent / "source"
    if not mock.exists() or not (source / "include").exists():
        pytest.skip("needs libmockcuda.so and the headers that tests/build_llamacpp.sh has")
    tools.library_user(binaries, source, tmp_path)
    found = list(tools.outcomes(name, 15, 45, binaries, mock, tmp_path))
    assert [one for one in found if one.verdict not in ("equal", "refused")] == []
    assert sum(one.verdict == "equal" for one in found) >= 10


@pytest.mark.parametrize("program", ["server", "completion"])
def test_each_program_has_the_flags_of_its_column(program: str, binaries: Path) -> None:
    """As its own --help lists them, and no flag that the table has not."""
    path = binaries / f"llama-{program}"
    if not path.exists():
        pytest.skip(f"no {path}")
    done = subprocess.run([path, "--help"], capture_output=True, text=True, check=True)
    names = read_help(done.stdout)[0] or set()
    assert [row for row in ARGUMENTS if (row.canonical in names) != row.is_of(program)] == []
    assert names <= {name for row in ARGUMENTS for name in (*row.names, *row.negated)}
