"""The order in which Vulkan ran a split before Rules.vulkan_hazards (ggml_vk_graph_optimize of
those builds). It knows fewer sequences, and two nodes depend on each other only if one reads the
other or both view the same tensor."""

from __future__ import annotations

from ...builds import Rules
from ...ggml.tensor import Tensor
from .reorder import AHEAD, EMPTY, FOLLOWERS, FOLLOWS_BIAS, SNAKE, TOPK_MOE, needs_no_other

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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
    return _Order(nodes, rules).run()


class _Order:
    """Indices are those of the old order."""

    def __init__(self, nodes: list[Tensor], rules: Rules) -> None:
        self.convs = rules.vulkan_fused_convs
        self.sequences = [ops for ops, rule in _SEQUENCES if rule is None or rules.has(rule)]
        self.fused = {pair for pair, rule in _FUSED_NEXT if rule is None or rules.has(rule)}
        self.nodes = nodes
        self.ops = [node.op for node in nodes]
        self.used = bytearray(len(nodes))
        self.placed: set[int] = set()  # by id, from earlier rounds
        # Return, for each node, the earlier ones within reach that it reads, or that lie in the
        # same tensor.
        where: dict[int, int] = {}
        same: dict[int, list[int]] = {}  # by id of the memory's owner
        sources = []
        for j, node in enumerate(nodes):
            owner = id(node.view_src or node)
            before = {where.get(id(source), -1) for source in node.src} | set(
                same.get(owner, ())[-AHEAD:]
            )
            sources.append([c for c in before if c > j - AHEAD and c >= 0])
            where[id(node)] = j
            same.setdefault(owner, []).append(j)
        self.sources = sources

    def run(self) -> list[Tensor]:
        """Return the nodes in the new order."""
        order: list[Tensor] = []
        count = len(self.nodes)
        first = 0  # the oldest node that has no place yet
        while first < count:
            length = self.sequence(first)
            together = range(first, first + length) if length else self.independent(first)
            for i in together:
                self.used[i] = 1
                order.append(self.nodes[i])
                self.placed.add(id(self.nodes[i]))
            while first < count and self.used[first]:
                first += 1
        return order

    def sequence(self, start: int) -> int:
        """Return the length of the sequence that begins here, 0 without one."""
        for ops in self.sequences:
            end = start + len(ops)
            if (
                self.ops[start] == ops[0]
                and tuple(self.ops[start:end]) == ops
                and 1 not in self.used[start:end]
            ):
                return len(ops)
        return 0

    def independent(self, first: int) -> list[int]:
        """Return the node `first`, and later nodes that need not wait for any node before them."""
        ops, used, sources = self.ops, self.used, self.sources
        taken = [first]
        reach = range(first + 1, min(first + AHEAD, len(ops)))
        for j in reach:
            if used[j] or ops[j] in EMPTY or self.sequence(j):
                continue
            if all(c < first or used[c] or self.is_fused(c, j, taken[-1]) for c in sources[j]):
                taken.append(j)
                self.pull_followers(j, taken)
        if ops[taken[-1]] != "ADD":  # otherwise it is fused with what follows
            self.take_views(first, reach, taken)
        return taken

    def take_views(self, first: int, reach: range, taken: list[int]) -> None:
        """Take the views that wait for nothing but what is taken."""
        used = self.used
        for j in reach:
            if used[j] or self.ops[j] not in EMPTY:
                continue
            if all(c < first or used[c] or c in taken for c in self.sources[j]):
                taken.append(j)

    def is_fused(self, c: int, j: int, last: int) -> bool:
        """Return whether `j` reads the last node taken, the one before it, as part of one
        operation."""
        return c == last == j - 1 and (self.ops[c], self.ops[j]) in self.fused

    def pull_followers(self, j: int, taken: list[int]) -> None:
        """Put what is fused with `j` directly after it."""
        op, before = self.ops[j], self.ops[j - 1]
        rope = j
        if op == "MUL" and before == "RMS_NORM":
            rope = self.pull_follower(j, "ROPE", needs_no_other, taken) or j
        if self.ops[rope] == "ROPE":
            self.pull_set_rows(rope, taken)
        kind = FOLLOWS_BIAS.get((before, op))
        if kind:
            self.pull_follower(j, kind, lambda t: self.ready(t.src[1]), taken)
        if self.convs and op == "ADD" and before == "SSM_CONV":
            self.pull_follower(j, "UNARY", lambda t: True, taken)

    def pull_follower(
        self, j: int, op: str, fits: Callable[[Tensor], bool], taken: list[int]
    ) -> int:
        """Pull the first node within reach that reads `j` and fits; return it, 0 without one."""
        for k in self.within(j, FOLLOWERS):
            if self.ops[k] == op and self.nodes[k].src[0] is self.nodes[j] and fits(self.nodes[k]):
                self.pull(taken, k)
                return k
        return 0

    def pull_set_rows(self, rope: int, taken: list[int]) -> None:
        view = 0
        for k in self.within(rope, _ROPE_FOLLOWERS):
            if not view and self.ops[k] == "VIEW" and self.nodes[k].src[0] is self.nodes[rope]:
                view = k
            elif view and self.ops[k] == "SET_ROWS" and self.nodes[k].src[0] is self.nodes[view]:
                self.pull(taken, view)
                self.pull(taken, k)
                return

    def within(self, j: int, reach: int) -> range:
        return range(j + 1, min(j + reach, len(self.ops)))

    def pull(self, taken: list[int], k: int) -> None:
        taken.append(k)
        self.used[k] = 1

    def ready(self, t: Tensor) -> bool:
        return t.op == "NONE" or id(t) in self.placed
