"""Agents' conversations would be dropped from RAM and read again.

Saved conversations: the size of a sequence's state against llama.cpp's own, and the flags that
keep so many.
"""

from __future__ import annotations

import json

import pytest
from support import FIXTURES, MiB, model, slow

import autolayers
from autolayers.flags.parse import parse
from autolayers.memory.estimate import Estimator

ROWS = [json.loads(line) for line in (FIXTURES / "truth" / "states.jsonl").read_text().splitlines()]
GPU = ["--gpu", "24GiB", "--ram", "64GiB"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['args'][:12]}")
def test_states_are_llama_cpps_to_the_byte(row: dict) -> None:
    """llama_state_seq_get_size_ext after so many tokens: of all, and of what a checkpoint keeps."""
    found = Estimator(model(row["model"])).breakdown(parse(row["args"].split()).params, [])
    (state,) = found.saved
    assert [[n, state.size(n), state.checkpoint(n)] for n, _, _ in row["states"]] == row["states"]


def test_llama_servers_slot_file_has_the_state() -> None:
    """POST /slots/0?action=save of fixtures/tiny/chat.gguf wrote 120128 bytes of 300 tokens, 200128
    of 500: three numbers, the tokens with 16 bytes before them, and the state without its magic and
    sequence."""
    tiny = autolayers.read_model(FIXTURES / "tiny" / "chat.gguf")
    (state,) = (
        Estimator(tiny).breakdown(parse(["-c", "2048", "-np", "2", "-ngl", "0"]).params, []).saved
    )
    for tokens, written in ((300, 120128), (500, 200128)):
        assert 12 + 16 + 4 * tokens + state.size(tokens) - 8 == written


def test_a_plan_says_how_many_conversations_its_prompt_cache_keeps() -> None:
    plan = autolayers.plan(
        model("llama-3.1-8b-q4_k_m"), [*GPU, "-c", "16384", "--workload", "12000+506"]
    )
    saved = plan.to_dict()["saved"]
    each = 12506 * (32 * 2 * 2048 + 12) + 32 * 24 + 8 + 4 * 1 + 20
    assert saved["tokens"] == 12506 and saved["bytes"] == each and saved["checkpoint_bytes"] == 0
    assert saved["conversations"] == 8192 * MiB // each == 5


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b-q4_k_m:8", slow("qwen3-next-80b-a3b-q4_k_m:8"), "gemma-3-4b-q8_0:8"]
)
def test_agents_stay_warm_within_the_ram_there_is(name: str) -> None:
    for ram, agents in (("64GiB", 6), ("12GiB", 12)):
        words = ["--gpu", "24GiB", "--ram", ram, "-c", "32768", "--workload", "8k+512"]
        plan = autolayers.plan(model(name), [*words, "--agents", str(agents)])
        saved = plan.saved
        assert saved is not None and plan.fits and plan.host.remaining >= 0
        assert plan.params.cache_ram == -(-saved.each * agents // MiB) and saved.count >= agents
        again = autolayers.plan(model(name), [*words, *plan.flags])
        assert again.saved.count == saved.count
    little = autolayers.plan(
        model(name), ["--gpu", "24GiB", "--ram", "1800MiB", *words[4:], "--agents", "400"]
    )
    assert little.saved is None or little.saved.count < 400
    assert (
        autolayers.plan(model(name), [*words, "--agents", "6", "-cram", "100"]).params.cache_ram
        == 100
    )


def test_a_draft_has_a_state_of_its_own() -> None:
    target, draft = (
        FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf",
        FIXTURES / "headers" / "llama-3.2-1b-q8_0.gguf",
    )
    words = [*GPU, "-c", "16384", "-md", str(draft), "--spec-type", "draft-simple"]
    states = autolayers.plan(str(target), words).breakdown.saved
    assert len(states) == 2 and states[1].cell == 16 * 2 * 1024 + 12
