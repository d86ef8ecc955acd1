"""SYCL: ggml/src/ggml-sycl, as modelled, built with oneDNN. It pads as CUDA does, reorders nothing,
and is the only one with split buffers for -sm row. In a device's `limits`, `max_mem_alloc_size` is
the driver's largest buffer; 2 GiB are assumed. `onednn_optimized_gemm`: whether oneDNN has more
than reference kernels for it (ggml_sycl_dnnl_detect_optimized_gemm); if unknown, the larger sizes
of both. Otherwise Intel's GPUs are modelled as the one that needs most memory, so sizes are an
upper bound."""

from __future__ import annotations

from ..ggml.tensor import Tensor
from ..units import MiB, pad
from .backend import FLASH_ATTN_HEADS, OFFLOAD_MIN_BATCH, SIZE, is_part_of
from .cuda import CudaBuffers
from .cuda.fattn import unaligned
from .kernels import kernels_of, types_of
from .ops import TEMPORARIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from typing import Any, ClassVar

    from .ops import Ops, Parts

_NO_KERNEL = frozenset(("tq1_0", "tq2_0"))
_FLASH_ATTN = types_of("SYCL", "FLASH_ATTN_EXT")
_ONEDNN = types_of("SYCL", "ONEDNN")
# heads of keys, with values of the same size
_HEADS = FLASH_ATTN_HEADS | {512}
_PROBED = "onednn_optimized_gemm"
_TOP_K = 32  # at most this many results of TOP_K, before Rules.sycl_top_k
_WARP = 16  # GGML_SYCL_WARP_SIZE
# What an Arc Pro B70 had taken beyond llama.cpp's buffers once a model was loaded
_AT_LOAD = 1220 * MiB
_SOLVE_TRI = 64  # SYCL_SOLVE_TRI_MAX_N and _K


class Sycl(CudaBuffers):
    name = "SYCL"
    makers = ("Intel",)
    also = ("Vulkan",)
    row_splits = True
    host_buffer = "SYCL_Host"
    modelled = True
    offload_min_batch = OFFLOAD_MIN_BATCH
    free_is_total = True  # without Level Zero's Sysman
    limits_are = (("max_mem_alloc_size", SIZE),)
    flipped: ClassVar[Mapping[str, int]] = {_PROBED: 0}
    vendor = "Intel"
    image = "-intel"
    docker_model = False
    llmkube = ("intel", "")
    device_nodes = ("/dev/dri",)
    log_words = ("SYCL", "ggml-sycl", "level_zero", "UR_RESULT", "PI_ERROR")

    def by_device(self) -> None:
        self.max_size = self.host_max_size = self.given.get("max_mem_alloc_size", 2 << 30)
        # older builds used oneDNN without asking
        probed = self.given.get(_PROBED) if self.rules.sycl_probes_onednn else True
        self.one_dnn = probed is None or bool(probed)
        self.unprobed = probed is None

    @property
    def kind(self) -> Hashable:
        return self.name, self.max_size, self.one_dnn

    def margin(self, ops: Ops) -> Parts:
        """Return what was measured on one card, as bounds: its pool grows with the tokens that a
        context holds, by less than f16 copies of one layer's K and V, and by less than twice that
        if they are quantised (3.56 and 7.64 KiB a token with a layer of 4)."""
        return (("SYCL, as measured", _AT_LOAD), (TEMPORARIES, self.again(ops)))

    def again(self, ops: Ops) -> int:
        copies = 2 * ops.n_kv * ops.n_stream * (ops.n_embd_k_gqa + ops.n_embd_v_gqa)
        return copies * (2 if ops.quantised_cache else 1)

    def alloc_size(self, tensor: Tensor) -> int:
        size = tensor.nbytes
        if tensor.op == "FLASH_ATTN_EXT":
            size = _with_scratch(tensor, size, self.one_dnn)
        return size + self.padding(tensor.type, tensor.ne)


def multiplies(op: Tensor, device: object = None) -> bool:
    a, b = op.src[0], op.src[1]
    if a.ne[3] != b.ne[3] or a.type in _NO_KERNEL:
        return False
    if a.type != "f16":
        return True
    if a.permuted:
        return a.contiguous() or 1 in a.ne[2:]
    broadcast = a.ne[2] == 1 and b.ne[2] > 1 and b.ne[3] > 1
    return not (broadcast and a.ne[0] > 128 and b.permuted)


def _facts(op: Tensor) -> tuple[Tensor | None, bool, bool]:
    """Return a flash attention's mask, whether it has ALiBi, and whether its logits are capped."""
    facts: Any = op.param
    mask, alibi, _, softcap = facts
    return mask, alibi, softcap


def _one_dnn(op: Tensor, prompt: bool) -> bool:
    """Mirror ggml_sycl_flash_attn_ext_onednn_supported; `prompt`: with its limits on shapes."""
    q, k, v = op.src[:3]
    mask, alibi, softcap = _facts(op)
    if alibi or softcap or len(op.src) > 4:
        return False
    # whether there is one mask, of f16, for all heads and sequences
    if (
        not (mask is not None and mask.type == "f16" and mask.ne[2:] == (1, 1))
        or v.ne[0] != k.ne[0]
        or q.ne[3] != 1
    ):
        return False
    halves = k.type == v.type == "f16"
    if not halves and not {k.type, v.type} <= _ONEDNN:
        return False
    # Whether a prompt is long enough for oneDNN, by the type of its keys and values.
    return not prompt or (q.ne[1] >= 32 and (halves or k.ne[1] >= 1024))


def _latent(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Return whether the kernel for heads of 576 and 512 reads these tensors."""
    if v.ne[0] != 512 or k.ne[1] % 256:
        return False
    return not any(t is not None and unaligned(t) for t in (q, k, v, mask))


def _mkl(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether MKL multiplies these queries, keys and values."""
    head = q.ne[0]
    if head % 64 or not 64 <= head <= 512 or head != v.ne[0]:
        return False
    if q.ne[1] < 32 or k.ne[1] < 1024 or k.ne[3] not in (q.ne[3], 1):
        return False
    return all(t.type != "f16" or t.nb[1] % (2 * t.ne[0]) == 0 for t in (k, v))


def _with_scratch(op: Tensor, size: int, one_dnn: bool) -> int:
    """Return the f16 copies of ggml_sycl_fattn_get_extra, each aligned to 128 bytes."""
    q, k, v = op.src[:3]
    # the scratch is behind the result, in the same allocation
    # The numbers in the f16 copies of K and V.
    copies = (
        _one_dnn_copies(q, k, v)
        if one_dnn and _one_dnn(op, False)
        else (_converted(k), 0 if is_part_of(v, k) else _converted(v))
    )
    for halves in copies:
        if halves:
            size = pad(size, 128) + 2 * halves
    return size


def _one_dnn_copies(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Return the numbers in each f16 copy of oneDNN: Q, K, V, a single one and the result."""
    queries = q.ne[2] * q.ne[1] * k.ne[0]
    if _is_halves(k) and _is_halves(v):
        return queries, 0, 0, 1, queries
    return queries, k.nelements, v.nelements, 1, queries


def _converted(t: Tensor) -> int:
    """Return the numbers in the f16 copy of a tensor; 0 if it has that type."""
    return 0 if t.type == "f16" else t.nelements


def _is_halves(t: Tensor) -> bool:
    """Return whether f16 numbers follow one another in each row."""
    return t.type == "f16" and t.nb[0] == 2 and not any(n % 2 for n in t.nb[1:])


def flash_attn(op: Tensor, sycl: Sycl) -> bool:
    """Return whether ggml_sycl_get_best_fattn_kernel has one; with `one_dnn` oneDNN's too."""
    sycl.undecided = sycl.unprobed
    q, k, v = op.src[:3]
    mask, alibi, softcap = _facts(op)
    if sycl.one_dnn and q.ne[1] >= 32 and _one_dnn(op, True):
        return True
    grouped = q.ne[2] >= 2 * k.ne[2] and mask is not None and not alibi
    plain = not softcap and len(op.src) < 5
    if grouped and plain and _mkl(q, k, v):
        return True
    # whether a kernel of llama.cpp's own reads these types and heads
    if k.type != v.type or k.type not in _FLASH_ATTN:
        return False
    if mask is not None and mask.ne[2] != 1:
        return False
    if k.ne[0] == 576:
        return grouped and _latent(q, k, v, mask)
    return k.ne[0] in _HEADS and v.ne[0] == k.ne[0]


def top_k(op: Tensor, sycl: Sycl) -> bool:
    return op.ne[0] <= _TOP_K or sycl.rules.sycl_top_k


def ssm_scan(op: Tensor, sycl: Sycl) -> bool:
    s = op.src[0]
    return op.src[3].ne[0] == 1 and s.ne[0] in (128, 256) and s.ne[1] % _WARP == 0


def solve_tri(op: Tensor, sycl: Sycl) -> bool:
    return op.src[0].ne[0] <= _SOLVE_TRI and op.src[1].ne[0] <= _SOLVE_TRI


# do_ggml_backend_sycl_device_supports_op
Sycl.kernels = kernels_of("SYCL", multiplies, flash_attn, top_k, ssm_scan, solve_tri)
