"""The JSON of a plan, written from the one table of its keys, keys.csv: for each its place, where a
part has it, its form, its unit and what it says.

    written("", plan)                # all of it
    written("speed", plan.speed)     # the part under a key
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter

from .tables import rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


@cache
def _parts() -> dict[str, list[tuple[str, str, str, str]]]:
    """Return by part: each key's name, where its value is, its form, and its own part if it has
    one."""
    parts: dict[str, list[tuple[str, str, str, str]]] = {}
    for row in rows("keys.csv"):
        place = row["key"].replace("[]", "")
        part, _, name = place.rpartition(".")
        parts.setdefault(part, []).append((name, row["from"], row["form"], place))
    return parts


def written(part: str, record: Any) -> dict[str, object]:
    """Return a part of the JSON from what holds its values."""
    answer: dict[str, object] = {}
    for name, source, form, place in _parts()[part]:
        value = _LITERALS[source] if form == "literal" else _found(record, source)
        # E.g. "?3": left out where there is none
        if value or not form.startswith("?"):
            answer[name] = _formed(value, form.lstrip("?"), place)
    return answer


def _found(record: Any, source: str) -> Any:
    """Return the value at a path of attributes, "." for all of it; None where a step is None."""
    if source == ".":
        return record
    first, _, others = source.partition(".")
    value = attrgetter(first)(record)
    return _found(value, others) if others and value is not None else value


def _formed(value: Any, form: str, place: str) -> object:
    part = form if form and form in _parts() else place
    if part in _parts() and value is not None:
        if isinstance(value, (list, tuple)):
            return [written(part, each) for each in value]
        return written(part, value)
    if form.isdecimal():
        return round(value, int(form))
    if form.startswith("or "):
        value = value or _LITERALS.get(form[3:], form[3:])
    elif form in _FORMS:
        return _FORMS[form](value)
    return list(value) if isinstance(value, tuple) else value


_LITERALS: dict[str, object] = {"1": 1, "true": True, "null": None}
_FORMS: dict[str, Callable[[Any], object]] = {
    "map": dict,
    "map3": lambda pairs: {key: round(value, 3) for key, value in pairs},
    "pairs": lambda pairs: [f"{key}={value}" for key, value in pairs],
    "words": str.split,
}
