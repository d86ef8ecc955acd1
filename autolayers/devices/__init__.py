"""The devices and their memory: from NVML, sysfs, Metal, --list-devices, RPC, or a hypothetical
machine.

    inventory = discover()                  # this machine
    inventory.devices, inventory.host, inventory.notes
    hypothetical("24GiB,rtx-3090")          # hypothetical: [CUDA0, CUDA1]
    described("machine.json")               # one in a file
"""

from __future__ import annotations

import os

from ..backends import VULKAN, Cuda
from ..errors import DeviceError
from ..machine import Device, Host
from ..records import dataclass, replace
from .given import hypothetical, numbered, of_one_machine
from .ttm import with_ttm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Device",
    "Host",
    "Inventory",
    "completed",
    "described",
    "discover",
    "hypothetical",
    "numbered",
    "of_one_machine",
    "remote",
]


@dataclass(frozen=True)
class Inventory:
    """Devices in llama.cpp's order, the host's RAM, and notes for the user, one line each."""

    devices: tuple[Device, ...]
    host: Host
    notes: tuple[str, ...] = ()


def completed(device: Device) -> Device:
    """Return the device, completed with known figures of its model that the driver does not
    report."""
    from . import names  # and its table of cards, which a size needs not

    return names.completed(device)


def discover(
    environ: Mapping[str, str] | None = None,
    llama_server: str | None = None,
    rpc: Sequence[str] = (),
    root: str = "/",
) -> Inventory:
    """Return this machine's devices as a llama-server started under `environ` (default: ours) sees
    them.

    With `llama_server`, a program's path, its own list is used; if it fails, a note says so and the
    next source is tried: NVML, then AMD's sysfs, then Metal, then Vulkan. The servers of `rpc`,
    --rpc's host:port, are always asked; one without an answer gives a note and a device without
    memory. Without a GPU there is a note and no devices. `root` is the root of the file system to
    read. Raises DeviceError if even the size of RAM is unknown.
    """
    from . import host

    environ = os.environ if environ is None else environ
    # RAM first: without it there is nothing to plan with, GPU or not
    ram = measured(host.read(root), environ)
    # the program itself knows best, whatever driver or mask decides
    if llama_server:
        # The devices that a llama-server lists, completed by the drivers' own figures.
        program = llama_server
        from . import list_devices

        # what `remote` finds where a server is busy or dead, otherwise nothing
        far: list[Device] = []
        silent: list[str] = []
        if rpc:
            from .rpc import unavailable

            if unavailable(rpc):
                far, silent = remote(rpc)
        if silent:  # with them the program would list nothing, or wait
            environ = {name: value for name, value in environ.items() if name != "LLAMA_ARG_RPC"}
        try:
            listed, notes = list_devices.query(program, environ, () if silent else rpc)
        except DeviceError as error:
            # no program that answers: the drivers are asked instead, and a note says so
            inventory = discover(environ, None, rpc, root)
            return Inventory(inventory.devices, inventory.host, (str(error), *inventory.notes))
        listed = _enriched(listed, environ, root)
        if silent:
            listed, notes = [*far, *listed], [*notes, *silent]
        elif rpc:
            from .rpc import refine

            listed = refine(listed, rpc)
        if not any(device.total for device in listed):
            notes.append(f"{program} lists no GPU: plans are for the CPU")
        return _calibrated(with_ttm(list(map(completed, listed)), root), ram, notes, environ)
    # remote devices come first, as llama.cpp lists them (_by_default)
    local, notes = _local(environ, ram, root)
    far, more = remote(rpc)
    devices = (*far, *local)
    if not any(device.total for device in devices):
        more.append("no GPU found: plans are for the CPU")
    return _calibrated(devices, ram, [*notes, *more], environ)


def _enriched(listed: list[Device], environ: Mapping[str, str], root: str) -> list[Device]:
    """Return the devices with what NVML and Vulkan say of them besides."""
    # --list-devices prints no limits and no compute capability
    backends = {device.backend for device in listed}
    if Cuda.name in backends:
        from . import list_devices, nvml

        listed = list_devices.enrich(listed, nvml.query(environ, root=root)[0])
    if VULKAN in backends:
        from . import vulkan

        listed = vulkan.with_limits(listed, vulkan.query(environ))
    return listed


def _calibrated(
    devices: Sequence[Device], ram: Host, notes: Sequence[str], environ: Mapping[str, str]
) -> Inventory:
    """Return the inventory with the speeds that were measured on this machine."""
    from .calibrated import load, with_ratios

    rows, old = load(devices, environ)
    if rows:
        devices, host = with_ratios(devices, ram, rows)
        ram = host or ram
    return Inventory(tuple(devices), ram, (*notes, *old))


def _local(environ: Mapping[str, str], ram: Host, root: str) -> tuple[list[Device], list[str]]:
    from . import amd, metal, nvml

    # one vendor's source at a time, as a build of llama.cpp has one backend for them
    devices, notes = nvml.query(environ, root=root)
    if not devices:
        devices, more = amd.query(environ, root)
        notes += more
    # on a Mac neither of the others has found one
    devices = devices or metal.query(ram.available)
    if not devices and os.path.isdir(f"{root.rstrip('/')}/dev/dri"):
        from . import vulkan

        devices = vulkan.query(environ)
    return with_ttm(list(map(completed, devices)), root), notes


def measured(host: Host, environ: Mapping[str, str]) -> Host:
    """Return the host with the rates of the last `autolayers devices --measure` on this machine."""
    from .measure import load

    # a rate by measuring goes before one from the firmware's tables
    rates = load(environ)
    if rates is None:
        return host
    return replace(
        host,
        bandwidth=rates.get("ram") or host.bandwidth,
        bus=rates.get("bus"),
        bus_pageable=rates.get("bus_pageable"),
        disk=rates.get("disk"),
        bandwidth_source="measured" if rates.get("ram") else host.bandwidth_source,
    )


def remote(endpoints: Sequence[str]) -> tuple[list[Device], list[str]]:
    """Return the devices of --rpc's servers, and a note for each server without an answer. Raises
    UsageError."""
    if not endpoints:
        return [], []
    from .rpc import query

    return query(endpoints)


def described(path: str) -> tuple[list[Device], Host | None]:
    """Return the devices and the RAM of a machine file. Raises UsageError."""
    from .machine_file import read

    return read(path)
