"""Machines of `kubectl get nodes -o json`: what may be allocated there, and the GPUs by the labels
of device plugins.

    machines, notes = nodes("nodes.json", data)

Labels: nvidia.com/gpu.product, .memory (MiB), .compute.major and .minor of NVIDIA's feature
discovery, and amd.com/gpu.product-name, .vram of AMD's node labeller.
"""

from __future__ import annotations

import re

from ..backends import DEFAULT, Hip
from ..errors import UsageError
from ..machine import MAX_DEVICES, Device, Host
from ..units import MiB, whole
from .cluster_file import Box
from .given import numbered
from .names import candidates, completed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_NVIDIA, _AMD = "nvidia.com/gpu", "amd.com/gpu"
_OTHERS = ("gpu.intel.com/xe", "gpu.intel.com/i915")  # whose labels have no memory
_FREE = 0.985  # of a GPU's memory, where only its total is known
_MEMORY = re.compile(r"([0-9]{1,18})(|[KMGTP]i|[kMGTPm])")  # a Kubernetes quantity
_UNITS = {
    "": 1,
    "m": 1e-3,
    **{unit: 1000**power for power, unit in enumerate("kMGTP", 1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTP", 1)},
}


def nodes(path: str, data: dict[str, Any]) -> tuple[list[Box], list[str]]:
    """Return the machines, and a line for each node that is left out or whose GPU is not known.
    Raises UsageError."""
    machines, notes = (
        [],
        ["what other pods take of the nodes is not in the file: it counts as free"],
    )
    # one line for all nodes with the same GPU
    unknown: dict[str, list[str]] = {}
    for number, row in enumerate(data.get("items", [data]), 1):
        if not isinstance(row, dict) or row.get("kind", "Node") != "Node":
            raise UsageError(
                f"{path}: item {number} is no Node; kubectl get nodes -o json writes them"
            )
        # The name of a node
        name = _part(row, "metadata").get("name")
        if not isinstance(name, str) or not name:
            raise UsageError(f"{path}: node {number} has no name")
        if why := _unusable(row):
            notes.append(f"node {name}: {why}: left out")
            continue
        devices, doubt = _gpus(path, name, row)
        if doubt:
            unknown.setdefault(doubt, []).append(name)
        status = _part(row, "status")
        free = quantity(_part(status, "allocatable").get("memory"))
        total = quantity(_part(status, "capacity").get("memory")) or free
        if not free or not total or total < MiB:
            raise UsageError(
                f"{path}: node {name}: a machine without memory: no status.allocatable.memory"
            )
        # cpu is a quantity too: "64", or "63500m"
        threads = quantity(_part(status, "allocatable").get("cpu"))  # a core has two
        host = Host(
            max(total, free),
            free,
            "given",
            cores=min(max(1, threads // 2), 4096) if threads else None,
        )
        machines.append(Box(name, devices, host, _address(row) or name))
    notes += [_note(names, doubt) for doubt, names in unknown.items()]
    return machines, notes


def _note(names: list[str], doubt: str) -> str:
    """Return one line for all nodes that it is said of."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"node {names[0]}{more}: {doubt}"


def quantity(text: object) -> int | None:
    """Return the bytes of a Kubernetes quantity; None of anything else.

    >>> quantity("64Gi") == 64 << 30
    True
    """
    match = _MEMORY.fullmatch(text) if isinstance(text, str) else None
    return int(int(match[1]) * _UNITS[match[2]]) if match else None


def _part(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _of_type(row: Mapping[str, Any], key: str, type_: str) -> list[dict[str, Any]]:
    """Return the entries of that type in a list of a node's status."""
    found = _part(row, "status").get(key)
    entries = found if isinstance(found, list) else []
    return [each for each in entries if isinstance(each, dict) and each.get("type") == type_]


def _unusable(row: Mapping[str, Any]) -> str:
    """Return why no pod is scheduled there; "": pods are."""
    if _part(row, "spec").get("unschedulable") is True:
        return "cordoned"
    ready = _of_type(row, "conditions", "Ready")
    return "" if all(condition.get("status") == "True" for condition in ready) else "not ready"


def _address(row: Mapping[str, Any]) -> str:
    inside = _of_type(row, "addresses", "InternalIP")
    return str(inside[0].get("address", ""))[:60] if inside else ""


def _gpus(path: str, name: str, row: Mapping[str, Any]) -> tuple[tuple[Device, ...], str]:
    """Return the GPUs that pods may get, and a line where their speed is not known."""
    labels = _part(_part(row, "metadata"), "labels")
    allocatable = _part(_part(row, "status"), "allocatable")
    # a node's pods get one vendor's GPUs
    for resource in (_NVIDIA, _AMD, *_OTHERS):
        count = whole(str(allocatable.get(resource, "0")), 4) or 0
        if count:
            return _of_resource(f"{path}: node {name}", name, resource, count, labels)
    return (), ""


def _of_resource(
    what: str, name: str, resource: str, count: int, labels: Mapping[str, Any]
) -> tuple[tuple[Device, ...], str]:
    """Return the `count` GPUs of a resource, by the labels of its node. Raises UsageError."""
    # time-slicing offers each GPU several times
    count //= max(1, whole(str(labels.get(f"{resource}.replicas", "1")), 4) or 1)
    # The bytes of each GPU of a resource: NVIDIA's label has MiB, AMD's a quantity.
    mib = whole(str(labels.get(f"{resource}.memory", "")), 8)
    size = mib * MiB if mib else quantity(labels.get(f"{resource}.vram"))
    if not size:
        raise UsageError(
            f"{what}: no label gives the memory of its {count} {resource}: "
            f"kubectl label node {name} {_NVIDIA}.memory=MIB, or run the plugin's node labeller"
        )
    # "NVIDIA-GeForce-RTX-3090-SHARED"
    product = str(labels.get(f"{resource}.product") or labels.get(f"{resource}.product-name") or "")
    shown = product.replace("-", " ").removesuffix(" SHARED")[:60]
    if "MIG" in product:
        raise UsageError(
            f"{what}: {shown} is a part of a GPU: give it as a machine with its memory"
        )
    backend = Hip.name if resource == _AMD else DEFAULT.name
    number = min(max(1, count), MAX_DEVICES)
    # `count` GPUs whose name and bytes of memory a driver or a label says. The table of cards adds
    # their speed; of one that it does not know, the speed is not known.
    # The compute capability of a node's labels; None without one.
    major = whole(str(labels.get(f"{resource}.compute.major", "")), 3)
    minor = whole(str(labels.get(f"{resource}.compute.minor", "")), 3)
    capability = None if major is None or minor is None else (major, minor)
    device = Device(
        f"{DEFAULT.name}0",
        size,
        int(size * _FREE),
        shown,
        backend,
        compute_capability=capability,
    )
    devices = tuple(numbered([completed(device)] * number))
    if candidates(shown) and devices[0].bandwidth:
        return devices, ""
    return devices, (
        f"GPU {shown or 'without a name'} is not known: its memory is that of its "
        "label, its speed is assumed"
    )
