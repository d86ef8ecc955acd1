"""Writes docs/images/terminal-*.svg: what commands print on a terminal, run in one and drawn from
its screen; and docs/images/picture-*.svg, what `--picture` writes of plans.

    python docs/make_terminal.py             # needs pyte, of the test dependencies
"""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

import pyte

from autolayers import read_header

ROOT = Path(__file__).resolve().parents[1]
MOE, LARGE = "qwen3-30b-a3b-q4_k_m.gguf", "llama-3.3-70b-q4_k_m.gguf"
COMMANDS = {
    "plan": [MOE, "--gpu", "rtx-3060", "--ram", "32GiB"],
    "three-gpus": [LARGE, "--gpu", "rtx-3090,rtx-3060,rtx-3060", "--ram", "64GiB"],
    "does-not-fit": [LARGE, "--gpu", "8GiB", "--ram", "32GiB", "-ngl", "60"],
    "choose": ["choose", "qwen3-8b-q4_k_m.gguf", LARGE, MOE, "--gpu", "rtx-3060", "--ram", "32GiB"],
    "why": [MOE, "--gpu", "rtx-3060", "--ram", "32GiB", "--why"],
    "sweep": ["sweep", "qwen3-8b-q4_k_m.gguf", "--gpus", "8GiB", "--types", "f16,q8_0"],
}
PICTURES = ("plan", "three-gpus", "does-not-fit")
WIDTHS = (80, 120)
_PALETTE = {
    "default": "#d0d4da",
    "red": "#ff6b6b",
    "green": "#63d471",
    "brown": "#f2c14e",
    "yellow": "#f2c14e",
    "blue": "#5b9bff",
    "magenta": "#d98cff",
    "cyan": "#4fd1d9",
}
_CELL, _LINE = 8.4, 18


def screen_of(
    words: Sequence[str],
    columns: int,
    rows: int = 60,
    environ: dict[str, str] | None = None,
    program: Sequence[str] = (sys.executable, "-m", "autolayers"),
    seconds: float = 60,
    folder: Path = ROOT / "fixtures" / "headers",
) -> pyte.Screen:
    """The screen of a terminal after a command ran in it."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    import fcntl
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    known = {
        **os.environ,
        "TERM": "xterm-256color",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": str(ROOT),
        **(environ or {}),
    }
    for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        if name not in (environ or {}):
            known.pop(name, None)
    with subprocess.Popen(
        [*program, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=known, cwd=folder
    ) as process:
        os.close(theirs)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    data = os.read(ours, 1 << 16)
                except OSError:
                    break
                stream.feed(data)
            elif process.poll() is not None:
                break
    os.close(ours)
    return screen


def svg(screen: pyte.Screen, command: str) -> str:
    """The screen's lines with their colours."""
    last = max((y for y in range(screen.lines) if screen.display[y].strip()), default=0)
    width, height = screen.columns * _CELL + 24, (last + 2) * _LINE + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'role="img" '
        f'aria-label="{escape(command)}"><title>{escape(command)}</title>',
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#15181d"/>',
        '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">',
        _text(0, [(f"$ {command}", "default", True)]),
    ]
    for y in range(last + 1):
        parts: list[tuple[str, str, bool]] = []
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            kind = (cell.fg if cell.fg in _PALETTE else "default", bool(cell.bold))
            if parts and parts[-1][1:] == kind:
                parts[-1] = (parts[-1][0] + cell.data, *kind)
            else:
                parts.append((cell.data, *kind))
        lines.append(_text(y + 1, parts))
    return "\n".join([*lines, "</g></svg>", ""])


def _text(row: int, parts: Sequence[tuple[str, str, bool]]) -> str:
    found, x = [], 0
    for text, colour, bold in parts:
        if text.strip():
            weight = ' font-weight="bold"' if bold else ""
            shown = text.rstrip()
            found.append(
                f'<tspan x="{12 + x * _CELL:.1f}" textLength="{len(shown) * _CELL:.1f}" '
                f'fill="{_PALETTE[colour]}"{weight}>{escape(shown)}</tspan>'
            )
        x += len(text)
    return f'<text y="{28 + row * _LINE}" xml:space="preserve">{"".join(found)}</text>'


def whole(folder: Path) -> None:
    """Files of the right length for the headers that the commands name; nearly all of each is a
    hole."""
    for name in {word for words in COMMANDS.values() for word in words if word.endswith(".gguf")}:
        header = ROOT / "fixtures" / "headers" / name
        with (folder / name).open("wb") as file:
            file.write(header.read_bytes())
            file.truncate(read_header(header).files[0].promised)


def main() -> None:
    images = ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        whole(folder)
        for name, words in COMMANDS.items():
            for columns in WIDTHS:
                shown = " ".join(["autolayers", *words])
                screen = screen_of(words, columns, folder=folder)
                (images / f"terminal-{name}-{columns}.svg").write_text(
                    svg(screen, shown), encoding="utf-8"
                )
        for name in PICTURES:
            words = [*COMMANDS[name], "--picture", str(images / f"picture-{name}.svg")]
            subprocess.run([sys.executable, "-m", "autolayers", *words], cwd=folder, check=False)


if __name__ == "__main__":
    main()
