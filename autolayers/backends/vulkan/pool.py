"""What Vulkan takes on a device beyond llama.cpp's buffers: the driver's own memory, and
prealloc_x, prealloc_y and prealloc_split_k of ggml-vulkan.cpp, which grow to the largest need of
one operation. The formulas are those of ggml_vk_mul_mat_q_f16, ggml_vk_mul_mat_id_q_f16,
ggml_vk_flash_attn, ggml_vk_soft_max and ggml_vk_argsort, as modelled."""

from __future__ import annotations

from ...units import MiB, pad

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ops import Matmul, Ops

# Command buffers, pipelines and descriptors: at most 30 MiB in 22 launches (Radeon 8060S), three of
# them times is used here, and at most 137 MiB in 8 launches with NVIDIA's driver (RTX 3090).
DRIVER, NVIDIA_DRIVER = 96 * MiB, 144 * MiB
# Local memory per multiprocessor of the shaders of MUL_MAT_ID with cooperative matrix 2: 420 MiB on
# an RTX 3090 (82).
_SHADERS = 21 * MiB // 4
_MOST_SM = 128  # multiprocessors of an unknown GPU
SPLIT_K = 16 * MiB  # partial results of matrices and of attention
# columns of the largest tile, to which activations are padded; those of MUL_MAT_ID
_TILE, _ID_TILE = 256, 128
# columns per workgroup of softmax; twice 128 bytes of results for each further 512
_ONE_PASS = 16384


def temporaries(ops: Ops, cooperative_matrix2: bool) -> int:
    """Return the bytes of prealloc_x, prealloc_y and prealloc_split_k. With cooperative matrix 2
    products are f16 by f16."""
    weights = [(weight, ops.n_tokens) for weight in ops.weights] + [
        (weight, ops.n_outputs) for weight in ops.outputs
    ]
    # the buffers grow to the largest need and are shared by all operations
    x, y = _attention(ops, cooperative_matrix2)
    y = max([y, *[_activations(weight, n, cooperative_matrix2) for weight, n in weights]])
    # f32 matrices are converted whole
    if cooperative_matrix2:
        x = max(
            [
                x,
                *[
                    2 * weight.k * weight.m * weight.n_mat
                    for weight, _ in weights
                    if weight.type == "f32"
                ],
            ]
        )
    # 8 bytes an element, of columns up to a power of two: merge steps over several workgroups
    if ops.sort_columns > 1024:
        x = max(x, 8 * ops.sort_rows << (ops.sort_columns - 1).bit_length())
    return x + y + SPLIT_K


def shaders(ops: Ops, cooperative_matrix2: bool, n_sm: int | None = None) -> int:
    """Return the bytes that the driver keeps for shaders that need more than registers, from their
    first run on."""
    experts = any(weight.n_used for weight in ops.weights)
    return _SHADERS * (n_sm or _MOST_SM) if experts and cooperative_matrix2 else 0


def _activations(weight: Matmul, n: int, cooperative_matrix2: bool) -> int:
    """Return the bytes of activations as f16, padded to a tile; q8_1 is smaller. MUL_MAT_ID pads
    each token's rows (1 or `n_used`) if it converts them."""
    if weight.n_used and (cooperative_matrix2 or weight.type == "bf16"):
        return 2 * weight.k * n * pad(weight.n_used, _ID_TILE)
    return 2 * weight.k * pad(n, _TILE) * (weight.n_used or weight.n_mat)


def _attention(ops: Ops, cooperative_matrix2: bool) -> tuple[int, int]:
    """Return the bytes of prealloc_x and prealloc_y. Flash attention copies a layer's quantised
    cache as f16 without cooperative matrix 2."""
    n_kv = ops.n_kv * ops.n_stream
    if ops.flash_attn:
        # other shaders dequantise while they read
        copied = ops.quantised_cache and not cooperative_matrix2
        return (2 * n_kv * (ops.n_embd_k_gqa + ops.n_embd_v_gqa) if copied else 0), 0
    columns = ops.n_tokens * ops.n_head
    softmax = -(-ops.n_kv // 512) * 4 * columns if ops.n_kv > _ONE_PASS else 0
    scores = 2 * ops.n_kv * columns if cooperative_matrix2 else 0
    return max(2 * n_kv * max(ops.n_embd_k_gqa, ops.n_embd_v_gqa), softmax), max(
        2 * columns * ops.head_v, scores, softmax
    )
