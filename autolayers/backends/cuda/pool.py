"""What CUDA takes on a device beyond llama.cpp's buffers: its context, and the temporaries of
single operations. Temporaries come from ggml-cuda's pool, which grows to the largest sum that one
operation needs and never shrinks. The formulas mirror the functions that they name, in
ggml/src/ggml-cuda as modelled. Contexts, kernels and graphs are bounds on public measurements: see
docs/devices.md."""

from __future__ import annotations

from ...tables import rows
from ...units import MiB, pad
from ..kernels import types_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ops import Matmul, Ops

PAGE = 2 * MiB  # allocation granularity of the pool
GRAPHS = 16 * MiB  # instances of CUDA graphs
OTHER_CONTEXT = 600 * MiB  # of HIP and MUSA, which were not measured
ASSUMED = (8, 9)  # compute capability of an unknown GPU

# A context holds a stack of 1 KiB and saved registers for every thread that can be resident. Of
# five measured alone (T4 105 MiB, RTX 4060 Ti 127, RTX A6000 285, H100 527, RTX PRO 6000 561) four
# lie within 1 % of 30 MiB and 1.84 KiB a thread; this line lies above all five.
_CONTEXT, _CONTEXT_PER_THREAD = 32 * MiB, 2100
# both together where only the memory of a card is known
_UNKNOWN = 500 * MiB

# Local memory of the kernels, for every thread that can be resident: flash_attn_ext_vec has 272
# bytes of it, the largest kernel of b11549 304. The first kernel that runs takes it: 70 MiB on an
# H100.
_LOCAL_PER_THREAD = 304

# by capability; of others 2048 threads, and as many multiprocessors as any generation has
_SIZES = {
    (int(major), int(minor)): row
    for row in rows("backends/cuda/capabilities.tsv")
    for major, _, minor in [row["capability"].partition(".")]
}
_UNKNOWN_THREADS, _UNKNOWN_SM = 2048, 192

# A cuBLAS handle's own data; 4 MiB on an H100, and less than this in all totals seen.
_HANDLE = 24 * MiB

# types that ggml_cuda_should_use_mmq knows; other quantised types are expanded for cuBLAS
_MMQ = types_of("CUDA", "MMQ")
_PLAIN = ("f32", "f16", "bf16")


def context(capability: tuple[int, int], n_sm: int | None = None) -> int:
    """Return the bytes of a CUDA context before a kernel has run in it; `n_sm` multiprocessors, if
    known."""
    of_kernels = kernels(capability, n_sm)
    if n_sm is None and capability == ASSUMED:
        return _UNKNOWN - of_kernels
    seen = _size(capability, "seen") * MiB - of_kernels
    return max(_CONTEXT + _CONTEXT_PER_THREAD * _threads(capability, n_sm), seen)


def kernels(capability: tuple[int, int], n_sm: int | None = None) -> int:
    """Return the bytes of local memory that the driver reserves for llama.cpp's kernels."""
    return _LOCAL_PER_THREAD * _threads(capability, n_sm)


def _threads(capability: tuple[int, int], n_sm: int | None) -> int:
    """Return the threads that can be resident on all multiprocessors."""
    n_sm = n_sm or _size(capability, "sm") or _UNKNOWN_SM
    return n_sm * (_size(capability, "threads") or _UNKNOWN_THREADS)


def _size(capability: tuple[int, int], column: str) -> int:
    """Return what capabilities.tsv says of GPUs of a capability, 0 for nothing."""
    return int(_SIZES.get(capability, {}).get(column) or 0)


def workspaces(capability: tuple[int, int]) -> int:
    """Return the bytes of a cuBLAS handle's workspaces: two of its own, as its documentation sizes
    them, and ggml-cuda's (ggml_backend_cuda_context::cublas_handle). Both H100 figures are
    measured."""
    if capability >= (12, 0):
        own = 12
    else:
        own = 32 if capability >= (9, 0) else 4
    of_ggml = 32 if capability >= (9, 0) else 4
    return (2 * own + of_ggml) * MiB


def blas(capability: tuple[int, int]) -> int:
    """Return the bytes of cuBLAS in a process with one llama_context."""
    return workspaces(capability) + _HANDLE


def pool(
    ops: Ops, capability: tuple[int, int] = ASSUMED, n_sm: int | None = None, nvidia: bool = True
) -> int:
    """Return the bytes that ggml_cuda_pool_vmm holds in the end: the operation that needs most,
    plus a tenth, in whole pages.

    Not `nvidia`: ggml_cuda_pool_leg, whose blocks may not fit the next request (half as much
    again), and matrix kernels that depend on the GPU.
    """
    n_sm = n_sm or _size(capability, "sm") or _UNKNOWN_SM
    needs = [_attention(ops, capability, n_sm), _sort(ops), _scan(ops)]
    needs += [_matmul(weight, ops.n_tokens, nvidia, capability, n_sm) for weight in ops.weights]
    # the head is multiplied with the rows that have output
    needs += [_matmul(weight, ops.n_outputs, nvidia, capability, n_sm) for weight in ops.outputs]
    largest = max(needs)
    largest += largest // (10 if nvidia else 2)
    return pad(largest, PAGE)


def _matmul(weight: Matmul, n: int, nvidia: bool, cc: tuple[int, int], n_sm: int) -> int:
    columns = n * (weight.n_used or weight.n_mat)
    if weight.type in _PLAIN:
        # Whether a kernel reads the weight as it is: mmf.cu, mmvf.cu, or cuBLAS for f32 by f32.
        if n <= (16 if cc >= (7, 5) else 8):
            reads_directly = True
        else:
            reads_directly = weight.type == "f32" and not weight.n_used
        return 0 if reads_directly else _expanded(weight, n, columns, cc)
    # ggml_cuda_mul_mat_q (and mmvq.cu): activations as q8_1 blocks, 36 bytes for 32 elements
    quantised = columns * pad(weight.k, 512) * 36 // 32 + 12 * n * weight.n_used
    # MMVQ: a few columns, and no tiles
    if n <= 8:
        return quantised
    # the last tile, and those that stream-k leaves unfinished
    quantised += 128 * 144 + n_sm * 128 * 128 * 4
    if nvidia and _uses_mmq(weight, n, cc):
        return quantised
    expanded = _expanded(weight, n, columns, cc)
    return expanded if nvidia else max(quantised, expanded)


def _uses_mmq(weight: Matmul, n: int, cc: tuple[int, int]) -> bool:
    """Whether NVIDIA's cards use MMQ (ggml_cuda_should_use_mmq)."""
    if weight.type not in _MMQ:
        return False
    if cc >= (7, 5) or cc == (6, 1):
        return True
    if cc >= (7, 0):
        return n < 64  # MMQ_DP4A_MAX_BATCH_SIZE
    return cc >= (6, 0) and weight.n_used > 0


def _expanded(weight: Matmul, n: int, columns: int, cc: tuple[int, int]) -> int:
    """Return weights and activations in the type that ggml_cuda_mul_mat_cublas computes in, and the
    result if that is f16.

    With experts (ggml_cuda_mul_mat_id), activations are first sorted by expert, and one expert's
    matrix at a time is multiplied; in the worst case one expert gets all tokens.
    """
    k, m = weight.k, weight.m
    fast_f16 = cc >= (6, 0) and cc != (6, 1)
    # Pascal's consumer cards (6.1) compute f16 at a 64th of the rate
    computes_f32 = weight.type == "f32" or not (fast_f16 if weight.type != "bf16" else cc >= (8, 0))
    sorting, matrices = 0, weight.n_mat
    # one expert at a time, but the sorted activations are of all
    if weight.n_used:
        sorting, matrices, columns = columns * 4 * (k + m) + 8 * columns, 1, n
    if computes_f32:
        return sorting + (0 if weight.type == "f32" else 4 * m * k * matrices)
    result = 0 if weight.type == "bf16" or cc == (7, 0) else 2 * columns * m
    return (
        sorting + 2 * columns * k + result + (0 if weight.type in _PLAIN else 2 * m * k * matrices)
    )


def _attention(ops: Ops, cc: tuple[int, int], n_sm: int) -> int:
    """Mirror launch_fattn's partial results with flash attention. Without it, what cuBLAS converts:
    K to f32 (the product's precision), then the full attention matrix to f16, which no estimate of
    llama.cpp's includes."""
    n, heads, head_v = ops.n_tokens, ops.n_head, ops.head_v
    if not heads or not ops.n_kv:
        return 0
    if ops.flash_attn:
        blocks = n_sm * 2 * 64 * (2 + head_v // 2) * 8
        blocks += ops.converted
        # without tensor cores: whole rows
        return blocks if cc >= (7, 0) else blocks + 4 * n * heads * head_v * 4
    keys = 4 * ops.n_kv * ops.n_stream * ops.n_embd_k_gqa
    values = 2 * ops.n_kv * n * heads + 2 * n * heads * head_v
    # one after the other, so the pool grows to the larger
    return max(keys, values)


def _sort(ops: Ops) -> int:
    """Return what argsort_f32_i32_cuda_cub takes under ggml_cuda_op_top_k: indices, keys and their
    copies, CUB's own two and the result, for chunks of rows of about 64 MiB. Shorter rows are
    sorted in place."""
    if ops.sort_columns <= 1024 or not ops.sort_rows:
        return 0
    # at least a row, however long it is
    chunk = min(ops.sort_rows, max(1, 64 * MiB // (4 * ops.sort_columns)))
    return 6 * 4 * ops.sort_columns * chunk


def _scan(ops: Ops) -> int:
    """Return what ssm_scan_ssd_f32_cuda takes: Mamba-2 in chunks of 256 tokens, for prompts of more
    than 128 tokens per sequence."""
    scan = ops.scan
    if scan is None or ops.n_tokens <= 128:
        return 0
    # sequences that have more than 128 tokens each
    seqs = max(1, min(ops.n_seqs, ops.n_tokens // 129))
    chunk = 256
    per_head = 2 * chunk * scan.head_dim + 6 * chunk * scan.d_state + 2 * chunk * chunk
    return 8 * ops.n_tokens * scan.n_head + seqs * (
        4 * chunk * chunk * scan.n_group + scan.n_head * per_head
    )
