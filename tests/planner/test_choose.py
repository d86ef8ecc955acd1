"""People would be told to take a file of worse quality, or one that is slow.

Which quantisation people are told to take: the rule in words is in docs/choose.md.
"""

from __future__ import annotations

from functools import cache

import pytest
from support import few_rows, model, slow

from autolayers.model import Model
from autolayers.planner.compare.choose import (
    EXPERTS,
    IN_RAM,
    PARTLY,
    READS,
    SLOW,
    WHOLE,
    WHOLLY,
    Choice,
    Recommended,
    advise,
    assess,
)
from autolayers.planner.compare.quality import Divergence, level, usual
from autolayers.records import replace
from autolayers.report.choose import advice_words
from autolayers.request import Request
from autolayers.work.speed import Speed

PURE = ("iq2_xxs", "q2_K", "q3_K", "iq4_xs", "q4_K", "q5_K", "q6_K", "q8_0")
SEVEN = ("q2_k", "ud-q3_k_xl", "iq4_xs", "q4_0", "ud-q4_k_xl", "ud-q8_k_xl", "bf16")


def taken(files: dict[str, Model], words: str) -> tuple[str, Choice, Recommended]:
    asked = Request.of(words.split(), {})
    choices = [assess(file, asked) for file in files.values()]
    advice = advise(choices, 8192)
    assert advice is not None
    return list(files)[advice.take], choices[advice.take], advice


def pure(name: str, *kinds: str) -> dict[str, Model]:
    whole = model(name)
    return {kind: whole.quantised(kind, larger=True) for kind in kinds or PURE}


@pytest.fixture(scope="module")
def seven() -> dict[str, Model]:
    """Qwen3-30B-A3B, 10 to 57 GiB."""
    return {
        kind: model("qwen3-30b-a3b-q4_k_m").quantised("q2_K", larger=True)
        if kind == "q2_k"
        else model(f"qwen3-30b-a3b-{kind}")
        for kind in SEVEN
    }


@pytest.mark.parametrize(
    ("machine", "rule", "verdict"),
    [
        ("--gpu rtx-3060 --ram 32GiB", READS, EXPERTS),
        pytest.param("--gpu rtx-4060 --ram 16GiB", READS, EXPERTS, marks=pytest.mark.slow),
        pytest.param("--gpu rtx-3090 --ram 64GiB", WHOLE, WHOLLY, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_mixture_that_needs_ram_is_taken_at_q4(
    machine: str, rule: str, verdict: str, seven: dict[str, Model]
) -> None:
    """Q2_K is twice as fast there, and 35 tokens/s are more than anybody reads."""
    name, choice, advice = taken(seven, machine)
    assert name in ("ud-q4_k_xl", "iq4_xs", "q4_0") and choice.rate > 20
    assert (advice.rule, choice.verdict) == (rule, verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "machine", "kinds", "take", "rule"),
    few_rows(
        1,
        [
            # a dense model: the largest that is fully on the GPU at Q4 or above
            slow(
                "qwen3-32b-q4_k_m",
                "--gpu rtx-3090 --ram 64GiB",
                ("q3_K", "q5_K", "q6_K"),
                "q5_K",
                WHOLE,
            ),
            # no Q3 is readable with a third of it in RAM: fully on the GPU at Q2
            slow(
                "qwen3-32b-q4_k_m",
                "--gpu rtx-3060 --ram 32GiB",
                ("iq2_xxs", "q3_K", "q4_K"),
                "iq2_xxs",
                SLOW,
            ),
            slow(
                "llama-3.3-70b-q4_k_m",
                "--gpu rtx-3090 --ram 64GiB",
                ("iq2_xxs", "q3_K"),
                "iq2_xxs",
                SLOW,
            ),
            pytest.param(
                "llama-3.3-70b-q4_k_m",
                "--gpu rtx-3090 --ram 64GiB",
                PURE[1:],
                "q2_K",
                SLOW,
                marks=pytest.mark.slow,
            ),
            # a laptop without a GPU: the Q4 that reaches 8 tokens/s; of a mixture Q3 alone does
            slow(
                "llama-3.1-8b-q4_k_m",
                "-dev none --ram 16GiB@60GB/s --cores 8",
                PURE,
                "q4_K",
                READS,
            ),
            slow(
                "qwen3-30b-a3b-q4_k_m",
                "-dev none --ram 32GiB@60GB/s --cores 8",
                PURE,
                "iq4_xs",
                SLOW,
            ),
            # a small model on it, and on a card that has space for any file of it
            slow(
                "llama-3.2-1b-q8_0", "-dev none --ram 16GiB@60GB/s --cores 8", PURE, "q8_0", READS
            ),
            ("llama-3.2-1b-q8_0", "--gpu rtx-5090 --ram 64GiB", PURE, "q8_0", WHOLE),
        ],
    ),
)
def test_the_rule_holds_on_machines_of_all_sizes(
    name: str, machine: str, kinds: tuple[str, ...], take: str, rule: str
) -> None:
    found, _, advice = taken(pure(name, *kinds), machine)
    assert (found, advice.rule) == (take, rule)


def choice(bits: float, rate: float, verdict: str = PARTLY, mixture: bool = False) -> Choice:
    """Of a model of a thousand million weights."""
    speed = replace(any_speed(), generation=rate)
    return Choice(
        verdict,
        "",
        int(bits * 1e9 / 8),
        bits,
        8192,
        8192,
        speed,
        (),
        0,
        True,
        family="one",
        mixture=mixture,
    )


@cache
def any_speed() -> Speed:
    asked = Request.of(["--gpu", "24GiB"], {})
    known = assess(model("llama-3.2-1b-q8_0:2"), asked).speed
    assert known is not None
    return known


@pytest.mark.parametrize(
    ("files", "take"),
    [
        # Q2 is fast and the others are readable: Q4, half as fast as Q3
        ([(2.6, 40), (3.4, 15), (4.5, 12)], 2),
        # a Q4 that is less than half as fast as the readable Q3
        ([(2.6, 40), (3.4, 15), (4.5, 7)], 1),
        ([(2.6, 40), (3.4, 7), (4.5, 4)], 0),  # none above Q2 is readable
        ([(2.6, 6), (3.4, 5), (4.5, 4)], 2),  # all are slow: Q4, as it costs little
        ([(4.5, 30), (5.5, 12), (6.6, 8.1), (8.5, 5)], 2),
        # slower than people read: more bits than Q4 are not worth it
        ([(4.5, 7), (8.5, 5)], 0),
    ],
)
def test_below_reading_speed_the_rate_counts_as_well(
    files: list[tuple[float, float]], take: int
) -> None:
    advice = advise([choice(bits, rate) for bits, rate in files])
    assert advice is not None and advice.take == take


def test_a_mixture_is_read_at_20_tokens_a_second_and_a_dense_model_at_8() -> None:
    for mixture, verdict, take in ((False, PARTLY, 1), (True, EXPERTS, 0)):
        advice = advise([choice(4.5, 30, verdict, mixture), choice(6.6, 12, verdict, mixture)])
        assert advice is not None and advice.take == take
    advice = advise(
        [
            choice(3.4, 90, WHOLLY, True),
            choice(4.5, 30, EXPERTS, True),
            choice(8.5, 25, EXPERTS, True),
        ]
    )
    # Q3 fully on the GPU does not count as good
    assert advice is not None and advice.take == 2
    advice = advise([choice(4.5, 90, WHOLLY, True), choice(8.5, 25, EXPERTS, True)])
    assert advice is not None and advice.take == 0


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("qwen3-30b-a3b-q4_k_m", 4),
        ("qwen3-30b-a3b-q3_k_s", 3),
        ("qwen3-30b-a3b-bf16", 6),
        ("gpt-oss-20b-mxfp4", 4),
        ("llama-3.2-1b-q8_0", 6),
        ("gemma-3-4b-q4_k_m", 4),
    ],
)
def test_a_file_s_level_is_that_of_its_type(name: str, bits: int) -> None:
    file = model(name)
    width = 8 * file.size / sum(info.n_elements for info in file.header.tensors.values())
    assert level(usual(file), None, width) == bits
    # measured of this very file
    assert level(usual(file), Divergence(0.15, 0, None, "log"), width) == 3


def test_the_reason_is_the_rule() -> None:
    def said(*choices: Choice) -> str:
        return advice_words([f"f{i}" for i in range(len(choices))], choices, advise(choices), 8192)

    assert "the largest that is fully on the GPU with 8192 tokens of context" in said(
        choice(4.5, 90, WHOLLY)
    )
    assert "the closest to the original at 8 t/s or more; it is partly in RAM" in said(
        choice(4.5, 9), choice(6.6, 4)
    )
    assert "at 20 t/s or more; it has experts in RAM" in said(
        choice(4.5, 21, EXPERTS, True), choice(3.4, 30, EXPERTS, True)
    )
    assert "the only one that fits; it is partly in RAM, 2.00 t/s; nobody waits for that" in said(
        choice(4.5, 2)
    )
    assert "the fastest at Q4 or above; it is in RAM only" in said(
        choice(4.5, 5, IN_RAM), choice(2.6, 7, IN_RAM)
    )
    assert "the fastest that fits; it is partly in RAM" in said(choice(2.6, 30), choice(4.5, 2))


@pytest.mark.slow
def test_a_model_that_answers_embeddings_is_not_taken_for_one_that_writes() -> None:
    """It is the only one that is fully on the GPU."""
    files = {name: model(name) for name in ("bge-m3-f16", "qwen3-32b-q4_k_m")}
    name, found, _ = taken(files, "--gpu rtx-3060 --ram 32GiB")
    assert name == "qwen3-32b-q4_k_m" and found.inputs is None
    alone, encoder, advice = taken(
        {"bge-m3-f16": files["bge-m3-f16"]}, "--gpu rtx-3060 --ram 32GiB"
    )
    assert alone == "bge-m3-f16" and encoder.inputs is not None and encoder.fluent
    assert "inputs/s of 2048 tokens" in advice_words(["bge-m3-f16"], [encoder], advice, 8192)
