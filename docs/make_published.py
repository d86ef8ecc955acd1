"""Launches that users publish, beside autolayers' own: a part of docs/plans.md.

fixtures/published.jsonl has a row for each: model, GPUs, GiB of RAM (0: the GPU's own machine),
flags, tokens/s if they were published, and where. Asked is what the user wants: their context,
cache types and slots. tests/decisions/test_published.py holds that none is faster than the answer.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
from collections.abc import Sequence

import autolayers
from autolayers import Plan, bundled

ROWS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "published.jsonl"
WANTED = ("-c", "-ctk", "-ctv", "-np")
SAME = 1.02  # less is no difference

HEAD = """\
## Launches that users publish

Launches from guides, threads and benchmarks (`fixtures/published.jsonl`), and what autolayers plans
for the same machine and what was *asked*: context, cache types and slots (less than 4096 tokens of
context: 4096). Where no `-ngl` stands all layers are on GPUs, and where no `-b` stands it is as
`-ub`. **t/s**: published, predicted for their launch, and for ours; **time**: predicted seconds of
a request with their launch, divided by those with ours.

| model | machine | asked | published launch | ours | t/s | theirs | ours | time |
|---|---|---|---|---|---:|---:|---:|---:|
"""
AS_FAST = "As fast as ours: "


def rows() -> list[dict[str, object]]:
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def both(row: dict[str, object]) -> tuple[Plan, Plan]:
    """The plan of the published flags, and of what is wanted."""
    words = str(row["flags"]).split()
    machine = ["--gpu", str(row["gpu"]), *(["--ram", f"{row['ram']}GiB"] if row["ram"] else [])]
    model = bundled.read(str(row["model"]))
    wanted = asked(words).split()
    return autolayers.plan(model, [*words, *machine]), autolayers.plan(model, [*wanted, *machine])


def slower(theirs: Plan, ours: Plan) -> bool:
    """Whether a launch is clearly slower than ours, or does not fit."""
    return not theirs.fits or theirs.speed.request >= SAME * ours.speed.request


def line(row: dict[str, object], theirs: Plan, ours: Plan) -> str:
    """A launch that is slower."""
    words, source = str(row["flags"]).split(), str(row["source"])
    cells = [
        row["model"],
        machine(row),
        _code(asked(words)),
        _code(own(words, theirs)) + (f" [there]({source})" if source.startswith("http") else ""),
        _code(own(ours.flags, ours)),
        "" if row["measured"] is None else f"{float(str(row['measured'])):.1f}",
        f"{theirs.speed.generation:.1f}",
        f"{ours.speed.generation:.1f}",
        f"{theirs.speed.request / ours.speed.request:.2f}" if theirs.fits else "does not fit",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def machine(row: dict[str, object]) -> str:
    """The GPUs, and the RAM of those that are no machine."""
    cards = str(row["gpu"]).split(",")
    shown = f"{len(cards)}x{cards[0]}" if len({*cards}) == 1 < len(cards) else ",".join(cards)
    return f"{shown}, {row['ram']} GiB" if row["ram"] else shown


def asked(words: Sequence[str]) -> str:
    """What the answer keeps of a launch."""
    pairs = itertools.pairwise(words)
    return " ".join(f"{name} {value}" for name, value in pairs if name in WANTED)


def own(words: Sequence[str], plan: Plan) -> str:
    """The other flags of a launch, without an -ngl of all layers and a -b like -ub."""
    pairs = list(itertools.pairwise(words))
    left_out = {
        i + after
        for i, (name, value) in enumerate(pairs)
        if name in WANTED
        or (name == "-ngl" and int(value) > plan.n_layer)
        or (name == "-b" and ("-ub", value) in pairs)
        for after in (0, 1)
    }
    return " ".join(word for i, word in enumerate(words) if i not in left_out)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def render() -> str:
    lines, alike = [], []
    for row in rows():
        theirs, ours = both(row)
        if slower(theirs, ours):
            lines.append(line(row, theirs, ours))
        else:
            alike.append(f"{row['model']} on {machine(row)}")
        print(row["model"], row["gpu"], file=sys.stderr, flush=True)
    return f"{HEAD}{chr(10).join(lines)}\n\n{AS_FAST}{'; '.join(alike)}.\n"
