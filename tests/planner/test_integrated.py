"""Owners of integrated GPUs would get slower launches than on the processor alone.

Integrated GPUs, whose memory is RAM: how fast they are taken to be, and when the processor alone
is planned.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import FIXTURES, few, model, requested, seldom

import autolayers
from autolayers import Device
from autolayers.devices import completed, list_devices
from autolayers.devices.smbios import OF_PEAK
from autolayers.flags.policy import read
from autolayers.machine import Host, Machine
from autolayers.planner.compare.rivals import rivals
from autolayers.planner.problem import Problem
from autolayers.records import replace
from autolayers.work.figures import Figures

GiB = 1 << 30
UHD, RADEON = "Intel(R) UHD Graphics 620", "AMD Radeon 780M Graphics (RADV PHOENIX)"
E2B, LLAMA = (
    FIXTURES / "real" / "headers" / "gemma4-e2b.gguf",
    FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf",
)


def igpu(description: str, gib: int = 16, **more: Any) -> Device:
    return Device("Vulkan0", gib * GiB, gib * GiB, description, "Vulkan", "igpu", **more)


def plan(
    name: object,
    words: str,
    *devices: Device,
    rate: float | None = None,
    cores: int = 4,
    **more: bool,
) -> autolayers.Plan:
    host = Host(32 * GiB, 24 * GiB, "given", rate, cores=cores)
    return autolayers.plan(name, words.split(), devices=list(devices), host=host, **more)


def test_it_reads_as_fast_as_the_ram_does_where_that_is_known() -> None:
    assert (
        Figures.of(igpu(RADEON), 45e9).bandwidth == 45e9 / OF_PEAK
        and Figures.of(igpu(RADEON), 45e9).known
    )
    assert Figures.of(igpu(RADEON)).bandwidth == 90e9 and not Figures.of(igpu(RADEON)).known
    assert Figures.of(igpu("a GPU that nobody knows")).bandwidth == 51e9
    assert Figures.of(igpu(RADEON, bandwidth=120e9), 45e9).bandwidth == 120e9
    slow, fast = (plan(LLAMA, "-c 8192", igpu(RADEON), rate=rate).speed for rate in (40e9, 80e9))
    assert 1.8 < fast.generation / slow.generation < 2.0 and fast.prompt / slow.prompt < 1.1
    assert not fast.to_dict()["assumed"]
    assert plan(LLAMA, "-c 8192", igpu(RADEON)).speed.to_dict()["assumed"] == {"Vulkan0": 90e9}


@pytest.mark.slow
def test_the_processor_alone_is_planned_where_it_is_faster_by_more_than_predictions_are_off() -> (
    None
):
    """Measured (fixtures/speeds, s0712 and s0713): 5.6 tokens per second on a UHD 620, 6.8 on its
    processor."""
    found = plan(E2B, "-c 8192", igpu(UHD))
    assert found.flags[:2] == ("-ngl", "0") and found.flags[-2:] == ("-dev", "none")
    assert found.placement == "0 of 36 layers on the GPU" and found.devices[0].model == 0
    # measured: 44 % faster
    other = plan(FIXTURES / "real" / "headers" / "qwen35-9b.gguf", "-c 8192", igpu(UHD))
    assert other.flags[-2:] == ("-dev", "none")
    assert plan(E2B, "-c 8192", igpu(RADEON)).flags == ("-ngl", "36", "-c", "8192")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", few(2, ["-ngl 99", "-dev Vulkan0", "-ot exps=CPU", "--strategy layers"])
)
def test_what_is_given_stays(words: str) -> None:
    assert "none" not in plan(E2B, f"-c 8192 {words}", igpu(UHD)).flags


def test_all_layers_stay_on_the_gpu_with_the_largest_context() -> None:
    found = plan(E2B, "--ctx max", igpu(UHD))
    assert found.flags[:2] == ("-ngl", "36") and "none" not in found.flags


def test_what_lies_on_intels_is_in_ram() -> None:
    """Of a model of 3 GiB no part is counted as beside the 2.5 GiB that are left."""
    line = "Available devices:\n  Vulkan0: Intel(R) Iris(R) Xe Graphics (3072 MiB, 3072 MiB free)\n"
    device = completed(list_devices.parse(line)[0][0])
    assert device.in_ram
    host = Host(4 * GiB, 5 * GiB // 2, "meminfo", cores=4)
    found = autolayers.plan(
        model("qwen3-30b-a3b-q4_k_m:8"), ["-c", "8192"], devices=[device], host=host
    )
    assert not found.fits and any("GiB of RAM, " in line for line in found.warnings)
    own = replace(device, description="AMD Radeon 780M Graphics (RADV PHOENIX)", unified=False)
    assert not completed(own).in_ram


def test_a_card_is_never_left_out() -> None:
    card = Device("Vulkan0", 16 * GiB, 16 * GiB, UHD, "Vulkan")
    assert "none" not in plan(E2B, "-c 8192", card).flags


def test_the_processor_is_proposed_where_one_rate_is_higher_on_it() -> None:
    found = plan(LLAMA, "-c 8192", igpu("AMD Radeon 610M (RADV RAPHAEL)"), cores=12, explain=True)
    other = next(other for other in found.alternatives if other.change == ("-dev", "none"))
    assert "-dev" not in found.flags and other.placement == "0 of 33 layers on the GPU"
    assert (
        other.speed.prompt > found.speed.prompt and other.speed.generation < found.speed.generation
    )
    followed = plan(LLAMA, "-c 8192 -dev none", igpu("AMD Radeon 610M (RADV RAPHAEL)"), cores=12)
    assert (followed.speed.generation, followed.n_gpu_layers) == (other.speed.generation, 0)


FOUR_CORES = Host(32 * GiB, 32 * GiB, "given", cores=4)


@seldom
def test_tune_measures_the_processor_too() -> None:
    device = igpu(UHD)
    params, policy = read(["-c", "8192"], None)
    machine = Machine((device,), {device.name: device.free}, 32 * GiB, 24 * GiB, FOUR_CORES)
    found = rivals(Problem(model("gemma4-e2b"), requested(params, policy, machine)))
    assert {rival.params.device for rival in found} == {None, ()}
    assert any("-dev none" in rival.placement for rival in found)
