"""The memory that launches on this machine really used, for later plans.

One JSON file for each model in observations/ of the state directory, named by the digest of the model's header: a
renamed file is the same model, an edited one is another.
"""

from __future__ import annotations

from .. import state
from ..errors import AutolayersError
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_LIMIT = 200      # observations kept per model, the newest


@dataclass(frozen=True)
class Observation:
    """Bytes above (or below) the prediction per device, for one build, backend and set of flags."""

    build: int
    backend: str
    flags: tuple[str, ...]
    differences: dict[str, int]
    date: str = ""


def digest(path: str, header_size: int) -> str:
    """SHA-256 of a model file's first `header_size` bytes (metadata and tensor list); "" if it cannot be read."""
    import hashlib

    sum_ = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while header_size > 0 and (piece := file.read(min(header_size, 1 << 20))):
                sum_.update(piece)
                header_size -= len(piece)
    except OSError:
        return ""
    return sum_.hexdigest()


def load(model: str, environ: Mapping[str, str]) -> list[Observation]:
    """All observations of a model digest, oldest first; none where the file cannot be read or is not ours."""
    try:
        entries: Any = state.read(_file(model, environ))
        return [Observation(
            int(e["build"]), str(e["backend"]), tuple(map(str, e["flags"])),
            {str(device): int(size) for device, size in e["differences"].items()}, str(e.get("date", "")),
        ) for e in entries or ()]
    except (AutolayersError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return []


def find(known: Sequence[Observation], build: int, backend: str, flags: Sequence[str]) -> Observation | None:
    """The newest observation of exactly this launch."""
    return next((o for o in reversed(known) if (o.build, o.backend, o.flags) == (build, backend, tuple(flags))), None)


def keep(model: str, observation: Observation, environ: Mapping[str, str]) -> None:
    """Adds an observation, replacing one of the same launch. Raises AutolayersError."""
    with state.locked(environ):
        others = [o for o in load(model, environ)
                  if (o.build, o.backend, o.flags) != (observation.build, observation.backend, observation.flags)]
        state.keep(_file(model, environ), [
            {"build": o.build, "backend": o.backend, "flags": list(o.flags), "differences": o.differences,
             "date": o.date} for o in [*others, observation][-_LIMIT:]])


def _file(model: str, environ: Mapping[str, str]) -> str:
    return state.path(environ, "observations", model + ".json")
