"""The order in which Metal runs a split: ggml_graph_optimize of
ggml/src/ggml-metal/ggml-metal-common.cpp, as modelled. Nodes that touch different memory than the
nodes before them are moved forward, so that they can run at the same time; fused nodes stay
together. The allocator sees the new order."""

from __future__ import annotations

from ...builds import NEWEST_RULES, Rules
from ...ggml.tensor import Tensor
from .fusion import EMPTY, known, span
from .reorder_before import FAR_ONLY, NEAR, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_FORWARD = 64  # how far ahead to look for nodes
_SAFE = EMPTY | {
    "MUL_MAT",
    "MUL_MAT_ID",
    "ROPE",
    "NORM",
    "RMS_NORM",
    "GROUP_NORM",
    "L2_NORM",
    "SUM_ROWS",
    "SSM_CONV",
    "SSM_SCAN",
    "CLAMP",
    "TRI",
    "DIAG",
    "MUL",
    "ADD",
    "SUB",
    "DIV",
    "GLU",
    "SCALE",
    "UNARY",
    "GET_ROWS",
    "SET_ROWS",
    "SET",
    "CPY",
    "CONT",
    "REPEAT",
}


class _Pack:
    """Nodes of one kernel, and by id the owners of the memory that it reads and writes."""

    __slots__ = ("empty", "nodes", "read", "safe", "touched", "written")

    def __init__(self, nodes: list[Tensor], rules: Rules) -> None:
        self.nodes = nodes
        op = nodes[0].op
        self.empty = op in EMPTY
        self.safe = op in _SAFE and (rules.metal_reorders_far or op not in FAR_ONLY)
        inside = {id(node) for node in nodes} if rules.metal_fusions else set()
        self.read = _owners([s for node in nodes for s in node.src if id(s) not in inside])
        self.written = _owners(nodes if rules.metal_fusions else nodes[-1:])
        self.touched = self.read | self.written


def _owners(tensors: list[Tensor]) -> set[int]:
    """Return by id the tensors that own these ones' memory."""
    return {id(t.view_src or t) for t in tensors}


class _Ranges:
    """ggml_mem_ranges: memory of a set of kernels that run at the same time."""

    __slots__ = ("read", "written")

    def __init__(self) -> None:
        self.read: set[int] = set()
        self.written: set[int] = set()

    def add(self, pack: _Pack) -> None:
        self.read |= pack.read
        self.written |= pack.written

    def free_for(self, pack: _Pack) -> bool:
        """Return whether it neither writes what they touch nor touches what they write."""
        return self.written.isdisjoint(pack.touched) and self.read.isdisjoint(pack.written)


def packs(nodes: list[Tensor], rules: Rules) -> list[_Pack]:
    """Return the nodes, grouped by fusion."""
    real = [i for i, node in enumerate(nodes) if node.op not in EMPTY]
    at = {i: n for n, i in enumerate(real)}
    packed, by_first = [], known(rules)
    i = 0
    while i < len(nodes):
        if not rules.metal_fusions:
            length = run(nodes, i)
        else:
            length = span(nodes, real, at[i], by_first) if i in at else 1
        packed.append(_Pack(nodes[i : i + length], rules))
        i += length
    return packed


def reorder(nodes: list[Tensor], rules: Rules = NEWEST_RULES) -> list[Tensor]:
    """Return the nodes of one split in their new order (ggml_metal_graph_optimize_reorder)."""
    if not rules.metal_reorders:
        return nodes
    todo = packs(nodes, rules)
    forward = _FORWARD if rules.metal_reorders_far else NEAR
    used = bytearray(len(todo))
    order: list[Tensor] = []
    running = _Ranges()
    for i, pack in enumerate(todo):
        if used[i]:
            continue
        # a barrier would come here: first take later nodes that can run before it
        if not pack.empty and not running.free_for(pack):
            waiting = _Ranges()  # the skipped nodes
            waiting.add(pack)
            reach = range(i + 1, min(i + forward, len(todo)))
            for j in _moved(todo, reach, used, running, waiting):
                order += todo[j].nodes
                used[j] = 1
            running = _Ranges()
        running.add(pack)
        order += pack.nodes
    return order


def _moved(
    todo: list[_Pack], reach: range, used: bytearray, running: _Ranges, waiting: _Ranges
) -> Iterator[int]:
    """Yield the indices of packs within reach that can run together with `running`, and ahead of
    those that wait."""
    for j in reach:
        if used[j]:
            continue
        other = todo[j]
        if not other.safe:
            return
        if (other.empty or running.free_for(other)) and waiting.free_for(other):
            running.add(other)
            yield j
        else:
            waiting.add(other)
