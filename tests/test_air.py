"""Anyone who relies on the counts of tools/air.py would rely on wrong ones.

tools/air.py counts what it says.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import air

# Its third line has 101 columns
TEXT = f'''"""A module."""
# a comment
LONG = "{"x" * 92}"


def dense(a, b, c):
    """Not counted."""
    if a and b or not (c and a) and b:
        return [x for x in a if x]
    return a if b else c


def simple(a):
    def inner(b):
        return b and a
    return inner
'''


def test_places_and_figures_are_those_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text.py"
    path.write_text(TEXT, encoding="utf-8")
    measured = air.measure([tmp_path])
    assert (measured.lines, measured.code, measured.comments, measured.wide) == (16, 11, 1, 1)
    assert measured.functions == 3
    assert measured.operands == 1
    assert [(line, what) for _, line, what in measured.places] == [
        (3, "101 columns"),
        (8, "5 operands"),
    ]


def test_complexity_counts_branches_operators_and_comprehensions(tmp_path: Path) -> None:
    path = tmp_path / "text.py"
    conditions = "".join(
        f"    if a and {number}:\n        return {number}\n" for number in range(4)
    )
    path.write_text(
        f"def f(a):\n{conditions}    return [x for x in a if x] if a else a\n", encoding="utf-8"
    )
    # 1, four times `if` and `and`, a comprehension with a condition, one conditional expression
    assert [what for _, _, what in air.measure([path]).places] == ["f: complexity 12"]
    path.write_text(
        "def f(a):\n    if a and 1:\n        return 1\n    return a\n", encoding="utf-8"
    )
    assert not air.measure([path]).places


def test_nodes_are_those_of_bodies(tmp_path: Path) -> None:
    path = tmp_path / "text.py"
    path.write_text('def f(a):\n    """Text."""\n    return a + 1\n', encoding="utf-8")
    measured = air.measure([path])
    assert (measured.nodes, measured.body_lines) == (3, 1)
