"""Flash attention on CUDA: which kernel runs, and the scratch memory after its result
(ggml/src/ggml-cuda/fattn.cu, as modelled; default build: compiled pairs of f16, bf16, q4_0 and q8_0
with themselves)."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size
from ...units import pad
from ..backend import FLASH_ATTN_HEADS, is_part_of
from ..kernels import types_of
from .fattn_before import by_head, lacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds import Rules

ADA = 890  # compute capability 8.9, assumed if unknown
# GGML_CUDA_CC_OFFSET_AMD: AMD GPUs are this plus their gfx number, 0 if unknown
AMD = 0x1000000
_CDNA, _RDNA, _RDNA3 = AMD + 0x908, AMD + 0x1010, AMD + 0x1100
# from which on flash_kernel has other answers
_FIRST = (0, 700, 750, ADA, AMD, AMD + 1, _CDNA, _RDNA, _RDNA3)
_KQ_STRIDE = 256  # FATTN_KQ_STRIDE
_NO_MATRIX_CORES = (40, 72)  # heads that no matrix core computes
_VECTOR_HEADS = frozenset((64, 128, 256))
# heads of keys that share them: (heads of values, what the number that shares is a multiple of)
_GROUPED_HEADS = {192: (128, 8), 320: (256, 32), 512: (512, 1), 576: (512, 1)}
_KV, _VEC = types_of("CUDA", "FLASH_ATTN_EXT"), types_of("CUDA", "VEC")


def flash_kernel(op: Tensor, cc: int, rules: Rules, all_quants: bool = False) -> str:
    """Return the kernel of ggml_cuda_get_best_fattn_kernel: "none", "vec", "mma" or "tile"; `cc` is
    100 * major + 10 * minor, for AMD's cards AMD + 0x1100 (gfx1100); `all_quants`: built with
    GGML_CUDA_FA_ALL_QUANTS."""
    q, k, v = op.src[0], op.src[1], op.src[2]
    mask, alibi = op.param[0], op.param[1]  # type: ignore[index]
    if not rules.flash_by_kernel:
        return "mma" if by_head(q, k, v, mask, cc if cc < AMD else 0, rules) else "none"
    ratio = q.ne[2] // k.ne[2]
    # whether a kernel may compute the heads that share keys together (gqa_opt_applies)
    grouped = (
        ratio >= 2
        and not alibi
        and mask is not None
        and k.ne[1] % _KQ_STRIDE == 0
        and not any(unaligned(t) for t in (q, k, v, mask))
    )
    # Whether a kernel is compiled for heads of these sizes.
    k_head = k.ne[0]
    v_head = v.ne[0]
    if k_head in FLASH_ATTN_HEADS:
        has_heads = v_head == k_head
    else:
        row = _GROUPED_HEADS.get(k_head)
        has_heads = grouped and row is not None and v_head == row[0] and ratio % row[1] == 0
    if not has_heads or not _has_types(k, v, mask):
        return "none"
    if lacks(k, v, ratio, rules, all_quants):
        return "none"
    # the kernel that a GPU runs, of those that are compiled for these heads and types
    if cc >= AMD:
        head, ratio = q.ne[0], q.ne[2] // k.ne[2]
        # of an unknown GPU, the kernel that needs more memory
        if cc == AMD or _amd_matrix_cores(head, q.ne[1] * _effective(ratio, head), grouped, cc):
            return "mma"
        return _plain_kernel(q, k, v, grouped)
    if cc >= 700 and q.ne[0] not in _NO_MATRIX_CORES:
        # The kernel from Volta on: the vector kernel for a few tokens, otherwise tensor cores.
        vector, ratio = _has_vector(q, k), q.ne[2] // k.ne[2]
        if cc >= 750:
            quantised = _is_quantised(k, v)
            return "vec" if vector and _vector_pays(q, k, ratio, grouped, quantised, cc) else "mma"
        columns = q.ne[1] * _effective(ratio, q.ne[0])
        if vector and columns <= 2:
            return "vec"
        return "tile" if columns <= 16 else "mma"
    return _plain_kernel(q, k, v, grouped)


def _plain_kernel(q: Tensor, k: Tensor, v: Tensor, grouped: bool) -> str:
    """Return the kernel of a GPU without tensor cores for these heads."""
    # the vector kernel is faster than tiles
    few = q.ne[1] <= 2 if _is_quantised(k, v) else q.ne[1] == 1 and not grouped
    return "vec" if few and _has_vector(q, k) else "tile"


def _has_vector(q: Tensor, k: Tensor) -> bool:
    """Whether a vector kernel may run (can_use_vector_kernel)."""
    return q.ne[0] in _VECTOR_HEADS and k.ne[1] % _KQ_STRIDE == 0


def _is_quantised(k: Tensor, v: Tensor) -> bool:
    return block_size(k.type) > 1 or block_size(v.type) > 1


def unaligned(t: Tensor) -> bool:
    """Return whether rows of plain numbers begin elsewhere than at multiples of 16 bytes."""
    return block_size(t.type) == 1 and any(n % 16 for n in t.nb[1:])


def _has_types(k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Return whether a kernel reads caches of these types, and this mask."""
    one_mask = mask is None or mask.ne[2] == 1
    return one_mask and k.type in _KV and v.type in _KV


def _vector_pays(q: Tensor, k: Tensor, ratio: int, grouped: bool, quantised: bool, cc: int) -> bool:
    """Return whether the vector kernel is faster than the tensor cores, on Turing and later."""
    n = q.ne[1]
    if quantised:
        return n <= (2 if cc >= ADA else 1)
    if n != 1:
        return False
    many_heads = ratio > 4 and (q.ne[0] >= 256 or k.ne[1] >= 8192)
    return not grouped or (cc >= ADA and q.ne[3] == 1 and not many_heads)


def generation(cc: int) -> int:
    """Return the first `cc` that has the same kernels."""
    return max(first for first in _FIRST if first <= cc)


def _effective(ratio: int, head: int) -> int:
    """Return how many heads of a group one tile of a kernel computes (gqa_ratio_eff)."""
    effective, limit = 1, 32 if head == 320 else 16 if head in (192, 576) else 8
    while ratio % (2 * effective) == 0 and effective < limit:
        effective *= 2
    return effective


def _amd_matrix_cores(head: int, columns: int, grouped: bool, cc: int) -> bool:
    """Return whether CDNA's or RDNA 3's matrix cores pay off."""
    if head in _NO_MATRIX_CORES:
        return False
    if _CDNA <= cc < _RDNA:
        if head > 256:
            return grouped and columns > 128
        if head > 128:
            return columns > 64
        return columns > (8 if head <= 64 else 16)
    if cc < _RDNA3 or head > 256:
        return False
    return grouped and columns > (8 if head <= 128 else 16)


def with_converted_cache(
    t: Tensor, size: int, cc: int, rules: Rules, all_quants: bool = False
) -> int:
    """Return `size`, then keys and values as f16 where the kernel needs them so
    (ggml_cuda_flash_attn_ext_get_alloc_size)."""
    k, v = t.src[1], t.src[2]
    kernel = flash_kernel(t, cc, rules, all_quants)
    if kernel == "none":
        return size
    # whether no vector kernel is compiled for these types and heads: it then reads f16
    all_types = kernel == "vec" and not (
        k.type != v.type or k.type not in _VEC or t.src[0].ne[0] not in _VECTOR_HEADS
    )
    for cache in (k,) if is_part_of(v, k) else (k, v):
        read = cache.type != "f32" if all_types else cache.type == "f16"
        if not read:
            size = pad(size, 128) + 2 * cache.nelements
    return size
