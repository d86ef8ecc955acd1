"""A draft model would make answers slower.

A draft is on the GPU, in RAM or not used, by the seconds of each; no layer is given away for one
that loses.
"""

from __future__ import annotations

import re

import pytest
from support import FIXTURES, model

import autolayers
from autolayers.errors import UsageError

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
    assert "-devd" in found.flags and not found.params.spec_type
    line = next(reason for reason in found.reasons if "draft" in reason)
    assert (
        re.match(
            r"the draft model loses: 6[0-4]\.\d tokens/s without "
            r"it",
            line,
        )
        and "leave -md out" in line
    )


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
            r"the draft loses: 6[0-4]\.\d tokens/s without "
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
            r"the draft loses: 6[0-4]\.\d tokens/s without "
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
