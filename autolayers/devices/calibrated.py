"""What launches on this machine showed of its devices, for later plans: measured speeds relative to
their predictions, and memory besides llama.cpp's own buffers.

Speeds hold for the same cards, driver and version of autolayers (the builds of llama.cpp are
compared in request.py), memory for the same card, backend, build of llama.cpp and driver.
"""

from __future__ import annotations

from .. import __version__, state
from ..backends import HOST
from ..machine import Device, Host, Ratio
from ..records import replace
from ..store import Beside, SpeedRatio, change, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RATIO: tuple[str, ...] = Ratio.__record_fields__  # type: ignore[attr-defined]
_AGAIN = "tune --quick measures again"


def speed_of(row: Ratio, devices: Sequence[Device]) -> SpeedRatio:
    """Return a ratio that was measured now with these devices of this machine, to keep it."""
    own = [device for device in devices if row.backend != HOST and device.backend == row.backend]
    return SpeedRatio(
        machine=state.machine_name(),
        **vars(row),
        cards=tuple(device.description for device in own),
        driver=next((device.driver for device in own), ""),
        version=__version__,
    )


def beside_of(device: Device, build: int, size: int, date: str) -> Beside:
    """Return what was seen now, to keep it."""
    name, card = state.machine_name(), device.description
    return Beside(name, card, device.backend, device.driver, build, size, date)


def load(
    devices: Sequence[Device], environ: Mapping[str, str]
) -> tuple[tuple[Ratio, ...], list[str]]:
    """Return what was measured on this machine, and a note if all of it is old."""
    ratios, old = [], []
    for row in read(SpeedRatio, environ):
        if row.machine == state.machine_name():
            # a new driver or card changes what a class of launches reaches
            why = _changed(row, devices)
            if why:
                old.append(f"the measured speeds of {row.date[:10]} are old: {why} ({_AGAIN})")
            else:
                ratios.append(Ratio(**{name: getattr(row, name) for name in _RATIO}))
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


def with_beside(
    devices: Sequence[Device], build: int, environ: Mapping[str, str]
) -> Sequence[Device]:
    """Return the devices with what was seen on them with this build; 0: any."""
    rows = {row.key[:-1]: row for row in read(Beside, environ) if build in (0, row.build)}

    def seen(device: Device) -> Device:
        row = rows.get(beside_of(device, build, 0, "").key[:-1])
        return device if row is None else replace(device, beside=row.size)

    return [seen(device) for device in devices] if rows else devices


def forget(environ: Mapping[str, str]) -> int:
    """Drop the speeds of this machine, and return how many runs. Raises AutolayersError."""
    dropped = 0

    def others(rows: list[SpeedRatio]) -> list[SpeedRatio]:
        nonlocal dropped
        dropped = sum(row.n for row in rows if row.machine == state.machine_name())
        return [row for row in rows if row.machine != state.machine_name()]

    change(SpeedRatio, environ, others)
    return dropped


def _changed(row: SpeedRatio, devices: Sequence[Device]) -> str:
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
    driver = next((device.driver for device in here), "")
    if row.driver and driver and row.driver != driver:
        return f"with driver {row.driver}, now {driver}"
    return ""
