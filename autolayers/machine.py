"""What a launch runs on: the devices that llama.cpp lists, the host's RAM, and what may be taken of both.

Records alone: autolayers.devices finds them.
"""

from __future__ import annotations

from .errors import UsageError
from .records import dataclass
from .units import parse_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import ClassVar

MAX_DEVICES = 16      # llama_max_devices


@dataclass(frozen=True)
class Device:
    """Memory in bytes. `free` is what an allocation may take now; `includes_context` says whether the
    backend's own context (CUDA's primary context) has been subtracted from it already."""

    name: str
    total: int
    free: int
    description: str = ""
    backend: str = "CUDA"          # a name of autolayers.backends: CUDA ROCm Vulkan MTL SYCL RPC ...
    kind: str = "gpu"              # gpu, igpu (shares the system's RAM), rpc
    uuid: str | None = None
    pci_id: str | None = None      # "0000:01:00.0"
    compute_capability: tuple[int, int] | None = None   # CUDA only; None: 8.9 is assumed
    includes_context: bool = False
    display: bool | None = None    # a desktop draws on it; None: unknown
    source: str = "given"          # nvml, list-devices, sysfs, metal, rpc, given
    bandwidth: float | None = None   # bytes per second of its memory, None: unknown
    n_sm: int | None = None        # streaming multiprocessors, None: unknown
    wddm: bool = False             # driven by Windows (WSL2 too), which moves memory about
    warning: str = ""              # why `total` and `free` may be off; empty: as measured
    fp16_tflops: float | None = None   # of its matrix units, dense; None: unknown
    link: float | None = None      # bytes per second between it and RAM, or the network to its server, None: unknown
    latency: float | None = None   # seconds of a round trip to its server, None: unknown, or no server
    engine: str = ""               # the backend that its server drives it with; empty: unknown, or no server
    unified: bool = False          # its memory is the system's RAM
    ram: int | None = None         # all of that RAM, None: unknown
    limits: Mapping[str, int] | None = None   # what its driver allows, keys as the backend has them; None: unknown

    hypothetical: ClassVar[Callable[..., Device]]      # (size or card's name, name="CUDA0"), by devices/given.py

    def __hash__(self) -> int:     # limits have none
        return hash((self.name, self.backend, self.total, self.free))

    @property
    def in_ram(self) -> bool:
        """Whether what lies on it is in this machine's RAM."""
        return self.unified and self.kind != "rpc"


@dataclass(frozen=True)
class Host:
    """System RAM in bytes; `available` is what can be taken without swapping. Rates are bytes per second, None where
    they are not known."""

    total: int
    available: int
    source: str   # meminfo, psutil, "cgroup" where a container's limit is what counts, given
    bandwidth: float | None = None     # of reading RAM
    bus: float | None = None           # from RAM to the first GPU
    cores: int | None = None           # physical ones that may be used
    disk: float | None = None          # of reading files
    bandwidth_source: str = ""         # measured, smbios (the firmware's tables), given
    threads: int | None = None         # to compute with, where llama.cpp's default is wrong

    @classmethod
    def hypothetical(cls, size: str) -> Host:
        """A host of that much available RAM: `--ram 64GiB`. Raises UsageError."""
        size_ = parse_size(size)
        return cls(size_, size_, "given")


@dataclass(frozen=True)
class Machine:
    """Where the launch is to run. `limits` is what may be taken per device (free memory, or the user's budget);
    `ram` is what may be taken of system memory, None where it is not known. Bytes."""

    devices: tuple[Device, ...]
    limits: Mapping[str, int]
    ram: int | None = None
    ram_total: int | None = None
    ram_bandwidth: float | None = None     # bytes per second, measured
    bus_bandwidth: float | None = None
    cores: int | None = None               # physical ones of the processor
    disk_bandwidth: float | None = None
    threads: int | None = None             # to compute with, where llama.cpp's default is wrong

    @classmethod
    def of(cls, devices: Sequence[Device], host: Host | None, ram: int | None,
           budget: Mapping[str, int]) -> Machine:
        """These devices on a host (None: nothing is known of it). `ram`: bytes of system memory instead of the host's;
        `budget`: bytes at most by device. Raises UsageError for a budget of a device that there is not."""
        for name in budget:
            if name not in {device.name for device in devices}:
                names = ", ".join(device.name for device in devices) or "none"
                raise UsageError(f"--budget: there is no device {name} (devices: {names})")
        limits = {device.name: min(device.free, budget.get(device.name, device.free)) for device in devices}
        if host is None:
            shared = [device.ram for device in devices if device.in_ram]     # such a machine is known by its GPU
            ram = next(filter(None, shared), None) if ram is None else ram
            return cls(tuple(devices), limits, ram, ram)
        return cls(tuple(devices), limits, host.available if ram is None else ram, host.total if ram is None else ram,
                   host.bandwidth, host.bus, host.cores, host.disk, host.threads)
