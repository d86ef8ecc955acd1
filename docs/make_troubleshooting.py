"""docs/troubleshooting.md: what failed launches print and what helps, from the tables that
`autolayers explain` uses.

    python docs/make.py troubleshooting
"""

from __future__ import annotations

import csv
from pathlib import Path

from autolayers.diagnosis.advice import SIBLINGS
from autolayers.diagnosis.causes import CAUSES, Cause
from autolayers.diagnosis.signs import SIGNS, Sign

_HEAD = """# Troubleshooting

Made by `python docs/make.py troubleshooting`; do not edit.

    autolayers explain server.log                 # or: journalctl -u ollama | autolayers explain -
    autolayers explain server.log -m model.gguf   # plans the launch that works on the log's machine
    autolayers explain server.log --why           # the rule that counted on each line
    autolayers explain 4242                       # a running llama-server; `autolayers ps` has PIDs
    autolayers explain model.gguf --gpu 12GiB     # why this plan

It names the cause on one line, then the figures, what to try, the launch that works and the lines
of the log that show it. The log is read on this machine and sent nowhere. When a launch dies,
`autolayers run` prints the same on a terminal, and `--retry` applies the remedy. Below, each cause
has what to try (*weights*, *KV cache*, *graph buffers*: if these were refused) and the lines of
logs that name it.

"""
_JSON = """## What is printed

Exit code 0: the log is explained; 1: it is not; 3: there is no log. Where the log shows the
command, each thing to try is that whole command with the change; a command that failed for another
reason than memory is printed again with the fewest changes: another port, the flag that was meant,
the first part of a split model. If the log has the rates of answers, and the model and GPU are
known, they stand next to the predicted ones, with a launch that is much faster, if there is one.

In `--json` the causes have the names above, the rates are `rates`, and of what to try
`remedies[].flags` is all that is typed after `llama-server` and `change` what is new of it; without
the command both are the change. With `--why` its `trace` has each rule that applied: `rule`, `line`
and `text` of the log, what it `gives`, and `overruled_by` what.

Builds after b9014 show no buffer sizes, no offloaded layers and no graph splits at the default
level; `-lv 4` brings them back. *To b4500*, *from b7400*: about the last or first build that prints
a line.
"""
_MESSAGES = Path(__file__).resolve().parent.parent / "tests" / "diagnosis" / "messages.csv"
_SOURCES = """## Messages of the sources

Error messages in the programs' sources (llama.cpp b11549, the others of November 2026) that name a
cause by themselves (`python tools/messages.py SOURCES --without` lists the others): """
# what was allocated or done when it failed
_PHASES = {
    "load": "weights",
    "cache": "KV cache",
    "compute": "graph buffers",
    "run": "in use",
    "start": "at the start",
}
_SHORTEST = 10  # characters of a message that says something by itself
_MOST = 4  # messages of a cause; explain knows the others too


def render() -> str:
    """The whole document as Markdown."""
    rows = "\n".join(
        f"- [`{cause.name}`](#{cause.name}): {cause.title}" for cause in CAUSES.values()
    )
    return "\n".join([_HEAD + rows, "", *map(_section, CAUSES.values()), _JSON, *_messages()])


def _messages() -> list[str]:
    """How many messages of the programs' sources have a cause, of all that their folders show."""
    found: dict[str, list[int]] = {}
    with open(_MESSAGES, encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            both = found.setdefault(row["program"], [0, 0])
            both[0] += int(row["messages"])
            both[1] += int(row["with a cause"])
    rows = [f"{known} of {all_of} in {name}" for name, (all_of, known) in found.items()]
    return [f"{_SOURCES}{', '.join(rows)}.", ""]


def _section(cause: Cause) -> str:
    lines = [f"## {cause.name}", "", cause.means, ""]
    if cause.remedies:
        phases: dict[str, list[str]] = {}
        for remedy in cause.remedies:
            flags = f"`{' '.join(remedy.flags)}`: " if remedy.flags else ""
            phases.setdefault(f"- {flags}{remedy.why}", []).append(_PHASES.get(remedy.phase, ""))
        for said, found in phases.items():
            lines.append(f"{said} ({', '.join(found)})" if any(found) else said)
        lines.append("")
    if cause.name == "missing_library":
        lines += ["`explain` says what brings the library that is missing.", ""]
    if cause.name == "gpu_build":
        chips: dict[str, list[str]] = {}
        for chip, version in SIBLINGS.items():
            chips.setdefault(version, []).append(chip)
        lines += [
            "AMD's chips that run a sibling's code: "
            + "; ".join(
                f"{', '.join(alike)} with `HSA_OVERRIDE_GFX_VERSION={version}`"
                for version, alike in chips.items()
            )
            + ".",
            "",
        ]
    if messages := _said([sign for sign in SIGNS if sign.cause == cause.name]):
        more = f", and {len(messages) - _MOST} more" * (len(messages) > _MOST)
        lines += [f"Lines: {', '.join(messages[:_MOST])}{more}.", ""]
    return "\n".join(lines)


def _said(signs: list[Sign]) -> list[str]:
    """The messages of a cause, but those that hold a shorter one of it, and fragments."""
    shown = {sign.said.strip(): _builds(sign) for sign in signs if len(sign.said) >= _SHORTEST}
    return [
        f"`{text}`{builds}"
        for text, builds in shown.items()
        if not any(other in text for other in shown if other != text)
    ]


def _builds(sign: Sign) -> str:
    ends = [f"from b{sign.first}"] * bool(sign.first) + [f"to b{sign.last}"] * bool(sign.last)
    return f" ({' '.join(ends)})" if ends else ""
