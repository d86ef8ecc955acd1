"""One build of llama.cpp as a launch meets it: which flags it knows, and what it does when a flag is missing.

    build = Build(number=7000)
    build.knows("--load-mode"), build.default_slots       # (False, 4)

Where a binary is at hand its own --help decides (`flags`); else the builds in the flag table (flags/table.py) do, for
`--llama-build` and remote servers.
"""

from __future__ import annotations

from ..flags.params import N_PARALLEL
from ..flags.table import lookup
from ..records import dataclass
from .table import Rules, rules


@dataclass(frozen=True)
class Build:
    """One llama.cpp build. `number` 0: unknown (built outside of git). `flags`: the names in its --help, None: not
    asked."""

    number: int = 0
    commit: str = ""
    flags: frozenset[str] | None = None
    flash_takes_word: bool | None = None      # as --help says; None: not asked
    traces: bool | None = None                # as --help says: buffer sizes need -lv 4

    def knows(self, flag: str) -> bool:
        """Whether this build accepts a flag. Unknown builds are taken for today's."""
        found = lookup(flag)
        if self.flags is not None:
            names = (*found[0].names, *found[0].negated) if found else (flag,)
            return any(name in self.flags for name in names)
        return found is None or found[0].first <= self.rules.number <= (found[0].last or self.rules.number)

    @property
    def rules(self) -> Rules:
        """What llama.cpp does at this build; at an unknown one what today's does."""
        return rules(self.number or None)

    @property
    def bare_flash(self) -> bool:
        """-fa is a switch without a word."""
        if self.flash_takes_word is not None:
            return not self.flash_takes_word
        return not self.rules.flash_word

    @property
    def default_slots(self) -> int:
        """Slots of a llama-server without -np."""
        return N_PARALLEL if self.rules.auto_slots else 1

    @property
    def buffers_need_trace(self) -> bool:
        """The lines with buffer sizes are only shown with -lv 4."""
        if self.traces is not None:
            return self.traces
        return self.rules.trace_level


TODAY = Build()
