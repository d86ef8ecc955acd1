"""Anyone who plans for a machine that is not here would get another kind of machine without a word.

Machines that are not here: what is assumed of their processors and RAM, what says it, and what
is said of it.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from support import HEADERS, few_rows, model, slow

import autolayers
from autolayers import Device, UsageError
from autolayers.devices.assumed import KINDS, kind_of
from autolayers.machine import Host
from autolayers.report.text import plan_text
from autolayers.request import Request
from autolayers.units import GiB
from autolayers.work.figures import HostFigures

MOE, DENSE = str(HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"), str(HEADERS / "llama-3.3-70b-q4_k_m.gguf")


def asked(words: str, host: Host | None = None) -> Request:
    return Request.of(words.split(), devices=None if "--gpu" in words else [], host=host)


@pytest.mark.parametrize(
    ("ram", "kind"),
    [
        (8, "desktop"),
        (64, "desktop"),
        (65, "workstation"),
        (256, "workstation"),
        (257, "server"),
        (768, "server"),
        (2048, "server"),
    ],
)
def test_cores_and_bandwidth_follow_the_size_of_ram(ram: int, kind: str) -> None:
    machine = asked(f"--ram {ram}GiB").machine
    assert kind_of(machine.ram_total).name == kind
    figures = HostFigures.of(machine)
    assert (figures.cores, figures.ram) == (kind_of(ram * GiB).cores, kind_of(ram * GiB).bandwidth)
    assert not figures.known and not figures.counted


def test_a_larger_kind_is_never_slower() -> None:
    for less, more in pairwise(KINDS):
        assert less.ram < more.ram and less.bandwidth < more.bandwidth and less.cores < more.cores


def test_what_is_given_counts_and_what_is_assumed_is_said() -> None:
    words = ["-dev", "none", "-c", "4096", "--ram"]
    model = autolayers.read_model(MOE)
    assumed = autolayers.plan(model, [*words, "768GiB"], devices=[])
    text = " ".join(plan_text(assumed).split())
    assert "RAM assumed to be 200 GB/s; 32 cores assumed" in text
    assert "2.00 GiB of 768.00 GiB of RAM are left to the system" in text
    assert dict(assumed.speed.assumed) == {"RAM": 200e9, "cores": 32}
    given = autolayers.plan(model, [*words, "768GiB@300GB/s", "--cores", "64"], devices=[])
    assert (
        given.speed.generation > assumed.speed.generation
        and given.speed.prompt > 1.5 * assumed.speed.prompt
    )
    assert not given.speed.assumed and "assumed" not in plan_text(given)
    few = autolayers.plan(model, [*words, "768GiB", "-t", "4"], devices=[])
    assert few.speed.generation < assumed.speed.generation / 2


@pytest.mark.parametrize(
    ("name", "words", "gpu"),
    few_rows(
        3,
        [
            ("llama-3.1-8b-q4_k_m", "-dev none --ram 64GiB@60GB/s --cores 8", ""),
            ("qwen3-30b-a3b-q4_k_m", "-cmoe -c 8192", "rtx-3060"),
            ("qwen3-30b-a3b-q4_k_m", "-cmoe -c 8192 --ram 64GiB@60GB/s --cores 8", "rtx-3060"),
        ],
    ),
)
def test_threads_are_cores_at_most(name: str, words: str, gpu: str) -> None:
    devices = [Device.hypothetical(gpu)] if gpu else []
    rates = [
        autolayers.plan(
            model(name), [*words.split(), "-t", str(n)], devices=devices
        ).speed.generation
        for n in (1, 4, 8)
    ]
    assert 1.3 * rates[0] < rates[1] and 1.04 * rates[1] < rates[2]
    if "--cores" in words:
        plain, many = (
            autolayers.plan(model(name), [*words.split(), *more], devices=devices).speed
            for more in ((), ("-t", "16"))
        )
        assert many.generation == plain.generation == rates[2]  # hyper-threads share a core


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("768GiB@300GB/s", 300e9),
        ("768GiB@300GB", 300e9),
        ("64GiB@70", 70e9),
        ("64GiB@1.5TB/s", 1.5e12),
        ("64GiB", None),
        ("64GiB@ddr5-6000x2", 86.4e9),
        ("64GiB@DDR5-6000", 86.4e9),
        ("512GiB@ddr4-2400x8", 138.24e9),
        ("96GiB@lpddr5x-8000x4", 230.4e9),
    ],
)
def test_the_rate_of_ram_is_read_from_its_modules(text: str, rate: float | None) -> None:
    assert asked(f"--ram {text}").machine.host.bandwidth == rate


@pytest.mark.parametrize(
    "text",
    [
        "64GiB@",
        "64GiB@fast",
        "64GiB@3",
        "@300GB/s",
        "64@300GB/s",
        "64GiB@300EB/s",
        "64GiB@ddr5",
        "64GiB@ddr5-6000x0",
        "64GiB@ddr9-6000",
        "64GiB@ddr5-6000x999",
    ],
)
def test_a_rate_that_is_none(text: str) -> None:
    if text == "64GiB@3":  # 3 GB/s is slow RAM, and RAM
        assert asked(f"--ram {text}").machine.host.bandwidth == 3e9
        return
    with pytest.raises(UsageError, match="--ram"):
        asked(f"--ram {text}")


@pytest.mark.parametrize("cores", ["0", "-1", "many", "1.5"])
def test_cores_are_a_number(cores: str) -> None:
    with pytest.raises(UsageError, match="--cores"):
        Request.of(["--ram", "64GiB", "--cores", cores], devices=[])


@pytest.mark.parametrize(
    ("words", "total", "left"),
    [
        ("--ram 64GiB", 64, 2),
        ("--ram 8GiB", 8, 1),
        ("--gpu rtx-3060 --ram 16GiB", 16, 2),
        ("--gpu m1-8g", 8, 3.5),
        ("--gpu m2-max --ram 64GiB", 64, 3.5),
        ("--gpu radeon-780m-32g", 32, 2),
        ("--gpu strix-halo --ram 128GiB", 128, 2),
    ],
)
def test_a_system_takes_its_part(words: str, total: int, left: float) -> None:
    machine = asked(words).machine
    assert machine.ram is not None
    assert (machine.ram_total, (total * GiB) - machine.ram) == (total * GiB, left * GiB)


def test_no_plan_takes_the_system_s_part() -> None:
    for words in ("--gpu m1-8g", "--gpu rtx-3060 --ram 16GiB", "--gpu radeon-780m-16g"):
        plan = autolayers.plan(str(HEADERS / "llama-3.1-8b-q4_k_m.gguf"), words.split())
        total, free = plan.host.total, plan.host.free
        assert total is not None and free is not None
        assert not plan.fits or plan.host.resident + plan.host.shared <= free < total


HERE = Host(32 * GiB, 20 * GiB, "meminfo", 51e9, 25e9, 12, 3e9, "measured", 6)


@pytest.mark.parametrize(
    ("ram", "cores", "rate", "available"),
    [
        (16, 12, 51e9, 16),
        (32, 12, 51e9, 32),  # a limit on this machine
        (64, 12, 51e9, 62),  # the same with more memory
        (768, None, None, 766),
    ],
)  # another one
def test_other_ram_keeps_the_cores_of_a_machine_that_it_fits(
    ram: int, cores: int | None, rate: float | None, available: int
) -> None:
    machine = asked(f"--ram {ram}GiB", HERE).machine
    assert (machine.host.cores, machine.host.bandwidth, machine.ram) == (
        cores,
        rate,
        available * GiB,
    )
    assert asked(f"--ram {ram}GiB --cores 3", HERE).machine.host.cores == 3


def test_cores_of_here_are_named_with_more_ram_than_here() -> None:
    assert asked("--ram 64GiB", HERE).notes == (
        "--ram is more than the 32.00 GiB here: planned with the 12 cores here (--cores N)",
    )
    for words in (
        "--ram 32GiB",
        "--ram 768GiB",
        "--ram 64GiB --cores 4",
        "--gpu 24GiB --ram 64GiB -t 16",
    ):
        assert asked(words, HERE).notes == ()
    assert asked("--ram 64GiB -t 16", HERE).machine.host.cores == 16


@pytest.mark.parametrize(
    ("gpu", "ram", "said"),
    [
        ("2xm2-ultra-192g", "", "are one a machine (autolayers cluster"),
        ("m4-16g,gb10", "", "are one a machine"),
        ("m2-16g", "64GiB", ""),
        ("m2-16g", "8GiB", ""),
        ("rtx-3090,strix-halo", "64GiB", ""),
    ],
)
def test_a_machine_that_cannot_be_is_refused(gpu: str, ram: str, said: str) -> None:
    words = f"--gpu {gpu}" + (f" --ram {ram}" if ram else "")
    if said:
        with pytest.raises(UsageError, match=re.escape(said)):
            asked(words)
    else:
        assert asked(words).machine.devices


@pytest.mark.slow
def test_a_gpu_of_which_all_is_free_drives_no_display() -> None:
    model = autolayers.read_model(MOE)
    empty = "nothing else is on the GPU, not even a display"
    assert empty in " ".join(
        plan_text(autolayers.plan(model, ["--gpu", "rtx-3090", "-c", "4096"])).split()
    )
    used = Device("CUDA0", 24 * GiB, 23 * GiB, "NVIDIA GeForce RTX 3090")
    for plan in (
        autolayers.plan(model, ["-c", "4096"], devices=[used]),
        autolayers.plan(model, ["--gpu", "24GiB", "-c", "4096"]),
        autolayers.plan(model, ["--gpu", "m2-max-32g", "-c", "4096"]),
        autolayers.plan(
            model,
            ["-c", "4096"],
            devices=[Device("RPC0", 24 * GiB, 24 * GiB, "127.0.0.1:50052", "RPC", "rpc")],
        ),
    ):
        assert empty not in " ".join(plan_text(plan).split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "words", "said"),
    few_rows(
        2,
        [
            ("m3-max-64g-macos14", "", "iogpu.wired_limit_mb="),
            ("m3-max-64g", "", ""),
            ("m3-max-48g", "-c 8192", "iogpu.wired_limit_mb="),
            ("strix-halo-64g", "", "GTT"),
            ("m2-ultra-128g", "-c 8192", ""),
            slow("m3-max-36g", "-c 4096", ""),
            ("rtx-3090", "--ram 64GiB -c 4096", ""),
            ("gb10", "-c 4096", ""),
        ],
    ),
)
def test_the_limit_of_a_gpu_that_shares_ram_is_named_where_it_binds(
    gpu: str, words: str, said: str
) -> None:
    plan = autolayers.plan(DENSE, ["--gpu", gpu, *words.split()])
    found = [line for line in plan.reasons if "of the RAM: " in line]
    assert [said in line for line in found] == ([True] if said else [])
    if "wired" in said:
        limit = int(found[0].partition("wired_limit_mb=")[2].split()[0])
        assert plan.devices[0].total >> 20 < limit < plan.host.free >> 20
