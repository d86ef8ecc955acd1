"""A model's layers as text: equal neighbours share a line."""

from __future__ import annotations

from ..units import human, in_mib
from .table import Style, blocks, table, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..memory.layers import ModelLayers

_PARTS = ("weights", "attention", "ffn", "experts", "other", "cache")


def inspect_text(anatomy: ModelLayers, style: Style | None = None) -> str:
    """Facts, layers and tensor types; laid out for the terminal's width."""
    style = style or Style()
    lines = []
    for name, value in anatomy.facts:
        shown = human(value) if name == "size" and isinstance(value, int) else str(value)
        lines += wrap(shown, style.width, f"{name:<16} ", " " * 17)
    rows: list[list[str]] = []
    first = ""
    for layer in anatomy.layers:
        cells = [_cell(getattr(layer, part)) for part in _PARTS]
        if rows and rows[-1][1:] == cells and layer.name.isdigit() and first.isdigit():
            rows[-1][0] = f"{first}-{layer.name}"
        else:
            first = layer.name
            rows.append([layer.name, *cells])
    rows.append(["all", *(_cell(sum(getattr(layer, part) for layer in anatomy.layers)) for part in _PARTS)])
    head = ["MiB per layer", "weights", "attention", "FFN", "experts", "other", f"cache of {anatomy.n_ctx}"]
    lines += ["", *blocks(head, rows, style)]
    types = [[name, str(n), _cell(size)] for name, n, size in anatomy.types]
    lines += ["", *table(["type", "tensors", "MiB"], types, style)]
    for warning in anatomy.warnings:
        lines += [style(line, "yellow") for line in wrap(warning, style.width, "! ", "  ")]
    return "\n".join(lines) + "\n"


def _cell(size: int) -> str:
    return in_mib(size) if size else "-"
