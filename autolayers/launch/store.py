"""Results for later plans: a JSON file per subject in a folder of the state directory, replaced
under a lock.

    entries("tuned", digest, environ, tuned_of)  # [Tuned(...), ...], oldest first
    add("tuned", digest, environ, tuned, tuned_of, 50, ("build", "machine", "question"))
"""

from __future__ import annotations

import contextlib
import os

from .. import state
from ..errors import AutolayersError
from ..output import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")


def entries(
    folder: str, name: str, environ: Mapping[str, str], make: Callable[[Any], T]
) -> list[T]:
    """Return `make` of each entry of a file, oldest first, without those that it refuses; an object
    is one entry. A damaged file is a line on stderr."""
    records = []
    with contextlib.suppress(AutolayersError):  # no home directory
        file = state.path(environ, folder, name + ".json")
        # None for a file that is missing and for one that is no JSON: only the latter is reported
        content = state.read(file)
        if content is None and os.path.isfile(file):
            say(f"{file} is damaged and ignored")
        for entry in content if isinstance(content, list) else (content,):
            # One bad row, such as a later version's, must not lose the others
            with contextlib.suppress(
                AutolayersError, ValueError, TypeError, KeyError, AttributeError, OverflowError
            ):
                records.append(make(entry))
    return records


def add(
    folder: str,
    name: str,
    environ: Mapping[str, str],
    record: T,
    make: Callable[[Any], T],
    limit: int,
    key: tuple[str, ...],
) -> None:
    """Append a record, in place of one with equal fields `key`, and keep the newest `limit`. Raises
    AutolayersError."""
    with state.locked(environ):
        # The lock is held from reading to writing: two launches at once would lose one's record
        file, new = state.path(environ, folder, name + ".json"), vars(record)
        others = [
            row
            for row in map(vars, entries(folder, name, environ, make))
            if any(row[field] != new[field] for field in key)
        ]
        if (bad := state.set_aside(file)) is not None:
            say(f"{file} is kept as {bad}")
        # The oldest are first, so the last ones stay
        state.keep(file, [*others, new][-limit:])
