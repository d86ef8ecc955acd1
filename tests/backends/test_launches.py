"""Users of AMD, Intel, Apple and Vulkan devices would get plans that are not exact.

Launches on other backends than CUDA to the byte (fixtures/truth/vulkan, metal, hip, sycl).

Vulkan: llama.cpp's own backend on a software driver, under six sets of limits, a sample of 2,640
launches. Metal and HIP: their own source, compiled without hardware (fixtures/recorder), samples of
960 each, SYCL of 480 ("reference": of 96 on a device for which oneDNN has no kernels). All of them
were equal. b11311, and where it is said b11549; Vulkan's order, supported operations and sizes are
the same source in both.
"""

from __future__ import annotations

import json
import re

import pytest
from support import FIXTURES, WHOLE, MiB, model, sample, slow

import autolayers
from autolayers import Device, estimate
from autolayers.flags.parse import parse

TRUTH = FIXTURES / "truth"
PARTS = ("model", "context", "compute")
PROFILES = json.loads((TRUTH / "vulkan" / "profiles.json").read_text())


def rows(folder: str) -> list[dict]:
    files = [TRUTH / folder / f"cases_{name}.jsonl" for name in ("models", "archs")]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


LAUNCHES = {
    f"Vulkan, {profile}": (
        "Vulkan",
        limits,
        [row for row in rows("vulkan") if row["profile"] == profile],
    )
    for profile, limits in PROFILES.items()
}
LAUNCHES["MTL"] = ("MTL", None, rows("metal"))
LAUNCHES["SYCL"] = ("SYCL", {"max_mem_alloc_size": 1 << 62}, rows("sycl"))
LAUNCHES["ROCm"] = ("ROCm", {"gfx_target_version": 110000}, rows("hip"))
LAUNCHES["SYCL, b11549"] = (
    "SYCL",
    {"max_mem_alloc_size": 1 << 62, "onednn_optimized_gemm": 1},
    rows("sycl/b11549"),
)
LAUNCHES["SYCL, b11549, reference"] = (
    "SYCL",
    {"max_mem_alloc_size": 1 << 62, "onednn_optimized_gemm": 0},
    rows("sycl/b11549-reference"),
)
LAUNCHES["MTL, b11549"] = ("MTL", None, rows("metal/b11549"))
LAUNCHES["ROCm, b11549"] = ("ROCm", {"gfx_target_version": 110000}, rows("hip/b11549"))


def some(name: str, whole: bool, n: int) -> tuple[str, dict | None, list[dict]]:
    """(the backend, its limits, launches): all of them, or of every architecture and model one
    n-th."""
    backend, limits, launches = LAUNCHES[name]
    by_model: dict[str, list[dict]] = {}
    for row in launches:
        by_model.setdefault(row["model"], []).append(row)
    start = list(LAUNCHES).index(name)
    every = list(sample(by_model, 4).values())[start % n :: n]
    return backend, limits, launches if whole else [row for rows in every for row in rows]


def launch(row: dict, backend: str, limits: dict | None) -> autolayers.Breakdown:
    devices = [
        Device(f"{backend}{i}", mib * MiB, mib * MiB, backend=backend, limits=limits)
        for i, mib in enumerate(row["gpus_mib"])
    ]
    words = re.sub(r"=CUDA(?=\d)", f"={backend}", row["args"]).split()
    return estimate(
        model(row["model"]),
        parse(words).params,
        devices,
        build=row.get("build", 11311),
        measuring=True,
    )


def recorded(row: dict) -> dict[str, list[int]]:
    """Bytes per device; what the CPU repacks is the host's too."""
    found: dict[str, list[int]] = {}
    for name, sizes in row["devices"].items():
        of = found.setdefault("Host" if name == "CPU" else name, [0, 0, 0])
        for i, part in enumerate(PARTS):
            of[i] += sizes[part]
    return found


def predicted(found: autolayers.Breakdown) -> dict[str, list[int]]:
    uses = [*found.devices.items(), ("Host", found.host)]
    return {name: [getattr(use, part) for part in PARTS] for name, use in uses}


@WHOLE
@pytest.mark.parametrize("name", LAUNCHES)
def test_every_launch_is_equal_to_the_byte(
    name: str, whole: bool, figures: dict[str, tuple[int, int]]
) -> None:
    backend, limits, launches = some(name, whole, 6)
    wrong = []
    for row in launches:
        if "error" in row:
            with pytest.raises(autolayers.LaunchRefused):
                launch(row, backend, limits)
            continue
        found = launch(row, backend, limits)
        got = predicted(found)
        wrong += [
            f"{row['model']} {row['gpus_mib']} {row['args']}: {device} {got[device]}, "
            f"recorded {sizes}"
            for device, sizes in recorded(row).items()
            if got[device] != sizes
        ]
        assert found.exact == (backend not in ("MTL", "SYCL") and not model(row["model"]).inexact)
    what = f"launches on {backend}, equal"
    right, of = figures.get(what, (0, 0))
    figures[what] = (right + len(launches) - len(wrong), of + len(launches))
    assert not wrong, "\n".join(wrong)


@WHOLE
@pytest.mark.parametrize(
    "name",
    [
        slow("Vulkan, nvidia"),
        "Vulkan, nvidia64",
        "Vulkan, radv",
        "Vulkan, intel1g",
        "ROCm",
        "SYCL",
        "SYCL, b11549",
        "SYCL, b11549, reference",
    ],
)
def test_what_is_not_known_of_a_device_gives_an_upper_bound(name: str, whole: bool) -> None:
    backend, _, launches = some(name, whole, 8)
    for row in launches:
        if "error" not in row:
            found = launch(row, backend, None)
            got = predicted(found)
            assert not found.exact and any(
                "an upper bound" in warning for warning in found.warnings
            )
            for device, sizes in recorded(row).items():
                assert sum(got[device]) >= sum(sizes), (
                    row["model"],
                    row["gpus_mib"],
                    row["args"],
                    device,
                )


@WHOLE
@pytest.mark.parametrize("name", [slow("Vulkan, nvidia"), "Vulkan, radv", "MTL", "ROCm", "SYCL"])
def test_no_backend_takes_more_on_a_device_than_one_that_nobody_knows(
    name: str, whole: bool
) -> None:
    backend, _, launches = some(name, whole, 8)
    for row in launches:
        if "error" not in row:
            got = predicted(launch(row, "NEXT", None))
            for device, sizes in recorded(row).items():
                if device != "Host":
                    assert sum(got[device.replace(backend, "NEXT")]) >= sum(sizes), (
                        row["model"],
                        row["args"],
                    )


@pytest.mark.parametrize(
    ("backend", "last_without", "first_with"),
    [
        ("CUDA", None, 4080),
        slow("Vulkan", 7490, 7540),
        slow("MTL", 7800, 7960),
        ("RPC", 10635, 10644),
    ],
)
def test_prompts_are_pipelined_where_devices_compute_asynchronously(
    backend: str, last_without: int | None, first_with: int
) -> None:
    """ggml_backend_dev_caps of each backend; any -ot turns pipelining off."""
    devices = [Device(f"{backend}{i}", 24 << 30, 24 << 30, backend=backend) for i in range(2)]
    for build, pipelined in ((last_without, False), (first_with, True)):
        if build is not None:
            alike = [
                predicted(
                    estimate(
                        model("llama-3.1-8b-q4_k_m"), parse(words.split()).params, devices, build
                    )
                )
                for words in ("-ngl 99 -c 8192", "-ngl 99 -c 8192 -ot nothing=CPU")
            ]
            assert (alike[0] != alike[1]) == pipelined, build
