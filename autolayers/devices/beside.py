"""What launches on this machine held on a device besides llama.cpp's own buffers, by the driver's
figures: kept by `autolayers prove`, for the margin of later plans.

Kept as beside.json in the state directory, a list of Seen. It holds for the same card, backend,
build of llama.cpp and driver.
"""

from __future__ import annotations

from .. import state
from ..errors import AutolayersError
from ..machine import Device
from ..records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 200  # kept, the newest
_LARGEST = 1 << 40  # bytes


@dataclass(frozen=True)
class Seen:
    """`size`: bytes at most; `build`: llama.cpp's number."""

    machine: str
    card: str
    backend: str
    driver: str
    build: int
    size: int
    date: str

    @property
    def key(self) -> tuple[object, ...]:
        return self.machine, self.card, self.backend, self.driver, self.build


def of(device: Device, build: int, size: int, date: str) -> Seen:
    """Return what was seen now."""
    return Seen(
        state.machine_name(),
        device.description,
        device.backend,
        device.driver,
        build,
        size,
        date,
    )


def keep(rows: Sequence[Seen], environ: Mapping[str, str]) -> None:
    """Add what was seen, in place of what was before. Raises AutolayersError."""
    with state.locked(environ):
        by_key = {row.key: row for row in (*_all(environ), *rows)}
        state.keep(_file(environ), [vars(row) for row in by_key.values()][-_MOST:])


def with_seen(
    devices: Sequence[Device], build: int, environ: Mapping[str, str]
) -> Sequence[Device]:
    """Return the devices with what was seen on them with this build; 0: any."""
    rows = {row.key[:-1]: row for row in _all(environ) if build in (0, row.build)}
    if not rows:
        return devices

    def seen(device: Device) -> Device:
        row = rows.get(of(device, build, 0, "").key[:-1])
        return device if row is None else replace(device, beside=row.size)

    return [seen(device) for device in devices]


def _file(environ: Mapping[str, str]) -> str:
    return state.path(environ, "beside.json")


def _all(environ: Mapping[str, str]) -> list[Seen]:
    """Return all that is kept, oldest first, without entries that are not right."""
    try:
        entries = state.read(_file(environ))
    except AutolayersError:
        return []
    rows = []
    for entry in entries if isinstance(entries, list) else ():
        try:
            row = Seen(**entry)
            texts = row.machine, row.card, row.backend, row.driver, row.date
            right = all(isinstance(text, str) for text in texts)
            # bool is an int
            numbers = all(type(number) is int for number in (row.build, row.size))
            if right and numbers and 0 <= row.size < _LARGEST:
                rows.append(row)
        except TypeError:  # of another version, or by hand
            continue
    return rows
