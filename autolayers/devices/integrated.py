"""Integrated GPUs, whose memory is RAM: facts by the drivers' descriptions."""

from __future__ import annotations

from ..tables import rows

_KNOWN = rows("devices/integrated.tsv")
# drivers' names of others; discrete GPUs have a model number
_OTHERS = (
    r"(?i)Intel.*\b(U?HD|Iris)\b|Intel.*\bArc\S* Graphics|Radeon.*\bGraphics|Radeon\S* "
    r"\d{3,4}[MS]\b"
    r"|\b(GB10|N1X|Thor|Orin|Xavier|nvgpu)\b"
)


def is_integrated(description: str) -> bool:
    """Return whether a driver's description is that of an integrated GPU, which shares the system's
    RAM."""
    import re  # few calls

    return integrated(description) is not None or re.search(_OTHERS, description) is not None


def has_no_memory(description: str) -> bool:
    """Return whether an integrated GPU's memory is entirely system RAM: Intel's. For AMD's the
    firmware may reserve some RAM, which the system does not count."""
    return "Intel" in description


def integrated(description: str) -> tuple[float, float] | None:
    """Return the fp16 operations per second of an integrated GPU, by its description, and the peak
    bytes per second of the RAM that it usually comes with; None if unknown."""
    import re  # few calls

    known_row = next((row for row in _KNOWN if re.search(row["pattern"], description)), None)
    if known_row is None:
        return None
    return float(known_row["fp16_tflops"]) * 1e12, int(known_row["ram"]) * 1e9
