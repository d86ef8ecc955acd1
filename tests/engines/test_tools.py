"""Users of llama-bench and other tools would get buffers that those programs do not allocate.

The programs are started, and their buffers compared with those of `--engine` (tools.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tools

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
