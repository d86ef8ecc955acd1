"""The order in which Metal runs a split: ggml_graph_optimize of ggml/src/ggml-metal/ggml-metal-common.cpp, as modelled.

Nodes that touch other memory than those before them are moved forward, so that they can run at the same time; what is
fused stays together. The allocator sees the new order.
"""

from __future__ import annotations

from ...builds import NEWEST_RULES
from ...ggml.tensor import Tensor
from .fusion import EMPTY, MOST, known, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds import Rules

_FORWARD, _NEAR = 64, 8          # how far nodes are looked for; before Rules.metal_reorders_far
_SAFE = EMPTY | {
    "MUL_MAT", "MUL_MAT_ID", "ROPE", "NORM", "RMS_NORM", "GROUP_NORM", "L2_NORM", "SUM_ROWS", "SSM_CONV", "SSM_SCAN",
    "CLAMP", "TRI", "DIAG", "MUL", "ADD", "SUB", "DIV", "GLU", "SCALE", "UNARY", "GET_ROWS", "SET_ROWS", "SET", "CPY",
    "CONT", "REPEAT"}
_FAR_ONLY = frozenset((
    "L2_NORM", "SSM_CONV", "SSM_SCAN", "CLAMP", "TRI", "DIAG", "SUB", "UNARY", "SET", "CONT", "REPEAT"))
_PACKED = frozenset(("ADD", "MUL", "NORM", "RMS_NORM"))      # before Rules.metal_fusions


class Pack:
    """Nodes of one kernel, and by id the owners of the memory that it reads and writes."""

    __slots__ = ("empty", "nodes", "read", "safe", "touched", "written")

    def __init__(self, nodes: list[Tensor], rules: Rules) -> None:
        self.nodes = nodes
        op = nodes[0].op
        self.empty = op in EMPTY
        self.safe = op in _SAFE and (rules.metal_reorders_far or op not in _FAR_ONLY)
        inside = {id(node) for node in nodes} if rules.metal_fusions else set()
        self.read = {id(s.view_src or s) for node in nodes for s in node.src if id(s) not in inside}
        self.written = {id(node.view_src or node) for node in (nodes if rules.metal_fusions else nodes[-1:])}
        self.touched = self.read | self.written


class Ranges:
    """ggml_mem_ranges: memory of a set of kernels that run at the same time."""

    __slots__ = ("read", "written")

    def __init__(self) -> None:
        self.read: set[int] = set()
        self.written: set[int] = set()

    def add(self, pack: Pack) -> None:
        self.read |= pack.read
        self.written |= pack.written

    def free_for(self, pack: Pack) -> bool:
        """Whether it writes nothing that they touch and touches nothing that they write."""
        return self.written.isdisjoint(pack.touched) and self.read.isdisjoint(pack.written)


def packs(nodes: list[Tensor], rules: Rules) -> list[Pack]:
    """The nodes, those that are fused together."""
    real = [i for i, node in enumerate(nodes) if node.op not in EMPTY]
    at = {i: n for n, i in enumerate(real)}
    found, by_first = [], known(rules)
    i = 0
    while i < len(nodes):
        if not rules.metal_fusions:
            length = _run(nodes, i)
        else:
            length = span(nodes, real, at[i], by_first) if i in at else 1
        found.append(Pack(nodes[i:i + length], rules))
        i += length
    return found


def _run(nodes: list[Tensor], start: int) -> int:
    """Nodes from `start` on that ggml_can_fuse takes as one: norms, products and sums that only the next one reads."""
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


def reorder(nodes: list[Tensor], rules: Rules = NEWEST_RULES) -> list[Tensor]:
    """The nodes of one split in their new order (ggml_metal_graph_optimize_reorder)."""
    if not rules.metal_reorders:
        return nodes
    todo = packs(nodes, rules)
    forward = _FORWARD if rules.metal_reorders_far else _NEAR
    used = bytearray(len(todo))
    order: list[Tensor] = []
    running = Ranges()
    for i, pack in enumerate(todo):
        if used[i]:
            continue
        if not pack.empty and not running.free_for(pack):
            waiting = Ranges()                   # what has been skipped
            waiting.add(pack)
            for j in range(i + 1, min(i + forward, len(todo))):
                if used[j]:
                    continue
                other = todo[j]
                if not other.safe:
                    break
                if (other.empty or running.free_for(other)) and waiting.free_for(other):
                    running.add(other)
                    order += other.nodes
                    used[j] = 1
                else:
                    waiting.add(other)
            running = Ranges()
        running.add(pack)
        order += pack.nodes
    return order
