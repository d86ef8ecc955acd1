"""People would be told that a quantisation is better than what was measured.

Quality: bands by type, what llama-perplexity printed of a very file, the front of `choose`,
cache types.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import FIXTURES, model

import autolayers
from autolayers.cli import main
from autolayers.flags.params import Params
from autolayers.planner.compare import quality
from autolayers.planner.compare.choose import Choice, compared
from autolayers.planner.remarks import of_cache_types

FILES = [
    str(FIXTURES / folder / f"qwen3-30b-a3b-{name}.gguf")
    for folder, name in (
        ("headers", "q4_k_m"),
        ("speeds/models", "q8_0"),
        ("speeds/models", "q3_k_s"),
        ("speeds/models", "iq4_xs"),
    )
]
OUTPUT = """\
llama_model_loader: loaded meta data with 30 key-value pairs and 9 tensors from {path} \
(version GGUF V3)
print_info: file size   = {size} (4.88 BPW)
====== KL divergence statistics ======
Mean    KLD:   {kld} ±   0.000123
Maximum KLD:   9.123456
Same top p: 94.123 ± 0.123 %
"""


def output(name: str, kld: str, size: str = "") -> str:
    n_bytes = sum(info.n_bytes for info in model(Path(name).stem).header.tensors.values())
    return OUTPUT.format(
        path=f"/elsewhere/{Path(name).name}", size=size or f"{n_bytes / 2**30:.2f} GiB", kld=kld
    )


def test_the_band_is_that_of_the_type_with_its_range() -> None:
    found = quality.usual(model("qwen3-30b-a3b-q4_k_m"))
    assert found is not None and (found.type, found.least, found.most, found.band) == (
        "q4_K",
        0.007,
        0.066,
        "as Q4",
    )
    small = quality.usual(model("llama-3.2-1b-q8_0"))
    assert small is not None and small.small and small.band == "as Q5"
    assert quality.usual(model("qwen3-30b-a3b-bf16")) is None


def test_a_measurement_is_of_the_file_with_that_name_and_size() -> None:
    name = FILES[0]
    (one,) = quality.read(output(name, "0.012345"), "log")
    assert (one.kld, one.error, one.same_top) == (0.012345, 0.000123, 94.123)
    assert quality.of(model("qwen3-30b-a3b-q4_k_m"), [one]) == one
    assert quality.of(model("qwen3-30b-a3b-iq4_xs"), [one]) is None
    assert (
        quality.of(
            model("qwen3-30b-a3b-q4_k_m"), quality.read(output(name, "0.01", "16.02 GiB"), "log")
        )
        is None
    )
    both = quality.read(output(name, "0.02") + output(FILES[1], "0.001"), "log")
    assert [measured.kld for measured in both] == [0.02, 0.001]


@pytest.mark.parametrize(
    ("kld", "other", "bits", "answer"),
    [
        (0.010, 0.012, 1.0, 0),  # less than 0.005 apart
        (0.100, 0.140, 1.0, 0),  # less than a factor of 1.5
        (0.010, 0.030, -1.0, 1),
        (0.100, 0.020, 1.0, -1),
        (None, 0.02, 0.4, 0),
        (None, 0.02, 0.6, 1),
        (None, None, -0.6, -1),
    ],
)
def test_files_are_compared_within_one_source_else_by_half_a_bit(
    kld: float | None, other: float | None, bits: float, answer: int
) -> None:
    def choice(divergence: float | None, width: float) -> Choice:
        measured = None if divergence is None else quality.Divergence(divergence, 0.0, None, "log")
        return Choice("wholly", "", 1, width, 1, 1, None, (), 0, True, measured=measured)

    assert compared(choice(kld, 4 + bits), choice(other, 4)) == answer
    elsewhere = Choice(
        "wholly",
        "",
        1,
        4 + bits,
        1,
        1,
        None,
        (),
        0,
        True,
        measured=quality.Divergence(9, 0, None, "b"),
    )
    assert compared(elsewhere, choice(0.001, 4)) == (
        0 if abs(bits) < 0.5 else 1 if bits > 0 else -1
    )


@pytest.mark.slow
def test_choose_shows_the_front_and_the_measured_divergence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "kld.log"
    log.write_text(output(FILES[0], "0.031000") + output(FILES[3], "0.030000"))
    words = ["choose", *FILES, "--gpu", "rtx-3090", "--ram", "64GiB", "--quality", str(log)]
    assert main([*words, "--json"]) == 0
    files = {file["name"]: file for file in json.loads(capsys.readouterr().out)["files"]}
    assert files["qwen3-30b-a3b-q4_k_m"]["quality"]["measured"] == {
        "kld": 0.031,
        "error": 0.000123,
        "same_top": 94.123,
        "source": str(log),
    }
    assert files["qwen3-30b-a3b-q8_0"]["quality"]["measured"] is None
    # as close by that source, and smaller
    assert files["qwen3-30b-a3b-iq4_xs"]["front"]
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "0.0310" in text and "0.0005 to 0.008" in text and "nearly always closer" in text
    log.write_text("perplexity: 7.1\n")
    assert main(words) == 2 and "Mean KLD" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_taken_is_not_called_beaten(capsys: pytest.CaptureFixture[str]) -> None:
    """ "take q4_k_m: the closest to the original", and below it "another is as small, as fast and
    as close as q4_k_m"."""
    alike = [
        str(FIXTURES / f"speeds/models/qwen3-30b-a3b-{name}.gguf")
        for name in ("ud-q4_k_xl", "q4_0")
    ]
    words = ["choose", FILES[0], *alike, "--gpu", "rtx-3060", "--ram", "32GiB"]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    on_front = {file["name"]: file["front"] for file in answer["files"]}
    taken = answer["advice"]["take"]
    assert taken == "qwen3-30b-a3b-q4_k_m" and on_front[taken]
    assert not on_front["qwen3-30b-a3b-ud-q4_k_xl"]
    assert main(words) == 0
    said = capsys.readouterr().out.partition("not known to be less")[2].partition("*")[0]
    assert "qwen3-30b-a3b-ud-q4_k_xl" in said and taken not in said


@pytest.mark.slow
def test_no_cache_type_below_q8_0_is_chosen_for_more_than_32k_unasked() -> None:
    def plan(words: str) -> autolayers.Plan:
        return autolayers.plan(
            model("llama-3.1-8b-q4_k_m:16"), ["--gpu", "3GiB", "--ram", "64GiB", *words.split()]
        )

    assert plan("-c 32k --kv-types f16,q4_0").params.cache_type_k == "q4_0"
    assert plan("-c 33k --kv-types f16,q8_0,q4_0").params.cache_type_k == "q8_0"
    assert plan("-c 33k -np 2 --kv-types f16,q4_0").params.cache_type_k == "q4_0"  # 16.5k each
    grown = plan("--kv-types f16,q4_0")
    assert grown.params.cache_type_k == "f16" or grown.breakdown.n_ctx <= 32768
    asked = plan("-c 64k --kv-types q4_0")
    assert asked.params.cache_type_k == "q4_0"
    assert any(
        "small models break" in warning and "at shorter contexts" in warning
        for warning in asked.warnings
    )
    assert not any(
        "divergence" in warning for warning in plan("-c 8192 -ctk q8_0 -ctv q8_0").warnings
    )


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ("q4_0 q4_0", "0.002 to 0.024, and small models break"),
        ("q8_0 q4_0", "0.0009"),
        ("f16 q5_1", "0.0018"),
        ("iq4_nl iq4_nl", None),
        ("q4_1 q4_1", None),
        ("q5_0 q5_0", None),
        ("q5_1 q5_1", None),
        ("q4_0 f16", None),
    ],
)
def test_a_cache_type_has_the_figures_of_its_own_row_or_none(types: str, said: str | None) -> None:
    k, v = types.split()
    (warning,) = of_cache_types(Params(cache_type_k=k, cache_type_v=v), 8192)
    assert ("not measured publicly" in warning) is (said is None) and (
        said is None or said in warning
    )
    assert (re.search(r"\d\.\d{3}", warning) is None) is (said is None)
    assert ("small models break" in warning) is (types == "q4_0 q4_0")
    assert not list(of_cache_types(Params(cache_type_k="q8_0", cache_type_v="q8_0"), 8192))
