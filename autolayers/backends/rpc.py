"""RPC: ggml/src/ggml-rpc/ggml-rpc.cpp, which supports every operation, offloads none and fuses nothing.

Alignment and padding are the server's; a CUDA server's, the largest, is assumed.
"""

from __future__ import annotations

from .backend import Backend
from .cuda import CudaBuffers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ops import Ops, Parts


class Rpc(CudaBuffers):
    name = "RPC"
    modelled = True
    remote = True
    context_first = True
    free_doubt = "as the remote server reports"

    def pipelines(self) -> bool:
        return self.rules.rpc_pipelines

    def margin(self, ops: Ops) -> Parts:
        """What the server's own backend takes there, if that is known."""
        if self.device is None or not self.device.engine:
            return super().margin(ops)
        from . import backend

        return backend(self.device.engine)(self.device).margin(ops)


class RpcCpu(Backend):
    """A ggml-rpc-server on a machine without a GPU: the CPU's alignment, no padding, no scratch."""

    name = "RPC-CPU"
    alignment = 32
    bandwidth = 38e9
    fp16_per_bandwidth = 16.0
    remote = True
    modelled = True
    proven = True

    def pipelines(self) -> bool:
        return self.rules.rpc_pipelines
