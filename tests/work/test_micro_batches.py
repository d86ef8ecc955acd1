"""Owners of cards outside CUDA would be given a micro-batch of 4096, a compute buffer eight times
as large, for a gain that nobody measured.

A mixture's larger micro-batches are as fast as measured, and no faster where no row shows a gain.
"""

from __future__ import annotations

import pytest
from support import FIXTURES, few_rows

import autolayers

MOE = FIXTURES / "headers" / "gpt-oss-20b-mxfp4.gguf"
# By ROCm an RX 7900 XTX reads prompts of 2048 tokens at 2965, 3308 and 3320 tokens per second with
# 512, 1024 and 2048 (a mixture of 30B); Strix Halo by Vulkan at 391, 432 and 335 with 256 to 1024
GAINS = [
    ("strix-halo-128g", "vulkan", 1.0),
    ("strix-halo-128g", "rocm", 1.0),
    ("rx-7900-xtx", "vulkan", 1.0),
    ("rx-7900-xtx", "rocm", 1.12),
    ("arc-pro-b70", "sycl", 1.0),
    ("arc-pro-b70", "vulkan", 1.0),
    ("rtx-3090", "vulkan", 1.0),
    ("m4-max-64g", "metal", 1.0),
]


def plan(words: str) -> autolayers.Plan:
    return autolayers.plan(MOE, words.split())


@pytest.mark.parametrize(("card", "backend", "gain"), few_rows(4, GAINS))
def test_a_larger_micro_batch_gains_what_was_measured(card: str, backend: str, gain: float) -> None:
    given = f"--gpu {card} --backend {backend} -ngl 99 -c 8192 -b 4096 -ub"
    usual, larger = (plan(f"{given} {n}").speed.prompt for n in (512, 4096))
    # larger ones may lose where the pipeline of a batch is shorter
    assert gain - 0.05 <= larger / usual <= gain + 0.001


@pytest.mark.slow
@pytest.mark.parametrize("card, backend", few_rows(4, [row[:2] for row in GAINS if row[2] == 1.0]))
@pytest.mark.parametrize("words", ["", "-ncmoe 8"])
def test_no_plan_takes_a_larger_one_where_no_row_shows_a_gain(
    card: str, backend: str, words: str
) -> None:
    found = plan(f"--gpu {card} --backend {backend} --ram 64GiB {words}")
    assert (found.params.n_ubatch or 512) <= 512


def test_cuda_takes_a_larger_one_as_its_rows_show() -> None:
    path = FIXTURES / "headers" / "qwen3-30b-a3b-q4_k_m.gguf"
    found = autolayers.plan(path, ["--gpu", "rtx-3060", "--ram", "64GiB", "-c", "16384"])
    assert (found.params.n_ubatch or 512) > 512
