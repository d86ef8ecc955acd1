"""Flash attention on CUDA: which kernel runs, and the scratch memory after its result
(ggml/src/ggml-cuda/fattn.cu, as modelled; default build: compiled pairs of f16, bf16, q4_0 and q8_0 with
themselves)."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size
from ..backend import is_part_of, types_of
from .fattn_before import by_head, lacks
from .kv_types import KV_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds import Rules

ADA = 890                       # compute capability 8.9, assumed if unknown
# GGML_CUDA_CC_OFFSET_AMD: AMD GPUs are this plus their gfx number, 0 if unknown
AMD = 0x1000000
_CDNA, _RDNA, _RDNA3 = AMD + 0x908, AMD + 0x1010, AMD + 0x1100
_KQ_STRIDE = 256                # FATTN_KQ_STRIDE
_KV, _VEC = types_of(KV_TYPES, "FLASH_ATTN_EXT"), types_of(KV_TYPES, "VEC")


def flash_kernel(op: Tensor, cc: int, rules: Rules, all_quants: bool = False) -> str:
    """ggml_cuda_get_best_fattn_kernel: "none", "vec", "mma" or "tile"; `cc` is 100 * major + 10 * minor,
    for AMD's cards AMD + 0x1100 (gfx1100); `all_quants`: built with GGML_CUDA_FA_ALL_QUANTS."""
    q, k, v = op.src[0], op.src[1], op.src[2]
    mask, alibi = op.param[0], op.param[1]     # type: ignore[index]
    ratio = q.ne[2] // k.ne[2]
    if not rules.flash_by_kernel:
        return "mma" if by_head(q, k, v, mask, cc if cc < AMD else 0, rules) else "none"
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
    if lacks(k, v, ratio, rules, all_quants):
        return "none"
    vector = q.ne[0] <= 256 and q.ne[0] % 64 == 0 and q.ne[0] != 192 and k.ne[1] % _KQ_STRIDE == 0
    quantised = block_size(k.type) > 1 or block_size(v.type) > 1
    n = q.ne[1]
    if cc >= AMD:
        if cc == AMD or _amd_matrix_cores(q.ne[0], n * _effective(ratio, q.ne[0]), grouped, cc):
            return "mma"                       # for an unknown GPU, the kernel that needs more memory
    elif cc >= 750 and q.ne[0] not in (40, 72):
        if vector:
            if not quantised:
                if cc >= 890 and n == 1 and q.ne[3] == 1 and not (ratio > 4 and (q.ne[0] >= 256 or k.ne[1] >= 8192)):
                    return "vec"
            elif n <= (2 if cc >= 890 else 1):
                return "vec"
            if not grouped and n == 1:
                return "vec"
        return "mma"
    elif cc >= 700 and q.ne[0] not in (40, 72):
        effective = _effective(ratio, q.ne[0])
        if vector and n * effective <= 2:
            return "vec"
        return "tile" if n * effective <= 16 else "mma"
    if vector and ((not quantised and n == 1 and not grouped) or (quantised and n <= 2)):
        return "vec"
    return "tile"


def _effective(ratio: int, head: int) -> int:
    """gqa_ratio_eff: how many heads of a group one tile of a kernel computes."""
    effective, most = 1, 32 if head == 320 else 16 if head in (192, 576) else 8
    while ratio % (2 * effective) == 0 and effective < most:
        effective *= 2
    return effective


def _amd_matrix_cores(head: int, columns: int, grouped: bool, cc: int) -> bool:
    """Whether CDNA's or RDNA 3's matrix cores pay off."""
    if head in (40, 72):
        return False
    if _CDNA <= cc < _RDNA:
        if head <= 256:
            return columns > (8 if head <= 64 else 16 if head <= 128 else 64)
        return grouped and columns > 128
    return cc >= _RDNA3 and grouped and head <= 256 and columns > (8 if head <= 128 else 16)


def with_converted_cache(t: Tensor, size: int, cc: int, rules: Rules, all_quants: bool = False) -> int:
    """ggml_cuda_flash_attn_ext_get_alloc_size: `size`, then keys and values as f16 where the kernel needs them so."""
    k, v = t.src[1], t.src[2]
    kernel = flash_kernel(t, cc, rules, all_quants)
    need_k = need_v = kernel in ("tile", "mma")
    if kernel == "vec":
        fallback = k.type != v.type or k.type not in _VEC or t.src[0].ne[0] not in (64, 128, 256)
        need_k, need_v = k.type == "f32" or fallback, v.type == "f32" or fallback
    v_is_k = is_part_of(v, k)
    if need_k and k.type != "f16":
        size = -(-size // 128) * 128 + 2 * k.nelements
    if need_v and v.type != "f16" and not v_is_k:
        size = -(-size // 128) * 128 + 2 * v.nelements
    return size
