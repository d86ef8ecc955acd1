"""A minute of hostile input at random (fuzz.py): every case ends in an answer or in one of our errors, in time and
memory."""

from __future__ import annotations

import os

import pytest

fuzz = pytest.importorskip("fuzz", reason="limits of processes are POSIX", exc_type=ImportError)

SECONDS = 45.0


@pytest.mark.skipif(os.name != "posix", reason="limits of processes are POSIX")
def test_a_minute_of_hostile_input() -> None:
    totals, bad, peak = fuzz.run(SECONDS, 1, 0, list(fuzz.KINDS))
    assert not bad, "\n".join(bad[:5])
    assert peak < 200
    for kind, counts in totals.items():
        assert sum(counts.values()) > 20, kind
    for kind in ("reading", "keys", "words", "answers", "texts"):       # mutations get behind the first check
        assert totals[kind].get("ok", 0) > sum(totals[kind].values()) // 100, kind
