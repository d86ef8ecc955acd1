"""Anyone who has too little memory would be sent to a file that does not fit either.

A smaller quantisation is one: the whole model in a type below its file's own, with the size that
such a file has.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from support import FIXTURES, model

import autolayers
from autolayers.model import read_model
from autolayers.model.quantisation import stored_as
from autolayers.planner.quantisations import QUANTISATIONS, below, main_type
from autolayers.planner.why import why
from autolayers.request import Request

# bits per weight of the types, ggml's block sizes
BITS = {
    "q8_0": 8.5,
    "q6_K": 6.5625,
    "q5_K": 5.5,
    "q4_K": 4.5,
    "iq4_xs": 4.25,
    "q3_K": 3.4375,
    "iq3_xxs": 3.0625,
    "q2_K": 2.625,
    "iq2_xxs": 2.0625,
    "iq1_s": 1.5625,
}


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("llama-3.3-70b-q4_k_m", "iq4_xs"),
        ("qwen3-30b-a3b-q4_k_m", "iq4_xs"),
        ("gemma-2-9b-q4_k_m", "iq4_xs"),
        ("llama-3.2-1b-q8_0", "q6_K"),
        ("gpt-oss-20b-mxfp4", ""),
        ("qwen3-30b-a3b-bf16", "q8_0"),
        ("qwen3-30b-a3b-q3_k_s", "iq3_xxs"),
    ],
)
def test_only_types_below_the_files_own_are_offered(name: str, largest: str) -> None:
    whole = model(name)
    offered = dict(below(whole))
    assert next(iter(offered), "") == largest and main_type(whole) not in offered
    assert [*offered] == [kind for kind in QUANTISATIONS if kind in offered]
    weights = sum(info.n_elements for info in whole.header.tensors.values())
    for kind, smaller in offered.items():
        assert smaller.size < whole.size
        assert 8 * smaller.size / weights == pytest.approx(BITS[kind], rel=0.02)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        # A published Q8_0 has 109.381 GiB, and 1408 numbers of a row are no blocks of 256
        ("more/headers/glm-4.5-air-q4_k_m", {"q8_0": 109.38, "iq4_xs": 55.73, "q2_K": 41.32}),
        # The published Q6_K has 21.07 GiB: it was called larger than the Q8_0
        ("speeds/models/x-gemma-4-26b-a4b-bf16", {"q8_0": 25.0, "q6_K": 21.07, "q4_K": 14.16}),
        ("more/headers/nemotron-3-nano-30b-a3b-q4_k_m", {"iq4_xs": 16.74, "q2_K": 16.68}),
        ("headers/deepseek-v2-lite-q4_k_m", {"q3_K": 6.9, "iq3_xxs": 6.42, "iq1_s": 4.53}),
    ],
)
def test_rows_that_256_does_not_divide_have_llama_quantizes_own_type(
    name: str, sizes: dict[str, float]
) -> None:
    """They kept the file's type, so that every smaller file of such a model was too large."""
    whole = read_model(FIXTURES / f"{name}.gguf")
    found = {kind: whole.quantised(kind, larger=True).size / 2**30 for kind in sizes}
    assert found == pytest.approx(sizes, abs=0.006)
    # What is hardly smaller than the one before is no other file
    offered = [smaller.size for _, smaller in below(whole)]
    assert offered and all(less < 0.97 * more for more, less in pairwise([whole.size, *offered]))


def test_a_type_is_replaced_by_the_one_of_smaller_blocks() -> None:
    """tensor_type_fallback of src/llama-quant.cpp."""
    assert stored_as("q4_K", 4096) == "q4_K" and stored_as("q4_K", 1408) == "q5_0"
    rows = {"q2_K": "q4_0", "q3_K": "q4_0", "q5_K": "q5_1", "q6_K": "q8_0", "iq1_s": "iq4_nl"}
    assert {kind: stored_as(kind, 2880) for kind in rows} == rows
    assert stored_as("q8_0", 2880) == "q8_0" and stored_as("q6_K", 100) == "f16"


@pytest.mark.slow
def test_the_remedy_and_why_name_a_file_that_exists() -> None:
    """A Q4_K_M has more bits than q4_K and fewer than q5_K: "q5_K throughout" was smaller than the
    file."""
    whole = model("llama-3.3-70b-q4_k_m")
    found = autolayers.plan(whole, ["--gpu", "rtx-3060", "--ram", "32GiB"], advise=True)
    remedy = next(remedy for remedy in found.remedies if remedy.kind == "file")
    assert remedy.type == "iq4_xs" and remedy.bits_per_weight == pytest.approx(4.25, abs=0.01)
    reason = why(
        model("llama-3.1-8b-q4_k_m"), Request.of(["--gpu", "rtx-3060", "--ram", "32GiB"], {})
    )
    assert reason is not None and reason.smaller.startswith("as IQ4_XS, ")
