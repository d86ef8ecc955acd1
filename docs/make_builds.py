"""docs/builds.md: what changed in llama.cpp's memory at which build, from the table that the
program itself uses.

    python docs/make.py builds
"""

from __future__ import annotations

from autolayers.builds import NEWEST, OLDEST_EXACT, Rule, Rules
from autolayers.builds.sources import CPU_ALONE, RECORDED
from autolayers.flags.releases import RELEASES
from autolayers.flags.table import ARGUMENTS, LEGACY

_HEAD = f"""# Builds of llama.cpp

Made by `python docs/make.py builds`; do not edit. `autolayers/builds/table.py` has one row for each
change of llama.cpp that moves memory or that a launch must know. Sizes are exact from build
b{OLDEST_EXACT} to b{NEWEST}, the newest that was compared on a CPU and on CUDA and the default of a
plan, and at
{", ".join(f"b{number}" for number in RECORDED)}, whose programs alone were recorded: of
{", ".join(f"b{number}" for number in CPU_ALONE)} on a CPU, so other devices get an upper bound.
Other builds, and builds between *not in* and *from* of a rule, get an upper bound and a warning.

Releases have names too, which `--llama-build` takes:
{", ".join(f"{name} is b{number}" for name, number in RELEASES.items())}
(of 1.0.0 the oldest that it may be).

- *from*, *to*: the first and the last build with the rule; without *to*, today's build has it too.
- *not in*: the newest build whose source was seen without it; empty if that is the build before
  *from*.
- *pull*: the pull request at github.com/ggml-org/llama.cpp.

| part | rule | from | to | not in | pull | what |
|---|---|---|---|---|---|---|
"""
_FLAGS = """

## Flags

Flags that only some builds have, by their canonical name. If the program is here, its own `--help`
takes precedence.

| flag | from | to |
|---|---|---|
"""


def render() -> str:
    """The whole document as Markdown."""
    rows = sorted(Rules.rows(), key=lambda row: (row.part, row.first))
    flags = [
        (f"`{row.canonical}`", _build(row.first), _build(row.last))
        for row in (*ARGUMENTS, *LEGACY)
        if row.first or row.last
    ]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in flags)
    return f"{_HEAD}{chr(10).join(map(_line, rows))}{_FLAGS}{table}\n"


def _line(row: Rule) -> str:
    after = _build(row.after) if row.after != row.first - 1 else ""
    cells = (
        row.part,
        f"`{row.name}`",
        _build(row.first),
        _build(row.last),
        after,
        row.pull,
        row.clause,
    )
    return f"| {' | '.join(cells)} |"


def _build(number: int) -> str:
    return f"b{number}" if number else ""
