"""Which operations Vulkan runs: ggml_backend_vk_device_supports_op of
ggml/src/ggml-vulkan/ggml-vulkan.cpp, as modelled. Where the sources lie makes no difference: the
scheduler copies."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size, type_size
from ..kernels import kernels_of, types_of
from .supported_before import cpy_before, flash_attn_before, get_rows_before, mul_mat_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .limits import Limits
    from .supported_before import VulkanDevice

_FLOATS = frozenset(("f32", "f16"))
_CPY = types_of("Vulkan", "CPY")
_ARGSORT_LOG2 = 10  # num_argsort_pipelines - 1
_HC_STREAMS = 4


def largest(op: Tensor) -> int:
    """Return the bytes of its largest source or of its result."""
    size = op.nbytes
    for source in op.src:
        size = max(size, source.nbytes)
    return size


def mul_mat(op: Tensor, device: VulkanDevice) -> bool:
    a, b = op.src[0], op.src[1]
    if op.op == "MUL_MAT_ID" and op.param == "src1_f32":
        return False
    # experts: the ids have the batch
    batched = a if op.op == "MUL_MAT" else op.src[2]
    if batched.ne[3] != b.ne[3]:
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


def flash_attn(op: Tensor, device: VulkanDevice) -> bool:
    _, k, v = op.src[:3]
    mask = op.param[0]  # type: ignore[index]
    # shaders load eight elements at a time
    if k.ne[0] % 8 or v.ne[0] % 8 or (mask is not None and mask.type != "f16"):
        return False
    # a shader reads both K and V as bf16, or neither
    alike = (k.type == "bf16") == (v.type == "bf16")
    return alike and (device.limits.cooperative_matrix2 or device.limits.subgroup_shuffle_vote)


def _converts_f32(plain: str, other: str) -> bool:
    return plain == "f32" and other in _CPY


def cpy(op: Tensor, device: VulkanDevice) -> bool:
    a = op.src[0].type
    b = op.src[1].type if len(op.src) > 1 else a
    if {a, b} == {"f32", "i32"} or _converts_f32(a, b) or _converts_f32(b, a):
        return True
    if a != b or type_size(a) % 2:
        return False
    return block_size(a) == 1 or (op.src[0].contiguous() and op.contiguous())


def concat(op: Tensor, device: VulkanDevice) -> bool:
    a, b = op.src[0], op.src[1]
    if block_size(a.type) == 1:
        return type_size(a.type) in (1, 2, 4, 8)
    return a.contiguous_rows() and b.contiguous_rows() and op.contiguous_rows()


def soft_max(op: Tensor, device: VulkanDevice) -> bool:
    masked = isinstance(op.param, tuple) and op.param[0]
    return not masked or op.src[1].type in _FLOATS


def _workgroup_log2(limits: Limits) -> int:
    return limits.max_compute_workgroup_invocations.bit_length() - 1


def hyper_connections(op: Tensor, device: VulkanDevice) -> bool:
    limits = device.limits
    if op.op == "DSV4_HC_COMB":
        return (
            limits.subgroup_shuffle_vote
            and limits.compute_full_subgroups
            and limits.subgroup_size >= 16
        )
    return op.src[0 if op.op == "DSV4_HC_PRE" else 1].ne[1] == _HC_STREAMS


def solve_tri(op: Tensor, device: VulkanDevice) -> bool:
    n, k = op.src[0].ne[0], op.src[1].ne[0]
    limits = device.limits
    few = k <= 1 << _workgroup_log2(limits)
    return few and 4 * (n + k) <= limits.max_compute_shared_memory_size


def ssm_scan(op: Tensor, device: VulkanDevice) -> bool:
    """Whether Vulkan runs the scan: Mamba-2 only, whose decays are one per head."""
    s, decays = op.src[0], op.src[3]
    if any(block_size(t.type) > 1 for t in op.src[:6]) or op.src[6].type != "i32":
        return False
    if decays.nb[1] != 4:
        return False
    d_state, head_dim = s.ne[:2]
    if d_state not in (128, 256) or head_dim % 16:
        return False
    return 4 * d_state <= device.limits.max_compute_shared_memory_size


def indexer(op: Tensor, device: VulkanDevice) -> bool:
    if not device.limits.shader_float16:
        return False
    alignment = device.limits.min_storage_buffer_offset_alignment
    return all(_is_aligned(t, alignment) for t in (*op.src[:4], op))


def _is_aligned(t: Tensor, alignment: int) -> bool:
    size = type_size(t.type)
    if t.nb[0] != size or t.view_offs % alignment:
        return False
    return not any(n % size for n in t.nb[1:])


def repeat(op: Tensor, device: VulkanDevice) -> bool:
    return type_size(op.type) == type_size(op.src[0].type) and type_size(op.type) in (2, 4)


def add1(op: Tensor, device: VulkanDevice) -> bool:
    return (op.src[0].type, op.src[1].type) in (("f32", "f32"), ("f16", "f32"), ("f16", "f16"))


def argsort(op: Tensor, device: VulkanDevice) -> bool:
    limits = device.limits
    # large sorts need the memory model; small ones fit into a workgroup
    few = 1 << min(_workgroup_log2(limits), _ARGSORT_LOG2)
    return limits.vulkan_memory_model or op.ne[0] <= few


def cumsum(op: Tensor, device: VulkanDevice) -> bool:
    return device.limits.subgroup_arithmetic and device.limits.compute_full_subgroups


SUPPORTED = kernels_of(
    "Vulkan",
    mul_mat,
    mul_mat_before,
    get_rows_before,
    cpy,
    cpy_before,
    concat,
    repeat,
    add1,
    soft_max,
    flash_attn,
    flash_attn_before,
    argsort,
    cumsum,
    solve_tri,
    ssm_scan,
    indexer,
    hyper_connections,
)
