"""A plan in about thirteen lines, as people post it: model and machine, verdict, bars, command,
alternatives.

The figures of every part and the reasons are in text.py (`--table`); nothing of the memory is left
out of a bar.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from math import ceil

from ..units import GiB, at_least
from .command import command_lines
from .picture import (
    HALF,
    filled,
    grouped,
    held,
    layers,
    machine_of,
    mark,
    name,
    names,
    placed,
)
from .table import Style, ranged, rounded, shortened, wrap
from .text import (
    SHORT,
    broken,
    context_words,
    figures,
    is_sold,
    larger_card,
    remedy_lines,
    said,
    shortage,
    written,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.plan import DeviceRow, Plan

# a cell that is filled from the left by 0 to 7 eighths
_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_LIMIT = "|"  # where a device ends, in a bar of more than it has
_LEAST, _WIDEST = 10, 60  # columns of a bar
_GAP = "   "  # between the parts of a line
_SIZE = re.compile(r"\b\d{1,9} ?G[iB]*\b")  # of memory, in a card's name


def head(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """Return what is known before the alternatives."""
    model, speed, name = plan.model, plan.speed, plan.model.name
    kind = model.quantisation
    # Many names end with their quantisation already
    if kind.lower().replace("-", "_") not in name.lower().replace("-", "_"):
        name += f"  {kind}"
    card, *cards = machine(plan).split(" + ")
    start = wrap(f"{name}  {model.size / GiB:.1f} GiB{_GAP}on {card}", style.width, "", "  ")
    # The name of a further card is not broken at a line's end
    first, *others = _flowed(start, [f"+ {each}" for each in cards], style, " ")
    # How fast it is, without more digits than the prediction has.
    read = ranged(speed.prompt, speed.prompt_spread, rounded, "/s")
    read = f"{speed.prompt:.0f}{read[read.index('/s') :]}"
    rates = [ranged(speed.generation, speed.generation_spread, rounded), f"prompts {read}"]
    if speed.requests is not None or plan.inputs is not None:
        # As text.py says it; the context is said after it, and shorter
        users_words = figures(plan).removeprefix("about ").removesuffix(context_words(plan))
        rates = users_words.strip().split(_GAP)
    word, parts = "FITS", [*rates, context_words(plan, SHORT)]
    if not plan.fits:
        word, parts = "DOES NOT FIT", [shortage(plan, SHORT)]
    elif plan.host.free is None:
        word = f"FITS if {at_least(plan.host.needed)} of RAM are free"
    verdict, *further = _flowed([word], parts, style, _GAP)
    # The sign alone is bold, which a white terminal shows as well
    verdict = style(word, "bold") + verdict[len(word) :]
    lines = [style(first, "bold"), *others, verdict, *further, *broken(plan, style), ""]
    lines += [*memory(plan, style), *_layers(plan, style), ""]
    if plan.fits:
        lines += [*command_lines([*command, *plan.flags, *rest], style, SHORT.indent), ""]
    return "\n".join(lines) + "\n"


def tail(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """Return the alternatives, --fit's answer and the warnings. A plan that does not fit has its
    remedies first, then the command, which cannot run."""
    lines: list[str] = []
    if not plan.fits:
        # "200 GiB more on CUDA0" helps nobody
        for remedy in filter(is_sold, plan.remedies):
            lines += remedy_lines(plan, remedy, style, rest, SHORT, larger_card(plan, remedy))
        launch = [*command, *plan.flags, *rest]
        lines += [*([""] if lines else []), *command_lines(launch, style, SHORT.indent, ""), ""]
    return "\n".join([*lines, *written(said(plan, SHORT, style, rest), SHORT, style)]) + "\n"


def _layers(plan: Plan, style: Style) -> list[str]:
    """Return the strip of layers below the bars, its meaning where there is room, and the placement
    in words."""
    left = SHORT.indent + _left(_rows(plan))
    room = style.width - left
    # layers() leaves 10 columns for a label, which stands here already
    strip, meaning = layers(plan, Style(False, room + 10, style.drawn, style.blocks))
    marks, half = meaning, style(HALF, "ram")
    lines = [placed(line, style) for line in strip]
    # The strip's meaning on its line, or with the placement
    if meaning and len(strip) == 1 and len(strip[0]) + len(_GAP) + len(meaning) <= room:
        lines[0] += _GAP + meaning.replace(HALF, half)
        marks = ""
    # Coloured after wrapping: an escape would count as characters
    words = wrap(f"{marks}{_GAP}{plan.placement}" if marks else plan.placement, room)
    lines += [line.replace(HALF, half) if marks else line for line in words]
    labels = [f"{' ' * SHORT.indent}layers", *[""] * (len(lines) - 1)]
    return [label.ljust(left) + line for label, line in zip(labels, lines, strict=True)]


def memory(plan: Plan, style: Style) -> list[str]:
    """Return a bar for each device, and for RAM."""
    rows = _rows(plan)
    left = _left(rows)
    amounts = [filled(sum(sizes[:-2]), limit) for _, sizes, limit in rows]
    # What comes with use
    grown = [
        f"may grow by {growing / GiB:.1f}" if growing >= GiB // 20 else ""
        for _, (*_, growing, _), _ in rows
    ]
    beside = [", ".join(filter(None, both)) for both in zip(amounts, grown, strict=True)]
    room = style.width - SHORT.indent - left - 3
    # Without room for it, what may grow has a line of its own
    if room - max(map(len, beside)) >= _LEAST:
        amounts, grown = beside, [""] * len(rows)
    # All bars are equally wide, whatever the devices have
    width = min(_WIDEST, room - max(map(len, amounts)))
    lines = []
    for (title, sizes, limit), amount, growth in zip(rows, amounts, grown, strict=True):
        bar = drawn(sizes, limit, width, style) if style.drawn and width >= _LEAST else ""
        bar = f"{style(bar, 'ram' if title == 'RAM' else 'gpu')}  " if bar else ""
        lines.append(f"{' ' * SHORT.indent}{title.ljust(left)}{bar}{amount}")
        lines += [" " * (SHORT.indent + left) + growth] if growth else []
    return lines


def _rows(plan: Plan) -> list[tuple[str, list[int], int | None]]:
    """Return the title, the parts and the end of each bar."""
    groups = grouped(plan.devices, False)
    alone = len(groups) == 1 and len(groups[0]) == 1
    rows: list[tuple[str, list[int], int | None]] = []
    for group in groups:
        # One bar stands for several equal GPUs: the one that fills up first
        row = min(group, key=lambda device: device.remaining)
        title = shortened(_product(group) if alone else name(group), 20)
        rows.append((title, held(row)[:-1], row.free))
    return [*rows, ("RAM", held(plan.host)[:-1], plan.host.free)]


def _left(rows: Sequence[tuple[str, list[int], int | None]]) -> int:
    """Return the columns of the labels before bars and layers."""
    return max(SHORT.label, *(len(title) + 2 for title, *_ in rows))


def drawn(sizes: Sequence[int], limit: int | None, width: int, style: Style) -> str:
    """Return a bar of `width` columns, and one more for the mark where the device ends if more is
    asked for than it has. A cell is of the part that has its middle; the end of the weights is
    drawn in eighths."""
    total = sum(sizes)
    # What is asked for may be more than the device has: then the bar is of that
    whole = max(total, limit or 0) or 1
    marks, ends = [mark(i, style) for i in (*range(len(sizes)), -1)], list(accumulate(sizes))
    cells = [marks[bisect_right(ends, (cell + 0.5) * whole / width)] for cell in range(width)]
    # sizes[0] are the weights
    eighths = round(sizes[0] * width * 8 / whole)
    if style.blocks and eighths % 8 and eighths // 8 < width:
        cells[eighths // 8] = _EIGHTHS[eighths % 8]
    if limit is not None and total > limit:
        # One column more, so that no part loses one to the mark
        cells.insert(limit * width // whole, _LIMIT)
    return "".join(cells)


def machine(plan: Plan) -> str:
    """Return the machine in a few words: "RTX 3060 + 32 GB RAM"."""
    cards, host = [], plan.host
    for device in plan.devices:
        product = _product([device])
        # "a GPU of 24 GiB" has its size, and what shares the RAM has none of its own
        if " of " not in product and not host.shared and not _SIZE.search(product):
            product += f" {ceil(device.total / GiB)} GB"
        cards.append(product)
    return machine_of(cards, host.total or host.free or None, bool(host.shared))


def _flowed(lines: list[str], parts: Sequence[str], style: Style, gap: str) -> list[str]:
    """Return the lines, each part after the last one or on a line of its own."""
    for part in parts:
        if len(lines[-1]) + len(gap) + len(part) <= style.width:
            lines[-1] += gap + part
        else:
            lines += wrap(part, style.width, "  ", "  ")
    return lines


def _product(group: Sequence[DeviceRow]) -> str:
    device, product = group[0], name(group).removeprefix(names(group)).strip()
    # Of --gpu 24GiB there is no product's name
    if device.description.startswith("hypothetical"):
        return f"a GPU of {device.total / GiB:.4g} GiB"
    return product or names(group)


def summary(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """Return the whole summary."""
    return head(plan, style, rest, command) + tail(plan, style, rest, command)
