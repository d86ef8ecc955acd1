"""llama-server would end at its first token, after a start that fits.

What llama-server b11549 itself showed: its samplers' memory, and launches that end at their
first token.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import FIXTURES, MiB, command, gguf, gpus, model, says, write_gguf

import autolayers
from autolayers.api import estimate
from autolayers.flags.parse import parse

# MiB of CUDA0's compute buffer in a real launch; the first four were said with 1.0 to 297 MiB less
SAMPLED = (
    ("qwen3-8b-q4_k_m", "-c 32768 -np 8 -ngl 99 -bs --spec-type ngram-mod", 630.16),
    ("gemma-3-4b-q8_0", "-c 8192 -np 4 -ngl 99 -bs --spec-type ngram-simple", 418.56),
    ("qwen2.5-0.5b", "-c 3000 -np 5 -no-kvu -ub 100 -ngl 99 -bs --spec-type ngram-simple", 118.04),
    (
        "qwen3-0.6b-q8_0",
        "-c 8192 -np 4 -ub 128 -ngl 99 -bs --spec-type draft-simple --spec-draft-n-max 8",
        44.82,
    ),
    ("qwen2.5-0.5b", "-c 3000 -np 5 -no-kvu -ub 100 -ngl 99 -bs", 7.89),
)


@pytest.mark.parametrize(("name", "words", "mib"), SAMPLED)
def test_backend_sampling_keeps_a_second_copy_of_the_logits(
    name: str, words: str, mib: float
) -> None:
    found = estimate(model(name), parse(words.split()).params, gpus(24576), build=11549)
    assert round(found.devices["CUDA0"].compute / MiB, 2) == mib
    assert not found.exact and any("--backend-sampling" in warning for warning in found.warnings)


def test_a_cache_in_ram_of_several_streams_is_not_split() -> None:
    """-sm tensor -nkvo aborts with two slots of a cache each, and runs with one, a shared cache, or
    a cache on the devices."""
    whole, words = model("llama-3.1-8b-q4_k_m:8"), ["-c", "2048", "-ngl", "99", "-sm", "tensor"]
    for more in (["-nkvo", "-np", "1"], ["-nkvo", "-np", "2", "-kvu"], ["-np", "2"]):
        assert autolayers.plan(whole, [*words, *more], gpus(8192, 8192)).fits
    with pytest.raises(autolayers.LaunchRefused, match=r"i_start == cgraph->n_nodes.*--kv-unified"):
        autolayers.plan(whole, [*words, "-nkvo", "-np", "2"], gpus(8192, 8192))


def test_llama_server_runs_no_encoder_before_a_decoder() -> None:
    path = FIXTURES / "more/headers/flan-t5-xl-q4_k_m.gguf"
    words = [path, "--gpu", "24GiB", "-c", "2048", "-ngl", "99"]
    for more in ([], ["--engine", "llama-cli"], ["--llama-build", "10000"]):
        refused = says(*words, *more)
        assert refused.returncode == 2 and "llama_encode must be called first" in refused.stderr
    other = command(*words, "--engine", "llama-completion", "--json")
    assert other.returncode == 0 and json.loads(other.stdout)["fits"]


def test_rpc_promises_no_bound() -> None:
    """A server of another kind took 0.1 to 0.4 MiB more."""
    device = autolayers.Device("RPC0", 24 << 30, 20 << 30, backend="RPC", kind="rpc")
    found = estimate(
        model("llama-3.2-1b-q8_0"), parse(["-ngl", "99", "-c", "2048"]).params, [device]
    )
    (doubt,) = [warning for warning in found.warnings if "backend RPC" in warning]
    assert "upper bound" not in doubt and not found.exact


def test_the_last_of_two_models_is_the_one_that_is_loaded(tmp_path: Path) -> None:
    paths = [write_gguf(tmp_path / f"{name}.gguf", *gguf("llama-3.2-1b-q8_0")) for name in "ab"]
    words = [word for path in paths for word in ("-m", str(path))]
    done = says("run", "--dry-run", "--gpu", "8GiB", "llama-server", *words)
    assert done.returncode == 0 and f"the last -m: {paths[1]}, not {paths[0]}" in done.stderr
    planned = says(*words, "--gpu", "8GiB")
    assert (planned.returncode, planned.stdout) == (
        2,
        "",
    ) and "give one of them, or both" in planned.stderr
    assert (
        "the last -m"
        not in says("run", "--dry-run", "--gpu", "8GiB", "llama-server", *words[:2]).stderr
    )
