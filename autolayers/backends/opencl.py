"""OpenCL: ggml/src/ggml-opencl/ggml-opencl.cpp. The operations that it runs depend on the Adreno
GPU and are not modelled, so sizes are an upper bound. In a device's `limits`: `mem_base_addr_align`
(bytes, where clinfo has bits) and `max_mem_alloc_size` (bytes); 128 bytes and 1 GiB are assumed."""

from __future__ import annotations

from ..ggml.types import BY_NAME
from .backend import ALIGNMENT, SIZE, Backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..ggml.tensor import Ne

_GAPS = 4  # of the parts that a quantised weight is cut into


class OpenCl(Backend):
    name = "OpenCL"
    mmap = False
    async_events = False
    numbered = False
    free_doubt = "free is a guess: total less 1 GiB"
    limits_are = (("mem_base_addr_align", ALIGNMENT), ("max_mem_alloc_size", SIZE))

    def by_device(self) -> None:
        self.alignment = self.given.get("mem_base_addr_align", 128)
        self.max_size = self.given.get("max_mem_alloc_size", 1 << 30)

    @property
    def kind(self) -> Hashable:
        return self.name, self.alignment, self.max_size

    def padding(self, type_: str, ne: Ne) -> int:
        row = BY_NAME.get(type_)
        return _GAPS * self.alignment if row is None or row.blck_size > 1 else 0
