"""The same GPUs under another backend of llama.cpp: `--backend vulkan` on any machine.

driven(devices, "vulkan")      # ROCm0 becomes Vulkan0; devices of RPC servers stay
"""

from __future__ import annotations

from ..backends import ALIASES, BACKENDS, CPU, METAL, VULKAN, Backend, backend
from ..errors import UsageError
from ..machine import Device
from ..records import replace
from .given import numbered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def chosen(word: str) -> type[Backend]:
    """Return the backend of that name or alias, in any case. Raises UsageError with the known
    ones."""
    # a remote backend is chosen by --rpc, not by a word
    names = {
        name.lower(): kind for name in (*BACKENDS, *ALIASES) if not (kind := backend(name)).remote
    }
    if word.lower() not in names:
        raise UsageError(f"--backend {word}: llama.cpp has {', '.join(sorted(set(names)))}")
    return names[word.lower()]


def driven(devices: Sequence[Device], word: str) -> list[Device]:
    """Return the devices under that backend, renumbered; only RPC servers' for cpu. Raises
    UsageError if the backend does not support one, or Metal has none. A size is that of a Mac's GPU
    under Metal, which shares the RAM."""
    # devices of RPC servers keep the backend of their machine
    wanted = chosen(word)
    remote = [device for device in devices if backend(device.backend).remote]
    own = [device for device in devices if not backend(device.backend).remote]
    if wanted is type(CPU):
        return remote
    if wanted.name == METAL and not devices:
        raise UsageError(
            f"--backend {word}: no GPU here runs Metal; name a Mac by its chip and RAM, "
            "such as --gpu m2-max-32g"
        )
    changed = [_under(device, wanted, word) for device in own]
    if wanted.name == VULKAN:
        changed = _with_vulkan_limits(changed)
    return [*remote, *numbered(changed)]


def renamed(devices: Sequence[Device], word: str) -> list[Device]:
    """Return local devices under that backend, renumbered, without asking its driver. Raises
    UsageError."""
    wanted = chosen(word)
    return numbered([_under(device, wanted, word) for device in devices])


def _with_vulkan_limits(devices: list[Device]) -> list[Device]:
    """Return the devices with the limits that Vulkan reports here; given ones need none."""
    if all(device.source == "given" for device in devices):
        return devices
    from .vulkan import query, with_limits

    return with_limits(devices, query())


def _under(device: Device, wanted: type[Backend], word: str) -> Device:
    """Return the device under a backend. Raises UsageError if that does not run on it."""
    if device.backend == wanted.name:
        return device
    # a bare size is any GPU: nothing contradicts the backend
    named = bool(device.description) and not device.description.startswith("hypothetical")
    if named and not wanted.runs(backend(device.backend), device.description):
        raise UsageError(f"--backend {word}: {wanted.name} does not run on {device.description}")
    # what the other backend's kernels go by means nothing here
    return replace(
        device,
        backend=wanted.name,
        compute_capability=None,
        includes_context=False,
        limits=None,
        unified=device.unified or (wanted.name == METAL and not named),
    )
