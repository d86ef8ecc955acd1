"""--moe-cache-mib: how often a chosen expert is in the cache, and what one costs that is not.

    hit    =  1 - exp(-4.7 share ** 0.775)      share: slots / experts of the layers that share them
    token  =  resident experts' seconds  +  (1 - hit) x bytes of a token's experts / upload rate

The law's constants are fitted to 20 public rows of six engines (128 to 512 experts, 2 to 10 used).
The upload rate is the machine's own: 5.8 to 26 GB/s on links of 25 to 60, so without a measured one
the prediction is good to a factor of DOUBT_UNKNOWN.
"""

from __future__ import annotations

from math import exp

from ..backends import backend
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Machine
    from ..memory.moe_cache import Banks

UPLOAD = "expert upload"
RATE, POWER = 4.7, 0.775
OFF = 0.08  # of a hit rate: 15 of 18 rows of sources left out are within it
OF_LINK = 0.4  # upload rate where it is not measured, of the link's: 0.14 to 1 were
DOUBT, DOUBT_UNKNOWN = 1.1, 2.0
PROMPT = 1.2  # of a prompt's seconds: 13, 14, 21 and 65 % slower with the cache
MOST_TOKENS = 32  # of a graph that reads the cache (llama_moe_cache::impl::max_batch)
LEAST = 0.95  # of one token's experts: 0.83 had no hit, 0.98 had some


@dataclass(frozen=True)
class ExpertCache:
    """The cached layers of a launch: `size` bytes of all their experts, the share `missed` of a
    token's that are not there, `upload` bytes per second, and the number of `layers`."""

    size: int
    missed: float
    upload: float
    layers: int
    measured: bool = False

    @classmethod
    def of(cls, banks: Banks, n_used: int, machine: Machine, bus: float) -> ExpertCache | None:
        """Return the cache of a launch, None if nothing is cached; `n_used`: experts of a token in
        a layer."""
        size = sum(group.size for group in banks.groups)
        if not size:
            return None
        missed = (
            sum(
                group.size
                * (1 - hit_rate(group.slots, group.layers * group.n_expert, group.layers * n_used))
                for group in banks.groups
            )
            / size
        )
        upload = machine.host.expert_upload or bus * OF_LINK
        return cls(size, missed, upload, len(banks.slots), machine.host.expert_upload is not None)

    @property
    def hits(self) -> tuple[float, float, float]:
        """The share of a token's experts that are there, and the least and the most likely."""
        hit = 1 - self.missed
        return hit, max(0.0, hit - OFF), min(1.0, hit + OFF)


def hit_rate(slots: float, experts: float, of_a_token: float) -> float:
    """Return the share of a token's experts that `slots` of this many `experts` have: none if they
    hold fewer than one token's, since those of the next layers push them out."""
    return 0.0 if slots < LEAST * of_a_token else 1 - exp(-RATE * (slots / experts) ** POWER)


def loses(machine: Machine) -> str:
    """Return why no cache of experts is proposed on this machine; "" if one may pay."""
    if any(device.in_ram or device.kind == "igpu" for device in machine.devices):
        return (
            "the GPU's memory is the RAM that the experts are in: 0.78 to 0.92 times the speed was "
            "measured"
        )
    if any(not backend(device.engine or device.backend).nvidia for device in machine.devices):
        return (
            "0.33 to 0.60 times the speed was measured on AMD GPUs, and no gain on any but NVIDIA's"
        )
    return ""
