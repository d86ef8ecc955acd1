"""What this machine showed, for later plans: a record of each kind, one reader and one writer.

    keep([Tuned(...)], environ, digest)  # in place of one with an equal key, and the newest stay
    read(Tuned, environ, digest)         # oldest first

A kind is a JSON file of the state directory, or one for each model (by its header's digest) or
program. Anybody may have written it: a row counts where its fields have the types of their
annotations, and only then.
"""

from __future__ import annotations

import contextlib
import os

from . import state
from .errors import AutolayersError
from .files import opened
from .flags.parse import parse
from .machine import CLASSES, KINDS
from .output import say
from .records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, ClassVar, TypeVar

    from typing_extensions import Self

    T = TypeVar("T", bound="Row")

_LARGEST = 1 << 62  # of numbers: bytes, seconds
_PLAIN = {"str": (str,), "int": (int,), "float": (float, int), "Any": (str, float, int)}


class Row:
    """One of `MOST` rows of a file; a newer one with equal fields `KEY` replaces it."""

    FILE: ClassVar[str]  # {}: the digest of what it is about
    KEY: ClassVar[tuple[str, ...]]
    MOST: ClassVar[int] = 200

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.KEY])

    @property
    def right(self) -> bool:
        """Whether its values can be."""
        return True

    def after(self, before: Self) -> Self:
        """Return what counts, with what was kept before."""
        return self


@dataclass(frozen=True)
class Observation(Row):
    """Bytes of a launch above (or below) the prediction, by device."""

    FILE: ClassVar = "observations/{}.json"
    KEY: ClassVar = ("build", "backend", "flags")

    build: int
    backend: str
    flags: tuple[str, ...]
    differences: dict[str, int]
    date: str = ""


@dataclass(frozen=True)
class CheckedBuild(Row):
    """What `check` and `run --verify` found of a program. `digest`: of its files; `architectures`:
    name -> bytes above the prediction, by "part device"; {} where everything was equal."""

    FILE: ClassVar = "builds/{}.json"
    KEY: ClassVar = ("digest",)
    MOST: ClassVar = 1

    digest: str
    build: int
    commit: str
    date: str
    architectures: dict[str, dict[str, int]]
    program: str = ""

    def after(self, before: Self) -> Self:
        # a check of one architecture keeps what is known of the others
        return replace(self, architectures={**before.architectures, **self.architectures})


@dataclass(frozen=True)
class Answered(Row):
    """What llama-fit-params (its files' digest) printed for these words on these devices: MiB of
    model, context and compute, by device."""

    FILE: ClassVar = "confirmed/{}.json"
    KEY: ClassVar = ("program", "words")

    program: str
    words: tuple[str, ...]
    build: int
    printed: dict[str, tuple[int, ...]]

    @property
    def right(self) -> bool:
        return all(len(row) == 3 and min(row) >= 0 for row in self.printed.values())


@dataclass(frozen=True)
class Tuned(Row):
    """The fastest launch that was measured. `build`: llama.cpp's number, or its commit where it has
    none; `machine` and `question` as launch/tuned.py says them; rates in tokens per second."""

    FILE: ClassVar = "tuned/{}.json"
    KEY: ClassVar = ("build", "machine", "question")
    MOST: ClassVar = 50

    build: str
    machine: str
    question: str
    flags: tuple[str, ...]
    prompt: float
    token: float
    date: str

    @property
    def right(self) -> bool:
        return 0 < self.prompt < 1e9 and 0 < self.token < 1e9 and _launches(self.flags)


@dataclass(frozen=True)
class Planned(Row):
    """A plan. `question`: what was asked; `free`: bytes by device, RAM as Host; `paid`, `idle`,
    `faster` and `smaller`: the plan's own, which a launch with all flags given does not have."""

    FILE: ClassVar = "plans/kept.json"
    KEY: ClassVar = ("model", "question", "free")

    model: str
    question: str
    free: dict[str, int]
    flags: tuple[str, ...]
    paid: str = ""
    idle: tuple[str, ...] = ()
    faster: dict[str, Any] | None = None
    smaller: dict[str, Any] | None = None

    @property
    def right(self) -> bool:
        return _launches(self.flags)


@dataclass(frozen=True)
class SpeedRatio(Row):
    """Rates of a class of launches relative to their predictions (machine.Ratio). `cards`: what its
    devices are, `version`: of the predictions."""

    FILE: ClassVar = "calibration.json"
    KEY: ClassVar = (
        *("machine", "kind", "placement", "backend", "build", "cards", "driver", "version"),
    )
    MOST: ClassVar = 500

    machine: str
    kind: str
    placement: str
    ratio: float
    n: int
    backend: str
    build: int | None
    date: str
    cards: tuple[str, ...]
    driver: str
    version: str

    @property
    def right(self) -> bool:
        known = self.kind in KINDS and self.placement in CLASSES
        return known and 1e-3 < self.ratio < 1e3 and 0 < self.n < 1e6

    def after(self, before: Self) -> Self:
        n = before.n + self.n
        # the geometric mean: ratios of 0.5 and 2 make 1
        return replace(self, n=n, ratio=before.ratio ** (before.n / n) * self.ratio ** (self.n / n))


@dataclass(frozen=True)
class Beside(Row):
    """Bytes at most that a launch held on a card besides llama.cpp's own buffers, by the driver's
    figures (prove)."""

    FILE: ClassVar = "beside.json"
    KEY: ClassVar = ("machine", "card", "backend", "driver", "build")

    machine: str
    card: str
    backend: str
    driver: str
    build: int
    size: int
    date: str

    @property
    def right(self) -> bool:
        return 0 <= self.size < 1 << 40


def read(record: type[T], environ: Mapping[str, str], name: str = "") -> list[T]:
    """Return the rows of a file, oldest first. A damaged file is a line on stderr."""
    with contextlib.suppress(AutolayersError):  # no home directory
        file = state.path(environ, *record.FILE.format(name).split("/"))
        content = state.read(file)
        # None for a file that is missing and for one that is no JSON: only the latter is reported
        if content is None and os.path.isfile(file):
            say(f"{file} is damaged and ignored")
        rows = [_made(record, entry) for entry in content] if isinstance(content, list) else []
        if isinstance(content, dict):
            rows = [_made(record, content)]
        return [row for row in rows if row is not None]
    return []


def keep(rows: Sequence[T], environ: Mapping[str, str], name: str = "") -> None:
    """Add rows of one kind. Raises AutolayersError."""

    def added(known: list[T]) -> list[T]:
        for row in rows:
            new = row
            for before in known:
                if before.key == row.key:
                    new = row.after(before)
            known = [*(each for each in known if each.key != row.key), new]
        return known

    if rows:
        change(type(rows[0]), environ, added, name)


def change(
    record: type[T],
    environ: Mapping[str, str],
    to: Callable[[list[T]], list[T]],
    name: str = "",
) -> None:
    """Replace the rows of a file by what `to` makes of them; the newest stay. Raises
    AutolayersError."""
    import json

    with state.locked(environ):
        # The lock is held from reading to writing: two launches at once would lose one's record
        rows = list(map(vars, to(read(record, environ, name))[-record.MOST :]))
        # a larger file is not read
        while len(rows) > 1 and len(json.dumps(rows, indent=1)) > state.MAX_SIZE:
            rows = rows[len(rows) // 4 + 1 :]
        file = state.path(environ, *record.FILE.format(name).split("/"))
        if (bad := state.set_aside(file)) is not None:
            say(f"{file} is kept as {bad}")
        state.keep(file, rows)


def _made(record: type[T], entry: Any) -> T | None:
    """Return an entry of a file, None where it is not one. What a later version adds is left
    out."""
    try:
        row = record(
            **{
                name: _typed(entry[name], kind)
                for name, kind in record.__annotations__.items()
                if not kind.startswith("ClassVar") and name in entry
            }
        )
        return row if row.right else None
    except (AutolayersError, ValueError, TypeError):
        return None


def _typed(value: Any, kind: str) -> Any:
    """Return a JSON value as an annotation says. Raises ValueError where it is another type."""
    if kind.endswith(" | None"):
        return value if value is None else _typed(value, kind.removesuffix(" | None"))
    outer, _, inner = kind.removesuffix("]").partition("[")
    of, _, values = inner.partition(", ")
    if outer == "dict" and isinstance(value, dict):
        return {name: _typed(each, values) for name, each in value.items()}
    if outer == "tuple" and isinstance(value, list):
        return tuple([_typed(each, of) for each in value])
    if outer == "Any" and isinstance(value, list):
        return [_typed(each, "str") for each in value]
    # bool is an int; nan is not less than anything
    if type(value) in _PLAIN.get(outer, ()) and (type(value) is str or abs(value) < _LARGEST):
        return value
    raise ValueError


def _launches(flags: Sequence[str]) -> bool:
    """Whether these are llama-server's flags. Raises UsageError."""
    launch = parse(flags, command=None)
    return not launch.rest and not launch.positional


def now() -> str:
    """Return the date of a row."""
    import datetime

    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def of_path(path: str) -> str:
    """Return what the file of a program at this path is called."""
    import hashlib

    name = os.path.realpath(path).encode("utf-8", "surrogateescape")
    return hashlib.sha256(name).hexdigest()[:32]


def digest(path: str, header_size: int) -> str:
    """SHA-256 of a model file's first `header_size` bytes (metadata and tensor list): a renamed
    file is the same model, an edited one is another; "" if it cannot be read."""
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
