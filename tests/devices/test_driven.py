"""A GPU under two backends would be planned as two.

The same GPUs under another backend, and what Vulkan's loader says of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import FIXTURES, HEADERS

import autolayers
from autolayers import Device, UsageError
from autolayers.devices import described, hypothetical, vulkan
from autolayers.devices.driven import driven
from autolayers.request import Request

PROFILES = json.loads((FIXTURES / "truth" / "vulkan" / "profiles.json").read_text())


@pytest.mark.parametrize(
    ("spec", "word", "names"),
    [
        ("7900xtx", "vulkan", ["Vulkan0"]),
        ("7900xtx", "HIP", ["ROCm0"]),
        ("2x24GiB", "Metal", ["MTL0", "MTL1"]),
        ("4090,7900xtx", "vulkan", ["Vulkan0", "Vulkan1"]),
        ("24GiB", "cpu", []),
        ("3090", "sycl", ["SYCL0"]),
        ("radeon-780m-32g", "rocm", ["ROCm0"]),
        ("arc-140v-32g", "sycl", ["SYCL0"]),
    ],
)
def test_cards_are_renamed_and_renumbered(spec: str, word: str, names: list[str]) -> None:
    before = hypothetical(spec)
    after = driven(before, word)
    assert [device.name for device in after] == names
    assert all(
        new.free == old.free and new.compute_capability is None
        for new, old in zip(after, before, strict=False)
        if new.backend != old.backend
    )


def test_a_size_under_metal_is_a_part_of_the_ram() -> None:
    machine = Request.of(["--gpu", "12124MiB", "--backend", "metal", "--ram", "16GB"]).machine
    named = Request.of(["--gpu", "m1-16g"]).machine
    assert (machine.limits, machine.ram, machine.ram_total) == (
        named.limits,
        named.ram,
        named.ram_total,
    )
    assert machine.devices[0].in_ram


def test_a_mac_is_asked_for_where_metal_has_no_gpu() -> None:
    with pytest.raises(UsageError, match=r"--backend metal: .* such as --gpu m2-max-32g"):
        Request.of(["--backend", "metal"], devices=[])
    assert driven([], "vulkan") == []


def test_remote_devices_stay() -> None:
    far = Device("RPC0", 1 << 30, 1 << 30, backend="RPC", kind="rpc")
    assert driven([far, *hypothetical("8GiB")], "cpu") == [far]


@pytest.mark.parametrize(
    ("spec", "word", "says"),
    [
        ("24GiB", "opengl", "cuda"),
        ("7900xtx", "cuda", "AMD Radeon RX 7900 XTX"),
        ("4090", "metal", "GeForce RTX 4090"),
        ("radeon-780m-32g", "cuda", "Radeon 780M"),
        ("arc-b580", "rocm", "Arc B580"),
    ],
)
def test_what_cannot_be_is_named(spec: str, word: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        driven(hypothetical(spec), word)


@pytest.mark.parametrize(
    ("description", "backend", "own"),
    [
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "Vulkan", "rocm"),
        ("NVIDIA GeForce RTX 3090", "Vulkan", "cuda"),
        ("Apple M2 Max", "Vulkan", "metal"),
        ("AMD Radeon RX 6600", "OpenCL", "rocm"),
    ],
)
def test_a_card_that_another_backend_listed_is_its_makers(
    description: str, backend: str, own: str
) -> None:
    listed = [Device(f"{backend}0", 1 << 30, 1 << 30, description, backend)]
    assert len(driven(listed, own)) == 1
    for word in {"rocm", "cuda", "metal", "musa", "cann"} - {own}:
        with pytest.raises(UsageError, match="does not run on"):
            driven(listed, word)


def test_the_command_line_plans_for_another_backend() -> None:
    words = [
        HEADERS / "llama-3.1-8b-q4_k_m.gguf",
        "--gpu",
        "7900xtx",
        "--backend",
        "vulkan",
        "-c",
        "8192",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", *words], capture_output=True, text=True
    )
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and [device["name"] for device in answer["devices"]] == ["Vulkan0"]
    assert not answer["exact"] and any(
        "driver's limits" in warning for warning in answer["warnings"]
    )


def test_names_of_amds_cards_choose_their_kernels() -> None:
    model = autolayers.read_model(HEADERS / "llama-3.1-8b-q4_k_m.gguf")
    for card, exact in (("7900xtx", True), ("mi300x", True), ("24GiB", False)):
        assert (
            autolayers.plan(model, ["-c", "8192"], devices=driven(hypothetical(card), "rocm")).exact
            is exact
        )


def test_limits_are_given_to_the_card_of_that_name_in_order() -> None:
    listed = [
        Device(f"Vulkan{i}", 1, 1, name, "Vulkan")
        for i, name in enumerate(("A (RADV X)", "B", "A (RADV X)"))
    ]
    known = [
        Device(f"Vulkan{i}", 1, 1, name, "Vulkan", limits={"subgroup_size": i})
        for i, name in enumerate("AAC")
    ]
    found = vulkan.with_limits(listed, known)
    assert [device.limits for device in found] == [{"subgroup_size": 0}, None, {"subgroup_size": 1}]


def test_the_loader_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(device.backend == "Vulkan" and device.total for device in vulkan.query())
    monkeypatch.setattr(vulkan, "_PROCESSOR", None)
    for row in vulkan.answer():  # a software driver, where there is one
        assert (
            row["limits"].keys() < PROFILES["lavapipe"].keys() and row["total"] >= row["free"] > 0
        )
        if row["name"].startswith("llvmpipe"):
            assert row["limits"].items() <= PROFILES["lavapipe"].items()


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"min_memory_map_alignment": 48}, "power of two"),
        ({"max_buffer_size": 4}, "less than 1 MiB"),
        ({"subgroup_size": "32"}, "whole number"),
        ([16], "object"),
    ],
)
def test_limits_of_a_machine_file_that_no_driver_has_are_named(
    tmp_path: Path, limits: object, says: str
) -> None:
    path = tmp_path / "machine.json"
    path.write_text(
        json.dumps({"devices": [{"name": "Vulkan0", "total": 1 << 34, "limits": limits}]})
    )
    with pytest.raises(UsageError, match=says):
        described(str(path))
