"""RPC: ggml/src/ggml-rpc/ggml-rpc.cpp, which supports every operation, offloads none and fuses
nothing.

Alignment and padding are the server's; a CUDA server's, the largest, is assumed.
"""

from __future__ import annotations

from ..builds import Rules
from .backend import Backend
from .cuda import CudaBuffers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ops import Ops, Parts


class Rpc(CudaBuffers):
    name = "RPC"
    async_events = Rules.rpc_pipelines
    unproven = (
        "backend RPC: sizes are those of a CUDA server, and may differ a little from another one's"
    )
    modelled = True
    remote = True
    context_first = True
    free_doubt = "as the remote server reports"

    def margin(self, ops: Ops) -> Parts:
        """Return what the server's own backend takes there, if that is known."""
        from . import HOST, backend

        server = backend(self.device.engine) if self.device and self.device.engine else Rpc
        # a server that computes on its CPU, or hands on to others, says no more than none
        if server.name in (HOST, Rpc.name):
            return super().margin(ops)
        return server(self.device).margin(ops)


# a server without a GPU lists its CPU as the device
class RpcCpu(Backend):
    """A ggml-rpc-server on a machine without a GPU: the CPU's alignment, no padding, no scratch."""

    name = "RPC-CPU"
    async_events = Rules.rpc_pipelines
    alignment = 32
    bandwidth = 38e9
    fp16_per_bandwidth = 16.0
    remote = True
    modelled = True
    proven = True
