"""`autolayers compare -- llama-server ...`: somebody's command beside a better one."""

from __future__ import annotations

import json

import pytest
from support import HEADERS, ROOT, check_examples

from autolayers.cli import main

MODEL = str(HEADERS / "qwen3-30b-a3b-q4_k_m.gguf")
MACHINE = ["--gpu", "rtx-3060", "--ram", "32GiB"]


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    code = main(["compare", *MACHINE, "--json", "--", *words])
    return code, json.loads(capsys.readouterr().out)


def test_whole_layers_in_ram_lose_to_experts_in_ram(capsys: pytest.CaptureFixture[str]) -> None:
    code, both = compared(capsys, "llama-server", "-m", MODEL, "-ngl", "20", "-c", "16384")
    yours, better = both["yours"], both["better"]
    assert code == 0 and both["is_better"]
    assert yours["launch"]["n_gpu_layers"] == 20 and yours["fits"]
    # the wish stays, the means do not
    assert yours["launch"]["n_ctx"] == better["launch"]["n_ctx"] == 16384
    assert better["launch"]["n_gpu_layers"] == 49
    rate = "generation_tokens_per_second"
    assert better["speed"][rate] > 1.5 * yours["speed"][rate]
    assert both["text"].startswith("yours writes 22") and "this one 39" in both["text"]


def test_what_does_not_fit_is_said_with_what_does(capsys: pytest.CaptureFixture[str]) -> None:
    code, both = compared(capsys, "llama-server", "-m", MODEL, "-ngl", "99", "-c", "32768")
    assert code == 0 and not both["yours"]["fits"] and both["better"]["fits"]
    assert "missing on CUDA0; this one does" in both["text"]


@pytest.mark.slow
def test_the_better_command_keeps_every_word_that_is_a_wish(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--jinja", "--port", "8090", "-ctk", "q8_0", "-ctv", "q8_0", "-np", "2"]
    _, both = compared(capsys, "llama-server", "-m", MODEL, "-ot", "exps=CPU", *words)
    taken = " ".join(both["words"])
    for word in ("--jinja", "--port 8090", "-ctk q8_0", "-ctv q8_0", "-np 2"):
        assert word in taken
    assert "exps=CPU" not in taken


@pytest.mark.slow
def test_two_launches_stand_side_by_side_on_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell stood on a line of its own: the longest was a sentence on experts."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", *MACHINE, "--", "llama-server", "-m", MODEL, "-ngl", "20"]) == 0
    said = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(said) if line.startswith("where"))
    assert said[at].endswith("49 of 49 layers on the GPU") and " in RAM" in said[at + 1]


def test_a_good_command_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    small = str(HEADERS / "llama-3.1-8b-q4_k_m.gguf")
    words = ["llama-server", "-m", small, "-ngl", "99", "-c", "16384"]
    assert main(["compare", *MACHINE, "--", *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("yours is as good as it gets here") and "better" not in said


@pytest.mark.slow
def test_another_program_gets_only_words_that_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    _, both = compared(capsys, "llama-cli", "-m", MODEL, "-ngl", "10")
    assert both["is_better"] and "-np" not in both["words"]


def test_no_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare"]) == 2
    assert "nothing to compare" in capsys.readouterr().err


def test_a_command_that_llama_cpp_refuses_is_shown_a_better_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ended with llama.cpp's line, though another launch with the same wishes runs."""
    words = ["llama-server", "-m", MODEL, "-sm", "row", "-c", "16384"]
    code, both = compared(capsys, *words)
    assert code == 0 and both["is_better"] and both["yours"] is None
    assert "split buffers" in both["refused"]
    assert both["text"].startswith(f"yours is refused: {both['refused']}; this one writes ")
    assert both["better"]["launch"]["n_ctx"] == 16384 and "row" not in both["words"]
    assert main(["compare", *MACHINE, "--", *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("yours is refused: ") and "llama-server -m" in said


@pytest.mark.slow
def test_the_documented_example_prints_what_the_page_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It showed rates of an earlier prediction."""
    monkeypatch.chdir(HEADERS)

    def run(words: list[str]) -> str:
        command = words.index("--")
        assert main([*words[:command], "--json", *words[command:]]) == 0
        return str(json.loads(capsys.readouterr().out)["text"])

    assert check_examples(ROOT / "docs" / "launch.md", run) == 1
