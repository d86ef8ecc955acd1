"""Tables that are no code: CSV files of the package, which the page, docs and benchmarks read too,
and TSV files where the values are texts.

    rows("devices/cards.csv")        # [{"name": "gtx-750-ti", "mib": "2001", ...}, ...]

A table has a row of names and no quotes. What a line of a CSV has after a # is a remark; of a TSV a
line that begins with one is, and empty values at a line's end are left out.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table, by the names of its columns."""
    lines = text(name).splitlines()
    if name.endswith(".tsv"):
        names, *records = [line.split("\t") for line in lines if line and line[0] != "#"]
        records = [values + [""] * (len(names) - len(values)) for values in records]
    else:
        lines = [line.partition("#")[0].rstrip() for line in lines]
        names, *records = [line.split(",") for line in lines if line]
    return [dict(zip(names, values, strict=True)) for values in records]


def listed(words: str) -> tuple[str, ...]:
    """Return the words of a text, for a table of names alone."""
    return tuple(words.split())


def typed(value: str) -> Any:
    """Return the number that a value is, or whether it is yes or no, otherwise the value."""
    if value in ("yes", "no"):
        return value == "yes"
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value


def text(name: str) -> str:
    """Return a file of the package."""
    # reads from a zip file too, and importlib.resources takes 10 ms
    loader: Any = __spec__.loader
    data: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), *name.split("/")))
    return data.decode("utf-8")
