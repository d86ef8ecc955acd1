"""mutate.py runs every test against a mistake, the nearest first."""

from __future__ import annotations

import mutate
import pytest
from mutate import ROOT, Mutation, nearest


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("planner/one/most.py", ["tests/planner", "tests/decisions/test_bars.py"]),
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
