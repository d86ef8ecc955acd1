"""Equal layers are built once; the sizes, and what is taken and given back, are those of building every one of them."""

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
from autolayers.memory.graph import reserve, shorten
from autolayers.memory.graph.allocator import Arena, Script, record

FIXTURES = Path(__file__).parent.parent / "fixtures"
# deep enough to have layers to skip
DEEP = ("llama-3.1-8b-q4_k_m", "llama-3.2-1b-q8_0", "qwen3-8b-q4_k_m", "qwen2.5-7b-q4_k_m", "gemma-3-4b-q8_0", "gemma-2-9b-q4_k_m",
        "gpt-oss-20b-mxfp4", "qwen3-30b-a3b-q4_k_m", "deepseek-v2-lite-q4_k_m", "phi-3-mini-q4_k_m", "mamba2-2.7b-q4_k_m",
        "granite-4.0-h-small-q4_k_m", "qwen3-next-80b-a3b-q4_k_m", "llama-4-scout-q4_k_m", "gemma-4-e4b-q4_k_m", "gemma-3n-e2b-q8_0",
        "nemotron-3-nano-30b-a3b-q4_k_m", "jamba-1.5-mini-q4_k_m", "minimax-01-456b", "kimi-linear-48b-a3b-q4_k_m", "rwkv7-2.9b-q4_k_m",
        "falcon-h1-7b-q4_k_m")


@cache
def model(name: str) -> autolayers.Model:
    return autolayers.read_model(next(path for path in FIXTURES.glob(f"**/headers/{name}.gguf")))


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


def told(walk: shorten._Walk, segment: int) -> list[tuple[object, ...]]:
    """What a layer takes and gives back, its own blocks by number, those of others by what they are to it."""
    own: dict[int, int] = {}
    found: list[tuple[object, ...]] = []
    for block, what, size in walk.script.segments[segment]:
        if what >= 0:
            own[block] = len(own)
        handed = walk.handed[segment - 1]
        found.append((own.get(block, "handed on" if block in handed else "early" if block in walk.early.get(segment, ()) else "shared"),
                      handed.index(block) if block in handed else 0, what, size))
    return found


@pytest.mark.parametrize(("name", "args", "n_gpus"), [
    ("llama-3.1-8b-q4_k_m", "-ngl 20 -c 8192", 2),
    ("gemma-4-e4b-q4_k_m", "-c 8192 -ts 3,1,2", 3),                     # copies for every layer at the start of a split
    ("gemma-3n-e2b-q8_0", "-c 8192 -np 2 -fa off -nkvo", 2),
    ("nemotron-3-nano-30b-a3b-q4_k_m", "-c 8192 -ncmoe 20", 2),         # states fetched two layers ahead
    ("jamba-1.5-mini-q4_k_m", "-c 2048 -np 2 -ngl 16 -kvu", 1),         # copied by one layer for the next
    ("minimax-01-456b", "-c 2048 -np 4 -ngl 76 -ncmoe 40", 3),          # the next but last layer lets go of what they all read
    ("qwen3-next-80b-a3b-q4_k_m", "-c 8192 -np 4 -cmoe", 2),
    ("rwkv7-2.9b-q4_k_m", "-ngl 20 -c 8192 -np 2", 2),
])
def test_layers_left_out_would_do_just_what_stands_for_them(name: str, args: str, n_gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = shorten.walk

    def walks(every_layer: bool) -> list[shorten._Walk]:
        found: list[shorten._Walk] = []

        def kept(script: Script, short: shorten.Shortened, arenas: list[Arena]) -> bool:
            done = walk(script, short, arenas)
            if done:
                found.append(shorten._Walk(script, short, arenas))
            return done

        monkeypatch.setattr(reserve, "walk", kept)
        monkeypatch.setattr(reserve, "record", lambda *args: record(*args[:4]))
        sizes(name, args, n_gpus, every_layer)
        return found

    left_out = 0
    for short, full in zip(walks(every_layer=False), walks(every_layer=True), strict=True):
        for segment, chain in (short._standing() or {}).items():
            for il, stands in enumerate(chain, short.short.layers[segment - 1] + 1):
                assert told(short, stands) == told(full, il + 1), il
                left_out += 1
    assert left_out > model(name).hparams.n_layer // 4


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
    assert max(built) < model(name).hparams.n_layer // 2
