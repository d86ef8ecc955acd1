"""Results for later plans: a JSON file per subject in a folder of the state directory, replaced under a lock.

    entries("tuned", digest, environ, tuned_of)                      # [Tuned(...), ...], oldest first
    add("tuned", digest, environ, tuned, tuned_of, most=50)
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


def entries(folder: str, name: str, environ: Mapping[str, str], make: Callable[[Any], T]) -> list[T]:
    """`make` of each entry of a file, oldest first, without those that it refuses; an object is one entry. A
    damaged file is a line on stderr."""
    made = []
    with contextlib.suppress(AutolayersError):      # no home directory
        file = state.path(environ, folder, name + ".json")
        found = state.read(file)
        if found is None and os.path.isfile(file):
            say(f"{file} is damaged and ignored: remove it")
        for entry in found if isinstance(found, list) else (found,):
            with contextlib.suppress(AutolayersError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
                made.append(make(entry))
    return made


def add(folder: str, name: str, environ: Mapping[str, str], record: T, make: Callable[[Any], T], most: int) -> None:
    """Appends a record, whose first three fields say what was measured: it replaces one with the same. The newest
    `most` are kept. Raises AutolayersError."""
    with state.locked(environ):
        rows = [*map(vars, entries(folder, name, environ, make)), vars(record)]
        same = [*rows[-1].values()][:3]
        kept = [row for row in rows[:-1] if [*row.values()][:3] != same] + rows[-1:]
        state.keep(state.path(environ, folder, name + ".json"), kept[-most:])
