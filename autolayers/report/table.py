"""Aligned columns, with or without colour."""

from __future__ import annotations

import os
import sys

from ..output import COLOURS
from ..quoting import printable
from ..units import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

_CODES = {name: code for code, name in COLOURS.items()}
# where memory is, in pictures alone: a white terminal shows no yellow
PLACES = {"gpu": "34", "ram": "33"}


WIDTH = 80  # columns, if no terminal says
# (narrower tables are unreadable, and COLUMNS may hold any number)
NARROWEST, WIDEST = 40, 1000  # columns that are drawn, whatever COLUMNS says
LABEL = 10  # columns of the labels
_WARNING = "! "  # before a warning
_NAME = 18  # of a name, at least


class Style:
    """Colour if the terminal shows it (NO_COLOR and TERM=dumb override FORCE_COLOR, which overrides
    isatty), its width in columns (COLUMNS overrides the terminal), and whether to draw: on a
    terminal that is not dumb. `painted`: of a picture, where bars have the colours of their
    places."""

    def __init__(
        self,
        on: bool = False,
        width: int | None = WIDTH,
        drawn: bool = False,
        blocks: bool = False,
        painted: bool = False,
    ) -> None:
        self.on = on
        self.width = width or WIDTH
        self.bounded = width is not None  # the width is known
        self.drawn = drawn  # bars and strips may be drawn,
        self.blocks = blocks  # with block characters
        self.painted = painted

    @property
    def columns(self) -> int:
        """Return the width, without an end on a pipe, where a fact is a line."""
        return self.width if self.bounded else sys.maxsize

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> Style:
        width = _width(stream, environ)
        dumb = environ.get("TERM") == "dumb"
        # Drawn only for eyes: a pipe gets words and figures
        shown = stream.isatty() and not dumb
        # Block characters are escaped where the encoding lacks them: then plain ones
        blocks = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
        # no-color.org: set to anything but "" turns colour off
        coloured = not (dumb or environ.get("NO_COLOR")) and (
            bool(environ.get("FORCE_COLOR")) or shown
        )
        return cls(coloured, width, shown, blocks)

    def __call__(self, text: str, name: str) -> str:
        text = printable(text)
        shown = self.painted if name in PLACES else self.on
        return f"\x1b[{PLACES.get(name) or _CODES[name]}m{text}\x1b[0m" if shown and text else text


PLAIN = Style()  # on 80 columns, without colour


def _width(stream: TextIO, environ: Mapping[str, str]) -> int | None:
    # Also on a pipe, so that `COLUMNS=120 autolayers ... | less` is as wide as that
    columns = whole(environ.get("COLUMNS", ""))
    if columns:
        return min(max(NARROWEST, columns), WIDEST)
    try:
        # 0 columns: some consoles of editors and containers
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns or WIDTH)
    # No terminal, a closed stream, or one of a test without a number
    except (OSError, ValueError, AttributeError):
        return None


def shortened(text: str, width: int) -> str:
    """Return the text in at most `width` columns: ".." takes the place of its middle.

    >>> shortened("NVIDIA RTX PRO 6000 Blackwell Max-Q", 20)
    'NVIDIA RT..ell Max-Q'
    """
    text = printable(text)
    if len(text) <= width:
        return text
    # Names often differ at both ends: the maker's series first, the size last
    left = (width - 2) // 2
    return f"{text[:left]}..{text[len(text) - (width - 2 - left) :]}"


def wrap(text: str, width: int, first: str = "", then: str = "") -> list[str]:
    """Return the text in lines of at most `width` columns, broken only at spaces; `first` starts
    the first line, `then` the others. A word longer than a line gets its own line."""
    return _flowed(printable(text).split(" "), width, first, then)


def warned(text: str, width: int) -> list[str]:
    """Return a warning's lines, none wider: a path longer than a line is broken as a terminal does
    it, as nobody copies it from there."""
    room = width - len(_WARNING)
    # A word in pieces of `room` columns, the last one of what is left.
    words = [
        piece
        for word in printable(text).split(" ")
        for piece in [word[i : i + room] for i in range(0, max(len(word), 1), room)]
    ]
    return _flowed(words, width, _WARNING, " " * len(_WARNING))


def _flowed(words: Sequence[str], width: int, first: str, then: str) -> list[str]:
    # `first` and `then` may hold a label, so a line that equals one is empty
    lines, line = [], first
    for word in words:
        empty = line in (first, then)
        if not empty and len(line) + 1 + len(word) > width:
            lines.append(line.rstrip())
            line, empty = then, True
        line += word if empty else " " + word
    return [*lines, line.rstrip()]


def titled(title: str, verdict: str, style: Style, colour: str, facts: str = "") -> list[str]:
    """Return the first line of an answer: what it is about, its `facts`, and the verdict at the
    right edge, or below."""
    after = f"  {facts}" if facts else ""
    # What is left for the title on the verdict's line, with gaps of two
    room = style.width - len(after) - len(verdict) - 4
    # Too narrow for both: the verdict below the title
    if room < 16:
        short = shortened(title, style.width - len(facts) - 2)
        below = [style(line, colour) for line in wrap(verdict, style.width)]
        return [f"{style(short, 'bold')}{after}".rstrip(), *below]
    title = shortened(title, room)
    # By lengths without colour: escapes have no width
    space = style.width - len(title) - len(after) - len(verdict)
    return [f"{style(title, 'bold')}{after}{' ' * space}{style(verdict, colour)}"]


def labelled(label: str, texts: Sequence[str], style: Style) -> list[str]:
    """Return texts after a label, wrapped."""
    lines: list[str] = []
    for i, text in enumerate(texts):
        lines += wrap(text, style.width, ("" if i else label).ljust(LABEL), " " * LABEL)
    return lines


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Style | None = None,
    left: Sequence[int] = (0,),
    marks: Mapping[int, str] | None = None,
) -> list[str]:
    """Return the lines of a table: the columns in `left` flush left, the others right. Negative
    numbers are red, and rows have the style in `marks`."""
    style = style or Style()
    head, rows = (
        [printable(cell) for cell in head],
        [[printable(cell) for cell in row] for row in rows],
    )
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for number, row in enumerate((head, *rows)):
        cells = []
        for i, cell in enumerate(row):
            padded = (
                # No blanks after the last column: they would wrap on a terminal
                cell.ljust(widths[i] if i + 1 < len(row) else 0)
                if i in left
                else cell.rjust(widths[i])
            )
            # Coloured after padding, since an escape counts as characters
            if number == 0:
                padded = style(padded, "dim")
            # A negative size is what is missing; "-" alone is no figure
            elif cell.startswith("-") and cell[1:2].isdigit():
                padded = style(padded, "red")
            elif marks and number - 1 in marks:
                padded = style(padded, marks[number - 1])
            cells.append(padded)
        lines.append("  ".join(cells).rstrip())
    return lines


def fitted(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Style,
    left: Sequence[int] = (0,),
    marks: Mapping[int, str] | None = None,
    less: Sequence[int] = (),
) -> list[str]:
    """Return the lines of a table. If it is wider than the terminal, it lacks the columns `less`;
    then the first column's texts are shortened; and if that is not enough, they are above the
    others."""

    def wide(columns: Sequence[int]) -> int:
        return sum(max(len(printable(row[i])) for row in (head, *rows)) + 2 for i in columns) - 2

    # columns that still stand, as indices of head
    shown = list(range(len(head)))
    for column in less:
        if style.bounded and wide(shown) > style.width:
            shown.remove(column)
    heads, cells = [head[i] for i in shown], [[row[i] for i in shown] for row in rows]
    # for the first column
    room = style.width - wide(shown[1:]) - 2
    # A name of fewer columns says nothing: stacked puts it above instead
    if style.bounded and room >= _NAME:
        cells = [[shortened(first, room), *others] for first, *others in cells]
    return stacked(heads, cells, style, [shown.index(i) for i in left if i in shown], marks)


def stacked(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Style,
    left: Sequence[int] = (0,),
    marks: Mapping[int, str] | None = None,
    first: int = 1,
) -> list[str]:
    """Return the lines of a table. If it is wider than the terminal, the `first` columns of each
    row are above the others. On a pipe each row is one line."""
    widths = [max(len(printable(row[i])) for row in (head, *rows)) for i in range(len(head))]
    # On a pipe one row is one line, for grep and awk
    if not style.bounded or sum(widths) + 2 * (len(widths) - 1) <= style.width:
        return table(head, rows, style, left, marks)
    shifted = [i - first for i in left]
    others = table(head[first:], [row[first:] for row in rows], style, shifted, marks)
    lines: list[str] = []
    for number, (row, other) in enumerate(zip((head, *rows), others, strict=True)):
        mark = (marks or {}).get(number - 1) if number else "dim"
        title = ": ".join(row[:first])
        # A title keeps its own indentation, which marks the chosen row
        text = title.lstrip()
        indent = " " * (len(title) - len(text))
        for line in wrap(text, style.width, indent, "    "):
            lines.append(style(line, mark) if mark else line)
        lines.append("    " + other)
    return lines


def blocks(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """Return the lines of a table that is at most as wide as the terminal: further columns go to
    tables below, each after the first column."""
    widths = [max(len(printable(row[i])) for row in (head, *rows)) for i in range(len(head))]
    # columns of each table, as indices; the first column is repeated in all
    parts: list[list[int]] = []
    for i in range(1, len(head)):
        part = [*parts[-1], i] if parts else [i]
        if parts and widths[0] + sum(2 + widths[j] for j in part) <= style.width:
            parts[-1] = part
        else:
            parts.append([i])
    lines: list[str] = []
    for part in parts:
        if lines:
            lines.append("")
        shown = (0, *part)
        heads = [head[i] for i in shown]
        cells = [[row[i] for i in shown] for row in rows]
        lines += table(heads, cells, style)
    return lines


def rounded(rate: float) -> str:
    """Return tokens per second as a person says it: two digits, or all before the point."""
    # More digits would promise more than a prediction knows
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def tokens(rate: float) -> str:
    """Return the tokens per second with three digits."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"
