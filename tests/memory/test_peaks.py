"""What launches took on a real GPU while they worked would exceed what a plan keeps for them.

fixtures/real/peaks.jsonl: how far an H100's free memory fell with b11549, CUDA 13.0 and driver
580.159.04 while the prompt filled the context (hardware.py).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import FIXTURES, few, model

import autolayers
from autolayers import Device

MiB = 1 << 20
ROWS = [
    json.loads(line) for line in (FIXTURES / "real" / "peaks.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.slow
@pytest.mark.parametrize("row", few(3, ROWS, 1), ids=lambda row: f"{row['model']} {row['words']}")
def test_a_launch_takes_no_more_than_its_buffers_and_margin(row: dict[str, Any]) -> None:
    """The largest parts that a launch may leave unused are cuBLAS's (120 MiB) and what a context's
    line lies above this card's (46 MiB)."""
    free = row["free"] * MiB
    card = Device(
        "CUDA0",
        free,
        free,
        "NVIDIA H100 80GB HBM3",
        compute_capability=(9, 0),
        n_sm=132,
    )
    planned = autolayers.plan(model(row["model"]), row["words"].split(), devices=[card])
    device = planned.devices[0]
    left = (device.used + device.margin) / MiB - row["peak"]
    assert 0 <= left < 250
    # before the first request: context, kernels and the buffers, which are exact
    assert device.used / MiB + 527 <= row["loaded"] < device.used / MiB + 527 + 78
