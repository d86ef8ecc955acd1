"""How Metal in older builds fuses and moves nodes (reorder.py)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from .fusion import MOST

# before Rules.metal_reorders_far: how far ahead to look, and which ops are not moved
NEAR = 8
FAR_ONLY = frozenset(
    (
        "L2_NORM",
        "SSM_CONV",
        "SSM_SCAN",
        "CLAMP",
        "TRI",
        "DIAG",
        "SUB",
        "UNARY",
        "SET",
        "CONT",
        "REPEAT",
    )
)
_PACKED = frozenset(("ADD", "MUL", "NORM", "RMS_NORM"))


def run(nodes: list[Tensor], start: int) -> int:
    """Return the number of nodes from `start` on that ggml_can_fuse joins, before
    Rules.metal_fusions: norms, products and sums that only the next one reads."""
    # a product is only ever fused as a norm's weight
    if nodes[start].op not in _PACKED or nodes[start].op == "MUL":
        return 1
    i = start
    while i + 1 < len(nodes) and i + 1 < start + MOST:
        # whether `after`, a norm, product or sum of the same shape, is all that reads `node`
        node = nodes[i]
        after = nodes[i + 1]
        if (
            node.uses != 1
            or node.is_output
            or node.view_src is not None
            or after.op not in _PACKED
            or node.ne != after.ne
        ):
            joins = False
        else:
            joins = any(source is node for source in after.src[:2])
        if not joins:
            break
        i += 1
    return i + 1 - start
