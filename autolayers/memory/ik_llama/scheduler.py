"""ik_llama.cpp's scheduler; mainline's has moved on: ggml_backend_sched_split_graph
(ggml/src/ggml-backend.cpp) and what CUDA's backend says of operations (ggml/src/ggml-cuda.cu),
8337e4cd. Without copies of inputs (GGML_SCHED_MAX_COPIES is 1)."""

from __future__ import annotations

from ...errors import LaunchRefused
from ...ggml.allocator import Arena, allocate
from ...ggml.tensor import VIEW_OPS, Buffer, Graph, Tensor
from ...ggml.types import is_quantised

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


_MAX_INPUTS = 64  # GGML_SCHED_MAX_SPLIT_INPUTS
_TOO_MANY = (
    "a part of its graph reads more than 64 tensors of other devices, where ik_llama.cpp ends "
    "(GGML_ASSERT(n_inputs < GGML_SCHED_MAX_SPLIT_INPUTS)): give -sm layer, or other layers"
)
_OFFLOADED = 32  # rows from which on CUDA copies weights that are in RAM
_FUSED = ("MOE_FUSED_UP_GATE", "FUSED_UP_GATE")
_TEXT = """
f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q6_0 q8_0 q2_K q3_K q4_K q5_K q6_K q8_K
iq1_m iq1_s iq2_s iq2_xs iq2_xxs iq3_s iq3_xxs iq4_nl mxfp4 iq4_xs
iq2_kl iq3_ks iq4_ks iq4_kss iq5_ks iq2_k iq2_ks iq1_kt iq2_kt iq3_kt iq4_kt
iq3_k iq4_k iq5_k iq6_k iq1_bn iq2_bn
iq2_k_r4 iq3_k_r4 iq4_k_r4 iq4_ks_r4 iq5_k_r4 iq5_ks_r4 iq1_s_r4 iq1_m_r4
"""
# types that CUDA multiplies with, some of the repacked ones (-rtr) included
_MULTIPLIED = frozenset(_TEXT.split())
# types that GET_ROWS looks up in, and those that CPY writes from f32
_ROWS = frozenset(["f16", "f32", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
_WRITTEN = frozenset(
    ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q6_0", "iq4_nl"]
)
_UNARY_TEXT = """
GELU GELU_ERF SILU SWIGLU SWIGLU_OAI RELU SIGMOID HARDSIGMOID HARDSWISH GELU_QUICK TANH EXP SOFTPLUS
SQRT_SOFTPLUS NEG
"""
_UNARY = frozenset(_UNARY_TEXT.split())
_HEADS = (64, 80, 96, 112, 128, 192, 256)


def supports(op: Tensor) -> bool:
    """Whether Ampere cards and newer ones run it (ggml_backend_cuda_supports_op)."""
    kind, src = op.op, op.src
    if kind in ("UNARY", "FUSED_MUL_UNARY", "FUSED_NORM"):
        return src[0].contiguous() and (kind != "UNARY" or op.param in _UNARY)
    if kind in ("MUL_MAT", "MUL_MAT_ID", *_FUSED):
        # fused up and gate: two weights, then the activations; merged ones are a single weight
        a, b = src[0], src[2 if kind in _FUSED and len(src) > 2 and src[1].weight else 1]
        if kind in _FUSED and src[1].weight and src[1].type != a.type:
            return False
        if b.type == "f16" and a.type != "f16" and not is_quantised(a.type):
            return False
        if kind == "MUL_MAT" and a.ne[3] != b.ne[3]:
            return False
        return a.type in _MULTIPLIED
    if kind == "GET_ROWS":
        return op.type == src[0].type or src[0].type in _ROWS
    if kind == "CPY":
        return _copies(op)
    if kind in ("DUP", "REPEAT", "CONCAT"):
        return src[0].type not in ("i32", "i16")
    if kind == "HADAMARD":
        return op.param in (64, 128, 256, 512)
    return kind != "FLASH_ATTN_EXT" or _attends(op)


def _copies(op: Tensor) -> bool:
    one, two = op.src[0], op.src[1]
    if one.type == "f32" and two.type in _WRITTEN:
        return True
    if one.type == "f16" and two.type in ("f16", "f32"):
        return True
    if is_quantised(one.type) and two.type in ("f16", "f32"):
        return True
    if one.type == two.type == "i32":
        return True
    if one.contiguous() and one.ne == two.ne and two.type in ("f16", "bf16", "f32"):
        return True
    return one.ne == two.ne and one.type == two.type == "q8_0"


def _attends(op: Tensor) -> bool:
    """Whether CUDA has a kernel for it (ggml_cuda_fattn_is_supported)."""
    q, k, v = op.src[:3]
    # gqa_opt_applies: with a mask, and an even number of heads that share keys
    masked = op.param is True
    ratio = q.ne[2] // k.ne[2]
    grouped = ratio % 2 == 0 and masked
    plain = not is_quantised(k.type) and not is_quantised(v.type)
    vector = q.ne[0] <= 256 and k.ne[0] == v.ne[0] and q.ne[0] % 64 == 0
    if q.ne[1] == 1 and vector and not grouped and plain:
        return True
    if q.ne[0] in (576, 512, 320):
        return ratio % 4 == 0
    if k.ne[0] == 192 and v.ne[0] == 128:
        return True
    return k.ne[0] == v.ne[0] and k.ne[0] in _HEADS


def offloads(op: Tensor) -> bool:
    """Whether CUDA runs it although its weight is in RAM (ggml_backend_cuda_offload_op)."""
    if op.op in ("MUL_MAT_ID", "MOE_FUSED_UP_GATE"):
        ids = op.src[2] if op.op == "MUL_MAT_ID" else next(s for s in op.src if s.type == "i32")
        # enough tokens for each expert: 32 * n_expert rows in all (256 tokens for 64
        # experts, 8 used)
        tokens = op.ne[2]
        return tokens >= _OFFLOADED and tokens * ids.ne[0] >= _OFFLOADED * op.src[0].ne[2]
    return op.ne[1] >= _OFFLOADED and op.op != "GET_ROWS"


class Schedule:
    """A graph on GPUs and, last, the CPU."""

    def __init__(self, graph: Graph, buffers: Sequence[Buffer]) -> None:
        """`buffers`: each backend's for its results."""
        self.graph, self.buffers, self.cpu = graph, buffers, len(buffers) - 1
        self.by_name = {buffer.name: i for i, buffer in enumerate(buffers)}
        self.n_splits = 0

    def _supports(self, b: int, op: Tensor) -> bool:
        return b == self.cpu or op.op == "NONE" or op.op in VIEW_OPS or supports(op)

    def _reads(self, b: int, buffer: Buffer) -> bool:
        # a GPU reads its own buffer alone, the CPU whatever the host can address
        if b == self.cpu:
            return buffer.host
        return self.by_name.get(buffer.name) == b

    def _of_buffer(self, buffer: Buffer | None, op: Tensor) -> int:
        if buffer is None:
            return -1
        return next(
            (b for b in range(self.cpu + 1) if self._reads(b, buffer) and self._supports(b, op)), -1
        )

    def _first(self, t: Tensor) -> int:
        """Mirror ggml_backend_sched_backend_id_from_cur."""
        backend = self._of_buffer(t.buffer, t)
        if backend < 0 and t.is_input:
            return self.cpu
        if backend >= 0:
            return backend
        # the first weight decides; one in RAM whose operation is large enough goes to a GPU
        for source in t.src:
            if source.weight:
                backend = self._of_buffer(source.buffer, t)
                if backend == self.cpu:
                    return next(
                        (b for b in range(self.cpu) if self._supports(b, t) and offloads(t)),
                        backend,
                    )
                return backend
        return -1

    def assign(self) -> None:
        """Set the backend of every leaf and node (passes 1 to 4)."""
        graph = self.graph
        for leaf in graph.leafs:
            leaf.backend = leaf.pinned if leaf.pinned >= 0 else self._first(leaf)
        # pass 1: nodes whose inputs are in a buffer
        for node in graph.nodes:
            if node.op == "REDUCE":
                self._reduce(node)
            if node.pinned >= 0 and node.backend < 0:
                node.backend = node.pinned
            # a hack for Cohere2 there, against splits that make no sense
            if node.op == "MUL" and node.src[0].op == "NORM" and node.src[1].backend >= 0:
                node.src[0].backend = node.backend = node.src[1].backend
            if node.backend < 0:
                node.backend = self._first(node)
        # pass 2: neighbours get the same backend, those of GPUs first, down and then up
        real = [node for node in graph.nodes if node.op not in VIEW_OPS]
        for skips in (True, False):
            for order in (real, real[::-1]):
                current = -1
                for node in order:
                    if node.backend >= 0:
                        current = -1 if skips and node.backend == self.cpu else node.backend
                    elif current >= 0 and self._supports(current, node):
                        node.backend = current
        for node in real:
            if node.backend >= 0:
                continue
            # pass 3: the backend that can read most of the sources
            best = -1
            for b in range(self.cpu + 1):
                if self._supports(b, node):
                    count = sum(self._known(s) and self._readable(s, b) for s in node.src)
                    if count > best:
                        best, node.backend = count, b
        for node in graph.nodes:
            # pass 4: views are where their source is, other sources where they are read
            if node.backend < 0 and node.view_src is not None:
                node.backend = node.view_src.backend
            for source in node.src:
                if source.backend < 0:
                    source.backend = (
                        source.view_src.backend if source.view_src is not None else node.backend
                    )

    def _reduce(self, node: Tensor) -> None:
        """Put each part on its device, the sum where the part is whose memory it takes."""
        for device, part in node.param.items():  # type: ignore[attr-defined]
            if part.backend < 0:
                part.backend = device
            if node.view_src is part:
                node.backend = device

    def _known(self, t: Tensor) -> bool:
        return t.backend >= 0 or (t.view_src is not None and t.view_src.backend >= 0)

    def _readable(self, t: Tensor, b: int) -> bool:
        buffer = t.view_src.buffer if t.view_src is not None else t.buffer
        if buffer is None:
            owner = t.backend
            if owner < 0 and t.view_src is not None:
                owner = t.view_src.backend
            if owner < 0:
                return False
            buffer = self.buffers[owner]
        return self._reads(b, buffer)

    def split(self) -> list[tuple[Tensor, int]]:
        """Return the nodes in order, with the copies that each split starts with."""
        nodes = self.graph.nodes
        start = next((i for i, node in enumerate(nodes) if node.op not in VIEW_OPS), 0)
        current = nodes[start].backend
        copies: dict[tuple[int, int], Tensor] = {}
        inputs: list[Tensor] = []
        parts: list[tuple[int, int, list[Tensor]]] = [(0, current, inputs)]
        for i in range(start, len(nodes)):
            node = nodes[i]
            if node.op in VIEW_OPS:
                continue
            # pass 5; a split may also begin for a REDUCE, and where the builder marks a node (0xff)
            new = node.backend != current or node.op == "REDUCE" or node.name == "0xff"
            # copies of weights are freed at the end of a split, so the next such weight begins one
            if not new and inputs:
                new = any(s.weight and s.backend != current for s in node.src) or (
                    len(inputs) >= _MAX_INPUTS
                    and any(
                        s.backend != current
                        and (id(s), current) not in copies
                        and not self._readable(s, current)
                        for s in node.src
                    )
                )
            if new:
                current, inputs = node.backend, []
                parts.append((i, current, inputs))
            for j, source in enumerate(node.src):
                if source.backend != current and not self._readable(source, current):
                    key = (id(source), current)
                    if key not in copies and node.op == "REDUCE":
                        copies[key] = source  # read where it is
                    if key not in copies:
                        copy = copies[key] = Tensor("NONE", source.type, source.ne, (), source.nb)
                        copy.backend = current
                        if len(inputs) >= _MAX_INPUTS:
                            raise LaunchRefused(_TOO_MANY)
                        inputs.append(source)
                    node.src = (*node.src[:j], copies[key], *node.src[j + 1 :])
        self.n_splits = len(parts)
        out: list[tuple[Tensor, int]] = []
        # a view of each source keeps it alive until its copy has been made
        for k, (begin, b, sources) in enumerate(parts):
            for source in sources:
                alive = Tensor("NONE", source.type, source.ne, (source,), source.nb, source)
                out += [(alive, source.backend), (copies[id(source), b], b)]
            end = parts[k + 1][0] if k + 1 < len(parts) else len(nodes)
            out += [(node, node.backend) for node in nodes[begin:end]]
        return out

    def sizes(self, arenas: Sequence[Arena]) -> tuple[int, ...]:
        """Return the bytes of each backend's buffer."""
        self.assign()
        nodes = self.split()
        allocate(nodes, [(leaf, leaf.backend) for leaf in self.graph.leafs], arenas)
        return tuple([arena.peak for arena in arenas])
