"""Text of a terminal as a picture to post: `--picture plan.svg`, or plan.png where librsvg's program is."""

from __future__ import annotations

import shutil
import subprocess
from html import escape
from pathlib import Path

from ..errors import AutolayersError, UsageError

ENDINGS = (".svg", ".png")
_CELL, _LINE, _MARGIN = 9, 20, 20
_INK, _PAPER = "#1b2230", "#ffffff"
_MOST = 60           # seconds for librsvg


def write_picture(text: str, path: str) -> None:
    """Writes the text to the file of that name, which ends in .svg or .png. Raises UsageError for another ending,
    AutolayersError where a PNG cannot be made, OSError."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(f"--picture {path}: expected a name that ends in .svg or .png")
    if ending == ".svg":
        Path(path).write_text(svg(text), encoding="utf-8")
        return
    program = shutil.which("rsvg-convert")
    if program is None:
        raise AutolayersError(f"--picture {path}: a PNG needs rsvg-convert (package librsvg2-bin); or write a .svg")
    done = subprocess.run([program, "--zoom", "2", "-o", path], input=svg(text).encode(), capture_output=True,
                          timeout=_MOST, check=False)
    if done.returncode:
        raise AutolayersError(f"--picture {path}: rsvg-convert failed: {done.stderr.decode(errors='replace').strip()}")


def svg(text: str) -> str:
    """The lines in cells of one width, on white."""
    lines = text.rstrip("\n").split("\n")
    width = 2 * _MARGIN + _CELL * max(map(len, lines))
    height = 2 * _MARGIN + _LINE * len(lines)
    drawn = [f'<text x="{_MARGIN}" y="{_MARGIN + _LINE * (i + 1) - 5}" textLength="{_CELL * len(line)}" '
             f'xml:space="preserve">{escape(line)}</text>' for i, line in enumerate(lines) if line]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" '
            f'font-size="15" fill="{_INK}"><rect width="{width}" height="{height}" fill="{_PAPER}"/>\n'
            + "\n".join(drawn) + "\n</svg>\n")
