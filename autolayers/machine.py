"""What a launch runs on: the devices that llama.cpp lists, the host's RAM, and how much of both may
be used.

Records alone: autolayers.devices finds them.
"""

from __future__ import annotations

from .errors import UsageError
from .records import dataclass, replace
from .units import parse_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import ClassVar

MAX_DEVICES = 16  # llama_max_devices


KINDS = ("tg", "pp")  # rates: of generated tokens and of prompts
OF_PEAK = 0.9  # share of RAM's peak bandwidth that reading reaches
CLASSES = ("dense resident", "dense partial", "MoE resident", "MoE in RAM", "multi-GPU", "CPU")


@dataclass(frozen=True)
class Ratio:
    """Measured rates of one class of launches on a machine, relative to their predictions."""

    kind: str  # of KINDS
    placement: str  # of CLASSES
    ratio: float  # measured / predicted, the geometric mean of `n` runs
    n: int = 1
    backend: str = ""  # empty: any
    build: int | None = None  # llama.cpp's number, None: any
    date: str = ""  # of the last run


@dataclass(frozen=True)
class Device:
    """Memory in bytes. `free` is what an allocation may take now; `includes_context` says whether
    the backend's own context (CUDA's primary context) has been subtracted from it already."""

    name: str
    total: int
    free: int
    description: str = ""
    # a name of autolayers.backends: CUDA ROCm Vulkan MTL SYCL RPC ...
    backend: str = "CUDA"
    kind: str = "gpu"  # gpu, igpu (shares the system's RAM), rpc
    uuid: str | None = None
    pci_id: str | None = None  # "0000:01:00.0"
    compute_capability: tuple[int, int] | None = None  # CUDA only; None: 8.9 is assumed
    includes_context: bool = False
    display: bool | None = None  # it drives a display; None: unknown
    source: str = "given"  # nvml, list-devices, sysfs, metal, rpc, given
    bandwidth: float | None = None  # bytes per second of its memory, None: unknown
    n_sm: int | None = None  # streaming multiprocessors, None: unknown
    wddm: bool = False  # driven by Windows (WSL2 too), which may evict memory to RAM
    warning: str = ""  # why `total` and `free` may be wrong; empty: as measured
    fp16_tflops: float | None = None  # of its matrix units, dense; None: unknown
    # bytes per second between it and RAM, or the network to its server, None: unknown
    link: float | None = None
    # seconds of a round trip to its server, None: unknown, or no server
    latency: float | None = None
    engine: str = ""  # the backend of its server; empty: unknown, or no server
    unified: bool = False  # its memory is the system's RAM
    ram: int | None = None  # all of that RAM, None: unknown
    # the driver's limits, with the backend's keys; None: unknown
    limits: Mapping[str, int] | None = None
    driver: str = ""  # its version, empty: unknown
    power_limit: int | None = None  # watts, None: unknown
    power_default: int | None = None  # watts as sold, None: unknown
    measured: tuple[Ratio, ...] = ()  # launches on this machine
    beside: int = 0  # bytes that one held here besides llama.cpp's buffers, 0: not known

    # (size or GPU name, name="CUDA0"), set by devices/given.py
    hypothetical: ClassVar[Callable[..., Device]]

    def __hash__(self) -> int:  # limits have none
        return hash((self.name, self.backend, self.total, self.free))

    @property
    def in_ram(self) -> bool:
        """Whether its memory is this machine's RAM."""
        return self.unified and self.kind != "rpc"


@dataclass(frozen=True)
class Host:
    """System RAM in bytes; `available` can be used without swapping. Rates are bytes per second,
    None if unknown."""

    total: int
    available: int
    source: str  # meminfo, psutil, "cgroup" where a container's limit is what counts, given
    bandwidth: float | None = None  # of reading RAM
    bus: float | None = None  # from RAM to the first GPU
    cores: int | None = None  # physical cores that may be used
    disk: float | None = None  # of reading files
    bandwidth_source: str = ""  # measured, smbios (the firmware's tables), given
    threads: int | None = None  # -t, if llama.cpp's default is wrong
    measured: tuple[Ratio, ...] = ()  # launches on this machine
    expert_upload: float | None = None  # of experts that --moe-cache-mib misses, to the GPU
    numa: int | None = None  # nodes
    # from RAM that is not pinned, as weights mapped from a file are, to the first GPU
    bus_pageable: float | None = None
    cpu: str = ""  # the processor's name and instructions, devices.processor

    @classmethod
    def hypothetical(cls, size: str) -> Host:
        """Return a host with this much available RAM: `--ram 64GiB`. Raises UsageError."""
        available = parse_memory(size)
        return cls(available, available, "given")


UNKNOWN = Host(0, 0, "")


@dataclass(frozen=True)
class Machine:
    """Where the launch will run. `limits` is the usable memory per device (free memory, or the
    user's budget); `ram` is the usable RAM, None if unknown; `host` says the rest of it. Bytes."""

    devices: tuple[Device, ...]
    limits: Mapping[str, int]
    ram: int | None = None
    ram_total: int | None = None
    host: Host = UNKNOWN
    measured: tuple[Ratio, ...] = ()  # launches that predictions are corrected by

    @classmethod
    def of(
        cls,
        devices: Sequence[Device],
        host: Host | None,
        ram: int | None,
        budget: Mapping[str, int],
    ) -> Machine:
        """Return these devices on a host (None: unknown). `ram`: bytes of RAM instead of the
        host's; `budget`: the most bytes by device. Raises UsageError for a budget of an unknown
        device."""
        # Raise UsageError for a budget of a device that the machine has not.
        names = [device.name for device in devices]
        for name in budget:
            if name not in names:
                raise UsageError(
                    f"--budget: there is no device {name} (devices: {', '.join(names) or 'none'})"
                )
        limits = {
            device.name: min(device.free, budget.get(device.name, device.free))
            for device in devices
        }
        if host is None:
            if ram is None:
                # The RAM that a GPU shares, in bytes: it identifies a machine without a host.
                shared = [device.ram for device in devices if device.in_ram]
                ram = next(filter(None, shared), None)
            return cls(tuple(devices), limits, ram, ram, measured=ratios(devices))
        available, total = (host.available, host.total) if ram is None else (ram, ram)
        for device in devices:
            if device.in_ram:
                limits[device.name] = min(limits[device.name], available)
        return cls(
            tuple(devices),
            limits,
            available,
            total,
            host,
            ratios(devices, host),
        )

    def limited(self, ram: int) -> Machine:
        """Return the same with at most this much RAM, which counts for devices that share it
        too."""
        shared = {device.name for device in self.devices if device.in_ram}
        limits = {
            name: min(size, ram) if name in shared else size for name, size in self.limits.items()
        }
        return replace(self, limits=limits, ram=ram if self.ram is None else min(ram, self.ram))


def ratios(devices: Sequence[Device], host: Host | None = None) -> tuple[Ratio, ...]:
    """Return what was measured on a machine, each once."""
    rows = [row for part in (*devices, *((host,) if host else ())) for row in part.measured]
    return tuple(dict.fromkeys(rows))
