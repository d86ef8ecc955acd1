"""Measurements, as text: a line next to a prediction, and `autolayers measured`'s table and
plot."""

from __future__ import annotations

from ..backends import HOST
from ..devices.cards import CARDS
from .table import Style, stacked, tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.measured import Measured
    from ..work.measured import MeasuredRate

_PLACING = ("-ngl", "-ncmoe", "-ot", "-sm", "-ts")  # flags that say where weights are
_FACTS = ("test", "launch", "build", "date", "source")
_MOST = 4.0  # of measured / predicted, at the plot's edges
_HALF = 20  # columns of a half of it
_INDENT = 16  # columns before a line of the summary
_MAKERS = ("NVIDIA GeForce ", "NVIDIA ", "AMD Radeon ", "AMD ", "Intel ")


def measured_words(
    measured: Measured | None, width: int = 0, n_ubatch: int | None = None
) -> list[str]:
    """ "37.9 tokens/s: RTX 3060, -ncmoe 24, b10488, github.com/..., 2026-08", and what contradicts
    the prediction. An address wider than a line of `width` columns has its host alone. `n_ubatch`:
    the plan's micro-batch, which a row's is said if it differs from."""
    if measured is None:
        return []
    row, prompt = measured.row, measured.prompt
    rates = [f"{tokens(measured.generation.rate)} tokens/s"] if measured.generation else []
    # Two figures share a line only if they are of the same launch
    alike = prompt is not None and prompt.source == row.source and prompt.words == row.words
    if prompt is not None and (alike or not rates):
        other = n_ubatch is not None and prompt.n_ubatch != n_ubatch
        batch = f" with -ub {prompt.n_ubatch}" if other else ""
        rates.append(f"prompts {tokens(prompt.rate)}/s{batch}")
    # What the row is of: model, cards, placement, depth, RAM, build, source and date
    parts = [row.model, cards(row.cards)]
    # Elsewhere all is on one device, and there is nothing to say
    if row.placement in ("MoE in RAM", "dense partial", "multi-GPU"):
        parts.append(placement(row))
    parts += [f"after {row.depth} tokens"] if row.depth else []
    # share 1: a token reads nothing from RAM, so that its speed does not count
    parts += [f"RAM {row.ram / 1e9:.0f} GB/s"] if row.ram and row.share < 1 else []
    parts += [f"b{row.build}"] if row.build else []
    where = source(row)
    # The host alone: an address is never broken
    parts.append(where.partition("/")[0] if width and len(where) > width - _INDENT else where)
    parts.append(f"{row.date}{' (an older, slower build)' if row.old else ''}")
    lines = [f"{', '.join(rates)}: {', '.join(filter(None, parts))}"]
    if measured.outside:
        lines.append("that is outside the predicted range; one row alone does not move it")
    if measured.contradicting:
        lines.append(
            f"{measured.contradicting} measurements contradict the prediction: drawn towards them "
            f"it is {tokens(measured.drawn)} tokens/s"
        )
    return lines


def cards(names: Sequence[str]) -> str:
    """ "RTX 3060", "2 x RTX 3090", "RTX 3060 + RTX 5070 Ti", "CPU"."""
    parts = []
    # In the order given, each without its maker
    for name in dict.fromkeys(names):
        sold, n = CARDS[name].description if name in CARDS else name, names.count(name)
        maker = next((maker for maker in _MAKERS if sold.startswith(maker)), "")
        parts.append(f"{n} x " * (n > 1) + sold.removeprefix(maker))
    return " + ".join(parts) or HOST


def source(row: MeasuredRate) -> str:
    """Return where to read of a row."""
    # Without https://, which says nothing
    return row.source.partition("://")[2] or "a public page of unknown address"


def placement(row: MeasuredRate) -> str:
    """Return the words that say where its weights are."""
    words = row.words.split()
    pairs = zip(words, [*words[1:], ""], strict=True)
    return " ".join(
        f"{word} {value}"
        for word, value in pairs
        # -ngl 99 is "all of it", and the usual case
        if word in _PLACING and (word, value) != ("-ngl", "99")
    )


def rows_text(rows: Sequence[MeasuredRate], style: Style, plot: bool = False) -> str:
    """Return a table of rows, or a plot of what is measured, as a share of what is predicted."""
    if plot:
        # A line a row: where its rate lies between a quarter and four times the
        # prediction
        from math import log  # on demand

        names = [f"{row.model} {cards(row.cards)} {_test(row)}" for row in rows]
        width = max([*map(len, names), 0])
        lines = [
            f"{'measured / predicted'.ljust(width)}  1/4{' ' * (_HALF - 3)}1{' ' * (_HALF - 1)}4"
        ]
        for name, row in zip(names, rows, strict=True):
            ratio = row.rate / row.predicted
            # By ratio, -1 to 1: half and twice are equally far from the middle
            place = log(ratio) / log(_MOST)
            # beyond the edges at the edge
            at = round(_HALF * (1 + max(-1.0, min(1.0, place))))
            marks = [" "] * (2 * _HALF + 1)
            marks[_HALF] = "|"
            marks[at] = "*"
            lines.append(f"{name.ljust(width)}  {''.join(marks)} {ratio:.2f}")
        return "\n".join(lines) + "\n"
    head = ("model", "card", "backend", "", "t/s", "predicted", *_FACTS)
    cells = [
        [
            row.model,
            cards(row.cards),
            row.backend,
            row.kind,
            tokens(row.rate),
            tokens(row.predicted),
            _test(row),
            placement(row) or row.placement,
            f"b{row.build}" if row.build else "",
            row.date,
            source(row),
        ]
        for row in rows
    ]
    left = (0, 1, 2, 3, 6, 7, 8, 9, 10)
    return "\n".join(stacked(head, cells, style, left, less=(10, 8, 7, 2))) + "\n"


def _test(row: MeasuredRate) -> str:
    """Return llama-bench's word for a test."""
    # "pp512" and "tg128 @ 8192"
    n = row.prompt if row.kind == "pp" else row.generate
    return f"{row.kind}{n}" + (f" @ {row.depth}" if row.depth else "")
