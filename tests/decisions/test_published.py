"""Experienced users would find their own command faster than the plan.

Launches that experienced users publish: none that fits is predicted faster than what is planned
for its machine.
"""

import importlib
from pathlib import Path

import pytest
from support import swept

ROOT = Path(__file__).parents[2]
FEW = 40


@pytest.mark.parametrize("number", swept(range(60), 6, range(0, 60, FEW)))
def test_a_published_launch_is_no_faster(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    published = importlib.import_module("make_published")
    row = published.rows()[number]
    theirs, ours = published.both(row)
    assert ours.fits, row
    assert not theirs.fits or ours.speed.request <= theirs.speed.request * published.SAME, row
    page = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8").partition("## Launches")[2]
    if published.slower(theirs, ours):
        assert published.line(row, theirs, ours) in page.splitlines()
    else:
        assert (
            f"{row['model']} on {published.machine(row)}" in page.rpartition("As fast as ours")[2]
        )
