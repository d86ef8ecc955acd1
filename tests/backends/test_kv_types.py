"""A user of -ctk or -ctv would be told of a kernel that the build has not, or get none.

One row a type of KV cache: what backends do with it, and which builds have it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gpus, model

from autolayers import LaunchRefused, estimate
from autolayers.backends import on
from autolayers.flags.kinds import CACHE_TYPES
from autolayers.flags.parse import parse
from autolayers.ggml.tensor import Graph
from autolayers.machine import Device
from autolayers.records import replace
from autolayers.request import Request
from autolayers.tables import rows


def test_every_type_has_a_line_and_every_backend_says_something_of_it() -> None:
    lines = {row["type"]: row for row in rows("backends/types.tsv")}
    assert lines.keys() >= CACHE_TYPES.keys()
    assert all(all(lines[type_].values()) for type_ in CACHE_TYPES)


@pytest.mark.parametrize(
    ("backend", "lacking"),
    [
        ("CUDA", {"iq4_nl"}),
        ("ROCm", {"iq4_nl"}),
        ("MTL", {"iq4_nl", "f8_e4m3"}),
        ("Vulkan", {"f8_e4m3"}),
        ("SYCL", {"q4_1", "q5_0", "q5_1", "iq4_nl", "f8_e4m3"}),
    ],
)
def test_flash_attention_of_a_token_runs_with_each_listed_type(
    backend: str, lacking: set[str]
) -> None:
    device = on(Device(f"{backend}0", 1 << 34, 1 << 34, backend=backend))
    g = Graph()
    found = {
        type_
        for type_ in CACHE_TYPES
        if not device.supports_op(
            g.flash_attn(
                g.new("f32", 128, 1, 32),
                g.new(type_, 128, 4096, 8),
                g.new(type_, 128, 4096, 8),
                g.new("f16", 4096, 1),
            )
        )
    }
    assert found == lacking


def test_a_build_without_the_type_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = parse(["-ngl", "99", "-c", "4096", "-ctk", "q5_1", "-ctv", "q8_0"]).params
    assert estimate(model("llama-dense"), words, gpus(8192), build=11400).devices["CUDA0"].context
    monkeypatch.setitem(CACHE_TYPES, "q5_1", 11400)
    with pytest.raises(LaunchRefused, match="Unsupported cache type: q5_1"):
        estimate(model("llama-dense"), words, gpus(8192), build=11400)
    assert estimate(model("llama-dense"), words, gpus(8192), build=11434).exact


@pytest.mark.parametrize(
    ("words", "refused"),
    [("-fa on -ctk q4_1 -ctv q4_1", False), ("-ctk q5_1", False), ("-ctk q8_0 -ctv q4_0", True)],
)
def test_a_cuda_build_with_all_pairs_of_types_is_not_guessed(words: str, refused: bool) -> None:
    """GGML_CUDA_FA_ALL_QUANTS, before b10878: b9093 of q4_1 takes what it takes of q8_0."""
    params = parse(["-ngl", "99", "-c", "8192", *words.split()]).params
    llama, gpu = model("llama-3.1-8b-q4_k_m:8"), gpus(24576)[0]
    every = estimate(llama, params, [replace(gpu, limits={"fa_all_quants": 1})], 9093)
    as_q8_0 = parse(
        ["-ngl", "99", "-c", "8192", "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0"]
    ).params
    if refused:
        with pytest.raises(LaunchRefused, match="requires Flash Attention"):
            estimate(llama, params, [replace(gpu, limits={"fa_all_quants": 0})], 9093)
        assert (
            every.devices["CUDA0"].compute
            == estimate(llama, as_q8_0, [gpu], 9093).devices["CUDA0"].compute
        )
        return
    few = estimate(llama, params, [replace(gpu, limits={"fa_all_quants": 0})], 9093)
    assert few.exact and every.exact and few.devices != every.devices
    found = estimate(llama, params, [gpu], 9093)
    assert not found.exact and "GGML_CUDA_FA_ALL_QUANTS" in found.warnings[-1]
    for name in ("CUDA0", "Host"):
        sizes = [{**use.devices, "Host": use.host}[name].compute for use in (few, every, found)]
        assert sizes[2] == max(sizes[:2])
    assert estimate(llama, params, [gpu], 11434).exact  # any pair of types


@pytest.mark.parametrize(
    ("library", "expected"), [(b"\0FA_ALL_QUANTS\0", 1), (b"GGML_CUDA_FA_ALL_QUANTS for all", 0)]
)
def test_the_programs_library_says_which_pairs_it_has(
    library: bytes, expected: int, tmp_path: Path
) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho 'version: 9093 (abcdef12)'\n")
    program.chmod(0o755)
    (tmp_path / "libggml-cuda.so").write_bytes(b"ELF" + library + b"\0")
    request = Request.of(["-ctk", "q4_1"], devices=gpus(8192), program=[str(program)])
    assert request.machine.devices[0].limits == {"fa_all_quants": expected}
    assert (
        Request.of([], devices=gpus(8192), program=[str(program)]).machine.devices[0].limits is None
    )
