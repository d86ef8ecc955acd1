"""CUDA in a graph: which ops it runs, what they take beyond their result, what it keeps alive for its fusions.

Mirrors ggml/src/ggml-cuda of 2026-10-01: ggml_backend_cuda_device_supports_op, get_op_batch_size,
ggml_cuda_get_best_fattn_kernel, ggml_backend_cuda_buffer_type_get_alloc_size, ggml_backend_cuda_graph_optimize
(default build: compiled flash-attention pairs f16, bf16, q4_0 and q8_0 with themselves; CUB present).
"""

from __future__ import annotations

from ..memory.graph.tensor import Buffer, Tensor, block_size, row_size, type_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ALIGNMENT = 128
MATRIX_ROW_PADDING = 512
OFFLOAD_MIN_BATCH = 32          # GGML_OP_OFFLOAD_MIN_BATCH
_KQ_STRIDE = 256                # FATTN_KQ_STRIDE

_UNARY = frozenset((
    "ABS", "SGN", "NEG", "STEP", "GELU", "SILU", "RELU", "SIGMOID", "HARDSIGMOID", "HARDSWISH", "GELU_ERF",
    "GELU_QUICK", "TANH", "EXP", "EXPM1", "SOFTPLUS", "ELU", "XIELU", "FLOOR", "CEIL", "ROUND", "TRUNC",
))
_GLU = frozenset(("REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP"))
_MUL_MAT = frozenset((
    "f32", "f16", "bf16", "q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "nvfp4", "q2_K", "q3_K",
    "q4_K", "q5_K", "q6_K", "q8_K", "iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs", "iq4_nl",
    "iq4_xs",
))
_GET_ROWS = frozenset((
    "f16", "f32", "bf16", "i32", "q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K",
    "q5_K", "q6_K", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m", "iq4_xs",
))
_SET_ROWS = frozenset(("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"))
_FLOATS = frozenset(("f32", "bf16", "f16"))
_CPY_PAIRS = frozenset(
    [("f32", q) for q in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "i32")]
    + [(q, "f32") for q in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "i32")] + [("i32", "i32")])
_KV = frozenset(("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"))
_VEC_PAIRS = frozenset((t, t) for t in ("f16", "bf16", "q4_0", "q8_0"))
_ALWAYS = frozenset((
    "NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "ADD_ID", "ADD1", "SQR", "SQRT", "SIN", "COS", "CLAMP", "LOG",
    "DUP", "ARGMAX", "COUNT_EQUAL", "CONT", "DIAG_MASK_INF", "SOFT_MAX", "CONV_TRANSPOSE_2D", "POOL_1D", "POOL_2D",
    "TOP_K", "ARGSORT", "PAD", "UPSCALE", "PAD_REFLECT_1D", "ARANGE", "TIMESTEP_EMBEDDING", "LEAKY_RELU",
    "RWKV_WKV6", "GATED_LINEAR_ATTN", "RWKV_WKV7", "GATED_DELTA_NET", "FILL", "CUMSUM", "TRI", "DIAG", "SOLVE_TRI",
    "DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST",
))


def supports(op: Tensor) -> bool:
    """Whether CUDA runs this op, wherever its sources lie."""
    kind = op.op
    if kind in _ALWAYS:
        return True
    rule = _RULES.get(kind)
    return rule is not None and rule(op)


def _mul_mat(op: Tensor) -> bool:
    a, b = op.src[0], op.src[1]
    if a.nb[0] != type_size(a.type) or b.nb[0] != type_size(b.type):
        return False
    if b.type == "f16" and a.type != "f16" and not _fwht(op):
        return False
    if op.op == "MUL_MAT_ID" and op.param == "src1_f32":
        return False
    return a.type in _MUL_MAT


def _fwht(op: Tensor) -> bool:
    """ggml_cuda_op_mul_mat_use_fwht: the Hadamard rotation of quantised caches."""
    b = op.src[1]
    return (op.op == "MUL_MAT" and op.param == "hadamard" and op.src[0].type == "f32" and b.type in ("f32", "f16")
            and b.contiguous() and op.contiguous() and b.ne == op.ne)


def _get_rows(op: Tensor) -> bool:
    type_ = op.src[0].type
    return type_ in _GET_ROWS or (type_ in ("iq4_nl", "mxfp4") and op.src[0].ne[0] % 256 == 0)


def _set_rows(op: Tensor) -> bool:
    source = op.src[0].type
    return ((op.type in _SET_ROWS and source == "f32") or (op.type == "f16" and source == "f16")) and \
        op.src[1].type in ("i64", "i32")


def _cpy(op: Tensor) -> bool:
    a, b = op.src[0], op.src[1]
    return ((a.type in _FLOATS and b.type in _FLOATS) or (a.type, b.type) in _CPY_PAIRS
            or (a.type == b.type and a.contiguous() and b.contiguous()))


def _arithmetic(op: Tensor) -> bool:
    a, b, t = op.src[0].type, op.src[1].type, op.type
    if "bf16" in (a, b, t):
        return a == "bf16" and t == "bf16" and b in ("bf16", "f32")
    return a in ("f32", "f16") and b in ("f32", "f16") and t in ("f32", "f16")


def _concat(op: Tensor) -> bool:
    a, b = op.src[0], op.src[1]
    if a.type != b.type or a.type != op.type:
        return False
    if block_size(a.type) == 1:
        return type_size(a.type) in (1, 2, 4, 8)
    straight = a.contiguous() and b.contiguous() if op.param == 3 else a.contiguous(0) and b.contiguous(0)
    return straight and a.ne[0] % block_size(a.type) == 0 and b.ne[0] % block_size(a.type) == 0


def _ssm_scan(op: Tensor) -> bool:
    s = op.src[0]
    if op.src[3].ne[0] == 1:     # Mamba-2
        return s.ne[0] in (96, 128, 256) and s.ne[1] % 16 == 0
    if isinstance(op.param, int) and op.param > 1:
        return False
    return s.ne[0] == 16 and s.ne[1] == 1 and s.ne[2] % 128 == 0 and op.src[4].ne[1] == 1


def _indexer(op: Tensor) -> bool:
    q, k = op.src[0], op.src[1]
    if q.ne[0] != 128 or q.ne[1] not in (32, 64):
        return False
    for t in (q, k):
        if block_size(t.type) == 1 and any(n % 16 for n in t.nb[1:]):
            return False
    return k.type in ("f32", "bf16", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


_RULES: dict[str, Callable[[Tensor], bool]] = {
    "UNARY": lambda op: op.param in _UNARY and op.src[0].contiguous()
    and not (op.param == "XIELU" and op.src[0].type == "bf16"),
    "GLU": lambda op: op.param in _GLU and op.src[0].contiguous(1)
    and not (op.src[0].type == "bf16" and op.param in ("SWIGLU_OAI", "SWIGLU_CLAMP")),
    "MUL_MAT": _mul_mat, "MUL_MAT_ID": _mul_mat, "GET_ROWS": _get_rows, "SET_ROWS": _set_rows, "CPY": _cpy,
    "OUT_PROD": lambda op: op.type == op.src[0].type == op.src[1].type == "f32",
    "SET": lambda op: op.type in ("f32", "i32") and op.type == op.src[0].type == op.src[1].type,
    "REPEAT": lambda op: op.src[0].type in ("f32", "f16"),
    "CONCAT": _concat,
    "CONV_TRANSPOSE_1D": lambda op: op.src[0].type == op.src[1].type == "f32",
    "NORM": lambda op: op.src[0].contiguous_rows(), "RMS_NORM": lambda op: op.src[0].contiguous_rows(),
    "L2_NORM": lambda op: op.src[0].contiguous_rows(), "GROUP_NORM": lambda op: op.src[0].contiguous(),
    "SCALE": lambda op: op.src[0].type in ("f32", "bf16") and op.type == op.src[0].type,
    "ADD": _arithmetic, "SUB": _arithmetic, "MUL": _arithmetic, "DIV": _arithmetic,
    "SSM_SCAN": _ssm_scan, "SSM_CONV": lambda op: op.src[0].ne[1] % 128 == 0,
    "ROLL": lambda op: op.src[0].type == "f32" and op.src[0].contiguous(),
    "ROPE": lambda op: op.src[0].nb[0] == type_size(op.src[0].type) and op.src[0].contiguous(2),
    "ROPE_BACK": lambda op: op.src[0].nb[0] == type_size(op.src[0].type) and op.src[0].contiguous(2),
    "IM2COL": lambda op: op.src[0].contiguous() and op.src[1].contiguous(),
    "CONV_2D": lambda op: op.src[0].contiguous() and op.src[1].contiguous(),
    "CONV_2D_DW": lambda op: op.src[0].type in ("f16", "f32") and op.src[1].type == op.type == "f32",
    "ACC": lambda op: op.src[0].contiguous() and op.src[1].contiguous(),
    "SUM": lambda op: op.src[0].contiguous_rows(),
    "SUM_ROWS": lambda op: op.src[0].type == op.type == "f32" and op.src[0].contiguous_rows(),
    "MEAN": lambda op: op.src[0].type == op.type == "f32" and op.src[0].contiguous_rows(),
    "LIGHTNING_INDEXER": _indexer,
    "FLASH_ATTN_EXT": lambda op: flash_kernel(op, 890) != "none",
}


def batch_size(op: Tensor) -> int:
    """get_op_batch_size: rows of work, against OFFLOAD_MIN_BATCH."""
    if op.op == "GET_ROWS":
        return 0
    if op.op == "MUL_MAT":
        return op.ne[1]
    if op.op in ("MUL_MAT_ID", "ROPE", "ROPE_BACK"):
        return op.ne[2]
    return op.nrows


def flash_kernel(op: Tensor, cc: int) -> str:
    """ggml_cuda_get_best_fattn_kernel: "none", "vec", "mma" or "tile"; `cc` is 100 * major + 10 * minor."""
    q, k, v = op.src[0], op.src[1], op.src[2]
    mask, alibi = op.param[0], op.param[1]     # type: ignore[index]
    ratio = q.ne[2] // k.ne[2]
    grouped = ratio >= 2 and mask is not None and not alibi and k.ne[1] % _KQ_STRIDE == 0
    for t in (q, k, v, mask):
        if t is not None and block_size(t.type) == 1 and any(n % 16 for n in t.nb[1:]):
            grouped = False
            break
    head = k.ne[0]
    if head in (40, 64, 72, 80, 96, 112, 128, 256):
        if v.ne[0] != head:
            return "none"
    elif head == 192:
        if v.ne[0] != 128 or not grouped or ratio % 8:
            return "none"
    elif head == 320:
        if v.ne[0] != 256 or not grouped or ratio % 32:
            return "none"
    elif head == 512 or head == 576:
        if v.ne[0] != 512 or not grouped:
            return "none"
    else:
        return "none"
    if k.type not in _KV or v.type not in _KV or (mask is not None and mask.ne[2] != 1):
        return "none"
    vector = q.ne[0] <= 256 and q.ne[0] % 64 == 0 and q.ne[0] != 192 and k.ne[1] % _KQ_STRIDE == 0
    quantised = block_size(k.type) > 1 or block_size(v.type) > 1
    n = q.ne[1]
    if cc >= 750 and q.ne[0] not in (40, 72):
        if vector:
            if not quantised:
                if cc >= 890 and n == 1 and q.ne[3] == 1 and not (ratio > 4 and (q.ne[0] >= 256 or k.ne[1] >= 8192)):
                    return "vec"
            elif n <= (2 if cc >= 890 else 1):
                return "vec"
            if not grouped and n == 1:
                return "vec"
        return "mma"
    if cc >= 700 and cc < 750 and q.ne[0] not in (40, 72):
        effective, most = 1, 32 if q.ne[0] == 320 else 16 if q.ne[0] in (192, 576) else 8
        while ratio % (2 * effective) == 0 and effective < most:
            effective *= 2
        if vector and n * effective <= 2:
            return "vec"
        return "tile" if n * effective <= 16 else "mma"
    if vector and ((not quantised and n == 1 and not grouped) or (quantised and n <= 2)):
        return "vec"
    return "tile"


def alloc_size(t: Tensor, cc: int = 890) -> int:
    """Bytes ggml asks of a CUDA buffer for this tensor."""
    if t.op == "NONE" or t.view_src is not None:
        size = t.nbytes
    else:
        size = t.nb[3] * t.ne[3]         # a result has no gaps
    if t.op == "FLASH_ATTN_EXT":
        k, v = t.src[1], t.src[2]
        kernel = flash_kernel(t, cc)
        need_k = need_v = kernel in ("tile", "mma")
        if kernel == "vec":
            fallback = (k.type, v.type) not in _VEC_PAIRS or t.src[0].ne[0] not in (64, 128, 256)
            need_k, need_v = k.type == "f32" or fallback, v.type == "f32" or fallback
        v_is_k = v.view_src is not None and (v.view_src is k or (v.view_src is k.view_src and v.view_offs == k.view_offs))
        if need_k and k.type != "f16":
            size = -(-size // 128) * 128 + 2 * k.nelements
        if need_v and v.type != "f16" and not v_is_k:
            size = -(-size // 128) * 128 + 2 * v.nelements
    if t.type != "f32" and block_size(t.type) > 1 and t.ne[0] % MATRIX_ROW_PADDING:
        size += row_size(t.type, MATRIX_ROW_PADDING - t.ne[0] % MATRIX_ROW_PADDING)
    return size


# what graph_optimize keeps alive

_FUSED_FIRST = frozenset(("MUL", "UNARY", "SOFT_MAX"))     # the ops with which a fusion that keeps tensors alive begins


def keep_alive(nodes: list[Tensor], after: Tensor | None, deps: dict[int, list[Tensor]]) -> None:
    """Add to `deps`: id(node) -> tensors that must not be freed before it, for the fused MoE paths. A fusion that ends
    with its split holds its tensors until `after`, the next split's first node."""

    def keep(tensors: list[Tensor], until: Tensor) -> None:
        kept = deps.setdefault(id(until), [])
        there = {id(t) for t in kept}
        for tensor in tensors:
            if id(tensor) not in there:
                there.add(id(tensor))
                kept.append(tensor)

    i, count = 0, len(nodes)
    while i < count:
        node = nodes[i]
        if node.op not in _FUSED_FIRST:
            i += 1
            continue
        if node.op == "MUL" and i + 1 < count and nodes[i + 1].op in ("MUL", "VIEW"):
            match = _weighted_reduction(nodes, i)
            if match is not None:
                kept, length = match
                keep(kept, nodes[i + length - 1])
                i += length - 1
                node = nodes[i]
        if node.op in ("UNARY", "SOFT_MAX"):
            length = _top_k_moe(nodes, i)
            until = nodes[i + length] if i + length < count else after
            if length and until is not None:
                keep([t for tensor in nodes[i:i + length] for t in (tensor, *tensor.src)], until)
                i += length - 1
        i += 1


def _fusible(nodes: list[Tensor], start: int, length: int, outputs: tuple[int, ...]) -> bool:
    """ggml_can_fuse_subgraph: nothing inside is needed outside, but for the outputs."""
    group = nodes[start:start + length]
    if len(group) < length or length > 31:
        return False
    inside = {id(node): 0 for node in group}       # how often each is read by the others
    for node in group:
        for source in node.src:
            if id(source) in inside:
                inside[id(source)] += 1
    for i, node in enumerate(group):
        if start + i in outputs:
            continue
        if node.is_output or inside[id(node)] != node.uses:
            return False
        root = node.view_src
        if root is not None and not root.weight and id(root) not in inside:
            return False
    return True


def _weighted_reduction(nodes: list[Tensor], start: int) -> tuple[list[Tensor], int] | None:
    """experts * weights summed over the experts used (ggml_cuda_match_moe_weighted_reduction)."""

    def parts(mul: Tensor) -> tuple[Tensor, Tensor] | None:
        for full, broadcast in ((mul.src[0], mul.src[1]), (mul.src[1], mul.src[0])):
            if (full.type == broadcast.type == "f32" and full.contiguous() and broadcast.contiguous()
                    and full.ne == mul.ne and broadcast.ne[0] == 1 and broadcast.ne[1:] == mul.ne[1:]):
                return full, broadcast
        return None

    first = nodes[start]
    if first.type != "f32" or not first.contiguous():
        return None
    kept: list[Tensor] = []
    weighted, n_mul = first, 1
    second = nodes[start + 1]
    if second.op == "MUL" and second.type == "f32" and second.contiguous():
        outer, inner = parts(second), parts(first)
        if outer is not None and outer[0] is first and inner is not None:
            weighted, n_mul, kept = second, 2, [inner[0], outer[1], inner[1]]
    if not kept:
        found = parts(first)
        if found is None:
            return None
        kept = [found[0], found[1]]
    used, n_tokens = weighted.ne[1], weighted.ne[2] * weighted.ne[3]
    length = 2 * used + n_mul - 1
    if not 2 <= used <= 15 or n_tokens <= 0 or start + length > len(nodes):
        return None
    views: list[Tensor] = []
    last: Tensor | None = None
    adds = 0
    for candidate in nodes[start + n_mul:start + length]:
        if candidate.op == "VIEW":
            if (len(views) >= used or candidate.src[0] is not weighted or candidate.view_src is not weighted
                    or candidate.ne != (weighted.ne[0], n_tokens, 1, 1) or candidate.nb[0] != weighted.nb[0]
                    or candidate.nb[1] != weighted.nb[2] or candidate.view_offs != len(views) * weighted.nb[1]):
                return None
            views.append(candidate)
        else:
            if candidate.op != "ADD" or len(views) < 2 or adds + 1 >= len(views) or candidate.type != "f32":
                return None
            left = views[0] if adds == 0 else last
            if candidate.src[0] is not left or candidate.src[1] is not views[adds + 1]:
                return None
            last = candidate
            adds += 1
    if len(views) != used or adds != used - 1 or last is None or last.ne != (weighted.ne[0], n_tokens, 1, 1):
        return None
    return (kept, length) if _fusible(nodes, start, length, (start + length - 1,)) else None


def _top_k_moe(nodes: list[Tensor], start: int) -> int:
    """Length of a fusible expert selection beginning here, else 0 (ggml_cuda_topk_moe_fusion)."""
    i, count = start, len(nodes)
    gate = nodes[i]
    if gate.op == "UNARY":
        if gate.param == "SOFTPLUS" and i + 1 < count and nodes[i + 1].op == "SQRT" and nodes[i + 1].src[0] is gate:
            i += 1
        elif gate.param != "SIGMOID":
            return 0

    def follows(j: int, op: str, source: Tensor) -> bool:
        return j < count and nodes[j].op == op and nodes[j].src[0] is source

    probs = nodes[i]
    if not follows(i + 1, "RESHAPE", probs):
        return 0
    reshaped = nodes[i + 1]
    i += 2
    ranked = probs
    if follows(i, "ADD", probs):
        ranked = nodes[i]
        i += 1
    if not follows(i, "ARGSORT", ranked) or not follows(i + 1, "VIEW", nodes[i]):
        return 0
    ids = nodes[i + 1]
    i += 2
    if not follows(i, "GET_ROWS", reshaped) or nodes[i].src[1] is not ids:
        return 0
    ids_at = i - 1
    i += 1
    if (follows(i, "RESHAPE", nodes[i - 1]) and follows(i + 1, "SUM_ROWS", nodes[i])
            and follows(i + 2, "CLAMP", nodes[i + 1]) and follows(i + 3, "DIV", nodes[i])
            and nodes[i + 3].src[1] is nodes[i + 2] and follows(i + 4, "RESHAPE", nodes[i + 3])):
        i += 5
    if follows(i, "SCALE", nodes[i - 1]):
        i += 1
    length = i - start
    if not _fusible(nodes, start, length, (ids_at, i - 1)):
        return 0
    n_expert = ids.nb[1] // ids.nb[0]
    if (n_expert & (n_expert - 1) or n_expert > 512) and n_expert not in (288, 576):
        return 0
    if not gate.src[0].contiguous() or not nodes[i - 1].contiguous():
        return 0
    if gate.op == "SOFT_MAX" and (len(gate.src) > 1 or gate.param not in (None, (False, False))):
        return 0
    return length


class Cuda:
    """One CUDA device as the scheduler's backend."""

    def __init__(self, index: int, name: str, compute_capability: tuple[int, int] | None = None) -> None:
        self.buffer = Buffer(name, index, ALIGNMENT, host=False, pad_rows=True)
        self.cc = 890 if compute_capability is None else 100 * compute_capability[0] + 10 * compute_capability[1]

    def supports(self, op: Tensor) -> bool:
        for source in op.src:
            buffer = source.buffer
            # memory of another card is out of reach; views carry no buffer of their own yet when llama.cpp asks
            if buffer is not None and source.view_src is None and not buffer.host and buffer is not self.buffer \
                    and buffer.device >= 0:
                return False
        return supports(op)

    def reads(self, buffer: Buffer) -> bool:
        return buffer is self.buffer

    def offloads(self, op: Tensor) -> bool:
        return batch_size(op) >= OFFLOAD_MIN_BATCH

    def keep_alive(self, nodes: list[Tensor], after: Tensor | None, deps: dict[int, list[Tensor]]) -> None:
        keep_alive(nodes, after, deps)

    def alloc_size(self, tensor: Tensor) -> int:
        return alloc_size(tensor, self.cc)
