"""Regular expressions in time linear in the text, by a set of states instead of backtracking (Thompson 1968).

    if backtracks(pattern):
        search = Linear(pattern).search        # whether the text contains a match

Patterns of users come from a command line or a page: with Python's `re`, `(.*)*x` does not end on any tensor's name.
"""

from __future__ import annotations

import re
import sys

from ..errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Test = Callable[[str], bool]
    codes: Any
    parse: Callable[[str, int], Iterable[Any]]
elif sys.version_info >= (3, 11):
    from re import _constants as codes
    from re._parser import parse
else:
    import sre_constants as codes
    from sre_parse import parse

_MOST_STATES = 4096
_MOST_KNOWN = 1 << 14      # transitions that are remembered
_MOST_CHOICES = 8          # places of a pattern where `re` may choose: each multiplies its work

_CATEGORIES = {codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_SPACE: r"\s",
               codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W"}
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)


def backtracks(pattern: str) -> bool:
    """Whether `re` could need more than a moment for a tensor's name: a choice inside a repetition, or many in a
    row."""
    return _choices(parse(pattern, re.ASCII)) > _MOST_CHOICES


def _choices(items: Iterable[Any]) -> int:
    """The number of choices, an unlimited repetition as three, one inside a repetition as too many."""
    found = 0
    for code, value in items:
        if code in _REPEATS:
            least, most, part = value
            inside = _choices(part)
            found += (_MOST_CHOICES + 1 if inside and most > 1 else inside) + (
                3 if most - least > 1 else int(most > least))
        elif code is codes.BRANCH:
            found += 1 + sum(map(_choices, value[1]))
        elif code is codes.SUBPATTERN or code in (codes.ASSERT, codes.ASSERT_NOT):
            found += _choices(value[-1])
    return found


class Linear:
    """A pattern as states, with the steps that the texts so far have needed. Raises UsageError for one with
    look-ahead or back references, or too large."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.moves: list[list[tuple[Test, int]]] = []               # over one character
        self.jumps: list[list[tuple[object, int]]] = []             # over none, some at certain places alone
        self.start = self._state()
        self.end = self._sequence(parse(pattern, re.ASCII), self.start)
        self.known: dict[tuple[frozenset[int], str, str], frozenset[int] | None] = {}

    def search(self, text: str) -> bool | None:
        """True, or None as of `re`."""
        states, before = frozenset((self.start,)), ""
        for after in (*text, ""):
            key = states, before, after
            if key not in self.known:
                if len(self.known) >= _MOST_KNOWN:
                    self.known.clear()
                self.known[key] = self._step(*key)
            found = self.known[key]
            if found is None:
                return True
            states, before = found, after
        return None

    def _step(self, states: frozenset[int], before: str, after: str) -> frozenset[int] | None:
        """The states past a character; None: a match ends before it."""
        reached, left = set(states), list(states)
        while left:
            for place, to in self.jumps[left.pop()]:
                if to not in reached and _holds(place, before, after):
                    reached.add(to)
                    left.append(to)
        if self.end in reached:
            return None
        return frozenset((self.start, *(to for state in reached for test, to in self.moves[state]
                                        if after and test(after))))

    def _state(self) -> int:
        if len(self.moves) >= _MOST_STATES:
            raise UsageError(f"invalid regex {self.pattern!r}: more than {_MOST_STATES} states")
        self.moves.append([])
        self.jumps.append([])
        return len(self.moves) - 1

    def _jump(self, state: int, to: int, place: object = None) -> None:
        self.jumps[state].append((place, to))

    def _sequence(self, items: Iterable[Any], state: int) -> int:
        """The state after these."""
        for code, value in items:
            if code is codes.SUBPATTERN:
                state = self._sequence(value[-1], state)
            elif code in _REPEATS:
                state = self._repeat(value, state)
            elif code is codes.BRANCH:
                after = self._state()
                for part in value[1]:
                    begin = self._state()
                    self._jump(state, begin)
                    self._jump(self._sequence(part, begin), after)
                state = after
            else:
                after = self._state()
                if code is codes.AT:
                    self._jump(state, after, value)
                else:
                    self.moves[state].append((self._test(code, value), after))
                state = after
        return state

    def _repeat(self, value: tuple[int, int, Iterable[Any]], state: int) -> int:
        least, most, part = value
        for _ in range(least):
            state = self._sequence(part, state)
        after = self._state()
        self._jump(state, after)
        if most is codes.MAXREPEAT:
            self._jump(self._sequence(part, after), after)
            return after
        for _ in range(most - least):
            state = self._sequence(part, state)
            self._jump(state, after)
        return after

    def _test(self, code: object, value: Any) -> Test:
        if code is codes.LITERAL:
            return chr(value).__eq__
        if code is codes.NOT_LITERAL:
            return chr(value).__ne__
        if code is codes.ANY:
            return "\n".__ne__
        if code is codes.RANGE:
            low, high = map(chr, value)
            return lambda character: low <= character <= high
        if code is codes.CATEGORY:
            category = re.compile(_CATEGORIES[value], re.ASCII)
            return lambda character: category.match(character) is not None
        if code is codes.IN:
            wanted = value[0][0] is not codes.NEGATE
            tests = [self._test(*item) for item in value[not wanted:]]
            return lambda character: any(test(character) for test in tests) is wanted
        raise UsageError(f"invalid regex {self.pattern!r}: it may take for ever (repetitions with look-ahead or back "
                         "references)")


def _holds(place: object, before: str, after: str) -> bool:
    """Whether a position between two characters, "" outside of the text, is such a place."""
    if place is None:
        return True
    if place is codes.AT_BEGINNING or place is codes.AT_BEGINNING_STRING:
        return not before
    if place is codes.AT_END or place is codes.AT_END_STRING:
        return not after
    boundary = (re.match(r"\w", before, re.ASCII) is None) != (re.match(r"\w", after, re.ASCII) is None)
    return boundary is (place is codes.AT_BOUNDARY)
