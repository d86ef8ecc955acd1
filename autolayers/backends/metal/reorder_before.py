"""How Metal in older builds fuses and moves nodes (reorder.py)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from .fusion import MOST

# before Rules.metal_reorders_far: how far ahead to look, and which ops are not moved
NEAR = 8
FAR_ONLY = frozenset((
    "L2_NORM", "SSM_CONV", "SSM_SCAN", "CLAMP", "TRI", "DIAG", "SUB", "UNARY", "SET", "CONT", "REPEAT"))
_PACKED = frozenset(("ADD", "MUL", "NORM", "RMS_NORM"))


def run(nodes: list[Tensor], start: int) -> int:
    """Before Rules.metal_fusions: nodes from `start` on that ggml_can_fuse joins: norms, products and sums
    that only the next one reads."""
    if nodes[start].op not in _PACKED or nodes[start].op == "MUL":
        return 1
    i = start
    while i + 1 < len(nodes) and i + 1 < start + MOST:
        node, after = nodes[i], nodes[i + 1]
        if after.op not in _PACKED or node.uses != 1 or node.is_output or node.view_src is not None \
                or not any(source is node for source in after.src[:2]) or node.ne != after.ne:
            break
        i += 1
    return i + 1 - start
