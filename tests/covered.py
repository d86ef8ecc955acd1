"""Which functions of the package each test runs, and which of their lines any test runs.

    AUTOLAYERS_COVERED=FILE python -m pytest -n0 -p covered tests/planner/test_search.py

FILE is one JSON object: "functions" with the lines of each that were run, and "tests" with the
seconds of each and the functions that it ran.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

PACKAGE = f"{Path(__file__).parents[1] / 'autolayers'}{os.sep}"


class Seen:
    """Functions by "path:first line"."""

    def __init__(self) -> None:
        self.lines: dict[CodeType, set[int]] = {}
        self.all: dict[CodeType, set[int]] = {}
        self.now: set[CodeType] = set()
        self.tests: dict[str, tuple[float, set[CodeType]]] = {}

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        self.now.add(code)
        if code not in self.lines:
            self.lines[code] = set()
            self.all[code] = {line for *_, line in code.co_lines() if line is not None}
        # once all lines were seen nothing is to be learned
        return None if len(self.lines[code]) >= len(self.all[code]) else self.line

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.lines[frame.f_code].add(frame.f_lineno)
        return self.line

    def to_dict(self) -> dict[str, Any]:
        return {
            "functions": {_name(code): sorted(lines) for code, lines in self.lines.items()},
            "tests": {
                test: {"seconds": seconds, "functions": sorted(map(_name, codes))}
                for test, (seconds, codes) in self.tests.items()
            },
        }


def _name(code: CodeType) -> str:
    path = Path(code.co_filename).relative_to(Path(PACKAGE).parent).as_posix()
    return f"{path}:{code.co_firstlineno}"


SEEN = Seen()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """With the fixtures that are made for it."""
    SEEN.now, start = set(), time.process_time()
    sys.settrace(SEEN.call)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        SEEN.tests[item.nodeid] = time.process_time() - start, SEEN.now


def pytest_sessionfinish() -> None:
    if place := os.environ.get("AUTOLAYERS_COVERED"):
        Path(place).write_text(json.dumps(SEEN.to_dict()), encoding="utf-8")
