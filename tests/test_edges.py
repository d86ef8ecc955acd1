"""A clock that jumps, two writers at once, another user's server or a driver that lies would end in
a traceback or in a torn file.

A few commands of each edge; `python benchmarks/soak.py edges` tries them all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
soak = pytest.importorskip("soak", reason="limits of processes are POSIX", exc_type=ImportError)
FEW = {"a driver that lies": 8, "a file that is loaded with the model": 60}
# what needs root is mounting, and becoming another user
EDGES = (
    "a clock that goes back",
    "two writers of one file",
    "a file that is loaded with the model",
    "a driver that lies",
    pytest.param(
        "a server of another user",
        marks=pytest.mark.skipif(
            not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root"
        ),
    ),
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_ends_in_an_answer_or_one_line(edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(soak.CASES_OF, edge, FEW.get(edge, soak.CASES_OF.get(edge)))
    assert soak.EDGES[edge]({**os.environ, "PYTHONPATH": str(ROOT)}) == []
