"""The causes that a log may show: their stable names, what each means, and what helps.

They are the rows of causes.tsv, from which docs/troubleshooting.md is made too (docs/make.py
troubleshooting).
"""

from __future__ import annotations

from itertools import groupby

from ..records import dataclass
from ..tables import rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..builds import Build


@dataclass(frozen=True)
class CauseRemedy:
    """`flags` as today's build reads them; none: something that no flag does. `phase`: of this one
    alone; `fits`: the launch with them was planned with and fits, None where nothing was planned.
    `whole`: the log's own command with them, () where it has none."""

    flags: tuple[str, ...]
    why: str
    phase: str = ""
    fits: bool | None = None
    whole: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """`flags`: all that is typed after llama-server, where the launch is known; `change`: what
        is new of them."""
        return {
            "flags": list(self.whole or self.flags),
            "change": list(self.flags),
            "why": self.why,
            "fits": self.fits,
        }


@dataclass(frozen=True)
class Cause:
    """`line`: what is said of it, `lines`: instead of it, of a part that the verdict's detail
    names."""

    name: str
    title: str
    means: str
    line: str
    remedies: tuple[CauseRemedy, ...]
    lines: Mapping[str, str]


CAUSES: dict[str, Cause] = {}
for _name, _rows in groupby(rows("diagnosis/causes.tsv"), lambda row: row["cause"]):
    _title, _means, _line, *_others = _rows
    CAUSES[_name] = Cause(
        _name,
        _title["text"],
        _means["text"],
        _line["text"],
        tuple(
            CauseRemedy(tuple(row["flags"].split()), row["text"], row["of"])
            for row in _others
            if row["is"] == "try"
        ),
        {row["of"]: row["text"] for row in _others if row["is"] == "line"},
    )


def remedies_of(name: str, phase: str | None, build: Build | None = None) -> Iterator[CauseRemedy]:
    """Yield what helps, in the order to try, as a build reads it."""
    for remedy in CAUSES[name].remedies:
        # A remedy without a phase helps in all of them
        if remedy.phase in ("", phase):
            flags = remedy.flags
            # -fa took no value before b6325
            if build is not None and build.bare_flash and flags == ("-fa", "on"):
                flags = ("-fa",)
            # A build without the flag would refuse to start
            if (
                build is not None
                and flags
                and flags[0].startswith("-")
                and not build.knows(flags[0])
            ):
                continue
            # Older builds take a number alone: the advice stays, without a flag
            if flags == ("-ngl", "auto") and build is not None and not build.rules.layers_auto:
                flags = ()
            yield CauseRemedy(flags, remedy.why, remedy.phase)
