"""Measured speeds of this machine relative to their predictions, kept for later ones.

Kept as calibration.json in the state directory (state.py), a list of Kept. They hold for the same
cards, driver and version of autolayers; the builds of llama.cpp are compared in request.py.
"""

from __future__ import annotations

from math import exp, log

from .. import __version__, state
from ..backends import HOST
from ..errors import AutolayersError
from ..machine import CLASSES, KINDS, Device, Host, Ratio
from ..records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


_AGAIN = "tune --quick measures again"
_MOST = 500  # kept, the newest
_FIELDS = ("machine", "kind", "placement", "backend", "build", "cards", "driver", "version")


@dataclass(frozen=True)
class Kept:
    """A Ratio of this machine; `cards`: the descriptions of its devices, `version`: of the
    predictions."""

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
    def key(self) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in _FIELDS])


def of(row: Ratio, devices: Sequence[Device]) -> Kept:
    """Return a ratio that was measured now with these devices of this machine."""
    own = [device for device in devices if row.backend != HOST and device.backend == row.backend]
    return Kept(
        state.machine_name(),
        row.kind,
        row.placement,
        row.ratio,
        row.n,
        row.backend,
        row.build,
        row.date,
        tuple(device.description for device in own),
        next((device.driver for device in own), ""),
        __version__,
    )


def keep(rows: Iterable[Kept], environ: Mapping[str, str]) -> None:
    """Add measurements to what is known; of one class they count together. Raises
    AutolayersError."""
    # two tunes at once must not lose each other's rows
    with state.locked(environ):
        by_key = {entry.key: entry for entry in _all(environ)}
        for row in rows:
            before = by_key.pop(row.key, None)
            if before is not None:
                n = before.n + row.n
                # the geometric mean: ratios of 0.5 and 2 make 1
                mean = (before.n * log(before.ratio) + row.n * log(row.ratio)) / n
                row = replace(row, n=n, ratio=exp(mean))
            by_key[row.key] = row
        state.keep(_file(environ), [vars(entry) for entry in by_key.values()][-_MOST:])


def load(
    devices: Sequence[Device], environ: Mapping[str, str]
) -> tuple[tuple[Ratio, ...], list[str]]:
    """Return what was measured on this machine, and a note if all of it is old."""
    ratios, old = [], []
    for row in _all(environ):
        if row.machine == state.machine_name():
            # a new driver or card changes what a class of launches reaches
            why = _changed(row, devices)
            if why:
                old.append(f"the measured speeds of {row.date[:10]} are old: {why} ({_AGAIN})")
            else:
                ratios.append(
                    Ratio(
                        row.kind,
                        row.placement,
                        row.ratio,
                        row.n,
                        row.backend,
                        row.build,
                        row.date,
                    )
                )
    return tuple(ratios), old[-1:] if not ratios else []


def with_ratios(
    devices: Sequence[Device], host: Host | None, rows: Sequence[Ratio]
) -> tuple[list[Device], Host | None]:
    """Return a machine with what was measured on it: each device with what its backend ran, the
    host with what the CPU did."""

    def of(device: Device) -> tuple[Ratio, ...]:
        return tuple(
            [row for row in rows if row.backend in ("", device.backend, device.engine, HOST)]
        )

    own = tuple([row for row in rows if row.backend in ("", HOST)])
    return (
        [replace(device, measured=of(device)) for device in devices],
        replace(host, measured=own) if host is not None else None,
    )


def forget(environ: Mapping[str, str]) -> int:
    """Drop what was measured on this machine, and return how many runs. Raises AutolayersError."""
    with state.locked(environ):
        rows = _all(environ)
        others = [row for row in rows if row.machine != state.machine_name()]
        if len(others) < len(rows):
            state.keep(_file(environ), [vars(row) for row in others])
    return sum(row.n for row in rows) - sum(row.n for row in others)


def _changed(row: Kept, devices: Sequence[Device]) -> str:
    """Return what is no longer as it was; "" if nothing."""
    here = [device for device in devices if device.backend == row.backend]
    if row.version != __version__:
        return f"of autolayers {row.version}"
    # nothing of this backend is planned, so nothing contradicts it
    if row.backend != HOST and not here:
        return ""  # not planned for now; Device.measured has its backend's alone
    gone = set(row.cards) - {device.description for device in here}
    for card in row.cards:
        if card in gone:
            return f"with {card}, which is not here"
    return _changed_driver(row, here)


def _changed_driver(row: Kept, here: Sequence[Device]) -> str:
    driver = next((device.driver for device in here), "")
    if row.driver and driver and row.driver != driver:
        return f"with driver {row.driver}, now {driver}"
    return ""


def _file(environ: Mapping[str, str]) -> str:
    return state.path(environ, "calibration.json")


def _all(environ: Mapping[str, str]) -> list[Kept]:
    """Return all measurements that are kept, oldest first, without entries that are not right."""
    try:
        entries = state.read(_file(environ))
    except AutolayersError:
        return []
    rows = []
    for entry in entries if isinstance(entries, list) else ():
        try:
            # written by another version, or by hand
            row = Kept(**{**entry, "cards": tuple(entry["cards"])})
        except (TypeError, KeyError):
            continue
        if _right(row):
            rows.append(row)
    return rows


def _right(row: Kept) -> bool:
    """Return whether an entry of the file has the types and ranges that autolayers writes."""
    texts: tuple[Any, ...] = (
        row.machine,
        row.backend,
        row.date,
        row.driver,
        row.version,
        *row.cards,
    )
    if row.kind not in KINDS or row.placement not in CLASSES:
        return False
    if not all(isinstance(text, str) for text in texts):
        return False
    if row.build is not None and not isinstance(row.build, int):
        return False
    ratio = isinstance(row.ratio, (int, float)) and 1e-3 < row.ratio < 1e3
    return ratio and isinstance(row.n, int) and 0 < row.n < 1e6
