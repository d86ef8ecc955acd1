"""Prompts would fail on NVIDIA cards, after a start that went well.

What CUDA's memory pool grows to, against numbers worked out from llama.cpp's source by hand.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import LLAMA_OPS as LLAMA

from autolayers.backends.cuda.pool import pool
from autolayers.backends.ops import Matmul, Ops, Scan

MiB = 1 << 20

QWEN_MOE = Ops(
    512,
    8192,
    1,
    32,
    128,
    512,
    True,
    (Matmul("q4_K", 2048, 768, 128, 8), Matmul("q6_K", 768, 2048, 128, 8)),
)
GPT_OSS = Ops(512, 8192, 1, 64, 64, 512, True, (Matmul("mxfp4", 2880, 2880, 32, 4),))
LLAMA_70B = replace(LLAMA, weights=(Matmul("q6_K", 28672, 8192),))
DEEPSEEK = Ops(
    512,
    8192,
    1,
    128,
    512,
    576,
    True,
    (Matmul("q4_K", 7168, 2048, 256, 8), Matmul("q8_0", 128, 512, 128)),
)


def before_the_reserve(size):
    """Without the tenth that is added, in MiB."""
    return size / 1.1 / MiB


@pytest.mark.parametrize(
    "ops, n512, n2048",
    [
        (LLAMA, 16, 40),
        (QWEN_MOE, 17, 44),
        (GPT_OSS, 15, 35),
        (LLAMA_70B, 24, 71),
        (DEEPSEEK, 44, 152),
    ],
)
def test_the_pool_of_quantised_weights_is_what_was_measured(ops, n512, n2048):
    for n, expected in ((512, n512), (2048, n2048)):
        size = pool(replace(ops, n_tokens=n), n_sm=128)
        assert (
            before_the_reserve(size) - 2 <= expected <= before_the_reserve(size) + 0.6
            and size % (2 * MiB) == 0
        )


def test_the_pool_follows_the_formula_to_the_byte():
    one = Ops(512, weights=(Matmul("q4_K", 4096, 4096),))
    need = 512 * 4096 * 36 // 32 + 128 * 144 + 82 * 65536
    assert pool(one, n_sm=82) == -(-(need + need // 10) // (2 * MiB)) * 2 * MiB


@pytest.mark.parametrize("n_kv, mib", [(8192, 260), (32768, 1028)])
def test_without_flash_attention_half_the_attention_matrix_comes_again(n_kv, mib):
    size = pool(replace(LLAMA, flash_attn=False, n_kv=n_kv), n_sm=128)
    assert 0 <= before_the_reserve(size) - mib < 2


def test_without_flash_attention_and_many_streams_the_keys_count():
    assert (
        pool(replace(LLAMA, flash_attn=False, n_tokens=16, n_stream=8), n_sm=128)
        >= 4 * 8192 * 8 * 1024
    )


def test_bf16_weights_on_turing_are_expanded_whole():
    head = Matmul("bf16", 4096, 128256)
    turing, ampere = (
        pool(replace(LLAMA, weights=(head,)), capability=cc) for cc in ((7, 5), (8, 6))
    )
    assert 0 <= before_the_reserve(turing) - 4 * 4096 * 128256 / MiB < 2
    assert ampere < 30 * MiB


def test_f16_output_layer_when_every_token_is_an_output():
    head = replace(LLAMA, outputs=(Matmul("f16", 4096, 128256),))
    assert pool(head, n_sm=128) == pool(LLAMA, n_sm=128)
    assert pool(replace(head, n_outputs=512), n_sm=128) / 1.1 == pytest.approx(
        2 * 512 * (4096 + 128256), rel=0.02
    )


def test_cards_without_the_fast_way_expand_quantised_weights():
    weight = replace(LLAMA, weights=(Matmul("q4_K", 4096, 14336),))
    expanded = 2 * 4096 * 14336
    assert (
        pool(weight, capability=(7, 0))
        > expanded + 2 * 512 * 4096
        > pool(weight, capability=(6, 1))
    )
    assert pool(weight, capability=(5, 2)) > 2 * expanded  # f32
    assert (
        pool(replace(LLAMA, weights=(Matmul("iq1_m", 4096, 14336),)), capability=(8, 9)) > expanded
    )
    assert pool(weight, nvidia=False) > expanded


def test_sorting_long_rows_takes_hundreds_of_mebibytes():
    assert pool(replace(LLAMA, sort_columns=1024, sort_rows=512)) == pool(LLAMA)
    assert 250 * MiB < pool(replace(LLAMA, sort_columns=65536, sort_rows=512)) < 450 * MiB


def test_mamba_2_works_in_chunks():
    scan = Scan(d_state=128, head_dim=64, n_head=128, n_group=8)
    assert 40 * MiB < pool(Ops(512, scan=scan)) < 60 * MiB
    assert pool(Ops(64, scan=scan)) == 0


def test_flash_attentions_partial_results_are_two_blocks_of_64_columns_a_multiprocessor():
    for n_sm in (10_000, 20_000):
        need = n_sm * 2 * 64 * (128 // 2 + 2) * 8
        assert (
            pool(replace(LLAMA, weights=(), outputs=()), n_sm=n_sm)
            == -(-(need + need // 10) // (2 * MiB)) * 2 * MiB
        )
