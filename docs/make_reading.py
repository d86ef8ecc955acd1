"""The plans that docs/reading-a-plan.md and README.md show, and explain word by word."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import autolayers
from autolayers.records import replace
from autolayers.report.summary import head, summary
from autolayers.report.table import Style
from autolayers.report.text import plan_text
from autolayers.tables import rows

HEADERS = Path(__file__).parents[1] / "fixtures" / "headers"
MIXTURE = HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"
FIRST = HEADERS / "llama-3.1-8b-q4_k_m.gguf"
WORDS = ("--gpu", "rtx-3060", "--ram", "32GiB")
# as a terminal of this width shows it
TERMINAL = Style(width=80, drawn=True, blocks=True)


@cache
def _plan() -> autolayers.Plan:
    found = autolayers.plan(autolayers.read_model(MIXTURE), WORDS, explain=True)
    return replace(found, noted=())


def screen() -> str:
    """What the plain command prints on a terminal."""
    return _block(summary(_plan(), TERMINAL, command=("llama-server", "-m", MIXTURE.name)))


def table() -> str:
    """What it prints with --table."""
    style = Style(width=100)
    return _block(plan_text(_plan(), style, command=("llama-server", "-m", MIXTURE.name)))


def first() -> str:
    """How README's first command answers on a terminal."""
    found = autolayers.plan(autolayers.read_model(FIRST), ("--gpu", "24GiB"))
    path = FIRST.relative_to(Path(__file__).parents[1]).as_posix()
    return _block(head(found, TERMINAL, command=("llama-server", "-m", path)))


def json_keys() -> str:
    """Every key of the JSON, from the table that writes it."""
    lines = ["| key | unit | is | from |", "|---|---|---|---|"]
    for row in rows("keys.csv"):
        key = f"`{row['key']}`"
        key = f"*{key}*" if row["form"].startswith("?") else key
        source = "" if row["form"] == "literal" or row["from"] == "." else f"`{row['from']}`"
        lines.append(f"| {key} | {row['unit']} | {row['says']} | {source} |")
    return "\n".join(lines)


PARTS = {"a screen": screen, "a table": table, "a first plan": first, "json keys": json_keys}


def _block(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip().splitlines())
