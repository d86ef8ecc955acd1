"""The differences between ggml's backends, one file or folder each; no other part of autolayers
knows a backend by name.

    backend("CUDA").host_buffer          # what holds for all its devices
    on(device).padded("q4_0", ne, n)     # a Device, as llama.cpp asks it
    backend_of("Vulkan1")                # by a device's name

To add one: a file with a Backend, its name in BACKENDS, and what it prints in signs.tsv.
"""

from __future__ import annotations

from importlib import import_module

from ..builds import NEWEST_RULES, Rules
from .backend import Backend
from .cpu import HOST, REPACK, Cpu
from .cuda import Cuda, Hip, Musa
from .meta import Meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..machine import Device
    from .sign import Sign

__all__ = [
    "ALIASES",
    "BACKENDS",
    "CPU",
    "DEFAULT",
    "HOST",
    "K_QUANTS",
    "METAL",
    "REPACK",
    "SYCL",
    "VULKAN",
    "Backend",
    "Cpu",
    "Cuda",
    "Hip",
    "backend",
    "backend_of",
    "canonical",
    "on",
    "signs",
    "together",
    "vendor",
]

METAL, SYCL, VULKAN = "MTL", "SYCL", "Vulkan"  # named elsewhere, without being imported for it
# name -> its class, or file and class, imported with the first device of it
BACKENDS: dict[str, type[Backend] | str] = {
    "CUDA": Cuda,
    "ROCm": Hip,
    "MUSA": Musa,
    VULKAN: "vulkan.Vulkan",
    METAL: "metal.Metal",
    SYCL: "sycl.Sycl",
    "CANN": "cann.Cann",
    "OpenCL": "opencl.OpenCl",
    "RPC": "rpc.Rpc",
    "RPC-CPU": "rpc.RpcCpu",
    HOST: Cpu,
}
ALIASES = {
    "HIP": "ROCm",
    "Metal": METAL,  # of builds before 2026
    "GPUOpenCL": "OpenCL",
}  # the name of all its devices
DEFAULT = Cuda  # if a device does not state its backend
CPU = Cpu()  # plain host memory
# Types of weights that every backend supports in the same operations: on one device they make the
# same graph
K_QUANTS = frozenset(("q4_K", "q5_K", "q6_K"))


def backend(name: str) -> type[Backend]:
    """Return the backend of that name; unknown.Unknown for any other."""
    name = ALIASES.get(name, name)
    row = BACKENDS.get(name, "unknown.Unknown")
    if isinstance(row, str):
        file, _, title = row.partition(".")
        loaded: type[Backend] = getattr(import_module(f"{__name__}.{file}"), title)
        # the class takes the place of its name: the next call imports nothing
        if name in BACKENDS:
            BACKENDS[name] = loaded
        row = loaded
    return row


def canonical(name: str) -> str:
    """Return the canonical name here: "MTL" for "Metal"; other backends' names unchanged."""
    # an unknown name stays, so that a message shows what was written
    return backend(name).name if ALIASES.get(name, name) in BACKENDS else name


def signs() -> dict[Sign, tuple[str, ...]]:
    """Return what backends print when something fails, and the names of those that do."""
    from .sign import signs_of  # planning needs none of this

    return {sign: tuple(row["backends"].split()) for row, sign in signs_of("backends/signs.tsv")}


def backend_of(device_name: str) -> type[Backend]:
    """Return the backend of a device, or of its buffers, by name: "CUDA0", "CPU",
    "RPC0[127.0.0.1:50052]"."""
    # digits alone are stripped: "RPC0[127.0.0.1:50052]" has an address
    return backend(device_name.partition("[")[0].rstrip("0123456789"))


def vendor(name: str, description: str) -> str:
    """Return who made a GPU of a backend, by what it is called where several makers' run there;
    "": nothing says it."""
    rows = [backend(name), *map(backend, BACKENDS)]
    if rows[0].vendor:
        return rows[0].vendor
    named = (row for row in rows if any(word in description for word in row.makers))
    return next((row.vendor for row in named), "")


def on(device: Device, index: int = 0, rules: Rules = NEWEST_RULES) -> Backend:
    """Return the backend on one device, number `index` of a launch, by a build's rules. A CPU as a
    device is an RPC server's."""
    row = backend(device.backend)
    return (backend("RPC-CPU") if row is Cpu else row)(device, index, rules)


def together(devices: Sequence[Device], rules: Rules = NEWEST_RULES) -> Meta:
    """Return the backend of -sm tensor on these devices."""
    return Meta([on(device, 0, rules) for device in devices], rules)
