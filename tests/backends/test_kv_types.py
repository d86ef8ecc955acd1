"""One row a type of KV cache: what backends do with it, and which builds have it."""

from __future__ import annotations

import pytest
from support import gpus, model

from autolayers import LaunchRefused, estimate
from autolayers.backends import on
from autolayers.backends.cuda import kv_types as cuda
from autolayers.backends.metal import kv_types as metal
from autolayers.backends.sycl import KV_TYPES as SYCL
from autolayers.backends.vulkan.supported import KV_TYPES as VULKAN
from autolayers.flags.kinds import CACHE_TYPES
from autolayers.flags.parse import parse
from autolayers.ggml.tensor import Graph
from autolayers.machine import Device


@pytest.mark.parametrize("table", [cuda.KV_TYPES, metal.KV_TYPES, VULKAN, SYCL])
def test_every_type_has_a_row(table: dict[str, str]) -> None:
    assert table.keys() == CACHE_TYPES.keys()


@pytest.mark.parametrize(("backend", "lacking"), [
    ("CUDA", {"iq4_nl"}), ("ROCm", {"iq4_nl"}), ("MTL", {"iq4_nl"}), ("Vulkan", set()),
    ("SYCL", {"q4_1", "q5_0", "q5_1", "iq4_nl"})])
def test_flash_attention_of_a_token_with_each_type(backend: str, lacking: set[str]) -> None:
    device = on(Device(f"{backend}0", 1 << 34, 1 << 34, backend=backend))
    g = Graph()
    found = {type_ for type_ in CACHE_TYPES if not device.supports_op(g.flash_attn(
        g.new("f32", 128, 1, 32), g.new(type_, 128, 4096, 8), g.new(type_, 128, 4096, 8), g.new("f16", 4096, 1)))}
    assert found == lacking


def test_a_build_without_the_type_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = parse(["-ngl", "99", "-c", "4096", "-ctk", "q5_1", "-ctv", "q8_0"]).params
    assert estimate(model("llama-dense"), words, gpus(8192), build=11400).devices["CUDA0"].context
    monkeypatch.setitem(CACHE_TYPES, "q5_1", 11400)
    with pytest.raises(LaunchRefused, match="Unsupported cache type: q5_1"):
        estimate(model("llama-dense"), words, gpus(8192), build=11400)
    assert estimate(model("llama-dense"), words, gpus(8192), build=11434).exact
