"""A promise to users (tokens per second, first token) would be broken.

Slots for people: what each gets, how many there may be, and how many machines.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from support import model, seldom, slow

import autolayers
from autolayers.cli.words import warnings_of
from autolayers.errors import UsageError
from autolayers.planner import plan_request
from autolayers.report.summary import summary
from autolayers.report.table import Style, tokens
from autolayers.report.text import plan_text
from autolayers.request import Request

DENSE = ["--gpu", "rtx-3090", "--ram", "64GiB"]


@cache
def served(name: str, *words: str) -> tuple[autolayers.Plan, dict]:
    plan = autolayers.plan(model(name), list(words))
    return plan, plan.to_dict()["speed"]["requests"]


def test_each_user_has_a_slot_and_a_context() -> None:
    plan, found = served("llama-3.1-8b-q4_k_m:8", *DENSE, "--users", "6", "--ctx-per-user", "16k")
    assert plan.fits and plan.params.n_parallel == 6 and plan.breakdown.n_ctx_seq == 16384
    assert "-np" in plan.flags and found["slots"] == 6 and found["users"] == 6
    assert found["bytes_per_user"] == 16384 * 8 * 2 * 1024 * 2
    assert found["per_request_tokens_per_second"] * 6 > found["total_tokens_per_second"] > 200


def test_more_users_get_less_each_and_more_in_all() -> None:
    _, found = served("llama-3.1-8b-q4_k_m", *DENSE, "--users", "2")
    table = found["table"]
    assert [row["users"] for row in table] == [1, 2, 4, 8, 16, 32]
    for one, more in pairwise(table):
        assert one["per_request_tokens_per_second"] > more["per_request_tokens_per_second"]
        assert one["total_tokens_per_second"] < more["total_tokens_per_second"]
        assert one["seconds_to_first_token"] <= more["seconds_to_first_token"] * 1.06
        assert one["context"] < more["context"]


def test_the_most_users_keep_the_promise_and_one_more_does_not() -> None:
    words = [*DENSE, "--ctx-per-user", "4k", "--min-rate", "40", "--ttft", "5"]
    plan, found = served("llama-3.1-8b-q4_k_m", *words)
    most = found["max_users"]
    assert plan.params.n_parallel == most == found["users"] and not found["table"]
    assert found["per_request_tokens_per_second"] >= 40 and found["seconds_to_first_token"] <= 5
    _, more = served("llama-3.1-8b-q4_k_m", *words, "--users", str(most + 1))
    assert more["max_users"] == most and more["machines"] == 2
    assert more["per_request_tokens_per_second"] < 40 or more["seconds_to_first_token"] > 5


def test_a_promise_that_nobody_can_keep() -> None:
    plan, found = served("llama-3.1-8b-q4_k_m", *DENSE, "--users", "4", "--min-rate", "1000")
    assert found["max_users"] is None and found["machines"] is None
    assert "no number of users gets 1000 tokens/s each here" in plan.reasons


def test_given_slots_stay_and_others_wait() -> None:
    words = [*DENSE, "--users", "8", "--ctx-per-user", "4k"]
    plan, few = served("llama-3.1-8b-q4_k_m", *words, "-np", "2")
    _, each = served("llama-3.1-8b-q4_k_m", *words)
    assert plan.params.n_parallel == 2 and few["slots"] == 2
    assert few["seconds_to_first_token"] > 3 * each["seconds_to_first_token"]
    assert few["per_request_tokens_per_second"] > each["per_request_tokens_per_second"]


@seldom
def test_caches_are_smaller_only_where_weights_would_leave_the_gpu() -> None:
    words = ["--gpu", "4GiB", "--ram", "64GiB", "--ctx-per-user", "8k", "--users"]
    assert served("llama-3.1-8b-q4_k_m:8", *words, "4")[0].params.cache_type_k is None
    plan, _ = served("llama-3.1-8b-q4_k_m:8", *words, "8")
    assert (
        plan.params.cache_type_k == "q8_0" and plan.n_gpu_layers == 9 and not plan.params.overrides
    )
    given, _ = served("llama-3.1-8b-q4_k_m:8", *words, "8", "-ctk", "f16", "-ctv", "f16")
    assert given.params.cache_type_k == "f16"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--users", "0"], "a number of users, 1 to 256"),
        (["--users", "4", "--min-rate", "x"], "tokens per second"),
        (["--users", "4", "--ctx-per-user", "4k", "-c", "8k"], "give one of them"),
        (["--ctx-per-user", "4k"], "is of --users"),
    ],
)
def test_bad_words_are_refused(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        autolayers.plan(model("llama-3.1-8b-q4_k_m:4"), [*DENSE, *words])


def test_the_headline_is_what_each_of_them_gets() -> None:
    plan, found = served("llama-3.1-8b-q4_k_m:8", *DENSE, "--users", "6")
    line = " ".join(plan_text(plan).splitlines()[1:3])
    assert line.startswith(
        f"about {found['per_request_tokens_per_second']:.1f} tokens/s for each of 6 users ("
    )
    assert f"first token within {found['seconds_to_first_token']:.1f} s" in line
    assert f"{found['total_tokens_per_second']:.0f} in all" in line
    alone, _ = served("llama-3.1-8b-q4_k_m:8", *DENSE, "--users", "1")
    assert " tokens/s for one user (" in plan_text(alone).splitlines()[1]


@seldom
def test_more_people_than_the_gpu_has_room_for_wait_in_the_queue() -> None:
    """200 slots would send layers to RAM, for a token in seconds to each: nobody launches that."""
    words = ["--gpu", "4GiB", "--ram", "64GiB", "--users", "200"]
    found, answer = served("qwen3-30b-a3b-q4_k_m:8", *words)
    assert found.fits and found.n_gpu_layers == 9 and not found.params.overrides
    assert 4 <= answer["slots"] < 64 and answer["per_request_tokens_per_second"] > 10
    assert any("wait in llama-server's queue" in line for line in found.reasons)
    assert answer["bytes_per_user"] == 0


@pytest.mark.slow
def test_too_many_are_told_how_many_can_be_served() -> None:
    plan, _ = served("llama-3.1-8b-q4_k_m:8", *DENSE, "--users", "6")
    assert not any("users at once" in line for line in plan.warnings)
    words = ["--gpu", "1GiB", "--ram", "64GiB", "--users", "100", "--cores", "4"]
    plan, found = served("llama-3.3-70b-q4_k_m:4", *words)
    assert found["per_request_tokens_per_second"] < 3
    assert any("100 users at once get" in line for line in plan.warnings)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-3.3-70b-q4_k_m:12", "--gpu 2GiB --ram 64GiB --users 100 --cores 4"),
        slow("llama-3.1-8b-q4_k_m:12", "--gpu 1500MiB --ram 8GiB --users 200"),
    ],
)
@pytest.mark.slow
def test_weights_in_ram_get_the_fewest_slots_that_serve_as_much(name: str, words: str) -> None:
    """A slot for each would send the weights to RAM for their caches, or not fit at all."""
    plan, found = served(name, *words.split())
    every, each = served(name, *words.split(), "-np", words.partition("--users ")[2].split()[0])
    assert plan.fits and plan.n_gpu_layers and 1 <= found["slots"] <= 12
    assert not every.fits or (
        found["total_tokens_per_second"] > 2 * each["total_tokens_per_second"]
    )
    assert any("with more, all of them together would get less" in line for line in plan.reasons)


@pytest.mark.slow
def test_some_wait_where_a_slot_for_each_is_slower_than_people_read() -> None:
    """16 slots give 2 % more tokens in all, at 2.2 tokens/s for each."""
    words = ["--gpu", "2GiB", "--ram", "64GiB", "--users", "16"]
    _, found = served("deepseek-v2-lite-q4_k_m", *words)
    _, every = served("deepseek-v2-lite-q4_k_m", *words, "-np", "16")
    total, each = "total_tokens_per_second", "per_request_tokens_per_second"
    assert found["slots"] == 4 and found[total] < every[total] < 1.1 * found[total]
    assert every[each] < 3 and found[each] > 8


@seldom
def test_weights_do_not_leave_the_gpus_for_a_slot_more() -> None:
    """An eleventh slot would give 1 % more in all, and each of them a tenth less."""
    words = ["--gpu", "2xrtx-3060", "--ram", "8GiB", "--users", "30", "--ctx-per-user", "8k"]
    plan, found = served("qwen3-30b-a3b-q4_k_m", *words)
    assert found["slots"] == 10 and plan.n_gpu_layers == 49 and not plan.params.overrides


@pytest.mark.slow
def test_users_get_the_most_slots_with_all_weights_on_the_gpu() -> None:
    words = ["--gpu", "2GiB", "--ram", "32GiB", "--users", "60"]
    plan, found = served("llama-3.1-8b-q4_k_m:4", *words)
    assert plan.n_gpu_layers == 5 and not plan.params.overrides
    more, _ = served("llama-3.1-8b-q4_k_m:4", *words, "-np", str(found["slots"] + 1))
    assert more.n_gpu_layers < 5 or more.params.overrides
    assert any("with more, weights would leave the GPUs" in line for line in plan.reasons)


@pytest.mark.slow
def test_servers_of_their_own_are_offered_where_they_serve_more() -> None:
    """One model on two cards computes on one after the other; a small one leaves a card idle."""
    words = ["--gpu", "2xrtx-3090", "--ram", "64GiB", "--users", "16"]
    found = plan_request(model("llama-3.1-8b-q4_k_m"), Request.of(words), explain=True)
    (other,) = [each for each in found.alternatives if each.servers > 1]
    assert other.servers == 2 and other.to_dict()["servers"] == 2
    assert "-dev CUDA0" in " ".join(other.flags) and "-np 8" in " ".join(other.flags)
    assert other.note.startswith("2 servers for 8 users each, the first on -dev CUDA0, the last on")
    assert other.speed.generation > 1.1 * found.speed.generation
    # the promised rate is that of one server on one card
    alone = autolayers.plan(
        model("llama-3.1-8b-q4_k_m"), ["--gpu", "rtx-3090", "--ram", "32GiB", "--users", "8"]
    )
    assert other.speed.generation == pytest.approx(2 * alone.speed.generation)
    assert alone.to_dict()["speed"]["requests"]["total_tokens_per_second"] == pytest.approx(
        float(other.note.split(" in all")[0].split()[-1]) / 2, rel=0.02
    )


@pytest.mark.parametrize(
    "words",
    [
        "--gpu rtx-3090,rtx-3060 --users 16",  # cards of two kinds
        slow("--gpu 2xrtx-3090 --users 16 -ts 1,1"),  # a split that was asked for
        slow("--gpu 2xrtx-3090"),  # one person
        "--gpu 2xrtx-3090 --users 1",
    ],
)
def test_no_servers_of_their_own_where_the_cards_are_not_alike_or_flags_place_them(
    words: str,
) -> None:
    request = Request.of([*words.split(), "--ram", "64GiB"])
    found = plan_request(model("llama-3.1-8b-q4_k_m:8"), request, explain=True)
    assert all(each.servers == 1 for each in found.alternatives)


@pytest.mark.slow
def test_a_promise_that_is_not_kept_is_the_second_line_and_a_warning() -> None:
    """It was said in --table alone, and a plan of 31.8 tokens/s for `--min-rate 60` was "FITS"."""
    words = [*DENSE, "--users", "30", "--ctx-per-user", "4k", "--min-rate", "120"]
    plan, found = served("llama-3.1-8b-q4_k_m:8", *words)
    rate, most = found["per_request_tokens_per_second"], found["max_users"]
    assert plan.fits and rate < 120 and 1 < most < 30
    said = (
        f"--min-rate 120 is not kept: {rate:.1f} tokens/s each; at most {most} users get it here, "
        f"and 30 need {found['machines']} such machines"
    )
    assert plan.warnings[0] == said == plan.to_dict()["warnings"][0]
    for text in (summary(plan, Style(width=200)), plan_text(plan, Style(width=200))):
        lines = text.splitlines()
        assert f"! {said}" in lines[:4] and text.count(said) == 1
    kept, _ = served("llama-3.1-8b-q4_k_m:8", *words[:-1], "10")
    assert not any("is not kept" in line for line in kept.warnings)
    late, found = served("llama-3.1-8b-q4_k_m:8", *DENSE, "--users", "2", "--ttft", "0.001")
    assert "--ttft 0.001 is not kept: the first token within " in late.warnings[0]
    assert late.warnings[0].endswith("; no number of users gets it here")
    assert late.warnings[0] in warnings_of(late)


def test_a_launch_for_users_has_one_total() -> None:
    """llama.cpp alone was said by tokens while all answer, the plan by answers with their prompts:
    1653 beside 975, of which the plan was the faster one."""
    words = [*DENSE, "--users", "8", "--ctx-per-user", "4k"]
    plan = autolayers.plan(model("llama-3.1-8b-q4_k_m:8"), words, explain=True)
    total = plan.to_dict()["speed"]["requests"]["total_tokens_per_second"]
    choice = plan.to_dict()["fit"]
    alone = choice["speed"]["requests"]
    assert alone["users"] == 8 and 0 < alone["total_tokens_per_second"] <= total * 1.01
    short, full = summary(plan, Style(width=200)), plan_text(plan, Style(width=200))
    assert f"{total:.0f} in all" in short and f"here {tokens(total)}" in full
    assert "all together" not in short + full


@pytest.mark.parametrize(
    ("users", "slots"),
    [
        slow(3, 2),
        slow(5, 4),
        (6, 4),
        slow(10, 8),
        slow(24, 16),
        slow(33, 32),
        slow(65, 64),
        slow(200, 128),
    ],
)
def test_people_get_slots_that_llama_cpp_accepts(users: int, slots: int) -> None:
    """Mean pooling aborts unless the micro-batch of 2048 is a multiple of the slots."""
    plan, found = served("nomic-embed-text-v1.5-f16", *DENSE, "--users", str(users))
    assert plan.fits and plan.params.n_parallel == slots == found["slots"]
    assert any("micro-batch must be a multiple" in reason for reason in plan.reasons)
