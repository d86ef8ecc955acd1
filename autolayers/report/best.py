"""Which model, as text: the answer, a row for each that runs, and a line for what does not."""

from __future__ import annotations

import re
from math import ceil

from ..planner.compare.best import POOR_COSTS, SLOW, TIGHT, WELL, BestRow, Job
from ..planner.compare.choose import EXPERTS, IN_RAM, NO, PARTLY, WHOLLY, wanted_ctx
from ..units import GiB
from .command import command_lines
from .picture import machine_of
from .table import Style, labelled, ranged, rounded, stacked, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..request import Request

_MAKER = re.compile(r"^(NVIDIA (GeForce )?|AMD |Intel )")
_STATE = {WELL: "runs well", TIGHT: "tight", SLOW: "slow"}
_WHERE = {WHOLLY: "GPU", EXPERTS: "GPU, experts in RAM", PARTLY: "partly in RAM", IN_RAM: "RAM"}
_RUNS = {
    WHOLLY: "wholly on the GPU",
    EXPERTS: "on the GPU with experts in RAM",
    PARTLY: "partly in RAM",
    IN_RAM: "in RAM",
}


def ranking_text(
    job: Job, rows: Sequence[BestRow], request: Request, command: Sequence[str], style: Style
) -> str:
    """Return the answer, the list in its order, and notes. `command` starts the first."""
    runs = [row for row in rows if row.state != NO]
    n_ctx = wanted_ctx(request)
    title = f"models for {job.name} on {machine_words(request)}, {n_ctx} tokens of context"
    lines = wrap(title, style.width)
    lines += style.wrapped(_answer(runs, job), "bold")
    marks = {i: "dim" for i, row in enumerate(runs) if row.state == SLOW}
    if runs:
        marks[0] = "bold"
        head = ("  model", "index", "", "t/s*", "full*", "GiB", "file", "where", "released")
        cells = [
            [
                f"{'  ' if i else '> '}{row.model.name}",
                f"{row.quality:.1f}" if row.model.index else f"~{row.quality:.0f}",
                _STATE[row.state],
                rounded(row.choice.rate),
                rounded(row.choice.full),
                f"{row.choice.size / GiB:.1f}",
                row.kind,
                _WHERE[row.choice.verdict],
                row.model.released,
            ]
            for i, row in enumerate(runs)
        ]
        # Where it is too wide the date goes first, then the file, which the command names
        lines += ["", *stacked(head, cells, style, (0, 2, 6, 7), marks, less=(8, 6, 4, 5))]
    if command:
        lines += ["", *command_lines(command, style)]
    lines.append("")
    # A label and its text, which is empty where there is nothing to say
    tight = "; ".join([f"{row.model.name}: {_left(row)}" for row in runs if row.state == TIGHT])
    poor = ", ".join(
        [f"{row.model.name} {row.kind}" for row in runs if row.state != SLOW and row.poor]
    )
    loss = f": an index is of the whole model; each bit less counts as {POOR_COSTS:.0f} points"
    large, too_large = [row for row in rows if row.state == NO], ""
    if large:
        least = f"{large[0].choice.size / GiB:.0f} GiB ({large[0].model.name} {large[0].kind})"
        many = "s" * (len(large) > 1)
        too_large = f"{len(large)} model{many} with this context, from {least}"
    told = set()
    for model in [row.model for row in runs if row.model.index]:
        # Whose an index is, of its page's address
        parts = model.source.split("/")
        site = "/".join(parts[3:5]) if "github" in parts[2] else parts[2]
        told.add(f"{site} of {model.dated}")
    none = "; ~: none is published, placed by size and age"
    for label, text in [
        ("tight", tight),
        ("below Q4", poor and poor + loss),
        ("too large", too_large),
        ("index", f"{', '.join(sorted(told))}{none}" if told else ""),
        ("*", f"predicted: tokens per second, and with {n_ctx} tokens in the context"),
    ]:
        lines += labelled(label, [text], style)
    return "\n".join(lines) + "\n"


def _answer(runs: Sequence[BestRow], job: Job) -> str:
    if not runs:
        return "none fits: a smaller context (-c 4096) or a machine with more memory"
    first = runs[0]
    speed = first.choice.speed
    text = f"take {first.model.name} {first.kind}: {_RUNS[first.choice.verdict]}"
    if speed:
        rate = ranged(speed.generation, speed.generation_spread, rounded)
        text += f", {rate[:-1]}; {rounded(first.choice.full)} when its context is full)"
    if first.state == TIGHT:
        text += f"; {_left(first)}"
    if first.state == SLOW:
        text += f"; nothing reaches {job.least:.0f} tokens/s here"
    return text


def _left(row: BestRow) -> str:
    place = "RAM" if row.choice.few_ram else "the GPU's memory"
    return f"{max(0, row.choice.few or 0) / GiB:.1f} GiB of {place} left beyond the margin"


def machine_words(request: Request) -> str:
    """Return the machine in a few words."""
    machine = request.machine
    cards = []
    for device in machine.devices:
        # "NVIDIA GeForce" is not what people call it, and --gpu 24GiB has no name
        name = _MAKER.sub("", device.description or device.name)
        name = "a GPU of" if device.description.startswith("hypothetical") else name
        cards.append(name if device.in_ram else f"{name} {ceil(device.total / GiB)} GB")
    shared = any(device.in_ram for device in machine.devices)
    return machine_of(cards, machine.ram_total or machine.ram, shared)
