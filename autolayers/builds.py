"""What changed in llama.cpp at which build: which flags a build knows, and what it does when a flag is missing.

    build = Build(number=7000)
    build.knows("--load-mode"), build.default_slots       # (False, 4)

Where a binary is at hand its own --help decides (`flags`); the numbers below serve for `--llama-build` and for remote
servers. Each is a release that is known to have the change, from the pull request named and reports of users; the very
first one may be a few releases earlier.
"""

from __future__ import annotations

from .flags.params import N_PARALLEL
from .records import dataclass

# canonical flag -> first build that knows it. A flag that is not here is older than all of these.
FIRST_BUILD = {
    "-ot": 5030,                       # #11397, 2025-04
    "--op-offload": 5342,              # #13386, 2025-05
    "--swa-full": 5427,                # #13194, 2025-05
    "-kvu": 5913,                      # #14363, 2025-07
    "-cmoe": 6050,                     # #14992, 2025-07
    "-ncmoe": 6093,                    # #15077, 2025-08
    "-ctxcp": 6710,                    # #16440, 2025-10
    "-cram": 6726,                     # #16391, 2025-10
    "--no-host": 6710,                 # #16310, 2025-10
    "-fit": 7407, "-fitt": 7407, "-fitc": 7407,     # #16653, 2025-12
    "-bs": 7625,                       # #17004, 2026-01
    "--kv-unified-per-slot": 10000,    # #24124, 2026-06
    "-lm": 10110,                      # #20834, 2026-07
    "-lzm": 10884, "-ncffn": 10884,    # seen in the source of 2026-10
}
# flag -> first build that refuses it
REMOVED = {"--mmap": 10884, "--mlock": 10884, "-dio": 10884}

FLASH_WORDS = 6325      # #15434, 2025-08: -fa takes on, off or auto, and auto is the default; before, a bare -fa
AUTO_SLOTS = 6927       # #16736, 2025-11: four unified slots where -np is not given; before, one
OUTPUT_LIMIT = 9530     # #23861, 2026-06: the server reserves logits for its slots only; before, for a micro batch
# "As modelled" in other modules is the source of build 11311, 2026-10-01 (ggml 0.25.3).
MODELLED = 10884        # the first build taken to have all its memory rules
TRACE_LEVELS = 8000     # -lv counts 3 info, 4 trace; before, every buffer line was shown without being asked for


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
        from .flags.table import lookup

        found = lookup(flag)
        names = (*found[0].names, *found[0].negated) if found else (flag,)
        if self.flags is not None:
            return any(name in self.flags for name in names)
        if not self.number:
            return names[0] not in REMOVED
        return FIRST_BUILD.get(names[0], 0) <= self.number < REMOVED.get(names[0], self.number + 1)

    @property
    def bare_flash(self) -> bool:
        """-fa is a switch without a word."""
        if self.flash_takes_word is not None:
            return not self.flash_takes_word
        return 0 < self.number < FLASH_WORDS

    @property
    def default_slots(self) -> int:
        """Slots of a llama-server without -np."""
        return 1 if 0 < self.number < AUTO_SLOTS else N_PARALLEL

    @property
    def buffers_need_trace(self) -> bool:
        """The lines with buffer sizes are only shown with -lv 4."""
        if self.traces is not None:
            return self.traces
        return self.number == 0 or self.number >= TRACE_LEVELS


TODAY = Build()
