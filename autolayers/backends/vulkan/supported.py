"""Which operations Vulkan runs: ggml_backend_vk_device_supports_op of
ggml/src/ggml-vulkan/ggml-vulkan.cpp, as modelled. Where the sources lie makes no difference: the
scheduler copies."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size, type_size
from ..backend import GLU, UNARY, always, types_of
from .supported_before import BEFORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...builds import Rules
    from .limits import Limits

_FLOATS = frozenset(("f32", "f16"))
_MUL_MAT = types_of("Vulkan", "MUL_MAT")
_FLASH_ATTN, _INDEXER = (
    types_of("Vulkan", "FLASH_ATTN_EXT"),
    types_of("Vulkan", "LIGHTNING_INDEXER"),
)
_SET_ROWS = types_of("Vulkan", "SET_ROWS")
_CPY = types_of("Vulkan", "CPY")
_ARGSORT_LOG2 = 10  # num_argsort_pipelines - 1
_HC_STREAMS = 4
_ALWAYS = always("Vulkan")


def supports_op(op: Tensor, limits: Limits, size: int, rules: Rules) -> bool:
    """Return whether a device with these limits runs this operation, whose largest tensor has
    `size` bytes."""
    kind = op.op
    # a binding cannot be larger than the buffer that it is in
    if size > limits.max_buffer_size and rules.vulkan_buffer_limit:
        return False
    if size > limits.largest and kind != "IM2COL" and rules.vulkan_range_limit:
        return False
    if kind in _ALWAYS:
        return True
    before = BEFORE.get(kind)
    if before is not None and not before(op, limits, rules):
        return False
    rule = _RULES.get(kind)
    return rule is not None and rule(op, limits)


def largest(op: Tensor) -> int:
    """Return the bytes of its largest source or of its result."""
    size = op.nbytes
    for source in op.src:
        size = max(size, source.nbytes)
    return size


def _mul_mat(op: Tensor, limits: Limits) -> bool:
    a, b = op.src[0], op.src[1]
    if op.op == "MUL_MAT_ID" and op.param == "src1_f32":
        return False
    # experts: the ids have the batch
    batched = a if op.op == "MUL_MAT" else op.src[2]
    if a.type not in _MUL_MAT or batched.ne[3] != b.ne[3]:
        return False
    # whether activations of half precision are multiplied by a matrix of this type
    return (
        _is_read(a, ("f32", "f16", "bf16"))
        and _is_read(b, ("f32", "f16"))
        and (b.type not in ("f16", "bf16") or (a.type == "bf16") == (b.type == "bf16"))
    )


def _is_read(t: Tensor, plain: tuple[str, ...]) -> bool:
    """Return whether a shader reads it where it lies: plain numbers anywhere, others without
    gaps."""
    # quantised matrices are bound as they lie, so rows must follow each other
    return t.type in plain or _dim01_contiguous(t)


def _dim01_contiguous(t: Tensor) -> bool:
    """Mirror ggml_vk_dim01_contiguous."""
    size = type_size(t.type)
    return (
        t.nb[0] == size
        and t.nb[1] == size * t.ne[0] // block_size(t.type)
        and (t.ne[3] == 1 or t.nb[3] == t.nb[2] * t.ne[2])
    )


def _flash_attn(op: Tensor, limits: Limits) -> bool:
    q, k, v = op.src[:3]
    mask = op.param[0]  # type: ignore[index]
    # shaders load eight elements at a time
    if k.ne[0] % 8 or v.ne[0] % 8 or not q.type == op.type == "f32":
        return False
    if mask is not None and mask.type != "f16":
        return False
    if k.type not in _FLASH_ATTN or v.type not in _FLASH_ATTN:
        return False
    # a shader reads both K and V as bf16, or neither
    alike = (k.type == "bf16") == (v.type == "bf16")
    return alike and (limits.cooperative_matrix2 or limits.subgroup_shuffle_vote)


def _converts_f32(plain: str, other: str) -> bool:
    return plain == "f32" and other in _CPY


def _cpy(op: Tensor, limits: Limits) -> bool:
    a = op.src[0].type
    b = op.src[1].type if len(op.src) > 1 else a
    if {a, b} == {"f32", "i32"} or _converts_f32(a, b) or _converts_f32(b, a):
        return True
    if a != b or type_size(a) % 2:
        return False
    return block_size(a) == 1 or (op.src[0].contiguous() and op.contiguous())


def _same_float(op: Tensor, limits: Limits) -> bool:
    return op.src[0].type in _FLOATS and op.type == op.src[0].type


def _arithmetic(op: Tensor, limits: Limits) -> bool:
    return op.src[0].type in _FLOATS and op.src[1].type in _FLOATS and op.type in _FLOATS


def _concat(op: Tensor, limits: Limits) -> bool:
    a, b = op.src[0], op.src[1]
    if a.type != b.type or a.type != op.type:
        return False
    if block_size(a.type) == 1:
        return type_size(a.type) in (1, 2, 4, 8)
    return a.contiguous_rows() and b.contiguous_rows() and op.contiguous_rows()


def _plain_f32(op: Tensor, limits: Limits) -> bool:
    return op.src[0].type == "f32" and op.src[0].contiguous()


def _soft_max(op: Tensor, limits: Limits) -> bool:
    masked = isinstance(op.param, tuple) and op.param[0]
    return _plain_f32(op, limits) and (not masked or op.src[1].type in _FLOATS)


def _workgroup_log2(limits: Limits) -> int:
    return limits.max_compute_workgroup_invocations.bit_length() - 1


def _hyper_connections(op: Tensor, limits: Limits) -> bool:
    if any(t.type != "f32" for t in (op, *op.src)):
        return False
    if op.op == "DSV4_HC_COMB":
        return (
            limits.subgroup_shuffle_vote
            and limits.compute_full_subgroups
            and limits.subgroup_size >= 16
        )
    return op.src[0 if op.op == "DSV4_HC_PRE" else 1].ne[1] == _HC_STREAMS


def _solve_tri(op: Tensor, limits: Limits) -> bool:
    n, k = op.src[0].ne[0], op.src[1].ne[0]
    return (
        op.type == op.src[0].type == "f32"
        and k <= 1 << _workgroup_log2(limits)
        and 4 * (n + k) <= limits.max_compute_shared_memory_size
    )


def _ssm_scan(op: Tensor, limits: Limits) -> bool:
    """Whether Vulkan runs the scan: Mamba-2 only, whose decays are one per head."""
    s, decays = op.src[0], op.src[3]
    if any(block_size(t.type) > 1 for t in op.src[:6]) or op.src[6].type != "i32":
        return False
    if not s.type == op.type == "f32" or decays.nb[1] != 4:
        return False
    d_state, head_dim = s.ne[:2]
    if d_state not in (128, 256) or head_dim % 16:
        return False
    return 4 * d_state <= limits.max_compute_shared_memory_size


def _indexer(op: Tensor, limits: Limits) -> bool:
    q, k = op.src[0], op.src[1]
    if k.type not in _INDEXER or not limits.shader_float16 or q.ne[0] != 128:
        return False
    alignment = limits.min_storage_buffer_offset_alignment
    return all(_is_aligned(t, alignment) for t in (*op.src[:4], op))


def _is_aligned(t: Tensor, alignment: int) -> bool:
    size = type_size(t.type)
    if t.nb[0] != size or t.view_offs % alignment:
        return False
    return not any(n % size for n in t.nb[1:])


def _rows(op: Tensor, limits: Limits) -> bool:
    return op.src[0].type == "f32" and op.src[0].contiguous_rows()


def _f32_source(op: Tensor, limits: Limits) -> bool:
    return op.src[0].type == "f32"


def _normalised(op: Tensor, limits: Limits) -> bool:
    return op.src[0].type == op.type == "f32"


_RULES: dict[str, Callable[[Tensor, Limits], bool]] = {
    "UNARY": lambda op, _: op.param in UNARY and _same_float(op, _),
    "GLU": lambda op, _: (
        op.param in GLU and _same_float(op, _) and all(t.type == op.type for t in op.src)
    ),
    "MUL_MAT": _mul_mat,
    "MUL_MAT_ID": _mul_mat,
    "FLASH_ATTN_EXT": _flash_attn,
    "GET_ROWS": lambda op, _: op.src[0].type in _MUL_MAT or op.src[0].type == "i32",
    "SET_ROWS": lambda op, _: (
        op.src[0].type in _FLOATS and op.src[1].type in ("i32", "i64") and op.type in _SET_ROWS
    ),
    "CPY": _cpy,
    "CONT": _cpy,
    "DUP": _cpy,
    "REPEAT": lambda op, _: (
        type_size(op.type) == type_size(op.src[0].type) and type_size(op.type) in (2, 4)
    ),
    "ROPE": lambda op, _: op.contiguous_rows() and op.src[0].contiguous_rows(),
    "GROUP_NORM": lambda op, _: op.src[0].contiguous(),
    "NORM": _normalised,
    "L2_NORM": _normalised,
    "ADD": _arithmetic,
    "SUB": _arithmetic,
    "MUL": _arithmetic,
    "DIV": _arithmetic,
    "ADD_ID": lambda op, _: (
        op.type == op.src[0].type == op.src[1].type == "f32" and op.src[2].type == "i32"
    ),
    "SQR": _same_float,
    "SQRT": _same_float,
    "SIN": _same_float,
    "COS": _same_float,
    "CLAMP": _same_float,
    "LEAKY_RELU": _same_float,
    "LOG": _same_float,
    "TRI": _same_float,
    "DIAG": _same_float,
    "OUT_PROD": lambda op, _: (
        all(t.type == "f32" for t in (op, *op.src)) and all(t.contiguous() for t in op.src)
    ),
    # large sorts need the memory model; small ones fit into a workgroup
    "ARGSORT": lambda op, limits: (
        op.contiguous()
        and op.src[0].contiguous()
        and (
            limits.vulkan_memory_model
            or op.ne[0] <= 1 << min(_workgroup_log2(limits), _ARGSORT_LOG2)
        )
    ),
    "TOP_K": lambda op, _: op.contiguous() and op.src[0].contiguous(),
    "UPSCALE": _f32_source,
    "PAD": _f32_source,
    "PAD_REFLECT_1D": _f32_source,
    "ROLL": _f32_source,
    "TIMESTEP_EMBEDDING": _f32_source,
    "SSM_CONV": _f32_source,
    "ACC": lambda op, _: op.type == op.src[0].type == op.src[1].type == "f32",
    "SET": lambda op, _: op.type == op.src[0].type == op.src[1].type and op.type in ("f32", "i32"),
    "CONCAT": _concat,
    "ADD1": lambda op, _: (
        (op.src[0].type, op.src[1].type) in (("f32", "f32"), ("f16", "f32"), ("f16", "f16"))
    ),
    "ARANGE": lambda op, _: op.type == "f32",
    "FILL": lambda op, _: op.type in _FLOATS,
    "SCALE": _plain_f32,
    "DIAG_MASK_INF": _plain_f32,
    "ARGMAX": _plain_f32,
    "POOL_1D": _plain_f32,
    "POOL_2D": _plain_f32,
    "SOFT_MAX": _soft_max,
    "SUM": _rows,
    "SUM_ROWS": _rows,
    "MEAN": _rows,
    "CUMSUM": lambda op, limits: (
        limits.subgroup_arithmetic and limits.compute_full_subgroups and _rows(op, limits)
    ),
    "DSV4_HC_COMB": _hyper_connections,
    "DSV4_HC_PRE": _hyper_connections,
    "DSV4_HC_POST": _hyper_connections,
    "SOLVE_TRI": _solve_tri,
    "IM2COL": lambda op, _: (
        op.src[1].contiguous() and op.src[1].type == "f32" and op.type in _FLOATS
    ),
    "CONV_2D_DW": lambda op, _: op.src[0].type in _FLOATS and op.src[1].type == "f32",
    "CONV_TRANSPOSE_1D": lambda op, _: op.src[0].type == op.src[1].type == "f32",
    "GATED_LINEAR_ATTN": lambda op, _: op.src[0].type == op.type == "f32" and op.src[0].ne[0] == 64,
    "LIGHTNING_INDEXER": _indexer,
    "GATED_DELTA_NET": lambda op, _: (
        op.src[2].ne[0] in (16, 32, 64, 128) and all(t.type == "f32" for t in (op, *op.src[:6]))
    ),
    "SSM_SCAN": _ssm_scan,
}
