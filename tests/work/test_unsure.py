"""Anyone whose launch is like few measured ones would trust a range that it does not keep."""

from __future__ import annotations

import json
from math import exp, hypot, log
from pathlib import Path
from typing import Any

import pytest
from support import FIXTURES, says, slow

import autolayers
from autolayers.work.rates import OWN_DOUBT
from autolayers.work.unsure import UNSURE

MOE = FIXTURES / "headers" / "qwen3-30b-a3b-q4_k_m.gguf"
DENSE = FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf"
WINDOWS, CACHE, LONG, BATCH, VEGA, DEEP = (row.what for row in UNSURE)


def machine(folder: Path, card: str, **more: Any) -> Path:
    file = folder / "machine.json"
    host = {"total": 64 << 30, "bandwidth": 60e9, "bus": 12e9, "cores": 8}
    measured = more.pop("measured", [])
    data = {"devices": [{"card": card, **more}], "host": host, "measured": measured}
    file.write_text(json.dumps(data))
    return file


def speed(model: Path, file: Path, *words: str) -> dict[str, Any]:
    plan = autolayers.plan(model, ["--machine", str(file), *words])
    return dict(json.loads(json.dumps(plan.to_dict()))["speed"])


IN_RAM = "-ngl 99 -ncmoe 99 -c 8192"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "card", "more", "words", "said"),
    [
        (MOE, "rtx-3060", {"wddm": True}, IN_RAM, WINDOWS),
        (MOE, "rtx-3060", {}, IN_RAM, ""),
        (DENSE, "rtx-3060", {"wddm": True}, "-ngl 99 -c 8192", ""),
        (
            DENSE,
            "rtx-3060",
            {"backend": "Vulkan"},
            "-ngl 99 -c 16384 --workload 512+64@8192",
            LONG,
        ),
        (DENSE, "rtx-3060", {}, "-ngl 99 -c 16384 --workload 512+64@8192", ""),
        (MOE, "rx-7900-xtx", {"backend": "Vulkan"}, "-ngl 99 -c 8192 -ub 2048", BATCH),
        (MOE, "rx-7900-xtx", {"backend": "Vulkan"}, "-ngl 99 -c 8192", ""),
        (MOE, "rtx-3090", {}, "-ngl 99 -c 8192 -ub 2048", ""),
        (
            DENSE,
            "rtx-3060",
            {"backend": "Vulkan"},
            "-ngl 99 -c 16384 -ctk q8_0 -ctv q8_0 --workload 512+64@6000",
            CACHE,
        ),
        (
            DENSE,
            "rtx-3060",
            {"backend": "Vulkan"},
            "-ngl 99 -c 16384 -ctk q8_0 -ctv q8_0 --workload 512+64",
            "",
        ),
        (
            DENSE,
            "rtx-3060",
            {},
            "-ngl 99 -c 16384 -ctk q8_0 -ctv q8_0 --workload 512+64@8192",
            "",
        ),
        slow(MOE, "mi25", {}, "-ngl 99 -ncmoe 12 -c 4096", VEGA),
        (DENSE, "mi25", {}, "-ngl 99 -c 4096", ""),
        (
            FIXTURES / "headers" / "gpt-oss-20b-mxfp4.gguf",
            "rtx-3060",
            {},
            "-ngl 99 -ncmoe 99 -c 131072 --workload 512+64@100000",
            DEEP,
        ),
    ],
)
def test_what_few_measured_is_said(
    model: Path, card: str, more: dict[str, Any], words: str, said: str, tmp_path: Path
) -> None:
    found = speed(model, machine(tmp_path, card, **more), *words.split())
    assert found.get("unsure", []) == ([said] if said else [])


@pytest.mark.slow
def test_the_range_is_wider_until_the_class_was_measured_there(tmp_path: Path) -> None:
    words = IN_RAM.split()
    plain = speed(MOE, machine(tmp_path, "rtx-3060"), *words)
    windows = speed(MOE, machine(tmp_path, "rtx-3060", wddm=True), *words)
    assert plain["generation_uncertainty_factor"] == OWN_DOUBT["MoE in RAM", "tg", "CUDA"]
    both = exp(hypot(log(OWN_DOUBT["MoE in RAM", "tg", "CUDA"]), log(1.3)))
    assert windows["generation_uncertainty_factor"] == pytest.approx(both, abs=0.01)
    rate = "generation_tokens_per_second"
    assert windows[rate] == plain[rate]
    measured = [
        {"kind": kind, "class": "MoE in RAM", "backend": "CUDA", "ratio": 0.7}
        for kind in ("tg", "pp")
    ]
    known = speed(MOE, machine(tmp_path, "rtx-3060", wddm=True, measured=measured), *words)
    assert "unsure" not in known
    assert known["generation_uncertainty_factor"] < plain["generation_uncertainty_factor"]


@pytest.mark.slow
def test_a_plan_says_it(tmp_path: Path) -> None:
    file = machine(tmp_path, "rtx-3060", wddm=True)
    text = says(MOE, "--machine", file, *IN_RAM.split(), "--format", "text").stdout
    assert f"less sure: {WINDOWS}" in " ".join(text.split())
