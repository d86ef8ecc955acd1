"""A model's layers as text: equal ones share a line."""

from __future__ import annotations

from ..units import human, in_mib
from .table import PLAIN, Style, blocks, shortened, table, warned, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..memory.layers import ModelLayers

_HEADS = ("weights", "attention", "FFN", "experts", "other")
_PARTS = (*map(str.lower, _HEADS), "cache")


def inspect_text(anatomy: ModelLayers, style: Style = PLAIN) -> str:
    """Return facts, layers and tensor types; laid out for the terminal's width."""
    lines = []
    for name, value in anatomy.facts:
        shown = str(value)
        if isinstance(value, int) and name in ("size", "parameters"):
            shown = human(value) if name == "size" else f"{value / 1e9:.2f} B"
        lines += wrap(shown, style.width, f"{name:<16} ", " " * 17)
    # A row's figures -> the layers that have them; named ones (input, output) stay alone
    alike: dict[tuple[str, ...], list[str]] = {}
    for layer in anatomy.layers:
        cells = tuple([_cell(getattr(layer, part)) for part in _PARTS])
        number = layer.name.isdigit()
        names = alike.setdefault(cells if number else (layer.name, *cells), [])
        # Numbers as 0-5, 8, 11
        first, _, last = names[-1].partition("-") if names else ("", "", "")
        if number and names and int(last or first) + 1 == int(layer.name):
            names[-1] = f"{first}-{layer.name}"
        else:
            names.append(layer.name)
    rows = [
        # Without the name, which made a named layer's key unlike all others
        [shortened(", ".join(names), style.width // 3), *cells[-len(_PARTS) :]]
        for cells, names in alike.items()
    ]
    rows.append(
        ["all", *(_cell(sum(getattr(layer, part) for layer in anatomy.layers)) for part in _PARTS)]
    )
    head = ["MiB per layer", *_HEADS, f"cache of {anatomy.n_ctx}"]
    lines += ["", *blocks(head, rows, style)]
    types = [[name, str(n), _cell(size)] for name, n, size in anatomy.types]
    lines += ["", *table(["type", "tensors", "MiB"], types, style)]
    for warning in anatomy.warnings:
        lines += warned(warning, style.width)
    return "\n".join(lines) + "\n"


def _cell(size: int) -> str:
    return in_mib(size) if size else "-"
