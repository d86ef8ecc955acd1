"""Kernels of a generation graph: what a token costs in launches, however small the tensors are.

One kernel a node that computes anything. Backends run a norm and its weight, and a chain of sums, as one
(ggml_cuda_can_fuse, ggml_vk_can_fuse).
"""

from __future__ import annotations

from ..ggml.tensor import VIEW_OPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ggml.tensor import Tensor

_FUSED = {"MUL": ("RMS_NORM", "NORM"), "ADD": ("ADD",)}


def kernels_of(nodes: Sequence[Tensor]) -> dict[str, tuple[int, int]]:
    """By weight, in the graph's order: kernels that read it, and kernels without a weight since the one before."""
    found: dict[str, tuple[int, int]] = {}
    before, last = 0, ""
    for node in nodes:
        op = node.op
        if op in VIEW_OPS or not node.ne[1]:
            continue
        name = ""
        for source in node.src:
            if source.weight and source.name.endswith((".weight", "_exps", "_a")):
                name = source.name
                break
        one = last not in _FUSED.get(op, ())
        last = op
        if not name or name.startswith("rope_f"):
            before += one
        elif name in found:
            own, gap = found[name]
            found[name] = own + one, gap + before
            before = 0
        else:
            found[name] = int(one), before
            before = 0
    return found
