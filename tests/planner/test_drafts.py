"""A draft model would make answers slower.

A draft is on the GPU, in RAM or not used, by the seconds of each; no layer is given away for one
that loses.
"""

from __future__ import annotations

import re

import pytest
from support import FIXTURES, model, slow

import autolayers
from autolayers.errors import UsageError
from autolayers.planner import plan_request
from autolayers.request import Request

DRAFT = str(FIXTURES / "headers" / "llama-3.2-1b-q8_0.gguf")
SMALL = ["--gpu", "8GiB", "--ram", "64GiB", "-c", "16k"]


def plan(name: str, *words: str) -> autolayers.Plan:
    return autolayers.plan(model(name), list(words))


def test_no_layer_makes_room_for_a_draft_that_loses() -> None:
    found, plain = (
        plan("llama-3.1-8b-q4_k_m", *SMALL, "-md", DRAFT),
        plan("llama-3.1-8b-q4_k_m", *SMALL),
    )
    assert found.fits and found.n_gpu_layers == 33 and not found.params.overrides
    assert found.speed.generation == pytest.approx(plain.speed.generation)
    assert found.flags == plain.flags and not found.params.spec_type
    line = next(line for line in found.warnings if "-md" in line)
    assert re.match(r"-md is left out: (?:59|6[0-4])\.\d tokens/s without it, ", line)


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        (
            "llama-3.2-1b-q8_0",
            "llama-server does not draft with the draft's vocabulary: the draft has 128256 tokens",
        ),
        slow("qwen3-8b-q4_k_m", "the draft is as large as the model"),
    ],
)
def test_a_draft_that_cannot_be_used_is_left_out_and_takes_no_memory(draft: str, why: str) -> None:
    given = str(next(FIXTURES.glob(f"**/{draft}.gguf")))
    words = ["--gpu", "rtx-4090", "--ram", "64GiB", "-c", "8k"]
    found, plain = plan("qwen3-8b-q4_k_m", *words, "-md", given), plan("qwen3-8b-q4_k_m", *words)
    assert found.flags == plain.flags and "-md" not in found.flags
    assert found.devices == plain.devices and found.host == plain.host
    assert any(line.startswith(f"-md is left out: {why}") for line in found.warnings)
    # what would make llama-server refuse it is no advice
    assert not any("--spec-type" in line for line in found.warnings)


def test_a_program_that_gets_the_word_in_any_case_has_room_for_the_draft() -> None:
    words = ["--gpu", "rtx-4090", "--ram", "64GiB", "-c", "8k", "-md", DRAFT]
    found = plan_request(model("qwen3-8b-q4_k_m"), Request.of(words, verbatim=["-md", DRAFT]))
    assert found.params.model_draft == DRAFT and found.devices[0].extra > 1 << 30
    assert any(line.startswith("leave -md out: llama-server does not") for line in found.warnings)


@pytest.mark.slow
def test_a_smaller_cache_that_brings_the_draft_onto_the_gpu_is_an_alternative() -> None:
    small = str(next(FIXTURES.glob("**/qwen3-0.6b-q8_0.gguf")))
    words = ["--gpu", "rtx-4090", "--ram", "64GiB", "-c", "16k", "-md", small]
    found = plan_request(model("qwen3-32b-q4_k_m"), Request.of(words), explain=True)
    assert found.params.device_draft == () and found.params.draft_n_max == 1
    (other,) = [each for each in found.alternatives if "-ctk" in each.flags]
    assert other.n_ctx == 16384 and other.speed.draft is not None
    assert other.speed.generation > 1.5 * found.speed.generation
    # and it is the plan where that type is allowed
    allowed = plan("qwen3-32b-q4_k_m", *words, "--kv-types", "f16,q8_0")
    assert allowed.params.device_draft is None and allowed.params.cache_type_k == "q8_0"
    assert allowed.speed.generation == pytest.approx(other.speed.generation)


def test_a_draft_that_gains_is_used() -> None:
    found = plan(
        "llama-3.3-70b-q4_k_m",
        "-md",
        DRAFT,
        "--gpu",
        "2x rtx-3090",
        "--ram",
        "64GiB",
        "-c",
        "8k",
        "-ctk",
        "q8_0",
        "-ctv",
        "q8_0",
    )
    assert found.fits and found.params.spec_type == ("draft-simple",) and found.params.draft_n_max
    draft = found.speed.draft
    assert (
        draft is not None
        and draft.place == "CUDA0"
        and dict(draft.rates)["code"] > dict(draft.rates)["prose"]
    )
    assert found.speed.generation > 1.3 * draft.plain
    assert found.to_dict()["speed"]["draft"]["without"] == pytest.approx(draft.plain, abs=1e-3)


@pytest.mark.slow
def test_given_words_stay() -> None:
    words = [
        *SMALL,
        "-md",
        DRAFT,
        "--spec-type",
        "draft-simple",
        "--spec-draft-n-max",
        "5",
        "-ngld",
        "99",
    ]
    found = plan("llama-3.1-8b-q4_k_m", *words)
    assert found.params.draft_n_max == 5 and found.params.n_gpu_layers_draft == 99
    assert found.params.device_draft is None and found.params.spec_type == ("draft-simple",)
    assert any(
        re.match(
            r"the draft loses: (?:59|6[0-4])\.\d tokens/s without "
            r"it",
            reason,
        )
        for reason in found.reasons
    )


def test_what_does_not_draft_is_not_priced() -> None:
    for kind in ("none", "ngram-mod"):
        found = plan("llama-3.1-8b-q4_k_m:8", *SMALL, "-md", DRAFT, "--spec-type", kind)
        assert (
            found.speed.draft is None
            and found.params.spec_type == (kind,)
            and found.params.draft_n_max is None
        )


@pytest.mark.slow
def test_a_build_without_the_names_always_drafts() -> None:
    found = plan("llama-3.1-8b-q4_k_m", *SMALL, "-md", DRAFT, "--llama-build", "8000")
    assert (
        found.speed.draft is not None
        and not found.params.spec_type
        and found.params.draft_n_max is None
    )
    assert any(
        re.match(
            r"the draft loses: (?:59|6[0-4])\.\d tokens/s without "
            r"it",
            reason,
        )
        for reason in found.reasons
    )


@pytest.mark.slow
def test_acceptance_decides() -> None:
    words = ["--gpu", "rtx-3090", "--ram", "64GiB", "-c", "8k", "--spec-type", "draft-mtp"]
    rates = {
        share: plan("qwen3.8-27b-ud-q4_k_xl", *words, "--acceptance", share).speed
        for share in ("0.3", "0.6", "0.9")
    }
    assert [speed.draft.n for speed in rates.values()] == sorted(
        speed.draft.n for speed in rates.values()
    )
    assert rates["0.3"].generation < rates["0.6"].generation < rates["0.9"].generation
    with pytest.raises(UsageError, match="a share from 0 to 1"):
        plan("qwen3.8-27b-ud-q4_k_xl", *words, "--acceptance", "1.5")


@pytest.mark.slow
def test_a_models_own_block_is_proposed() -> None:
    words = ["-c", "8k"]
    there = autolayers.Device.hypothetical("rtx-3090")
    found = autolayers.plan(model("qwen3.8-27b-ud-q4_k_xl"), words, devices=[there], explain=True)
    own = [other for other in found.alternatives if "draft-mtp" in other.flags]
    assert (
        own
        and own[0].speed.generation > 1.5 * found.speed.generation
        and "--spec-draft-n-max" in own[0].flags
    )
    assert own[0].note.startswith("code ") and "prose " in own[0].note


@pytest.mark.slow
def test_several_requests_gain_less_from_drafts() -> None:
    words = [
        "--gpu",
        "rtx-3090",
        "--ram",
        "64GiB",
        "-c",
        "16k",
        "-np",
        "4",
        "--spec-type",
        "draft-mtp",
        "--spec-draft-n-max",
        "3",
    ]
    one, four = (
        plan("qwen3.8-27b-ud-q4_k_xl", *words, "--workload", work).speed
        for work in ("512+128", "512+128x4")
    )
    assert one.draft is not None and four.draft is not None
    assert four.generation / four.draft.plain < one.generation / one.draft.plain
