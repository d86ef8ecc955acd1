"""What a launch allocates, in bytes per device and in llama.cpp's three parts, at three levels of
detail:

    Static        weights, caches and what the server holds besides: cheap, no graph is built
    LowerBound    with the prompt graph, which is nearly always the largest: at least this much
    Breakdown     everything
"""

from __future__ import annotations

from ..records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..machine import Device
    from .graphs.scheduled import Steps
    from .saved import State


@dataclass(frozen=True)
class Usage:
    """Bytes on one device: weights, KV cache and recurrent state, graph buffers."""

    model: int = 0
    context: int = 0
    compute: int = 0

    @property
    def total(self) -> int:
        return self.model + self.context + self.compute


@dataclass(frozen=True)
class Extra:
    """Something held in addition to the model: mmproj, draft model, LoRA, prompt cache, output
    buffer..."""

    name: str  # "mmproj weights"
    device: str  # a device's name, or "Host"
    size: int  # bytes
    exact: bool
    upper_limit: bool = False  # grows up to this while serving (prompt cache, checkpoints)
    bounded_by: str = ""  # the field of Params that limits it, if any


CONTEXTS = ("draft context", "MTP context")  # Extra.name of a second context's caches


@dataclass(frozen=True)
class Static:
    """Weights and caches alone; every `compute` is 0. `devices` has one Usage per device in
    llama.cpp's order. Its `extras` are the server's own (memory/server.py)."""

    devices: dict[str, Usage]
    host: Usage
    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    kv_unified: bool
    flash_attn: bool  # after llama.cpp's auto decision, if known
    exact: bool
    warnings: tuple[str, ...] = ()
    host_resident: int = 0  # bytes of host weights that must be in RAM, whatever is mapped
    # who computes what; None where the graphs are not known, or no graph was built
    steps: Steps | None = None
    # llama.cpp's measuring says the same `compute` as this, of a launch
    as_measured: bool = True
    extras: tuple[Extra, ...] = ()

    @property
    def on_devices(self) -> int:
        """Bytes of all devices together."""
        return sum(usage.total for usage in self.devices.values())

    @property
    def caches(self) -> int:
        """Bytes of the KV cache and recurrent states, on devices and in RAM."""
        return self.host.context + sum(usage.context for usage in self.devices.values())

    @property
    def resident(self) -> int:
        """Bytes of system memory that are needed at once: mapped weights count with the pages that
        are read."""
        loaded = (self.host_resident or self.host.model) + self.host.context + self.host.compute
        return loaded + self.extra_by_device().get("Host", 0)

    def extra_by_device(self) -> dict[str, int]:
        """Return the bytes of the extras that exist from the start, without those that may grow to
        a limit."""
        sums: dict[str, int] = {}
        for extra in self.extras:
            # a device that is full at the start may serve for hours before such an
            # extra reaches its limit
            if not extra.upper_limit:
                sums[extra.device] = sums.get(extra.device, 0) + extra.size
        return sums

    @property
    def growing(self) -> int:
        """Bytes of system memory that may be added while it serves."""
        # e.g. --cache-ram and the checkpoints, which llama-server fills while it serves
        return sum(
            [extra.size for extra in self.extras if extra.upper_limit and extra.device == "Host"]
        )


@dataclass(frozen=True)
class LowerBound(Static):
    """Weights, caches and the prompt graph, which is all that `steps` covers."""


@dataclass(frozen=True)
class Breakdown(Static):
    """What a launch allocates."""

    # by device or "Host": bytes that a graph in use needs above `compute`
    runtime_peak: dict[str, int] | None = None
    saved: tuple[State, ...] = ()  # of a conversation: the model's, and its draft's

    @property
    def growing(self) -> int:
        """Bytes of system memory that may be added while it serves."""
        return super().growing + (self.runtime_peak or {}).get("Host", 0)


def shared(use: Static, devices: Sequence[Device]) -> int:
    """Return the bytes on devices that share the system's memory."""
    # an integrated GPU, or Apple's: its buffers are in the memory that the weights in RAM are in
    names = [device.name for device in devices if device.in_ram]
    extra = use.extra_by_device() if names else {}
    return sum(use.devices[name].total + extra.get(name, 0) for name in names)


@dataclass(frozen=True)
class GraphBuffers:
    """Graph buffers: bytes per device of the placement and, last, the host; a warning if they are
    only an upper bound."""

    sizes: tuple[int, ...]
    flash_attn: bool
    warning: str = ""
    stopped: bool = False  # the prompt graph alone: a lower bound
    # what they may grow to in use, if requested and if larger
    runtime: tuple[int, ...] | None = None
    steps: Steps | None = None
    as_measured: bool = True  # llama.cpp's measuring says the same


def larger(one: Breakdown, other: Breakdown) -> Breakdown:
    """Return the same launch, with the larger of both in each part."""
    devices = {name: _larger(use, other.devices[name]) for name, use in one.devices.items()}
    host = _larger(one.host, other.host)
    # a peak counts from its own `compute`: add both, and take off the larger one again
    peak = None
    if one.runtime_peak is not None or other.runtime_peak is not None:
        peak = {
            name: max(_in_use(one, name), _in_use(other, name)) - use.compute
            for name, use in (*devices.items(), ("Host", host))
        }
    return replace(
        one,
        devices=devices,
        host=host,
        runtime_peak=peak,
        host_resident=max(one.host_resident, other.host_resident),
    )


def _larger(one: Usage, other: Usage) -> Usage:
    return Usage(
        max(one.model, other.model),
        max(one.context, other.context),
        max(one.compute, other.compute),
    )


def _in_use(use: Breakdown, name: str) -> int:
    return use.devices.get(name, use.host).compute + (use.runtime_peak or {}).get(name, 0)
