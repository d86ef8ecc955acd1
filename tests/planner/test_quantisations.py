"""Anyone who has too little memory would be sent to a file that does not fit either.

A smaller quantisation is one: the whole model in a type below its file's own, with the size that
such a file has.
"""

from __future__ import annotations

import pytest
from support import model

import autolayers
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
