"""The part of the RAM that a GPU without memory of its own may use: what raises it, where it limits
a launch."""

from __future__ import annotations

from ..backends import METAL
from ..devices.assumed import kept
from ..devices.ttm import NEWEST, is_amds, parameters
from ..units import GiB, MiB
from .evaluate import RAM_MARGIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device, Machine
    from .evaluate import Candidate

_WORTH = GiB  # less changes little


def how_to_raise(machine: Machine, candidate: Candidate, movable: int) -> tuple[str, ...]:
    """The setting that gives such a GPU more of the RAM, and what it leaves to the system; none
    where its limit does not bind, or RAM is short too. `movable`: bytes of the launch that are in
    RAM and could be the GPU's."""
    ram = machine.ram
    if ram is None or candidate.ram_spare is None or candidate.ram_spare < 0:
        return ()
    total = machine.ram_total or ram
    most = min(total - kept(total), ram - RAM_MARGIN)
    found = []
    for device in machine.devices:
        spare = candidate.spare.get(device.name, 0)
        limit = min(device.total + candidate.ram_spare + movable - max(0, spare), most)
        setting = _setting(device, limit)
        if (
            setting
            and spare < _WORTH <= limit - device.total
            and machine.limits[device.name] == device.total
        ):
            found.append(
                f"{device.name} may use {device.total // MiB} MiB of the RAM: {setting}, "
                f"and leaves "
                f"{(total - limit) / GiB:.1f} GiB to the system"
            )
    return tuple(found)


def _setting(device: Device, limit: int) -> str:
    """What gives it `limit` bytes; "" where nothing does."""
    if not device.in_ram:
        return ""
    if device.backend == METAL:
        return f"sudo sysctl iogpu.wired_limit_mb={limit // MiB} gives it more"
    if not is_amds(device):
        return ""
    here = parameters(device.driver, limit)
    there = (
        f"Linux: {parameters(NEWEST, limit)}, before 6.15 amdgpu.gttsize={limit // MiB} too; "
        f"Windows: more in "
        "the firmware"
    )
    return f"a larger GTT gives it more ({f'kernel parameters {here}' if here else there})"
