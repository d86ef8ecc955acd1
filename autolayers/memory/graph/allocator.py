"""ggml's graph allocator: where each tensor of a split graph would lie, and so how large each buffer gets.

Mirrors ggml_dyn_tallocr_alloc / _free_bytes and ggml_gallocr_alloc_graph_impl of ggml/src/ggml-alloc.c (2026-10-01).
Fragmentation is part of the answer: the peak is often 10 to 40 % above what lives at any one time.

Which blocks a graph takes and gives back, and when, follows from its shape alone (`record`); only where a block lies
depends on what the buffer has gone through before (`play`).
"""

from __future__ import annotations

from .tensor import Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    Event = tuple[Any, int, int]    # (block, arena, size) taken; (block, -1 - offset, size) given back from there on
    Place = tuple[int, int, int]    # arena, chunk, offset

_INPLACE = frozenset((
    "FILL", "SCALE", "DIAG_MASK_ZERO", "DIAG_MASK_INF", "ADD", "ADD_ID", "ADD1", "SUB", "MUL", "DIV", "SQR", "SQRT",
    "LOG", "UNARY", "ROPE", "ROPE_BACK", "SILU_BACK", "RMS_NORM", "RMS_NORM_BACK", "CLAMP", "SOFT_MAX",
    "SOFT_MAX_BACK",
))
_ENDLESS = 1 << 62
_MAX_CHUNKS = 16


class Chunk:
    __slots__ = ("free", "peak")

    def __init__(self, size: int) -> None:
        self.free: list[list[int]] = [[0, size]]     # [offset, size], sorted by offset
        self.peak = 0


class Arena:
    """The dynamic allocator of one buffer type."""

    __slots__ = ("alignment", "alloc_size", "chunks", "max_chunk")

    def __init__(self, alignment: int, alloc_size: Callable[[Tensor], int], max_chunk: int = _ENDLESS) -> None:
        self.alignment = alignment
        self.alloc_size = alloc_size
        self.max_chunk = max_chunk
        self.chunks: list[Chunk] = []

    def size_of(self, tensor: Tensor) -> int:
        a = self.alignment
        return -(-self.alloc_size(tensor) // a) * a

    @property
    def peak(self) -> int:
        return sum(chunk.peak for chunk in self.chunks)

    def state(self) -> tuple[tuple[int, ...], ...]:
        """What future allocations depend on; a chunk's peak matters only in the choice between chunks."""
        if len(self.chunks) == 1:
            return (tuple(n for block in self.chunks[0].free for n in block),)
        return tuple((chunk.peak, *(n for block in chunk.free for n in block)) for chunk in self.chunks)

    def restore(self, state: tuple[tuple[int, ...], ...]) -> None:
        """Makes this arena what it was when state() said so, but for the peak that it has reached."""
        if len(state) == 1 and len(self.chunks) == 1:
            self.chunks[0].free = [list(block) for block in zip(state[0][::2], state[0][1::2], strict=True)]
            return
        for chunk, (_, *blocks) in zip(self.chunks, state, strict=True):
            chunk.free = [list(block) for block in zip(blocks[::2], blocks[1::2], strict=True)]

    def take(self, size: int) -> tuple[int, int]:
        """(chunk, offset) of a new block: the best fit, the last block of a chunk only if nothing else does."""
        found: list[int] | None = None
        where = 0
        for c, chunk in enumerate(self.chunks):
            best = _ENDLESS
            for block in chunk.free[:-1]:
                if size <= block[1] <= best:
                    found, where, best = block, c, block[1]
        if found is None:
            reuse_best = -_ENDLESS
            for c, chunk in enumerate(self.chunks):
                if not chunk.free:
                    continue
                block = chunk.free[-1]
                reuse = chunk.peak - block[0] - size
                better = (reuse_best < 0 and reuse > reuse_best) or 0 <= reuse < reuse_best
                if block[1] >= size and better:
                    found, where, reuse_best = block, c, reuse
        if found is None:
            last = len(self.chunks) == _MAX_CHUNKS - 1
            self.chunks.append(Chunk(_ENDLESS if last else max(size, self.max_chunk)))
            where = len(self.chunks) - 1
            found = self.chunks[where].free[0]
        chunk = self.chunks[where]
        offset = found[0]
        found[0] += size
        found[1] -= size
        if found[1] == 0:
            chunk.free.remove(found)
        if offset + size > chunk.peak:
            chunk.peak = offset + size
        return where, offset

    def give(self, c: int, offset: int, size: int) -> None:
        free = self.chunks[c].free
        for i, block in enumerate(free):
            if block[0] + block[1] == offset:
                block[1] += size
                if i + 1 < len(free) and block[0] + block[1] == free[i + 1][0]:
                    block[1] += free[i + 1][1]
                    del free[i + 1]
                return
            if offset + size == block[0]:
                block[0] = offset
                block[1] += size
                if i > 0 and free[i - 1][0] + free[i - 1][1] == offset:
                    free[i - 1][1] += block[1]
                    del free[i]
                return
        position = 0
        while position < len(free) and free[position][0] < offset:
            position += 1
        free.insert(position, [offset, size])


class Script:
    """What a graph takes from its arenas and gives back, in order.

    `segments`: what is taken before the first node runs, then the events of each part of the graph; `ends`: the block that
    the tensor at the end of each part (but the last) lies in, -1 where in none. Of each block: `took`, its arena and size,
    `home`, the segment that takes it, and `gone`, the one that gives it back (0: none). `reads`: by segment, the blocks of
    others that it reads; `readers`: of leafs and copies, the first and the last segment that reads.
    """

    __slots__ = ("ends", "gone", "home", "readers", "reads", "segments", "took")

    def __init__(self) -> None:
        self.segments: list[list[Event]] = [[]]
        self.ends: list[int] = []
        self.reads: list[set[int]] = [set(), set()]
        self.took: list[tuple[int, int]] = []
        self.home: list[int] = []
        self.gone: list[int] = []
        self.readers: dict[int, tuple[int, int]] = {}


def record(nodes: Sequence[tuple[Tensor, int]], leafs: Sequence[tuple[Tensor, int]], arenas: Sequence[Arena],
           ends: Mapping[int, int] | None = None, readers: bool = True) -> Script:
    """The script of a split graph, which is used up.

    `nodes` and `leafs` are (tensor, backend); `arenas[backend]` may repeat where backends share a buffer type. `ends` are
    the id() of the nodes that end a part of the graph, in order, and how many parts end there; if they run in another order the script
    tells of no ends. `readers`: whether to note who reads what.
    """
    ends = ends or {}
    passed: list[int] = []
    script = Script()
    took, home, gone = script.took, script.home, script.gone
    events = script.segments[0]
    plain: list[Tensor] = []
    segment = 0

    def place(tensor: Tensor, backend: int) -> None:
        if tensor.own or tensor.view_src is not None or tensor.buffer is not None:
            return
        tensor.own = True
        if tensor.op == "NONE":
            plain.append(tensor)
        elif tensor.op in _INPLACE:
            for parent in tensor.src:
                if (parent.own and parent.n_children == 1 and parent.n_views == 0 and not parent.is_output
                        and parent.ne == tensor.ne and parent.nb == tensor.nb and parent.type == tensor.type):
                    tensor.place, tensor.block = parent.place, parent.block
                    parent.own = False
                    tensor.size = arenas[tensor.place].size_of(tensor)
                    if parent.size > tensor.size:
                        events.append((tensor.block, -1 - tensor.size, parent.size - tensor.size))
                    return
        tensor.place = backend
        tensor.size = arenas[backend].size_of(tensor)
        tensor.block = len(home)
        took.append((backend, tensor.size))
        home.append(segment)
        gone.append(0)
        events.append((tensor.block, backend, tensor.size))

    def give(tensor: Tensor) -> None:
        events.append((tensor.block, -1, tensor.size))
        gone[tensor.block] = segment
        tensor.own = False

    for tensor, backend in leafs:
        place(tensor, backend)
    parents: list[list[Tensor]] = []         # of each node, those that are not in buffers of their own
    first: dict[int, int] = {}               # by id(), of leafs and copies: the segments that read them
    last: dict[int, int] = {}
    part = 1
    for node, backend in nodes:
        root = node.view_src
        if root is not None and node.op != "NONE":
            root.n_views += 1
        if node.is_input:
            place(node, backend)
        found = [source for source in node.src if source.buffer is None]
        parents.append(found)
        for source in found:
            source.n_children += 1
            if readers and source.op == "NONE":
                first.setdefault(id(source), part)
                last[id(source)] = part
            if source.is_input:
                place(source, backend)
        part += ends.get(id(node), 0)
    events = []
    script.segments.append(events)
    segment, reads = 1, script.reads[1]
    for (node, backend), found in zip(nodes, parents, strict=True):
        for source in found:
            if not source.own and source.view_src is None:
                place(source, backend)
        if not node.own and node.view_src is None and node.buffer is None:
            place(node, backend)
        for parent in found:
            root = parent.view_src
            if readers:
                block = parent.block if root is None else root.block
                if home[block] != segment:
                    reads.add(block)
            parent.n_children -= 1
            if parent.n_children == 0 and parent.n_views == 0:
                if root is not None:
                    root.n_views -= 1
                    if root.n_views == 0 and root.n_children == 0 and root.own and not root.is_output:
                        give(root)
                elif parent.own and not parent.is_output:
                    give(parent)
        for _ in range(ends.get(id(node), 0)):
            owner = node.view_src or node
            script.ends.append(owner.block if owner.own else -1)
            passed.append(id(node))
            segment += 1
            events, reads = [], set()
            script.segments.append(events)
            script.reads.append(reads)
    if list(dict.fromkeys(passed)) != list(ends):
        script.ends.clear()
    known = (1, 1)
    for leaf in plain:       # what nobody reads is one more copy of the one before
        known = script.readers[leaf.block] = (first.get(id(leaf), known[0]), last.get(id(leaf), known[1]))
    return script


def play(events: Iterable[Event], places: dict[Any, Place], arenas: Sequence[Arena]) -> None:
    """Takes and gives back in the arenas; `places` has where each block lies, and is added to."""
    for block, what, size in events:
        if what >= 0:
            places[block] = (what, *arenas[what].take(size))
        else:
            arena, chunk, offset = places[block]
            arenas[arena].give(chunk, offset - 1 - what, size)
