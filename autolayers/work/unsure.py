"""What makes a prediction less sure than its class is: launches with few measurements, which are
far apart.

    unsure(launch)      # [Unsure("weights in RAM under Windows", 1.3, 1.3, ...)]

Each row widens the range of a plan, in squares with the class's own (work/doubts.csv), unless
launches of the class were measured on the machine.
"""

from __future__ import annotations

from math import inf

from ..backends import VULKAN
from ..flags.params import N_UBATCH
from ..records import dataclass
from .work import HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..machine import Device
    from .clock import Clock

DEEP, LONG, FAR = 4096, 8192, 1 << 16  # tokens of a sequence


@dataclass(frozen=True)
class Seen:
    """A launch: the machine's devices and their GPUs' generations by name, its class, and the
    tokens of a sequence halfway through an answer."""

    clock: Clock
    devices: Sequence[Device]
    generations: Mapping[str, str]
    placement: str
    depth: float

    @property
    def in_ram(self) -> bool:
        """Whether the CPU reads weights for a device's layers."""
        return self.placement in ("MoE in RAM", "dense partial")

    @property
    def backends(self) -> set[str]:
        """The backends of the devices that take part."""
        return {figures.backend for figures in self.clock.devices.values()}

    @property
    def fills(self) -> bool:
        """Whether a mixture's micro-batches are larger than any that its devices were measured
        with."""
        gains = [figures.streams.gain for figures in self.clock.devices.values()]
        mixture = self.clock.weights.n_expert > 0 and self.clock.n_ubatch > N_UBATCH
        return mixture and min(gains, default=inf) < inf

    def reads_quantised(self, backend: str) -> bool:
        """Return whether devices of a backend read a quantised cache."""
        names = {device.name for device in self.devices if device.backend == backend}
        caches = self.clock.tokens.caches
        return any(where in names and cache.quantised for where, _, cache in caches)

    def reads_experts(self, generation: str) -> bool:
        """Return whether GPUs of a generation read experts."""
        if generation not in self.generations.values():
            return False
        places = {row.place for row in self.clock.work.token.rows if row.experts} - {HOST}
        return any(self.generations.get(place) == generation for place in places)


@dataclass(frozen=True)
class Unsure:
    """Launches whose tokens and prompts are off by these factors more."""

    what: str
    tokens: float
    prompts: float
    applies: Callable[[Seen], bool]


# Measured of predicted rates: under Windows 1.06 and 1.06 of two machines, 0.65 of two others;
# of four owners of quantised caches on Arc and RDNA 0.5 to 1.2; of three MI25 0.3 in June and 0.6
# in July 2026 (b9700, b9812); at 128k 0.7 of one owner
UNSURE = (
    Unsure(
        "weights in RAM under Windows",
        1.3,
        1.3,
        lambda seen: seen.in_ram and any(device.wddm for device in seen.devices),
    ),
    Unsure(
        "a quantised cache under Vulkan",
        1.25,
        1.5,
        lambda seen: seen.depth >= DEEP and seen.reads_quantised(VULKAN),
    ),
    Unsure(
        "so deep a context under Vulkan",
        1.3,
        1.5,
        lambda seen: seen.depth >= LONG and seen.backends == {VULKAN},
    ),
    Unsure(
        "a micro-batch of a mixture that nobody measured there",
        1.0,
        1.35,
        lambda seen: seen.fills,
    ),
    Unsure("experts on Vega", 1.8, 1.8, lambda seen: seen.reads_experts("Vega")),
    Unsure(
        "so long a context with experts in RAM",
        1.4,
        1.2,
        lambda seen: seen.depth >= FAR and seen.placement == "MoE in RAM",
    ),
)


def unsure(seen: Seen) -> list[Unsure]:
    """Return the rows that hold for a launch."""
    return [row for row in UNSURE if row.applies(seen)]
