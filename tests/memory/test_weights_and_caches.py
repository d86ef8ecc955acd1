"""Weights or caches would be a byte off, and plans no longer exact.

Weights and caches against llama.cpp's own numbers: fixtures/truth, recorded from its measuring
mode, byte for byte.
"""

from __future__ import annotations

import json

import pytest
from support import FIXTURES, WHOLE, few, gpus, model, sample

from autolayers import estimate
from autolayers.errors import LaunchRefused
from autolayers.flags.parse import parse
from autolayers.memory.cache import Memory, allocate
from autolayers.memory.context import Context, resolve
from autolayers.memory.weights import Placement, place_weights

MiB = 1 << 20


def launch(name: str, words: str, *mib: int) -> tuple[Context, Placement, Memory]:
    params = parse(words.split()).params
    context = resolve(model(name), params)
    placement = place_weights(model(name), params, gpus(*mib), context.load_mtp)
    return context, placement, allocate(model(name), context, placement)


def truth() -> dict[str, list[dict]]:
    by_model: dict[str, list[dict]] = {}
    for part in ("models", "archs"):
        for line in (FIXTURES / "truth" / f"cases_{part}.jsonl").read_text().splitlines():
            case = json.loads(line)
            by_model.setdefault(case["model"], []).append(case)
    return by_model


CASES = truth()


@WHOLE
@pytest.mark.parametrize("name", few(3, CASES, 1))
def test_model_and_context_are_llama_cpps_to_the_byte(name: str, whole: bool) -> None:
    for case in (CASES if whole else sample(CASES, 5))[name]:
        words = case["args"]
        if "error" in case:
            with pytest.raises(LaunchRefused):
                launch(name, words, *case["gpus_mib"])
            continue
        context, placement, memory = launch(name, words, *case["gpus_mib"])
        got = {
            device: (placement.buffers.get(device, 0), memory.buffers.get(device, 0))
            for device in case["devices"]
            if device != "Host"
        }
        got["Host"] = (placement.host, memory.buffers.get("CPU", 0))
        want = {device: (use["model"], use["context"]) for device, use in case["devices"].items()}
        assert got == want, words
        sizes = (context.n_ctx, context.n_ctx_seq, context.n_ubatch, context.n_seq_max)
        assert sizes == (case["n_ctx"], case["n_ctx_seq"], case["n_ubatch"], case["n_seq_max"]), (
            words
        )


def test_the_truth_covers_what_it_is_meant_to() -> None:
    assert sum(map(len, CASES.values())) == 1919
    assert len(CASES) >= 90


# the same rules in numbers that can be checked with a pencil


@pytest.mark.parametrize(
    ("name", "words", "cache", "bytes_"),
    [
        # 32 layers, 1024-wide K and V, f16
        ("llama-3.1-8b-q4_k_m", "-c 16384", "attn", 32 * 2 * 1024 * 2 * 16384),
        # q8_0: 34 bytes for 32 elements
        (
            "llama-3.1-8b-q4_k_m",
            "-c 16384 -ctk q8_0 -ctv q8_0",
            "attn",
            32 * 2 * 1024 // 32 * 34 * 16384,
        ),
        # 48 layers of which 36 keep a state: 4 sequences, whatever the context
        ("qwen3-next-80b-a3b-q4_k_m", "-c 8192", "recurrent", 36 * 4 * (24576 + 524288) * 4),
        ("qwen3-next-80b-a3b-q4_k_m", "-c 262144", "recurrent", 36 * 4 * (24576 + 524288) * 4),
        ("qwen3-next-80b-a3b-q4_k_m", "-c 8192 -np 1", "recurrent", 36 * (24576 + 524288) * 4),
        # DeepSeek's MLA keeps 512 + 64 values per token and no V
        ("deepseek-v2-lite-q4_k_m", "-c 4096", "attn", 27 * 576 * 2 * 4096),
        # 24 layers, every other one slides over 128: 4 slots share 4 * 128 + 512 cells
        ("gpt-oss-20b-mxfp4", "-c 65536", "swa", 12 * 2 * 512 * 2 * 1024),
        ("gpt-oss-20b-mxfp4", "-c 65536 -np 1", "swa", 12 * 2 * 512 * 2 * 768),
        ("gpt-oss-20b-mxfp4", "-c 65536 -np 1 -ub 2048", "swa", 12 * 2 * 512 * 2 * 2304),
        ("gpt-oss-20b-mxfp4", "-c 65536 --swa-full", "swa", 12 * 2 * 512 * 2 * 65536),
    ],
)
def test_cache_sizes_are_llama_cpps(name: str, words: str, cache: str, bytes_: int) -> None:
    _, _, memory = launch(name, "-ngl 99 " + words, 1 << 20)
    found = memory.cache(cache)
    assert found is not None
    assert sum(tensor.size for layer in found.layers for tensor in layer.tensors) == bytes_


@pytest.mark.parametrize(
    ("words", "n_ctx", "n_ctx_seq", "n_seq_max", "unified"),
    [
        ("", 131072, 131072, 4, True),  # four slots that share one cache
        ("-c 8192", 8192, 8192, 4, True),
        ("-c 5000 -np 1", 5120, 5120, 1, False),  # rounded up to 256
        ("-c 1000 -np 3", 1536, 512, 3, False),  # each slot's share is rounded up
        ("-c 8192 -np 2", 8192, 4096, 2, False),
        ("-c 8192 -np 2 -kvu", 8192, 8192, 2, True),
        ("-c 0 -np 2", 131072, 65536, 2, False),
        ("--kv-unified-per-slot 2048 -np 8 -kvu", 16384, 16384, 8, True),
    ],
)
def test_contexts_are_padded_as_llama_cpp_does(
    words: str, n_ctx: int, n_ctx_seq: int, n_seq_max: int, unified: bool
) -> None:
    context, _, _ = launch("llama-3.1-8b-q4_k_m", "-ngl 99 " + words, 49152)
    assert (context.n_ctx, context.n_ctx_seq, context.n_seq_max, context.kv_unified) == (
        n_ctx,
        n_ctx_seq,
        n_seq_max,
        unified,
    )


@pytest.mark.parametrize(
    ("words", "n_batch", "n_ubatch", "n_outputs_max"),
    [
        ("-c 8192", 2048, 512, 4),
        ("-c 256 -np 1", 256, 256, 1),
        ("-c 8192 -b 128", 128, 128, 4),
        ("-c 8192 --embedding", 512, 512, 512),  # an embedding's input is one micro batch
        ("-c 8192 -np 2 -md draft.gguf", 2048, 512, 2),  # loaded, but nothing drafts with it
        # 1 + 3 drafted tokens per slot
        ("-c 8192 -np 2 -md draft.gguf --spec-type draft-simple", 2048, 512, 8),
    ],
)
def test_batches_are_limited_as_llama_cpp_does(
    words: str, n_batch: int, n_ubatch: int, n_outputs_max: int
) -> None:
    context = resolve(model("llama-3.1-8b-q4_k_m"), parse(words.split()).params)
    assert (context.n_batch, context.n_ubatch, context.n_outputs_max) == (
        n_batch,
        n_ubatch,
        n_outputs_max,
    )


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("llama-3.1-8b-q4_k_m", "-fa off -ctv q8_0", "quantized V cache requires flash_attn"),
        ("grok-moe", "-ctv q8_0", "quantized V cache requires flash_attn"),
        ("deepseek-v2-lite-q4_k_m", "-ctk q8_0", "different K .q8_0. and V .f16. cache types"),
        ("deepseek4-moe", "-ctk q8_0", "different K"),
        ("llama-3.1-8b-q4_k_m", "-np 257", "n_seq_max must be <= 256"),
        ("llama-3.1-8b-q4_k_m", "-b 3 -np 4", "below the 4 slots; use -np 3"),
        ("llama-3.1-8b-q4_k_m", "-sm none -mg 2", "main_gpu: 2"),
        (
            "llama-3.1-8b-q4_k_m",
            "-sm row",
            "CUDA0 does not support split buffers .-sm row.; use -sm layer",
        ),
        ("grok-moe", "-sm tensor", "split mode tensor is not implemented"),
        ("llama-3.1-8b-q4_k_m", "-sm tensor -fa off", "SPLIT_MODE_TENSOR requires flash_attn"),
        ("llama-3.1-8b-q4_k_m", "--embedding --pooling mean -np 3", "multiple of the slots"),
        (
            "llama-3.1-8b-q4_k_m",
            "-sm none -mg 1 -ot output=CUDA0",
            "is overridden to CUDA0, which the model does not use",
        ),
    ],
)
def test_refusals_have_llama_cpps_reason(name: str, words: str, reason: str) -> None:
    with pytest.raises(LaunchRefused, match=reason):
        launch(name, "-c 4096 " + words, 24576, 24576)


def test_cuda_splits_rows_up_to_b9886() -> None:
    """b9892 has no split buffers any more; before, each of two devices has half of the matrices and
    some rows."""
    one, words = (
        model("llama-3.1-8b-q4_k_m"),
        parse(["-c", "4096", "-sm", "row", "-ngl", "99"]).params,
    )
    with pytest.raises(LaunchRefused, match="does not support split buffers"):
        estimate(one, words, gpus(24576, 24576), build=9892)
    found = estimate(one, words, gpus(24576, 24576), build=9886)
    weights = [found.devices[name].model for name in ("CUDA0", "CUDA1")]
    assert (
        not found.exact
        and 0.9 * one.size < sum(weights) < 1.3 * one.size
        and max(weights) < 0.7 * one.size
    )
