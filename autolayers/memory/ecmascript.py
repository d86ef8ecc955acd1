r"""The regular expressions of --override-tensor: C++'s std::regex with its default grammar,
ECMAScript.

    search = ecmascript(r"ffn_.*_exps").search
    TensorMatcher(names).find(r"blk\.7\.ffn_up")     # [positions in names]
"""

from __future__ import annotations

import re
import time

from ..errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": r"\s",
    "punct": r"!-/:-@\[-`{-~",
    "xdigit": "0-9A-Fa-f",
    "blank": r" \t",
    "word": r"\w",
    "d": "0-9",
    "w": r"\w",
    "s": r"\s",
}


# `re` backtracks: patterns come from the page, from logs and from other people's commands
# between two ways in a row; four repetitions take up to 0.3 s for 63 characters
_MOST_CHOICES = 16
# a{2,9} or a* has more ways to match than one choice
_REPETITION = 4  # choices that one of those counts as
_SECONDS = 2.0  # of processor time, for all names of a model
# at the end it is no choice: nothing after it can fail
_ANYTHING = re.compile(r"(?<!\\)(?:\.\*)+$")
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?[:=!])?|(?P<repeat>[*+?]|\{(?P<least>\d*)"
    r"(?:(?P<to>,)(?P<most>\d*))?\})\??|.",
    re.DOTALL,
)


def ecmascript(text: str) -> re.Pattern[str]:
    """Return a C++ pattern as a Python pattern. Raises UsageError for what either does not
    accept, and for what `re` may need more than a moment for.

    The two agree on what -ot users write. The differences are translated: `$` matches only at the
    very end, classes are ASCII, `[[:digit:]]` names exist, and Python's own extensions are refused.
    """
    pieces = []
    i, in_class = 0, False
    while i < len(text):
        if text[i] == "\\" and i + 1 < len(text):
            # The escape at `i`.
            if text[i + 1] in "AZ":
                raise UsageError(f"invalid regex {text!r}: C++ has no \\{text[i + 1]}")
            piece, length = text[i : i + 2], 2
        elif in_class:
            # (Python's text, characters read) of what is at `i` in a class
            # [[:digit:]]: Python has no such names
            if text[i : i + 2] == "[:":
                name, end, _ = text[i + 2 :].partition(":]")
                if not end or name not in _CLASSES:
                    raise UsageError(f"invalid regex {text!r}: unknown character class")
                piece, length = _CLASSES[name], len(name) + 4
            else:
                piece, length = "\\[" if text[i] == "[" else text[i], 1
            in_class = text[i] != "]"
        elif text[i] == "[":
            piece, length = _opened(text, i)
            in_class = piece.endswith(("[", "^"))
        else:
            # Python's text of the character at `i`, outside classes.
            c, after = text[i], text[i + 1 : i + 2]
            # Python's $ also matches before a final newline
            if c == "$":
                outside = "\\Z"
            else:
                if c == "(" and after == "?" and text[i + 2 : i + 3] not in (":", "=", "!"):
                    raise UsageError(f"invalid regex {text!r}: C++ has no {text[i : i + 3]}")
                # a++ is possessive in newer Pythons, an error in C++
                if c in "*+?}" and after == "+":
                    raise UsageError(f"invalid regex {text!r}: nothing to repeat")
                outside = c
            piece, length = outside, 1
        pieces.append(piece)
        i += length
    # compile a translated pattern; `text`: as the user wrote it
    try:
        pattern = re.compile("".join(pieces), re.ASCII)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        # A ValueError is int()'s: more digits than it takes
        why = "a number is too large" if type(error) is ValueError else error
        raise UsageError(f"invalid regex {text!r}: {why}") from None
    if _backtracks(pattern.pattern):
        raise UsageError(
            f"regex {text!r} may take for ever: it has a choice within a repetition, as (a|b)* and "
            "(a*)*, or many repetitions; write it without"
        )
    return pattern


def _opened(text: str, i: int) -> tuple[str, int]:
    """Return (Python's text, characters read) of the class that opens at `i`.

    An empty class is one in C++, an ordinary `]` in Python.
    """
    opening = "[^" if text[i + 1 : i + 2] == "^" else "["
    end = i + len(opening)
    if text[end : end + 1] != "]":
        return opening, len(opening)
    return "(?!)" if opening == "[" else "[\\s\\S]", len(opening) + 1


def _backtracks(pattern: str) -> bool:
    """Return whether a search may take more than a moment for a tensor's name: a repetition or an
    alternative within a repetition, or many in a row."""
    choices, bars = [0], [0]  # of each group that is open
    inside = 0  # choices in what the next token may repeat
    for token in _TOKEN.finditer(_ANYTHING.sub("", pattern)):
        text, repeated = token[0], inside
        inside = 0
        if text.startswith("("):
            choices.append(0)
            bars.append(0)
        elif text == ")" and len(choices) > 1:
            # n bars count as the bits of n: choices are exponents of two
            inside = choices.pop() + bars.pop().bit_length()
            choices[-1] += inside
        elif text == "|":
            bars[-1] += 1
        elif token["repeat"]:
            lower, upper = _times(token)
            if repeated and upper != 1:
                return True
            choices[-1] += _REPETITION if upper not in (1, lower) else int(upper != lower)
    return choices[0] + bars[0].bit_length() > _MOST_CHOICES


def _times(token: re.Match[str]) -> tuple[int, int | None]:
    """Return how often a repetition repeats: at least and, None without a limit, at most."""
    bounds: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if token["repeat"] in bounds:
        return bounds[token["repeat"]]
    lower = int(token["least"] or 0)
    if not token["to"]:
        return lower, lower
    return lower, int(token["most"]) if token["most"] else None


class TensorMatcher:
    """Finds the tensors whose names contain a match. One search for a plan tries a hundred
    patterns, and most begin with the name of one layer: then only that layer's tensors are
    compared, and the rest of the pattern is compiled once."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self._spent = 0.0  # seconds of processor time
        self._found: dict[str, list[int]] = {}
        self._rests: dict[str, re.Pattern[str]] = {}
        # "blk.7." -> tensors, and where the prefix ends in their names
        self._layers: dict[str, list[tuple[int, int]]] = {}
        for i, name in enumerate(names):
            at = name.find("blk.")
            while at >= 0:
                end = name.find(".", at + 4) + 1
                if end:
                    self._layers.setdefault(name[at:end], []).append((i, end))
                at = name.find("blk.", at + 1)

    def find(self, pattern: str) -> list[int]:
        """Return the positions in `names`, in order. Raises UsageError for a pattern that C++
        refuses, or that takes long."""
        if pattern not in self._found:
            # the flags that a plan writes are blk\.N\.ffn_..., one for each layer
            # ("blk.7.", the rest) of a regex that begins with exactly that; else ("", text)
            begin = re.compile(r"blk\\\.(\d+)\\\.(?![*+?{])", re.ASCII).match(pattern)
            # an alternative outside of groups would also match without the layer's name
            if (
                begin is None
                or "[" in pattern
                or r"\(" in pattern
                or "|" in re.sub(r"\([^()]*\)", "", pattern)
            ):
                layer, rest = "", pattern
            else:
                layer, rest = f"blk.{begin[1]}.", pattern[begin.end() :]
            if layer and rest not in self._rests:
                # an error quotes the whole pattern
                ecmascript(pattern)
                self._rests[rest] = ecmascript(rest)
            if layer:
                match = self._rests[rest].match
                tried: Iterator[tuple[int, Any]] = (
                    (i, match(self.names[i], end)) for i, end in self._layers.get(layer, ())
                )
            else:
                search = ecmascript(pattern).search
                tried = ((i, search(name)) for i, name in enumerate(self.names))
            self._found[pattern] = [i for i, matched in self._in_time(pattern, tried) if matched]
        return self._found[pattern]

    def _in_time(self, pattern: str, tried: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield what was tried, as long as all patterns together take no more than a moment."""
        # the processor's time: a busy machine must not refuse a good pattern
        start = time.process_time()
        for one in tried:
            yield one
            if self._spent + time.process_time() - start > _SECONDS:
                raise UsageError(
                    f"regex {pattern!r} takes too long on this model's names: "
                    "write it with fewer repetitions"
                )
        self._spent += time.process_time() - start
