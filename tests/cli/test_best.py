"""Somebody without a model would read a list that is not theirs, or that a script cannot use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from autolayers.bundled import published
from autolayers.cli import best as command
from autolayers.cli import main
from autolayers.parallel import in_processes
from autolayers.planner.compare import best

MACHINE = ["--gpu", "rtx-3060", "--ram", "32GiB"]
STEMS = ("qwen3.5-4b", "qwen3.8-27b", "deepseek-v4-flash")


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that runs well, one that has three bits here, one that is too large."""
    rows = [published.MODELS[stem] for stem in STEMS]
    monkeypatch.setattr(best, "candidates", lambda job=None: rows)
    yield


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["best", *words]) == 0
    return capsys.readouterr().out


def test_the_answer_the_list_and_what_is_too_large(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal of any width: the models are planned once, and laid out for each."""
    answers: list[Any] = []

    def once(*terms: Any, **more: Any) -> list[Any]:
        answers.extend([] if answers else in_processes(*terms, **more))
        return answers

    monkeypatch.setattr(command, "in_processes", once)
    text = said(capsys, *MACHINE)
    first, answer, *_ = text.splitlines()
    assert first == "models for chat on RTX 3060 12 GB + 32 GB RAM, 16384 tokens of context"
    # 71.8 less the 7 points of a bit are more than 60.0
    assert answer.startswith("take Qwen3.8 27B UD-IQ3_XXS: partly in RAM, 1")
    assert "\n> Qwen3.8 27B " in text and "\n  Qwen3.5 4B " in text
    assert "llama-server -hf unsloth/Qwen3.8-27B-GGUF:UD-IQ3_XXS --no-mmproj -ngl " in text
    assert "too large 1 model with this context, from 97 GiB (DeepSeek V4" in text
    assert "below Q4  Qwen3.8 27B UD-" in text
    assert "index     jakemanger/whatmodel of 20" in text
    for columns in (20, 40, 60, 80, 200):
        no_line_is_wider(columns, capsys, monkeypatch)


@pytest.mark.slow
def test_json_has_every_row_and_its_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [published.MODELS[stem] for stem in (STEMS[0], "lfm2-8b-a1b", STEMS[2])]
    monkeypatch.setattr(best, "candidates", lambda job=None: rows)
    answer = json.loads(said(capsys, *MACHINE, "--for", "code", "--json"))
    assert (answer["schema"], answer["for"], answer["n_ctx"]) == (1, "code", 32768)
    assert [row["title"].split()[0] for row in answer["models"]] == [
        "Qwen3.5",
        "LFM2",
        "DeepSeek",
    ]
    first, _, last = answer["models"]
    assert answer["take"] == first["model"] and answer["command"][:2] == ["llama-server", "-hf"]
    assert answer["command"][1:] == [*first["words"], *first["flags"]]
    assert first["index"] == 60.0 and first["source"].endswith("/qwen3-5-4b.md")
    assert first["rate_low"] < first["rate"] < first["rate_high"]
    assert 0 < first["rate_full"] <= first["rate"] and first["n_ctx"] >= 32768
    assert last["state"] == "no" and last["missing"] > 40 << 30 and last["rate"] == 0


def test_nothing_fits_is_exit_code_5(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best, "candidates", lambda job=None: [published.MODELS[STEMS[2]]])
    assert main(["best", *MACHINE]) == 5
    out = capsys.readouterr().out
    assert "none fits" in out and "llama-server" not in out
    assert main(["best", *MACHINE, "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["take"] is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["model.gguf"], "best takes no model: autolayers choose compares files of one"),
        (["--for", "cards"], "--for"),
        (["--speed", "20"], "--speed"),
        (["--gpu", "rtx-9999"], "rtx-9999"),
    ],
)
def test_what_is_refused(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["best", *words]) == 2
    assert line in capsys.readouterr().err


def no_line_is_wider(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the command, which a pipe has on one line; colour only where it is wanted."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    text = said(capsys, *MACHINE)
    assert "\x1b" not in text
    lines = [line for line in text.splitlines() if not line.startswith("llama-server")]
    # a table's own columns are its least width
    assert max(map(len, lines)) <= max(columns, 44)
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[1m" in said(capsys, *MACHINE)


def test_flags_that_are_given_are_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best, "candidates", lambda job=None: [published.MODELS[STEMS[0]]])
    answer = json.loads(
        said(capsys, *MACHINE, "-ctk", "q8_0", "-ctv", "q8_0", "-c", "8k", "--json")
    )
    assert answer["n_ctx"] == 8192
    assert "-ctk" in answer["command"] and "q8_0" in answer["command"]


def test_a_machine_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent to another flag."""
    monkeypatch.setattr(best, "candidates", lambda job=None: [published.MODELS[STEMS[0]]])
    text = said(capsys, "--gpu", "none", "--ram", "32GiB")
    assert text.startswith("models for chat on the CPU + 32 GB RAM") and "in RAM" in text
