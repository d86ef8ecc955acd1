"""A line that a program prints when something fails: a row of backends/signs.tsv or, of llama.cpp
and the programs around it, of diagnosis/signs.tsv.

    pattern = r"allocating (?P<mib>\\S+) MiB on device (?P<index>\\d+): cudaMalloc"
    Sign("oom_device", "cudaMalloc failed", pattern)

A sign is first looked for by its `word`, in lower case and cheap, then by its `pattern`, whose
groups are figures: `bytes`, `mib`, `gib` (what was asked for), `name` (a buffer or a device),
`index` (of a device). `phase`: where it always happens; "" where the lines after it tell. `weight`:
of several signs the heaviest is the cause, of equals the first in the log: 9 says why it failed, 8
that it failed and little of why, below that nothing ended. `first`, `last`: the builds whose
source has the words; 0: not bounded. `limit`: the driver says the same of one allocation that is
over its limit.
"""

from __future__ import annotations

import re

from ..tables import rows

BYTES = r"(?P<bytes>\d{1,18})(?!\d)"
MIB = r"(?P<mib>\d{1,9}[.,]\d{1,6}|\d{1,9})"
NAME = r"(?P<name>\S{1,80})"
# what <NAME> and the like stand for in a table's pattern
_PARTS = {
    "BYTES": BYTES,
    "MIB": MIB,
    "NAME": NAME,
    "INDEX": r"(?P<index>\d{1,3})",
    # "CUDA error 2 at FILE:LINE: ..." of 2023, "CUDA error: ..." since
    "AT": r"(?: \d{1,4} at .{1,200})?",
    "PART": r"[^/\\']{0,120}-\d{5}-of-\d{5}\.gguf",  # of a model in several files
    "EXIT": r"\b[eE]xit(?:ed)?(?: with)?(?: code| status)?:? ?\(?",  # before a process's code
}


class Sign:
    __slots__ = (
        "_compiled",
        "cause",
        "first",
        "last",
        "limit",
        "pattern",
        "phase",
        "said",
        "weight",
        "word",
    )

    def __init__(
        self,
        cause: str,
        word: str,
        pattern: str = "",
        phase: str = "",
        *,
        weight: int = 9,
        first: int = 0,
        last: int = 0,
        limit: bool = False,
    ) -> None:
        self.cause, self.said, self.phase, self.weight = cause, word, phase, weight
        self.word, self.pattern = word.lower(), pattern
        self.first, self.last, self.limit = first, last, limit
        self._compiled: re.Pattern[str] | None = None

    def match(self, text: str, lower: str) -> dict[str, str] | None:
        if self.word not in lower:
            return None
        if not self.pattern:
            return {}
        if self._compiled is None:
            self._compiled = re.compile(self.pattern)
        matched = self._compiled.search(text)
        return (
            {key: value for key, value in matched.groupdict().items() if value} if matched else None
        )

    def __repr__(self) -> str:
        return f"Sign({self.cause!r}, {self.word!r})"


def signs_of(table: str) -> list[tuple[dict[str, str], Sign]]:
    """Return a table's rows, each with its Sign."""
    found = []
    for row in rows(table):
        first, _, last = row["builds"].partition("-")
        sign = Sign(
            row["cause"],
            row["words"],
            re.sub("<([A-Z]+)>", lambda part: _PARTS[part[1]], row["pattern"]),
            row["phase"],
            weight=int(row["weight"] or 9),
            first=int(first or 0),
            last=int(last or 0),
            limit=bool(row.get("limit")),
        )
        found.append((row, sign))
    return found
