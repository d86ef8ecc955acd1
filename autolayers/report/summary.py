"""A plan in about thirteen lines, as people post it: model and machine, verdict, bars, command,
alternatives.

The figures of every part and the reasons are in text.py (`--table`); nothing of the memory is left
out of a bar.
"""

from __future__ import annotations

import re
from math import ceil

from ..units import GiB, at_least
from .command import command_lines, flag_lines
from .measured import measured_words
from .picture import HALF, PARTS, grouped, layers, name, names, placed
from .table import Style, rounded, shortened, warned, wrap
from .text import (
    LESS_SURE,
    assumptions,
    context_words,
    elsewhere_words,
    fades,
    figures,
    is_sold,
    larger_card,
    remedy_lines,
    shortage,
    smaller_words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.plan import Alternative, DeviceRow, HostRow, Plan
    from ..work.speed import Speed

# a cell that is filled from the left by 0 to 7 eighths
_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_INDENT, _LABEL = 2, 11
_NOTED = 1.02  # times the plan's rate: faster
_LONGER = 1.05  # times the plan's context: longer
# (faster, longer) -> its label
_GAINS = {
    (True, True): "better",
    (True, False): "faster",
    (False, True): "longer",
    (False, False): "instead",
}
_LIMIT = "|"  # where a device ends, in a bar of more than it has
_LEAST, _WIDEST = 10, 60  # columns of a bar
_PROMPTS = 1.1  # times the plan's rate: prompts are read faster
_INSTEAD = "`autolayers best` for the same machine lists the models of today that run there"
_GROWS = (
    "RAM, as conversations are saved (prompt cache, checkpoints): -cram MIB and -ctxcp N limit it"
)
_WIDE = 60  # columns, from which on the lines of a label stand beside it
_GAP = "   "  # between the parts of a line
_SIZE = re.compile(r"\b\d{1,9} ?G[iB]*\b")  # of memory, in a card's name


def head(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """Return what is known before the alternatives."""
    model, kind = plan.model, plan.model.quantisation
    # Many names end with their quantisation already
    in_name = kind.lower().replace("-", "_") in model.name.lower().replace("-", "_")
    name = model.name if in_name else f"{model.name}  {kind}"
    card, *cards = machine(plan).split(" + ")
    start = wrap(f"{name}  {model.size / GiB:.1f} GiB{_GAP}on {card}", style.width, "", "  ")
    # The name of a further card is not broken at a line's end
    first, *others = _flowed(start, [f"+ {each}" for each in cards], style, " ")
    lines = [style(first, "bold"), *others, *_verdict(plan, style), ""]
    lines += [*memory(plan, style), *_layers(plan, style)]
    if not plan.fits:
        return "\n".join([*lines, ""]) + "\n"
    words = [*command, *plan.flags, *rest]
    return "\n".join([*lines, "", *command_lines(words, style, _INDENT), ""]) + "\n"


def tail(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """Return the alternatives, --fit's answer and the warnings. A plan that does not fit has its
    remedies first, then the command, which cannot run."""
    lines: list[str] = []
    # "200 GiB more on CUDA0" helps nobody
    for remedy in () if plan.fits else filter(is_sold, plan.remedies):
        lines += remedy_lines(plan, remedy, style, rest, at_least, larger_card(plan, remedy))
    if not plan.fits:
        launch = [*command, *plan.flags, *rest]
        lines += [*([""] if lines else []), *command_lines(launch, style, _INDENT, ""), ""]
    for line in plan.limits:
        lines += _labelled("limit", line, style)
    host = plan.host
    # Much of a machine's RAM: a word about what that is
    if plan.fits and host.free is not None and 2 * host.growing > host.free:
        lines += _labelled("grows", _GROWS, style)
    lines += _others(plan, style, rest)
    if plan.smaller is not None:
        lines += _labelled("smaller", smaller_words(plan, rounded), style)
    if plan.fit_choice is not None:
        lines += _labelled("--fit", _rival(plan), style)
    if plan.elsewhere is not None:
        lines += _labelled(plan.elsewhere.backend, elsewhere_words(plan, rounded), style)
    # What somebody measured on such a machine, next to the prediction
    n_ubatch = plan.breakdown.n_ubatch
    for words in measured_words(plan.measured, style.width, n_ubatch) if plan.fits else []:
        lines += _labelled("measured", words, style)
    for warning in plan.warnings[bool(plan.broken) :]:  # the verdict says the first one
        lines += warned(warning, style.width)
    if plan.inexact_unsaid:
        lines.append("! sizes are upper bounds, not exact")
    if plan.speed.assumed and plan.fits:
        texts = (f"{what} {value}".strip() for what, value in assumptions(plan.speed))
        lines += _labelled("assumed", ", ".join(texts), style)
    if plan.speed.unsure and plan.fits:
        lines += _labelled("less sure", ", ".join(plan.speed.unsure), style)
    if not plan.fits:
        lines += _labelled("instead", _INSTEAD, style)
    lines += _labelled("more", "--why (how it was chosen), --table (every GiB, all reasons)", style)
    return "\n".join(lines) + "\n"


def _layers(plan: Plan, style: Style) -> list[str]:
    """Return the strip of layers below the bars, its meaning where there is room, and the placement
    in words."""
    left = _INDENT + _left(plan)
    room = style.width - left
    # layers() leaves 10 columns for a label, which stands here already
    strip, meaning = layers(plan, Style(False, room + 10, style.drawn, style.blocks))
    # whether the strip's meaning has room on its line
    fits_beside = len(strip) == 1 and len(strip[0]) + len(_GAP) + len(meaning) <= room
    marks = meaning.replace(HALF, style(HALF, "ram"))
    lines = [placed(line, style) for line in strip]
    if fits_beside and meaning:
        lines[0] += _GAP + marks
    first = f"{meaning}{_GAP}" if meaning and not fits_beside else ""
    words = wrap(first + plan.placement, room)
    # Coloured after wrapping: an escape would count as characters
    lines += [line.replace(HALF, style(HALF, "ram")) if first else line for line in words]
    labels = [f"{' ' * _INDENT}layers".ljust(left), *[" " * left] * (len(lines) - 1)]
    return [label + line for label, line in zip(labels, lines, strict=True)]


def memory(plan: Plan, style: Style) -> list[str]:
    """Return a bar for each device, and for RAM."""
    # One bar stands for several equal GPUs: the one that fills up first
    fullest = [min(group, key=lambda device: device.remaining) for group in _groups(plan)]
    rows: list[tuple[str, list[int], int | None]] = [
        (
            title,
            [device.model, device.context, device.compute, device.extra, 0, 0, device.margin],
            device.free,
        )
        for title, device in zip(_titles(plan), fullest, strict=True)
    ]
    rows.append(("RAM", _of_host(plan.host), plan.host.free))
    left = _left(plan)
    # All bars are equally wide, whatever the devices have
    held = [_held(sizes, limit) for _, sizes, limit in rows]
    grown = [_grown(sizes) for _, sizes, _ in rows]
    whole = [", ".join(filter(None, amounts)) for amounts in zip(held, grown, strict=True)]
    room = style.width - _INDENT - left - 3
    narrow = room - max(map(len, whole)) < _LEAST  # then what may grow has a line of its own
    width = min(_WIDEST, room - max(map(len, held if narrow else whole)))
    lines = []
    for i, (title, sizes, limit) in enumerate(rows):
        place = "ram" if title == "RAM" else "gpu"
        bar = (
            style(drawn(sizes, limit, width, style), place) + "  "
            if style.drawn and width >= _LEAST
            else ""
        )
        lines.append(f"{' ' * _INDENT}{title.ljust(left)}{bar}{(held if narrow else whole)[i]}")
        if narrow and grown[i]:
            lines.append(" " * (_INDENT + left) + grown[i])
    return lines


def _groups(plan: Plan) -> list[list[DeviceRow]]:
    return grouped(plan.devices, False)


def _titles(plan: Plan) -> list[str]:
    """Return the titles of the devices' bars."""
    groups = _groups(plan)
    return [
        shortened(_product(group) if len(groups) == 1 and len(group) == 1 else name(group), 20)
        for group in groups
    ]


def _left(plan: Plan) -> int:
    """Return the columns of the labels before bars and layers."""
    return max(_LABEL, *(len(title) + 2 for title in [*_titles(plan), "RAM"]))


def _others(plan: Plan, style: Style, rest: Sequence[str]) -> list[str]:
    """Return the alternatives: what each gains and loses, then all of its flags."""
    lines: list[str] = []
    for gain, other in _best(plan):
        # What an alternative gains and loses, in a few words; the table has all of them.
        here, speed = plan.speed, other.speed
        # 17664 and 17920 are both 17k here, and no difference
        context = _count(other.n_ctx)
        parts = [] if context == _count(plan.breakdown.n_ctx) else [f"context {context}"]
        low, high = _ends(speed)
        rate = _rate(speed)
        unsure = speed.generation_spread > LESS_SURE * here.generation_spread
        if unsure:
            rate += f" ({low} to {high})"
        parts.append(rate)
        # Prompts that are read as fast as the plan's are not said, if anything else is
        alike = 1 / _PROMPTS <= speed.prompt / here.prompt <= _PROMPTS
        if not alike or (len(parts) == 1 and not unsure):
            parts.append(f"prompts {speed.prompt:.0f}/s")
        parts += filter(None, [other.note])
        if unsure:
            parts.append("measure it with `autolayers tune`")
        lines += _labelled(gain, ", ".join(parts), style)
        words = [*other.flags, *rest]
        lines += flag_lines(words, style, len(_below(style)))
    head = "  or, with other flags in place of all those above:"
    return [*wrap(head.strip(), style.width, "  ", "  "), *lines] if lines else []


def _rate(speed: Speed) -> str:
    together = " of all together" if speed.workload.requests > 1 else ""
    # --users: what all of them get, as the verdict says it
    together = " in all" if speed.requests is not None else together
    return f"{rounded(speed.rate)} tokens/s{together}"


def _ends(speed: Speed) -> tuple[str, str]:
    """Return the range of the predicted rate."""
    spread = speed.generation_spread
    return rounded(speed.rate / spread), rounded(speed.rate * spread)


def _rival(plan: Plan) -> str:
    """Return what --fit would choose, in a few words."""
    rival = plan.fit_choice
    assert rival is not None
    speed = rival.speed
    shown = fades(speed, plan.speed) and speed.requests is None
    full = f" ({rounded(speed.generation_full)} with a full one)" * shown
    parts = [f"context {_count(rival.breakdown.n_ctx)}", _rate(speed) + full]
    # An embedding model has no rate of generated tokens
    parts = parts[:1] if plan.inputs is not None else parts
    words = ", ".join([*parts, f"prompts {speed.prompt:.0f}/s"])
    # The same figures twice would look like a mistake
    # The plan's figures as those of --fit are said.
    speed = plan.speed
    context = f"context {_count(plan.breakdown.n_ctx)}"
    own = f"{context}, {_rate(speed)}, prompts {speed.prompt:.0f}/s"
    if words == own:
        words = "the same context and rates"
    if not rival.fits:
        words += "; that breaks these margins"
    return f"llama.cpp alone: {words}"


def _best(plan: Plan) -> list[tuple[str, Alternative]]:
    """Return the first alternative of each gain, the fastest of those that are faster; the table
    has them all. Those that are faster and longer come first, and one slot, which loses nothing
    of one person's, beside what changes answers."""
    # (gain, whether it is one slot) -> the alternative that is shown for it
    by_gain: dict[tuple[str, bool], Alternative] = {}
    for other in plan.alternatives:
        faster = other.speed.rate > plan.speed.rate * _NOTED
        longer = other.n_ctx > plan.breakdown.n_ctx * _LONGER
        gain = _GAINS[faster, longer], faster and longer and "-np" in other.change
        before = by_gain.setdefault(gain, other)
        # Of a longer context the first one stays, of speed the fastest
        if faster and other.speed.rate > before.speed.rate:
            by_gain[gain] = other
    rows = [(gain, other) for (gain, _), other in by_gain.items()]
    return sorted(rows, key=lambda row: row[0] != _GAINS[True, True])


# (the last one is the margin)
def _held(sizes: Sequence[int], limit: int | None) -> str:
    """Return what is held at once, of how much."""
    *held, _, _ = sizes
    return f"{sum(held) / GiB:.1f}" + ("" if limit is None else f" of {limit / GiB:.1f}") + " GiB"


def _grown(sizes: Sequence[int]) -> str:
    """Return what comes with use."""
    growing = sizes[-2]
    return f"may grow by {growing / GiB:.1f}" if growing >= GiB // 20 else ""


def drawn(sizes: Sequence[int], limit: int | None, width: int, style: Style) -> str:
    """Return a bar of `width` columns, and one more for the mark where the device ends if more is
    asked for than it has. A cell is of the part that has its middle; the end of the weights is
    drawn in eighths."""
    total = sum(sizes)
    # What is asked for may be more than the device has: then the bar is of that
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
    # "RTX 3060 12 GB" -> how many
    kinds: dict[str, int] = {}
    for group in grouped(plan.devices, True):
        product = _product(group)
        # "a GPU of 24 GiB" has its size, and what shares the RAM has none of its own
        if " of " not in product and not plan.host.shared and not _SIZE.search(product):
            product += f" {ceil(group[0].total / GiB)} GB"
        kinds[product] = kinds.get(product, 0) + len(group)
    parts = [f"{count} x {product}" if count > 1 else product for product, count in kinds.items()]
    if not parts:
        parts.append("the CPU")
    ram = plan.host.total or plan.host.free
    if ram:
        kind = "memory" if plan.host.shared else "RAM"
        parts.append(f"{ram / GiB:.0f} GB {kind}")
    return " + ".join(parts)


def _verdict(plan: Plan, style: Style) -> list[str]:
    """Return the verdict; the sign alone is bold, which a white terminal shows as well."""
    # How fast it is, without more digits than the prediction has.
    speed = plan.speed
    if speed.requests is not None or plan.inputs is not None:
        # As text.py says it; the context is said after it, and shorter
        users_words = figures(plan).removeprefix("about ").removesuffix(context_words(plan))
        rates = users_words.strip().split(_GAP)
    else:
        low, high = _ends(speed)
        generated = f"{rounded(speed.generation)} tokens/s ({low} to {high})"
        least, most = speed.prompt / speed.prompt_spread, speed.prompt * speed.prompt_spread
        rates = [generated, f"prompts {speed.prompt:.0f}/s ({rounded(least)} to {rounded(most)})"]
    word, parts = "FITS", [*rates, context_words(plan, _count, ",")]
    if not plan.fits:
        word, parts = "DOES NOT FIT", [shortage(plan, at_least)]
    elif plan.host.free is None:
        word = f"FITS if {at_least(plan.host.needed)} of RAM are free"
    lines = _flowed([word], parts, style, _GAP)
    told = wrap(plan.broken, style.width, "! ", "  ") if plan.broken else []
    return [style(word, "bold") + lines[0][len(word) :], *lines[1:], *told]


def _flowed(lines: list[str], parts: Sequence[str], style: Style, gap: str) -> list[str]:
    """Return the lines, each part after the last one or on a line of its own."""
    for part in parts:
        if len(lines[-1]) + len(gap) + len(part) <= style.width:
            lines[-1] += gap + part
        else:
            lines += wrap(part, style.width, "  ", "  ")
    return lines


def _count(tokens: int) -> str:
    # Below 10k a thousand tokens more or less count
    return f"{tokens // 1024}k" if tokens >= 10 * 1024 else str(tokens)


def _product(group: Sequence[DeviceRow]) -> str:
    device, product = group[0], name(group).removeprefix(names(group)).strip()
    # Of --gpu 24GiB there is no product's name
    if device.description.startswith("hypothetical"):
        return f"a GPU of {device.total / GiB:.4g} GiB"
    return product or names(group)


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


def _labelled(label: str, text: str, style: Style) -> list[str]:
    return wrap(text, style.width, f"{' ' * _INDENT}{label:{_LABEL}}", _below(style))


def _below(style: Style) -> str:
    """Return what begins the further lines of a label, less on a narrow terminal."""
    return " " * (_INDENT + _LABEL if style.width >= _WIDE else 2 * _INDENT)


def summary(plan: Plan, style: Style, rest: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """Return the whole summary."""
    return head(plan, style, rest, command) + tail(plan, style, rest, command)
