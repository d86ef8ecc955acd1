"""This machine's GPUs from Vulkan's loader: their limits, and their memory if no other source has
it.

Queried through libvulkan with structures of the Vulkan 1.3 specification (vulkan_core.h), as in
ggml-vulkan: ggml_vk_get_device of ggml/src/ggml-vulkan/ggml-vulkan.cpp. A driver can crash the
process that loads it, so a child process asks.

    query()                       # (Device("Vulkan0", ..., limits={...}), ...)
"""

from __future__ import annotations

import contextlib
import os
import sys

from ..backends import VULKAN
from ..machine import Device
from ..programs import NoAnswer, apart
from ..records import replace
from .system import MOST_MEMORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

_LIBRARIES = {"win32": "vulkan-1.dll", "darwin": "libvulkan.1.dylib"}
_TIMEOUT = 10
_INTEGRATED, _PROCESSOR = 1, 4  # VkPhysicalDeviceType
_DEVICE_LOCAL = 1  # VkMemoryHeapFlagBits
_VERSION = 1 << 22 | 3 << 12  # VK_API_VERSION_1_3
_BASIC, _VOTE, _ARITHMETIC, _SHUFFLE = 1, 2, 4, 16  # VkSubgroupFeatureFlagBits
_COMPUTE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT

# VkPhysicalDeviceProperties: the offsets of its parts, and of its limits with their sizes
_TYPE, _NAME, _LIMITS = 16, 20, 296
# offsets in VkPhysicalDeviceLimits of the 64-bit ABI
_IN_LIMITS = {
    "max_storage_buffer_range": (28, 4),
    "max_compute_shared_memory_size": (216, 4),
    "max_compute_workgroup_invocations": (232, 4),
    "min_memory_map_alignment": (304, 8),
    "min_storage_buffer_offset_alignment": (328, 8),
}
# VkStructureType
_APPLICATION, _INSTANCE = 0, 1
_PROPERTIES2, _FEATURES2, _MEMORY2 = 1000059001, 1000059000, 1000059006
_SUBGROUP, _MAINTENANCE3, _MAINTENANCE4 = 1000094000, 1000168000, 1000413001
_FLOAT16, _MEMORY_MODEL, _SUBGROUP_SIZE, _BUDGET = 1000082000, 1000211000, 1000225002, 1000237000


def query(environ: Mapping[str, str] | None = None) -> list[Device]:
    """Return the GPUs that ggml-vulkan uses, in its order; none without a loader, driver or
    answer."""
    rows: list[Any] = []
    with contextlib.suppress(NoAnswer):  # those that answered before
        rows += apart(
            __name__, "answer", silence=_TIMEOUT, environ=os.environ if environ is None else environ
        )
    return [
        Device(
            f"{VULKAN}{i}",
            row["total"],
            row["free"],
            row["name"],
            VULKAN,
            row["kind"],
            source="vulkan",
            limits=row["limits"],
            # ggml-vulkan then takes all of it for free, too
            warning=""
            if row["budget"]
            else "free is the card's total: the driver does not say what others use",
        )
        # a driver that reports more than a petabyte is broken
        for i, row in enumerate(row for row in rows if row["total"] <= MOST_MEMORY)
    ]


def with_limits(devices: Sequence[Device], known: Sequence[Device]) -> list[Device]:
    """Return `devices` with the limits of the `known` ones, matched by name and position."""
    left = list(known)
    completed = []
    for device in devices:
        # two equal cards are matched in their order: each stands for one
        # Compare descriptions, to which Mesa appends its driver's name: "AMD Radeon RX 7900 XTX
        # (RADV NAVI31)".
        twin = next(
            (
                other
                for other in left
                if device.backend == VULKAN
                and not device.limits
                and (
                    other.description.partition(" (")[0].strip()
                    == device.description.partition(" (")[0].strip()
                )
            ),
            None,
        )
        if twin is not None:
            left.remove(twin)
            device = replace(device, limits=twin.limits)
        completed.append(device)
    return completed


# --- in the child process


class _Chain:
    """Structures that are filled in one call: sType, pNext, then the fields."""

    def __init__(self, *parts: tuple[int, int]) -> None:
        import ctypes

        self.buffers = [ctypes.create_string_buffer(16 + size) for _, size in parts]
        for i, (kind, _) in enumerate(parts):
            ctypes.c_uint32.from_buffer(self.buffers[i]).value = kind
            if i + 1 < len(parts):
                # pNext, at byte 8 after sType and its padding
                ctypes.c_uint64.from_buffer(self.buffers[i], 8).value = ctypes.addressof(
                    self.buffers[i + 1]
                )

    def number(self, part: int, offset: int, size: int = 4) -> int:
        return int.from_bytes(self.buffers[part].raw[16 + offset : 16 + offset + size], "little")


def answer() -> Iterator[dict[str, Any]]:
    """Yield the GPUs as plain data; none without a loader or driver."""
    import ctypes

    try:
        vulkan = ctypes.CDLL(_LIBRARIES.get(sys.platform, "libvulkan.so.1"))
    except OSError:
        return
    pointer = ctypes.c_void_p
    instance = pointer()
    # VkApplicationInfo: pNext, name, version, engine's name and version, apiVersion
    application = _struct(_APPLICATION, (0, 8), (0, 4), (0, 8), (0, 4), (_VERSION, 4))
    # VkInstanceCreateInfo without layers and extensions: flags, application, two empty lists
    at = ctypes.addressof(application)
    create = _struct(_INSTANCE, (0, 8), (at, 8), (0, 8), (0, 8), (0, 8), (0, 8))
    # anything but VK_SUCCESS, such as no driver
    if vulkan.vkCreateInstance(create, None, ctypes.byref(instance)):
        return
    for gpu in _array(
        lambda count, out: vulkan.vkEnumeratePhysicalDevices(instance, count, out), pointer
    ):
        row = _gpu(vulkan, pointer(gpu))
        # lavapipe and the like, which ggml-vulkan leaves out as well
        if row["type"] != _PROCESSOR:
            yield row


def _struct(kind: int, *fields: tuple[int, int]) -> ctypes.Array[ctypes.c_char]:
    """Return a structure with sType `kind` and no pNext; fields with their sizes, padding
    included."""
    import ctypes

    raw = kind.to_bytes(8, "little") + bytes(8)
    for value, size in fields:
        if size == 8 and len(raw) % 8:
            raw += bytes(8 - len(raw) % 8)
        raw += value.to_bytes(size, "little")
    return ctypes.create_string_buffer(raw, len(raw) + 8)


def _array(call: Callable[[Any, Any], int], kind: Any) -> list[Any]:
    """Return what a Vulkan function enumerates, after asking for the count."""
    import ctypes

    count = ctypes.c_uint32()
    if call(ctypes.byref(count), None) or not count.value:
        return []
    out = (kind * count.value)()
    # 5: VK_INCOMPLETE, more have come since the count
    return list(out[: count.value]) if call(ctypes.byref(count), out) in (0, 5) else []


def _gpu(vulkan: Any, gpu: ctypes.c_void_p) -> dict[str, Any]:
    """Return what Vulkan says of one GPU: its name, its memory and the limits that plans need."""
    import ctypes

    # VkExtensionProperties: name, version
    row = ctypes.c_char * 260
    extensions = {
        bytes(each).partition(b"\0")[0].decode()
        for each in _array(
            lambda count, out: vulkan.vkEnumerateDeviceExtensionProperties(gpu, None, count, out),
            row,
        )
    }
    # sizes of the structures without sType and pNext
    properties = _Chain(
        (_PROPERTIES2, 824), (_SUBGROUP, 16), (_MAINTENANCE3, 16), (_MAINTENANCE4, 8)
    )
    vulkan.vkGetPhysicalDeviceProperties2(gpu, properties.buffers[0])
    features = _Chain((_FEATURES2, 224), (_FLOAT16, 8), (_MEMORY_MODEL, 16), (_SUBGROUP_SIZE, 8))
    vulkan.vkGetPhysicalDeviceFeatures2(gpu, features.buffers[0])
    limits = {
        name: properties.number(0, _LIMITS + at, size) for name, (at, size) in _IN_LIMITS.items()
    }
    # supportedOperations, if compute shaders have any
    operations = properties.number(1, 8) if properties.number(1, 4) & _COMPUTE else 0
    allocation = properties.number(2, 8, 8)
    limits |= {
        "max_memory_allocation_size": allocation,
        # a driver without VK_KHR_maintenance4 leaves the structure as it was
        "max_buffer_size": properties.number(3, 0, 8) or allocation,
        "subgroup_size": properties.number(1, 0),
        "shader_float16": features.number(1, 0),
        "cooperative_matrix2": int("VK_NV_cooperative_matrix2" in extensions),
        "vulkan_memory_model": features.number(2, 0),
        "compute_full_subgroups": features.number(3, 4),
        "subgroup_shuffle_vote": int(
            operations & (_BASIC | _SHUFFLE | _VOTE) == _BASIC | _SHUFFLE | _VOTE
        ),
        "subgroup_arithmetic": int(operations & _ARITHMETIC != 0),
    }
    # otherwise it depends on the build too
    if "VK_EXT_shader_64bit_indexing" not in extensions:
        limits["shader_64bit_indexing"] = 0
    kind = properties.number(0, _TYPE)
    budget = "VK_EXT_memory_budget" in extensions
    total, free = _memory(vulkan, gpu, kind == _INTEGRATED, budget)
    name = (
        properties.buffers[0]
        .raw[16 + _NAME : 16 + _NAME + 256]
        .partition(b"\0")[0]
        .decode("utf-8", "replace")
    )
    return {
        "name": name,
        "type": kind,
        "kind": "igpu" if kind == _INTEGRATED else "gpu",
        "total": total,
        "free": free,
        "budget": budget,
        "limits": limits,
    }


def _memory(vulkan: Any, gpu: ctypes.c_void_p, all_heaps: bool, budget: bool) -> tuple[int, int]:
    """Return the total and free bytes of the device's heaps, an integrated GPU's all
    (ggml_backend_vk_get_device_memory)."""
    memory = _Chain((_MEMORY2, 520), *([(_BUDGET, 256)] if budget else []))
    vulkan.vkGetPhysicalDeviceMemoryProperties2(gpu, memory.buffers[0])
    total = free = 0
    # 4 + 32 types of 8 bytes, then heaps of 16
    for heap in range(memory.number(0, 260)):
        size, flags = memory.number(0, 264 + 16 * heap, 8), memory.number(0, 272 + 16 * heap)
        if all_heaps or flags & _DEVICE_LOCAL:
            total += size
            free += (
                # heapBudget less heapUsage:
                # VkPhysicalDeviceMemoryBudgetPropertiesEXT has 16 of each
                max(0, memory.number(1, 8 * heap, 8) - memory.number(1, 128 + 8 * heap, 8))
                if budget
                else size
            )
    return total, min(free, total)
