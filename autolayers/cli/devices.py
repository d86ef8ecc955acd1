"""`autolayers devices`: what memory there is, from which source, and how sure."""

from __future__ import annotations

import os
import shutil

from ..devices import Inventory, discover, measured
from ..devices.machine_file import to_dict
from ..devices.measure import BUS, load, measure
from ..errors import DeviceError, UsageError
from ..flags.check import read
from ..machine import Device, ratios
from ..output import emit_json, say, say_all, show
from ..quoting import printable
from ..records import replace
from ..report.table import Style, table, wrap
from ..units import human
from .calibrate import lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


# source of a device's numbers -> what a user should know of them
_SURE = {
    "nvml": "from the driver (NVML); a CUDA context takes some of it",
    "list-devices": "from llama.cpp itself",
    "sysfs": "from the driver (sysfs); a ROCm context takes some of it",
    "metal": "from Metal",
    "vulkan": "from the driver (Vulkan)",
    "rpc": "from the RPC server",
}
_HOST = {
    "meminfo": "from the system",
    "psutil": "from the system",
    "given": "as given",
    "cgroup": "from the system, capped by this container's or cgroup's limit",
}


def main(words: Sequence[str]) -> int:
    """Run `autolayers devices WORDS`: the answer on stdout, notes on stderr. Return 0, with or
    without a GPU.

    Raises UsageError (2), DeviceError (4) if the size of RAM is unknown or the --llama-server does
    not exist, AutolayersError (1).
    """
    arguments = read("devices", words)
    if arguments.positional:
        raise UsageError(
            f"devices takes flags only, not {arguments.positional[0]!r}: see its --help"
        )
    own = arguments.own
    program = own.get("llama-server")
    # Somebody who names a program wants its list, not the next source
    if program and not shutil.which(program):
        raise DeviceError(f"--llama-server {program}: no such program")
    inventory = discover(llama_server=program, rpc=own.get("rpc", ()))
    notes = list(inventory.notes)
    if own.get("measure"):
        say("measuring for a few seconds ...")
        speeds, failures = measure(inventory.host.available)
        notes += failures
        # measure has written the file: read the new bandwidth from it
        inventory = replace(inventory, host=measured(inventory.host, os.environ))
    else:
        # Those of an earlier --measure
        speeds = load() or {}
    if own.get("json"):
        answer = to_dict(inventory.devices, inventory.host)
        # to_dict is a machine file; these keys are for a reader and ignored by --machine
        for row, device in zip(answer["devices"], inventory.devices, strict=True):
            row["sure"] = _sureness(device)
        answer["host"].update(
            {**{key: speeds.get(key) for key in BUS}, "measured": speeds.get("when")}
        )
        emit_json({**answer, "notes": notes}, 2)
        return 0
    style = Style.here()
    # style.columns has no end on a pipe, where a device is a line
    head, *rows = _table(inventory, speeds, style.columns)
    rows += lines(ratios(inventory.devices, inventory.host))
    # A device's name comes from a driver or an RPC server
    show("".join(f"{line}\n" for line in (style(head, "dim"), *map(printable, rows))))
    say_all(notes)
    return 0


def _sureness(device: Device) -> str:
    """Return the source of the numbers, and why they may be wrong."""
    source = _SURE.get(device.source, "as given")
    return f"{source}; {device.warning}" if device.warning else source


def _table(inventory: Inventory, speeds: dict[str, Any], width: int) -> list[str]:
    """Return one row per device; on a narrow terminal its facts are below its sizes."""
    rows = [("device", "total", "free", "", "source")]
    for device in inventory.devices:
        # 0: an RPC server without an answer
        size = (human(device.total), human(device.free)) if device.total else ("?", "?")
        # A device's description, compute capability, bandwidth and display.
        facts = [device.description]
        if device.compute_capability:
            facts.append(f"compute capability {'.'.join(map(str, device.compute_capability))}")
        if device.bandwidth:
            facts.append(f"{device.bandwidth / 1e9:.0f} GB/s")
        if device.display:
            facts.append("drives a display")
        rows.append((device.name, *size, ", ".join(facts), _sureness(device)))
    host = inventory.host
    # The measured speeds, or the bandwidth that the machine's firmware names.
    # what was measured -> its words, in the order in which they are printed
    names = {
        "ram": "read",
        "bus": "to the GPU",
        "bus_pageable": "to the GPU where it is not pinned",
        "disk": "from the disk",
    }
    measured = [
        f"{speeds[key] / 1e9:.1f} GB/s {name}" for key, name in names.items() if key in speeds
    ]
    if measured:
        speed = f"{', '.join(measured)} (measured)"
    elif host.bandwidth:
        # Of the modules, as the machine's firmware lists them
        speed = f"{host.bandwidth / 1e9:.0f} GB/s (SMBIOS)"
    else:
        speed = "bandwidth unknown: --measure finds it"
    rows.append(("RAM", human(host.total), human(host.available), speed, _HOST[host.source]))
    # The rows in columns; with their facts below their sizes if the lines are too long
    # The last column, the source, may be of any length
    head, *others = rows
    lines = table(head, others, left=(0, 3, 4))
    if max(map(len, lines)) <= width:
        return lines
    # Too wide: a device's facts and its source stand below, indented
    first, *sizes = table(head[:3], [row[:3] for row in others])
    lines = [first]
    for start, row in zip(sizes, others, strict=True):
        lines += [
            start,
            *(line for text in row[3:] if text for line in wrap(text, width, "  ", "    ")),
        ]
    return lines
