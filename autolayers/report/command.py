"""A command on a terminal, which breaks before flags alone."""

from __future__ import annotations

import os

from ..quoting import shell
from .table import Style

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_FURTHER = 2  # columns that the next lines are indented by
_END = " \\"  # which a shell reads as one line with the next


def command_lines(
    words: Sequence[str], style: Style, indent: int = 0, look: str = "bold"
) -> list[str]:
    """Return the command in lines of the terminal's width, which a shell reads as one."""
    whole = shell(list(words))
    lines = [whole]
    # A pipe wants one line; cmd and PowerShell have no backslash at a line's end
    if style.drawn and os.name != "nt" and indent + len(whole) > style.width:
        lines = [""]
        # The words, each flag with its values.
        groups: list[list[str]] = []
        for word in words:
            # "-1" is a value: a flag stays on one line with all its values
            if groups and (word[1:2].isdigit() or not word.startswith("-")):
                groups[-1].append(word)
            else:
                groups.append([word])
        for text in map(shell, groups):
            room = style.width - indent - _FURTHER - len(_END) - len(lines[-1])
            if lines[-1] and len(text) + 1 > room:
                lines.append(text)
            else:
                lines[-1] += f" {text}" if lines[-1] else text
    left = " " * (indent if style.drawn else 0)
    first, *others = lines
    shown = [left + first, *(f"{left}{' ' * _FURTHER}{line}" for line in others)]
    shown[:-1] = [line + _END for line in shown[:-1]]
    return [style(line, look) if look else line for line in shown]


def flag_lines(words: Sequence[str], style: Style, indent: int) -> list[str]:
    """Return a launch's flags below what is said of it: as command_lines, on a pipe one line."""
    if not style.drawn:
        return [" " * indent + shell(list(words))]
    return command_lines(words, style, indent, "")
