"""What each GPU keeps in its cache where layers are cut, and how cut tensors are filled up."""

from __future__ import annotations

from ....gguf import row_size
from ....records import dataclass

_PADDED = 512  # MATRIX_ROW_PADDING: a cut row is filled up to it, whatever its type


@dataclass(frozen=True)
class Heads:
    """What each device keeps of a layer: rows of K and of V, or the whole latent cache. By
    layer."""

    rows: tuple[tuple[tuple[int, int], ...] | None, ...]
    # (tensor, dimension or -1: all of it, rows of each)
    parts: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
    whole: bool = True  # no tensor of a layer that is cut is elsewhere


def row_padding(type_: str, ne0: int) -> int:
    if ne0 % _PADDED == 0:
        return 0
    return row_size(type_, -(-ne0 // _PADDED) * _PADDED) - row_size(type_, ne0)
