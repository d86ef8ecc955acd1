"""ggml's graph allocator: where each tensor of a split graph would be placed, and so how large each
buffer gets. Mirrors ggml_dyn_tallocr_alloc / _free_bytes and ggml_gallocr_alloc_graph_impl of
ggml/src/ggml-alloc.c, as modelled. Fragmentation counts: the peak is often 10 to 40 % above what is
live at any time."""

from __future__ import annotations

from .tensor import ENDLESS, Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# ggml_op_can_inplace
_INPLACE = frozenset(
    (
        "FILL",
        "SCALE",
        "DIAG_MASK_ZERO",
        "DIAG_MASK_INF",
        "ADD",
        "ADD_ID",
        "ADD1",
        "SUB",
        "MUL",
        "DIV",
        "SQR",
        "SQRT",
        "LOG",
        "UNARY",
        "ROPE",
        "ROPE_BACK",
        "SILU_BACK",
        "RMS_NORM",
        "RMS_NORM_BACK",
        "CLAMP",
        "SOFT_MAX",
        "SOFT_MAX_BACK",
    )
)
# GGML_VBUFFER_MAX_CHUNKS: a device may limit one allocation, so a buffer is several of them
_MAX_CHUNKS = 16


class _Chunk:
    __slots__ = ("free", "peak")

    def __init__(self, size: int) -> None:
        self.free: list[list[int]] = [[0, size]]  # [offset, size], sorted by offset
        self.peak = 0


class Arena:
    """The dynamic allocator of one buffer type."""

    __slots__ = ("alignment", "alloc_size", "chunks", "first_fit", "max_chunk")

    def __init__(
        self,
        alignment: int,
        alloc_size: Callable[[Tensor], int],
        max_chunk: int = ENDLESS,
        first_fit: bool = False,
    ) -> None:
        """`first_fit`: a buffer grows in its first chunk with room, not in the one that grows
        least."""
        self.alignment = alignment
        self.alloc_size = alloc_size
        self.max_chunk = max_chunk
        self.first_fit = first_fit
        self.chunks: list[_Chunk] = []

    def size_of(self, tensor: Tensor) -> int:
        a = self.alignment
        return -(-self.alloc_size(tensor) // a) * a

    @property
    def peak(self) -> int:
        return sum(chunk.peak for chunk in self.chunks)

    def take(self, size: int) -> tuple[int, int]:
        """Return (chunk, offset) of a new block: the best fit; a chunk's last block only if nothing
        else fits."""
        gap: list[int] | None = None
        where = 0
        # ggml_dyn_tallocr_alloc: holes between live tensors first, as they cost nothing; the last
        # block of a chunk is its open end, and taking from it may raise the peak
        for c, chunk in enumerate(self.chunks):
            best = ENDLESS
            for block in chunk.free[:-1]:
                if size <= block[1] <= best:
                    gap, where, best = block, c, block[1]
        if gap is None:
            reuse_best = -ENDLESS
            for c, chunk in enumerate(self.chunks):
                if not chunk.free:
                    continue
                block = chunk.free[-1]
                # above 0: the block ends below the peak, with so much of it left; below 0: the
                # bytes by which the peak grows
                reuse = chunk.peak - block[0] - size
                better = (reuse_best < 0 and reuse > reuse_best) or 0 <= reuse < reuse_best
                if block[1] >= size and better:
                    gap, where, reuse_best = block, c, reuse
                    if self.first_fit:
                        break
        if gap is None:
            # ggml_dyn_tallocr_new_chunk: a tensor above the device's limit gets a chunk of its own
            # size, and the last chunk has no limit; the backend allocates it or reports an error
            last = len(self.chunks) == _MAX_CHUNKS - 1
            self.chunks.append(_Chunk(ENDLESS if last else max(size, self.max_chunk)))
            where = len(self.chunks) - 1
            gap = self.chunks[where].free[0]
        chunk = self.chunks[where]
        offset = gap[0]
        gap[0] += size
        gap[1] -= size
        if gap[1] == 0:
            chunk.free.remove(gap)
        if offset + size > chunk.peak:
            chunk.peak = offset + size
        return where, offset

    def give(self, c: int, offset: int, size: int) -> None:
        free = self.chunks[c].free
        # ggml_dyn_tallocr_free_bytes: neighbours are joined at once, because a later tensor may fit
        # into both together only
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


def allocate(
    nodes: Sequence[tuple[Tensor, int]],
    leafs: Sequence[tuple[Tensor, int]],
    arenas: Sequence[Arena],
    marks: Sequence[tuple[Tensor, Tensor]] = (),
) -> bool:
    """Lay out a split graph, which is used up; the arenas' peaks are the buffers' sizes.

    `nodes` and `leafs` are (tensor, backend); `arenas[backend]` may repeat if backends share a
    buffer type. Mirrors ggml_gallocr_alloc_graph_impl. Returns whether, for each pair in `marks`,
    the same memory is free before both nodes and the live tensors are at the same places.
    """

    def place(tensor: Tensor, backend: int) -> None:
        if tensor.own or tensor.view_src is not None or tensor.buffer is not None:
            return
        tensor.own = True
        live[id(tensor)] = tensor
        # ggml_gallocr_allocate_node: these operations may overwrite a parent of the same layout
        # that no other node reads. Outputs stay, as the caller reads them after the graph
        if tensor.op in _INPLACE:
            for parent in tensor.src:
                if not parent.own or parent.n_children != 1 or parent.n_views or parent.is_output:
                    continue
                if parent.ne == tensor.ne and parent.nb == tensor.nb and parent.type == tensor.type:
                    owner, chunk, offset = tensor.place = parent.place
                    parent.own = False
                    live.pop(id(parent), None)
                    tensor.size = arenas[owner].size_of(tensor)
                    # ggml_gallocr_free_extra_space: some operations get more than their elements
                    # (FLASH_ATTN_EXT on CUDA and Metal); a parent's surplus is free again
                    if parent.size > tensor.size:
                        arenas[owner].give(chunk, offset + tensor.size, parent.size - tensor.size)
                    return
        tensor.size = arenas[backend].size_of(tensor)
        tensor.place = (backend, *arenas[backend].take(tensor.size))

    def give(tensor: Tensor) -> None:
        owner, chunk, offset = tensor.place
        arenas[owner].give(chunk, offset, tensor.size)
        tensor.own = False
        live.pop(id(tensor), None)

    live: dict[int, Tensor] = {}  # those that own memory now
    # leafs before nodes: the caller fills them before the graph runs, so nothing may lie there
    for tensor, backend in leafs:
        place(tensor, backend)
    # of each node, those that are not in their own buffers
    parents: list[list[Tensor]] = []
    for node, backend in nodes:
        root = node.view_src
        # a view keeps its source alive, although no node reads the source itself. A NONE node is
        # the scheduler's: it delays the release of its sources, and nothing reads it
        if root is not None and node.op != "NONE":
            root.n_views += 1
        if node.is_input:
            place(node, backend)
        inputs = []
        for source in node.src:
            if source.buffer is None:
                inputs.append(source)
                source.n_children += 1
                if source.is_input:
                    place(source, backend)
        parents.append(inputs)
    wanted = {id(node) for pair in marks for node in pair}
    order = {id(tensor): i for i, (tensor, _) in enumerate((*leafs, *nodes))} if wanted else {}
    seen: dict[int, object] = {}
    for (node, backend), inputs in zip(nodes, parents, strict=True):
        if wanted and id(node) in wanted:
            seen.setdefault(id(node), _laid_out(arenas, live, order))
        for source in inputs:
            # only leafs are without a place here: nodes come after what they read
            if not source.own and source.view_src is None:
                place(source, backend)
        if not node.own and node.view_src is None and node.buffer is None:
            place(node, backend)
        for parent in inputs:
            parent.n_children -= 1
            if parent.n_children == 0 and parent.n_views == 0:
                root = parent.view_src
                if root is not None:
                    root.n_views -= 1
                    if (
                        root.n_views == 0
                        and root.n_children == 0
                        and root.own
                        and not root.is_output
                    ):
                        give(root)
                elif parent.own and not parent.is_output:
                    give(parent)
    return all(seen.get(id(one)) == seen.get(id(other)) for one, other in marks)


def _laid_out(
    arenas: Sequence[Arena], live: dict[int, Tensor], order: dict[int, int]
) -> tuple[object, object]:
    """Return what is free in each arena, and where the live tensors are, in `order`."""
    # where a block goes depends on the peaks of several chunks, but not on that of one
    free = [
        [
            (len(arena.chunks) > 1 and chunk.peak, [tuple(block) for block in chunk.free])
            for chunk in arena.chunks
        ]
        for arena in arenas
    ]
    numbers = sorted(live.keys() & order.keys(), key=order.__getitem__)
    return free, [(live[number].place, live[number].size) for number in numbers]
