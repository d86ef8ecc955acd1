"""A hostile or huge model would keep the planner busy for minutes.

A plan measures so many graphs and no more: past that it is the best answer so far, and says
so.
"""

from __future__ import annotations

import pytest
from support import model, seldom

import autolayers
from autolayers.flags.parse import parse
from autolayers.memory import meter
from autolayers.memory.meter import Meter
from autolayers.planner import plan_request
from autolayers.planner.reasons import NO_MORE
from autolayers.request import Request

SAID = "the search ended early, as it would have taken too long: other flags may be faster"
MACHINE = ["--gpu", "2GiB,1GiB", "--ram", "64GiB"]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "--ctx max", "--kv-types f16,q8_0", "-c 8192"])
@pytest.mark.parametrize("nodes", [0, 1500])
def test_a_plan_whose_budget_is_spent_is_the_best_so_far(
    nodes: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "BUDGET", nodes)
    plan = autolayers.plan(
        model("qwen3-30b-a3b-q4_k_m:8"), [*MACHINE, *words.split()], explain=True, advise=True
    )
    assert plan.fits and SAID in plan.warnings


def test_layers_that_were_given_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "BUDGET", 0)
    plan = autolayers.plan(
        model("qwen3-30b-a3b-q4_k_m:8"), [*MACHINE, "-ngl", "4"], explain=True, advise=True
    )
    assert plan.n_gpu_layers == 4


@pytest.mark.slow
def test_a_plan_within_its_budget_says_nothing() -> None:
    plan = autolayers.plan(model("qwen3-30b-a3b-q4_k_m:4"), ["--gpu", "1GiB"], explain=True)
    assert plan.fits and SAID not in plan.warnings


def test_what_is_compared_with_a_plan_is_within_its_budget_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A budget that lasts for the search alone: neither reasons nor remedies take another."""
    whole, machine = model("qwen3-30b-a3b-q4_k_m:8"), ["--gpu", "2GiB", "--ram", "64GiB"]
    spent = Meter()
    alone = plan_request(whole, Request.of(parse(machine, command="plan")), meter=spent)
    first = spent.spent
    plan = plan_request(
        whole,
        Request.of(parse(machine, command="plan")),
        meter=(limit := Meter(first)),
        explain=True,
        advise=True,
    )
    assert plan.flags == alone.flags and limit.spent < 1.2 * first and plan.alternatives == ()
    assert SAID not in plan.warnings and NO_MORE in plan.warnings


@seldom
def test_a_reason_that_needs_more_than_its_share_gets_what_the_others_left() -> None:
    """Otherwise a machine with two cores compares less than one with a single core."""
    words = ["--gpu", "rtx-3090,rtx-3060,gtx-1070", "--ram", "64GiB"]
    alone, shared = (
        plan_request(
            model("llama-3.3-70b-q4_k_m"),
            Request.of(parse(words, command="plan")),
            explain=True,
            processes=count,
        )
        for count in (1, 2)
    )
    assert shared.to_dict() == alone.to_dict() and NO_MORE not in shared.warnings
