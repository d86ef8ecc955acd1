"""docs/several.md: its examples, run with files of the sizes that their headers promise."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support import HEADERS, ROOT, check_examples, model

from autolayers.cli import main

FILES = ("llama-3.1-8b-q4_k_m", "gemma-3-4b-q8_0", "gpt-oss-20b-mxfp4", "qwen3-30b-a3b-q4_k_m", "qwen2.5-7b-q4_k_m")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of models, which is the working directory too."""
    for name in FILES:
        file = tmp_path / f"{name}.gguf"
        shutil.copy(HEADERS / file.name, file)
        (warning,) = model(name).header.warnings
        os.truncate(file, int(warning.rpartition("promises ")[2]))      # sparse
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_the_documented_examples(library: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run(words: list[str]) -> str:
        assert main([*words, *([] if "--format" in words else ["--format", "text"])]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return out

    assert check_examples(ROOT / "docs" / "several.md", run) == 2
