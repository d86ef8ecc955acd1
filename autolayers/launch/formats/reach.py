"""How a program elsewhere gets to the GPUs of a launch: the one table of backend x maker x format.
Its rows are the backends (autolayers.backends), its columns the formats (flags/formats.py).

    reach = Reach(backend("Vulkan"), "NVIDIA GeForce RTX 3060")
    reach.driver, reach.nodes, reach.variable, reach.resource
    reach.refuse("docker")                  # raises UsageError where it cannot
"""

from __future__ import annotations

from ...backends import vendor
from ...errors import UsageError
from ...flags.formats import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...backends import Backend

# What device plugins of Kubernetes call a maker's GPUs: a pod gets whole ones from its node
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/xe"}


class Reach:
    """A backend on GPUs that are called so. `vendor`: who made them, in small letters; `driver`:
    the container runtime's driver that gives a container all of them, "": `nodes` do; `variable`:
    what that driver is asked for, NAME=VALUE; `resource`: what Kubernetes calls them."""

    def __init__(self, backend: type[Backend], description: str = "") -> None:
        self.backend = backend
        self.vendor = vendor(backend.name, description).lower()
        # NVIDIA's driver has no node that Vulkan could use
        self.driver = backend.gpu_driver or ("nvidia" if self.vendor == "nvidia" else "")
        self.nodes = () if self.driver else backend.device_nodes
        more = self.driver and not backend.gpu_driver
        self.variable = "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics" if more else ""
        in_container = bool(self.driver or self.nodes)
        # A guess for a GPU that has no name
        self.resource = RESOURCES.get(self.vendor, RESOURCES["intel"]) if in_container else ""

    def reaches(self, kind: str) -> bool:
        """Return whether a program that a format starts can compute on them."""
        column = FORMATS[kind].gpu
        if column == "image":
            # An image without a way to the device computes on the processor
            return bool(self.backend.image and self.resource)
        return not column or getattr(self.backend, column) not in (None, False)

    def refuse(self, kind: str) -> None:
        """Raise UsageError for a format that cannot give them to its program."""
        if not self.reaches(kind):
            name = self.backend.title or self.backend.name
            raise UsageError(
                f"--format {kind} has no {name} GPU for llama.cpp: add -dev none, or start the "
                "words of --format flags"
            )
