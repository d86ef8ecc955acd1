"""Vulkan to the byte: launches that llama.cpp's own backend measured on a software driver, under six sets of limits.

fixtures/truth/vulkan is a sample of 2,640 launches, all of which were equal.
"""

from __future__ import annotations

import json

import pytest
from support import FIXTURES, MiB, model

import autolayers
from autolayers import Device, estimate
from autolayers.backends import on
from autolayers.backends.vulkan.limits import ASSUMED
from autolayers.flags.parse import parse
from autolayers.ggml.tensor import Graph, Tensor

TRUTH = FIXTURES / "truth" / "vulkan"
PROFILES = json.loads((TRUTH / "profiles.json").read_text())
ROWS = [json.loads(line) for name in ("models", "archs") for line in (TRUTH / f"cases_{name}.jsonl").open()]
PARTS = ("model", "context", "compute")


def devices(row: dict, limits: dict | None) -> list[Device]:
    return [Device(f"Vulkan{i}", mib * MiB, mib * MiB, backend="Vulkan", limits=limits)
            for i, mib in enumerate(row["gpus_mib"])]


def launch(row: dict, limits: dict | None) -> autolayers.Breakdown:
    return estimate(model(row["model"]), parse(row["args"].split()).params, devices(row, limits), build=11311)


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


@pytest.mark.parametrize("profile", PROFILES)
def test_every_launch_to_the_byte(profile: str, figures: dict[str, tuple[int, int]]) -> None:
    wrong = []
    rows = [row for row in ROWS if row["profile"] == profile]
    for row in rows:
        if "error" in row:
            with pytest.raises(autolayers.LaunchRefused):
                launch(row, PROFILES[profile])
            continue
        found = launch(row, PROFILES[profile])
        got = predicted(found)
        wrong += [f"{row['model']} {row['gpus_mib']} {row['args']}: {name} {got[name]}, recorded {sizes}"
                  for name, sizes in recorded(row).items() if got[name] != sizes]
        assert found.exact or model(row["model"]).inexact
    right, of = figures.get("launches on Vulkan, exact", (0, 0))
    figures["launches on Vulkan, exact"] = (right + len(rows) - len(wrong), of + len(rows))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("profile", ["nvidia", "nvidia64", "radv", "intel1g"])
def test_limits_that_are_not_known_give_an_upper_bound_on_desktops(profile: str) -> None:
    for row in ROWS:
        if row["profile"] == profile and "error" not in row:
            found = launch(row, None)
            got = predicted(found)
            assert not found.exact and any("limits" in warning for warning in found.warnings)
            for name, sizes in recorded(row).items():
                assert sum(got[name]) >= sum(sizes), (row["model"], row["gpus_mib"], row["args"], name)


# what limits decide


def vulkan(**limits: int):
    return on(Device("Vulkan0", 1, 1, backend="Vulkan", limits={**PROFILES["nvidia"], **limits}))


def test_limits_decide_alignments_and_the_largest_buffer() -> None:
    for name, device in ((name, vulkan(**PROFILES[name])) for name in PROFILES):
        assert device.alignment == PROFILES[name]["min_storage_buffer_offset_alignment"]
        assert device.host_alignment == PROFILES[name]["min_memory_map_alignment"]
        assert device.max_size == min(1 << 30, PROFILES[name]["max_buffer_size"]) and device.proven
    assert vulkan(max_memory_allocation_size=1 << 28).max_size == 1 << 28
    some = on(Device("Vulkan0", 1, 1, backend="Vulkan", limits={"min_storage_buffer_offset_alignment": 16}))
    assert some.alignment == 16 and some.host_alignment == ASSUMED.min_memory_map_alignment and not some.proven


def attention(k: str = "f16", v: str = "f16", head: int = 128) -> Tensor:
    g = Graph()
    return g.flash_attn(g.new("f32", head, 512, 32), g.new(k, head, 4096, 8), g.new(v, head, 4096, 8),
                        g.new("f16", 4096, 512))


@pytest.mark.parametrize(("op", "limits", "runs"), [
    (attention(), {}, True),
    (attention(head=88), {}, True), (attention(head=100), {}, False),          # multiples of 8
    (attention("q8_0", "q4_0"), {}, True), (attention("iq4_nl", "q5_1"), {}, True),
    (attention("bf16", "f16"), {}, False), (attention("bf16", "bf16"), {}, True),
    (attention(), {"subgroup_shuffle_vote": False, "cooperative_matrix2": False}, False),
    (attention(), {"subgroup_shuffle_vote": False, "cooperative_matrix2": True}, True),
    (attention(), {"max_storage_buffer_range": 4 * MiB}, False),
    (attention(), {"max_storage_buffer_range": 4 * MiB, "shader_64bit_indexing": True}, True),
    (attention(), {"max_buffer_size": 4 * MiB, "shader_64bit_indexing": True}, False),
    (Graph().argsort(Graph().new("f32", 4096, 8)), {}, True),
    (Graph().argsort(Graph().new("f32", 4096, 8)), {"vulkan_memory_model": False}, False),
    (Graph().mul_mat(Graph().new("q4_K", 256, 8, 4), Graph().new("f32", 256, 8, 4, 2)), {}, False),    # ne[3] differs
])
def test_limits_decide_what_runs(op: Tensor, limits: dict, runs: bool) -> None:
    assert vulkan(**limits).supports_op(op) is runs


def test_a_cache_larger_than_a_buffer_is_refused() -> None:
    row = {"gpus_mib": [24576], "model": "llama-3.1-8b-q4_k_m", "args": "-c 131072 -ngl 99"}
    with pytest.raises(autolayers.LaunchRefused, match=r"llama\.cpp aborts"):
        launch(row, PROFILES["lavapipe"])
