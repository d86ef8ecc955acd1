"""The memory that launches on this machine really used, for later plans.

One JSON file for each model in observations/ of the state directory, named by the digest of the
model's header: a renamed file is the same model, an edited one is another.
"""

from __future__ import annotations

from ..files import opened
from ..records import dataclass
from . import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_LIMIT = 200  # observations kept per model, the newest


@dataclass(frozen=True)
class Observation:
    """Bytes above (or below) the prediction per device, for one build, backend and set of flags."""

    build: int
    backend: str
    flags: tuple[str, ...]
    differences: dict[str, int]
    date: str = ""


def _of(entry: Any) -> Observation:
    """Return an entry of the file. Raises where it is not one."""
    return Observation(
        int(entry["build"]),
        str(entry["backend"]),
        tuple(map(str, entry["flags"])),
        {str(device): int(size) for device, size in entry["differences"].items()},
        str(entry.get("date", "")),
    )


def digest(path: str, header_size: int) -> str:
    """SHA-256 of a model file's first `header_size` bytes (metadata and tensor list); "" if it
    cannot be read."""
    import hashlib

    sum_ = hashlib.sha256()
    try:
        with opened(path) as file:
            # By pieces: a header has some 10 MB with a large vocabulary; weights are never read
            while header_size > 0 and (piece := file.read(min(header_size, 1 << 20))):
                sum_.update(piece)
                header_size -= len(piece)
    except OSError:
        return ""
    return sum_.hexdigest()


def load(model: str, environ: Mapping[str, str]) -> list[Observation]:
    """Return all observations of a model digest, oldest first."""
    return store.entries("observations", model, environ, _of)


def find(
    observations: Sequence[Observation], build: int, backend: str, flags: Sequence[str]
) -> Observation | None:
    """Return the newest observation of exactly this launch."""
    launch = (build, backend, tuple(flags))
    # reversed: the newest is last in the file
    return next(
        (o for o in reversed(observations) if (o.build, o.backend, o.flags) == launch), None
    )


def keep(model: str, observation: Observation, environ: Mapping[str, str]) -> None:
    """Add an observation, replacing one of the same launch. Raises AutolayersError."""
    store.add(
        "observations", model, environ, observation, _of, _LIMIT, ("build", "backend", "flags")
    )
