"""What the host limits besides its RAM: pinned memory on Windows, and the distance between NUMA
nodes."""

from __future__ import annotations

from ..backends import on
from ..units import GiB, human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params
    from ..machine import Machine
    from ..memory.breakdown import Static
    from ..memory.weights import Placement

_MAPPED = (None, "auto", "mmap", "mmap+mlock")
LARGE = GiB  # of weights in RAM, from which on their node matters
PINNED = 2  # 1/2: the part of the RAM that Windows lets a process pin, and WSL2 of its own


def pinned(params: Params, use: Static, placement: Placement) -> int:
    """Bytes of a launch in pinned host memory: graph buffers, and weights that are not mapped."""
    names = {name for device in placement.devices if (name := on(device).host_buffer)}
    if not names:
        return 0
    weights = (
        sum(placement.buffers.get(name, 0) for name in names)
        if params.load_mode not in _MAPPED
        else 0
    )
    return weights + use.host.compute


def warnings(machine: Machine, params: Params, use: Static, placement: Placement) -> Iterator[str]:
    """Of a launch on this machine."""
    total = machine.ram_total
    if total and any(device.wddm for device in machine.devices):
        size, most = pinned(params, use, placement), total // PINNED
        if size > most:
            yield (
                f"{human(size)} of RAM would be pinned; Windows and WSL2 pin only about half of "
                f"it, {human(most)}"
                ": loading may fail; without --no-mmap the weights are mapped, not pinned"
            )
    if (machine.numa or 1) > 1 and params.numa is None and use.host_resident > LARGE:
        yield (
            f"{machine.numa} NUMA nodes: threads of one read weights in RAM of the other over "
            f"their link; --numa "
            "distribute spreads both, as does numactl --interleave=all with --numa numactl: "
            "measure which is faster"
        )
