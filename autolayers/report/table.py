"""Aligned columns, with or without colour."""

from __future__ import annotations

import os
import sys

from ..output import COLOURS
from ..quoting import printable
from ..units import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
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

    @classmethod
    def here(cls) -> Style:
        """Return that of standard output."""
        return cls.of(sys.stdout, os.environ)

    def __call__(self, text: str, name: str) -> str:
        text = printable(text)
        shown = self.painted if name in PLACES else self.on
        return f"\x1b[{PLACES.get(name) or _CODES[name]}m{text}\x1b[0m" if shown and text else text

    def wrapped(self, text: str, name: str, first: str = "", then: str = "") -> list[str]:
        """Return the text in lines of that style, as `wrap` breaks them."""
        return [self(line, name) for line in wrap(text, self.width, first, then)]


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
        return [f"{style(short, 'bold')}{after}".rstrip(), *style.wrapped(verdict, colour)]
    title = shortened(title, room)
    # By lengths without colour: escapes have no width
    space = style.width - len(title) - len(after) - len(verdict)
    return [f"{style(title, 'bold')}{after}{' ' * space}{style(verdict, colour)}"]


def labelled(label: str, texts: Sequence[str], style: Style) -> list[str]:
    """Return texts after a label, wrapped; nothing of empty ones."""
    lines: list[str] = []
    for text in filter(None, texts):
        lines += wrap(text, style.width, ("" if lines else label).ljust(LABEL), " " * LABEL)
    return lines


def widths(*rows: Sequence[str]) -> list[int]:
    """Return the width of each column."""
    return [max(len(printable(cell)) for cell in column) for column in zip(*rows, strict=True)]


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Style = PLAIN,
    left: Sequence[int] = (0,),
    marks: Mapping[int, str] | None = None,
) -> list[str]:
    """Return the lines of a table: the columns in `left` flush left, the others right. Negative
    numbers are red, and rows have the style in `marks`."""
    wide = widths(head, *rows)
    lines = []
    for number, row in enumerate((head, *rows), -1):
        cells = []
        for i, cell in enumerate(map(printable, row)):
            # Escapes are set after padding, as they count as characters
            # No blanks after the last column: they would wrap on a terminal
            width = wide[i] if i + 1 < len(row) or i not in left else 0
            padded = cell.ljust(width) if i in left else cell.rjust(width)
            # A negative size is what is missing; "-" alone is no figure
            missing = cell.startswith("-") and cell[1:2].isdigit()
            mark = "dim" if number < 0 else "red" if missing else (marks or {}).get(number)
            cells.append(style(padded, mark) if mark else padded)
        lines.append("  ".join(cells).rstrip())
    return lines


def stacked(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Style,
    left: Sequence[int] = (0,),
    marks: Mapping[int, str] | None = None,
    first: int = 1,
    less: Sequence[int] = (),
) -> list[str]:
    """Return the lines of a table. If it is wider than the terminal, it lacks the columns `less`;
    then, if there are such, the first column's texts are shortened; and if that is not enough, the
    `first` columns of each row are above the others. On a pipe each row is one line, for grep and
    awk."""
    # columns that still stand, as indices of head, and how wide each is with its gap
    shown = list(range(len(head)))
    wide = [width + 2 for width in widths(head, *rows)]
    for column in less:
        if sum(wide[i] for i in shown) - 2 > style.columns:
            shown.remove(column)
    head, *rows = [[row[i] for i in shown] for row in (head, *rows)]
    left = [shown.index(i) for i in left if i in shown]
    # for the first column
    room = style.columns - sum(wide[i] for i in shown[1:])
    # A name of fewer columns says nothing: above the others it is whole
    if less and room >= _NAME:
        rows = [[shortened(row[0], room), *row[1:]] for row in rows]
    if sum(widths(head, *rows)) + 2 * (len(head) - 1) <= style.columns:
        return table(head, rows, style, left, marks)
    shifted = [i - first for i in left]
    others = table(head[first:], [row[first:] for row in rows], style, shifted, marks)
    lines: list[str] = []
    for number, (row, other) in enumerate(zip((head, *rows), others, strict=True), -1):
        mark = "dim" if number < 0 else (marks or {}).get(number)
        title = ": ".join(row[:first])
        # A title keeps its own indentation, which marks the chosen row
        text = title.lstrip()
        wrapped = wrap(text, style.width, " " * (len(title) - len(text)), "    ")
        lines += [style(line, mark) if mark else line for line in wrapped]
        lines.append(f"    {other}")
    return lines


def blocks(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """Return the lines of a table that is at most as wide as the terminal: further columns go to
    tables below, each after the first column."""
    first, *others = widths(head, *rows)
    # columns of each table, as indices; the first column is repeated in all
    parts: list[list[int]] = []
    room = 0
    for i, width in enumerate(others, 1):
        room -= width + 2
        if room < 0 or not parts:
            parts.append([0])
            room = style.width - first - width - 2
        parts[-1].append(i)
    lines: list[str] = []
    for part in parts:
        heads, *cells = [[row[i] for i in part] for row in (head, *rows)]
        lines += [*([""] if lines else []), *table(heads, cells, style)]
    return lines


def ranged(
    rate: float, spread: float, write: Callable[[float], str], unit: str = " tokens/s"
) -> str:
    """Return a predicted rate, and the range that it lies in."""
    return f"{write(rate)}{unit} ({write(rate / spread)} to {write(rate * spread)})"


def rounded(rate: float) -> str:
    """Return tokens per second as a person says it: two digits, or all before the point."""
    # More digits would promise more than a prediction knows
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def tokens(rate: float) -> str:
    """Return the tokens per second with three digits."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"
