"""AMD GPUs through Linux's sysfs, if there is no llama.cpp program to ask.

Files: Linux's Documentation/gpu/amdgpu/driver-misc.rst (mem_info_*, world-readable bytes) and
thermal.rst (hwmon's power1_cap, microwatts; amdgpu_hwmon_show_power_cap_default). Their
order is the kernel's; HIP's may differ, so with several GPUs or a mask the sizes are right but the
names are a guess.
"""

from __future__ import annotations

import os
import re

from ..backends import Hip
from ..machine import Device
from ..records import replace
from ..units import whole
from .system import entries, meminfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_AMD = "0x1002"
# HIP reads CUDA's too
_MASKS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def query(environ: Mapping[str, str], root: str = "/") -> tuple[list[Device], list[str]]:
    """Return AMD's GPUs, named ROCm0... as in a ROCm build of llama.cpp, and notes. `root`: see
    Host.read."""
    cards = _cards(root)
    mask = next((name for name in _MASKS if name in environ), None)
    # an empty list hides all; other masks cannot be applied, as the order is not known
    if mask and environ[mask] in ("", "-1"):
        return [], [f"{mask}={environ[mask]} hides every AMD GPU"] if cards else []
    # a note if ROCm may number the GPUs otherwise
    if not cards or (len(cards) == 1 and not mask):
        notes = []
    else:
        applied = f", and {mask} is not applied" if mask else ""
        notes = [
            f"the order of AMD GPUs is the kernel's{applied}; "
            "only llama-server's own list is certain"
        ]
    discrete = [card for card in cards if card.kind == "gpu"]
    # llama.cpp drops integrated GPUs if there is another one
    return [replace(card, name=f"{Hip.name}{i}") for i, card in enumerate(discrete or cards)], notes


def _cards(root: str) -> list[Device]:
    """Return AMD's GPUs in the kernel's order."""
    base = f"{root.rstrip('/')}/sys/class/drm"
    names = [name for name in entries(base) if re.fullmatch(r"card\d+", name)]
    # card10 comes after card9
    names.sort(key=lambda name: int(name[len("card") :]))
    return [card for name in names if (card := _card(f"{base}/{name}/device", root))]


def _card(path: str, root: str) -> Device | None:
    """Return an AMD GPU by its folder in sysfs, None for a card of another maker."""
    if _text(f"{path}/vendor") != _AMD:
        return None
    vram, vram_used = _number(f"{path}/mem_info_vram_total"), _number(f"{path}/mem_info_vram_used")
    if vram is None or vram_used is None:
        return None
    # the link's target is the PCI device's folder
    address = os.path.basename(os.path.realpath(path))
    description = _text(f"{path}/product_name") or f"AMD GPU {_text(f'{path}/device') or address}"
    pci = address if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address) else None
    card = Device(
        name="",
        total=vram,
        free=max(0, vram - vram_used),
        description=description,
        backend=Hip.name,
        pci_id=pci,
        source="sysfs",
        limits=_limits(pci, root),
        power_limit=_watts(path, "power1_cap"),
        power_default=_watts(path, "power1_cap_default"),
    )
    # memory of its own, all of it for the GPU
    if not _integrated(path):
        return card
    card = replace(
        card, kind="igpu", warning="unified memory: the part that the firmware reserves for the GPU"
    )
    # The integrated GPU with its pool of system memory, where that is the larger one.
    gtt, gtt_used = _number(f"{path}/mem_info_gtt_total"), _number(f"{path}/mem_info_gtt_used")
    if gtt is not None and gtt_used is not None and gtt > card.total:
        # ROCm gives an integrated GPU the larger of its two pools, not their sum. Whether memory
        # taken through HIP counts as used GTT depends on the driver, so the available RAM is a
        # second bound.
        free = min(max(0, gtt - gtt_used), meminfo(root).get("MemAvailable", 0))
        card = replace(
            card,
            total=gtt,
            free=free,
            unified=True,
            warning="unified memory: free is the available RAM",
        )
    return card


def _limits(pci: str | None, root: str) -> dict[str, int] | None:
    """Return ROCm's name of the GPU: gfx_target_version of the KFD node at that address."""
    if pci is None:
        return None
    # KFD writes the address as one number: bus, slot and function
    domain, bus, rest = pci.split(":")
    slot, function = rest.split(".")
    place = {
        "domain": int(domain, 16),
        "location_id": int(bus, 16) << 8 | int(slot, 16) << 3 | int(function),
    }
    nodes = f"{root.rstrip('/')}/sys/class/kfd/kfd/topology/nodes"
    for name in entries(nodes):
        facts = dict(
            re.findall(r"^(\w+) (\d+)$", _text(f"{nodes}/{name}/properties"), re.MULTILINE)
        )
        version = int(facts.get("gfx_target_version", 0))
        if version and all(int(facts.get(key, -1)) == value for key, value in place.items()):
            return {"gfx_target_version": version}
    return None


def _integrated(path: str) -> bool:
    """Return whether it is integrated, by the driver's metrics table: format 1 is for discrete
    GPUs, 2 and 3 are for APUs (kgd_pp_interface.h: gpu_metrics)."""
    try:
        with open(f"{path}/gpu_metrics", "rb") as file:
            header = file.read(4)
    except OSError:
        return False
    # bytes 2 and 3 are the format's major and minor revision
    return len(header) == 4 and header[2] >= 2


def _watts(path: str, name: str) -> int | None:
    """Return a figure of the GPU's power sensor in watts."""
    for sensor in entries(f"{path}/hwmon"):
        if microwatts := _number(f"{path}/hwmon/{sensor}/{name}"):
            return microwatts // 1_000_000 or None
    return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    return whole(_text(path), 20)
