"""A failure in an alternative would hide the plan that was asked for.

What is tried besides the given launch (fewer devices, other orders, alternatives, advice) may
fail: the answer is that of the given words.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import gpus, model

import autolayers
from autolayers.errors import LaunchRefused, ModelError
from autolayers.flags.params import Params
from autolayers.machine import Machine
from autolayers.planner import advice, explain, plan_in_steps
from autolayers.planner.evaluate import FULL, Evaluator
from autolayers.planner.why import why
from autolayers.request import Request

THREE = ["--gpu", "12GiB,12GiB,12GiB", "--ram", "64GiB", "--backend", "vulkan"]
TO_A_DEVICE = ["-ot", r"token_embd\.weight=Vulkan0"]


@pytest.mark.parametrize(
    "words",
    [
        [*THREE, *TO_A_DEVICE, "-ngl", "999", "-c", "65536", "-np", "1", "-fa", "off"],
        [*THREE, *TO_A_DEVICE],
        [*THREE, *TO_A_DEVICE, "-c", "131072"],
        ["--gpu", "8GiB", "--ram", "16GiB", "-ot", r"token_embd\.weight=CUDA0", "-c", "65536"],
    ],
)
def test_a_tensor_may_be_sent_to_any_device_that_is_there(words: list[str]) -> None:
    found = autolayers.plan(model("llama-3.3-70b-q4_k_m:12"), words, explain=True)
    name = words[words.index("-ot") + 1].partition("=")[2]
    assert next(device for device in found.devices if device.name == name).model > 0


def test_the_devices_that_are_there_are_those_of_the_launch() -> None:
    said = r"unknown buffer type: CUDA7 \(there are: CPU, Vulkan0, Vulkan1, Vulkan2\)"
    with pytest.raises(LaunchRefused, match=said):
        autolayers.plan(model("llama-3.3-70b-q4_k_m:8"), [*THREE, "-ot", "x=CUDA7", "-ngl", "9"])


def test_a_machine_without_the_device_is_left_out_of_a_sweep() -> None:
    machines = [
        autolayers.sweep(
            model("llama-3.2-1b-q8_0:4"),
            ["-ot", "token_embd=CUDA1", "--gpu", gpu],
            contexts=[4096],
            types=["f16"],
        )[0]
        for gpu in ("8GiB", "8GiB,8GiB")
    ]
    assert machines[0].plan is None and "unknown buffer type: CUDA1" in machines[0].refusal
    assert machines[1].plan is not None


def test_the_reason_is_that_of_the_first_launch() -> None:
    devices = tuple(gpus(8192))
    evaluator = Evaluator.of(model("llama-3.2-1b-q8_0:4"), Machine(devices, {"CUDA0": 8 << 30}))
    assert evaluator.candidate(Params(cache_type_v="q4_0", flash_attn="off"), FULL) is None
    assert evaluator.candidate(Params(split_mode="none", main_gpu=7), FULL) is None
    assert "requires flash_attn" in str(evaluator.refusal)


def test_why_has_the_same_reason() -> None:
    with pytest.raises(LaunchRefused, match="unknown buffer type: CUDA7"):
        why(model("llama-3.2-1b-q8_0:4"), Request.of(["--gpu", "8GiB", "-ot", "x=CUDA7"]))


def failing(*_: Any, **__: Any) -> Any:
    raise ModelError("m.gguf: a tensor that only this way needs is not there")


def test_a_failed_alternative_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alternative", "with_pinned_weights"):
        monkeypatch.setattr(explain, name, failing)
    target, words = model("llama-3.2-1b-q8_0:4"), ["--gpu", "1GiB", "--ram", "16GiB", "-c", "16384"]
    found = autolayers.plan(target, words, explain=True)
    assert found.fits and not found.alternatives and found.fit_choice is not None
    assert [*plan_in_steps(target, Request.of(words))][-1].to_dict() == found.to_dict()


def test_failed_advice_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "solve", failing)
    found = autolayers.plan(
        model("llama-3.2-1b-q8_0:4"),
        ["--gpu", "1GiB", "--ram", "1GiB", "-c", "131072"],
        explain=True,
    )
    assert not found.fits and found.devices
