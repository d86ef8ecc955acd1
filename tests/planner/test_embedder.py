"""Embedding models would be started as chat models.

Models that answer embeddings: the command starts what they are for, and their rate is that of
inputs.
"""

from __future__ import annotations

import pytest
from support import FIXTURES, model, slow

import autolayers
from autolayers.builds import TODAY
from autolayers.launch.command import additions, read
from autolayers.report.text import plan_text

MACHINE = ["--gpu", "rtx-3060", "--ram", "32GiB"]


def plan(name: str, *words: str) -> autolayers.Plan:
    return autolayers.plan(
        str(FIXTURES / "more" / "headers" / f"{name}.gguf"), [*(words or MACHINE)]
    )


@pytest.mark.parametrize(
    ("name", "n_ctx", "flag"),
    [
        slow("embeddinggemma-300m-q8_0", 2048, "--embedding"),
        ("bge-small-en-q8_0", 512, "--embedding"),
        slow("bge-m3-f16", 8192, "--embedding"),
        ("gte-reranker-modernbert", 8192, "--rerank"),
    ],
)
def test_an_encoder_is_started_for_what_it_is(name: str, n_ctx: int, flag: str) -> None:
    found = plan(name)
    use, words = found.breakdown, found.flags
    assert flag in words and (use.n_batch, use.n_ubatch) == (n_ctx, n_ctx)
    assert words[words.index("-cram") + 1] == "0"
    assert found.fits and not any(
        "--embedding" in line or "refuses inputs" in line for line in found.warnings
    )
    assert found.n_gpu_layers == found.n_layer + 1
    again = plan(name, *MACHINE, *words)
    assert again.flags == words and again.breakdown == use


@pytest.mark.parametrize(
    ("words", "n_ubatch"),
    [
        ("-c 65536", 2048),
        ("-c 1024", 1024),
        ("-c 8192 --rope-scaling yarn --rope-scale 4", 8192),
    ],
)
def test_a_micro_batch_is_no_longer_than_what_it_was_trained_for(words: str, n_ubatch: int) -> None:
    """-ub 65536 takes 11 GiB for inputs that the model does not take."""
    found = plan("nomic-embed-text-v1.5-f16", "--gpu", "rtx-3090", *words.split())
    assert found.breakdown.n_ubatch == n_ubatch
    assert not any("refuses inputs" in line for line in found.warnings)
    # The whole estimate would be of another launch with a larger one
    assert found.devices[0].used < 1 << 30


def test_beside_another_model_it_takes_inputs_of_more_than_512_tokens() -> None:
    models = [model(name) for name in ("nomic-embed-text-v1.5-f16", "llama-3.2-1b-q8_0:4")]
    found = autolayers.plan_together(models, ["--gpu", "8GiB", "--ram", "32GiB"])
    assert found.fits and found.plans[0].breakdown.n_ubatch == 2048
    assert not any("refuses inputs" in line for line in found.plans[0].warnings)


def test_its_rate_is_that_of_inputs() -> None:
    found = plan("embeddinggemma-300m-q8_0")
    text = " ".join(plan_text(found).split())
    assert found.inputs is not None and found.inputs.tokens == 2048
    assert found.inputs.per_second == pytest.approx(found.speed.prompt / 2048)
    assert "inputs/s of 2048 tokens (" in text and "tokens/s of inputs (within" in text
    assert "generated" not in text and "saved conversation" not in text
    assert found.to_dict()["inputs"] == found.inputs.to_dict()
    short = plan("bge-small-en-q8_0")
    assert short.inputs is not None and short.inputs.tokens == 512  # all it takes


def test_what_is_given_stays() -> None:
    assert plan("bge-m3-f16", *MACHINE, "-ub", "512", "-cram", "64").breakdown.n_ubatch == 512
    given = plan("bge-m3-f16", *MACHINE, "-b", "1024", "-ub", "1024", "-cram", "64").flags
    assert given[given.index("-cram") + 1] == "64" and given[given.index("-ub") + 1] == "1024"
    assert "--embedding" not in plan("gte-reranker-modernbert", *MACHINE).flags
    rank = plan("gte-reranker-modernbert", *MACHINE, "--embedding").flags
    assert "--embedding" in rank and "--rerank" not in rank


def test_micro_batches_take_no_layer_off_the_gpu() -> None:
    small, less = (
        plan("bge-m3-f16", "--gpu", "1GiB", "--ram", "32GiB"),
        plan("bge-m3-f16", "--gpu", "rtx-3060", "--ram", "4GiB"),
    )
    assert small.breakdown.n_ubatch == 512 and small.fits
    assert any("refuses inputs of more than 512" in line for line in small.warnings)
    # 8 GiB of outputs at 8192
    assert less.breakdown.n_ubatch == 2048 and less.n_gpu_layers == less.n_layer + 1


def test_models_that_write_text_are_not_made_embedders() -> None:
    for name in ("headers/dream-dense", "headers/llama-dense"):
        found = autolayers.plan(str(FIXTURES / f"{name}.gguf"), MACHINE)
        assert found.inputs is None and "--embedding" not in found.flags
        assert ("-cram", "0") not in zip(found.flags, found.flags[1:], strict=False)


def test_llama_embedding_needs_no_flag_for_it() -> None:
    found = plan("bge-m3-f16")
    for program, there in (("llama-server", True), ("llama-embedding", False)):
        words, _ = additions(read([program, "-m", "x.gguf"]), found.flags, TODAY, {})
        assert ("--embedding" in words) is there and ("-cram" in words) is there and "-ub" in words
