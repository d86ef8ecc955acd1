"""docs/builds.md: what changed in llama.cpp's memory at which build, from the table that the
program itself uses.

    python docs/make.py builds
"""

from __future__ import annotations

from collections.abc import Iterable

from autolayers.builds import NEWEST, OLDEST_EXACT, Rule, Rules
from autolayers.builds.sources import CPU_ALONE, RECORDED
from autolayers.flags.releases import RELEASES
from autolayers.flags.table import ARGUMENTS, LEGACY

# changes of backends and graphs, which only sizes show, from here on
RECENT = 11000


def _builds(numbers: Iterable[int]) -> str:
    return ", ".join(f"b{number}" for number in numbers)


_HEAD = f"""# Builds of llama.cpp

Made by `python docs/make.py builds`; do not edit.

Sizes are exact from build b{OLDEST_EXACT} to b{NEWEST}, a plan's default and the newest that was
compared on a CPU and on CUDA, and at {_builds(RECORDED)}, whose programs alone were recorded: of
{_builds(CPU_ALONE)} on a CPU, so other devices get an upper bound. Other builds get an upper bound
and a warning.

`--llama-build` takes the names of releases too:
{", ".join(f"{name} is b{number}" for name, number in RELEASES.items())}, the oldest that 1.0.0 may
be.

Below are the changes of llama.cpp that move memory or that a launch must know: the first build with
each, and *to* the last one, if today's has it no more. *b4080–b4435*: not in b4080, and in b4435;
a plan for a build between them has an upper bound and a warning. Numbers with # are pull requests
at github.com/ggml-org/llama.cpp. Plans follow all of them; of backends and graphs those
since b{RECENT} are here, and `autolayers/builds/rules.tsv` has the rest.
"""
_PARTS = {
    "server": "llama-server",
    "flags": "How flags are read",
    "cache": "Caches and recurrent states",
    "placement": "Where weights lie",
    "backends": "What backends run",
    "graph": "Graphs, which size the compute buffers",
}
_FLAGS = """
## Flags that only some builds have

By their canonical name. If the program is here, its own `--help` takes precedence.
"""


def render() -> str:
    """The whole document as Markdown."""
    lines = [_HEAD]
    for part, title in _PARTS.items():
        oldest = RECENT if part in ("graph", "backends") else 0
        found = [row for row in Rules.rows() if row.part == part and row.first >= oldest]
        rows = sorted(found, key=lambda row: row.first)
        lines += [f"## {title}", "", *map(_line, rows), ""]
    lines += [_FLAGS.lstrip("\n")]
    ends: dict[str, list[str]] = {}
    for row in sorted((*ARGUMENTS, *LEGACY), key=lambda row: (row.first, row.last)):
        if row.first or row.last:
            ends.setdefault(_from_to(row.first, row.last), []).append(f"`{row.canonical}`")
    lines += [f"- {builds}: {', '.join(names)}" for builds, names in ends.items()]
    return "\n".join([*lines, ""])


def _line(row: Rule) -> str:
    builds = _from_to(row.first, row.last)
    if row.first and row.after != row.first - 1:
        builds = f"b{row.after}–{builds}"
    return f"- {builds}: {row.clause}{f' ({row.pull})' if row.pull else ''}"


def _from_to(first: int, last: int) -> str:
    return " ".join([f"b{first}"] * bool(first) + [f"to b{last}"] * bool(last))
