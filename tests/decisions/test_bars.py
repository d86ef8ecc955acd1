"""A change would give owners of unlike GPUs other plans, or searches of other cost, unseen.

bars.jsonl has a line for each: a model, GPUs with the MiB that are free, RAM, words, the seconds of
the reference request that were planned, and what the search spent (memory/meter.py). worth.jsonl
has more of them: small cases of one to three GPUs with many kinds of flags, by what the search
compares (planner/prices.py: seconds, and prices of a smaller context and of hard flags), and
llama-server's own choice (`fit`, planner/one/fit.py). small.jsonl has models of a few layers with
many other flags, some of which do not fit, by the plan's own flags, warnings, reasons and bytes
that are left too, some with a `budget` that ends their search. Better plans and shorter searches
are written down too: AUTOLAYERS_WRITE_BARS=1 writes all of them again, and the commit says why they
changed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import HEADERS, MiB, few, model, of_today, slow

import autolayers
from autolayers.api import fit_choice
from autolayers.devices import Host, hypothetical
from autolayers.flags.write import to_words
from autolayers.machine import Device
from autolayers.memory.meter import Meter
from autolayers.planner.answer import plan_request
from autolayers.planner.prices import worth
from autolayers.planner.problem import Problem
from autolayers.records import replace
from autolayers.request import Request

BARS = Path(__file__).with_name("bars.jsonl")
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in BARS.read_text(encoding="utf-8").splitlines()
]
WORTH = Path(__file__).with_name("worth.jsonl")
CASES: list[dict[str, Any]] = [
    json.loads(line) for line in WORTH.read_text(encoding="utf-8").splitlines()
]
SMALL = Path(__file__).with_name("small.jsonl")
FEW: list[dict[str, Any]] = [
    json.loads(line) for line in SMALL.read_text(encoding="utf-8").splitlines()
]
DRAFT = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
FILE = "tests/decisions/test_bars.py"
SAME = 1e-5  # as numbers are rounded
BRIEF = 16_000  # what a search may spend whose bar is checked in every run


def cards(row: dict[str, Any]) -> list[Device]:
    found = []
    for i, (name, mib) in enumerate(row["gpus"]):
        device = hypothetical(name)[0]
        found.append(replace(device, name=f"{device.backend}{i}", total=mib * MiB, free=mib * MiB))
    return found


def planned(row: dict[str, Any]) -> tuple[autolayers.Plan, int, float]:
    """The plan, what its search spent, and what it is worth: seconds of its request times the
    prices, as the search compares launches."""
    host = replace(Host.hypothetical(row["ram"]), expert_upload=row.get("upload"))
    words = [DRAFT if word == "DRAFT" else word for word in row["words"].split()]
    request = Request.of(words, devices=cards(row), host=host)
    target, meter = model(row["model"]), Meter(row.get("budget"))
    found = plan_request(target, request, meter=meter)
    return found, meter.spent, worth(Problem(target, request), found.params, found.breakdown)


def of_fit(row: dict[str, Any]) -> str:
    """The words of llama-server's own choice."""
    host = Host.hypothetical(row["ram"])
    choice = fit_choice(model(row["model"]), row["words"].split(), cards(row), host)
    return "" if choice is None else " ".join(to_words(choice.params))


def named(row: dict[str, Any]) -> str:
    return f"{row['model']} {len(row['gpus'])} {row['words']} {row.get('budget', '')}"


def check(row: dict[str, Any], **now: Any) -> None:
    """A line has these values; with AUTOLAYERS_WRITE_BARS it gets them."""
    if os.environ.get("AUTOLAYERS_WRITE_BARS"):
        row.update({k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in now.items()})
        for path, rows in ((BARS, ROWS), (WORTH, CASES), (SMALL, FEW)):
            path.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    changed = [
        f"{name}: {row[name]} -> {value}"
        for name, value in now.items()
        if value != (pytest.approx(row[name], rel=SAME) if isinstance(value, float) else row[name])
    ]
    assert not changed, "\n".join(
        [*changed, f"if it is meant: AUTOLAYERS_WRITE_BARS=1 python -m pytest {FILE}"]
    )


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row["spent"] < BRIEF]
    + of_today([slow(row) for row in ROWS if row["spent"] >= BRIEF]),
    ids=lambda row: f"{row['model']} {row['gpus']}",
)
def test_a_plan_is_as_fast_as_it_was(row: dict[str, Any]) -> None:
    found, spent, _ = planned(row)
    assert found.fits and found.speed
    seconds = found.speed.request
    check(row, seconds=seconds, spent=spent)


@pytest.mark.parametrize(
    "row",
    few(6, [row for row in CASES if len(row["gpus"]) > 1 and row["spent"] < BRIEF])
    + of_today([slow(row) for row in CASES if len(row["gpus"]) < 2 or row["spent"] >= BRIEF]),
    ids=named,
)
def test_a_plan_is_worth_as_much_as_it_was(row: dict[str, Any]) -> None:
    found, spent, now = planned(row)
    assert found.fits
    check(row, worth=now, spent=spent)


@pytest.mark.parametrize("row", few(6, FEW), ids=named)
def test_a_small_plan_is_what_it_was(row: dict[str, Any]) -> None:
    found, spent, now = planned(row)
    said: dict[str, Any] = {
        "flags": " ".join(found.flags).replace(DRAFT, "DRAFT"),
        "fits": found.fits,
        "left": [device.remaining for device in found.devices],
        "ram_left": found.host.remaining,
        # but for the one that a fixture is a header alone
        "warnings": [text for text in found.warnings if not text.startswith(found.model.path)],
        "reasons": [*found.reasons],
    }
    check(row, worth=now, spent=spent, **said)


@pytest.mark.parametrize("row", few(8, CASES), ids=named)
def test_fit_chooses_what_it_did(row: dict[str, Any]) -> None:
    check(row, fit=of_fit(row))


def test_most_bars_are_of_unlike_gpus_with_weights_in_ram() -> None:
    unlike = [row for row in ROWS if len({name for name, _ in row["gpus"]}) > 1]
    in_ram = [
        row for row in unlike if sum(mib for _, mib in row["gpus"]) * MiB < model(row["model"]).size
    ]
    assert len(ROWS) >= 10 and len(in_ram) >= 6
