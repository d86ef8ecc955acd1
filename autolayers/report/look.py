"""What the page, pictures and the docs share: the mark, and two colours with a meaning.

Blue is what GPUs hold, at full speed. Amber is what RAM holds, slower. Shades of them, towards what
is free, are the parts: weights, KV cache, compute, others. A terminal has the same order of shades,
without colour.
"""

from __future__ import annotations

GPU, RAM = "#2563eb", "#b45309"
INK, SOFT, PAPER = "#1b2230", "#55607a", "#ffffff"
FREE, MARGIN = "#e2e8f0", "#94a3b8"
SHADES = {"model": 1.0, "context": 0.68, "compute": 0.46, "extra": 0.3}  # of a part's own colour
# GPU, GPU and RAM, RAM: 32 x 32
MARK = (
    f'<rect x="3" y="4" width="26" height="7" rx="2" fill="{GPU}"/><rect x="3" y="13" width="26" '
    f'height="7" rx="2" fill="{GPU}"/><path d="M18 13h9a2 2 0 0 1 2 2v3a2 2 0 0 1-2 2h-9z" '
    f'fill="{RAM}"/><rect x="3" y="22" width="26" height="7" rx="2" fill="{RAM}"/>'
)


def shade(colour: str, part: str) -> str:
    """Return the colour of a part in a bar of that colour.

    >>> shade(GPU, "model"), shade(GPU, "extra")
    ('#2563eb', '#a9c0ee')
    """
    # Mixed towards the colour of free memory, so that all parts stay in one family
    share = SHADES[part]
    mixed = (
        round(share * own + (1 - share) * free)
        for own, free in zip(_rgb(colour), _rgb(FREE), strict=True)
    )
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
