"""What is assumed of a machine that is not here: its cores and the speed of its RAM follow the size
of that RAM."""

from __future__ import annotations

from ..backends import METAL
from ..machine import Device, Host
from ..records import dataclass
from ..units import GiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class RamKind:
    """Machines with at most this many bytes of RAM; `bandwidth` is what reading it reaches, bytes
    per second."""

    name: str
    ram: int
    bandwidth: float
    cores: int


# Two channels of DDR4-3200 have 51e9 at the peak; four, or two of fast DDR5, 90e9 to 102e9; a
# server's eight 205e9, and twelve of DDR5 460e9
KINDS = (
    RamKind("desktop", 64 * GiB, 38e9, 8),
    RamKind("workstation", 256 * GiB, 80e9, 16),
    RamKind("server", 1 << 62, 200e9, 32),
)
DESKTOP = KINDS[0]
# fields of a Host that are alike in machines of one kind
_OF_KIND = ("bandwidth", "bandwidth_source", "cores", "threads", "bus_pageable", "cpu")

_MOST = 192 * GiB  # of two channels
_MACOS = 7 * GiB // 2  # an idle macOS takes 3 to 4 GiB
_DGX_OS = 6 * GiB  # an idle DGX Spark has at most 115 of its 121.7 GiB free
ALONE = 2 * GiB  # a system with all other programs closed
# an idle desktop on Linux 1.5 to 2; machines with less than 16 GiB run smaller ones
_IDLE = 2 * GiB


def kind_of(ram: int | None, cores: int | None = None) -> RamKind:
    """Return the kind of machine with so much RAM; a desktop where it is not known, or with as few
    cores as one."""
    if cores is not None and cores <= DESKTOP.cores and (ram or 0) <= _MOST:
        return DESKTOP
    return next(kind for kind in KINDS if (ram or 0) <= kind.ram)


def idle(ram: int, devices: Sequence[Device] = ()) -> int:
    """Return the bytes of RAM that an idle system takes."""
    if any(device.backend == METAL for device in devices):
        return min(_MACOS, ram // 2)
    if any("GB10" in device.description for device in devices):
        return min(_DGX_OS, ram // 2)
    return min(_IDLE, ram // 8)


def kept(ram: int) -> int:
    """Return the bytes that a system in use should keep of so much RAM where its GPU's part is
    raised: 4 GiB below 32, 6 to 64, 8 above. The firmware takes some of the RAM that was sold."""
    sold = -(-ram // (8 * GiB)) * 8
    return (4 if sold < 32 else 6 if sold <= 64 else 8) * GiB


def host_of(ram: int, devices: Sequence[Device] = (), here: Host | None = None) -> Host:
    """Return a machine with this much RAM, less the part of an idle system. `here`: the machine
    that it is with other memory; its rates and cores stay where both are of one kind."""
    available = ram - idle(ram, devices)
    if here is None:
        return Host(ram, available, "given")
    same = kind_of(here.total) is kind_of(ram)
    kept = ("bus", "disk", *(_OF_KIND if same else ()))
    return Host(ram, available, "given", **{name: getattr(here, name) for name in kept})
