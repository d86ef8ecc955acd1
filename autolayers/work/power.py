"""What a power limit leaves of a card's rates.

    # of its bandwidth and of its arithmetic; 1.0 without a limit
    reading, computing = shares(device)

Rates stay as they are down to a share of the watts as sold, and fall below it: measured on an RTX
PRO 6000 (600 W) at 500 to 200 W, an RTX 3090 at 250 and 200 of 350 W and an RTX 4090 at 275 of
450 W (tests/work/test_power.py).
"""

from __future__ import annotations

from .rates import by_generation, generation_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device

# Shares of the watts as sold from which on a limit is not felt, of reading, by generation
READING = by_generation("reading")
_READING_UNKNOWN = 0.74
_COMPUTING = 0.72
_FALLS = 0.8  # a rate falls as this power of the watts
STEEP = by_generation("steep")  # the shares below which reading falls faster


def shares(device: Device) -> tuple[float, float]:
    """Return the shares of the bandwidth and of the arithmetic that a device's power limit
    leaves."""
    if not device.power_limit or not device.power_default:
        return 1.0, 1.0
    watts = device.power_limit / device.power_default
    generation = generation_of(device)
    reading = _left(watts, READING.get(generation, _READING_UNKNOWN))
    steep = min(1.0, watts / STEEP.get(generation, watts))
    return reading * float(steep ** (2 - _FALLS)), _left(watts, _COMPUTING)


def _left(watts: float, enough: float) -> float:
    return float(min(1.0, (watts / enough) ** _FALLS))
