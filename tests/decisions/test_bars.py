"""Owners of several GPUs would get slower plans after a change, with no other test that fails.

Plans of unlike machines are as fast as they were: predicted seconds of the reference request,
against bars.

bars.jsonl has a line for each: a model, GPUs with the MiB that are free, RAM, words, and the
seconds that were planned. worth.jsonl has more of them: small cases of one to three GPUs with many
kinds of flags, by what the search compares (planner/prices.py: seconds, and prices of a smaller
context and of hard flags). A better plan lowers no bar by itself: AUTOLAYERS_WRITE_BARS=1 writes
all of them again, after a change of predictions or for the better.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import MiB, model

import autolayers
from autolayers.devices import Host, hypothetical
from autolayers.machine import Device
from autolayers.planner.prices import worth
from autolayers.planner.problem import Problem
from autolayers.records import replace
from autolayers.request import Request

BARS = Path(__file__).with_name("bars.jsonl")
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in BARS.read_text(encoding="utf-8").splitlines()
]
MORE = 1.01
WORTH = Path(__file__).with_name("worth.jsonl")
CASES: list[dict[str, Any]] = [
    json.loads(line) for line in WORTH.read_text(encoding="utf-8").splitlines()
]
WORSE = 1.004


def cards(row: dict[str, Any]) -> list[Device]:
    found = []
    for i, (name, mib) in enumerate(row["gpus"]):
        device = hypothetical(name)[0]
        found.append(replace(device, name=f"{device.backend}{i}", total=mib * MiB, free=mib * MiB))
    return found


def planned(row: dict[str, Any]) -> autolayers.Plan:
    host = Host.hypothetical(row["ram"])
    return autolayers.plan(model(row["model"]), row["words"].split(), devices=cards(row), host=host)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['gpus']}")
def test_a_plan_is_no_slower_than_it_was(row: dict[str, Any]) -> None:
    found = planned(row)
    assert found.fits
    if os.environ.get("AUTOLAYERS_WRITE_BARS"):
        row["seconds"] = round(found.speed.request, 4)
        BARS.write_text("".join(f"{json.dumps(each)}\n" for each in ROWS), encoding="utf-8")
    assert found.speed.request <= row["seconds"] * MORE, (
        f"{' '.join(found.flags)}: {found.speed.request:.4f} s"
    )


def worth_of(row: dict[str, Any], found: autolayers.Plan) -> float:
    """Seconds of its request times the prices, as the search compares launches."""
    host = Host.hypothetical(row["ram"])
    request = Request.of(row["words"].split(), devices=cards(row), host=host)
    return worth(Problem(model(row["model"]), request), found.params, found.breakdown)


@pytest.mark.parametrize(
    "row", CASES, ids=lambda row: f"{row['model']} {len(row['gpus'])} {row['words']}"
)
def test_a_plan_is_worth_as_much_as_it_was(row: dict[str, Any]) -> None:
    found = planned(row)
    now = worth_of(row, found)
    if os.environ.get("AUTOLAYERS_WRITE_BARS"):
        row["worth"] = round(now, 5)
        WORTH.write_text("".join(f"{json.dumps(each)}\n" for each in CASES), encoding="utf-8")
    assert found.fits
    assert now <= row["worth"] * WORSE, f"{' '.join(found.flags)}: {now:.4f}"


def test_most_bars_are_of_unlike_gpus_with_weights_in_ram() -> None:
    unlike = [row for row in ROWS if len({name for name, _ in row["gpus"]}) > 1]
    in_ram = [
        row for row in unlike if sum(mib for _, mib in row["gpus"]) * MiB < model(row["model"]).size
    ]
    assert len(ROWS) >= 10 and len(in_ram) >= 6
