"""A cache of experts would be added where a given flag decides about it, or where there is none."""

from __future__ import annotations

import pytest
from support import hypothetical_gpus, model, requested

from autolayers.flags.policy import read
from autolayers.machine import Machine
from autolayers.planner.one.expert_cache import may_cache
from autolayers.planner.problem import Problem


@pytest.mark.parametrize(
    ("name", "words", "gpus", "may"),
    [
        ("qwen3-30b-a3b-q4_k_m:4", "", 1, True),
        ("qwen3-30b-a3b-q4_k_m:4", "-sm layer", 2, True),
        ("qwen3-30b-a3b-q4_k_m:4", "-sm none", 2, True),
        ("qwen3-30b-a3b-q4_k_m:4", "-sm tensor", 2, False),
        ("qwen3-30b-a3b-q4_k_m:4", "--moe-cache-mib 0", 1, False),
        ("qwen3-30b-a3b-q4_k_m:4", "--moe-cache-mib 200", 1, False),
        ("qwen3-30b-a3b-q4_k_m:4", "--strategy layers", 1, False),
        ("qwen3-30b-a3b-q4_k_m:4", "", 0, False),
        ("llama-3.1-8b-q4_k_m:4", "", 1, False),
    ],
)
def test_a_cache_may_be_added_where_no_flag_decides(
    name: str, words: str, gpus: int, may: bool
) -> None:
    params, policy = read(words.split(), None)
    machine = Machine.of(hypothetical_gpus([6000] * gpus), None, None, {})
    problem = Problem(model(name), requested(params, policy, machine))
    assert may_cache(problem, params) is may
