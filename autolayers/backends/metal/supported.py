"""Which operations Metal runs: ggml_metal_device_supports_op of
ggml/src/ggml-metal/ggml-metal-device.m, as modelled, on an M1 or newer (simdgroup matrices and
reductions, bfloat). The sources' places make no difference: the scheduler copies."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..backend import GLU, UNARY, always, types_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...builds import Rules

_FLOATS = frozenset(("f32", "f16"))
_NO_KERNEL = frozenset(("nvfp4", "tq1_0"))
_CONCAT = types_of("MTL", "CONCAT")
_FLASH_ATTN_HEADS = frozenset((32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576))
_FLASH_ATTN_PAIRS = frozenset(((96, 64), (128, 96), (192, 128), (320, 256), (576, 512)))
_FLASH_ATTN, _INDEXER = (
    types_of("MTL", "FLASH_ATTN_EXT"),
    types_of("MTL", "LIGHTNING_INDEXER"),
)
_SET_ROWS = types_of("MTL", "SET_ROWS")
_CPY = {
    "f32": types_of("MTL", "CPY_TO") | {"i32"},
    "f16": _FLOATS,
    "bf16": frozenset(("f32", "bf16")),
    "i32": frozenset(("f32", "i32")),
    **dict.fromkeys(types_of("MTL", "CPY_FROM"), _FLOATS),
}
_ALWAYS = always("MTL")
_THREADGROUP = 32768  # bytes of threadgroup memory


def supports_op(op: Tensor, rules: Rules) -> bool:
    """Return whether Metal runs this operation, by a build's rules."""
    kind = op.op
    if kind in _ALWAYS:
        return True
    if kind == "FLASH_ATTN_EXT":
        q, k, v = op.src[:3]
        if q.ne[0] not in _FLASH_ATTN_HEADS or k.type != v.type or k.type not in _FLASH_ATTN:
            return False
        if rules.metal_flash_pairs:
            return k.ne[0] == v.ne[0] or (k.ne[0], v.ne[0]) in _FLASH_ATTN_PAIRS
        # older builds compared the sizes only
        return k.ne[0] >= v.ne[0] and (k.ne[0] != 72 or v.ne[0] == 72)
    if kind == "LIGHTNING_INDEXER" and not rules.indexer_heads and op.src[0].ne[1] != 64:
        return False
    rule = _RULES.get(kind)
    return rule is not None and rule(op)


def _rows(op: Tensor) -> bool:
    return op.src[0].contiguous_rows()


def _float_rows(op: Tensor) -> bool:
    return op.src[0].contiguous_rows() and op.src[0].type in _FLOATS


def _arithmetic(op: Tensor) -> bool:
    return _float_rows(op) and op.src[1].contiguous_rows() and op.src[0].type == op.src[1].type


def _mul_mat(op: Tensor) -> bool:
    """Mirror ggml_metal_supports_mul_mat_op."""
    a, b = op.src[0], op.src[1]
    # the one product with half precision activations of an f32 matrix
    if a.type == "f32" and b.type == "f16" and _use_fwht(op):
        return True
    if a.type in _NO_KERNEL:
        return False
    # f32 activations: every remaining type has a kernel
    if b.type != "f16":
        return True
    if a.type == "bf16":
        return False
    if op.op == "MUL_MAT":
        return a.type == "f16" or _matrix_kernel(a, b)
    # experts: only the matrix kernel (mul_mm_id) reads half precision
    return a.ne[0] >= 64 and op.src[2].ne[1] >= 32


def _matrix_kernel(a: Tensor, b: Tensor) -> bool:
    """Return whether the product of matrices runs, and not that of a matrix and a vector."""
    transposed = _transposed(a) or _transposed(b)
    return not transposed and a.ne[0] >= 64 and b.ne[1] > 8


def _use_fwht(op: Tensor) -> bool:
    """Whether a product is the Hadamard rotation of quantised caches
    (ggml_metal_op_mul_mat_use_fwht)."""
    b = op.src[1]
    if op.op != "MUL_MAT" or op.param != "hadamard" or b.ne != op.ne:
        return False
    if not b.contiguous() or not op.contiguous():
        return False
    n = b.ne[0]
    return n in (64, 128, 256, 512) or (n in (1024, 2048, 4096, 8192) and 4 * n <= _THREADGROUP)


def _transposed(t: Tensor) -> bool:
    return t.nb[0] > t.nb[1]


def _indexer(op: Tensor) -> bool:
    q, k, weights, mask = op.src[:4]
    types = q.type == weights.type == op.type == "f32" and mask.type == "f16" and k.type in _INDEXER
    return types and q.ne[0] == 128 and all(t.contiguous_rows() for t in (q, k, weights, mask))


def _hyper_connections(op: Tensor) -> bool:
    if not all(t.type == "f32" and t.contiguous_rows() for t in op.src) or op.type != "f32":
        return False
    # 24 numbers: 4 pre, 4 post and 4 x 4 comb
    if op.op == "DSV4_HC_COMB":
        return op.src[0].ne[0] == op.src[2].ne[0] == 24 and op.src[1].ne[0] >= 3
    if op.op == "DSV4_HC_PRE":
        return True
    combined = len(op.src) < 4 or op.src[3].ne[:2] == (4, 4)
    return combined and op.src[1].ne[1] == op.src[2].ne[0] == 4


def _set_rows(op: Tensor) -> bool:
    source = op.src[0].type
    return op.type == "f16" if source == "f16" else source == "f32" and op.type in _SET_ROWS


_RULES: dict[str, Callable[[Tensor], bool]] = {
    **dict.fromkeys(("SCALE", "FILL", "CLAMP", "SQR", "SQRT", "SIN", "COS", "LOG"), _float_rows),
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV", "ADD_ID"), _arithmetic),
    **dict.fromkeys(
        (
            "TRI",
            "SUM_ROWS",
            "CUMSUM",
            "MEAN",
            "SOFT_MAX",
            "GROUP_NORM",
            "L2_NORM",
            "NORM",
            "RMS_NORM",
        ),
        _rows,
    ),
    **dict.fromkeys(
        ("UPSCALE", "POOL_2D", "PAD", "PAD_REFLECT_1D", "TIMESTEP_EMBEDDING", "SOLVE_TRI"),
        lambda op: op.src[0].type == "f32",
    ),
    **dict.fromkeys(
        ("SET", "CPY", "DUP", "CONT"), lambda op: op.type in _CPY.get(op.src[0].type, ())
    ),
    **dict.fromkeys(("MUL_MAT", "MUL_MAT_ID"), _mul_mat),
    **dict.fromkeys(("DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST"), _hyper_connections),
    "UNARY": lambda op: op.param in UNARY and _float_rows(op),
    "GLU": lambda op: op.param in GLU and op.src[0].contiguous(1) and op.src[0].type in _FLOATS,
    "CONCAT": lambda op: op.type == op.src[0].type == op.src[1].type and op.type in _CONCAT,
    "LIGHTNING_INDEXER": _indexer,
    "SET_ROWS": _set_rows,
    "ACC": lambda op: _rows(op) and op.src[1].contiguous_rows() and op.src[0].type == "f32",
    "SUM": lambda op: op.src[0].contiguous(),
    "ROLL": lambda op: op.src[0].contiguous(),
    "LEAKY_RELU": lambda op: op.src[0].type in _FLOATS,
    "IM2COL": lambda op: op.src[1].contiguous() and op.src[1].type == "f32" and op.type in _FLOATS,
    "CONV_2D": lambda op: (
        op.src[0].contiguous() and op.src[0].type in _FLOATS and op.src[1].type == op.type == "f32"
    ),
    "CONV_2D_DW": lambda op: op.src[0].type in _FLOATS and op.src[1].type == op.type == "f32",
    "POOL_1D": lambda op: op.src[0].contiguous() and op.src[0].type == "f32",
    "GATED_DELTA_NET": lambda op: op.src[2].ne[0] % 32 == 0,
    "GET_ROWS": lambda op: op.src[0].type not in _NO_KERNEL,
}
