"""A measured line of another time or another micro-batch would be read as the plan's own."""

from __future__ import annotations

from autolayers.planner.measured import Measured
from autolayers.records import replace
from autolayers.report.measured import measured_words
from autolayers.work.measured import rows

TOKEN, PROMPT = (
    next(row for row in rows() if row.kind == kind and row.source and not row.old)
    for kind in ("tg", "pp")
)
PROMPT = replace(PROMPT, words="-ngl 99 -ub 512", source=TOKEN.source)
TOKEN = replace(TOKEN, words=PROMPT.words)


def test_a_prompt_of_another_micro_batch_says_which() -> None:
    seen = Measured(TOKEN, PROMPT)
    assert "with -ub 512:" in measured_words(seen, 0, 4096)[0]
    assert "-ub" not in measured_words(seen, 0, 512)[0]


def test_a_row_of_before_2025_says_that_its_build_was_slower() -> None:
    old = replace(TOKEN, date="2024-05")
    assert "2024-05 (an older, slower build)" in measured_words(Measured(old, None))[0]
    assert "older" not in measured_words(Measured(TOKEN, None))[0]


def test_one_row_outside_the_range_is_said() -> None:
    assert replace(TOKEN, rate=130.0, predicted=100.0).off(1.2)
    assert not replace(TOKEN, rate=110.0, predicted=100.0).off(1.2)
    words = measured_words(Measured(TOKEN, None, outside=True))
    assert words[1].startswith("that is outside the predicted range")
    assert len(measured_words(Measured(TOKEN, None))) == 1
