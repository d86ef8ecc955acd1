"""Flash attention that CUDA runs today (fattn.py) but older builds leave to the CPU."""

from __future__ import annotations

from ...ggml.tensor import Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds import Rules

# before Rules.mixed_cache_types, each with itself
_KV_PAIRED = frozenset(("f32", "f16", "bf16", "q4_0", "q8_0"))


def lacks(k: Tensor, v: Tensor, ratio: int, rules: Rules, all_quants: bool) -> bool:
    """Return whether a build has no kernel for these heads, types and heads a group, for which
    today's has."""
    head = k.ne[0]
    if head in (192, 320):
        lacks_head = not rules.flash_192
    elif head == 576:
        lacks_head = ratio % 16 > 0 and not rules.flash_576
    else:
        lacks_head = head == 512 and not rules.flash_512
    if lacks_head:
        return True
    if "bf16" in (k.type, v.type) and not rules.flash_bf16:
        return True
    any_pair = rules.mixed_cache_types or all_quants
    return not any_pair and (k.type != v.type or k.type not in _KV_PAIRED)


def by_head(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, cc: int, rules: Rules) -> bool:
    """Whether builds up to b6170 ran it (ggml_backend_cuda_device_supports_op), which did not check
    which kernels exist. `cc`: compute capability, 0 for AMD GPUs (without rocWMMA)."""
    head = q.ne[0]
    if k.ne[0] != v.ne[0]:
        # DeepSeek's latent attention, in groups of 16 heads
        latent = (k.ne[0], v.ne[0]) == (576, 512) and q.ne[2] // k.ne[2] % 16 == 0
        return latent and mask is not None and rules.flash_mla and cc >= 750
    if head == 192 or "bf16" in (k.type, v.type):
        return False
    if head == 128 or (head == 64 and k.type == "f16"):
        return True
    # f16 alone: heads of 256 on any card, others from Volta on
    plain = k.type == "f16" and v.type == "f16"
    return plain and (head == 256 or cc >= 700)
