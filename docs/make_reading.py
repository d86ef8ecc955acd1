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
    """Every key of the JSON, from the table that writes it: an object a line, and what an earlier
    one says of the same keys is not said again."""
    objects: dict[str, dict[str, str]] = {}
    for row in rows("keys.csv"):
        parent, _, leaf = row["key"].rpartition(".")
        key = f"*`{leaf}`*" if row["form"][:1] == "?" else f"`{leaf}`"
        unit = "" if row["unit"] in ("", "bytes", "tokens/s") else f" ({row['unit']})"
        objects.setdefault(parent, {})[key] = row["says"] + unit
    lines = []
    for number, (name, keys) in enumerate(objects.items()):
        earlier = list(objects.items())[:number]
        like, same = max(
            ((other, said.items() & keys.items()) for other, said in earlier),
            key=lambda shared: len(shared[1]),
            default=("", set()),
        )
        alike = {key for key, _ in same} if len(same) > 2 else set()
        told = [f"{key} {said}" for key, said in keys.items() if key not in alike]
        if alike:
            told.append(f"as in `{like}`: {', '.join(key for key in keys if key in alike)}")
        lines.append(f"- {f'`{name}`' if name else 'the plan'}: {', '.join(told)}")
    return "\n".join(lines)


def decisions() -> str:
    """docs/decisions.txt: launches with all that was measured beside them, by `--why`."""
    large = "llama-3.3-70b-q4_k_m.gguf"
    asked = (
        f"{FIRST.name} --gpu 12GiB --ram 64GiB --users 8",
        "../more/headers/bge-m3-f16.gguf --gpu 4GiB --ram 16GiB",
        f"{large} -md llama-3.2-1b-q8_0.gguf --gpu 24GiB,24GiB --ram 64GiB",
        f"{large} --gpu rtx-3090,rtx-3060,8GiB --ram 64GiB",
        f"{large} --gpu rtx-3090,rtx-3060 --ram 64GiB",
    )
    shown = []
    for line in asked:
        words = [str(HEADERS / w) if w.endswith(".gguf") else w for w in line.split()]
        found = why(autolayers.read_model(words[0]), Request.of(words[1:]))
        command = " ".join(Path(w).name if w.endswith(".gguf") else w for w in line.split())
        shown.append(f"$ autolayers {command} --why\n{why_text(found, Style(width=150))}")
    return "\n\n".join(text.rstrip() for text in shown) + "\n"


PARTS = {
    "a screen": screen,
    "a first plan": first,
    "json keys": json_keys,
}


def _block(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip().splitlines())
