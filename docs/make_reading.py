"""The plans that docs/reading-a-plan.md and README.md show, and explain word by word."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import autolayers
from autolayers.planner.why import why
from autolayers.records import replace
from autolayers.report.summary import head, summary
from autolayers.report.table import Style
from autolayers.report.why import why_text
from autolayers.request import Request
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


def first() -> str:
    """How README's first command answers on a terminal."""
    found = autolayers.plan(autolayers.read_model(FIRST), ("--gpu", "24GiB"))
    path = FIRST.relative_to(Path(__file__).parents[1]).as_posix()
    return _block(head(found, TERMINAL, command=("llama-server", "-m", path)))


def json_keys() -> str:
    """Every key of the JSON, from the table that writes it; alike ones of several parts once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows("keys.csv"):
        leaf = row["key"].rpartition(".")[2]
        unit = "" if row["unit"] in ("", "bytes", "tokens/s") else f" ({row['unit']})"
        said = row["says"] + unit
        key = f"`{row['key']}`"
        alike.setdefault((leaf, said), []).append(f"*{key}*" if row["form"][:1] == "?" else key)
    lines = [f"| {', '.join(keys)} | {said} |" for (_, said), keys in alike.items()]
    return "\n".join(["| key | is |", "|---|---|", *lines])


def decisions() -> str:
    """Launches with all that was measured beside them: `--why`."""
    eight, large = FIRST.name, "llama-3.3-70b-q4_k_m.gguf"
    asked = {
        "Eight people": f"{eight} --gpu 12GiB --ram 64GiB --users 8",
        "24 and 12 GiB": f"{large} --gpu rtx-3090,rtx-3060 --ram 64GiB",
    }
    shown = []
    for title, line in asked.items():
        words = [str(HEADERS / w) if w.endswith(".gguf") else w for w in line.split()]
        request = Request.of(words[1:])
        found = why(autolayers.read_model(words[0]), request)
        command = " ".join(Path(w).name if w.endswith(".gguf") else w for w in line.split())
        text = f"$ autolayers {command} --why\n{why_text(found, Style(width=150))}"
        shown.append(f"{title}:\n\n{_block(text)}")
    return "\n\n".join(shown)


PARTS = {
    "a screen": screen,
    "a first plan": first,
    "json keys": json_keys,
    "two decisions": decisions,
}


def _block(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip().splitlines())
