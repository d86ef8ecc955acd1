"""Vulkan: ggml/src/ggml-vulkan/ggml-vulkan.cpp.

The alignment is the device's minStorageBufferOffsetAlignment, 16 to 256; the largest is assumed. Which operations it
runs and how it reorders graphs is not modelled.
"""

from __future__ import annotations

from .backend import OFFLOAD_MIN_BATCH, Backend


class Vulkan(Backend):
    name = "Vulkan"
    alignment = 256
    host_buffer = "Vulkan_Host"
    igpu_mmap = False
    offload_min_batch = OFFLOAD_MIN_BATCH
    free_is_total = True               # without VK_EXT_memory_budget
    image = "-vulkan"
    device_nodes = ("/dev/dri",)
    koboldcpp = ("--usevulkan",)
    out_of_memory = (
        r"ggml_vulkan: Device memory allocation of size (?P<bytes>\d+) failed",      # ggml-vulkan-buffers.cpp
        r"ErrorOutOfDeviceMemory|Requested buffer size exceeds device (?:memory|buffer)",
    )
