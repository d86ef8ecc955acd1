"""People would look for their answer below the first screen, or not find it.

The people of docs/best.md, each with the question and the command.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import swept

pytest.importorskip("pyte")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="no pty")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
made = importlib.import_module("make_best")


@pytest.mark.parametrize("person", swept(made.PEOPLE, 6))
def test_the_answer_is_on_the_first_screen(person: Any, tmp_path: Path) -> None:
    at, said = made.answer(person, made.screen(person, tmp_path))
    assert 0 < at <= made.FIRST_SCREEN, said
    # As docs/best.md has the question
    assert f"{person.asks} `{person.words}`\n" in (ROOT / "docs" / "best.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stem", "said"),
    [
        ("qwen3.5-4b", "the same"),
        ("qwen3.8-27b", "slow here, "),
        ("llama-3.3-70b", "of 2024-12, 15 months older"),
    ],
)
def test_why_another_list_differs_is_computed(stem: str, said: str) -> None:
    rows = [row for row in _rows() if row.model.stem in ("qwen3.5-4b", "qwen3.8-27b")]
    assert made.why(stem, rows).startswith(said)


@cache
def _rows() -> list[Any]:
    best, published = made.best, made.published
    job = best.JOBS["chat"]
    request = job.asked(made.Request.of(["--gpu", "6GiB", "--ram", "16GiB"], {}))
    stems = ("qwen3.5-4b", "qwen3.8-27b")
    return best.ordered(best.take(published.MODELS[stem], request, job) for stem in stems)
