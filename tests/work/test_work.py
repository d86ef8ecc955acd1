"""The search would prefer launches by work that they do not have.

Who computes what: a launch that is not measured has the work of the same launch measured.
"""

from __future__ import annotations

import pytest
from support import model, slow

import autolayers
from autolayers.flags.policy import read
from autolayers.machine import Device, Machine
from autolayers.planner.evaluate import FULL, Evaluator
from autolayers.work.work import HOST, Load

MODELS = (
    "llama-3.1-8b-q4_k_m",
    "qwen3-30b-a3b-q4_k_m",
    "qwen3-next-80b-a3b-q4_k_m",
    "gpt-oss-20b-mxfp4",
    "gemma-3-4b-q8_0",
    "mamba2-2.7b-q4_k_m",
    "deepseek-v2-lite-q4_k_m",
    "granite-4.0-h-small-q4_k_m",
)
LAUNCHES = (
    (1, "-ngl 99"),
    (2, "-ngl 12"),
    (1, "-ngl 0"),
    (1, "-ngl 99 -nkvo"),
    (1, "-ngl 99 -nkvo -fa off"),
    (2, "-ngl 99 -fa off"),
    (1, "-ngl 99 -ncmoe 12"),
    (1, "-ngl 99 -ncffn 9"),
    (1, "-ngl 20 --no-op-offload"),
    (1, "-ngl 99 -ctk q8_0 -ctv q4_0 --llama-build 10488"),
    (1, "-ngl 99 -ctk iq4_nl -ctv iq4_nl"),
    (0, ""),
)


# Of the pairs every run takes each model with one or two launches and each launch with one or two
# models, -m slow all
PAIRS = [
    pytest.param(
        name,
        launch,
        marks=() if (i + j) % 7 == 0 else pytest.mark.slow,
        id=f"{name}-{launch[0]} {launch[1]}",
    )
    for i, name in enumerate(MODELS)
    for j, launch in enumerate(LAUNCHES)
]


def evaluator(name: str, words: str, gpus: int) -> tuple[Evaluator, autolayers.Params]:
    params, policy = read(f"-c 8192 -np 1 {words}".split(), None)
    devices = tuple(Device(f"CUDA{i}", 64 << 30, 64 << 30, bandwidth=936e9) for i in range(gpus))
    machine = Machine(devices, {device.name: device.free for device in devices})
    return Evaluator.of(model(name), machine, policy.build), params


def summed(load: Load) -> dict[tuple[str, bool], list[float]]:
    """Bytes, multiply-adds and kernels by place."""
    found: dict[tuple[str, bool], list[float]] = {}
    for row in load.rows:
        known = found.setdefault((row.place, row.copied), [0, 0, 0, 0])
        for i, value in enumerate(
            (row.dense, row.experts, row.work + row.expert_work, row.kernels)
        ):
            known[i] += value
    return {key: values for key, values in found.items() if any(values)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), PAIRS)
def test_a_launch_that_is_not_measured_has_the_work_of_one_that_is(
    name: str, words: tuple[int, str]
) -> None:
    evaluate, params = evaluator(name, words[1], words[0])
    launch = evaluate.candidate(params, FULL)
    if launch is None:
        # DeepSeek's keys and values are of one type
        assert "cache types" in str(evaluate.refusal)
        return
    cost = evaluate.cost()
    homed, own = cost.clock(params, launch.breakdown).work, cost.own(launch).work
    assert (
        homed.token.attention == own.token.attention
        and homed.prompt.attention == own.prompt.attention
    )
    for one, other in ((homed.token, own.token), (homed.prompt, own.prompt)):
        assert (
            abs(one.handovers - other.handovers) <= 0.25 * other.handovers + 2
            and abs(one.hops - other.hops) <= 2
        )
        bytes_of = {key: values[:2] for key, values in summed(other).items() if any(values[:2])}
        assert {
            key: values[:2] for key, values in summed(one).items() if any(values[:2])
        } == bytes_of
    assert cost.speed(launch).generation == pytest.approx(cost.price(launch).generation, rel=0.03)
    assert cost.speed(launch).prompt == pytest.approx(cost.price(launch).prompt, rel=0.03)


@pytest.mark.parametrize(
    ("words", "types"),
    [
        ("-ctk iq4_nl -ctv iq4_nl", "iq4_nl"),
        slow("-ctk q8_0 -ctv q4_0 --llama-build 10488", "q8_0/q4_0"),
    ],
)
def test_attention_without_a_kernel_is_slow_and_said(words: str, types: str) -> None:
    gpu = [Device("CUDA0", 24 << 30, 24 << 30, bandwidth=936e9)]
    found = autolayers.plan(
        model("llama-3.1-8b-q4_k_m"), ["-c", "32768", "-ngl", "33", *words.split()], devices=gpu
    )
    assert (
        f"CUDA0 has no flash attention for {types}: attention of 32 layers runs on the CPU"
        in found.warnings
    )
    plain = autolayers.plan(
        model("llama-3.1-8b-q4_k_m"), ["-c", "32768", "-ctk", "q8_0", "-ctv", "q8_0"], devices=gpu
    )
    assert not any("runs on the CPU" in line for line in plain.warnings)
    assert found.speed.generation_full < plain.speed.generation_full / 5


def test_a_type_without_a_kernel_is_not_chosen() -> None:
    gpu = [Device("CUDA0", 6 << 30, 6 << 30)]
    found = autolayers.plan(
        model("llama-3.1-8b-q4_k_m"), ["-c", "32768", "--kv-types", "f16,q8_0,iq4_nl"], devices=gpu
    )
    assert found.params.cache_type_k != "iq4_nl"


def test_prompts_copy_weights_in_ram_to_the_first_device() -> None:
    evaluate, params = evaluator("qwen3-30b-a3b-q4_k_m", "-ngl 99 -ncmoe 48", 2)
    launch = evaluate.candidate(params, FULL)
    assert launch is not None
    work = evaluate.cost().own(launch).work
    assert {row.place for row in work.prompt.rows if row.copied and row.experts} == {"CUDA0"}
    assert {row.place for row in work.token.rows if row.experts} == {HOST}
