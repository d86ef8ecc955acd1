"""What ik_llama.cpp's scheduler does unlike llama.cpp's: pass 1 and where a split begins
(ggml_backend_sched_split_graph, ggml/src/ggml-backend.cpp), and what CUDA's backend says of
operations (ggml/src/ggml-cuda.cu), 8337e4cd. Without copies of inputs (GGML_SCHED_MAX_COPIES is
1)."""

from __future__ import annotations

from ....errors import LaunchRefused
from ....ggml.allocator import Arena, allocate
from ....ggml.scheduler import Readers, assign_others, split
from ....ggml.tensor import VIEW_OPS, Buffer, Graph, Tensor
from ....ggml.types import is_quantised

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
    # gqa_opt_applies: with a mask, as here always, and an even number of heads that share keys
    ratio = q.ne[2] // k.ne[2]
    grouped = ratio % 2 == 0
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


class _Rules:
    """Those of llama.cpp's builds of that time."""

    sinks_follow = copies_every_input = any_split_inputs = False
    split_inputs_grow = split_inputs_30 = False


class _Device:
    """A CUDA device, or the CPU, as ggml's scheduler asks it."""

    def __init__(self, buffer: Buffer, cpu: bool) -> None:
        """`buffer`: the one for its results."""
        self.buffer, self.cpu = buffer, cpu

    def supports_op(self, op: Tensor) -> bool:
        return self.cpu or op.op == "NONE" or op.op in VIEW_OPS or supports(op)

    def supports_buft(self, buffer: Buffer) -> bool:
        # a GPU reads its own buffer alone, the CPU whatever the host can address
        return buffer.host if self.cpu else buffer.name == self.buffer.name

    def offload_op(self, op: Tensor) -> bool:
        return offloads(op)

    def graph_optimize(self, nodes: list[Tensor], *_: object) -> list[Tensor]:
        return nodes


def buffer_sizes(
    graph: Graph, buffers: Sequence[Buffer], arenas: Sequence[Arena]
) -> tuple[int, ...]:
    """Return the bytes of each backend's buffer; the CPU is the last."""
    devices = [_Device(each, each is buffers[-1]) for each in buffers]
    assign(graph, Readers(devices))
    # a split may also begin for a REDUCE, and where the builder marks a node (0xff)
    marked = {id(node) for node in graph.nodes if node.op == "REDUCE" or node.name == "0xff"}
    try:
        parts = split(graph, devices, _Rules(), marked=marked, most_inputs=_MAX_INPUTS)
    except LaunchRefused:
        raise LaunchRefused(_TOO_MANY) from None
    allocate(parts.nodes, parts.leafs, arenas)
    return tuple([arena.peak for arena in arenas])


def assign(graph: Graph, readers: Readers) -> None:
    """Set the backend of every leaf and node: pass 1, then llama.cpp's others."""
    for leaf in graph.leafs:
        leaf.backend = leaf.pinned if leaf.pinned >= 0 else _first(leaf, readers)
    for node in graph.nodes:
        if node.op == "REDUCE":
            # each part on its device, the sum where the part is whose memory it takes
            for device, part in node.param.items():  # type: ignore[attr-defined]
                if part.backend < 0:
                    part.backend = device
                if node.view_src is part:
                    node.backend = device
            for part in node.src:
                part.copies = {node.backend: [part]}  # read where it is
        if node.pinned >= 0 and node.backend < 0:
            node.backend = node.pinned
        # a hack for Cohere2 there, against splits that make no sense
        if node.op == "MUL" and node.src[0].op == "NORM" and node.src[1].backend >= 0:
            node.src[0].backend = node.backend = node.src[1].backend
        if node.backend < 0:
            node.backend = _first(node, readers)
    assign_others(graph, readers, lost=True)


def _first(t: Tensor, readers: Readers) -> int:
    """Mirror ggml_backend_sched_backend_id_from_cur."""
    backend = -1 if t.buffer is None else readers.from_buffer(t.buffer, t)
    if backend >= 0:
        return backend
    if t.is_input:
        return readers.cpu
    # the first weight decides; one in RAM whose operation is large enough goes to a GPU
    for source in t.src:
        if source.weight:
            assert source.buffer is not None
            backend = readers.from_buffer(source.buffer, t)
            return readers.offload(t) if backend == readers.cpu else backend
    return -1
