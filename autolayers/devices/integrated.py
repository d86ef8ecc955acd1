"""Integrated GPUs, whose memory is RAM: what of their speed is known by the description that drivers give."""

from __future__ import annotations

# A description, 10**12 fp16 operations per second (of matrix units where it has them, else twice fp32), and the peak of
# the RAM beside it, 10**9 bytes per second: AMD's and Intel's newest as they are mostly sold, Intel's older ones as
# machines that were measured had it (often one module)
_INTEGRATED: tuple[tuple[str, float, int], ...] = (
    (r"8[89]0M|RADV STRIX1|gfx1150", 23.8, 90), (r"860M|RADV KRACKAN|gfx1152", 12.3, 90), (r"840M", 5.9, 90),
    (r"780M|RADV PHOENIX|gfx1103", 16.6, 90), (r"760M", 10.6, 90), (r"740M", 5.1, 90),
    (r"680M|RADV REMBRANDT|gfx1035", 6.8, 77), (r"660M", 2.9, 77), (r"RADV VANGOGH", 3.3, 88),
    (r"610M|RADV RAPHAEL|gfx103[67]", 1.1, 83),
    (r"RADV RENOIR|gfx90c", 4.1, 51), (r"Vega \d+ Graphics|RADV RAVEN", 3.5, 38),
    (r"UHD Graphics 6\d\d|HD Graphics [56]\d\d|\((KBL|CFL|CML)\b", 0.9, 26), (r"UHD Graphics 7[35]0", 1.1, 40),
    (r"UHD Graphics 770", 1.6, 60), (r"Iris", 4.1, 40), (r"UHD Graphics", 2.0, 40), (r"\((TGL|ADL|RPL)\b", 4.1, 40),
    (r"B3[79]0|\(PTL\)", 61.0, 136), (r"1[34]0V|\(LNL\)", 33.0, 136), (r"1[34]0T|\(ARL\)", 38.0, 90),
    (r"Arc\(TM\) Graphics$|\(MTL\)", 9.4, 60),
)


def integrated(description: str) -> tuple[float, float] | None:
    """Operations per second (fp16) of an integrated GPU that a driver describes so, and the peak of the RAM that is
    mostly beside it in bytes per second; None where it is not known."""
    import re  # of few devices

    found = next((row for row in _INTEGRATED if re.search(row[0], description)), None)
    return None if found is None else (found[1] * 1e12, found[2] * 1e9)
