"""RPC: ggml/src/ggml-rpc/ggml-rpc.cpp, which supports every operation, offloads none and fuses
nothing.

Alignment and padding are the server's; a CUDA server's, the largest, is assumed.
"""

from __future__ import annotations

from .backend import Backend
from .cuda import CudaBuffers
from .sign import Sign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ops import Ops, Parts


class Rpc(CudaBuffers):
    name = "RPC"
    modelled = True
    remote = True
    context_first = True
    free_doubt = "as the remote server reports"
    signs = (
        Sign(
            "rpc_lost",
            "RPC server crashed",
            r"Remote RPC server crashed or returned malformed response",
            "run",
            first=5600,
        ),
        Sign(
            "rpc_lost",
            "ggml-rpc",
            r"ggml-rpc\.cpp.{0,60}GGML_ASSERT\(status\) failed"
            r"|GGML_ASSERT\(status\) failed.{0,60}ggml-rpc",
            "run",
            last=5700,
        ),
        Sign("rpc_lost", "recv failed", r"recv failed \(bytes_recv=", "run"),
        Sign(
            "rpc_lost",
            "failed to connect to",
            r"[fF]ailed to connect to (?:\S{3,80})?:\d{2,5}",
            "start",
        ),
        Sign(
            "rpc_lost",
            "protocol",
            r"RPC (?:server|protocol) version mismatch|client needs upgrade to protocol",
            "start",
        ),
    )

    @property
    def doubt(self) -> str:
        return (
            "backend RPC: sizes are those of a CUDA server, and may differ a little from another "
            "one's"
        )

    def pipelines(self) -> bool:
        return self.rules.rpc_pipelines

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
    alignment = 32
    bandwidth = 38e9
    fp16_per_bandwidth = 16.0
    remote = True
    modelled = True
    proven = True

    def pipelines(self) -> bool:
        return self.rules.rpc_pipelines
