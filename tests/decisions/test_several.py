"""Whoever runs several models would get other plans, or wait longer for them, unseen.

several.jsonl has a line for each question: models, how often each is asked for, GPUs with the MiB
that are free, RPC servers, RAM and words; then the whole answer (each model's flags, what is left
of each device and of RAM, seconds together and alone, what each costs the others, sets, groups) and
what finding it cost (memory/meter.py). Better answers are written down too:
AUTOLAYERS_WRITE_BARS=1 writes all of them again, and the commit says why they changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from decisions.test_bars import SAME, cards
from support import few, model

from autolayers.devices import Host
from autolayers.machine import Device
from autolayers.memory.meter import Meter
from autolayers.planner import Plan
from autolayers.planner.several.groups import AnyOf, Groups, plan_any, plan_groups
from autolayers.planner.several.matrix import Matrix, plan_matrix
from autolayers.planner.several.multi import Together, plan_together
from autolayers.request import Request

PLACE = Path(__file__).with_name("several.jsonl")
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in PLACE.read_text(encoding="utf-8").splitlines()
]


def answer(row: dict[str, Any]) -> Together | Groups | AnyOf | Matrix:
    servers = [f"a:{i}" for i in range(row["servers"])]
    remote = [
        Device(f"RPC{i}", 2 << 30, 2 << 30, server, "RPC", "rpc", link=1e9, latency=1e-4)
        for i, server in enumerate(servers)
    ]
    words = row["words"].split() + (["--rpc", ",".join(servers)] if servers else [])
    host = Host.hypothetical(row["ram"]) if row["ram"] else None
    request = Request.of(words, devices=[*remote, *cards(row)], host=host)
    models = [model(name) for name in row["models"]]
    if row["ask"] == "any":
        return plan_any(models, request)
    ask: Any = {"together": plan_together, "groups": plan_groups, "matrix": plan_matrix}
    found: Together | Groups | Matrix = ask[row["ask"]](models, request, row["weights"])
    return found


def told(found: Together | Groups | AnyOf | Matrix) -> dict[str, Any]:
    """What an answer says, but for the parts of each plan."""
    if isinstance(found, Groups):
        return {
            **found.to_dict(),
            "refused": found.refused,
            "groups": [told(group) for group in found.groups],
        }
    if isinstance(found, AnyOf):
        of_sets: dict[str, Any] = {"numbers": found.numbers, "most": found.most}
        of_sets |= {"alone": found.alone, "refused": found.refused}
    elif isinstance(found, Matrix):
        of_sets = {"numbers": found.numbers, "sets": found.sets, "costs": found.costs}
        of_sets |= {"refused": found.refused}
    else:
        of_sets = {**found.to_dict(), "costs": found.costs, "alone": found.alone}
    return {**of_sets, "fits": found.fits, "models": [plan_of(plan) for plan in found.plans]}


def plan_of(plan: Plan) -> dict[str, Any]:
    free = {device.name: device.free for device in plan.devices}
    return {"flags": " ".join(plan.flags), "free": free, "ram": plan.host.free}


def leaves(value: Any) -> Iterator[Any]:
    """The numbers and words of nested lists and objects, by their keys."""
    if isinstance(value, dict):
        value = [pair for key in sorted(value) for pair in (key, value[key])]
    if isinstance(value, list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


@pytest.mark.parametrize(
    "row", few(12, ROWS), ids=lambda row: f"{row['ask']} {row['words']} {row['gpus']}"
)
def test_several_models_get_the_launches_they_had(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = []
    count = Meter.laid_out

    def counted(meter: Meter, nodes: int) -> None:
        spent.append(nodes)
        count(meter, nodes)

    monkeypatch.setattr(Meter, "laid_out", counted)
    found = json.loads(json.dumps({**told(answer(row)), "spent": sum(spent)}))
    if os.environ.get("AUTOLAYERS_WRITE_BARS"):
        row["found"] = found
        PLACE.write_text("".join(f"{json.dumps(each)}\n" for each in ROWS), encoding="utf-8")
    before = [
        pytest.approx(leaf, rel=SAME) if isinstance(leaf, float) else leaf
        for leaf in leaves(row["found"])
    ]
    assert list(leaves(found)) == before, (
        "if it is meant: AUTOLAYERS_WRITE_BARS=1 python -m pytest tests/decisions/test_several.py"
    )


def test_some_questions_are_of_each_kind_and_some_do_not_fit() -> None:
    assert {row["ask"] for row in ROWS} == {"together", "groups", "any", "matrix"}
    assert {row["found"]["fits"] for row in ROWS} == {True, False}
    assert any(row["servers"] for row in ROWS) and any(row["weights"] for row in ROWS)
