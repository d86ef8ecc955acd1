"""Writes docs/best.md: the ranking of `autolayers best` beside public lists, and what people ask.

    python docs/make.py best        (minutes; not among what make.py makes or checks unasked)

lists.csv has what the lists take for a size of memory, with their addresses.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from csv import DictReader
from pathlib import Path
from typing import NamedTuple

from make_terminal import screen_of

from autolayers import bundled
from autolayers.bundled import published
from autolayers.parallel import in_processes
from autolayers.planner.compare import best
from autolayers.report.table import rounded
from autolayers.request import Request

HERE = Path(__file__).resolve().parent
FIRST_SCREEN = 24  # lines of a terminal of 80 columns
# How people call it, its flags, and the memory that lists would count
CARDS = (
    ("RTX 4060, 32 GB", "--gpu rtx-4060 --ram 32GiB", "8"),
    ("RTX 3060, 32 GB", "--gpu rtx-3060 --ram 32GiB", "12"),
    ("RTX 5060 Ti 16 GB, 32 GB", "--gpu rtx-5060-ti-16g --ram 32GiB", "16"),
    ("RX 9070 XT, 32 GB", "--gpu rx-9070-xt --ram 32GiB", "16"),
    ("M4 Pro 24 GB", "--gpu m4-pro-24g", "16"),
    ("RTX 3090, 32 GB", "--gpu rtx-3090 --ram 32GiB", "24"),
    ("RTX 4090, 64 GB", "--gpu rtx-4090 --ram 64GiB", "24"),
    ("2 x RTX 3090, 64 GB", "--gpu rtx-3090,rtx-3090 --ram 64GiB", "48"),
)


class Person(NamedTuple):
    """Somebody's question, the command, and what of the screen answers it."""

    who: str
    asks: str
    words: str
    answer: str


PEOPLE = (
    Person(
        "has an old blog's command",
        "is it any good?",
        "compare --gpu rtx-3060 --ram 32GiB -- ./main -m qwen3-8b-q4_k_m.gguf -ngl 20 -c 4096 -i",
        r"yours writes .* tokens/s, this one",
    ),
    Person(
        "has a 4090 and a small draft",
        "is the draft worth it?",
        "qwen3-32b-q4_k_m.gguf -md qwen3-0.6b-q8_0.gguf --gpu rtx-4090 --ram 64GiB -c 16k",
        r"faster +\d+ tokens/s",
    ),
    Person(
        "has a Mac of 16 GB and an agent",
        "does Gemma 3 12B run on its GPU?",
        "gemma-3-12b-q4_k_m.gguf --gpu m4-16g --workload agent",
        r"49 of 49 layers on the GPU",
    ),
    Person(
        "has a Mac of 64 GB",
        "may its GPU use more memory?",
        "gpt-oss-120b-mxfp4.gguf --gpu m4-max-64g",
        r"iogpu\.wired_limit_mb=\d+",
    ),
    Person(
        "has a Mac of 24 GB",
        "CPU or GPU?",
        "gemma-3-27b-q4_k_m.gguf --gpu m4-pro-24g",
        r"63 of 63 layers on the GPU",
    ),
    Person(
        "has cards of 24, 16 and 8 GB",
        "which gets how much of a 70B?",
        "llama-3.3-70b-q4_k_m.gguf --gpu 24GiB,16GiB,8GiB --ram 64GiB",
        r"-ts [\d,]+",
    ),
    Person(
        "serves 32 users on 8 H100",
        "how fast for each?",
        "gpt-oss-120b-mxfp4.gguf --gpu 8xh100-80g --ram 1TiB --users 32",
        r"tokens/s for each of 32 users",
    ),
    Person(
        "wants to buy a card",
        "which run Qwen3 30B with 32k?",
        "choose qwen3-30b-a3b-q4_k_m.gguf --for cards -c 32k",
        r"^ +rtx-3090 .*$",
    ),
    Person(
        "has a laptop of 6 GB",
        "which model?",
        "best --gpu rtx-4050-laptop --ram 16GiB",
        r"^take .*: wholly on the GPU",
    ),
    Person(
        "has a Strix Halo and agents",
        "which model?",
        "best --for agents --gpu strix-halo-128g",
        r"^take .*: wholly on the GPU",
    ),
    Person(
        "is new, with an RTX 4060",
        "which model, and how?",
        "best --gpu rtx-4060 --ram 32GiB",
        r"^take .*",
    ),
)
HEAD = """\
# Which model: next to other lists, and for people

Made by `python docs/make.py best`; do not edit.

## Next to three public lists

The first three of `autolayers best` for chat with 16k of context, and what public lists take for as
much memory, each with why it is not first here (older: than the first here). Lists go by the memory
of the card alone; experts in RAM, the context and the speed are what they leave out.
"""
PEOPLE_HEAD = """
## What people ask, and the command

A terminal of 80 columns and 24 lines shows the answer (`tests/cli/test_people.py`).
"""


def why(stem: str, rows: Sequence[best.BestRow]) -> str:
    """Return why this model is not the first of the rows, in a few words."""
    first, model = rows[0], published.MODELS[stem]
    if stem == first.model.stem:
        return "the same"
    row = next((row for row in rows if row.model.stem == stem), None)
    if row is None:
        return f"of {model.released}, {_months(model.released, first.model.released)} months older"
    if row.state == best.NO:
        return "too large here"
    if row.state == best.SLOW:
        return f"slow here, {rounded(row.choice.rate)} tokens/s"
    return f"number {rows.index(row) + 1} here, index {row.quality:.1f} and not {first.quality:.1f}"


def _months(old: str, new: str) -> int:
    (a, b), (c, d) = (map(int, month.split("-")) for month in (old, new))
    return 12 * (c - a) + d - b


def ranking(words: str) -> list[best.BestRow]:
    job = best.JOBS["chat"]
    request = job.asked(Request.of(words.split(), {}))
    return best.ordered(best.take(model, request, job) for model in best.candidates(job))


def beside(lists: Sequence[dict[str, str]]) -> Iterator[str]:
    names = list(dict.fromkeys(row["list"] for row in lists))
    yield f"| | `autolayers best` | {' | '.join(names)} |"
    yield "|---" * (2 + len(names)) + "|"
    found = in_processes(ranking, [words for _, words, _ in CARDS])
    for (card, _, memory), rows in zip(CARDS, found, strict=True):
        if isinstance(rows, Exception):
            raise rows
        first = "<br>".join(
            f"{row.model.name} {row.kind}, {rounded(row.choice.rate)} t/s" for row in rows[:3]
        )
        cells = []
        for name in names:
            taken = [row for row in lists if (row["list"], row["memory"]) == (name, memory)]
            cells.append(f"{taken[0]['said']}: {why(taken[0]['model'], rows)}" if taken else "none")
        yield f"| {card} | {first} | {' | '.join(cells)} |"
    yield ""
    told = {row["list"]: f"[{row['list']}]({row['address']}), {row['dated']}" for row in lists}
    yield f"Lists: {'; '.join(told.values())}."
    yield "`autolayers measured` has what people measured of a model."


def screen(person: Person, folder: Path) -> list[str]:
    """Return the lines of a terminal of 80 columns after the person's command."""
    for name in re.findall(r"\S+(?=\.gguf)", person.words):
        data = bundled.data(name)
        with (folder / f"{name}.gguf").open("wb") as file:
            file.write(data)
            # As large as the whole file, of which the rest is a hole
            file.truncate(len(data) + bundled.read(name).size + (1 << 20))
    lines = screen_of(person.words.split(), 80, rows=90, seconds=600, folder=folder).display
    return [line.rstrip() for line in lines]


def answer(person: Person, lines: Sequence[str]) -> tuple[int, str]:
    """Return the line that has the answer, counted from 1, and what it says; 0 if none has."""
    for at, line in enumerate(lines, 1):
        if re.search(person.answer, line):
            return at, line.strip()
    return 0, ""


def render() -> str:
    with (HERE / "lists.csv").open(encoding="utf-8", newline="") as file:
        lists = list(DictReader(file))
    people = [f"- {each.who}: {each.asks} `{each.words}`" for each in PEOPLE]
    return "\n".join([HEAD, *beside(lists), PEOPLE_HEAD, *people, ""])


if __name__ == "__main__":
    sys.stdout.write(render())
