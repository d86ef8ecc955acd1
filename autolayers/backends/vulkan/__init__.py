"""Vulkan: ggml/src/ggml-vulkan/ggml-vulkan.cpp, as modelled. The device's driver limits decide
alignments, the largest buffer and which operations it runs: see limits.py."""

from __future__ import annotations

from ...builds import Rules
from ..backend import ALIGNMENT, COUNT, NVIDIA, OFFLOAD_MIN_BATCH, SIZE, Backend
from ..ops import TEMPORARIES, Ops, Parts
from . import pool
from .limits import SMALLEST, Limits
from .reorder import reorder
from .reorder_before import reorder_before
from .supported import SUPPORTED, largest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from typing import ClassVar

    from ...ggml.scheduler import AddAllocDep
    from ...ggml.tensor import Tensor


class Vulkan(Backend):
    name = "Vulkan"
    also = ("ROCm", "SYCL")
    host_buffer = "Vulkan_Host"
    async_events = Rules.vulkan_pipelines
    igpu_mmap = False
    offload_min_batch = OFFLOAD_MIN_BATCH
    kernels = SUPPORTED
    modelled = True
    free_is_total = True  # without VK_EXT_memory_budget
    image = "-vulkan"
    visible = "GGML_VK_VISIBLE_DEVICES"
    device_nodes = ("/dev/dri",)
    limits_are = (
        ("min_storage_buffer_offset_alignment", ALIGNMENT),
        ("min_memory_map_alignment", ALIGNMENT),
        ("max_storage_buffer_range", SIZE),
        ("max_buffer_size", SIZE),
        ("max_memory_allocation_size", SIZE),
        ("max_compute_workgroup_invocations", COUNT),
    )
    # the other end of what desktop drivers report
    flipped: ClassVar[Mapping[str, int]] = {
        "max_storage_buffer_range": SMALLEST,
        "shader_64bit_indexing": False,
    }
    koboldcpp = ("--usevulkan",)
    nixpkgs = "vulkanSupport"
    llmkube = ("vulkan", "vulkan")
    log_words = ("ggml_vulkan", "Vulkan", "vk::")
    device_lines = (
        ("ggml_vulkan: ", r"ggml_vulkan: (?P<index>\d{1,3}) = (?P<description>.{1,90}?) \("),
    )
    ollama = "vulkan"

    def by_device(self) -> None:
        self.limits = limits = Limits.of(self.given)
        self.proven = limits.known and self.rules.vulkan_as_modelled
        self.alignment = limits.min_storage_buffer_offset_alignment
        self.host_alignment = limits.min_memory_map_alignment
        self.max_size = self.host_max_size = limits.block_size

    @property
    def doubt(self) -> str:
        if self.proven:
            return ""
        if self.limits.known:
            return (
                f"Vulkan of build {self.rules.number} runs a graph in an order close to the one "
                "modelled"
            )
        return (
            f"{self.device.name if self.device else self.name}: the driver's limits are unknown: "
            "assuming a desktop GPU's, an upper bound"
        )

    @property
    def kind(self) -> Hashable:
        return self.name, self.limits

    def supports_op(self, op: Tensor) -> bool:
        # a tensor above the driver's range is not run, and which range that is may be unknown
        size = largest(op)
        if size > SMALLEST and not self.limits.known:
            self.undecided = True
        # a binding cannot be larger than the buffer that it is in
        if size > self.limits.max_buffer_size and self.rules.vulkan_buffer_limit:
            return False
        if size > self.limits.largest and op.op != "IM2COL" and self.rules.vulkan_range_limit:
            return False
        return self.has_kernel(op)

    def offload_op(self, op: Tensor) -> bool:
        if self.rules.vulkan_offloads_rows:
            return super().offload_op(op)
        # ggml_backend_vk_device_offload_op of older builds
        return op.op != "GET_ROWS" and op.ne[2 if op.op == "MUL_MAT_ID" else 1] >= OFFLOAD_MIN_BATCH

    def margin(self, ops: Ops) -> Parts:
        n_sm = self.device.n_sm if self.device else None
        return (
            ("Vulkan driver", pool.NVIDIA_DRIVER if self.may_be_nvidia else pool.DRIVER),
            (TEMPORARIES, self.again(ops)),
            (
                "shaders of experts",
                max(pool.shaders(ops, kind, n_sm) for kind in self._matrix_kinds),
            ),
        )

    def again(self, ops: Ops) -> int:
        return max(pool.temporaries(ops, kind) for kind in self._matrix_kinds)

    @property
    def may_be_nvidia(self) -> bool:
        description = self.device.description if self.device else ""
        return not description or any(word in description for word in NVIDIA)

    @property
    def _matrix_kinds(self) -> set[bool]:
        """Whether it has, or may have, VK_NV_cooperative_matrix2, which needs more memory or
        less."""
        if self.limits.known:
            return {bool(self.limits.cooperative_matrix2)}
        capability = (self.device and self.device.compute_capability) or (7, 5)
        return {False, True} if self.may_be_nvidia and capability >= (7, 5) else {False}

    def graph_optimize(
        self, nodes: list[Tensor], after: Tensor | None, add_alloc_dep: AddAllocDep
    ) -> list[Tensor]:
        if not self.rules.vulkan_reorders:
            return nodes
        return (
            reorder(nodes, add_alloc_dep)
            if self.rules.vulkan_hazards
            else reorder_before(nodes, self.rules)
        )
