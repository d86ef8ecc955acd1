"""Extra memory of Metal's results: ggml_backend_metal_buffer_type_get_alloc_size of
ggml/src/ggml-metal/ggml-metal.cpp and the functions of ggml-metal-ops.cpp named here, as
modelled."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size
from ...units import pad
from ..backend import is_part_of
from ..kernels import types_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds import Rules

# ggml-metal-impl.h: queries and keys of one threadgroup, plain and vector kernels
_NQPSG, _NCPSG = 8, 64
_VEC_NQPSG, _VEC_NCPSG = 1, 32
_AMAX = 8 + 256 * 4  # ggml_metal_op_mul_mat_id_extra_amax
_SPARSE_HEADS = frozenset(
    (
        (32, 32),
        (64, 64),
        (96, 96),
        (96, 64),
        (128, 128),
        (192, 128),
        (192, 192),
        (256, 256),
        (320, 256),
        (512, 512),
        (576, 512),
    )
)
_SPARSE_TYPES = types_of("MTL", "SPARSE")


def scratch(t: Tensor, size: int, rules: Rules) -> int:
    """Return `size`, the bytes of a tensor, plus what its operation needs while it runs."""
    op = t.op
    if not rules.metal_scratch:
        return size
    if op == "FLASH_ATTN_EXT":
        return size + _flash_attn(t, rules.metal_fusions, rules.metal_flash_pairs)
    if op == "MUL_MAT_ID":
        n_expert = t.src[0].ne[2]
        # extra_tpe and extra_ids: tokens per expert, then their numbers
        return size + 4 * n_expert * (1 + t.src[2].ne[1]) + (_AMAX if rules.metal_fusions else 0)
    # as much again for partial results
    if op in ("CUMSUM", "ARGSORT"):
        return 2 * size
    if op == "TOP_K":
        return 2 * 4 * t.src[0].nelements
    return size


def _flash_attn(t: Tensor, copies: bool, large: bool) -> int:
    """Return the extra bytes of flash attention. `copies`: keys and values are copied as f16;
    `large`: for heads from 512 on also in smaller batches."""
    q, k, v = t.src[:3]
    mask, n_kv_max = t.param[0], t.param[2]  # type: ignore[index]
    masked = mask.ne[1] * mask.ne[2] * mask.ne[3] if mask is not None else 0
    # ggml_metal_op_flash_attn_ext_use_vec
    vector = q.ne[1] < 20 and q.ne[0] % 32 == 0
    batch = q.ne[1] >= 32 or (large and q.ne[0] >= 512 and not vector)
    # Mirror ggml_metal_op_flash_attn_ext_extra_pad: the last keys and values, and their part of the
    # mask; `copied`: of the f16 copies.
    # a tile of keys that is not full is copied and padded
    row_k, row_v = k.nb[1], v.nb[1]
    if (copies and batch) and block_size(k.type) > 1:
        row_k = 2 * k.ne[0]
        row_v = 2 * (k.ne[0] if is_part_of(v, k) else v.ne[0])
    size = _NCPSG * (row_k * k.ne[2] * k.ne[3] + row_v * v.ne[2] * v.ne[3] + 2 * masked)
    if mask is not None:
        # Mirror ggml_metal_op_flash_attn_ext_extra_blk: which parts of the mask are empty.
        rows, columns = (_VEC_NQPSG, _VEC_NCPSG) if vector else (_NQPSG, _NCPSG)
        blocks = -(-q.ne[1] // rows) * -(-mask.ne[0] // columns)
        size += pad(blocks * mask.ne[2] * mask.ne[3], 32)
    # ..._extra_tmp: 32 workgroups' results
    size += 4 * min(q.ne[1], 32) * q.ne[2] * q.ne[3] * 32 * (v.ne[0] + 2)
    if copies:
        # mirror ..._extra_idx: the cells that each row of the mask shows, if a kernel reads no
        # others
        sparse = (k.ne[0], v.ne[0]) in _SPARSE_HEADS and k.type in _SPARSE_TYPES
        if not sparse or not 0 < n_kv_max <= 4096:
            extra_idx = 0
        else:
            extra_idx = pad(4 * pad(n_kv_max, _VEC_NCPSG) * masked, 16)
        size += _extra_kv_f16(k, v) + extra_idx
    return size


def _extra_kv_f16(k: Tensor, v: Tensor) -> int:
    """Mirror ..._extra_kv_f16: f16 copies of the keys, and of the values if they are not part of
    those."""
    size = pad(2 * k.nelements, 16)
    return size if is_part_of(v, k) else size + pad(2 * v.nelements, 16)
