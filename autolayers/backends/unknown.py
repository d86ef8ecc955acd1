"""An unknown backend: no other aligns or pads more, or holds more in its results."""

from __future__ import annotations

from ..ggml.tensor import Ne, Tensor
from .backend import OFFLOAD_MIN_BATCH
from .cann import Cann
from .cuda import CudaBuffers
from .metal.sizes import scratch
from .sycl import multiplies

_CANN = Cann()


class Unknown(CudaBuffers):
    alignment = 256
    offload_min_batch = OFFLOAD_MIN_BATCH

    def padding(self, type_: str, ne: Ne) -> int:
        return max(super().padding(type_, ne), _CANN.padding(type_, ne))

    def alloc_size(self, tensor: Tensor) -> int:
        return max(super().alloc_size(tensor), scratch(tensor, tensor.nbytes, self.rules))

    def supports_op(self, op: Tensor) -> bool:
        """Return whether all backends run it, as far as it costs memory."""
        # as on SYCL: with -fa off and a cache per slot, attention's products move to the CPU, and
        # gigabytes with them
        if op.op == "MUL_MAT" and not multiplies(op):
            return False
        return self.reaches(op) and (op.op != "FLASH_ATTN_EXT" or op.src[1].type == op.src[2].type)
