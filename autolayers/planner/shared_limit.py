"""The part of the RAM that a GPU without memory of its own may use: what raises it, where it limits a launch."""

from __future__ import annotations

from ..backends import METAL
from ..units import GiB, MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device, Machine
    from .evaluate import Candidate

_WORTH = GiB        # of RAM that would otherwise be idle


def way_out(machine: Machine, candidate: Candidate, growing: int) -> tuple[str, ...]:
    """The setting that gives such a GPU more of the RAM; none where its limit does not bind, or RAM is short too.
    `growing`: bytes of RAM that the server may come to need."""
    if candidate.ram_spare is None:
        return ()
    found = []
    for device in machine.devices:
        spare = candidate.spare.get(device.name, 0)
        more = (candidate.ram_spare - growing - max(0, spare)) // MiB * MiB
        setting = _setting(device)
        if setting and spare < _WORTH <= more and machine.limits[device.name] == device.total:
            found.append(f"{device.name} may use {device.total // MiB} MiB of the RAM: "
                         + setting.format((device.total + max(0, spare) + more) // MiB))
    return tuple(found)


def _setting(device: Device) -> str:
    if not device.in_ram:
        return ""
    if device.backend == METAL:
        return "sudo sysctl iogpu.wired_limit_mb={} gives it more"
    if device.kind == "igpu" and ("AMD" in device.description or "Radeon" in device.description):
        return "a larger GTT gives it more (Linux: kernel parameter amdgpu.gttsize={}; Windows: more in the firmware)"
    return ""
