"""What differs between ggml's backends, one file or folder each; nothing else in autolayers knows a backend by name.

    backend("CUDA").host_buffer          # what holds for all its devices
    on(device).padded("q4_0", ne, n)     # a Device, as llama.cpp asks it
    backend_of("Vulkan1")                # by a device's name

To add one: a file with a Backend, and its class in _ALL.
"""

from __future__ import annotations

from ..builds import NEWEST_RULES
from .backend import Backend
from .cann import Cann
from .cpu import HOST, REPACK, Cpu
from .cuda import Cuda, CudaBuffers, Hip, Musa
from .metal import Metal
from .opencl import OpenCl
from .rpc import Rpc, RpcCpu
from .sycl import Sycl
from .vulkan import Vulkan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..builds import Rules
    from ..devices.device import Device

__all__ = ["BACKENDS", "CPU", "DEFAULT", "HOST", "REPACK", "Backend", "Cpu", "Cuda", "Hip", "Metal", "Rpc", "RpcCpu",
           "Sycl", "Unknown", "Vulkan", "backend", "backend_of", "canonical", "failed_allocations", "on"]

_ALL: tuple[type[Backend], ...] = (Cuda, Hip, Musa, Vulkan, Metal, Sycl, Cann, OpenCl, Rpc, RpcCpu, Cpu)
BACKENDS = {b.name: b for b in _ALL}
_ALIASES = {alias: b for b in _ALL for alias in b.aliases}
DEFAULT = Cuda                # of a device that does not say
CPU = Cpu()                   # plain host memory


class Unknown(CudaBuffers):
    """A backend that is not known: none aligns or pads more."""

    alignment = 256


def backend(name: str) -> type[Backend]:
    """The backend of that name, Unknown for another."""
    return BACKENDS.get(name) or _ALIASES.get(name) or Unknown


def canonical(name: str) -> str:
    """The name as it stands here: "MTL" for "Metal"; that of another backend as it is."""
    known = backend(name)
    return name if known is Unknown else known.name


def failed_allocations() -> dict[str, tuple[str, ...]]:
    """Regular expressions of failed allocations, and the names of the backends that print such a line."""
    found: dict[str, tuple[str, ...]] = {}
    for b in _ALL:
        for pattern in b.out_of_memory:
            found[pattern] = (*found.get(pattern, ()), b.name)
    return found


def backend_of(device_name: str) -> type[Backend]:
    """The backend of a device, or of its buffers, by their name: "CUDA0", "CPU", "RPC0[127.0.0.1:50052]"."""
    return backend(device_name.partition("[")[0].rstrip("0123456789"))


def on(device: Device, index: int = 0, rules: Rules = NEWEST_RULES) -> Backend:
    """The backend on one device, `index` of a launch's, by a build's rules. A CPU as a device is one that is served."""
    known = backend(device.backend)
    return (RpcCpu if known is Cpu else known)(device, index, rules)
