"""Hostile input would end in a traceback, hang, or take all memory.

Hostile input at random (fuzz.py): every case ends in an answer or in one of our errors, in time
and memory.
"""

from __future__ import annotations

import os

import pytest
from support import seldom

fuzz = pytest.importorskip("fuzz", reason="limits of processes are POSIX", exc_type=ImportError)
pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits of processes are POSIX")

CASES = {
    "reading": 200,
    "reading-plan": 60,
    "keys": 200,
    "keys-plan": 25,
    "words": 400,
    "commands": 75,
    "answers": 60,
    "states": 75,
    "texts": 150,
    "explaining": 30,
    "machines": 30,
    "starts": 30,
    "headers": 30,
    "settings": 15,
}
PATIENT = 20.0  # a limit here only ends a case that hangs; `python tests/fuzz.py` measures


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_hostile_input_ends_in_an_answer_or_an_error(times: int) -> None:
    cases = {kind: times * count // 2 for kind, count in CASES.items()}
    totals, bad, peak = fuzz.run(fuzz.Budget(cases, patience=PATIENT), 1, 0, list(CASES))
    assert not bad, "\n".join(bad[:5])
    assert peak < 300
    assert {kind: sum(counts.values()) for kind, counts in totals.items()} == cases
    # mutations get behind the first check
    for kind in ("reading", "keys", "words", "answers", "texts"):
        assert totals[kind].get("ok", 0) > cases[kind] // 100, kind


@seldom
def test_whole_commands_end_in_an_answer_or_an_error() -> None:
    """Advice, reasons and formats; up to 16 devices, and 512 layers: seconds each."""
    totals, bad, _ = fuzz.run(fuzz.Budget({"launches": 20}, patience=PATIENT), 1, 100, ["launches"])
    assert not bad, "\n".join(bad[:5])
    assert totals["launches"].get("exit 0", 0) > 1


def test_every_kind_of_hostile_input_is_tried() -> None:
    assert {*CASES, "launches"} == fuzz.KINDS.keys()
