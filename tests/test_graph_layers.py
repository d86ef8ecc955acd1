"""Equal layers are simulated a few times only; the sizes are those of simulating every one of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import autolayers
from autolayers.arguments import parse
from autolayers.devices.device import Device
from autolayers.memory import estimate
from autolayers.memory.graph import shorten

HEADERS = Path(__file__).parent.parent / "fixtures" / "headers"
# deep enough to have layers to skip
DEEP = ("llama-3.1-8b-q4_k_m", "llama-3.2-1b-q8_0", "qwen3-8b-q4_k_m", "qwen2.5-7b-q4_k_m", "gemma-3-4b-q8_0", "gemma-2-9b-q4_k_m",
        "gpt-oss-20b-mxfp4", "qwen3-30b-a3b-q4_k_m", "deepseek-v2-lite-q4_k_m", "phi-3-mini-q4_k_m", "mamba2-2.7b-q4_k_m",
        "granite-4.0-h-small-q4_k_m", "qwen3-next-80b-a3b-q4_k_m", "llama-4-scout-q4_k_m")


@cache
def model(name: str) -> autolayers.Model:
    return autolayers.read_model(str(HEADERS / f"{name}.gguf"))


def sizes(name: str, args: str, n_gpus: int, every_layer: bool) -> tuple[int, ...]:
    devices = [Device.hypothetical("24GiB", f"CUDA{i}") for i in range(n_gpus)]
    with pytest.MonkeyPatch.context() as patch:
        if every_layer:
            patch.setattr(shorten.Shortened, "_choose", lambda self: self.build_all())
            patch.setitem(model(name).memo, "layers", {})
        found = estimate(model(name), parse(args.split()).params, devices, runtime=True)
    peak = found.runtime_peak or {}
    return (*(usage.compute for usage in found.devices.values()), found.host.compute, *peak.values())


@st.composite
def launches(draw: st.DrawFn) -> tuple[str, str, int]:
    name = draw(st.sampled_from(DEEP))
    n = model(name).hparams.n_layer
    words = ["-c", str(draw(st.sampled_from([2048, 8192, 32768]))), "-ngl", str(draw(st.one_of(st.just(999), st.integers(0, n))))]
    for flag, values in (("-np", [1, 2, 4, 8]), ("-ub", [16, 128, 2048]), ("-fa", ["on", "off"]), ("-ctk", ["q8_0", "bf16"])):
        if draw(st.booleans()):
            words += [flag, str(draw(st.sampled_from(values)))]
    for flag in ("-kvu", "-nkvo", "--swa-full", "--no-op-offload", "-cmoe"):
        if draw(st.integers(0, 5)) == 0:
            words.append(flag)
    if draw(st.integers(0, 3)) == 0:
        words += ["-ncmoe", str(draw(st.integers(1, n)))]
    return name, " ".join(words), draw(st.integers(1, 3))


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(launches())
def test_skipping_equal_layers_changes_nothing(launch: tuple[str, str, int]) -> None:
    try:
        skipped = sizes(*launch, every_layer=False)
    except autolayers.LaunchRefused:
        assume(False)
        return
    assert skipped == sizes(*launch, every_layer=True)


@pytest.mark.parametrize("name", ["llama-3.1-8b-q4_k_m", "gemma-3-4b-q8_0", "qwen3-30b-a3b-q4_k_m"])
def test_most_layers_are_skipped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the property above would say nothing."""
    built: list[int] = []
    choose = shorten.Shortened._choose

    def counted(self: shorten.Shortened) -> None:
        choose(self)
        built.append(len(self.layers))

    monkeypatch.setattr(shorten.Shortened, "_choose", counted)
    estimate(model(name), parse(["-c", "8192", "-fa", "on"]).params, [Device.hypothetical("24GiB")])
    assert max(built) < model(name).hparams.n_layer * 2 // 3
