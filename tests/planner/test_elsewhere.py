"""Who has an AMD GPU is not told that another build is predicted to be faster on it."""

from __future__ import annotations

import pytest
from support import model

import autolayers
from autolayers.report.summary import summary
from autolayers.report.table import Style
from autolayers.report.text import plan_text


def plan(name: str, words: str) -> autolayers.Plan:
    return autolayers.plan(model(name), words.split(), explain=True)


def test_the_other_backend_of_a_card_is_named_where_it_is_faster_beyond_the_range() -> None:
    words = "--gpu mi50-32g --ram 32GiB -c 8192"
    found = plan("gpt-oss-20b-mxfp4", words)
    other = found.elsewhere
    assert other is not None and other.backend == "Vulkan"
    launch = f"--gpu mi50-32g --ram 32GiB --backend vulkan {' '.join(other.flags)}"
    then = plan("gpt-oss-20b-mxfp4", launch)
    assert other.speed.generation == pytest.approx(then.speed.generation, rel=0.01)
    assert other.speed.generation > found.speed.generation * found.speed.generation_spread
    assert other.flags == then.flags and found.to_dict()["other_backend"] == other.to_dict()
    # It is another program, and a prediction
    for text in (summary(found, Style(width=200)), plan_text(found, Style(width=200))):
        (line,) = (line for line in text.splitlines() if line.strip().startswith("Vulkan "))
        assert "predicted, on the same GPU: another build of llama.cpp; measure both" in line
    assert then.elsewhere is None and "other_backend" not in then.to_dict()


@pytest.mark.parametrize(
    "words",
    [
        "--gpu rtx-3060 --ram 32GiB",  # one build of llama.cpp is for it
        "--gpu rx-7900-xtx --ram 32GiB",  # predicted within the range
        "--gpu rx-7900-xtx --ram 32GiB --backend sycl",
        "--gpu arc-b580 --ram 32GiB",
    ],
)
def test_nothing_is_said_within_the_range_or_of_one_backend(words: str) -> None:
    assert plan("llama-3.1-8b-q4_k_m:8", f"{words} -c 8192").elsewhere is None
