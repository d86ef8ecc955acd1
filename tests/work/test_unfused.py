"""Owners of older builds would be promised the speed of a newer one.

A delta net that builds up to b10678 compute in single operations, with several slots and layers
in RAM.
"""

from __future__ import annotations

import pytest
from support import gpus, model, slow

import autolayers
from autolayers.builds import rules
from autolayers.flags.parse import parse
from autolayers.graph import builder
from autolayers.memory.cache import allocate
from autolayers.memory.context import resolve
from autolayers.memory.graphs.laid_out import GraphCache
from autolayers.memory.graphs.prepare import prepare
from autolayers.memory.graphs.reserve import reserve
from autolayers.memory.loaded import Loaded
from autolayers.memory.weights import place_weights
from autolayers.work.unfused import parts

# llama.cpp b9849 by Vulkan: GPU, -ngl, slots, prompt tokens/s (one machine each)
MEASURED = (
    slow("rtx-3060-laptop-6g", 18, 4, 42.0),
    slow("rtx-3060-laptop-6g", 20, 1, 538.4),
    slow("gtx-1070-ti", 31, 4, 120.5),
    ("gtx-1070-ti", 33, 1, 240.9),
)


@pytest.mark.parametrize(("gpu", "layers", "slots", "rate"), MEASURED)
def test_measured_prompts_are_within_a_factor_of_two(
    gpu: str, layers: int, slots: int, rate: float
) -> None:
    """Within a factor of two; the doubt is said to be larger where the operations are apart."""
    words = (
        f"-ngl {layers} -c 8192 -np {slots} --op-offload --llama-build 9849 --gpu {gpu} --backend "
        f"vulkan"
    )
    words += " --ram 32GiB"
    speed = autolayers.plan(model("qwen35-9b"), words.split()).speed
    assert 0.5 < speed.prompt / rate < 2
    assert (speed.prompt_spread > 8) == (slots > 1)


# whether llama.cpp's own probes part it: with 32 tokens or more, layers in RAM, op offload, and up
# to b10678
CASES = [
    (name, f"-c 1024 -ngl {layers} {more}", build)
    for name in ("qwen35-dense", "qwen3next-moe", "kimi-linear-moe")
    for layers in (0, 1, 99)
    for more in ("-np 1", "-np 2", "-np 4 -kvu", "-np 4 --no-op-offload")
    for build in (9849, 10666, 10679, 11549)
]


@pytest.mark.slow
def test_when_it_is_parted_is_what_the_probes_say() -> None:
    found = set()
    for name, words, build in CASES:
        known, params = rules(build), parse(words.split()).params
        whole = model(name).read_by(known)
        context = resolve(whole, params, known)
        placement = place_weights(whole, params, gpus(8192), rules=known)
        memory = allocate(whole, context, placement)
        loaded = Loaded(whole, params, context, placement, memory)
        setting = prepare(loaded, builder(whole.architecture), GraphCache())  # type: ignore[arg-type]
        apart = not reserve(setting).fused["gdn_ch"]
        assert parts(whole, params, known, placement) == apart, (name, words, build)
        found.add(apart)
    assert found == {True, False}


def planned(*words: str) -> autolayers.Plan:
    """The first 16 layers of a 27B, some of them in RAM."""
    return autolayers.plan(
        model("qwen3.6-27b-q4_k_m:16"), ["--gpu", "3GiB", "--ram", "32GiB", "-c", "8192", *words]
    )


def said(lines: tuple[str, ...]) -> str:
    return " ".join(line for line in lines if "delta net" in line)


def test_a_plan_takes_one_slot_and_says_so() -> None:
    plan = planned("--llama-build", "10218")
    assert plan.params.n_parallel == 1 and "-np 1: with more slots" in said(plan.reasons)
    assert not said(plan.warnings)


def test_builds_that_keep_it_fused_are_planned_as_before() -> None:
    plan = planned("--llama-build", "11549")
    assert plan.params.n_parallel is None and not said(plan.reasons) + said(plan.warnings)


@pytest.mark.slow
def test_several_slots_leave_what_is_in_ram_to_the_processor() -> None:
    layers = ("--llama-build", "10218", "-np", "4", "-ngl", "6")
    plan = planned(*layers)
    assert plan.params.op_offload is False and "--no-op-offload: with" in said(plan.reasons)
    given = planned(*layers, "--op-offload")
    assert "-np 1 or --no-op-offload avoids it" in said(given.warnings) and not said(given.reasons)
    assert plan.speed.prompt > given.speed.prompt
    assert "prompts about 37.4 tokens/s" in said(given.warnings)
    # where FFN weights may be in RAM too, fewer layers have it there, which is faster than either
    solved = planned(*layers[:-2])
    assert solved.params.op_offload is None and solved.speed.prompt > plan.speed.prompt


def test_a_way_out_is_named_where_it_is_faster() -> None:
    """Without op offload the FFN weights in RAM would be computed there: 46 tokens/s."""
    words = ("--llama-build", "10218", "-np", "4")
    plan = planned(*words)
    assert "tokens/s; -np 1 avoids it, as do builds from b10679 on" in said(plan.warnings)
    assert planned(*words, *plan.flags, "--no-op-offload").speed.prompt < plan.speed.prompt / 2
    assert planned("--llama-build", "10218", *plan.flags, "-np", "1").speed.prompt > (
        3 * plan.speed.prompt
    )
