r"""The regular expressions of --override-tensor: C++'s std::regex with its default grammar, ECMAScript.

    search = ecmascript(r"ffn_.*_exps").search
    TensorMatcher(names).find(r"blk\.7\.ffn_up")     # [positions in names]
"""

from __future__ import annotations

import re

from ..errors import UsageError
from .linear import Linear, backtracks

_CLASSES = {"alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "digit": "0-9", "lower": "a-z", "upper": "A-Z",
            "space": r"\s",
            "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "blank": r" \t", "word": r"\w", "d": "0-9",
            "w": r"\w", "s": r"\s"}


def ecmascript(text: str) -> re.Pattern[str] | Linear:
    """std::regex's default grammar as a Python pattern, or as one that is searched without backtracking where
    that could take for ever. Raises UsageError for what either does not accept.

    The two agree on what -ot users write. The differences are translated: `$` matches only at the very end,
    classes are ASCII, `[[:digit:]]` names exist, and Python's own extensions are refused.
    """
    out = []
    i, n, inside = 0, len(text), False
    while i < n:
        c = text[i]
        if c == "\\" and i + 1 < n:
            if text[i + 1] in "AZ":
                raise UsageError(f"invalid regex {text!r}: C++ has no \\{text[i + 1]}")
            out.append(text[i:i + 2])
            i += 2
            continue
        if inside:
            if c == "[" and text[i:i + 2] == "[:":
                name, end, _ = text[i + 2:].partition(":]")
                if not end or name not in _CLASSES:
                    raise UsageError(f"invalid regex {text!r}: unknown character class")
                out.append(_CLASSES[name])
                i += len(name) + 4
                continue
            out.append("\\[" if c == "[" else c)
            inside = c != "]"
        elif c == "[":
            inside = True
            out.append(c)
            if text[i + 1:i + 2] == "^":
                out.append("^")
                i += 1
            if text[i + 1:i + 2] == "]":     # an empty class to C++, an ordinary character to Python
                out[-1 if out[-1] == "[" else -2:] = ["(?!)" if out[-1] == "[" else "[\\s\\S]"]
                inside = False
                i += 1
        elif c == "$":
            out.append("\\Z")
        elif c == "(" and text[i + 1:i + 2] == "?" and text[i + 2:i + 3] not in (":", "=", "!"):
            raise UsageError(f"invalid regex {text!r}: C++ has no {text[i:i + 3]}")
        elif c in "*+?}" and text[i + 1:i + 2] == "+":
            raise UsageError(f"invalid regex {text!r}: nothing to repeat")
        else:
            out.append(c)
        i += 1
    try:
        found = re.compile("".join(out), re.ASCII)
        return Linear(found.pattern) if backtracks(found.pattern) else found
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"invalid regex {text!r}: {error}") from None



class TensorMatcher:
    """Finds the tensors whose names contain a match. One search for a plan tries a hundred patterns, most of
    which begin with the name of one layer: then only that layer's tensors are compared, and the rest of the
    pattern is compiled once."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
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
        """Positions in `names`, in order. Raises UsageError for a pattern that C++ refuses."""
        if pattern not in self._found:
            layer, rest = _of_one_layer(pattern)
            if layer and rest not in self._rests:
                whole, part = ecmascript(pattern), ecmascript(rest)       # an error quotes the whole pattern
                if isinstance(whole, Linear) or isinstance(part, Linear):
                    layer = ""
                else:
                    self._rests[rest] = part
            if layer:
                match = self._rests[rest].match
                self._found[pattern] = [i for i, end in self._layers.get(layer, ())
                                        if match(self.names[i], end)]
            else:
                search = ecmascript(pattern).search
                self._found[pattern] = [i for i, name in enumerate(self.names) if search(name)]
        return self._found[pattern]


def _of_one_layer(text: str) -> tuple[str, str]:
    """("blk.7.", the rest) of a regex that begins with exactly that; else ("", text)."""
    begin = re.compile(r"blk\\\.(\d+)\\\.(?![*+?{])", re.ASCII).match(text)
    if begin is None or "[" in text or r"\(" in text or "|" in re.sub(r"\([^()]*\)", "", text):
        return "", text
    return f"blk.{begin[1]}.", text[begin.end():]
