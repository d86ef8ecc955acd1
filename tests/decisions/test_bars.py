"""A change would give other launches, or searches of other cost, unseen.

bars.jsonl has a line for each question, with `found`, what is compared. By `ask`:

seconds: unlike GPUs with the MiB that are free. The seconds of the reference request.
worth: one to three GPUs with many kinds of flags. What the search compares (planner/prices.py), and
    llama-server's own choice (`fit`, planner/one/fit.py).
plan: models of a few layers with many other flags, some of which do not fit, some with a `budget`
    that ends their search. The plan's own flags, warnings, reasons and bytes that are left too.
together, groups, any, matrix: several models, by how often each is asked for. The whole answer but
    for the parts of each plan.

`spent` is the cost of the search (memory/meter.py). A line with `often` is compared in every run,
of the others a fourth each day. Better plans and shorter searches are written down too:
CONTRIBUTING.md, "Change a price". The commit says why they changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import HEADERS, WRITES, MiB, model, of_today, slow

from autolayers.api import fit_choice
from autolayers.devices import Host, hypothetical
from autolayers.flags.write import to_words
from autolayers.machine import Device
from autolayers.memory.meter import Meter
from autolayers.planner import Plan
from autolayers.planner.answer import plan_request
from autolayers.planner.prices import worth
from autolayers.planner.problem import Problem
from autolayers.planner.several.groups import AnyOf, Groups, plan_any, plan_groups
from autolayers.planner.several.matrix import Matrix, plan_matrix
from autolayers.planner.several.multi import Together, plan_together
from autolayers.records import replace
from autolayers.request import Request

BARS = Path(__file__).with_name("bars.jsonl")
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in BARS.read_text(encoding="utf-8").splitlines()
]
DRAFT = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
SAME = 1e-5  # as numbers are rounded


def request_of(row: dict[str, Any], words: list[str] | None = None) -> Request:
    """The question of a line, or another of the same machine."""
    servers = [f"a:{i}" for i in range(row.get("servers", 0))]
    if words is None:
        words = [DRAFT if word == "DRAFT" else word for word in row["words"].split()]
        words += ["--rpc", ",".join(servers)] if servers else []
    devices = [
        Device(f"RPC{i}", 2 << 30, 2 << 30, server, "RPC", "rpc", link=1e9, latency=1e-4)
        for i, server in enumerate(servers)
    ]
    for i, (name, mib) in enumerate(row["gpus"]):
        card = hypothetical(name)[0]
        devices += [replace(card, name=f"{card.backend}{i}", total=mib * MiB, free=mib * MiB)]
    host = Host.hypothetical(row["ram"]) if row["ram"] else None
    if host is not None and row.get("upload"):
        host = replace(host, expert_upload=row["upload"])
    return Request.of(words, devices=devices, host=host)


def of_one(row: dict[str, Any]) -> dict[str, Any]:
    request = request_of(row)
    target, meter = model(row["model"]), Meter(row.get("budget"))
    found = plan_request(target, request, meter=meter)
    if row["ask"] == "seconds":
        assert found.fits and found.speed
        return {"seconds": found.speed.request, "spent": meter.spent}
    now = worth(Problem(target, request), found.params, found.breakdown)
    costs = {"worth": now, "spent": meter.spent}
    if row["ask"] == "worth":
        assert found.fits
        machine = request.machine
        choice = fit_choice(target, row["words"].split(), machine.devices, machine.host)
        return {**costs, "fit": "" if choice is None else " ".join(to_words(choice.params))}
    return {
        **costs,
        "flags": " ".join(found.flags).replace(DRAFT, "DRAFT"),
        "fits": found.fits,
        "left": [device.remaining for device in found.devices],
        "ram_left": found.host.remaining,
        # but for the one that a fixture is a header alone
        "warnings": [text for text in found.warnings if not text.startswith(found.model.path)],
        "reasons": [*found.reasons],
    }


def of_several(row: dict[str, Any]) -> Together | Groups | AnyOf | Matrix:
    models, request = [model(name) for name in row["models"]], request_of(row)
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


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.get("often")]
    + of_today([slow(row) for row in ROWS if not row.get("often")]),
    ids=lambda row: (
        f"{row['ask']} {row.get('model', '')} {len(row['gpus'])} {row['words']}"
        f" {row.get('budget', '')}"
    ),
)
def test_an_answer_is_what_it_was(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if "models" in row:
        spent = []
        count = Meter.laid_out

        def counted(meter: Meter, nodes: int) -> None:
            spent.append(nodes)
            count(meter, nodes)

        monkeypatch.setattr(Meter, "laid_out", counted)
        found = {**told(of_several(row)), "spent": sum(spent)}
    else:
        found = of_one(row)
    found = json.loads(json.dumps(found))
    if WRITES:
        row["found"] = rounded(found)
        BARS.write_text("".join(f"{json.dumps(each)}\n" for each in ROWS), encoding="utf-8")
    before = [
        pytest.approx(leaf, rel=SAME) if isinstance(leaf, float) else leaf
        for leaf in leaves(row["found"])
    ]
    assert list(leaves(found)) == before, "if it is meant: CONTRIBUTING.md, Change a price"
