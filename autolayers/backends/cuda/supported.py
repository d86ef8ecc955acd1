"""Which operations CUDA runs: ggml_backend_cuda_device_supports_op of
ggml/src/ggml-cuda/ggml-cuda.cu, as modelled (default build, CUB present)."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size, type_size
from ..kernels import kernels_of, types_of
from .fattn import flash_kernel, unaligned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ...builds import Rules

    class _Card(Protocol):
        """A Cuda backend."""

        rules: Rules
        cc: int
        all_quants: bool


_GET_ROWS_PLAIN = types_of("CUDA", "GET_ROWS")
_GET_ROWS = _GET_ROWS_PLAIN | types_of("CUDA", "GET_ROWS_K")
_SET_ROWS = types_of("CUDA", "SET_ROWS")
_FLOATS = frozenset(("f32", "bf16", "f16"))
_CPY_PAIRS = frozenset(
    [("f32", q) for q in (*types_of("CUDA", "CPY_TO"), "i32")]
    + [(q, "f32") for q in (*types_of("CUDA", "CPY_FROM"), "i32")]
    + [("i32", "i32")]
)


def mul_mat(op: Tensor, card: _Card) -> bool:
    a, b = op.src[0], op.src[1]
    # neither factor may be transposed: kernels read whole rows
    if a.nb[0] != type_size(a.type) or b.nb[0] != type_size(b.type):
        return False
    if b.type == "f16" and a.type != "f16" and not _fwht(op):
        return False
    # kernels round the activations to f16, which this product must not
    return op.op != "MUL_MAT_ID" or op.param != "src1_f32"


def _fwht(op: Tensor) -> bool:
    """Whether a product is the Hadamard rotation of quantised caches
    (ggml_cuda_op_mul_mat_use_fwht)."""
    if op.op != "MUL_MAT" or op.param != "hadamard":
        return False
    a, b = op.src[0], op.src[1]
    if a.type != "f32" or b.type not in ("f32", "f16"):
        return False
    return b.contiguous() and op.contiguous() and b.ne == op.ne


def get_rows(op: Tensor, card: _Card) -> bool:
    type_ = op.src[0].type
    if not card.rules.gathers_k_quants:
        return type_ in _GET_ROWS_PLAIN
    # rows of whole superblocks only
    return type_ in _GET_ROWS or (type_ in ("iq4_nl", "mxfp4") and op.src[0].ne[0] % 256 == 0)


def set_rows(op: Tensor, card: _Card) -> bool:
    source = op.src[0].type
    # keys and values come as f32; f16 is stored as it is
    return (source == "f32" and op.type in _SET_ROWS) or source == op.type == "f16"


def cpy(op: Tensor, card: _Card) -> bool:
    a, b = op.src[0], op.src[1]
    if "bf16" in (a.type, b.type) and not card.rules.copies_bf16:
        return False
    # any of the three to any other
    if a.type in _FLOATS and b.type in _FLOATS:
        return True
    if (a.type, b.type) in _CPY_PAIRS:
        return True
    # equal types are copied as bytes
    return a.type == b.type and a.contiguous() and b.contiguous()


def arithmetic(op: Tensor, card: _Card) -> bool:
    a, b, t = op.src[0].type, op.src[1].type, op.type
    # bf16 results need a bf16 first operand
    if "bf16" in (a, b, t):
        return a == "bf16" and t == "bf16" and b in ("bf16", "f32")
    return a in ("f32", "f16") and b in ("f32", "f16") and t in ("f32", "f16")


def concat(op: Tensor, card: _Card) -> bool:
    a, b = op.src[0], op.src[1]
    if block_size(a.type) == 1:
        return type_size(a.type) in (1, 2, 4, 8)
    # blocks cannot be cut: quantised rows are joined whole
    straight = (
        a.contiguous() and b.contiguous() if op.param == 3 else a.contiguous(0) and b.contiguous(0)
    )
    return straight and a.ne[0] % block_size(a.type) == 0 and b.ne[0] % block_size(a.type) == 0


def ssm_scan(op: Tensor, card: _Card) -> bool:
    rules = card.rules
    if not rules.scan_shapes:
        return rules.cuda_scans
    s = op.src[0]
    d_state, head_dim, n_head = s.ne[:3]
    # template instances of ssm_scan: one decay per head for Mamba-2, state 16 for Mamba-1
    if op.src[3].ne[0] == 1:  # Mamba-2
        has_kernel = d_state in (128, 256) or (d_state == 96 and rules.scans_96)
        return has_kernel and head_dim % 16 == 0
    if isinstance(op.param, int) and op.param > 1:
        return False
    return (d_state, head_dim, op.src[4].ne[1]) == (16, 1, 1) and n_head % 128 == 0


def indexer(op: Tensor, card: _Card) -> bool:
    heads = (4, 32, 64) if card.rules.indexer_heads else (32, 64)
    return op.src[0].ne[1] in heads and not any(map(unaligned, op.src[:2]))


def no_bf16_clamp(op: Tensor, card: _Card) -> bool:
    return not (op.src[0].type == "bf16" and op.param in ("SWIGLU_OAI", "SWIGLU_CLAMP"))


def no_bf16_xielu(op: Tensor, card: _Card) -> bool:
    return not (op.param == "XIELU" and op.src[0].type == "bf16")


def strided(op: Tensor, card: _Card) -> bool:
    return card.rules.strided_unary or op.src[0].contiguous()


def strided_rows(op: Tensor, card: _Card) -> bool:
    return not card.rules.strided_unary or op.src[0].contiguous_rows()


def dense_rows(op: Tensor, card: _Card) -> bool:
    return op.src[0].nb[0] == type_size(op.src[0].type)


def flash_attn(op: Tensor, card: _Card) -> bool:
    return flash_kernel(op, card.cc, card.rules, card.all_quants) != "none"


def ssm_conv(op: Tensor, card: _Card) -> bool:
    rules = card.rules
    return op.src[0].ne[1] % 128 == 0 if rules.scan_shapes else rules.cuda_scans


SUPPORTED = kernels_of(
    "CUDA",
    mul_mat,
    get_rows,
    set_rows,
    cpy,
    arithmetic,
    concat,
    ssm_scan,
    ssm_conv,
    indexer,
    flash_attn,
    strided,
    strided_rows,
    dense_rows,
    no_bf16_clamp,
    no_bf16_xielu,
)
