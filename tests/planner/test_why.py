"""--why would name a reason that is not the reason.

--why: the candidates beside the chosen launch, with the constraint that ruled each out.
"""

from __future__ import annotations

import json
import math
import re

import pytest
from support import HEADERS, model, says, slow

from autolayers.planner import plan_request
from autolayers.planner.why import why
from autolayers.report.why import why_text
from autolayers.request import Request

GEMMA = HEADERS / "gemma-2-9b-q4_k_m.gguf"
WORDS = ["--gpu", "6GiB", "--ram", "32GiB", "-c", "4096"]


@pytest.mark.slow
def test_the_chosen_one_is_the_plan_and_stands_between() -> None:
    found = why(model("gemma-2-9b-q4_k_m"), request := Request.of(WORDS))
    assert found is not None
    plan = plan_request(model("gemma-2-9b-q4_k_m"), request)
    at = next(i for i, row in enumerate(found.candidates) if row.chosen)
    chosen = found.candidates[at]
    assert (chosen.placement, chosen.n_ctx) == (plan.placement, 4096)
    assert chosen.devices == sum(row.used for row in plan.devices)
    before, after = found.candidates[:at], found.candidates[at + 1 :]
    assert before or after
    assert all("short by" in row.verdict and row.seconds < chosen.seconds for row in before)
    assert all("short by" not in row.verdict for row in after)
    # by less than the error of comparisons
    faster = next(row for row in after if row.seconds < chosen.seconds)
    assert (
        faster.prices[0][1] > chosen.seconds / faster.seconds > 1
        and faster.prices[0][0] in faster.verdict
    )
    # One more GiB, planned for itself, is what is said of it
    more = plan_request(model("gemma-2-9b-q4_k_m"), Request.of(["--gpu", "7GiB", *WORDS[2:]]))
    assert more.placement in found.more


@pytest.mark.slow
def test_a_trace_has_what_was_measured_and_what_was_only_promised() -> None:
    """The chosen launch is among the measured ones, and no promise counts less than it."""
    words = ["--gpu", "2GiB", "--ram", "32GiB", "-c", "4096"]
    found = why(model("gemma-2-9b-q4_k_m:8"), Request.of(words), trace=True)
    (chosen,) = [row for row in found.candidates if row.chosen]
    assert chosen in found.tried and len(found.tried) > 2
    counted = chosen.seconds
    for _, factor in chosen.prices:
        counted *= factor
    assert found.promised and all(each.seconds >= counted * 0.999 for each in found.promised)
    assert any(each.what.startswith("all layers in RAM") for each in found.promised)
    done = says(GEMMA, *WORDS, "--why=all")
    assert "measured, in this order" in done.stdout and " s at best" in done.stdout
    at_best = [float(each) for each in re.findall(r"([\d.]+) s at best", done.stdout)]
    (best,) = re.findall(r"no less than the best, ([\d.]+) s", done.stdout)
    assert float(best) <= min(at_best)
    assert "takes no value but all" in says(GEMMA, *WORDS, "--why=some").stderr
    traced = json.loads(says(GEMMA, *WORDS, "--why=all", "--json").stdout)
    assert traced["promised"] and sum(row["chosen"] for row in traced["tried"]) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # people get slots of their own, and the context that is for them
        slow("llama-3.1-8b-q4_k_m:8", ["--gpu", "12GiB", "--users", "8"]),
        # an input lies in one micro-batch
        slow("bge-m3-f16", ["--gpu", "4GiB", "--ram", "16GiB"]),
        # the next request changes earlier text: the windows' caches are as large as the context
        ("gemma-3-4b-q8_0:8", ["--gpu", "12GiB", "--workload", "agent"]),
    ],
)
def test_the_launch_that_is_explained_is_the_plan(name: str, words: list[str]) -> None:
    request = Request.of(words)
    (chosen,) = [row for row in why(model(name), request).candidates if row.chosen]
    plan = plan_request(model(name), request)
    assert (chosen.placement, chosen.n_ctx) == (plan.placement, plan.breakdown.n_ctx)
    # to the byte, what is held besides on the devices left out
    assert chosen.devices == sum(row.model + row.context + row.compute for row in plan.devices)


@pytest.mark.slow
def test_what_fits_and_was_not_chosen_counts_no_less() -> None:
    """A prompt graph alone leaves the draft out; with -devd none more context fits."""
    draft = HEADERS / "llama-3.2-1b-q8_0.gguf"
    words = ["-md", str(draft), "--gpu", "24GiB,24GiB", "--ram", "64GiB"]
    found = why(model("llama-3.3-70b-q4_k_m"), Request.of(words), trace=True)
    counts = {
        row: row.seconds * math.prod([factor for _, factor in row.prices])
        for row in found.candidates
    }
    (chosen,) = [row for row in found.candidates if row.chosen]
    others = [row for row in found.candidates if not row.chosen and "short" not in row.verdict]
    assert others and all(counts[row] >= counts[chosen] for row in others)
    assert all("MiB" in row.verdict for row in found.candidates if row.n_ctx > chosen.n_ctx)
    # in RAM it would answer later even if it took no memory, so that was never measured
    assert any(each.what == "drafting in RAM" for each in found.promised)
    assert not any("-devd" in row.verdict for row in (*found.candidates, *found.tried))


@pytest.mark.slow
def test_no_verdict_is_a_time_that_is_the_same() -> None:
    """76.28 s beside 76.15 is not why the launch lost: half the context counts."""
    words = ["--gpu", "24GiB,16GiB,8GiB", "--ram", "64GiB"]
    rows = why(model("llama-3.3-70b-q4_k_m"), Request.of(words)).candidates
    assert any("half the context" in row.verdict for row in rows)
    assert not any(row.verdict.startswith("1.00 times") for row in rows)


@pytest.mark.slow
def test_why_fits_on_ten_lines_of_the_command_line() -> None:
    done = says(GEMMA, *WORDS, "--why")
    lines = done.stdout.splitlines()
    assert (
        done.returncode == 0
        and len(lines) <= 10
        and sum(line.startswith("*") for line in lines) == 1
    )
    assert says("explain", GEMMA, *WORDS).stdout == done.stdout
    answer = json.loads(says(GEMMA, *WORDS, "--why", "--json").stdout)
    plain = json.loads(says(GEMMA, *WORDS, "--json").stdout)
    assert {key: answer.get(key) for key in plain} == plain
    assert [row["chosen"] for row in answer["candidates"]].count(
        True
    ) == 1 and "GiB more" in answer["one_more_gib"]


def test_the_slots_that_lost_are_named_with_what_they_count() -> None:
    """Sixteen people on a small card: a slot for each is not what serves them best."""
    words = ["--gpu", "2GiB", "--ram", "32GiB", "--users", "16"]
    found = why(model("llama-3.1-8b-q4_k_m:8"), request := Request.of(words))
    (best, least), *others = found.decided
    plan = plan_request(model("llama-3.1-8b-q4_k_m:8"), request)
    assert best.split()[0] == str(plan.params.n_parallel) != "16"
    assert [seconds for _, seconds in others] == sorted(seconds for _, seconds in others)
    assert dict(others)["16 slots"] > least
    assert f": {best} {least:.2f} s, {others[0][0]} {others[0][1]:.2f} s" in why_text(found)


@pytest.mark.parametrize(
    "words", [["--gpu", "1GiB", "--ram", "2GiB", "-ngl", "99"], ["-dev", "none", "--ram", "32GiB"]]
)
def test_why_marks_one_row_at_the_edges(words: list[str]) -> None:
    done = says(GEMMA, *words, "--why")
    assert done.returncode in (0, 5) and done.stdout.count("\n*") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # -wgt 1
        ("qwen3-30b-a3b-q4_k_m:4", ["--engine", "ik_llama.cpp", "--gpu", "2GiB", "-c", "4096"]),
        slow("qwen3.6-27b-q4_k_m:16", ["--llama-build", "10218", "--gpu", "3GiB", "-c", "8192"]),
    ],
)
def test_the_flag_that_a_plan_adds_is_in_what_is_explained(name: str, words: list[str]) -> None:
    request = Request.of([*words, "--ram", "64GiB"], {})
    found, plan = why(model(name), request), plan_request(model(name), request)
    chosen = next(row for row in found.candidates if row.chosen)
    assert (chosen.placement, chosen.n_ctx) == (plan.placement, plan.breakdown.n_ctx)
