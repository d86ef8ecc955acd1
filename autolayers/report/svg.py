"""Text of a terminal as a picture to post: `--picture plan.svg`."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from ..errors import UsageError
from ..state import write
from .look import GPU, INK, MARK, PAPER, RAM, SOFT
from .picture import FULL, HALF
from .table import PLACES

# pixels of a character's width, a line's height and the edge, for a font of 15 px
_CELL, _LINE, _MARGIN = 9, 20, 20
# code of an escape -> colour of the text; a summary has no other codes
_PAINT = {
    "": INK,
    "0": INK,
    "1": INK,
    **{PLACES[name]: colour for name, colour in (("gpu", GPU), ("ram", RAM))},
}
_CODE = re.compile(r"\x1b\[(\d+)m")


def write_picture(text: str, path: str) -> None:
    """Write the text to the file of that name, which ends in .svg. Raises UsageError for another
    ending, AutolayersError where it cannot be written, OSError."""
    if Path(path).suffix.lower() != ".svg":
        raise UsageError(f"--picture {path}: expected a name that ends in .svg")
    write(path, svg(text).encode())


def svg(text: str) -> str:
    """Return the lines in cells of one width, on white, in the colours of a painted Style; with the
    mark."""
    lines = text.rstrip("\n").split("\n")
    # Without escapes, which have no width
    width = 2 * _MARGIN + _CELL * max(len(_CODE.sub("", line)) for line in lines)
    # One line more, for the mark
    height = 2 * _MARGIN + _LINE * (len(lines) + 1)
    drawn = [
        part for i, line in enumerate(lines) for part in _line(line, _MARGIN + _LINE * (i + 1) - 5)
    ]
    foot = height - _MARGIN
    name = (
        f'<g transform="translate({width - _MARGIN - 112} {foot - 15})"><g '
        f'transform="scale(.55)">{MARK}</g><text x="22" y="15" fill="{SOFT}">autolayers</text></g>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans Mono, Menlo, Consolas, '
        f'monospace" '
        f'font-size="15" fill="{INK}"><rect width="{width}" height="{height}" '
        f'fill="{PAPER}"/>\n' + "\n".join([*drawn, name]) + "\n</svg>\n"
    )


def _line(line: str, y: int) -> list[str]:
    """Return the line's runs of one colour; half blocks stand before full ones of the GPU's."""
    runs, x = [], _MARGIN
    # ["text", "34", "blue text", "0", "text"]: the codes stand between the runs
    first, *others = _CODE.split(line)
    for code, run in zip(["", *others[::2]], [first, *others[1::2]], strict=True):
        if run.strip():
            # A half block is RAM's colour below and the GPU's above: two runs, one over the other
            if HALF in run:
                runs.append(
                    _run("".join(FULL if mark == HALF else " " for mark in run), x, y, GPU, False)
                )
            runs.append(_run(run, x, y, _PAINT[code], code == "1"))
        x += _CELL * len(run)
    return runs


def _run(text: str, x: int, y: int, colour: str, bold: bool) -> str:
    attributes = (f' fill="{colour}"' if colour != INK else "") + (
        ' font-weight="bold"' if bold else ""
    )
    return (
        # textLength: another font than the first must not move the columns
        f'<text x="{x}" y="{y}" textLength="{_CELL * len(text)}" '
        f'xml:space="preserve"{attributes}>{escape(text)}</text>'
    )
