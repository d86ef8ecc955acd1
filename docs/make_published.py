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

import autolayers
from autolayers import Plan, bundled

ROWS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "published.jsonl"
WANTED = ("-c", "-ctk", "-ctv", "-np")
SAME = 1.02  # less is no difference

HEAD = """\
## Launches that users publish

Launches from guides, threads and benchmarks (`fixtures/published.jsonl`), and what autolayers plans
for the same machine, context, cache types and slots. Benchmarks with less than 4096 tokens of
context have 4096 here. **t/s**: published, predicted for their launch, and predicted for ours;
**time**: predicted seconds of a request with their launch, divided by those with ours.

| model | machine | published launch | t/s | predicted | ours | predicted | time | why it differs |
|---|---|---|---:|---:|---|---:|---:|---|
"""


def rows() -> list[dict[str, object]]:
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def both(row: dict[str, object]) -> tuple[Plan, Plan]:
    """The plan of the published flags, and of what is wanted."""
    words = str(row["flags"]).split()
    wanted = [
        word
        for name, value in itertools.pairwise(words)
        if name in WANTED
        for word in (name, value)
    ]
    machine = ["--gpu", str(row["gpu"]), *(["--ram", f"{row['ram']}GiB"] if row["ram"] else [])]
    model = bundled.read(str(row["model"]))
    return autolayers.plan(model, [*words, *machine]), autolayers.plan(model, [*wanted, *machine])


def why(theirs: Plan, ours: Plan) -> str:
    """What differs, and why."""
    found = []
    short = [
        f"{-row.remaining >> 20} MiB more than {row.name} has to give"
        for row in theirs.devices
        if row.remaining < 0
    ]
    if not theirs.fits:
        found.append("takes " + " and ".join(short) if short else "takes more RAM than there is")
    gain = theirs.speed.request / ours.speed.request
    if theirs.placement != ours.placement:
        there, here = theirs.placement.split(", "), ours.placement.split(", ")
        found.append(
            f"{', '.join([part for part in here if part not in there]) or 'nothing in RAM'} "
            f"instead of "
            f"{', '.join([part for part in there if part not in here]) or 'nothing'}"
        )
    elif gain >= SAME and len(theirs.devices) > 1:
        used = [sum(row.model > 0 for row in plan.devices) for plan in (theirs, ours)]
        found.append(
            "fewer GPUs, which hand over less often"
            if used[1] < used[0]
            else "other layers on each GPU"
        )
    if (sizes := (theirs.breakdown.n_ubatch, ours.breakdown.n_ubatch))[0] != sizes[1]:
        found.append(f"-ub {sizes[1]} instead of {sizes[0]}")
    return (
        "; ".join(found) if not theirs.fits or gain >= SAME else "as fast" if found else "the same"
    )


def line(row: dict[str, object]) -> str:
    theirs, ours = both(row)
    source = str(row["source"])
    flags = _code(str(row["flags"]))
    cells = [
        row["model"],
        f"{row['gpu']}, {row['ram']} GiB" if row["ram"] else row["gpu"],
        f"{flags} [there]({source})" if source.startswith("http") else flags,
        "" if row["measured"] is None else f"{float(str(row['measured'])):.1f}",
        f"{theirs.speed.generation:.1f}",
        _code(" ".join(ours.flags)),
        f"{ours.speed.generation:.1f}",
        f"{theirs.speed.request / ours.speed.request:.2f}",
        why(theirs, ours),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def render() -> str:
    lines = []
    for row in rows():
        lines.append(line(row))
        print(lines[-1], file=sys.stderr, flush=True)
    return HEAD + "\n".join(lines) + "\n"
