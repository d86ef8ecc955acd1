"""A program that asked for JSON would have to parse a sentence.

What a program reads that asked for JSON and gets an error.
"""

from __future__ import annotations

import json

import pytest
from support import HEADERS

from autolayers.cli import main

FILE = str(HEADERS / "llama-3.2-1b-q8_0.gguf")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["/none/there.gguf", "--json"], 3, "there.gguf"),
        ([FILE, "--gpu", "nonsense-9999", "--json"], 2, "nonsense-9999"),
        (["choose", "/none/there.gguf", "--format", "json"], 3, "there.gguf"),
        (["devices", "--machine", "x.json", "--json"], 2, "no flag of autolayers devices"),
        (["http://user:secret@127.0.0.1:9/m.gguf", "--format=json"], None, "127.0.0.1"),
        (["ollama", "plan", "/none/there.gguf", "--json"], None, "there.gguf"),
        (["ollama", "--json"], 2, "has no command '--json'"),
        (["ollama", "pull", "m", "--json"], 2, "has no command 'pull'"),
    ],
)
def test_what_fails_with_json_prints_the_error_object(
    words: list[str], code: int | None, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As `autolayers serve` answers it; the line on stderr and the exit code stay."""
    found = main(words)
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert (
        answer.keys() == {"error", "exit_code"}
        and answer["exit_code"] == found
        and said in answer["error"]
    )
    assert (
        err.endswith(f"autolayers: {answer['error']}\n")
        and "secret" not in out
        and code in (None, found)
    )


def test_without_json_a_failure_leaves_stdout_empty(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["/none/there.gguf", "--format", "flags"]) == 3 and capfd.readouterr().out == ""


def test_a_llama_server_that_is_not_there_is_said_where_to_get(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["run", "llama-server", "-m", FILE]) == 127
    assert "github.com/ggml-org/llama.cpp/releases" in capfd.readouterr().err


def test_version_is_a_word_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0 and capfd.readouterr().out.startswith("autolayers ")
