"""The plan that docs/reading-a-plan.md explains word by word."""

from __future__ import annotations

from pathlib import Path

import autolayers
from autolayers.records import replace
from autolayers.report.table import Style
from autolayers.report.text import plan_text

FILE = Path(__file__).parents[1] / "fixtures" / "headers" / "qwen3-30b-a3b-q4_k_m.gguf"
WORDS = ("--gpu", "rtx-3060", "--ram", "32GiB")


def plan() -> str:
    """The plan that docs/reading-a-plan.md explains, as an indented block."""
    found = autolayers.plan(autolayers.read_model(FILE), WORDS, explain=True)
    text = plan_text(
        replace(found, noted=()), Style(width=100), command=("llama-server", "-m", FILE.name)
    )
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip().splitlines())
