"""The bandwidth and compute rates of devices and the rest of a machine, with defaults for unknown
figures."""

from __future__ import annotations

from ..backends import backend
from ..builds import NEWEST
from ..devices.assumed import DESKTOP, kind_of
from ..devices.integrated import integrated
from ..devices.processor import arithmetic, memory
from ..machine import OF_PEAK
from ..records import dataclass, replace
from .power import shares
from .rates import (
    FLASH_BUILD,
    FP16_PER_BANDWIDTH,
    FP16_UNKNOWN,
    OLD_FLASH,
    aged,
    by_generation,
    generation_of,
    rates_of,
)
from .streams import STREAMS, Streams, streams_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device, Machine
    from .rates import Rates

# bytes per second of an unknown integrated GPU: two channels of DDR4-3200
_IGPU_BANDWIDTH = 51e9
# GB/s of RAM of desktops and laptops by what was sold with a GPU of that time
_RAM_BANDWIDTH = by_generation("ram")
# the same of desktops and laptops without one of those GPUs, by the most cores: two channels of
# DDR4-2400, of DDR4-3200, of DDR5
_RAM_BY_CORES = ((6, 30e9), (11, DESKTOP.bandwidth), (1 << 30, 60e9))
_BUS = 12e9
_UNIFIED_BUS = 100e9
DISK = 2.5e9
# The process, the driver's context and a warm-up run: seconds of a start without its reading
START = 5.0
# the link to a server of unknown rates
NETWORK, NETWORK_RATE, ROUND_TRIP = "network", 1.25e8, 3e-4


@dataclass(frozen=True)
class Figures:
    """A device's bytes and operations per second. `known`: neither is a default."""

    rates: Rates
    bandwidth: float
    fp16: float
    known: bool
    round_trip: float = 0.0  # seconds, to the server that has it
    network: float = 0.0  # bytes per second; 0: no server
    streams: Streams = STREAMS["", ""]
    backend: str = ""  # a server's device: the server's

    @classmethod
    def of(cls, device: Device, ram: float | None = None, build: int = NEWEST) -> Figures:
        """Return the figures of a device. `ram`: bytes per second at which the machine's RAM, an
        integrated GPU's memory, is read."""
        built_in = integrated(device.description) if device.kind == "igpu" else None
        # The bytes per second of a device's memory; `built_in`: the figures of an integrated GPU
        # that is known.
        if device.bandwidth or device.kind != "igpu":
            bandwidth = device.bandwidth or backend(device.backend).bandwidth
        # `ram` is what reading reaches, the figure of a GPU its peak.
        elif ram:
            bandwidth = ram / OF_PEAK
        else:
            bandwidth = built_in[1] if built_in else _IGPU_BANDWIDTH
        reading, computing = shares(device)
        network, round_trip = _link_of(device)
        # The operations per second of a device: its own, an integrated GPU's that is known, or
        # those that are usual for this bandwidth.
        if device.fp16_tflops:
            fp16_of = device.fp16_tflops * 1e12
        elif built_in:
            fp16_of = built_in[0]
        else:
            usual = FP16_PER_BANDWIDTH.get(generation_of(device), FP16_UNKNOWN)
            fp16_of = bandwidth * (backend(device.backend).fp16_per_bandwidth or usual)
        return cls(
            aged(rates_of(device), device.engine or device.backend, build),
            bandwidth * reading,
            fp16_of * computing,
            bool((device.bandwidth or (built_in and ram)) and generation_of(device)),
            round_trip,
            network,
            streams_of(device),
            device.engine or device.backend,
        )

    def visit(self, size: float) -> float:
        """Return the seconds of a visit to its server that transfers this many bytes; 0 without a
        server."""
        return self.round_trip + size / self.network if self.network else 0.0


def _link_of(device: Device) -> tuple[float, float]:
    """Return the bytes per second and the seconds of a round trip to a device's server."""
    if device.kind != "rpc":
        return 0.0, 0.0
    round_trip = ROUND_TRIP if device.latency is None else device.latency
    return device.link or NETWORK_RATE, round_trip


@dataclass(frozen=True)
class HostFigures:
    """The rest of the machine: bytes per second, and cores."""

    ram: float
    bus: float
    cores: int
    disk: float
    known: bool  # RAM's bandwidth is not a default
    counted: bool  # the number of cores is not a default
    batch_cores: int = 0  # those of prompts (-tb); 0: the same
    flash: float = 1.0  # the share of today's rate at which the CPU computes flash attention
    arithmetic: float = 1.0  # of a core, relative to one with AVX2
    pageable: float | None = None  # over the bus from RAM that is not pinned, None: not measured

    def with_threads(
        self, n_threads: int | None, n_threads_batch: int | None = None
    ) -> HostFigures:
        """Return the figures with this many threads (-t, and -tb for prompts): one a core computes
        and reads, and more of them share the cores; below 1 and None are llama.cpp's default, a
        thread per core, and for prompts as many as for tokens. A number of cores that is not known
        is theirs."""
        few = self._cores(n_threads)
        many = self._cores(n_threads_batch)
        counted = self.counted or few > 0 or many > 0
        return replace(self, cores=few or self.cores, batch_cores=many, counted=counted)

    def _cores(self, n_threads: int | None) -> int:
        """Return the cores that this many threads use, 0 if they are not said."""
        if n_threads is None or n_threads < 1:
            return 0
        return min(n_threads, self.cores) if self.counted else n_threads

    @classmethod
    def of(cls, machine: Machine, build: int = NEWEST, least: int = 0) -> HostFigures:
        """Return the figures of a machine; `least`: of RAM that is not known, bytes."""
        unified = [device for device in machine.devices if device.kind == "igpu" or device.unified]
        # Unified memory: the processor reads what the GPU reads.
        shared = max([device.bandwidth or 0 for device in unified], default=0.0)
        gpus = [known_gpu[1] for device in unified if (known_gpu := integrated(device.description))]
        own = OF_PEAK * max(gpus, default=0.0)
        # a plan's -t, where llama.cpp's own is wrong
        cores = machine.host.threads or machine.host.cores
        # the bytes per second between RAM and the devices: as measured or given, that of memory
        # that needs no bus, that of the slowest link, or a usual one
        if machine.host.bus or bool(unified):
            bus_of = machine.host.bus or _UNIFIED_BUS
        else:
            links = [
                device.link for device in machine.devices if device.link and device.kind != "rpc"
            ]
            bus_of = min(links, default=_BUS)
        return cls(
            machine.host.bandwidth or shared or own or _usual_ram(machine, least),
            bus_of,
            cores or kind_of(machine.ram_total or least, machine.host.cores).cores,
            machine.host.disk or DISK,
            bool(machine.host.bandwidth or shared),
            machine.host.cores is not None,
            flash=OLD_FLASH if build < FLASH_BUILD else 1.0,
            arithmetic=arithmetic(machine.host.cpu),
            pageable=machine.host.bus_pageable,
        )


def _usual_ram(machine: Machine, least: int) -> float:
    """Return the bytes per second of RAM in machines of this kind."""
    if server := memory(machine.host.cpu):
        return server
    kind = kind_of(machine.ram_total or least, machine.host.cores)
    if kind is not DESKTOP:
        return kind.bandwidth
    local = [device for device in machine.devices if device.kind != "rpc"]
    sold = max([_RAM_BANDWIDTH.get(generation_of(device), 0) for device in local], default=0) * 1e9
    # Of desktops by what was sold with their GPU, otherwise by the cores.
    if sold:
        return sold
    count = machine.host.cores or DESKTOP.cores
    return next(rate for most_cores, rate in _RAM_BY_CORES if count <= most_cores)
