"""Anyone who pipes a plan would not hear of a much faster one, or hear of it in each line.

On a pipe and under `run`, one line where a known change is much faster; on a terminal the
smaller file as well.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import FIXTURES, HEADERS, few, model, slow

import autolayers
from autolayers.cli import main
from autolayers.report.text import smaller_words

DENSE_32B = str(FIXTURES / "speeds" / "models" / "qwen3-32b-q4_k_m.gguf")
DENSE_70B = str(HEADERS / "llama-3.3-70b-q4_k_m.gguf")
SLOW = "tokens/s: a file of iq2_xxs (16.9 GiB) or a smaller model would be wholly on the GPU"


@pytest.mark.parametrize(
    "words",
    few(
        2,
        [
            [DENSE_32B, "--gpu", "rtx-3090", "--ram", "64GiB", "-c", "32768", "--format", "flags"],
            [
                "run",
                "--dry-run",
                "--gpu",
                "rtx-3090",
                "--ram",
                "64GiB",
                "llama-server",
                "-m",
                DENSE_32B,
                "-c",
                "32768",
            ],
        ],
    ),
)
def test_a_cache_that_brings_all_weights_onto_the_gpu_is_one_line(
    words: list[str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A q8_0 cache is 4.7 times faster there, and stderr was empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for _ in range(2):  # `run` keeps the plan, and says it again
        assert main(words) == 0
        out, err = capfd.readouterr()
    (line,) = (line for line in err.splitlines() if "q8_0" in line)
    assert line.endswith(", with -ngl 65 -c 32768 -ctk q8_0 -ctv q8_0") and "q8_0" not in out
    then, now = map(float, re.findall(r"about ([\d.]+) tokens/s instead of ([\d.]+),", line)[0])
    assert then > 1.5 * now
    assert main([*words, "-ctk", "q8_0", "-ctv", "q8_0"]) == 0
    assert "about " not in capfd.readouterr().err


def test_the_rate_is_that_of_the_plan_with_the_flags() -> None:
    words = ["--gpu", "rtx-3090", "--ram", "64GiB", "-c", "32768"]
    found = autolayers.plan(DENSE_32B, words, advise=True)
    assert found.faster is not None and found.smaller is None
    with_it = autolayers.plan(DENSE_32B, [*words, *found.faster.flags])
    assert with_it.fits and with_it.speed.generation == found.faster.rate


@pytest.mark.slow
def test_a_model_that_is_too_slow_is_told_what_its_card_holds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main([DENSE_70B, "--gpu", "rtx-3090", "--ram", "64GiB", "--format", "flags"]) == 0
    assert SLOW in capfd.readouterr().err
    assert (
        main([DENSE_70B, "--gpu", "rtx-3060", "--ram", "64GiB", "-c", "32768", "--format", "flags"])
        == 0
    )
    assert (
        "no quantisation of this model is wholly on the GPU at this context"
        in capfd.readouterr().err
    )
    assert main([DENSE_70B, "-dev", "none", "--ram", "64GiB", "--format", "flags"]) == 0
    assert "a smaller file or model is faster" in capfd.readouterr().err


@pytest.mark.slow
def test_a_slow_launch_without_a_better_file_says_so_at_any_slow_rate() -> None:
    """Llama 70B at 1.1 tokens/s had the line, Gemma 27B at 4.7 on the same card had not."""
    path = FIXTURES / "speeds/models/gemma-3-27b-q4_k_m.gguf"
    found = autolayers.plan(str(path), ["--gpu", "rtx-3060", "--ram", "32GiB"], explain=True)
    assert 3 < found.speed.generation < 8 and found.smaller is not None
    assert found.smaller.type == "" and "at Q3 or above is wholly" in smaller_words(found)


def test_the_file_that_is_named_runs_as_said() -> None:
    words = ["--gpu", "rtx-3060", "--ram", "32GiB", "-c", "16384"]
    whole = model("qwen3-14b-q5_k_m")
    found = autolayers.plan(whole, words, explain=True)
    # at Q4 or above: not too slow as it is
    assert found.smaller is not None and found.smaller.type == "q4_K"
    file = whole.quantised("q4_K", larger=True)
    then = autolayers.plan(file, words)
    assert found.smaller.size == file.size and then.n_gpu_layers == then.n_layer + 1
    assert then.speed.generation == pytest.approx(found.smaller.rate, rel=0.01)
    assert json.loads(json.dumps(found.to_dict()))["smaller_file"]["type"] == "q4_K"


@pytest.mark.parametrize("name", [slow("qwen3-30b-a3b-q4_k_m"), "llama-3.1-8b-q4_k_m"])
def test_nothing_is_said_of_a_plan_that_is_as_fast_as_it_gets(name: str) -> None:
    found = autolayers.plan(model(name), ["--gpu", "rtx-3060", "--ram", "32GiB"], advise=True)
    assert found.faster is None and found.smaller is None
