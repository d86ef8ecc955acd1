"""The order in which Vulkan runs a split: ggml_vk_graph_optimize of
ggml/src/ggml-vulkan/ggml-vulkan.cpp, as modelled. Independent nodes are moved together, so that the
GPU need not wait between them; sequences that it fuses stay together. The allocator sees the new
order, which changes what is live at the same time."""

from __future__ import annotations

from ...ggml.tensor import VIEW_OPS, Tensor
from ..fusing import keep_sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ...ggml.scheduler import AddAllocDep

AHEAD, _FOLLOWERS = 20, 15  # how far ahead to look for nodes

_EMPTY = VIEW_OPS | {"NONE"}


def _ops(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Sequences that stay together, in the order in which they are tried. Only the kinds of the
# operations are compared.
TOPK_MOE = tuple(
    map(
        _ops,
        (
            "SOFT_MAX RESHAPE ARGSORT VIEW GET_ROWS RESHAPE SUM_ROWS CLAMP DIV RESHAPE",
            "UNARY RESHAPE ADD ARGSORT VIEW GET_ROWS RESHAPE SUM_ROWS CLAMP DIV RESHAPE",
            "UNARY SQRT RESHAPE ADD ARGSORT VIEW GET_ROWS RESHAPE SUM_ROWS CLAMP DIV RESHAPE",
            "SOFT_MAX RESHAPE ARGSORT VIEW GET_ROWS",
            "ARGSORT VIEW GET_ROWS RESHAPE SOFT_MAX RESHAPE",
        ),
    )
)
SNAKE = _ops("MUL SIN SQR MUL ADD")
_TOPK_QSA = _ops("GET_ROWS PERMUTE CONT CPY RESHAPE ADD TOP_K")
_HC_POST = _ops("SCALE UNARY SCALE DSV4_HC_POST")
_SEQUENCES = (
    *TOPK_MOE,
    SNAKE,
    _TOPK_QSA,
    *map(
        _ops,
        (
            "RMS_NORM MUL ADD MUL",
            "RMS_NORM MUL ADD",
            "RMS_NORM MUL ROPE VIEW SET_ROWS",
            "RMS_NORM VIEW SET_ROWS",
            "ROPE VIEW SET_ROWS",
        ),
    ),
    _HC_POST,
)
_KEEPING = frozenset((*TOPK_MOE, _HC_POST))  # these keep what they read until they are done

# A node may run directly after the one it reads if both are fused: adjacent, or separated only by
# views and by nodes that already ran.
_FUSED_NEXT = frozenset(
    (
        ("MUL_MAT", "ADD"),
        ("MUL_MAT_ID", "ADD_ID"),
        ("MUL_MAT_ID", "MUL"),
        ("ADD", "ADD"),
        ("SSM_CONV", "ADD"),
        ("SSM_CONV", "UNARY"),
    )
)
_FUSED_NEAR = frozenset((("RMS_NORM", "MUL"), ("UNARY", "MUL")))
# what follows a matrix and its bias in one kernel
_FOLLOWS_BIAS = {("MUL_MAT_ID", "ADD_ID"): "MUL", ("MUL_MAT", "ADD"): "ADD"}
_UNARY_MUL = frozenset(("GELU", "SIGMOID", "SILU", "SOFTPLUS"))


def reorder(nodes: list[Tensor], add_alloc_dep: AddAllocDep) -> list[Tensor]:
    """Return the nodes of one split in their new order."""
    return Order(nodes, add_alloc_dep).run()


class Order:
    """Indices are those of the old order."""

    # what is known to be fused: reorder_before.py has a build's own
    known: Sequence[tuple[str, ...]] = _SEQUENCES
    fused_next: Collection[tuple[str, str]] = _FUSED_NEXT
    fused_near: Collection[tuple[str, str]] = _FUSED_NEAR
    before_rows: Collection[str] = ("ROPE", "RMS_NORM")  # with a view and SET_ROWS

    def __init__(self, nodes: list[Tensor], add_alloc_dep: AddAllocDep | None = None) -> None:
        """`add_alloc_dep` None: nothing is kept longer than it is read."""
        self.nodes = nodes
        self.add_alloc_dep = add_alloc_dep
        self.ops = [node.op for node in nodes]
        self.used = bytearray(len(nodes))  # already placed, or pulled forward
        self.placed: set[int] = set()  # by id, from earlier rounds
        self.sources = self.must_precede()
        self.sequences: dict[int, list[tuple[str, ...]]] = {}  # by their first node
        self.within_qsa: dict[int, int] = {}  # where the sequence around a node begins
        beginning: dict[str, list[tuple[str, ...]]] = {}
        for sequence in self.known:
            beginning.setdefault(sequence[0], []).append(sequence)
        for i, op in enumerate(self.ops):
            patterns = [s for s in beginning.get(op, ()) if tuple(self.ops[i : i + len(s)]) == s]
            if patterns:
                self.sequences[i] = patterns
                if _TOPK_QSA in patterns:
                    self.within_qsa.update(dict.fromkeys(range(i, i + len(_TOPK_QSA)), i))

    def run(self) -> list[Tensor]:
        nodes, used = self.nodes, self.used
        order: list[Tensor] = []
        count = len(nodes)
        first = 0
        while first < count:
            taken: list[int] | range | None = (
                self.sequence(first) if first in self.sequences else None
            )
            if taken is None:
                taken = self.independent(first)
            for i in taken:
                used[i] = 1
                order.append(nodes[i])
                self.placed.add(id(nodes[i]))
            while first < count and used[first]:
                first += 1
        return order

    def whole(self, start: int, length: int) -> bool:
        return 1 not in self.used[start : start + length]

    def sequence(self, first: int) -> range | None:
        """Return the sequence that begins here, and what it keeps alive."""
        for ops in self.sequences[first]:
            end = first + len(ops)
            if not self.whole(first, len(ops)):
                continue
            if self.add_alloc_dep and ops in _KEEPING:
                last = end - 1
                if ops is not _HC_POST and end < len(self.nodes) and self.ops[end] == "SCALE":
                    last = end  # some are fused with it too
                keep_sources(self.nodes[first:end], self.nodes[last], self.add_alloc_dep)
            return range(first, end)
        return None

    def independent(self, first: int) -> list[int]:
        """Return the node `first`, and later nodes that need not wait for any node before them."""
        ops, used, sources = self.ops, self.used, self.sources
        taken = [first]
        end = min(first + AHEAD, len(ops))
        views = []
        for j in range(first + 1, end):
            if used[j]:
                continue
            op = ops[j]
            if op in _EMPTY:
                views.append(j)
                continue
            for c in sources[j]:
                if c >= first and not used[c] and not self.fused(c, j, taken[-1]):
                    break
            else:
                if self.in_sequence(j):
                    continue
                taken.append(j)
                self.pull_followers(j, taken)
        if ops[taken[-1]] != "ADD":  # otherwise it is fused with what follows
            self.take_views(first, views, taken)
        return taken

    def take_views(self, first: int, views: list[int], taken: list[int]) -> None:
        """Take the views that wait for nothing but what is taken."""
        used, inside = self.used, set(taken)
        for j in views:
            if used[j]:
                continue
            for c in self.sources[j]:
                if c >= first and not used[c] and c not in inside:
                    break
            else:
                taken.append(j)
                inside.add(j)

    def fused(self, c: int, j: int, last: int) -> bool:
        """Return whether `j` reads `c`, the last node taken, as part of one operation."""
        if c != last:
            return False
        pair = self.ops[c], self.ops[j]
        if pair in self.fused_next:
            return j == c + 1
        return pair in self.fused_near and all(
            self.used[i] or self.ops[i] in _EMPTY for i in range(c + 1, j)
        )

    def in_sequence(self, j: int) -> bool:
        if j in self.within_qsa and self.whole(self.within_qsa[j], len(_TOPK_QSA)):
            return True
        return any(self.whole(j, len(ops)) for ops in self.sequences.get(j, ()))

    def pull_followers(self, j: int, taken: list[int]) -> None:
        """Put what is fused with `j` directly after it."""
        node, op, before = self.nodes[j], self.ops[j], self.ops[j - 1]
        rope = j
        if op == "MUL" and before == "RMS_NORM":
            rope = self.pull_rope(j, taken)
        if self.ops[rope] in self.before_rows:
            self.pull_set_rows(rope, taken)
        kind = _FOLLOWS_BIAS.get((before, op))
        if kind:
            self.pull(
                taken, self.follower(j, kind, lambda t: t.src[0] is node and self.ready(t.src[1]))
            )
        if (before, op) == ("SSM_CONV", "ADD") and (before, op) in self.fused_next:
            self.pull(taken, self.follower(j, "UNARY", lambda t: t.src[0] is node))
        if op == "UNARY" and (op, "MUL") in self.fused_near:
            self.pull(taken, self.follower(j, "MUL", lambda t: self.is_unary_mul(node, t)))

    def pull_rope(self, j: int, taken: list[int]) -> int:
        """Put the ROPE of a normed vector after it, and return where that is; `j` without one."""
        node = self.nodes[j]
        k = self.follower(j, "ROPE", lambda t: t.src[0] is node and _needs_no_other(t))
        self.pull(taken, k)
        return k or j

    def follower(self, j: int, op: str, fits: Callable[[Tensor], bool]) -> int:
        """Return the first matching node within reach of `j`, used or not; 0: none."""
        for k in range(j + 1, min(j + _FOLLOWERS, len(self.ops))):
            if self.ops[k] == op and fits(self.nodes[k]):
                return k
        return 0

    def pull(self, taken: list[int], k: int) -> None:
        if k:
            taken.append(k)
            self.used[k] = 1

    def ready(self, t: Tensor) -> bool:
        return t.op == "NONE" or id(t) in self.placed

    def is_unary_mul(self, unary: Tensor, mul: Tensor) -> bool:
        """Mirror ggml_vk_can_fuse_unary_mul, if the factor is ready."""
        first = mul.src[0] is unary
        if not first and mul.src[1] is not unary:
            return False
        other = mul.src[1] if first else mul.src[0]
        if not self.ready(other) or not _unary_mul_kernel(unary, other, mul):
            return False
        return _divides(other, unary) if first else _divides(unary, other)

    def pull_set_rows(self, start: int, taken: list[int]) -> None:
        """Pull the view of `start` and the SET_ROWS of that view, if the three can be fused and
        nothing between them prevents it."""
        view, rows = self.view_and_rows(start)
        if not rows or not _only_read(self.nodes[start], self.nodes[view]):
            return
        for c in self.sources[rows]:
            if c > start and c != view and not self.used[c] and self.ops[c] not in _EMPTY:
                return
        self.pull(taken, view)
        self.pull(taken, rows)

    def view_and_rows(self, start: int) -> tuple[int, int]:
        """Return the view of `start` and the SET_ROWS of that view, within reach; 0 without one."""
        nodes, ops, used = self.nodes, self.ops, self.used
        view = 0
        for k in range(start + 1, min(start + _FOLLOWERS, len(ops))):
            if used[k]:
                continue
            if not view and ops[k] == "VIEW" and nodes[k].src[0] is nodes[start]:
                view = k
            elif view and ops[k] == "SET_ROWS" and nodes[k].src[0] is nodes[view]:
                return view, k
        return view, 0

    def must_precede(self) -> list[list[int]]:
        """Return, for each node, the earlier ones within reach that must run before it: what it
        reads, and what shares memory with it or with what it reads (`is_src_of` of
        ggml_vk_graph_optimize)."""
        nodes = self.nodes
        where: dict[int, int] = {}  # by id of a node
        # by id of the memory's owner: nodes that are it or view it
        same: dict[int, list[int]] = {}
        readers: dict[int, list[int]] = {}  # the same: nodes that read it
        sources = []
        for j, node in enumerate(nodes):
            base = node.view_src or node
            low = j - AHEAD
            before = set()
            mine = same.get(id(base))
            if mine:
                before.update([c for c in mine[-AHEAD:] if c > low])
            if node.op in _EMPTY:
                for source in node.src:
                    c = where.get(id(source), -1)
                    if c > low:
                        before.add(c)
            else:
                theirs = readers.get(id(base))
                if theirs:
                    before.update([c for c in theirs[-AHEAD:] if c > low])
                for source in node.src:
                    c = where.get(id(source), -1)
                    if c > low:
                        before.add(c)
                    owner = id(source.view_src or source)
                    shared = same.get(owner)
                    if shared:
                        before.update(
                            [c for c in shared[-AHEAD:] if c > low and nodes[c].op not in _EMPTY]
                        )
                    readers.setdefault(owner, []).append(j)
            where[id(node)] = j
            same.setdefault(id(base), []).append(j)
            sources.append(list(before))
        return sources


def _unary_mul_kernel(unary: Tensor, other: Tensor, mul: Tensor) -> bool:
    """Return whether one shader computes both, with these types and strides."""
    if unary.param not in _UNARY_MUL or unary.type not in ("f32", "f16"):
        return False
    if not unary.type == mul.type == other.type:
        return False
    return other.contiguous(1) and unary.src[0].contiguous(1)


def _needs_no_other(t: Tensor) -> bool:
    """Return whether everything but its first source is there before the graph runs."""
    return all(source.op == "NONE" for source in t.src[1:])


def _divides(small: Tensor, large: Tensor) -> bool:
    """Return whether `small` can be repeated to the shape of `large`."""
    return all(n % m == 0 for n, m in zip(large.ne, small.ne, strict=True))


def _only_read(start: Tensor, view: Tensor) -> bool:
    """Return whether no node but the next reads either, as ggml_can_fuse_subgraph_ext requires."""
    if start.is_output or view.is_output or view.view_src is not start:
        return False
    return start.view_src is None and start.uses == view.uses == 1
