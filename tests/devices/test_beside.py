"""A later plan would leave less free than the driver was seen to need."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import model

from autolayers.devices.calibrated import beside_of, with_beside
from autolayers.machine import Device, Machine
from autolayers.planner import plan_request
from autolayers.records import replace
from autolayers.request import Request
from autolayers.store import keep

MiB = 1 << 20
CARD = Device("CUDA0", 12 << 30, 11 << 30, "NVIDIA GeForce RTX 3060", driver="580.1")


def environ(place: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(place)}


def test_what_was_seen_is_in_the_margin_of_the_same_card_and_build(tmp_path: Path) -> None:
    keep([beside_of(CARD, 11549, 900 * MiB, "2026-11-29")], environ(tmp_path))
    (seen,) = with_beside([CARD], 11549, environ(tmp_path))
    (again,) = with_beside([CARD], 0, environ(tmp_path))  # whichever build
    assert seen.beside == again.beside == 900 * MiB
    others = replace(CARD, description="NVIDIA GeForce RTX 3070"), replace(CARD, driver="590.2")
    assert [each.beside for each in with_beside(others, 11549, environ(tmp_path))] == [0, 0]
    assert with_beside([CARD], 11500, environ(tmp_path))[0].beside == 0
    request = Request.of(["-c", "4096"], {}, devices=[CARD])

    def planned(device: Device) -> tuple[tuple[str, int], ...]:
        machine = Machine.of((device,), request.host, None, {})
        (row,) = plan_request(model("llama-3.2-1b-q8_0"), replace(request, machine=machine)).devices
        return row.margin_parts

    usual, more = dict(planned(CARD)), dict(planned(seen))
    rules = sum(usual.values())
    assert "seen on this machine" not in usual and rules < 900 * MiB
    assert more["seen on this machine"] == 900 * MiB - rules
    # what the rules say already is not counted again
    assert planned(replace(CARD, beside=rules // 2)) == planned(CARD)


def test_the_newest_counts_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    for size in (900, 700):
        keep([beside_of(CARD, 11549, size * MiB, "2026-11-29")], environ(tmp_path))
    assert with_beside([CARD], 11549, environ(tmp_path))[0].beside == 700 * MiB
    (file,) = tmp_path.rglob("beside.json")
    rows = json.loads(file.read_text())
    assert len(rows) == 1
    for damaged in ("[", "{}", '[{"size": 1}]', json.dumps([{**rows[0], "size": "many"}])):
        file.write_text(damaged)
        assert with_beside([CARD], 11549, environ(tmp_path))[0].beside == 0


def test_a_proof_keeps_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autolayers.launch import prove

    device = replace(CARD, pci_id="0000:01:00.0")
    request = Request.of(["-c", "4096"], {}, devices=[device])
    plan = plan_request(model("llama-3.2-1b-q8_0"), request)
    predicted = plan.breakdown.devices["CUDA0"].total

    session = SimpleNamespace(environ=environ(tmp_path), build=request.build, request=request)
    prover = prove.Prover.__new__(prove.Prover)
    prover.session, prover.plan = session, plan  # type: ignore[assignment]
    prover.start, prover.end = {}, {}
    prover.slots, prover.tokens, prover.filled = 1, 4096, [4096]
    prover.failed, prover.outcome = "", None
    monkeypatch.setattr(prove, "held", lambda pid: {"0000:01:00.0": predicted + 650 * MiB})

    process = SimpleNamespace(pid=1, memory_info=lambda: SimpleNamespace(rss=5))
    monkeypatch.setattr(prover, "run", lambda: prover._watch(process))
    monkeypatch.setattr(prove.wait, "taken", lambda at: False)
    prover.at = prove.wait.Address("127.0.0.1", 8080)
    proof = prover.prove()
    (seen,) = with_beside([device], request.build.number, environ(tmp_path))
    assert seen.beside == 650 * MiB
    rows = {row.name: row for row in proof.rows}
    assert rows["CUDA0"].end == predicted + 650 * MiB and rows["RAM"].end == 5
