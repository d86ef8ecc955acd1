"""The order in which Vulkan ran a split before Rules.vulkan_hazards (ggml_vk_graph_optimize of
those builds). It knows fewer sequences, and two nodes depend on each other only if one reads the
other or both view the same tensor."""

from __future__ import annotations

from ...builds import Rules
from ...ggml.tensor import Tensor
from .reorder import AHEAD, SNAKE, TOPK_MOE, Order

_ROPE_FOLLOWERS = 10
# with the rule of the builds that know it, None: all
_SEQUENCES = (
    (TOPK_MOE[0], None),
    (TOPK_MOE[1], Rules.vulkan_fused_adds),
    (TOPK_MOE[2], Rules.vulkan_fused_sqrt),
    (TOPK_MOE[3], None),
    (TOPK_MOE[4], None),
    (SNAKE, Rules.vulkan_fused_convs),
)
_FUSED_NEXT = (
    (("RMS_NORM", "MUL"), None),
    (("MUL_MAT", "ADD"), None),
    (("MUL_MAT_ID", "ADD_ID"), None),
    (("MUL_MAT_ID", "MUL"), None),
    (("ADD", "ADD"), Rules.vulkan_fused_adds),
    (("SSM_CONV", "ADD"), Rules.vulkan_fused_convs),
    (("SSM_CONV", "UNARY"), Rules.vulkan_fused_convs),
)


def reorder_before(nodes: list[Tensor], rules: Rules) -> list[Tensor]:
    """Return the nodes of one split in their new order."""
    return _Before(nodes, rules).run()


class _Before(Order):
    fused_near = ()
    before_rows = ("ROPE",)

    def __init__(self, nodes: list[Tensor], rules: Rules) -> None:
        self.known = [ops for ops, rule in _SEQUENCES if rule is None or rules.has(rule)]
        self.fused_next = {pair for pair, rule in _FUSED_NEXT if rule is None or rules.has(rule)}
        super().__init__(nodes)

    def must_precede(self) -> list[list[int]]:
        """Return, for each node, the earlier ones within reach that it reads, or that lie in the
        same tensor."""
        where: dict[int, int] = {}
        same: dict[int, list[int]] = {}  # by id of the memory's owner
        sources = []
        for j, node in enumerate(self.nodes):
            owner = id(node.view_src or node)
            before = {where.get(id(source), -1) for source in node.src} | set(
                same.get(owner, ())[-AHEAD:]
            )
            sources.append([c for c in before if c > j - AHEAD and c >= 0])
            where[id(node)] = j
            same.setdefault(owner, []).append(j)
        return sources

    def pull_set_rows(self, start: int, taken: list[int]) -> None:
        """Pull the view of `start` and the SET_ROWS of that view, whatever else reads them."""
        view = 0
        for k in range(start + 1, min(start + _ROPE_FOLLOWERS, len(self.ops))):
            if not view and self.ops[k] == "VIEW" and self.nodes[k].src[0] is self.nodes[start]:
                view = k
            elif view and self.ops[k] == "SET_ROWS" and self.nodes[k].src[0] is self.nodes[view]:
                self.pull(taken, view)
                self.pull(taken, k)
                return
