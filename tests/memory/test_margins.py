"""A launch would fail by what no buffer shows, or leave a GPU half empty: every part of the margin
of models, cards and flags of many kinds, as it was.

margins.jsonl has a line for each: a model, a card and what is known of the device, words, what the
launch allocates and its parts in bytes, which test_margin.py and the backends' tests work out by
hand or compare with measurements. AUTOLAYERS_WRITE=1 writes all parts again, and the commit
says why they changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import WRITES, MiB, model

from autolayers.devices import hypothetical
from autolayers.flags.params import Params
from autolayers.flags.policy import read
from autolayers.machine import Device
from autolayers.memory.breakdown import Breakdown, Extra, Usage
from autolayers.memory.estimate import Estimator
from autolayers.memory.margin import least, margin, ops_of
from autolayers.records import replace

PLACE = Path(__file__).with_name("margins.jsonl")
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in PLACE.read_text(encoding="utf-8").splitlines()
]


def device(row: dict[str, Any], name: str) -> Device:
    found = hypothetical(row["card"])[0] if row["card"] else Device("", 1 << 34, 1 << 34)
    return replace(found, **{"name": name, **row["facts"]})


def of_bill(row: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The parts of two devices, of which the second one holds nothing in some launches."""
    first, second = (device(row, name) for name in ("X0", "X1"))
    params, _ = read(row["words"].split(), None)
    given: dict[str, Any] = dict(row["bill"])
    usage = {name: Usage(*(size * MiB for size in given.pop(name))) for name in ("X0", "X1")}
    drafts = given.pop("draft", "")
    bill = Breakdown(
        devices=usage,
        host=Usage(),
        n_batch=2048,
        exact=True,
        extras=(Extra(drafts, "X1", MiB, True),) if drafts else (),
        runtime_peak={"X0": 7 * MiB, "X1": -MiB},
        **given,
    )
    draft = model(row["model"]) if drafts and "-ctkd" in row["words"] else None
    parts = {
        each.name: dict(margin(each, model(row["model"]), params, bill, draft=draft))
        for each in (first, second)
    }
    return {**parts, "least": {"": least(first)}, "ops": of_ops(row, params, bill)}


def of_ops(row: dict[str, Any], params: Params, bill: Breakdown) -> dict[str, Any]:
    """What the device computes; of its matrices the number and the sums of each dimension."""
    ops = vars(ops_of(model(row["model"]), params, bill, reads_all="reads" in row))
    sums = {
        name: [
            len(each),
            *[sum(getattr(one, field) for one in each) for field in ("k", "m", "n_mat", "n_used")],
        ]
        for name, each in ops.items()
        if isinstance(each, tuple)
    }
    return {**ops, **sums, "scan": ops["scan"] and list(vars(ops["scan"]).values())}


def of_launch(row: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The parts of the devices that an estimate places the model on."""
    devices = [device(row, name) for name in ("X0", "X1")]
    params, _ = read(row["words"].split(), None)
    estimator = Estimator(model(row["model"]), row.get("build"))
    use = estimator.breakdown(params, devices)
    return {each.name: dict(estimator.margin(each, params, use)) for each in devices}


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['model']} {row['card']} {row['words']}"
)
def test_a_margin_has_the_parts_that_it_had(row: dict[str, Any]) -> None:
    found = of_bill(row) if row["bill"] else of_launch(row)
    if WRITES:
        row["parts"] = found
        PLACE.write_text("".join(f"{json.dumps(each)}\n" for each in ROWS), encoding="utf-8")
    assert found == row["parts"]
