"""Limits of Vulkan drivers that sizes depend on: the keys of a device's `limits`.

    Limits.of(device.limits).block_size

`vulkaninfo` shows them, and autolayers.devices.vulkan queries the driver. If unknown, the driver is
assumed to align more than desktop drivers do; tensors of more than SMALLEST bytes may or may not
run on it.
"""

from __future__ import annotations

from ...records import dataclass
from ...units import GiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Limits:
    """`known`: the device's own. The defaults here are the assumed values."""

    min_storage_buffer_offset_alignment: int = 256
    min_memory_map_alignment: int = 4096
    max_storage_buffer_range: int = 4 * GiB - 1
    max_buffer_size: int = 1 << 40
    max_memory_allocation_size: int = 4 * GiB - 4
    max_compute_shared_memory_size: int = 32768
    max_compute_workgroup_invocations: int = 1024
    subgroup_size: int = 32
    shader_float16: bool = True
    cooperative_matrix2: bool = False
    vulkan_memory_model: bool = True
    compute_full_subgroups: bool = True
    subgroup_shuffle_vote: bool = True
    subgroup_arithmetic: bool = True
    shader_64bit_indexing: bool = True  # VK_EXT_shader_64bit_indexing
    known: bool = False

    @classmethod
    def of(cls, given: Mapping[str, int]) -> Limits:
        """Return the limits of a device that was `given` these."""
        if not given:
            return ASSUMED
        # some keys are not enough: what is missing could be larger or smaller than assumed
        limits = {key: given[key] for key in _KEYS if key in given}
        return cls(**limits, known=len(limits) == len(_KEYS))  # type: ignore[arg-type]

    @property
    def largest(self) -> int:
        """Bytes of a tensor that an operation may read or write."""
        if self.shader_64bit_indexing:
            return self.max_buffer_size
        # without 64-bit indexing a shader addresses no more than one binding
        return min(self.max_buffer_size, self.max_storage_buffer_range)

    @property
    def block_size(self) -> int:
        """suballocation_block_size: a larger buffer is cut into several, and a graph's buffer into
        chunks."""
        return min(GiB, self.max_memory_allocation_size, self.max_buffer_size)


# the smallest max_storage_buffer_range of a desktop driver (Intel's older ones)
SMALLEST = GiB
_KEYS = tuple(name for name in Limits.__annotations__ if name != "known")
ASSUMED = Limits()
