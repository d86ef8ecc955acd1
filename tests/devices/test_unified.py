"""Owners of Macs and of integrated GPUs would get plans that swap, or half of what fits.

GPUs that share the system's RAM: how much of it they may use, what the machine has, and what
raises it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import HEADERS, few

import autolayers
from autolayers import Device, UsageError
from autolayers.devices import hypothetical, ttm
from autolayers.devices.assumed import kept
from autolayers.devices.cards import CARDS
from autolayers.devices.macs import working_set
from autolayers.flags.params import Params
from autolayers.machine import Host, Machine
from autolayers.planner.evaluate import RAM_MARGIN, Candidate
from autolayers.planner.remarks import how_to_raise
from autolayers.report.text import plan_text
from autolayers.request import Request
from autolayers.units import GiB, MiB

# recommendedMaxWorkingSetSize in public logs of llama.cpp on macOS 15 and 26: MB of 10**6 bytes by
# GiB of RAM
PRINTED = {
    8: 5726.63,
    16: 12713.12,
    18: 14302.25,
    24: 19069.67,
    32: 26800.60,
    36: 30150.67,
    48: 40200.90,
    64: 55662.79,
    128: 115448.73,
    512: 498216.21,
}


@pytest.mark.parametrize(("ram", "printed"), PRINTED.items())
def test_a_mac_has_the_limit_that_macos_prints(ram: int, printed: float) -> None:
    assert working_set(ram) * MiB == pytest.approx(printed * 10**6, rel=1e-4)
    sizes = {card.ram: card.usable for card in CARDS.values() if card.backend == "MTL"}
    assert sizes[ram] == working_set(ram)


@pytest.mark.parametrize(
    "ram", sorted({card.ram for card in CARDS.values() if card.backend == "MTL"})
)
def test_a_mac_of_a_size_that_was_not_seen_has_a_share_between_its_neighbours(ram: int) -> None:
    shares = [
        working_set(size) / size
        for size in (
            max(size for size in PRINTED if size <= ram),
            ram,
            min(size for size in PRINTED if size >= ram),
        )
    ]
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("m1-16g", 12124),
        ("m1-16g-macos14", 10922),
        ("m1 16gb macos 13", 10922),
        ("m1-16g-macos26", 12124),
        ("MacBook Pro M3 Max 64GB macOS 14", 49152),
        ("m3-ultra-512g", 475136),
        ("m2-ultra-192g", 165150),
        ("m3-max-96g", 79626),
        ("m3-max-96g-macos14", 73728),
    ],
)
def test_the_limit_of_an_older_macos_is_that_of_its_name(name: str, mib: int) -> None:
    assert Device.hypothetical(name).total == mib * MiB


def test_a_card_has_no_macos() -> None:
    with pytest.raises(UsageError, match="NVIDIA GeForce RTX 3090 is no GPU of a Mac"):
        hypothetical("rtx-3090-macos14")


UNIFIED = [name for name, card in CARDS.items() if card.unified]


@pytest.mark.parametrize("name", UNIFIED)
def test_a_gpu_that_shares_the_ram_has_no_more_than_the_machine(name: str) -> None:
    machine = Request.of(["--gpu", name]).machine
    (device,), sold = machine.devices, CARDS[name].ram * GiB
    assert 0.8 * sold <= machine.ram_total <= sold
    assert device.total <= machine.ram_total
    assert machine.limits[device.name] <= machine.ram < machine.ram_total
    # what Metal, the driver or the firmware leaves to all else, and a system needs
    assert machine.ram_total - machine.ram >= min(2 * GiB, machine.ram_total // 8)
    if device.backend == "CUDA":  # CUDA's total is the system's
        assert device.total == machine.ram_total


@pytest.mark.parametrize(
    "name",
    few(
        2,
        [
            "m1-8g",
            "m3-max-36g",
            "gb10",
            "strix-halo-128g",
            "jetson-orin-nano-8g",
            "radeon-780m-16g",
            "steam-deck-16g",
            "iris-xe-8g",
            "mi300a",
        ],
    ),
)
def test_the_rows_of_such_a_machine_add_up(name: str) -> None:
    plan = autolayers.plan(str(HEADERS / "llama-3.1-8b-q4_k_m.gguf"), ["--gpu", name])
    (device,), host = plan.devices, plan.host
    assert host.shared == device.used
    assert host.total == CARDS[name].system_ram and device.free <= host.free < host.total
    assert plan.fits == (name != "m1-8g")
    assert not plan.fits or RAM_MARGIN + host.resident + device.used <= host.free


def test_a_spark_has_the_ram_that_its_system_counts() -> None:
    machine = Request.of(["--gpu", "dgx-spark"]).machine
    assert machine.ram_total == 124610 * MiB  # 121.7 GiB
    assert 4 * GiB <= machine.ram_total - machine.ram <= 6 * GiB
    assert Request.of(["--gpu", "dgx-spark", "--ram", "128GB"]).machine == machine


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--gpu m4-pro-24g --ram 32GB",
            "--ram 32.00 GiB: a machine with this GPU counts 24.00 GiB",
        ),
        (
            "--gpu dgx-spark --ram 128GB",
            "--ram 128.00 GiB: a machine with this GPU counts 121.69 GiB",
        ),
        ("--gpu m4-pro-24g --ram 24GB", ""),
        ("--gpu m4-pro-24g --ram 16GB", ""),
        ("--gpu rtx-3090 --ram 128GB", ""),
    ],
)
def test_more_ram_than_the_machine_has_is_not_counted(words: str, said: str) -> None:
    asked = Request.of(words.split())
    assert asked.notes == ((f"{said}, which the GPU shares",) if said else ())
    assert asked.machine.ram_total == min(asked.policy.ram, asked.machine.devices[0].ram or 1 << 60)


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("ttm of Linux 6.18", "ttm.pages_limit=12582912"),
        ("ttm of Linux 6.15", "ttm.pages_limit=12582912"),
        ("ttm of Linux 7.0", "ttm.pages_limit=12582912"),
        ("ttm of Linux 6.8", "ttm.pages_limit=12582912 amdgpu.gttsize=49152"),
        ("amdttm of Linux 6.8", "amdttm.pages_limit=12582912"),
        ("", ""),
        ("570.86.15", ""),
        ("ttm of Linux new", ""),
        ("x.y=1 of Linux 6.18", ""),
    ],
)
def test_gtt_is_raised_in_the_words_of_the_kernel(driver: str, said: str) -> None:
    assert ttm.parameters(driver, 48 * GiB) == said


@pytest.mark.parametrize(
    ("release", "module", "driver"),
    [
        ("6.17.0-5-generic", "ttm", "ttm of Linux 6.17"),
        ("6.14.0-1014-oem", "amdttm", "amdttm of Linux 6.14"),
        ("", "ttm", ""),
    ],
)
def test_the_kernel_of_an_integrated_gpu_of_amds_is_read(
    tmp_path: Path, release: str, module: str, driver: str
) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text(f"{release}\n")
    (tmp_path / f"sys/module/{module}").mkdir(parents=True)
    mine = Device("Vulkan0", GiB, GiB, "AMD Radeon 8060S (RADV GFX1151)", "Vulkan", "igpu")
    other = Device("Vulkan1", GiB, GiB, "Intel(R) Iris(R) Xe Graphics", "Vulkan", "igpu")
    assert [device.driver for device in ttm.with_ttm([mine, other], str(tmp_path))] == [driver, ""]


@pytest.mark.parametrize(
    ("gpu", "least", "said"),
    [
        ("m4-max-128g", 8, "sudo sysctl iogpu.wired_limit_mb={mib} gives it more"),
        ("m1-max-64g-macos14", 6, "sudo sysctl iogpu.wired_limit_mb={mib} gives it more"),
        ("m5-24g-macos14", 4, "sudo sysctl iogpu.wired_limit_mb={mib} gives it more"),
        (
            "strix-halo-128g",
            8,
            "a larger GTT gives it more (Linux: ttm.pages_limit={pages}, before "
            "6.15 "
            "amdgpu.gttsize={mib} too; Windows: more in the firmware)",
        ),
    ],
)
def test_the_limit_is_raised_to_what_the_system_can_spare(gpu: str, least: int, said: str) -> None:
    machine = Request.of(["--gpu", gpu]).machine
    (device,), total = machine.devices, machine.ram_total or 0
    assert kept(total) == least * GiB
    use = Candidate(Params(), None, {}, {device.name: 0}, 60 * GiB)  # type: ignore[arg-type]
    (line,) = how_to_raise(machine, use, 0)
    limit = total - least * GiB
    assert line == (
        f"{device.name} may use {device.total // MiB} MiB of the RAM: "
        + said.format(mib=limit // MiB, pages=limit // 4096)
        + f", and leaves "
        f"{least}.0 GiB to the "
        f"system"
    )


@pytest.mark.parametrize(
    ("ram", "gib"), [(8, 4), (24, 4), (30.6, 6), (36, 6), (62, 6), (64, 6), (96, 8), (512, 8)]
)
def test_a_system_keeps_more_of_more_ram(ram: float, gib: int) -> None:
    assert kept(int(ram * GiB)) == gib * GiB


@pytest.mark.slow
def test_an_8b_model_on_a_mac_with_8_gib_gets_the_ways_that_exist() -> None:
    plan = autolayers.plan(
        str(HEADERS / "llama-3.1-8b-q4_k_m.gguf"), ["--gpu", "m1-8g"], advise=True
    )
    assert not plan.fits
    ram = [(remedy.change, remedy.held) for remedy in plan.remedies if remedy.kind == "ram"]
    assert ram == [((), True), (("-c", "2048"), True)]
    less, least = (remedy.ram for remedy in plan.remedies if remedy.kind == "ram")
    assert 0 < least < less < 2 * GiB
    text = " ".join(plan_text(plan).split())
    assert "-ngl 31 -c 2048 " in text.partition("fits with these flags (")[2]


def test_ram_that_no_machine_of_the_kind_has_is_not_called_free() -> None:
    plan = autolayers.plan(
        str(HEADERS / "llama-3.3-70b-q4_k_m.gguf"), ["--gpu", "m1-8g", "-c", "4096"], advise=True
    )
    assert [(remedy.kind, remedy.held) for remedy in plan.remedies if remedy.ram] == [
        ("ram", False)
    ]


@pytest.mark.slow
def test_a_mixture_of_20b_is_on_the_gpu_of_a_mac_with_16_gib() -> None:
    model = autolayers.read_model(str(HEADERS / "gpt-oss-20b-mxfp4.gguf"))
    assert autolayers.plan(model, ["--gpu", "m1-16g"]).placement == "25 of 25 layers on the GPU"


def test_the_kernel_that_runs_is_named() -> None:
    gpu = Device(
        "ROCm0",
        62 * GiB,
        62 * GiB,
        "AMD Radeon 8060S",
        "ROCm",
        "igpu",
        unified=True,
        driver="ttm of Linux 6.12",
    )
    machine = Machine.of([gpu], Host(124 * GiB, 120 * GiB, "given"), None, {})
    use = Candidate(Params(), None, {}, {"ROCm0": 0}, 60 * GiB)  # type: ignore[arg-type]
    assert how_to_raise(machine, use, 0) == (
        "ROCm0 may use 63488 MiB of the RAM: a larger GTT gives it more (kernel parameters "
        "ttm.pages_limit=30408704 "
        "amdgpu.gttsize=118784), and leaves 8.0 GiB to the system",
    )
