"""What `autolayers explain LOG` prints, laid out for the terminal: the cause, figures, what to try,
the launch."""

from __future__ import annotations

import re

from .table import Style, wrap

_LABEL = 12  # columns of Diagnosis.text's labels


def diagnosis_text(text: str, explained: bool, style: Style) -> str:
    """Return a Diagnosis' text: the cause in colour, labelled lines wrapped under their texts, the
    launch in bold."""
    cause, *rows = text.splitlines()
    lines = [style(line, "red" if explained else "bold") for line in wrap(cause, style.columns)]
    for row in rows:
        # "evidence    line 12: ...": a word, then blanks up to column 12
        label = re.match(r"\S+ +", row)
        # The command to copy: one line, whatever the width
        if row.lstrip().startswith("llama-server "):
            lines.append(style(row, "bold"))
        elif label and label.end() == _LABEL:
            lines += wrap(row[_LABEL:], style.columns, row[:_LABEL], " " * _LABEL)
        else:
            lines.append(row)
    return "\n".join(lines) + "\n"
