"""Anyone who samples mistakes would trust a wrong number.

mutate.py runs every test against a mistake, the nearest first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mutate
import pytest
from mutate import ROOT, Mutation, nearest


@pytest.mark.parametrize(
    ("path", "first"),
    [
        (
            "planner/one/most.py",
            ["tests/planner/test_most.py", "tests/planner", "tests/decisions/test_bars.py"],
        ),
        ("memory/margin.py", ["tests/memory/test_margin.py", "tests/memory", "tests/truth"]),
        ("request.py", ["tests/test_request.py"]),
    ],
)
def test_the_nearest_tests_are_first_and_none_is_left_out(path: str, first: list[str]) -> None:
    places = mutate.tests(ROOT, Mutation(f"autolayers/{path}", 1, "", "", "", 0, 0))
    assert places[: len(first)] == first
    files = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")]
    assert not [
        file for file in files if file not in places and "/".join(file.split("/")[:2]) not in places
    ]


def test_a_part_s_importers_come_after_it() -> None:
    assert (
        nearest("web")[0] == "web"
        and "planner" in nearest("gguf")
        and "gguf" not in nearest("planner")
    )


def test_mistakes_are_made_in_the_lines_that_they_name() -> None:
    path = ROOT / "autolayers" / "planner" / "one" / "partition.py"
    found = list(mutate.mutations(ROOT, path))
    assert {"if negated", "comparison", "and/or"} <= {each.kind for each in found}
    for each in found[:20]:
        assert each.of(path.read_bytes()) != path.read_bytes()


def test_mistakes_are_tried_by_the_tests_that_run_them_the_quickest_first() -> None:
    path = "autolayers/units.py"
    found = mutate.Covered(
        {
            "functions": {f"{path}:1": [1, 2, 5, 9], f"{path}:4": [5, 6]},
            "tests": {
                "slow": {"seconds": 2.0, "functions": [f"{path}:1", f"{path}:4"]},
                "quick": {"seconds": 0.1, "functions": [f"{path}:4"]},
                "outer": {"seconds": 0.1, "functions": [f"{path}:1"]},
            },
        }
    )

    def at(line: int) -> Mutation:
        return Mutation(path, line, "", "", "", 0, 0)

    assert [found.has(at(line)) for line in (2, 6, 7)] == [True, True, False]
    assert found.of(at(5)) == ["quick", "slow"]
    assert found.of(at(9)) == ["outer", "slow"]


def test_what_a_test_runs_is_noted_by_function_and_line(tmp_path: Path) -> None:
    place = tmp_path / "covered.json"
    words = ["-m", "pytest", "-q", "-n0", "-p", "covered", "tests/test_records.py"]
    environ = {**os.environ, "AUTOLAYERS_COVERED": str(place), "PYTHONPATH": str(ROOT / "tests")}
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, check=True)
    found = mutate.Covered(json.loads(place.read_text(encoding="utf-8")))
    assert set(found.lines) >= {"autolayers/records.py"}
    text = (ROOT / "autolayers" / "records.py").read_text(encoding="utf-8").splitlines()
    assert all(text[line - 1].strip() for line in found.lines["autolayers/records.py"])
    assert any(row["functions"] for row in found.tests.values())
