"""Measurements would be used for another card or driver, or lost.

Measured speeds that are kept: for this machine, its cards, their driver and this version.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autolayers import store
from autolayers.backends import HOST
from autolayers.devices import Host, calibrated
from autolayers.machine import Device, Ratio, ratios
from autolayers.records import replace

CARD = Device("CUDA0", 24 << 30, 24 << 30, "NVIDIA GeForce RTX 3090", driver="580.1")
ROW = Ratio("tg", "dense resident", 0.8, 1, "CUDA", 11549, "2026-11-20T10:00:00+00:00")
CPU = Ratio("tg", "CPU", 0.9, 2, HOST, 11549, "2026-11-21T10:00:00+00:00")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    found = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    store.keep([calibrated.speed_of(row, [CARD]) for row in (ROW, CPU)], found)
    return found


def test_what_was_kept_is_known_again_and_runs_of_a_class_count_together(
    environ: dict[str, str],
) -> None:
    assert calibrated.load([CARD], environ) == ((ROW, CPU), [])
    store.keep([calibrated.speed_of(replace(ROW, ratio=1.25, n=1), [CARD])], environ)
    rows, _ = calibrated.load([CARD], environ)
    assert [(row.kind, row.placement, row.n) for row in rows] == [
        ("tg", "CPU", 2),
        ("tg", "dense resident", 2),
    ]
    assert rows[1].ratio == pytest.approx(1.0)


def test_devices_have_their_backends_rows_and_a_machine_each_once() -> None:
    devices, host = calibrated.with_ratios(
        [CARD, replace(CARD, name="CUDA1"), replace(CARD, backend="Vulkan")],
        Host(64 << 30, 64 << 30, "given"),
        (ROW, CPU),
    )
    assert host is not None and [device.measured for device in devices] == [
        (ROW, CPU),
        (ROW, CPU),
        (CPU,),
    ]
    assert host.measured == (CPU,) and ratios(devices, host) == (ROW, CPU)


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (replace(CARD, driver="590.2"), "with driver 580.1, now 590.2"),
        (
            replace(CARD, description="NVIDIA GeForce RTX 5090"),
            "with NVIDIA GeForce RTX 3090, which is not here",
        ),
    ],
)
def test_another_driver_or_card_makes_them_old_and_says_so(
    environ: dict[str, str], device: Device, why: str
) -> None:
    rows, _ = calibrated.load([device], environ)
    assert rows == (CPU,)
    calibrated.forget(environ)
    store.keep([calibrated.speed_of(ROW, [CARD])], environ)
    rows, notes = calibrated.load([device], environ)
    assert not rows and notes == [
        f"the measured speeds of 2026-11-20 are old: {why} (tune --quick measures again)"
    ]


def test_forget_drops_this_machines_alone(environ: dict[str, str], tmp_path: Path) -> None:
    file = next(tmp_path.rglob("calibration.json"))
    entries = json.loads(file.read_text())
    file.write_text(json.dumps([{**entries[0], "machine": "another"}, *entries]))
    assert calibrated.forget(environ) == 3 and calibrated.forget(environ) == 0
    assert [entry["machine"] for entry in json.loads(file.read_text())] == ["another"]


@pytest.mark.parametrize("text", ["[", "{}", "[1, null, {}]", '[{"machine": 3}]', "[" * 100000])
def test_state_that_is_nonsense_counts_for_nothing(
    environ: dict[str, str], tmp_path: Path, text: str
) -> None:
    next(tmp_path.rglob("calibration.json")).write_text(text)
    assert calibrated.load([CARD], environ) == ((), [])
