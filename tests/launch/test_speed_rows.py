"""Anyone who shares measured speeds would not hear what is wrong with a row.

Rows of measured speeds from elsewhere: what is wrong with one is one line.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from support import FIXTURES, ROOT, few_rows

from autolayers.launch.speed_rows import check

ROWS = [
    json.loads(line) for line in (FIXTURES / "speeds" / "speeds.jsonl").read_text().splitlines()
]


def changed(path: str, value: object) -> dict:
    """A good row with one value changed: "machine.devices.0.total"."""
    row = json.loads(json.dumps(ROWS[0]))
    *way, last = path.split(".")
    at = row
    for part in way:
        at = at[int(part) if part.isdigit() else part]
    at[last] = value
    return row


def test_the_rows_that_are_here_are_right() -> None:
    assert [check(row) for row in ROWS] == [""] * len(ROWS)


@pytest.mark.parametrize(
    ("path", "value", "wrong"),
    [
        ("model", "../secret", "model must be the name of a header, not a path"),
        ("source", "a\x1b[2Jb", "source must be a line of text"),
        ("kind", "rate", "kind must be tg or pp, not rate"),
        ("class", "fast", "class must be one of"),
        ("date", "yesterday", "date must be"),
        ("measured", 0, "measured must be tokens per second"),
        ("measured", "70", "measured must be"),
        ("measured", float("nan"), "measured must be"),
        ("measured", True, "measured must be"),
        ("words", "-ngl 99", "words must be a list"),
        ("workload.generate", 0, "workload has no tokens"),
        ("workload.depth", -1, "workload must have"),
        ("machine.devices", {}, "machine must have a list of devices"),
        ("machine.devices.0.free", 1 << 40, "device CUDA0: total and free"),
        ("machine.devices.0.bandwidth", 448, "device CUDA0: bandwidth must be from"),
        ("machine.devices.0.compute_capability", "8.6", "device CUDA0: compute_capability"),
        ("machine.ram", None, "machine: ram must have a bandwidth"),
        ("machine.ram.total", 64, "machine: ram must have"),
    ],
)
def test_a_wrong_value_is_named(path: str, value: object, wrong: str) -> None:
    assert check(changed(path, value)).startswith(wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "wrong"),
    few_rows(
        2,
        [
            ("{", "not JSON"),
            ("[]", "not a JSON object"),
            (json.dumps(changed("model", "no-such-model")), "no header"),
            (f"{json.dumps(ROWS[0])}\n{json.dumps(ROWS[0])}", "a second row s0001"),
        ],
    ),
)
def test_the_fit_ends_with_one_line(text: str, wrong: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("numpy")
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    code = (
        "import sys, pathlib; sys.path.insert(0, 'benchmarks'); import fit_speed; "
        f"fit_speed.load([pathlib.Path({str(file)!r})])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and wrong in done.stderr


@pytest.mark.slow
def test_the_checker_of_rows_names_what_is_implausible(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("numpy")
    new = {**changed("machine.devices.0.total", 8_200_000_000), "id": "t1"}
    rows = [
        new,
        {**new, "measured": 900.0, "id": "t2"},
        ROWS[0],
        {**new, "build": "new", "id": "t3"},
        {**changed("machine.devices.0.bandwidth", 1e12), "id": "t4"},
        {**new, "quality": "unclear", "id": "t5"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [sys.executable, "fixtures/check_speeds.py", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    for number, wrong in (
        (2, "times the prediction of"),
        (3, "a second row s0001"),
        (3, "same measurement is known"),
        (4, "build must be"),
        (5, "a bandwidth of 1000 GB/s, by the table 448"),
        (6, "quality unclear"),
    ):
        assert any(line.startswith(f"rows.jsonl:{number}: ") and wrong in line for line in lines), (
            wrong
        )
    assert lines[-1] == "1 of 6 rows are plausible" and not any(":1:" in line for line in lines)
