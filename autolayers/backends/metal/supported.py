"""Which operations Metal runs: ggml_metal_device_supports_op of
ggml/src/ggml-metal/ggml-metal-device.m, as modelled, on an M1 or newer (simdgroup matrices and
reductions, bfloat). The sources' places make no difference: the scheduler copies."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..kernels import kernels_of, types_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ...builds import Rules

    class _Metal(Protocol):
        """A Metal backend."""

        rules: Rules


_FLOATS = frozenset(("f32", "f16"))
_NO_KERNEL = frozenset(("nvfp4", "tq1_0"))
_FLASH_ATTN_HEADS = frozenset((32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576))
_FLASH_ATTN_PAIRS = frozenset(((96, 64), (128, 96), (192, 128), (320, 256), (576, 512)))
_SET_ROWS = types_of("MTL", "SET_ROWS")
_CPY = {
    "f32": types_of("MTL", "CPY_TO") | {"i32"},
    "f16": _FLOATS,
    "bf16": frozenset(("f32", "bf16")),
    "i32": frozenset(("f32", "i32")),
    **dict.fromkeys(types_of("MTL", "CPY_FROM"), _FLOATS),
}
_THREADGROUP = 32768  # bytes of threadgroup memory


def flash_attn(op: Tensor, device: _Metal) -> bool:
    q, k, v = op.src[:3]
    if q.ne[0] not in _FLASH_ATTN_HEADS:
        return False
    if device.rules.metal_flash_pairs:
        return k.ne[0] == v.ne[0] or (k.ne[0], v.ne[0]) in _FLASH_ATTN_PAIRS
    # older builds compared the sizes only
    return k.ne[0] >= v.ne[0] and (k.ne[0] != 72 or v.ne[0] == 72)


def mul_mat(op: Tensor, device: _Metal) -> bool:
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
    return not a.transposed and not b.transposed and a.ne[0] >= 64 and b.ne[1] > 8


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


def indexer(op: Tensor, device: _Metal) -> bool:
    if not device.rules.indexer_heads and op.src[0].ne[1] != 64:
        return False
    return all(t.contiguous_rows() for t in op.src[:4])


def hyper_connections(op: Tensor, device: _Metal) -> bool:
    # 24 numbers: 4 pre, 4 post and 4 x 4 comb
    if op.op == "DSV4_HC_COMB":
        return op.src[0].ne[0] == op.src[2].ne[0] == 24 and op.src[1].ne[0] >= 3
    if op.op == "DSV4_HC_PRE":
        return True
    combined = len(op.src) < 4 or op.src[3].ne[:2] == (4, 4)
    return combined and op.src[1].ne[1] == op.src[2].ne[0] == 4


def set_rows(op: Tensor, device: _Metal) -> bool:
    source = op.src[0].type
    return op.type == "f16" if source == "f16" else source == "f32" and op.type in _SET_ROWS


def cpy(op: Tensor, device: _Metal) -> bool:
    return op.type in _CPY.get(op.src[0].type, ())


def delta_net(op: Tensor, device: _Metal) -> bool:
    return op.src[2].ne[0] % 32 == 0


SUPPORTED = kernels_of(
    "MTL", mul_mat, set_rows, cpy, delta_net, flash_attn, indexer, hyper_connections
)
