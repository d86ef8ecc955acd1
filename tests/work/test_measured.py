"""A published measurement of another launch would be shown next to a plan.

What somebody measured, beside what is predicted: which row is the nearest, and when the rows are
read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections import Counter

import pytest
from support import FIXTURES, PARTS, ROOT, model, of_today

import autolayers
from autolayers.machine import CLASSES, Device
from autolayers.planner.measured import measured_on
from autolayers.records import replace
from autolayers.report.text import plan_text
from autolayers.work import measured
from autolayers.work.measured import (
    Asked,
    MeasuredRate,
    alike,
    card_of,
    drawn,
    nearest,
    of_cards,
    rows,
    wanted,
)

TABLE = ROOT / "autolayers" / "work" / "measured.csv"
COUNTED = {
    row["id"]: row
    for row in map(json.loads, (FIXTURES / "speeds" / "speeds.jsonl").read_text().splitlines())
    if row["quality"] in ("llama-bench", "server") and not row.get("disk_bound")
}


def on(card: str, name: str, words: str = "-c 8192") -> autolayers.Plan:
    return autolayers.plan(model(name), words.split(), devices=[Device.hypothetical(card)])


def test_the_table_has_all_rows_that_count_and_is_small() -> None:
    assert {row.id: row.rate for row in rows()} == {
        name: pytest.approx(row["measured"], rel=1e-5) for name, row in COUNTED.items()
    }
    assert len(zlib.compress(TABLE.read_bytes(), 9)) < 150_000
    assert all(row.source == "" or row.source == COUNTED[row.id]["source"] for row in rows())
    assert all(0 <= row.share <= 1 and row.active <= row.size for row in rows())


@pytest.mark.slow
def test_the_table_is_what_the_constants_make_of_the_rows() -> None:
    """A fourth of them each day."""
    pytest.importorskip("numpy")
    program = [sys.executable, ROOT / "fixtures" / "measured.py", "--check"]
    for part in of_today(range(PARTS)):
        assert subprocess.run([*program, f"{part}/{PARTS}"]).returncode == 0


def opened(words: str) -> bool:
    """Whether a command reads the table."""
    code = (
        "import sys; names = []; sys.addaudithook(lambda event, args: "
        "names.append(str(args[0])) "
        "if event == 'open' else None); from autolayers.cli import main; main(sys.argv[1:]); "
        "print(any(name.endswith('measured.csv') for name in names), file=sys.stderr)"
    )
    header = str(FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf")
    done = subprocess.run(
        [sys.executable, "-c", code, header, "--gpu", "rtx-4090", *words.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.stderr.splitlines()[-1] == "True"


@pytest.mark.slow
def test_a_plan_on_a_pipe_never_reads_the_table() -> None:
    assert not opened("") and not opened("-q")
    assert opened("--json")


def test_a_plan_shows_the_nearest_row_of_the_same_cards() -> None:
    found = on("rtx-4090", "gpt-oss-20b-mxfp4")
    said = found.to_dict()["measured"]
    row = COUNTED[said["id"]]
    assert (said["generation_tokens_per_second"], said["source"], said["date"]) == (
        row["measured"],
        row["source"],
        row["date"],
    )
    assert row["model"] == "gpt-oss-20b-mxfp4" and row["kind"] == "tg"
    assert [device["card"] for device in row["machine"]["devices"]] == ["rtx-4090"]
    source = row["source"].removeprefix("https://")
    text = plan_text(found)
    assert "\nmeasured  187 tokens/s: gpt-oss-20b-mxfp4, RTX 4090," in text
    assert source in text and row["date"] in text


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("24GiB", "gpt-oss-20b-mxfp4"),  # no card
        ("rtx-4090", "mamba2-2.7b-q4_k_m"),  # nobody measured that architecture
    ],
)
def test_what_nobody_measured_is_not_shown(card: str, name: str) -> None:
    found = on(card, name, "-c 4096")
    assert found.measured is None and "measured" not in found.to_dict()
    assert "\nmeasured " not in plan_text(found)


def test_a_model_without_matrices_has_no_measurement() -> None:
    found = on("rtx-4090", "gpt-oss-20b-mxfp4")
    assert measured_on(found.model, ["rtx-4090"], "CUDA", found.speed) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "active", lambda model: 0)
        assert measured_on(found.model, ["rtx-4090"], "CUDA", found.speed) is None


def test_a_twin_has_the_same_architecture_and_active_bytes_within_5_percent() -> None:
    asked = Asked.of(model("llama-3.1-8b-q4_k_m"), ["rtx-3090"], "CUDA", "dense resident")
    own = nearest(asked, "tg")
    assert own is not None and own.model == "llama-3.1-8b-q4_k_m"
    near, far = (
        replace(asked, active=int(asked.active * 1.04)),
        replace(asked, active=int(asked.active * 1.06)),
    )
    assert own in alike(near, "tg") and own not in alike(far, "tg")
    for other in (
        replace(asked, architecture="qwen3"),
        replace(asked, backend="Vulkan"),
        replace(asked, cards=("rtx-3090", "rtx-3090")),
        replace(asked, placement="dense partial"),
    ):
        assert own not in alike(other, "tg")


def test_the_nearest_is_of_that_depth_and_of_builds_since_2025() -> None:
    first = next(row for row in rows() if row.placement == "dense resident" and row.kind == "tg")
    asked = Asked(
        first.architecture, first.active, first.cards, first.backend, first.placement, depth=16000
    )
    deep, shallow = (
        replace(first, id="deep", depth=16000, date="2026"),
        replace(first, id="shallow", depth=4000, date="2026"),
    )
    old = replace(deep, id="old", date="2024-05")
    assert [row.id for row in in_order(asked, [old, shallow, deep])] == ["deep", "shallow", "old"]


def in_order(asked: Asked, known: list[MeasuredRate]) -> list[MeasuredRate]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "rows", lambda: tuple(known))
        return alike(asked, "tg")


@pytest.mark.parametrize(
    ("ratios", "now"),
    [
        # three count as three against the prediction as one
        ((0.5, 0.5, 0.5), 100 * 0.5**0.75),
        ((0.5, 0.5), None),
        ((0.5, 0.5, 0.9), None),
        ((1.3, 0.7, 0.6), None),
        ((2.0, 1.5, 1.4, 1.5), 100 * 1.5**0.8),
    ],
)
def test_three_measurements_draw_a_prediction(
    ratios: tuple[float, ...], now: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next(row for row in rows() if row.placement == "dense resident" and row.kind == "tg")
    known = tuple(
        [replace(first, rate=50 * ratio, predicted=50.0, date="2026-01") for ratio in ratios]
    )
    monkeypatch.setattr(measured, "rows", lambda: known)
    asked = Asked(first.architecture, first.active, first.cards, first.backend, first.placement)
    found = drawn(asked, "tg", 100.0, 1.2)
    assert found == (None if now is None else (pytest.approx(now), len(ratios)))


def test_a_machine_is_told_which_row_would_help() -> None:
    assert wanted([]) == "CPU"
    assert wanted(["rtx-3090", "rtx-4090"]) == "multi-GPU"
    count = Counter(row.placement for row in of_cards(["rtx-4090"]))
    assert count[wanted(["rtx-4090"])] == min(
        count[name] for name in CLASSES if name not in ("CPU", "multi-GPU")
    )
    assert (
        card_of("NVIDIA GeForce RTX 3090", 24 << 30) == "rtx-3090"
        and card_of("hypothetical", 1 << 30) == ""
    )
