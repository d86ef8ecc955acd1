"""The machines of a fleet: a file that lists them, a directory of machine files, or the nodes of a
Kubernetes cluster.

    fleet = read("fleet.json")
    [(kind.title, len(kind.machines)) for kind in fleet.kinds]

    {"machines": {"desk": {"machine": "desk.json"},
                  "rack": {"devices": [{"card": "rtx-3090"}], "host": {"total": 68719476736},
                           "count": 40, "address": "10.0.0.{}"}},
     "link": {"bandwidth": "10Gbit/s", "latency": "0.2ms"}}

A machine is described as in a machine file (machine_file.py), here or in a `machine` file next to
this one. Of a directory each *.json is one, called as its file; of `kubectl get nodes -o json` each
node is, with the labels of NVIDIA's and AMD's device plugins. Machines that are alike but for a
little free memory are one kind, planned once with the least that any of them has.
"""

from __future__ import annotations

import os
import re

from ..errors import UsageError
from ..records import dataclass, replace
from ..tables import listed
from ..units import GiB, MiB, human
from .assumed import host_of
from .cluster_file import Box, description, json_of, known, rate_of, time_of
from .machine_file import of_data
from .nodes import nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ..machine import Device, Host

MOST = 20_000  # machines
# bytes per second, and seconds of a round trip, where the file says nothing
LINK = 125e6, 0.3e-3
_MAX_SIZE = 256 << 20
_ONE = 1 << 20  # of a machine's own file
_TOP, _MACHINE, _LINK = (
    ("machines", "link"),
    ("machine", "devices", "host", "address", "count"),
    ("bandwidth", "latency"),
)
# fields of devices and of a host that are equal in machines which one plan serves
_ALIKE = listed(
    "backend description total compute_capability bandwidth n_sm fp16_tflops link unified wddm "
    "display includes_context driver measured"
)
_ALIKE_HOST = listed("bandwidth bus cores threads measured expert_upload numa bus_pageable cpu")
# free memory of a GPU and of the RAM that differs by less is the same
_STEP = 256 * MiB, GiB


@dataclass(frozen=True)
class MachineKind:
    """Machines that are planned alike. Devices and RAM have the least that any of them has free."""

    machines: tuple[Box, ...]
    devices: tuple[Device, ...]
    host: Host

    @property
    def title(self) -> str:
        """ "2 x RTX 3090, 64.0 GiB"."""
        names = [device.description or device.name for device in self.devices]
        counts = [(names.count(name), name) for name in dict.fromkeys(names)]
        parts = [f"{count} x {name}" if count > 1 else name for count, name in counts]
        return ", ".join([*parts, f"{human(self.host.total)} RAM"])

    @property
    def gpus(self) -> int:
        """How many equal parts it has: its GPUs where they are alike and have their own memory,
        otherwise one."""
        # equal GPUs can be dealt to several servers one by one
        first = next(iter(self.devices), None)
        if first is None or first.in_ram:
            return 1
        alike = all(
            replace(device, name=first.name, free=first.free) == first for device in self.devices
        )
        return len(self.devices) if alike else 1


@dataclass(frozen=True)
class Fleet:
    """`link`: bytes per second and seconds of a round trip between any two machines; `said`:
    whether the file says it; `notes`: what was left out or assumed."""

    machines: tuple[Box, ...]
    kinds: tuple[MachineKind, ...]
    link: tuple[float, float] = LINK
    said: bool = False
    notes: tuple[str, ...] = ()


def read(path: str) -> Fleet:
    """Return the fleet of a file or directory. Raises UsageError: one line that names what is
    wrong."""
    if os.path.isdir(path):
        return _fleet(path, list(_directory(path)))
    data = json_of(path, _MAX_SIZE)
    if not isinstance(data, dict):
        raise UsageError(f"{path}: not an object; see docs/fleet.md")
    if isinstance(data.get("items"), list) or data.get("kind") == "Node":
        machines, notes = nodes(path, data)
        return _fleet(path, machines, notes=tuple(notes))
    # a machine file: a fleet of one
    if "machines" not in data and {"devices", "host"} & data.keys():
        return _fleet(path, [_box(path, _stem(path), data, path)])
    known(path, data, _TOP, "the file")
    machines = list(_listed(path, data.get("machines")))
    if data.get("link") is None:
        return _fleet(path, machines)
    known(path, data["link"], _LINK, "link")
    link = (
        rate_of(data["link"].get("bandwidth", LINK[0]), f"{path}: link"),
        time_of(data["link"].get("latency", LINK[1]), f"{path}: link"),
    )
    return replace(_fleet(path, machines), link=link, said=True)


def _likeness(box: Box) -> object:
    """Return what two boxes have equal if one plan serves both."""
    host = box.host
    assert host is not None
    rows = [
        (
            *(getattr(device, name) for name in _ALIKE),
            # in steps: what a desktop holds varies by a few MiB
            device.free // _STEP[0],
            repr(sorted((device.limits or {}).items())),
        )
        for device in box.devices
    ]
    same = [getattr(host, name) for name in _ALIKE_HOST]
    return (*rows, host.total // MiB, host.available // _STEP[1], *same)


def _kind(boxes: Sequence[Box]) -> MachineKind:
    first = boxes[0]
    assert first.host is not None
    devices = []
    for i, device in enumerate(first.devices):
        # the least of all, so that the plan fits on each
        free = min(box.devices[i].free for box in boxes)
        devices.append(replace(device, free=free, uuid=None, pci_id=None))
    available = min(box.host.available for box in boxes if box.host)
    return MachineKind(tuple(boxes), tuple(devices), replace(first.host, available=available))


def _fleet(path: str, machines: Sequence[Box], notes: tuple[str, ...] = ()) -> Fleet:
    if not machines:
        raise UsageError(f"{path}: no machines")
    if len(machines) > MOST:
        raise UsageError(f"{path}: {len(machines)} machines; at most {MOST} are planned")
    seen: set[str] = set()
    for box in machines:
        if box.name in seen:
            raise UsageError(f"{path}: two machines are called {box.name}: rename one")
        seen.add(box.name)
    # The kinds, in the order of their first machines.
    boxes_of: dict[object, list[Box]] = {}
    for box in machines:
        # a fleet of 10,000 equal machines is planned once
        boxes_of.setdefault(_likeness(box), []).append(box)
    return Fleet(tuple(machines), tuple(_kind(boxes) for boxes in boxes_of.values()), notes=notes)


# --- the forms of the file


def _directory(path: str) -> Iterator[Box]:
    try:
        names = sorted(name for name in os.listdir(path) if name.lower().endswith(".json"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    if not names:
        raise UsageError(
            f"{path}: no .json files; autolayers devices --json > NAME.json on each "
            f"machine writes them"
        )
    for name in names[: MOST + 1]:
        at = os.path.join(path, name)
        yield _box(at, _stem(name), json_of(at, _ONE), at)


def _listed(path: str, rows: Any) -> Iterator[Box]:
    """Yield the machines of a list or of an object under their names."""
    if isinstance(rows, dict):
        # The rows of an object, each with its key as its name.
        rows = [
            {**row, "name": name} if isinstance(row, dict) else row for name, row in rows.items()
        ]
    if not isinstance(rows, list):
        raise UsageError(
            f'{path}: "machines" must be an object with one object for each machine under its name'
        )
    count = 0
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UsageError(f"{path}: machine {number} is not an object")
        name = row.get("name")
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"{path}: machine {number} has no name")
        for box in _of_row(path, name, row):
            if (count := count + 1) > MOST:
                raise UsageError(f"{path}: more than {MOST} machines")
            yield box


def _of_row(path: str, name: str, row: dict[str, Any]) -> Iterator[Box]:
    what = f"{path}: machine {name}"
    known(path, row, (*_MACHINE, "name"), f"machine {name}")
    own, file = description(path, row, what)
    data = json_of(file, _ONE) if file else own
    address = row.get("address", name if "count" not in row else name + "-{}")
    if not isinstance(address, str) or not re.fullmatch(r"[\w.:{}-]+", address):
        raise UsageError(f"{what}: address must be a host name or an IP address")
    box = _box(path, name, data, what)
    if "count" not in row:
        yield replace(box, address=address)
        return
    # The number of machines of one row
    count = row["count"]
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        raise UsageError(f"{what}: count must be a whole number from 1 to {MOST}")
    if count > 1 and "{}" not in address:
        raise UsageError(
            f"{what}: {count} machines have {count} addresses: write {{}} where the number goes"
        )
    for number in range(1, count + 1):
        yield replace(box, name=f"{name}-{number}", address=address.replace("{}", str(number)))


def _box(path: str, name: str, data: Any, what: str) -> Box:
    """Return one machine. Raises UsageError where it has no memory to plan with."""
    if isinstance(data, dict) and not data.get("devices") and data.get("host") is None:
        raise UsageError(f"{what}: a machine without memory: it has neither devices nor a host")
    devices, host = of_data(data, what)
    if host is None:
        shared = next((device.ram for device in devices if device.in_ram and device.ram), None)
        if shared is None:
            raise UsageError(f'{what}: a machine without RAM: add "host": {{"total": BYTES}}')
        host = host_of(shared, devices)
    return Box(name, tuple(devices), host, name)


def _stem(path: str) -> str:
    return os.path.basename(path).rpartition(".")[0] or os.path.basename(path)
