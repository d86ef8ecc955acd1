"""A file would be planned that llama.cpp does not load: it lacks a key.

The table was compared with llama-fit-params b11549 on each key of 130 architectures left out in
turn: none of the 392 files loaded.
"""

from __future__ import annotations

import pytest
from support import FIXTURES, gpus

from autolayers import Model, ModelError, estimate
from autolayers.gguf import Header, read_header
from autolayers.model.demanded import missing

FILES = {path.stem: path for path in FIXTURES.rglob("*.gguf") if path.parent.name != "tiny"}
LEFT_OUT = [
    ("llama-dense", "llama.attention.layer_norm_rms_epsilon"),
    ("gptneox-dense", "gptneox.attention.layer_norm_epsilon"),
    ("qwen35-dense", "qwen35.rope.dimension_sections"),
    ("qwen3vlmoe-moe", "qwen3vlmoe.rope.dimension_sections"),
    ("exaone-moe-moe", "exaone-moe.expert_gating_func"),
    ("cohere2-dense", "cohere2.logit_scale"),
    ("minimax-m2-moe", "minimax-m2.expert_feed_forward_length"),
    ("deepseek4-moe", "deepseek4.hash_layer_count"),
    ("deepseek4-moe", "deepseek4.hyper_connection.epsilon"),
    ("maple-moe", "maple.swiglu_clamp_exp"),
    ("llama4-moe", "llama4.interleave_moe_layer_step"),
]


def without(name: str, key: str) -> Model:
    header = read_header(FILES[name])
    assert key in header.metadata
    kept = {k: value for k, value in header.metadata.items() if k != key}
    return Model(Header(3, 32, kept, header.tensors, header.files), f"{name}.gguf")


@pytest.mark.parametrize(("name", "key"), LEFT_OUT)
def test_a_file_without_a_key_is_refused_in_llama_cpps_words(name: str, key: str) -> None:
    with pytest.raises(ModelError, match=f"key not found in model: {key}"):
        estimate(without(name, key), ["-c", "512"], devices=gpus(24576))


def test_a_key_that_is_given_is_there() -> None:
    name, key = LEFT_OUT[0]
    given = without(name, key).overridden(((key, "float:1e-5"),))
    assert estimate(given, ["-c", "512"], devices=gpus(24576)).devices["CUDA0"].model > 0


@pytest.mark.slow
def test_no_file_that_loads_is_refused() -> None:
    asked = 0
    for path in FILES.values():
        header = read_header(path)
        name = header.metadata.get("general.architecture")
        if isinstance(name, str) and header.tensors and "general.type" not in header.metadata:
            hparams = Model(header, str(path)).hparams
            assert not missing(hparams), path
            asked += 1
    assert asked > 300
