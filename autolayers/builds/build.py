"""One build of llama.cpp as seen by a launch: which flags it knows, and what it does without them.

    build = Build(number=7000)
    build.knows("--load-mode"), build.default_slots       # (False, 4)

If the binary is available, its own --help decides (`flags`). For `--llama-build` and remote
servers, the builds in the flag table (flags/arguments.csv) do.
"""

from __future__ import annotations

from ..engines import LLAMA_SERVER, Engine
from ..flags.params import N_PARALLEL
from ..flags.table import ARGUMENTS, GONE, LEGACY, Argument, lookup
from ..records import dataclass, lazy
from .sources import NEWEST, following, latest, preceding
from .table import Rules, rules

# builds by which a flag's first one may be wrong if the source of that information has no build
# number
_OFF = 20


@dataclass(frozen=True)
class Build:
    """One llama.cpp build. `number` 0: unknown (built outside of git). `flags`: the names in its
    --help, None: not queried. `between`: (first, last) build that it may be. `doubt`: why it may
    not be an upstream llama.cpp build; `fork`: the name of another program that it is, which counts
    its builds by itself: it is planned as the newest build. `engine`: the program that uses it."""

    number: int = 0
    commit: str = ""
    flags: frozenset[str] | None = None
    flash_takes_word: bool | None = None  # as in --help; None: not queried
    traces: bool | None = None  # as in --help: buffer sizes need -lv 4
    doubt: str = ""
    between: tuple[int, int] | None = None  # if the program reports no number; None: by its flags
    fork: str = ""
    engine: Engine = LLAMA_SERVER

    def knows(self, flag: str) -> bool:
        """Return whether this build accepts a flag. Unknown builds are treated as the newest."""
        entry = lookup(flag)
        # Whether the engine lacks an argument, or means another thing by it.
        if (
            self.engine.lacks
            and entry is not None
            and (
                not set(entry[0].names + entry[0].negated).isdisjoint(
                    (*self.engine.lacks, *self.engine.unwritten)
                )
            )
        ):
            return False
        # its --help is the truth, also of a fork with flags of its own
        if self.flags is not None:
            names = (*entry[0].names, *entry[0].negated) if entry else (flag,)
            return any(name in self.flags for name in names)
        if entry is None:
            return True
        row, number = entry[0], self.rules.number
        return row.is_of(self.engine.program) and row.first <= number <= (row.last or number)

    def lacks(self, flag: str, planned: bool = False) -> str:
        """Return why this build refuses a flag: "b9100 has no --moe-cache-mib, which came with
        b11507". "" if it has it or may have it: builds in the table are only as precise as the
        sources seen, and a binary's own --help takes precedence. `planned`: the launch is made for
        this program, so an unknown build is the newest one."""
        if flag in self.engine.lacks:
            return f"{self.engine.name} has no {flag}"
        # nothing is known of a build without a number and without a --help
        known = planned or self.flags or self.number
        entry = lookup(flag) if known and not self.fork else None
        if entry is None or self.knows(flag):
            return ""
        row = entry[0]
        if (planned or self.flags) and (why := self.has_not(row, flag)):
            return why
        name = f"b{self.number}" if self.number else "this llama.cpp"
        if not self.number and not self.flags:
            name = "today's llama.cpp"
        if self._is_before(row.first):
            return f"{name} has no {flag}, which came with b{row.first}"
        if self._is_after(row.last):
            when = "" if row.last == GONE else f", which went after b{row.last}"
            return f"{name} has no {flag}{when}"
        return ""

    def has_not(self, row: Argument, flag: str) -> str:
        """Return why no build of this program has a flag; "" if some have."""
        if row.is_of(self.engine.program):
            return ""
        # Two of them: a dozen would fill the line
        others = " and ".join(f"llama-{program}" for program in row.of[:2])
        return f"{flag} is a flag of {others}, not of llama-{self.engine.program}"

    def _is_before(self, first: int) -> bool:
        """Return whether this build surely lacks what came with the build `first`."""
        number = self.rules.number
        if number >= first:
            return False
        # the source before the first one that has the flag: in between nobody looked
        return bool(self.flags) or number <= (preceding(first) or first - _OFF)

    def _is_after(self, last: int) -> bool:
        """Return whether this build surely lacks what went after the build `last`; 0: it never
        went."""
        number = self.rules.number
        if not last or number <= last:
            return False
        return bool(self.flags) or 0 < following(last) <= number

    @lazy
    def rules(self) -> Rules:
        """What llama.cpp does at this build; for an unknown one, as the newest build that it may
        be, or the oldest."""
        # a fork's numbers are its own
        if self.fork:
            return rules(NEWEST, self.doubt, engine=self.engine)
        if self.number and not self.doubt:
            return rules(self.number, engine=self.engine)
        low, high = self.between or dates(self.flags or frozenset())
        # the bound is the larger of the newest and the oldest build that it may be
        oldest = low if self.between or self.flags else 0
        number = min(self.number or latest(low, high), high, NEWEST)
        return rules(number, self._why_unsure(low, high), oldest, self.engine)

    def _why_unsure(self, low: int, high: int) -> str:
        """Return why the build is only known to be from `low` to `high`; "" where nothing says
        so."""
        if self.doubt or self.flags is None:
            return self.doubt
        when = f"b{low} or newer" if high >= NEWEST else f"b{low} to b{high}"
        return (
            f"this llama.cpp does not report its build; by its flags and architectures it is {when}"
        )

    @property
    def bare_flash(self) -> bool:
        """-fa is a switch without a value."""
        # as its own --help says
        if self.flash_takes_word is not None:
            return not self.flash_takes_word
        return not self.rules.flash_word

    @property
    def default_slots(self) -> int:
        """Slots of the program without -np."""
        one = self.fork or self.engine.one_sequence or not self.rules.auto_slots
        return 1 if one else N_PARALLEL

    @property
    def default_port(self) -> int:
        """The port of a llama-server without --port."""
        return 9931 if self.rules.port_9931 else 8080

    @property
    def buffers_need_trace(self) -> bool:
        """The lines with buffer sizes are only printed with -lv 4."""
        if self.traces is not None:
            return self.traces
        return self.rules.trace_level


def dates(flags: frozenset[str]) -> tuple[int, int]:
    """Return (first, last) build with these names in its --help; the last is the newest known
    unless a name rules it out."""
    if not flags:
        return 1, NEWEST
    present, absent = _dated(flags)
    # a flag that is there came with some build; one that is gone went with some build
    oldest = [row.first for row in present] + [row.last + 1 for row in absent if row.last]
    low = max([1, *oldest])
    newest = [row.last for row in present if row.last]
    # a name that is missing came later, unless the other names say that it went
    newest += [row.first - 1 for row in absent if row.first > low]
    return low, max(low, min([NEWEST, *newest]))


def _dated(flags: frozenset[str]) -> tuple[list[Argument], list[Argument]]:
    """Return the rows that only some builds have: those with one of these names, and those whose
    absence dates a build."""
    present: list[Argument] = []
    absent: list[Argument] = []
    for row in (*ARGUMENTS, *LEGACY):
        if not (row.first or row.last):
            continue  # every build has it
        if _has_name(row, flags):
            present.append(row)
        elif not (row.first and row.last):
            absent.append(row)
    return present, absent


def _has_name(row: Argument, flags: frozenset[str]) -> bool:
    return not flags.isdisjoint((*row.names, *row.negated))


def oldest_with(flags: frozenset[str]) -> int:
    """Return the oldest build that has all of these names, whatever others it lacks."""
    named = (row.first for row in (*ARGUMENTS, *LEGACY) if _has_name(row, flags))
    return max(named, default=0)


TODAY = Build()
