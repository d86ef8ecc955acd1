"""A plan in about thirteen lines, as people post it: model and machine, verdict, bars, command,
alternatives.

The figures of every part and the reasons are in text.py (`--table`); nothing of the memory is left
out of a bar.
"""

from __future__ import annotations

import os
from math import ceil

from ..quoting import shell
from ..units import GiB
from .measured import measured_words
from .picture import HALF, PARTS, grouped, layers, name, names, placed
from .table import Style, shortened, wrap
from .text import (
    assumed_words,
    bought,
    context_words,
    figures,
    fit_words,
    remedy_words,
    shortage,
    smaller_words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.explain import Alternative
    from ..planner.plan import DeviceRow, HostRow, Plan

_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_INDENT, _LABEL = 2, 11
_NOTED = 1.02  # times the plan's rate: faster
_LIMIT = "|"  # where a device ends, in a bar of more than it has
_LEAST, _WIDEST = 10, 60  # columns of a bar


def head(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """What is known before the alternatives."""
    lines = [*_subject(plan, style), *_verdict(plan, style), "", *memory(plan, style)]
    drawn = _layers(plan, style)
    lines += [
        f"{' ' * _INDENT}{'layers' if i == 0 else '':{_LABEL}}{line}"
        for i, line in enumerate(drawn)
    ]
    lines += wrap(
        plan.placement,
        style.width,
        f"{' ' * _INDENT}{'' if drawn else 'layers':{_LABEL}}",
        " " * (_INDENT + _LABEL),
    )
    if not plan.fits:
        return "\n".join([*lines, ""]) + "\n"
    return "\n".join([*lines, "", *_command([*command, *plan.flags, *rest], style), ""]) + "\n"


def tail(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """The alternatives, --fit's answer and the warnings. A plan that does not fit has its remedies
    first, then the command, which cannot run."""
    lines: list[str] = []
    for remedy in () if plan.fits else plan.remedies:
        lines += wrap("fits with " + remedy_words(remedy), style.width, "  ", "    ")
    if not plan.fits:
        lines += ["", *_command([*command, *plan.flags, *rest], style), ""]
    for gain, other in _best(plan):
        lines += _labelled(gain, f"{shell(other.flags)}: {bought(plan, other)}", style)
    if plan.smaller is not None:
        lines += _labelled("smaller", smaller_words(plan), style)
    lines += [line for words in fit_words(plan) for line in _labelled("--fit", words, style)]
    for words in measured_words(plan.measured) if plan.fits else []:
        lines += _labelled("measured", words, style)
    for warning in plan.warnings:
        lines += wrap(warning, style.width, "! ", "  ")
    if not plan.exact:
        lines.append("! sizes are upper bounds, not exact")
    if plan.speed.assumed and plan.fits:
        lines += _labelled("assumed", assumed_words(plan.speed)[2:], style)
    lines += _labelled("more", "--why (how it was chosen), --table (every GiB, all reasons)", style)
    return "\n".join(lines) + "\n"


def _layers(plan: Plan, style: Style) -> list[str]:
    """The strip of layers, with its meaning on the same line where there is room."""
    lines, meaning = layers(
        plan, Style(False, style.width - _INDENT - 1, style.drawn, style.blocks)
    )
    if not lines:
        return []
    fits = _INDENT + _LABEL + len(lines[0]) + 3 + len(meaning) <= style.width
    meaning = meaning.replace(HALF, style(HALF, "ram"))
    if len(lines) == 1 and fits:
        return [f"{placed(lines[0], style)}   {meaning}".rstrip()]
    return [*(placed(line, style) for line in lines), *filter(None, [meaning])]


def memory(plan: Plan, style: Style) -> list[str]:
    """A bar for each device, and for RAM."""
    groups = grouped(plan.devices, False)
    fullest = [min(group, key=lambda device: device.remaining) for group in groups]
    titles = [_short(group, len(groups)) for group in groups]
    rows: list[tuple[str, list[int], int | None]] = [
        (title, _of_device(device), device.free)
        for title, device in zip(titles, fullest, strict=True)
    ]
    rows.append(("RAM", _of_host(plan.host), plan.host.free))
    left = max(_LABEL, *(len(title) + 2 for title, _, _ in rows))
    amounts = [_amount(sizes, limit) for _, sizes, limit in rows]
    width = min(_WIDEST, style.width - _INDENT - left - max(map(len, amounts)) - 3)
    lines = []
    for (title, sizes, limit), amount in zip(rows, amounts, strict=True):
        place = "ram" if title == "RAM" else "gpu"
        bar = (
            style(drawn(sizes, limit, width, style), place) + "  "
            if style.drawn and width >= _LEAST
            else ""
        )
        lines.append(f"{' ' * _INDENT}{title.ljust(left)}{bar}{amount}")
    return lines


def _best(plan: Plan) -> list[tuple[str, Alternative]]:
    """The first alternative of each gain, the fastest of those that are faster; the table has them
    all."""
    found: dict[str, Alternative] = {}
    for other in plan.alternatives:
        if other.speed.generation > plan.speed.generation * _NOTED:
            gain = "faster"
        else:
            gain = "longer" if other.n_ctx > plan.breakdown.n_ctx else "instead"
        before = found.setdefault(gain, other)
        if gain == "faster" and other.speed.generation > before.speed.generation:
            found[gain] = other
    return list(found.items())


def _amount(sizes: Sequence[int], limit: int | None) -> str:
    """What is held at once, of how much, and what comes with use."""
    *held, growing, _ = sizes
    found = f"{sum(held) / GiB:.1f}" + ("" if limit is None else f" of {limit / GiB:.1f}") + " GiB"
    return found + (f", may grow by {growing / GiB:.1f}" if growing >= GiB // 20 else "")


def drawn(sizes: Sequence[int], limit: int | None, width: int, style: Style) -> str:
    """A bar of `width` columns, and one more for the mark where the device ends if more is asked
    for than it has. A cell is of the part that has its middle; the end of the weights is drawn in
    eighths."""
    total = sum(sizes)
    whole = max(total, limit or 0) or 1
    marks = [PARTS[i][2 if style.blocks else 1] for i in range(len(sizes))]
    free = PARTS[-1][2 if style.blocks else 1]
    cells = []
    for cell in range(width):
        middle, end = (cell + 0.5) * whole / width, 0
        mark = free
        for size, of_part in zip(sizes, marks, strict=True):
            end += size
            if middle < end:
                mark = of_part
                break
        cells.append(mark)
    eighths = round(sizes[0] * width * 8 / whole)
    if style.blocks and eighths % 8 and eighths // 8 < width:
        cells[eighths // 8] = _EIGHTHS[eighths % 8]
    if limit is not None and total > limit:
        cells.insert(limit * width // whole, _LIMIT)
    return "".join(cells)


def machine(plan: Plan) -> str:
    """The machine in a few words: "RTX 3060 + 32 GB RAM"."""
    kinds: dict[str, int] = {}
    for group in grouped(plan.devices, True):
        sold = f" {ceil(group[0].total / GiB)} GB" if not plan.host.shared else ""
        product = _product(group) + ("" if " of " in _product(group) else sold)
        kinds[product] = kinds.get(product, 0) + len(group)
    parts = [f"{count} x {product}" if count > 1 else product for product, count in kinds.items()]
    ram = plan.host.total or plan.host.free
    if ram:
        parts.append(f"{ram / GiB:.0f} GB {'memory' if plan.host.shared else 'RAM'}")
    return " + ".join(parts) or "this processor"


def _subject(plan: Plan, style: Style) -> list[str]:
    found = f"{plan.model.name}  {plan.model.size / GiB:.1f} GiB   on {machine(plan)}"
    first, *others = wrap(found, style.width, "", "  ")
    return [style(first, "bold"), *others]


def _verdict(plan: Plan, style: Style) -> list[str]:
    """The sign alone has a colour, which a white terminal shows as well."""
    said = figures(plan).removeprefix("about ").replace(context_words(plan), _context(plan))
    word = "FITS"
    if not plan.fits:
        word, said = "DOES NOT FIT", shortage(plan)
    elif plan.host.free is None:
        word = f"FITS if {plan.host.needed / GiB:.1f} GiB of RAM are free"
    first, *others = wrap(said, style.width, f"{word}   ", "  ")
    return [style(word, "bold") + first[len(word) :], *others]


def _context(plan: Plan) -> str:
    """As context_words, shorter: the command has its digits."""
    use, kinds = (
        plan.breakdown,
        {plan.params.cache_type_k or "f16", plan.params.cache_type_v or "f16"},
    )
    size = f"{use.n_ctx // 1024}k" if use.n_ctx >= 10 * 1024 else str(use.n_ctx)
    slots = f", {use.n_seq_max} slots" if use.n_seq_max > 1 else ""
    return f"context {size}{slots}" + (
        "" if kinds == {"f16"} else f", {'/'.join(sorted(kinds))} cache"
    )


def _product(group: Sequence[DeviceRow]) -> str:
    device, found = group[0], name(group).removeprefix(names(group)).strip()
    if device.description.startswith("hypothetical"):
        return f"a GPU of {device.total / GiB:.4g} GiB"
    return found or names(group)


def _short(group: Sequence[DeviceRow], count: int) -> str:
    return shortened(_product(group) if count == 1 and len(group) == 1 else name(group), 20)


def _of_device(device: DeviceRow) -> list[int]:
    return [device.model, device.context, device.compute, device.extra, 0, 0, device.margin]


def _of_host(host: HostRow) -> list[int]:
    return [
        host.model,
        host.context,
        host.compute,
        host.extra,
        host.shared,
        host.growing,
        host.margin,
    ]


def _command(words: Sequence[str], style: Style) -> list[str]:
    """The command, broken before flags with a backslash, which a shell reads as one line."""
    whole = shell(list(words))
    if os.name == "nt" or _INDENT + len(whole) <= style.width or not style.drawn:
        return [style(whole if not style.drawn else " " * _INDENT + whole, "bold")]
    groups: list[list[str]] = []
    for word in words:
        value = word[1:2].isdigit() or not word.startswith("-")
        if groups and value:
            groups[-1].append(word)
        else:
            groups.append([word])
    lines = [""]
    for text in (shell(group) for group in groups):
        room = style.width - 2 * _INDENT - 2 - len(lines[-1])
        if lines[-1] and len(text) + 1 > room:
            lines.append(text)
        else:
            lines[-1] += f" {text}" if lines[-1] else text
    indents = [" " * _INDENT, *[" " * (2 * _INDENT)] * (len(lines) - 1)]
    ends = [*[" \\"] * (len(lines) - 1), ""]
    return [
        style(f"{indent}{line}{end}", "bold")
        for indent, line, end in zip(indents, lines, ends, strict=True)
    ]


def _labelled(label: str, text: str, style: Style) -> list[str]:
    return wrap(text, style.width, f"{' ' * _INDENT}{label:{_LABEL}}", " " * (_INDENT + _LABEL))


def summary(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """All of it."""
    return head(plan, style, rest, command) + tail(plan, style, rest, command)
