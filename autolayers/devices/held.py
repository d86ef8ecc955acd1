"""What the drivers say that a process holds in each GPU's memory.

    held(4242)["0000:01:00.0"]        # bytes, by PCI address

NVIDIA: NVML's processes. AMD and Intel: /proc/PID/fdinfo, whose keys the kernel documents in
Documentation/gpu/drm-usage-stats.rst; a client that several file descriptors share counts once.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ..units import GiB, KiB, MiB
from .nvml import initialised
from .system import entries

_UNITS = {"": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB}
_MOST = 4096  # file descriptors that are looked at


def held(pid: int, root: str = "/") -> dict[str, int]:
    """Return the bytes by PCI address, empty where no driver tells."""
    sizes = _drm(os.path.join(root, "proc", str(pid), "fdinfo"))
    for pci, size in _nvml(pid).items():
        sizes[pci] = sizes.get(pci, 0) + size
    return sizes


def _drm(folder: str) -> dict[str, int]:
    clients: dict[tuple[str, str], int] = {}
    for name in entries(folder)[:_MOST]:
        try:
            with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
                text = file.read(1 << 14)
        except OSError:
            continue
        if "drm-pdev:" not in text:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        key = fields["drm-pdev"].strip(), fields.get("drm-client-id", name).strip()
        # one client may have several descriptors, each with the same numbers
        clients[key] = max(clients.get(key, 0), _memory(fields))
    sizes: dict[str, int] = {}
    for (pci, _), size in clients.items():
        if size:
            sizes[pci] = sizes.get(pci, 0) + size
    return sizes


def _size(text: str) -> int | None:
    """Return the bytes of a number with its unit; None if it is none."""
    number, _, unit = text.strip().partition(" ")
    if not number.isdecimal() or len(number) >= 20 or unit not in _UNITS:
        return None
    return int(number) * _UNITS[unit]


def _memory(fields: dict[str, str]) -> int:
    """Return the bytes of video memory, of an integrated GPU those of the system's that it maps.
    Drivers name regions vram, vram0, gtt, system0; drm-memory- is amdgpu's older key for
    drm-resident-."""
    sizes: dict[str, int] = {}
    # the last that there is counts
    for prefix in ("drm-total-", "drm-memory-", "drm-resident-"):
        for key, value in fields.items():
            size = _size(value) if key.startswith(prefix) else None
            if size is not None:
                sizes[key[len(prefix) :]] = size
    # resident goes before total: what is mapped may not be there
    own = sum(size for region, size in sizes.items() if region.startswith("vram"))
    return own + sum(size for region, size in sizes.items() if region.startswith("gtt"))


def _nvml(pid: int) -> dict[str, int]:
    """Return the bytes that a process holds on each of NVIDIA's GPUs, by PCI address."""
    pynvml, _ = initialised()
    if pynvml is None:
        return {}
    held_here: dict[str, int] = {}
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError, AttributeError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pci = pynvml.nvmlDeviceGetPciInfo(handle)
                sizes = []
                for ask in (
                    pynvml.nvmlDeviceGetComputeRunningProcesses,
                    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
                ):
                    with suppress(pynvml.NVMLError):  # not every GPU has both kinds
                        sizes += [
                            process.usedGpuMemory or 0
                            for process in ask(handle)
                            if process.pid == pid
                        ]
                if sizes:
                    held_here[f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"] = max(sizes)
    except Exception:
        return {}
    finally:
        with suppress(Exception):
            pynvml.nvmlShutdown()
    return held_here
