"""Users of Vulkan would get sizes of another driver's limits.

What the limits of a Vulkan driver decide. Whole launches: test_launches.py.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import FIXTURES, MiB, model

from autolayers import Device, LaunchRefused, estimate
from autolayers.backends import on
from autolayers.backends.ops import Matmul, Ops
from autolayers.backends.vulkan.limits import ASSUMED
from autolayers.backends.vulkan.pool import SPLIT_K, temporaries
from autolayers.flags.parse import parse
from autolayers.ggml.tensor import Graph, Tensor

PROFILES = json.loads((FIXTURES / "truth" / "vulkan" / "profiles.json").read_text())


def vulkan(**limits: int):
    return on(Device("Vulkan0", 1, 1, backend="Vulkan", limits={**PROFILES["nvidia"], **limits}))


def test_limits_decide_alignments_and_the_largest_buffer() -> None:
    for name, device in ((name, vulkan(**PROFILES[name])) for name in PROFILES):
        assert device.alignment == PROFILES[name]["min_storage_buffer_offset_alignment"]
        assert device.host_alignment == PROFILES[name]["min_memory_map_alignment"]
        assert device.max_size == min(1 << 30, PROFILES[name]["max_buffer_size"]) and device.proven
    assert vulkan(max_memory_allocation_size=1 << 28).max_size == 1 << 28
    some = on(
        Device(
            "Vulkan0", 1, 1, backend="Vulkan", limits={"min_storage_buffer_offset_alignment": 16}
        )
    )
    assert (
        some.alignment == 16
        and some.host_alignment == ASSUMED.min_memory_map_alignment
        and not some.proven
    )


def attention(k: str = "f16", v: str = "f16", head: int = 128) -> Tensor:
    g = Graph()
    return g.flash_attn(
        g.new("f32", head, 512, 32),
        g.new(k, head, 4096, 8),
        g.new(v, head, 4096, 8),
        g.new("f16", 4096, 512),
    )


@pytest.mark.parametrize(
    ("op", "limits", "runs"),
    [
        (attention(), {}, True),
        (attention(head=88), {}, True),
        (attention(head=100), {}, False),  # multiples of 8
        (attention("q8_0", "q4_0"), {}, True),
        (attention("iq4_nl", "q5_1"), {}, True),
        (attention("bf16", "f16"), {}, False),
        (attention("bf16", "bf16"), {}, True),
        (attention(), {"subgroup_shuffle_vote": False, "cooperative_matrix2": False}, False),
        (attention(), {"subgroup_shuffle_vote": False, "cooperative_matrix2": True}, True),
        (attention(), {"max_storage_buffer_range": 4 * MiB}, False),
        (attention(), {"max_storage_buffer_range": 4 * MiB, "shader_64bit_indexing": True}, True),
        (attention(), {"max_buffer_size": 4 * MiB, "shader_64bit_indexing": True}, False),
        (Graph().argsort(Graph().new("f32", 4096, 8)), {}, True),
        (Graph().argsort(Graph().new("f32", 4096, 8)), {"vulkan_memory_model": False}, False),
        # ne[3] differs
        (
            Graph().mul_mat(Graph().new("q4_K", 256, 8, 4), Graph().new("f32", 256, 8, 4, 2)),
            {},
            False,
        ),
    ],
)
def test_limits_decide_what_runs(op: Tensor, limits: dict, runs: bool) -> None:
    assert vulkan(**limits).supports_op(op) is runs


# Qwen3 0.6B: 16 heads of 128, 8 of them with keys and values
QWEN = Ops(
    512,
    6144,
    1,
    16,
    128,
    1024,
    True,
    (Matmul("q8_0", 1024, 3072), Matmul("q8_0", 3072, 1024)),
    n_embd_v_gqa=1024,
)


@pytest.mark.parametrize(
    ("changes", "coopmat2", "mib"),
    [
        # activations as f16, as seen on a software driver
        ({}, False, 3),
        # and a layer's K and V, as seen with 6000 tokens
        ({"quantised_cache": True}, False, 3 + 24),
        ({"quantised_cache": True}, True, 3),
        ({"flash_attn": False}, True, 12 + 96),  # K, and half the attention matrix
    ],
)
def test_temporaries_are_those_of_the_source(changes: dict, coopmat2: bool, mib: int) -> None:
    assert temporaries(replace(QWEN, **changes), coopmat2) == mib * MiB + SPLIT_K


# Gemma 4 26B: 8 of 128 experts of 2816 x 1408
GEMMA = Ops(
    2038,
    8192,
    1,
    16,
    256,
    2048,
    True,
    (Matmul("q4_0", 2816, 1408, 128, 8), Matmul("q4_0", 704, 2816, 128, 8)),
)


def test_experts_rows_are_padded_to_a_tile_where_they_are_converted() -> None:
    """An RTX 3090 took 1452 MiB when a prompt of 2038 tokens began and 420 MiB more when it ran."""
    assert temporaries(GEMMA, True) == 2 * 2816 * 2038 * 128 + SPLIT_K
    assert temporaries(GEMMA, False) == 2 * 2816 * 2048 * 8 + SPLIT_K
    card = Device("Vulkan0", 1, 1, "NVIDIA GeForce RTX 3090", "Vulkan", n_sm=82)
    margin = dict(on(card).margin(GEMMA))
    assert 1452 * MiB < sum(margin.values()) - margin["shaders of experts"]
    assert 420 * MiB <= margin["shaders of experts"] < 440 * MiB
    for other in ("AMD Radeon RX 7900 XTX", "Intel(R) Arc(TM) B580 Graphics"):
        margin = dict(on(replace(card, description=other, n_sm=None)).margin(GEMMA))
        assert margin["Vulkan driver"] == 96 * MiB and sum(margin.values()) < 220 * MiB


def test_cards_from_turing_on_may_have_cooperative_matrix_2() -> None:
    for capability, most in (((6, 1), False), ((7, 0), False), ((7, 5), True), ((8, 6), True)):
        card = Device("Vulkan0", 1, 1, "NVIDIA", "Vulkan", compute_capability=capability)
        assert dict(on(card).margin(GEMMA))["temporaries of operations"] == temporaries(GEMMA, most)


def test_the_margin_has_no_flat_gibibyte() -> None:
    for name, most in (("Vulkan", 180), ("MTL", 80)):
        margin = on(Device(f"{name}0", 1, 1, backend=name)).margin(QWEN)
        assert 30 * MiB < sum(size for _, size in margin) < most * MiB


def test_a_cache_larger_than_a_buffer_is_refused() -> None:
    device = Device("Vulkan0", 1 << 36, 1 << 36, backend="Vulkan", limits=PROFILES["lavapipe"])
    with pytest.raises(LaunchRefused, match=r"llama\.cpp aborts"):
        estimate(
            model("llama-3.1-8b-q4_k_m"), parse(["-c", "131072", "-ngl", "99"]).params, [device]
        )
