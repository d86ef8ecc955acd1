"""Hostile input at random (fuzz.py): every case ends in an answer or in one of our errors, in time and
memory."""

from __future__ import annotations

import os

import pytest

fuzz = pytest.importorskip("fuzz", reason="limits of processes are POSIX", exc_type=ImportError)


@pytest.mark.skipif(os.name != "posix", reason="limits of processes are POSIX")
@pytest.mark.parametrize(("seconds", "cases"), [(4, 1), pytest.param(45, 21, marks=pytest.mark.slow)])
def test_hostile_input(seconds: int, cases: int) -> None:
    totals, bad, peak = fuzz.run(seconds, 1, 0, [kind for kind in fuzz.KINDS if kind != "launches"])
    assert not bad, "\n".join(bad[:5])
    assert peak < 300
    for kind, counts in totals.items():
        assert sum(counts.values()) >= cases, kind
    for kind in ("reading", "keys", "words", "answers", "texts"):       # mutations get behind the first check
        assert totals[kind].get("ok", 0) > sum(totals[kind].values()) // 100, kind


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="limits of processes are POSIX")
def test_whole_commands() -> None:
    """Advice, reasons and formats; up to 16 devices, and 512 layers: seconds each."""
    totals, bad, _ = fuzz.run(60, 1, 100, ["launches"])
    assert not bad, "\n".join(bad[:5])
    assert totals["launches"].get("ok", 0) > 1
