"""Whoever adds a source would not know what a batched row is judged by, nor what a fit moved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import FIXTURES

sys.path.insert(0, str(FIXTURES))
import add_speeds


@pytest.mark.slow
def test_a_correct_row_of_several_users_is_plausible(tmp_path: Path) -> None:
    rows = map(json.loads, (FIXTURES / "speeds" / "speeds.jsonl").read_text().splitlines())
    batched = next(row for row in rows if row["workload"].get("requests") == 16)
    # twelve times what one user gets is no other machine
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**batched, "id": "other", "measured": batched["measured"] + 1}))
    done = subprocess.run(
        [sys.executable, FIXTURES / "check_speeds.py", file], capture_output=True, text=True
    )
    assert done.stdout == "1 of 1 rows are plausible\n", done.stdout + done.stderr
    file.write_text(json.dumps({**batched, "id": "other", "measured": batched["measured"] * 6}))
    done = subprocess.run(
        [sys.executable, FIXTURES / "check_speeds.py", file], capture_output=True, text=True
    )
    assert "6" in done.stdout and "times the prediction" in done.stdout


def test_only_classes_that_moved_are_said() -> None:
    before = {"CPU tg, CPU": [1.0, 1.1], "dense resident pp, SYCL": [1.0]}
    after = {
        "CPU tg, CPU": [1.0, 1.11],
        "dense resident pp, SYCL": [1.3],
        "MoE resident tg, MTL": [0.9],
    }
    assert add_speeds.moved(before, after) == [
        "MoE resident tg, MTL: none -> 0.90 of 1 rows",
        "dense resident pp, SYCL: 1.00 -> 1.30 of 1 rows",
    ]
