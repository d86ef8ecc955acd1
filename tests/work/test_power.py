"""Owners who limit their card's power would be promised its full speed.

What a power limit leaves of a card's rates, against cards that were measured under one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import FIXTURES

import autolayers
from autolayers.machine import Device
from autolayers.records import replace
from autolayers.work.figures import Figures
from autolayers.work.power import shares

# An RTX PRO 6000 of 600 W (index:43686306063, rows n0147 to n0160): watts, tokens and prompts of
# Llama 2 7B Q4_0
PRO_6000 = (
    (600, 278.95, 16634.0),
    (500, 279.0, 16496.1),
    (350, 274.8, 14118.9),
    (300, 260.4, 12802.1),
    (250, 236.9, 10619.6),
    (200, 189.8, 9115.4),
)
MODEL = FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf"


def limited(card: str, watts: int, sold: int) -> Device:
    return replace(Device.hypothetical(card), power_limit=watts, power_default=sold)


@pytest.mark.parametrize(("watts", "token", "prompt"), PRO_6000)
def test_rates_fall_with_the_watts_as_measured(watts: int, token: float, prompt: float) -> None:
    reading, computing = shares(limited("rtx-pro-6000", watts, 600))
    assert reading == pytest.approx(token / PRO_6000[0][1], rel=0.05)
    assert computing == pytest.approx(prompt / PRO_6000[0][2], rel=0.05)


@pytest.mark.parametrize(
    ("card", "watts", "sold", "share"),
    [
        ("rtx-3090", 250, 350, 0.77),
        # 21.6 tokens per second of a 27B, for 43.5 that 350 W are predicted to give
        ("rtx-3090", 200, 350, 0.5),
        ("rtx-4090", 275, 450, 0.85),
    ],
)
def test_reading_falls_by_generation(card: str, watts: int, sold: int, share: float) -> None:
    assert shares(limited(card, watts, sold))[0] == pytest.approx(share, rel=0.03)


def test_a_limit_alone_or_above_what_was_sold_changes_nothing() -> None:
    card = Device.hypothetical("rtx-3090")
    for device in (card, replace(card, power_limit=250), limited("rtx-3090", 420, 350)):
        assert shares(device) == (1.0, 1.0)
        assert Figures.of(device) == Figures.of(card)


def test_a_machine_file_says_the_limit(tmp_path: Path) -> None:
    rates = []
    for watts in (350, 250):
        card = {"name": "CUDA0", "card": "rtx-3090", "power_limit": watts, "power_default": 350}
        path = tmp_path / f"{watts}.json"
        path.write_text(json.dumps({"devices": [card]}), encoding="utf-8")
        rates.append(autolayers.plan(MODEL, ["-c", "4096", "--machine", str(path)]).speed)
    stock, less = rates
    assert 0.75 < less.generation / stock.generation < 0.82
    assert 0.95 < less.prompt / stock.prompt <= 1.0
