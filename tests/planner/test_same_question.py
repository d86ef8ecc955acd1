"""The same question has one answer: what earlier questions laid out makes a plan quicker, and never
another one."""

from __future__ import annotations

import pytest
from support import model, swept

from autolayers.memory.estimate import Known
from autolayers.memory.meter import Meter
from autolayers.planner import plan_request
from autolayers.request import Request

# A machine whose GPU has its own memory, and such as share it; with little RAM, where every byte of
# a launch decides.
MACHINES = (
    ["--gpu", "m4-16g", "--ram", "3GiB"],
    ["--gpu", "m4-16g", "--ram", "4GiB", "--workload", "agent"],
    ["--gpu", "strix-halo-128g", "--ram", "6GiB"],
    ["--gpu", "rtx-3060", "--ram", "2GiB", "--budget", "CUDA0=2GiB"],
    ["--gpu", "3GiB,2GiB", "--ram", "3GiB"],
)
MODELS = ("gpt-oss-20b-mxfp4:6", "gemma-3-12b-q4_k_m:12", "granite-4.0-h-small-q4_k_m:8")
QUICK = [(MODELS[i], MACHINES[j]) for i, j in ((2, 0),)]
CASES = [(name, words) for name in MODELS for words in MACHINES] + [
    ("gemma-2-9b-q4_k_m:8", ["--gpu", "m4-16g", "--ram", "6GiB", "--ctx", "max"]),
    ("deepseek-v2-lite-q4_k_m:8", ["--gpu", "strix-halo-128g", "--ram", "6GiB", "--ctx", "max"]),
    ("gpt-oss-120b-mxfp4", ["--gpu", "m4-max-64g"]),
]


def answer(
    name: str, words: list[str], known: Known | None = None, budget: int | None = None
) -> object:
    """What is planned, and what its search spent."""
    meter = Meter(budget)
    plan = plan_request(model(name), Request.of(words), measurements=known, meter=meter)
    return plan.flags, plan.breakdown, plan.reasons, plan.warnings, plan.speed, meter.spent


@pytest.mark.slow
@pytest.mark.parametrize("case", swept(CASES, 3, QUICK), ids=lambda case: f"{case[0]} {case[1]}")
def test_a_question_that_was_asked_before_has_the_same_answer(case: tuple[str, list[str]]) -> None:
    name, words = case
    fresh = answer(name, words)
    known = Known()
    assert answer(name, words, known) == fresh
    assert answer(name, words, known) == fresh
    # other questions about the same model, each of which leaves its graphs
    for other in (["-ub", "256"], ["-ngl", "2"], ["-np", "1"]):
        answer(name, [*words, *other], known)
    assert answer(name, words, known) == fresh


@pytest.mark.slow
@pytest.mark.parametrize("budget", [2_000, 6_000, 20_000])
def test_a_budget_ends_a_search_at_the_same_launch(budget: int) -> None:
    """Graphs that an earlier question laid out count as if they were laid out again."""
    name, words = "qwen3-next-80b-a3b-q4_k_m:8", MACHINES[0]
    known = Known()
    fresh = answer(name, words, budget=budget)
    answer(name, words, known)
    assert answer(name, words, known, budget) == fresh
