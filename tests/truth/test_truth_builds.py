"""Anyone who has an older build would get sizes of today's.

Older builds against llama.cpp's own numbers (fixtures/builds), what launches of those that
cannot measure themselves logged (fixtures/older), and what launches on real devices did
(fixtures/real).
"""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from functools import cache

import pytest
from support import FIXTURES, WHOLE, sample, some_and_whole

import autolayers
from autolayers import Device, estimate
from autolayers.builds import Rules
from autolayers.flags.parse import parse
from autolayers.memory.margin import margin
from autolayers.records import replace

PARTS = ("model", "context", "compute")
MiB = 1 << 20
PRINTED = 0.0151 * MiB  # logs have two decimals
DEFAULT = {"fa_all_quants": 0}  # as llama.cpp's own libraries are built
LIMITS = {
    "CUDA": DEFAULT,
    "ROCm": {"gfx_target_version": 110000, **DEFAULT},
    "SYCL": {"max_mem_alloc_size": 1 << 62, "onednn_optimized_gemm": 1},
    "Vulkan": json.loads((FIXTURES / "truth" / "vulkan" / "profiles.json").read_text())["radv"],
}
Rows = dict[str, list[dict]]


def grouped(folder: str, *keys: str) -> Rows:
    rows: Rows = {}
    for line in (FIXTURES / folder / "launches.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(" ".join(str(row.get(key, "CUDA")) for key in keys), []).append(row)
    return rows


def header(name: str) -> str:
    return next(
        path
        for folder in ("headers", "more/headers", "builds/headers")
        if (FIXTURES / (path := f"{folder}/{name}.gguf")).exists()
    )


@cache
def model(path: str, without: str) -> autolayers.Model:
    """`without`: a regular expression of tensors that were left out."""
    whole = autolayers.read_header(FIXTURES / path)
    tensors = {
        name: info
        for name, info in whole.tensors.items()
        if not without or not re.search(without, name)
    }
    reduced = autolayers.Header(
        whole.version, whole.alignment, whole.metadata, tensors, whole.files
    )
    return autolayers.Model(reduced, path)


def found(row: dict, path: str, words: list[str], devices: list[Device]) -> tuple[dict, bool]:
    launch = estimate(
        model(path, row.get("without", "")),
        parse(words).params,
        devices,
        row["build"],
        measuring=True,
    )
    return {**launch.devices, "Host": launch.host}, launch.exact


BUILDS = grouped("builds", "build")
OLDER, REAL = (grouped(folder, "backend", "build") for folder in ("older", "real"))


@WHOLE
@pytest.mark.parametrize("build", BUILDS)
def test_every_launch_is_equal_to_the_byte(build: str, whole: bool) -> None:
    rows = (BUILDS if whole else sample(BUILDS, 16))[build]
    exact, plain = (
        0,
        [
            row
            for row in rows
            if "mtp" not in row["model"] and row.get("backend", "CUDA") in ("CUDA", "ROCm")
        ],
    )
    for row in rows:
        backend = row.get("backend", "CUDA")
        devices = [
            Device(
                f"{backend}{i}", size * MiB, size * MiB, backend=backend, limits=LIMITS.get(backend)
            )
            if backend != "CUDA"
            else replace(Device.hypothetical(f"{size}MiB", f"{backend}{i}"), limits=DEFAULT)
            for i, size in enumerate(row["gpus_mib"])
        ]
        path = header(row["model"])
        if "error" in row:
            with pytest.raises(autolayers.LaunchRefused):
                found(row, path, row["args"].split(), devices)
            continue
        uses, known = found(row, path, row["args"].split(), devices)
        got = {
            device: {part: getattr(uses[device], part) for part in PARTS}
            for device in row["devices"]
        }
        assert got == row["devices"], (row["model"], row["args"])
        exact += known
    assert exact > len(plain) // 2 or len(plain) < 10


@some_and_whole("launches", OLDER, 2)
def test_no_launch_takes_more_than_was_predicted(launches: str, whole: bool) -> None:
    """Nearly all are equal to the byte; graphs of delta nets from before the fused operation are an
    upper bound."""
    backend, build = launches.split()
    every = (OLDER if whole else sample(OLDER, 40))[launches]
    rows = [
        row for row in every if "next" not in row["model"] or Rules(int(build)).fused_delta_nets
    ]
    equal, low = 0, []
    for row in every:
        devices = [
            Device(
                f"{backend}{i}", mib * MiB, mib * MiB, backend=backend, limits=LIMITS.get(backend)
            )
            for i, mib in enumerate(row["gpus_mib"])
        ]
        uses, exact = found(row, header(row["model"]), row["args"].split(), devices)
        more = [
            getattr(uses[device], part) - size
            for device, parts in row["devices"].items()
            for part, size in parts.items()
        ]
        assert not exact
        equal += row in rows and not any(more)
        if min(more) < 0:
            low.append((row["model"], row["args"], more))
    assert not low
    assert len(rows) > (10 if whole else 0) and equal >= 0.9 * len(rows) - (not whole)


@pytest.mark.parametrize(
    ("capability", "compute", "host"),
    [((6, 1), 218103808, 52443136), ((8, 9), 247726080, 12597248)],
)
def test_flash_attention_of_b6170_depends_on_compute_capability(
    capability: tuple[int, int], compute: int, host: int
) -> None:
    """Of DeepSeek's latent attention, which needs tensor cores: what b6170 allocated on each."""
    device = Device("CUDA0", 24 << 30, 24 << 30, compute_capability=capability)
    row = {"build": 6170}
    uses, _ = found(
        row,
        "headers/deepseek-v2-lite-q4_k_m.gguf",
        ["-ngl", "99", "-fa", "on", "-c", "4096"],
        [device],
    )
    assert (uses["CUDA0"].compute, uses["Host"].compute) == (compute, host)


def test_a_quantised_cache_of_fused_keys_and_values_is_refused_by_builds_that_abort() -> None:
    """b8672 and b8929: GGML_ASSERT(ggml_is_contiguous(a)) failed."""
    words = ["-ngl", "99", "-fa", "on", "-c", "16384", "-ctv", "q4_0"]
    for build, refused in ((8380, False), (8672, True), (8929, True), (9093, False)):
        row = {"build": build, "without": r"\.(input_)?scale$"}
        with pytest.raises(autolayers.LaunchRefused, match="f16") if refused else nullcontext():
            found(row, "headers/gpt2-dense.gguf", words, [Device.hypothetical("24GiB", "CUDA0")])


@some_and_whole("launches", sorted(REAL, key=lambda name: int(name.split()[1])), 2)
def test_every_real_launch_logged_what_is_predicted(launches: str, whole: bool) -> None:
    for row in (REAL if whole else sample(REAL, 40))[launches]:
        devices = []
        for device in row["devices"]:
            capability = tuple(map(int, device.get("compute_capability", "0.0").split(".")))
            devices.append(
                Device(
                    device["name"],
                    device["total"],
                    device["free"],
                    backend=device["backend"],
                    description=device.get("description", ""),
                    kind="igpu"
                    if device.get("integrated") and device["backend"] != "MTL"
                    else "gpu",
                    compute_capability=capability if any(capability) else None,
                )
            )
        words = row["words"] + (
            ["-ngl", "99" if devices else "0"] if "-ngl" not in row["words"] else []
        )
        path = f"real/headers/{row['header']}"
        launch = estimate(model(path, ""), parse(words).params, devices, row["build"], runtime=True)
        uses = {**launch.devices, "Host": launch.host}
        for name, size in row.get("mtp_mib", {}).items():
            assert abs(launch.extra_by_device()[name] - size * MiB) < PRINTED, (name, words)
        # what it took at its peak, of a prompt, and buffers
        for name, size in row.get("beyond_mib", {}).items():
            device = next(device for device in devices if device.name == name)
            assert (
                sum(dict(margin(device, model(path, ""), parse(words).params, launch)).values())
                > size * MiB
            )
        for name, measured in row["measured_mib"].items():
            if name in uses:
                for part, size in measured.items():
                    assert abs(getattr(uses[name], part) - size * MiB) < PRINTED, (
                        name,
                        part,
                        words,
                    )
