"""The part of the RAM that a GPU without memory of its own may use: what raises it, where it limits a launch."""

from __future__ import annotations

from ..backends import METAL
from ..units import GiB, MiB
from .evaluate import RAM_MARGIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device, Machine
    from .evaluate import Candidate

_WORTH = GiB        # less changes little


def how_to_raise(machine: Machine, candidate: Candidate, movable: int) -> tuple[str, ...]:
    """The setting that gives such a GPU more of the RAM; none where its limit does not bind, or RAM is short too.
    `movable`: bytes of the launch that are in RAM and could be the GPU's."""
    ram = machine.ram
    if ram is None or candidate.ram_spare is None or candidate.ram_spare < 0:
        return ()
    found = []
    for device in machine.devices:
        spare = candidate.spare.get(device.name, 0)
        limit = min(device.total + candidate.ram_spare + movable - max(0, spare), ram - RAM_MARGIN)
        setting = _setting(device)
        if setting and spare < _WORTH <= limit - device.total and machine.limits[device.name] == device.total:
            found.append(f"{device.name} may use {device.total // MiB} MiB of the RAM: "
                         + setting.format(limit // MiB))
    return tuple(found)


def _setting(device: Device) -> str:
    if not device.in_ram:
        return ""
    if device.backend == METAL:
        return "sudo sysctl iogpu.wired_limit_mb={} gives it more"
    if device.kind == "igpu" and ("AMD" in device.description or "Radeon" in device.description):
        return "a larger GTT gives it more (Linux: kernel parameter amdgpu.gttsize={}; Windows: more in the firmware)"
    return ""
