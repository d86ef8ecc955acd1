"""A dated rule, and the set of a build's rules.

class Rules(RuleSet):
    early_rows = Rule("early_rows", "graph", 9090, "the last layer picks the output's rows")

Rules(9091).early_rows             # True
Rules(9091).has(Rules.early_rows)  # the same, of a rule that a row of another table names
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import overload


class Rule:
    """A change: what `part` of llama.cpp does from build `first` on, up to `last` (0: still today).

    `after` is the newest build whose source was seen without it, `until` the oldest one seen
    without it again; builds between those and `first` or `last` are uncertain (0: none are). `pull`
    is the pull request that introduced it."""

    __slots__ = ("after", "clause", "first", "last", "name", "part", "pull", "until")

    def __init__(
        self,
        name: str,
        part: str,
        first: int,
        clause: str,
        *,
        after: int = 0,
        last: int = 0,
        until: int = 0,
        pull: str = "",
    ) -> None:
        self.name, self.part, self.first, self.clause, self.pull = name, part, first, clause, pull
        # without `after` nothing between two builds is uncertain
        self.after, self.last, self.until = after or first - 1, last, until or last + 1

    if TYPE_CHECKING:

        @overload
        def __get__(self, rules: RuleSet, owner: type) -> bool: ...
        @overload
        def __get__(self, rules: object, owner: type) -> Rule: ...

    def __get__(self, rules: object, owner: type) -> Rule | bool:
        # a descriptor: the class gives the row itself, a build's rules whether it holds
        # Rules.f16_mask is the row itself
        if not isinstance(rules, RuleSet):
            return self  # of the class, or a field of another table's row
        holds = self.first <= rules.number and (not self.last or rules.number <= self.last)
        # noted where it is read, so that only rules that matter make a plan doubtful
        if self.doubtful(rules.number):
            holds = rules.changed
            rules.doubts.append(self)
        # a Rule has no __set__, so the instance's own attribute is found before it
        vars(rules)[self.name] = holds  # cached for the next lookup
        return holds

    def doubtful(self, number: int) -> bool:
        """Return whether that build is an uncertain one."""
        return self.after < number < self.first or (
            self.last > 0 and self.last < number < self.until
        )


class RuleSet:
    """The rules of one build: an attribute for each, true if it holds. `doubts`: the uncertain
    rules that were consulted; `changed`: those assumed to hold. `why`: a reason why the build may
    be another one, `oldest`: down to this one (0: unknown)."""

    def __init__(self, number: int, why: str = "", oldest: int = 0, changed: bool = False) -> None:
        self.number = number
        self.why = why
        self.oldest = oldest
        self.changed = changed
        self.doubts: list[Rule] = []

    def has(self, rule: Rule) -> bool:
        """Return whether that rule of the table holds."""
        return bool(getattr(self, rule.name))

    def says(self, known: bool | Rule) -> bool:
        """Return what a table's field says, which may be a rule."""
        return known if isinstance(known, bool) else self.has(known)

    @classmethod
    def rows(cls) -> Iterator[Rule]:
        """Return the table."""
        return (row for row in vars(cls).values() if isinstance(row, Rule))
