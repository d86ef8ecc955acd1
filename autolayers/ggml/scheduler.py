"""ggml's scheduler: which backend runs which node, where the graph splits, what is copied between
backends. Mirrors ggml_backend_sched_split_graph of ggml/src/ggml-backend.cpp, as modelled; the
passes keep its numbers."""

from __future__ import annotations

from ..errors import LaunchRefused
from .tensor import VIEW_OPS, Buffer, Graph, Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Protocol

    # (tensor, until) of ggml_backend_graph_optimize_params
    AddAllocDep = Callable[[Tensor, Tensor], None]

    class OpBackend(Protocol):
        """What decides where a node runs; see autolayers.backends.Backend."""

        buffer: Buffer  # where its graph tensors are

        def supports_op(self, op: Tensor) -> bool: ...
        def supports_buft(self, buffer: Buffer) -> bool: ...
        def offload_op(self, op: Tensor) -> bool: ...

    class SchedulerBackend(OpBackend, Protocol):
        """And what orders the nodes of a split."""

        def graph_optimize(
            self, nodes: list[Tensor], after: Tensor | None, add_alloc_dep: AddAllocDep
        ) -> list[Tensor]: ...

    class SchedulerRules(Protocol):
        """What depends on the build; see autolayers.builds."""

        @property
        def sinks_follow(self) -> bool: ...
        @property
        def copies_every_input(self) -> bool: ...
        @property
        def any_split_inputs(self) -> bool: ...
        @property
        def split_inputs_grow(self) -> bool: ...
        @property
        def split_inputs_30(self) -> bool: ...


_MAX_SRC = 10  # GGML_MAX_SRC
_MAX_SPLIT_INPUTS = 30  # GGML_SCHED_MAX_SPLIT_INPUTS


class SplitGraph:
    """The graph ready for the allocator: (tensor, backend) in order."""

    __slots__ = ("inputs", "leafs", "n_splits", "nodes")

    def __init__(self) -> None:
        self.nodes: list[tuple[Tensor, int]] = []
        self.leafs: list[tuple[Tensor, int]] = []
        self.n_splits = 0
        self.inputs: list[list[Tensor]] = []  # of each split


def assign(
    graph: Graph,
    backends: Sequence[SchedulerBackend],
    op_offload: bool,
    rules: SchedulerRules,
    pins: bool = True,
) -> None:
    """Set `backend` of every node and leaf, in passes 1 to 4; with `pins`, those of the graph
    builder count."""
    readers = Readers(backends)
    # Assign leafs that are in a buffer, and inputs (pass 1).
    # the answer depends on buffer, type and shape alone
    alike: dict[object, int] = {}  # layers repeat
    for t in graph.leafs:
        buffer = t.buffer
        if pins and t.pinned >= 0:
            t.backend = t.pinned
        elif buffer is None:
            t.backend = readers.cpu if t.is_input else -1
        else:
            shape = (buffer, t.type, t.ne)
            b = alike.get(shape)
            if b is None:
                b = alike[shape] = _of_buffer(t, buffer, readers)
            t.backend = b
    _assign_given(graph.nodes, readers, op_offload, rules.sinks_follow, pins)
    assign_others(graph, readers)


def assign_others(graph: Graph, readers: Readers, lost: bool = False) -> None:
    """Set `backend` of the nodes and leafs that pass 1 left, in passes 2 to 4; with `lost`, views
    of what no backend reads stay without one."""
    real = [t for t in graph.nodes if t.op not in VIEW_OPS]
    _spread(real, readers.supports)
    _assign_rest(real, readers)
    # Assign views, and sources without a backend (pass 4).
    for t in graph.nodes:
        if t.backend == -1 and t.view_src is not None:
            t.backend = t.view_src.backend
        for s in t.src:
            if s.backend == -1:
                s.backend = s.view_src.backend if s.view_src is not None else t.backend
        if t.backend == -1 and not lost:
            t.backend = next(
                (b for b, supported in enumerate(readers.supports) if supported(t)), -1
            )


class Readers:
    """Which backends run an operation and read a buffer."""

    __slots__ = ("backends", "cpu", "reading", "supports")

    def __init__(self, backends: Sequence[OpBackend]) -> None:
        self.backends = backends
        self.cpu = len(backends) - 1
        self.supports = [backend.supports_op for backend in backends]
        self.reading: dict[Buffer, list[int]] = {}

    def from_buffer(self, buffer: Buffer, op: Tensor) -> int:
        """Return the first backend that reads the buffer and runs it, or -1
        (ggml_backend_sched_backend_from_buffer)."""
        reading = self.reading.get(buffer)
        if reading is None:
            reading = [
                b for b, backend in enumerate(self.backends) if backend.supports_buft(buffer)
            ]
            self.reading[buffer] = reading
        for b in reading:
            if self.supports[b](op):
                return b
        return -1

    def can_read(self, t: Tensor, b: int) -> bool:
        """Whether a backend can read a tensor, also one whose backend is not known yet
        (ggml_backend_sched_buffer_supported)."""
        buffer = t.buffer
        if buffer is None:
            owner = t.backend
            if owner == -1 and t.view_src is not None:
                owner = t.view_src.backend
            if owner == -1:
                return False
            buffer = self.backends[owner].buffer
        return self.backends[b].supports_buft(buffer)

    def offload(self, op: Tensor) -> int:
        """Return the first GPU that takes an operation whose weights are in RAM, or the CPU."""
        for b in range(self.cpu):
            if self.supports[b](op) and self.backends[b].offload_op(op):
                return b
        return self.cpu


# ggml aborts there; here the launch is refused with the same facts
def _of_buffer(t: Tensor, buffer: Buffer, readers: Readers) -> int:
    b = readers.from_buffer(buffer, t)
    if b < 0:  # what is in a buffer cannot move to another backend
        # The refusal for GGML_ABORT("pre-allocated tensor ... in a buffer ... that cannot run the
        # operation").
        what = "use" if t.op == "NONE" else f"run {t.op} on"
        stuck = LaunchRefused(
            f"no backend can {what} a tensor of {t.nbytes} bytes ({t.type}) in {buffer.name}: "
            f"llama.cpp aborts"
        )
        raise stuck
    return b


def _assign_given(
    nodes: Sequence[Tensor], readers: Readers, op_offload: bool, sinks_follow: bool, pins: bool
) -> None:
    """Assign nodes that are pinned or in a buffer, inputs, and operations that read weights (pass
    1)."""
    cpu = readers.cpu
    for t in nodes:
        if pins and t.pinned >= 0:
            t.backend = t.pinned
            continue
        if t.buffer is not None:
            t.backend = _of_buffer(t, t.buffer, readers)
            continue
        t.backend = cpu if t.is_input else -1
        # ggml_backend_sched_backend_id_from_cur: the factors of ROPE and the sinks of flash
        # attention are weights too, but too small to choose a backend by
        if t.is_input or t.op == "ROPE" or (t.op == "FLASH_ATTN_EXT" and sinks_follow):
            continue
        for source in t.src:
            if source.weight:
                buffer = source.buffer
                assert buffer is not None
                t.backend = readers.from_buffer(buffer, t)
                # a backend earlier in the list may ask for an operation whose weight is in RAM:
                # CUDA's offload_op does from 32 tokens on (GGML_OP_OFFLOAD_MIN_BATCH)
                if op_offload and t.backend == cpu and buffer.host:
                    t.backend = readers.offload(t)
                break


def _spread(real: list[Tensor], supports: Sequence[Callable[[Tensor], bool]]) -> None:
    """Let nodes follow their neighbours, those of GPUs first (pass 2)."""
    cpu = len(supports) - 1
    # each in both directions, and the CPU last: it gets nodes of its own only where its weights
    # are, or between such nodes if no GPU computes between them
    for skip_cpu in (True, False):
        for order in (real, real[::-1]):
            if all(t.backend != -1 for t in real):
                break
            current = -1
            for t in order:
                b = t.backend
                if b != -1:
                    current = -1 if skip_cpu and b == cpu else b
                elif current != -1 and supports[current](t):
                    t.backend = current


def _assign_rest(real: list[Tensor], readers: Readers) -> None:
    """Assign the rest where most of its sources can be read, others to a twin with the same buffer
    (pass 3)."""
    supports, backends = readers.supports, readers.backends
    # backends that share a buffer type read each other's tensors without a copy, so the one that
    # comes first in the list takes what it supports: BLAS before the CPU. Other types that all
    # readers support would do too, but llama.cpp does not look for them: that is slow to verify
    twins = [
        [b for b in range(i) if backends[b].buffer is backend.buffer]
        for i, backend in enumerate(backends)
    ]
    for t in real if any(twins) else [t for t in real if t.backend == -1]:
        if t.backend == -1:
            _assign_by_sources(t, readers)
            continue
        for b in twins[t.backend]:
            if supports[b](t) and all(readers.can_read(s, b) for s in t.src):
                t.backend = b
                break


def _assign_by_sources(t: Tensor, readers: Readers) -> None:
    """Assign a node where most of its sources can be read, the first of several: pass 2 left the
    operations that the backends of their neighbours do not support."""
    best = -1
    for b, supports in enumerate(readers.supports):
        if supports(t):
            count = sum(
                [
                    (s.backend != -1 or (s.view_src is not None and s.view_src.backend != -1))
                    and readers.can_read(s, b)
                    for s in t.src
                ]
            )
            if count > best:
                best = count
                t.backend = b


def split(
    graph: Graph,
    backends: Sequence[SchedulerBackend],
    rules: SchedulerRules,
    n_copies: int = 1,
    marked: Collection[int] = (),
    most_inputs: int = 0,
) -> SplitGraph:
    """Cut a graph whose nodes have backends into splits and add the copies: the input of
    ggml_gallocr. Of a fork: `marked` nodes, by id, begin a split, which reads `most_inputs`."""
    nodes = graph.nodes

    def readable(t: Tensor, b: int) -> bool:
        buffer = t.buffer if t.buffer is not None else backends[t.backend].buffer
        return backends[b].supports_buft(buffer)

    def copies_of(t: Tensor, keep_first: bool) -> list[Tensor]:
        made = []
        for c in range(n_copies):
            copy = t if keep_first and c == 0 else Tensor("NONE", t.type, t.ne, (), t.nb)
            # with pipeline parallelism the next micro-batch fills one copy while another is read:
            # the flags keep the allocator from using their memory for anything else
            if n_copies > 1:
                copy.is_input = copy.is_output = True
            copy.name = t.name
            made.append(copy)
        return made

    graph_inputs: list[Tensor] = []

    def graph_input(leaf: Tensor) -> None:
        if leaf.copies is None:
            leaf.copies = {}
        has_copy = leaf.backend in leaf.copies
        if not has_copy:
            leaf.copies[leaf.backend] = copies_of(leaf, keep_first=True)
        if not has_copy or rules.copies_every_input:
            graph_inputs.append(leaf)

    limit = max_inputs = most_inputs or (
        0 if rules.any_split_inputs else _MAX_SPLIT_INPUTS if rules.split_inputs_30 else _MAX_SRC
    )
    pipelined = n_copies > 1 and not rules.copies_every_input
    # pass 5: where the graph is cut, and what each split copies from other backends
    parts: list[tuple[int, int, list[Tensor]]] = []  # (start, backend, inputs)
    start = 0
    # views compute nothing, so they never decide where a split begins
    while start < len(nodes) and nodes[start].op in VIEW_OPS:
        start += 1
    current = nodes[start].backend
    inputs: list[Tensor] = []
    parts.append((0, current, inputs))
    for i in range(start, len(nodes)):
        t = nodes[i]
        if t.op in VIEW_OPS:
            continue
        new = t.backend != current or (len(marked) > 0 and id(t) in marked)
        if not new and inputs:
            for s in t.src:
                if s.backend == current or readable(s, current):
                    continue
                full = max_inputs and len(inputs) >= max_inputs
                # a weight that is copied starts a split, so that the memory of the previous copy
                # is free again: one weight of the layer is on the device at a time, not all
                if s.weight or (full and (s.copies is None or current not in s.copies)):
                    new = True
                    break
        if new:
            current = t.backend
            inputs = []
            max_inputs = limit
            parts.append((i, current, inputs))
        for j, s in enumerate(t.src):
            if pipelined and s.is_input:
                graph_input(s)
            if s.backend != current and not readable(s, current):
                if s.copies is None:
                    s.copies = {}
                made = s.copies.get(current)
                if made is None:
                    made = s.copies[current] = copies_of(s, keep_first=False)
                    for copy in made:
                        copy.backend = current
                    inputs.append(s)
                    if max_inputs and len(inputs) > max_inputs:  # one node had several more
                        if not rules.split_inputs_grow:
                            raise LaunchRefused(
                                f"more than {max_inputs} inputs of one split: llama.cpp aborts"
                            )
                        max_inputs *= 2
                t.src = (*t.src[:j], made[0], *t.src[j + 1 :])

    # inputs of a pipeline
    if n_copies > 1 and rules.copies_every_input:
        for leaf in graph.leafs:
            if leaf.is_input:
                graph_input(leaf)

    result = SplitGraph()
    out = result.nodes
    result.n_splits = len(parts)
    result.inputs = [sources for _, _, sources in parts]
    ends = [begin for begin, _, _ in parts[1:]] + [len(nodes)]
    # by id: what must not be freed before a node is done
    alloc_deps: dict[int, dict[int, Tensor]] = {}

    def add_alloc_dep(tensor: Tensor, until: Tensor) -> None:
        alloc_deps.setdefault(id(until), {})[id(tensor)] = tensor

    orders = [
        backends[b].graph_optimize(
            nodes[begin:end], nodes[end] if end < len(nodes) else None, add_alloc_dep
        )
        for (begin, b, _), end in zip(parts, ends, strict=True)
    ]
    for (_, b, sources), part in zip(parts, orders, strict=True):
        for s in sources:
            out.append((_dependency([s]), s.backend))
            out.append((s.copies[b][0], b))  # type: ignore[index]
        for t in part:
            out.append((t, t.backend))
            dependencies = alloc_deps.get(id(t)) if alloc_deps else None
            if dependencies:
                tensors = list(dependencies.values())
                for k in range(0, len(tensors), _MAX_SRC):
                    out.append((_dependency(tensors[k : k + 10]), b))
    if n_copies > 1:
        for leaf in graph_inputs:
            home = leaf.backend
            result.leafs += [(copy, home) for copy in leaf.copies[home]]  # type: ignore[index]
        for _, b, sources in parts:
            for s in sources:
                result.leafs += [(copy, b) for copy in s.copies[b]]  # type: ignore[index]
    result.leafs += [(leaf, leaf.backend) for leaf in graph.leafs]
    return result


def _dependency(tensors: list[Tensor]) -> Tensor:
    """Return a node that reads `tensors` and computes nothing: a view of the first, so it takes no
    memory."""
    first = tensors[0]
    return Tensor("NONE", first.type, first.ne, tuple(tensors), first.nb, first)
