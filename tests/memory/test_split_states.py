"""A server with -sm tensor would be planned, start, and end with its first token.

Which launches llama-server b11549 ended was seen on simulated devices (test_in_use.py starts some).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import FIXTURES, gpus, says, slow

import autolayers
from autolayers import LaunchRefused
from autolayers.builds import Rules
from autolayers.ggml.tensor import Buffer, Tensor
from autolayers.memory.graphs.split_states import abort

E4B, NEXT = "gemma-4-e4b-q4_k_m", "qwen3-next-80b-a3b-q4_k_m"


def path(name: str) -> Path:
    return next(FIXTURES.glob(f"**/{name}.gguf"))


def ends(name: str, words: str, gib: tuple[int, ...], build: int = 11549) -> str:
    """Why the launch ends, "" if it does not."""
    model = autolayers.read_model(path(name))
    devices = gpus(*[1024 * size for size in gib])
    try:
        autolayers.estimate(model, ["-sm", "tensor", *words.split()], devices=devices, build=build)
    except LaunchRefused as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(
    ("name", "words", "gib", "up"),
    [
        slow(E4B, "-c 8192", (24, 16), True),
        slow(E4B, "-c 8192", (24, 24), True),
        slow(E4B, "-c 8192", (24, 24, 24), False),
        (E4B, "-c 8192", (24, 24, 24, 24), False),
        slow(E4B, "-c 8192 -ts 1,3", (12, 24), False),
        slow(E4B, "-c 8192 -ts 5,2,1", (32, 12, 12), False),
        slow(NEXT, "-c 8192", (24, 16), True),
        slow(NEXT, "-c 8192", (24, 24), True),
        slow(NEXT, "-c 8192", (24, 24, 24), False),
        slow(NEXT, "-c 8192", (24, 24, 24, 24), True),
        slow(NEXT, "-c 8192 -ts 2,3", (12, 24), False),
        slow(NEXT, "-c 8192 -ts 5,2,2", (32, 12, 12), False),
        ("chameleon-7b", "-c 4096", (24, 24), False),
        ("dflash2", "-c 4096", (24, 24), False),
        ("mtp-qwen3next", "-c 4096", (24, 24), True),
        ("mtp-qwen3next", "-c 4096", (24, 24, 24), False),
        # encoders, too
        ("bge-small-en-q8_0", "-c 512", (24, 24, 24), False),
        ("jina-embeddings-v2-base-f16", "-c 512", (24, 24, 24), False),
        # one head of keys: a single token's row is cut
        ("gemma-3-1b-q8_0", "-c 4096", (24, 24), False),
        ("llama-3.1-8b-q4_k_m", "-c 4096 -ts 5,2,2", (24, 24, 24), True),
    ],
)
def test_slices_that_end_a_server_are_refused(
    name: str, words: str, gib: tuple[int, ...], up: bool
) -> None:
    why = ends(name, words, gib)
    assert bool(why) != up
    expected = r"-sm tensor cannot cut (layer \d+|this graph) over these devices \(\w+: .*\); "
    assert not why or re.match(expected + "llama.cpp aborts while it decodes$", why)


def test_what_measures_or_is_older_is_not_refused() -> None:
    model, devices = autolayers.read_model(path(NEXT)), gpus(*[24576] * 3)
    words = ["-sm", "tensor", "-c", "8192"]
    assert autolayers.estimate(model, words, devices=devices, measuring=True).exact
    assert not ends(NEXT, "-c 8192", (24, 24, 24), Rules.checks_slices.first - 1)


@pytest.mark.parametrize(
    ("bias", "ids", "why"),
    [
        ("ffn_down_exps.bias", "ids", ""),  # added by one device, and then summed
        ("ffn_gate_inp.bias", "ids", ""),  # whole on each
        ("ffn_up_exps.bias", "ids", "its sources are cut at different places"),
        ("ffn_down_exps.bias", "cut ids", "a cut source"),
    ],
)
def test_biases_of_experts_are_added_where_each_device_has_what_it_needs(
    bias: str, ids: str, why: str
) -> None:
    """handle_bin_bcast of ggml-backend-meta.cpp: ADD_ID has a third source."""

    def source(name: str) -> Tensor:
        tensor = Tensor("NONE", "f32", (64, 4, 1, 1))
        tensor.name, tensor.buffer = f"blk.0.{name}", Buffer("CUDA0", 0, 128, host=False)
        return tensor

    def parts(name: str, *_: Any) -> tuple[int, list[tuple[int, list[int]]]]:
        return (0, [(1, [32, 32])]) if "up_exps" in name or "cut" in name else (-1, [])

    sources = (source("hidden"), source(bias), source(ids))
    node = Tensor("ADD_ID", "f32", (64, 4, 1, 1), sources)
    node.backend = 0
    slices: Any = SimpleNamespace(parts=parts)
    found = abort([node], slices)
    assert (why in found) if why else not found


def test_the_number_by_itself_has_no_layer_that_ends_a_server() -> None:
    words = ["-sm", "tensor", "-c", "8192"]
    done = says(path(NEXT), "-q", *words, "--gpu", "3x24GiB", "--ram", "128GiB")
    assert (done.returncode, done.stdout) == (0, "2\n")
    assert [bool(ends(NEXT, f"-c 8192 -ngl {n}", (24, 24, 24))) for n in (2, 3)] == [False, True]


@pytest.mark.slow
def test_a_plan_says_why_no_gpu_is_used() -> None:
    plan = autolayers.plan(
        autolayers.read_model(path(NEXT)),
        ["-sm", "tensor", "-c", "8192"],
        devices=gpus(*[24576] * 3),
    )
    assert plan.n_gpu_layers == 0
    assert any("left idle: -sm tensor cannot cut layer 0" in line for line in plan.reasons)


@pytest.mark.slow
def test_slices_that_end_a_server_are_no_alternative() -> None:
    answer = json.loads(says(path(NEXT), "--gpu", "3xrtx-3090", "-c", "8192", "--json").stdout)
    assert answer["fits"]
    assert "tensor" not in str([answer["flags"], answer["alternatives"], answer["remedies"]])
