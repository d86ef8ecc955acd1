"""Integrated GPUs, whose memory is RAM: facts by the drivers' descriptions."""

from __future__ import annotations

# A description, 10**12 fp16 operations per second (of matrix units where it has them, otherwise
# twice fp32), and the peak of the system's RAM, 10**9 bytes per second: AMD's and Intel's newest as
# they are mostly sold, Intel's older ones as machines that were measured had it (often one module)
_KNOWN: tuple[tuple[str, float, int], ...] = (
    (r"Radeon.* 8[89]0M|RADV STRIX1|(?i:gfx1150)", 23.8, 90),
    (r"Radeon.* 860M|RADV KRACKAN|(?i:gfx1152)", 12.3, 90),
    (r"Radeon.* 840M", 5.9, 90),
    (r"Radeon.* 780M|RADV PHOENIX|(?i:gfx1103)", 16.6, 90),
    (r"Radeon.* 760M", 10.6, 90),
    (r"Radeon.* 740M", 5.1, 90),
    (r"Radeon.* 680M|RADV REMBRANDT|(?i:gfx1035)", 6.8, 77),
    (r"Radeon.* 660M", 2.9, 77),
    (r"RADV VANGOGH|AMD Custom GPU 0(405|932)", 3.3, 88),
    (r"Radeon.* 610M|RADV RAPHAEL|(?i:gfx103[67])", 1.1, 83),
    (r"RADV RENOIR|(?i:gfx90c)", 4.1, 51),
    (r"Vega \d+ Graphics|RADV RAVEN", 3.5, 38),
    (r"UHD Graphics 6\d\d|HD Graphics [56]\d\d|\((KBL|CFL|CML)\b", 0.9, 26),
    (r"UHD Graphics 7[35]0", 1.1, 40),
    (r"UHD Graphics 770", 1.6, 60),
    (r"Intel.*Iris", 4.1, 40),
    (r"UHD Graphics", 2.0, 40),
    (r"\((TGL|ADL|RPL)\b", 4.1, 40),
    (r"Arc.* B3[79]0|\(PTL\b", 61.0, 136),
    (r"Arc.* 1[34]0V|\(LNL\b", 33.0, 136),
    (r"Arc.* 1[34]0T|\(ARL\b", 38.0, 90),
    (r"Arc\(TM\) Graphics$|\(MTL\b", 9.4, 60),
)
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

    known_row = next((row for row in _KNOWN if re.search(row[0], description)), None)
    return None if known_row is None else (known_row[1] * 1e12, known_row[2] * 1e9)
