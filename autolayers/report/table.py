"""Aligned columns, with or without colour."""

from __future__ import annotations

from ..output import COLOURS
from ..quoting import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

_CODES = {name: code for code, name in COLOURS.items()}


class Style:
    """Colour where the reader's terminal shows it: NO_COLOR and TERM=dumb win over FORCE_COLOR, that over isatty."""

    def __init__(self, on: bool = False) -> None:
        self.on = on

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> Style:
        if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
            return cls(False)
        return cls(bool(environ.get("FORCE_COLOR")) or stream.isatty())

    def __call__(self, text: str, name: str) -> str:
        text = printable(text)
        return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if self.on and text else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style | None = None,
          left: Sequence[int] = (0,)) -> list[str]:
    """Lines of a table: the columns of `left` flush left, the others right. Negative numbers are marked red."""
    style = style or Style()
    head, rows = [printable(cell) for cell in head], [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for number, row in enumerate((head, *rows)):
        cells = []
        for i, cell in enumerate(row):
            padded = cell.ljust(widths[i]) if i in left else cell.rjust(widths[i])
            if number == 0:
                padded = style(padded, "dim")
            elif cell.startswith("-") and cell[1:2].isdigit():
                padded = style(padded, "red")
            cells.append(padded)
        lines.append("  ".join(cells).rstrip())
    return lines
