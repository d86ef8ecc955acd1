"""A cluster described by a file: the head, where llama-server runs, and the other machines, whose
GPUs it uses over RPC.

    {"head": "desk",
     "boxes": {"desk": {"machine": "desk.json"},
               "shed": {"devices": [{"card": "rtx-3060"}],
                        "address": "192.168.1.20", "port": 50052}},
     "links": [{"between": ["desk", "shed"], "bandwidth": "1Gbit/s", "latency": "0.3ms"}]}

A box is one machine, described as in a machine file (machine_file.py), here or in a `machine` file
next to this one. Each of its GPUs has its own ggml-rpc-server, on `port` and the ports after it,
bound to `bind` (default: `address`). Latency is a round trip, as shown by ping; bandwidth is bytes
per second, or a text in bits.
"""

from __future__ import annotations

import json
import os
import re

from ..backends import CPU
from ..backends.rpc import Rpc, RpcCpu
from ..errors import DeviceError, UsageError
from ..files import opened
from ..machine import MAX_DEVICES, Device, Host
from ..parallel import in_threads
from ..records import dataclass, replace
from ..units import human
from .machine_file import of_data, parse
from .rpc_protocol import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


PORT = 50052  # ggml-rpc-server's default
_LARGER = 1.1  # a server may report this much more memory than the file
_MAX_SIZE = 1 << 20
_TOP, _BOX, _LINK = (
    ("head", "boxes", "links"),
    ("machine", "devices", "host", "address", "port", "bind"),
    ("between", "bandwidth", "latency"),
)
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kMGT]?)(i?)(bit|b|B)(?:/s|ps)?")
_TIME = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?(us|ms|s)")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Box:
    """One machine. `link` connects it to the head: bytes per second, seconds of a round trip; None
    for the head itself.
    """

    name: str
    devices: tuple[Device, ...]
    host: Host | None
    address: str = ""
    ports: tuple[int, ...] = ()  # of its devices' servers
    bind: str = ""
    link: tuple[float, float] | None = None

    @property
    def endpoints(self) -> tuple[str, ...]:
        """--rpc's endpoints of its servers, one per GPU."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return tuple(f"{address}:{port}" for port in self.ports)


@dataclass(frozen=True)
class Cluster:
    """`boxes` are the machines whose GPUs are used over RPC, in the file's order. `port`: where
    others than the head's Kubernetes reach its llama-server; 0: they do not."""

    head: Box
    boxes: tuple[Box, ...]
    port: int = 0

    def devices(self, boxes: Sequence[Box] | None = None) -> list[Device]:
        """Return the devices that a llama-server on the head sees: these machines' (None: all) and
        its own, in llama.cpp's order."""
        devices: list[Device] = []
        # RPC devices are numbered through, box after box
        for box in self.boxes if boxes is None else boxes:
            for device in box.devices:
                # A box's device as llama-server on the head sees it.
                number = len(devices)
                cpu = device.backend == CPU.name
                bandwidth = device.bandwidth or (box.host.bandwidth if cpu and box.host else None)
                over_rpc = replace(
                    device,
                    name=f"{Rpc.name}{number}",
                    backend=RpcCpu.name if cpu else Rpc.name,
                    kind="rpc",
                    engine="" if cpu else device.backend,
                    description=f"{box.name}: {device.description or device.name}",
                    link=box.link and box.link[0],
                    latency=box.link and box.link[1],
                    source="cluster",
                    wddm=False,
                    display=None,
                    limits=None,
                    bandwidth=bandwidth,
                )
                devices.append(over_rpc)
        return [*devices, *self.head.devices]


def read(path: str) -> Cluster:
    """Return the cluster of a file. Raises UsageError: one line that names what is wrong."""
    data = json_of(path, _MAX_SIZE)
    known(path, data, _TOP, "the file")
    boxes, head = data.get("boxes"), data.get("head")
    if not isinstance(boxes, dict) or not boxes:
        raise UsageError(f'{path}: no "boxes"; write one object for each machine under its name')
    if not isinstance(head, str) or head not in boxes:
        raise UsageError(
            f'{path}: "head" must be the name of the box where llama-server runs: '
            f"{', '.join(boxes)}"
        )
    # the links between the head and the other machines
    rows = data.get("links", [])
    if not isinstance(rows, list):
        raise UsageError(f"{path}: links must be a list")
    links: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows, 1):
        what = f"{path}: link {number}"
        known(path, row, _LINK, f"link {number}")
        ends = row.get("between")
        if (
            not isinstance(ends, list)
            or len(ends) != 2
            or any(not isinstance(end, str) or end not in boxes for end in ends)
        ):
            raise UsageError(f'{what}: "between" must be the names of two boxes')
        if head in ends:  # llama.cpp copies between two servers through the head
            links[ends[ends[0] == head]] = (
                rate_of(row.get("bandwidth"), what),
                time_of(row.get("latency"), what),
            )
    read_boxes = {name: _box(path, name, row, links.get(name)) for name, row in boxes.items()}
    # the head's own devices need no link
    first = read_boxes.pop(head)
    for name, box in read_boxes.items():
        # Raise UsageError for a box that the head cannot use: no link, address or device.
        if box.link is None:
            raise UsageError(
                f'{path}: no link between {head} and {name}; write it under "links": '
                f'{{"between": ["{head}", "{name}"], "bandwidth": "1Gbit/s", "latency": "0.3ms"}}'
            )
        if not box.address:
            raise UsageError(f'{path}: box {name} has no "address" for {head} to connect to')
        if not box.devices:
            raise UsageError(f"{path}: box {name} has no devices to serve")
    cluster = Cluster(first, tuple(read_boxes.values()))
    if (count := len(cluster.devices())) > MAX_DEVICES:
        raise UsageError(
            f"{path}: {count} devices in all boxes; llama.cpp uses at most {MAX_DEVICES}"
        )
    return cluster


def json_of(path: str, limit: int) -> Any:
    """Return the JSON of a file. Raises UsageError, also for an object that has a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # JSON would keep the last of two things with one name, silently
        values = dict(pairs)
        if len(values) < len(pairs):
            # each name takes its value away; a second one finds none
            left = dict(pairs)
            twice = next(name for name, _ in pairs if left.pop(name, left) is left)
            raise UsageError(f"{path}: {twice[:60]} is listed twice: rename one")
        return values

    try:
        with opened(path) as file:
            text = file.read(limit + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    if len(text) > limit:
        raise UsageError(f"{path}: more than {human(limit)}")
    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({error})") from None


def asked(cluster: Cluster) -> tuple[Cluster, list[str]]:
    """Return the cluster with the memory that its servers report, and a line for each server that
    does not answer or reports more than the file's device can have: those are left out."""
    # Each box with the number of each device.
    servers = [(box, i) for box in cluster.boxes for i in range(len(box.devices))]
    answers = in_threads(lambda server: ask(server[0].endpoints[server[1]]), servers)
    notes: list[str] = []
    served: dict[str, list[tuple[Device, int]]] = {box.name: [] for box in cluster.boxes}
    for (box, i), answer in zip(servers, answers, strict=True):
        device, endpoint = box.devices[i], box.endpoints[i]
        if isinstance(answer, DeviceError):
            notes.append(f"box {box.name}: {answer}: left out")
        # whether a server's devices can be the one that the file has
        elif isinstance(answer, list) and not (
            len(answer) == 1 and answer[0].total <= _LARGER * device.total
        ):
            reported = human(answer[0].total) if len(answer) == 1 else f"{len(answer)} devices"
            notes.append(
                f"box {box.name}: {endpoint} reports {reported}, but the file has one device of "
                f"{human(device.total)}: left out"
            )
        elif isinstance(answer, list):
            measured = replace(
                device, total=answer[0].total, free=answer[0].free, includes_context=True
            )
            served[box.name].append((measured, box.ports[i]))
        else:
            raise answer
    boxes = [_with_devices(box, served[box.name]) for box in cluster.boxes if served[box.name]]
    return Cluster(cluster.head, tuple(boxes)), notes


def _with_devices(box: Box, served: list[tuple[Device, int]]) -> Box:
    """Return the box with these devices and their ports only."""
    devices, ports = zip(*served, strict=True)
    return replace(box, devices=devices, ports=ports)


def _is_address(value: object) -> bool:
    """Return whether it can be a host name or an IP address, or none."""
    return isinstance(value, str) and re.fullmatch(r"[\w.:-]*", value) is not None


def description(path: str, row: dict[str, Any], what: str) -> tuple[dict[str, Any], str]:
    """Return how a machine is described: by itself, or "" and by which machine file, which lies
    next to the file at `path`. Raises UsageError for both."""
    own: dict[str, Any] = {key: row[key] for key in ("devices", "host") if key in row}
    file = row.get("machine")
    if not file:
        return own, ""
    if own or not isinstance(file, str):
        raise UsageError(f"{what}: either a machine file or its devices and host")
    return {}, os.path.join(os.path.dirname(path), file)


def _box(path: str, name: str, row: Any, link: tuple[float, float] | None) -> Box:
    what = f"{path}: box {name}"
    known(path, row, _BOX, f"box {name}")
    own, file = description(path, row, what)
    if file:
        try:
            with opened(file) as stream:
                devices, host = parse(stream.read(_MAX_SIZE), what)
        except OSError as error:
            raise UsageError(f"{what}: {file}: {error.strerror or error}") from None
    else:
        devices, host = of_data(own, what)
    address, port = row.get("address", ""), row.get("port", PORT)
    bind = row.get("bind", address)
    if not (_is_address(address) and _is_address(bind)):
        raise UsageError(f"{what}: address and bind must be host names or IP addresses")
    last_port = 65535 - len(devices)
    if type(port) is not int or not 0 < port <= last_port:
        raise UsageError(f"{what}: port must be a whole number from 1 to {last_port}")
    return Box(
        name, tuple(devices), host, address, tuple(range(port, port + len(devices))), bind, link
    )


def rate_of(value: Any, what: str) -> float:
    """Return the bytes per second of 1.25e8, "1Gbit/s" or "125MB/s"."""
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match:
        # "Mibit" and "MiB" count by 1024, network speeds by 1000
        base = 1024 if match[3] else 1000
        value = float(match[1]) * base ** _POWERS[match[2]] / (1 if match[4] == "B" else 8)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e4 <= value <= 1e13:
        raise UsageError(f'{what}: bandwidth must be bytes per second, or "1Gbit/s"')
    return float(value)


def time_of(value: Any, what: str) -> float:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match:
        value = float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 10:
        raise UsageError(f'{what}: latency must be seconds of a round trip, or "0.3ms"')
    return float(value)


def known(path: str, row: Any, keys: Sequence[str], what: str) -> None:
    """Raise UsageError for what is no object, or has another key than these."""
    if not isinstance(row, dict):
        raise UsageError(f"{path}: {what} is not an object")
    for key in row:
        if key not in keys:
            raise UsageError(
                f"{path}: {what} has an unknown key {str(key)[:40]!r} (known: {', '.join(keys)})"
            )
