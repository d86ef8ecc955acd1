"""Which operations Vulkan of older builds leaves to the CPU of those that today's runs
(supported.py)."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ...builds import Rules
    from .limits import Limits

    class VulkanDevice(Protocol):
        """A Vulkan backend."""

        rules: Rules
        limits: Limits


_FLASH_LATER = frozenset(("q4_1", "q5_0", "q5_1", "iq4_nl"))  # Rules.vulkan_flash_types
_FLASH_HEADS = frozenset((64, 80, 96, 112, 128, 256))  # before Rules.vulkan_flash_heads


def mul_mat_before(op: Tensor, device: VulkanDevice) -> bool:
    rules = device.rules
    type_ = op.src[0].type
    if type_ == "bf16":
        return rules.vulkan_bf16
    # of the types below four bits a weight
    return rules.vulkan_small_types or not (
        type_.startswith(("iq1", "iq2", "iq3")) or type_ == "iq4_xs"
    )


def flash_attn_before(op: Tensor, device: VulkanDevice) -> bool:
    limits, rules = device.limits, device.rules
    k, v = op.src[1], op.src[2]
    if not (limits.cooperative_matrix2 or rules.vulkan_flash_anywhere):
        return False
    # whether a shader reads keys and values of these types
    if (k.type != v.type and not rules.vulkan_flash_pairs) or (
        "bf16" in (k.type, v.type) and not rules.vulkan_flash_bf16
    ):
        has_types = False
    else:
        all_types = limits.cooperative_matrix2 or rules.vulkan_flash_types
        has_types = all_types or k.type not in _FLASH_LATER
    if not has_types:
        return False
    return rules.vulkan_flash_heads or _has_heads(k.ne[0], v.ne[0], rules)


def _has_heads(k_head: int, v_head: int, rules: Rules) -> bool:
    """Return whether a shader is compiled for heads of these sizes."""
    if k_head == 192:
        return rules.vulkan_flash_mla and v_head in (192, 128)
    if k_head == 576:
        return rules.vulkan_flash_mla and v_head == 512
    return k_head == v_head and k_head in _FLASH_HEADS


def cpy_before(op: Tensor, device: VulkanDevice) -> bool:
    rules = device.rules
    if op.type == "bf16":
        return rules.vulkan_bf16
    return rules.vulkan_small_types or block_size(op.type) == 1


def get_rows_before(op: Tensor, device: VulkanDevice) -> bool:
    return device.rules.vulkan_k_rows or not op.src[0].type.endswith("_K")
