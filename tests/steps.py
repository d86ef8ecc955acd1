"""Every expression of the package, and how many steps each takes with a long text.

for one in expressions(): one.where, one.pattern, one.anchored
grows(re.compile(r"[a-z]+:"))             # the text that takes a square of its letters
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import autolayers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sre_parse

PACKAGE = Path(autolayers.__file__).parent
_START = ("match", "fullmatch")  # these try the start of a text alone
_METHODS = (*_START, "compile", "search", "findall", "finditer", "sub", "subn", "split")
_SAYS = ("says", "_says", "first")  # explain's own, which search a log's lines
_CATEGORIES = {"DIGIT": "1", "SPACE": " ", "WORD": "a"}
_CATEGORIES |= {"NOT_DIGIT": "a", "NOT_SPACE": "a", "NOT_WORD": "-"}


class Steps:
    """How many comparisons a backtracking matcher makes, as re's own engine does; `search` tries
    every place of a text."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.tree = list(sre_parse.parse(pattern.pattern, pattern.flags & ~re.UNICODE))
        self.ignore = bool(pattern.flags & re.IGNORECASE)
        self.taken = 0

    def search(self, text: str, anchored: bool = False) -> int:
        self.text = text.lower() if self.ignore else text
        self.taken = 0
        for start in range(1 if anchored else len(text) + 1):
            if next(self._all(self.tree, 0, start), None) is not None:
                break
        return self.taken

    def _all(self, items: list[Any], i: int, at: int) -> Iterator[int]:
        if i == len(items):
            yield at
            return
        for after in self._one(items[i], at):
            yield from self._all(items, i + 1, after)

    def _one(self, item: Any, at: int) -> Iterator[int]:
        self.taken += 1
        name, what = str(item[0]), item[1]
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            if at < len(self.text) and self._is(name, what, self.text[at]):
                yield at + 1
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            yield from self._repeat(*what, at, name == "MIN_REPEAT")
        elif name == "SUBPATTERN":
            yield from self._all(list(what[3]), 0, at)
        elif name == "BRANCH":
            for branch in what[1]:
                yield from self._all(list(branch), 0, at)
        elif name in ("ASSERT", "ASSERT_NOT"):
            where = at - 1 if what[0] < 0 else at
            found = where >= 0 and next(self._all(list(what[1]), 0, where), None) is not None
            if found == (name == "ASSERT"):
                yield at
        elif name == "AT":
            if "BEGIN" not in str(what) or at == 0:
                yield at
        else:
            yield at

    def _repeat(self, low: int, high: Any, body: Any, at: int, lazy: bool) -> Iterator[int]:
        ends = [at]
        most = min(int(high), len(self.text) + 1)
        # single letters: one after the other, and back
        while len(ends) <= most:
            after = next(self._all(list(body), 0, ends[-1]), None)
            if after is None or after == ends[-1]:
                break
            ends.append(after)
            if lazy and len(ends) > low:
                yield ends[-2] if len(ends) - 2 >= low else ends[-1]
        if not lazy:
            yield from reversed(ends[low:])
        elif len(ends) > low:
            yield ends[-1]

    def _is(self, name: str, what: Any, letter: str) -> bool:
        if name == "ANY":
            return letter != "\n"
        if name in ("LITERAL", "NOT_LITERAL"):
            alike = ord(letter) in (what, ord(chr(what).lower()) if self.ignore else what)
            return alike == (name == "LITERAL")
        negated = str(what[0][0]) == "NEGATE"
        return any(self._in(each, letter) for each in what) != negated

    def _in(self, each: Any, letter: str) -> bool:
        kind, value = str(each[0]), each[1]
        if kind == "LITERAL":
            return ord(letter) == value
        if kind == "RANGE":
            return bool(value[0] <= ord(letter) <= value[1])
        word = letter.isalnum() or letter == "_"
        member = {"DIGIT": letter.isdigit(), "SPACE": letter.isspace(), "WORD": word}
        name = str(value).removeprefix("CATEGORY_")
        return (not member[name[4:]]) if name.startswith("NOT_") else member.get(name, False)


class Expression(NamedTuple):
    """`anchored`: it is tried at the start of a text alone."""

    where: str
    pattern: re.Pattern[str]
    anchored: bool


def expressions() -> list[Expression]:
    """Those that modules hold, in tables too, and those that functions name."""
    found: dict[tuple[str, int], Expression] = {}
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    used: dict[str, set[str]] = {}
    for tree in trees.values():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
                used.setdefault(ast.unparse(call.func.value).rpartition(".")[2], set()).add(
                    call.func.attr
                )
    for path, tree in trees.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            of_re = ast.unparse(call.func).partition(".")
            is_says = (of_re[2] or of_re[0]) in _SAYS
            if not (is_says or (of_re[0] == "re" and of_re[2] in _METHODS)) or not call.args:
                continue
            try:
                text = ast.literal_eval(call.args[0])
            except ValueError:
                continue  # a table's, or made of parts: the value is found below
            flags = re.IGNORECASE if "IGNORECASE" in ast.unparse(call) else re.NOFLAG
            if of_re[2] != "compile":
                where = f"{path.relative_to(PACKAGE)}:{call.lineno}"
                one = Expression(where, re.compile(text, flags), of_re[2] in _START)
                found.setdefault((text, int(one.pattern.flags)), one)
    for module in pkgutil.walk_packages(autolayers.__path__, "autolayers."):
        if "__main__" not in module.name:
            for name, value in list(vars(importlib.import_module(module.name)).items()):
                anchored = used.get(name, {"search"}) <= {*_START}
                for pattern in _held(value, set()):
                    key = pattern.pattern, int(pattern.flags)
                    found.setdefault(key, Expression(f"{module.name}.{name}", pattern, anchored))
    return [*found.values()]


def _held(value: Any, seen: set[int]) -> Iterator[re.Pattern[str]]:
    """The expressions within a module's value: in collections, and in `pattern` of a table's row,
    compiled or not."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
        return
    if id(value) in seen or isinstance(value, (str, bytes, types.ModuleType, types.FunctionType)):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for pair in list(value.items()):
            yield from _held(pair, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _held(each, seen)
    elif type(value).__module__.startswith("autolayers") or isinstance(value, type):
        if isinstance(value, type) and not value.__module__.startswith("autolayers"):
            return
        for name in ("pattern", "log_pattern"):
            text = getattr(value, name, None)
            if isinstance(text, str) and text:
                yield re.compile(text)
        for each in list(getattr(value, "__dict__", {}).values()):
            yield from _held(each, seen)


def _example(items: Any) -> str:
    """A short text that these match."""
    text = ""
    for item in items:
        name, what = str(item[0]), item[1]
        if name == "LITERAL":
            text += chr(what)
        elif name in ("ANY", "NOT_LITERAL"):
            text += "c" if what == ord("b") else "b"
        elif name == "IN":
            text += _member(what)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            text += _example(what[2]) * what[0]
        elif name == "SUBPATTERN":
            text += _example(what[3])
        elif name == "BRANCH":
            text += _example(what[1][0])
    return text


def _member(what: Any) -> str:
    if str(what[0][0]) == "NEGATE":
        inside = Steps(re.compile("a"))
        return next(c for c in "a1 -_.:/(\n\x01" if not any(inside._in(e, c) for e in what[1:]))
    kind, value = str(what[0][0]), what[0][1]
    if kind == "LITERAL":
        return chr(value)
    if kind == "RANGE":
        return chr(value[0])
    return _CATEGORIES[str(value).removeprefix("CATEGORY_")]


def _pumps(items: list[Any], before: str = "") -> Iterator[tuple[str, str]]:
    """What leads to each repetition, and what it repeats."""
    for i, item in enumerate(items):
        name, what = str(item[0]), item[1]
        here = before + _example(items[:i])
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            if int(what[1]) > 50 and (text := _example(what[2])):
                yield here, text
            yield from _pumps(list(what[2]), here)
        elif name == "SUBPATTERN":
            yield from _pumps(list(what[3]), here)
        elif name == "BRANCH":
            for branch in what[1]:
                yield from _pumps(list(branch), here)


def grows(
    pattern: re.Pattern[str], anchored: bool = False, sizes: tuple[int, ...] = (100, 1200)
) -> str:
    """A text of one repeated part, of which four times as much takes six times the steps or more at
    all `sizes`; "" where there is none."""
    steps = Steps(pattern)

    def taken(head: str, part: str, size: int) -> int:
        return steps.search(head + part * max(1, size // len(part)) + "\0", anchored)

    for before, text in dict.fromkeys(_pumps(steps.tree)):
        for head, part in dict.fromkeys([("", text), (before, text), ("", before + text)]):
            # what is bounded by hundreds, `.{0,300}`, grows up to there
            for size in sizes:
                if taken(head, part, 4 * size) <= 6 * taken(head, part, size) + 300:
                    break
            else:
                return head + part
    return ""
