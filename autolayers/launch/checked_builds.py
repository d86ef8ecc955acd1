"""What `autolayers check` and `run --verify` found of the llama.cpp programs of this machine.

One JSON file for each program in builds/ of the state directory, named by its path. It counts only
for the very files that were checked: the program and its libraries, by their sizes and times.
"""

from __future__ import annotations

import hashlib
import os

from .. import state
from ..detect import files
from ..records import dataclass
from . import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@dataclass(frozen=True)
class CheckedBuild:
    """`architectures`: name -> bytes above the prediction, by "part device"; {} where everything
    was equal."""

    build: int
    commit: str
    date: str
    architectures: dict[str, dict[str, int]]


def digest(program: str) -> str:
    """SHA-256 over the names, sizes and times of a program and of llama.cpp's libraries next to it
    (or in ../lib); "" where there is no such file."""
    paths = files(program)
    sum_ = hashlib.sha256()
    try:
        for path in paths:
            facts = os.stat(path)
            # Sizes and times, not contents: libraries have hundreds of MB, and each launch asks
            sum_.update(
                f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
            )
    except OSError:
        return ""
    return sum_.hexdigest()


def load(program: str, environ: Mapping[str, str]) -> CheckedBuild | None:
    """Return what is known of exactly these files, None if nothing is."""

    def of(entry: Any) -> CheckedBuild | None:
        return (
            None
            # Another build stands at this path now: what was checked is not this one
            if entry["digest"] != digest(program)
            else CheckedBuild(
                int(entry["build"]),
                str(entry["commit"]),
                str(entry["date"]),
                {
                    str(name): {str(part): int(size) for part, size in differs.items()}
                    for name, differs in entry["architectures"].items()
                },
            )
        )

    return next(iter(store.entries("builds", _name(program), environ, of)), None)


def keep(program: str, checked: CheckedBuild, environ: Mapping[str, str]) -> None:
    """Keep a result in addition to what is known of the same files; of an architecture the newest
    counts. Raises AutolayersError."""
    with state.locked(environ):
        before = load(program, environ)
        # `check` of one architecture keeps what is known of the others
        architectures = {**(before.architectures if before else {}), **checked.architectures}
        state.keep(
            state.path(environ, "builds", _name(program) + ".json"),
            {
                "program": os.path.realpath(program),
                "digest": digest(program),
                "build": checked.build,
                "commit": checked.commit,
                "date": checked.date,
                "architectures": architectures,
            },
        )


def named(parts: Sequence[tuple[str, str, int]]) -> dict[str, int]:
    """Parts that differ by the names of this file."""
    return {f"{part} {device}": size for part, device, size in parts if size}


def _name(program: str) -> str:
    return hashlib.sha256(os.path.realpath(program).encode("utf-8", "surrogateescape")).hexdigest()[
        :32
    ]
