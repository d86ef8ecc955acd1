"""The bandwidth and compute rates of devices and the rest of a machine, with defaults for unknown figures."""

from __future__ import annotations

from ..backends import backend
from ..devices.assumed import kind_of
from ..devices.integrated import integrated
from ..devices.smbios import OF_PEAK
from ..records import dataclass
from .rates import FP16_PER_BANDWIDTH, FP16_UNKNOWN, generation_of, rates_of
from .streams import STREAMS, Streams, streams_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device, Machine
    from .rates import Rates

_IGPU_BANDWIDTH = 51e9         # bytes per second of an unknown integrated GPU: two channels of DDR4-3200
_RAM_BANDWIDTH_NEW = 55e9      # of desktops with a 2025 or newer GPU: mostly dual-channel DDR5
_BUS = 12e9
_UNIFIED_BUS = 100e9
_DISK = 2.5e9
NETWORK, NETWORK_RATE, ROUND_TRIP = "network", 1.25e8, 3e-4     # the link to a server of unknown rates


@dataclass(frozen=True)
class Figures:
    """A device's bytes and operations per second. `known`: neither is a default."""

    rates: Rates
    bandwidth: float
    fp16: float
    known: bool
    round_trip: float = 0.0      # seconds, to the server that has it
    network: float = 0.0         # bytes per second; 0: no server
    streams: Streams = STREAMS["", ""]

    @classmethod
    def of(cls, device: Device, ram: float | None = None) -> Figures:
        """`ram`: bytes per second at which the machine's RAM, an integrated GPU's memory, is read."""
        generation, kind = generation_of(device), backend(device.backend)
        built_in = integrated(device.description) if device.kind == "igpu" else None
        bandwidth = device.bandwidth or kind.bandwidth
        if device.kind == "igpu" and not device.bandwidth:
            bandwidth = ram / OF_PEAK if ram else built_in[1] if built_in else _IGPU_BANDWIDTH
        per_byte = kind.fp16_per_bandwidth or FP16_PER_BANDWIDTH.get(generation, FP16_UNKNOWN)
        fp16 = device.fp16_tflops * 1e12 if device.fp16_tflops else built_in[0] if built_in else bandwidth * per_byte
        network, round_trip = (0.0, 0.0) if device.kind != "rpc" else (
            device.link or NETWORK_RATE, ROUND_TRIP if device.latency is None else device.latency)
        return cls(rates_of(device), bandwidth, fp16,
                   bool((device.bandwidth or (built_in and ram)) and generation), round_trip, network,
                   streams_of(device))

    def visit(self, size: float) -> float:
        """Seconds of a visit to its server that transfers this many bytes; 0 without a server."""
        return self.round_trip + size / self.network if self.network else 0.0


@dataclass(frozen=True)
class HostFigures:
    """The rest of the machine: bytes per second, and cores."""

    ram: float
    bus: float
    cores: int
    disk: float
    known: bool          # RAM's bandwidth is not a default
    counted: bool        # the number of cores is not a default

    @classmethod
    def of(cls, machine: Machine) -> HostFigures:
        unified = [device for device in machine.devices if device.kind == "igpu" or device.unified]
        shared = max([device.bandwidth or 0 for device in unified], default=0.0)
        beside = [found[1] for device in unified if (found := integrated(device.description))]
        new = any(generation_of(device) == "Blackwell" for device in machine.devices if device.kind != "rpc")
        kind = kind_of(machine.ram_total)
        ram = machine.ram_bandwidth or shared or OF_PEAK * max(beside, default=0.0) \
            or max(kind.bandwidth, _RAM_BANDWIDTH_NEW if new else 0)
        bus = machine.bus_bandwidth or (_UNIFIED_BUS if unified else 0) \
            or min([device.link for device in machine.devices if device.link and device.kind != "rpc"],
                   default=0.0) \
            or _BUS
        return cls(ram, bus, machine.cores or kind.cores, machine.disk_bandwidth or _DISK,
                   bool(machine.ram_bandwidth or shared), machine.cores is not None)
