"""Owners of two GPUs would wonder why one is idle.

A GPU that nothing is put on has a line that says why; one that the user left out has none.
"""

from __future__ import annotations

import re

import pytest
from support import HEADERS, few, few_rows

import autolayers

MODEL = str(HEADERS / "llama-3.1-8b-q4_k_m.gguf")
LARGE = str(HEADERS / "llama-3.3-70b-q4_k_m.gguf")
SMALL = str(HEADERS / "llama-3.2-1b-q8_0.gguf")


def plan(model: str, *words: str) -> autolayers.Plan:
    return autolayers.plan(model, [*words, "--ram", "64GiB"])


def used(found: autolayers.Plan) -> dict[str, int]:
    return {device.name: device.used for device in found.devices}


def test_a_slower_card_is_left_idle_with_what_it_would_cost() -> None:
    found = plan(MODEL, "--gpu", "rtx-4090,rtx-3060")
    assert used(found)["CUDA1"] == 0
    (line,) = found.idle
    seconds = re.fullmatch(
        r"CUDA1 is left idle: a request would take (\S+) s with it, instead of "
        r"(\S+) s",
        line,
    )
    assert seconds and line in found.reasons
    both = plan(MODEL, "--gpu", "rtx-4090,rtx-3060", "-ts", "2,1", "-c", str(found.params.n_ctx))
    assert float(seconds[2]) == round(found.speed.request, 1) < float(seconds[1])
    assert used(both)["CUDA1"] > 0 and both.speed.request > found.speed.request


def test_cards_that_are_alike_have_one_line() -> None:
    (line,) = plan(SMALL, "--gpu", "rtx-4090,rtx-3060,rtx-3060").idle
    assert line.startswith("CUDA1 and CUDA2 are left idle: a request would take ")
    assert " s with one of them, instead of " in line


def test_a_card_without_room_for_a_layer_says_so() -> None:
    found = plan(SMALL, "--gpu", "h100,500MiB")
    assert used(found)["CUDA1"] == 0
    assert found.idle == ("CUDA1 is left idle: no layer fits into the 500.00 MiB that are free",)


@pytest.mark.parametrize("gpus", few(2, ["700MiB", "700MiB,600MiB"]))
def test_cards_too_small_for_any_launch_are_left_out(gpus: str) -> None:
    """Even -ngl 0 has its compute buffer on the first device."""
    found = plan(MODEL, "--gpu", gpus)
    assert found.fits and found.params.device == () and not any(used(found).values())
    assert len(found.idle) == len(gpus.split(","))
    assert not plan(MODEL, "--gpu", gpus, "-ngl", "0").fits


@pytest.mark.parametrize(
    "words", [("-dev", "CUDA0"), ("-ts", "1,0"), ("-sm", "none"), ("-ngl", "0"), ("-dev", "none")]
)
def test_what_the_user_left_out_needs_no_reason(words: tuple[str, ...]) -> None:
    assert plan(MODEL, "--gpu", "rtx-4090,rtx-3060", *words).idle == ()


def test_devices_in_use_have_no_line() -> None:
    assert plan(LARGE, "--gpu", "2xrtx-3090").idle == () == plan(MODEL, "--gpu", "8GiB").idle


def test_a_device_that_layers_fit_on_is_not_said_to_be_full() -> None:
    """A mixture on a server over a slow network: some layers fit, but the processor here is
    faster."""
    server = autolayers.Device(
        "RPC0", 8 << 30, 8 << 30, "box:50052", backend="RPC", kind="rpc", link=1e6, latency=0.1
    )
    found = autolayers.plan(
        str(HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"),
        ["--rpc", "box:50052"],
        devices=[server],
        host=autolayers.Host.hypothetical("64GiB"),
    )
    assert used(found) == {"RPC0": 0}
    (line,) = found.idle
    assert line.startswith("RPC0 (box:50052) is left idle: a request would take ")


def test_what_an_idle_card_costs_is_that_of_one_layer_on_it() -> None:
    found = plan(MODEL, "--gpu", "rtx-3090,rtx-3060,gtx-1070", "-c", "8192")
    assert used(found)["CUDA1"] == 0 == used(found)["CUDA2"]
    for line, split in zip(found.idle, ("32,1", "32,0,1"), strict=True):
        one = plan(
            MODEL, "--gpu", "rtx-3090,rtx-3060,gtx-1070", "-c", "8192", "-ngl", "33", "-ts", split
        )
        assert (
            f"would take {one.speed.request:.1f} s with it, instead of {found.speed.request:.1f} s"
            in line
        )


def test_an_integrated_gpu_beside_another_is_left_out_by_llama_cpp() -> None:
    found = autolayers.plan(MODEL, ["--gpu", "rtx-3090,strix-halo-64g"])
    assert found.idle == (
        "ROCm0 is left idle: llama.cpp uses an integrated GPU only where there "
        "is no other, or -dev "
        "names it",
    )
    both = autolayers.plan(
        MODEL, ["--gpu", "rtx-3090,strix-halo-64g", "-dev", "CUDA0,ROCm0", "-ts", "1,1"]
    )
    assert used(both)["ROCm0"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "main"),
    few_rows(
        2, [("rtx-3090,rtx-3060,gtx-1070", None), ("rtx-3060,rtx-3090", 1), ("2xrtx-3090", None)]
    ),
)
def test_a_model_that_fits_on_one_gpu_leaves_the_others_out(gpus: str, main: int | None) -> None:
    """A GPU that only gets no layers costs time: -ts 49 is slower than -sm none."""
    model = str(HEADERS / "qwen3-30b-a3b-q4_k_m.gguf")
    found = plan(model, "--gpu", gpus, "-c", "16384")
    assert (found.params.split_mode, found.params.main_gpu, found.params.tensor_split) == (
        "none",
        main,
        None,
    )
    split = ",".join(
        ["0"] * (main or 0) + ["49"] + ["0"] * (gpus.count(",") + gpus.count("2x") - (main or 0))
    )
    given = plan(
        model, "--gpu", gpus, "-c", "16384", "-ngl", "49", "-ts", split, "-b", "2048", "-ub", "2048"
    )
    assert given.fits and found.speed.request < given.speed.request
    assert len(found.idle) == len(found.devices) - 1


def test_no_context_is_given_up_for_one_gpu_unless_the_others_cost_more() -> None:
    """Below 32k each halving may save 4 % of the time, above that one per cent."""
    both, one = (plan(MODEL, "--gpu", "8GiB,8GiB", *words) for words in ((), ("-sm", "none")))
    assert both.params.split_mode is None and both.params.n_ctx > 32768 > one.params.n_ctx
    found, one = (plan(MODEL, "--gpu", "2xrtx-3060", *words) for words in ((), ("-sm", "none")))
    assert found.params.split_mode == "none" and found.params.n_ctx == one.params.n_ctx > 32768


def test_a_first_gpu_that_is_too_small_does_not_leave_the_second_idle() -> None:
    """Every launch has a buffer on the first device, unless it is left out."""
    found = autolayers.plan(MODEL, ["--gpu", "500MiB,4GiB", "--ram", "32GiB", "-c", "8192"])
    assert found.fits and (found.params.split_mode, found.params.main_gpu) == ("none", 1)
    assert used(found)["CUDA1"] > 2 << 30 and "CUDA0" in found.idle[0]
