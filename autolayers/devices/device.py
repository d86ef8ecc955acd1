"""One device as `llama-server --list-devices` would name it, here or hypothetical, and where its numbers come from."""

from __future__ import annotations

from ..backends import DEFAULT, backend
from ..errors import UsageError
from ..records import dataclass, replace
from ..units import GiB, MiB, parse_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEVICES = 16      # llama_max_devices


@dataclass(frozen=True)
class Device:
    """Memory in bytes. `free` is what an allocation may take now; `includes_context` says whether the
    backend's own context (CUDA's primary context) has been subtracted from it already."""

    name: str
    total: int
    free: int
    description: str = ""
    backend: str = DEFAULT.name    # a name of autolayers.backends: CUDA ROCm Vulkan MTL SYCL RPC ...
    kind: str = "gpu"              # gpu, igpu (shares the system's RAM), rpc
    uuid: str | None = None
    pci_id: str | None = None      # "0000:01:00.0"
    compute_capability: tuple[int, int] | None = None   # CUDA only; None: 8.9 is assumed
    includes_context: bool = False
    display: bool | None = None    # a desktop draws on it; None: unknown
    source: str = "given"          # nvml, list-devices, sysfs, metal, rpc, given
    bandwidth: float | None = None   # bytes per second of its memory, None: unknown
    n_sm: int | None = None        # streaming multiprocessors, None: unknown
    wddm: bool = False             # driven by Windows (WSL2 too), which moves memory about
    warning: str = ""              # why `total` and `free` may be off; empty: as measured
    fp16_tflops: float | None = None   # of its matrix units, dense; None: unknown
    link: float | None = None      # bytes per second between it and RAM, or the network to its server, None: unknown
    latency: float | None = None   # seconds of a round trip to its server, None: unknown, or no server
    engine: str = ""               # the backend that its server drives it with; empty: unknown, or no server
    unified: bool = False          # its memory is the system's RAM
    ram: int | None = None         # all of that RAM, None: unknown
    limits: Mapping[str, int] | None = None   # what its driver allows, keys as the backend has them; None: unknown

    def __hash__(self) -> int:     # limits have none
        return hash((self.name, self.backend, self.total, self.free))

    @property
    def in_ram(self) -> bool:
        """Whether what lies on it is in this machine's RAM."""
        return self.unified and self.kind != "rpc"

    @classmethod
    def hypothetical(cls, size: str, name: str = f"{DEFAULT.name}0") -> Device:
        """A device of that much free memory that is not here: "24GiB", or a card's name such as "rtx-3090".

        A size is the free memory, exactly. A card of another backend is named by that one: ROCm0. Raises UsageError for
        anything else.

        >>> Device.hypothetical("24576MiB").free == 24576 << 20
        True
        """
        if not isinstance(size, str):
            raise UsageError(f"a size is a text such as '24GiB', not {size!r:.60}")
        text = size.strip()
        n_bytes = _size(text)
        if n_bytes is not None:
            return cls(name, n_bytes, n_bytes, f"hypothetical {text}")
        from .cards import find

        card = find(text)
        usable = card.usable * MiB
        kind = "igpu" if card.unified and backend(card.backend).has_igpu else "gpu"
        return cls(name.replace(DEFAULT.name, card.backend), usable, usable, card.description, card.backend, kind,
                   compute_capability=card.compute_capability, n_sm=card.n_sm, bandwidth=card.bandwidth * 1e9 or None,
                   fp16_tflops=card.fp16 or None, link=card.link, unified=card.unified, ram=card.ram * GiB or None)


def _size(text: str) -> int | None:
    """Bytes; None where the text can only be a card's name: "4090" is one, "24" is most likely meant in GiB."""
    try:
        size = parse_size(text)
    except UsageError:
        return None
    if not text.isdigit() or size >= MiB:
        return size
    if len(text) < 4:
        raise UsageError(f"{text} bytes of memory? write {text}GiB or {text}MiB")
    if int(text) % 256 == 0:
        raise UsageError(f"{text} bytes of memory? write {text}MiB, or --gpu list for the names of cards")
    return None


def _times(part: str) -> tuple[int, str]:
    """(2, "24GiB") of "2x24GiB", "2 x 24GiB" and "24GiBx2"."""
    lower = part.lower()
    first, _, rest = lower.partition("x")
    if first.strip().isdecimal() and len(first.strip()) < 4 and rest:
        return int(first.strip()), part[len(first) + 1:].strip()
    rest, _, last = lower.rpartition("x")
    if last.strip().isdecimal() and len(last.strip()) < 4 and rest:
        return int(last.strip()), part[:len(rest)].strip()
    return 1, part


def hypothetical(spec: str) -> list[Device]:
    """The devices of `--gpu`: sizes and names of cards, "24GiB,12GiB", "2x4090", "a100-80g", numbered per backend.

    Raises UsageError.

    >>> [device.name for device in hypothetical("24GiB,2x12GiB")]
    ['CUDA0', 'CUDA1', 'CUDA2']
    """
    found: list[Device] = []
    if spec.strip().lower() in ("0", "none", "no", "cpu"):
        raise UsageError(f"--gpu {spec}: -dev none plans for a machine's processor alone")
    for part in spec.split(","):
        count, what = _times(part.strip())
        if not what.strip():
            raise UsageError(f"an empty device in --gpu {spec!r} (write for example 24GiB,12GiB or 2x24GiB)")
        if not 1 <= count <= MAX_DEVICES or len(found) + count > MAX_DEVICES:
            raise UsageError(f"--gpu {spec!r}: llama.cpp uses 1 to {MAX_DEVICES} devices")
        found += [Device.hypothetical(what)] * count
    return numbered(found)


def numbered(devices: list[Device]) -> list[Device]:
    """The same, named by their backends in this order: CUDA0, CUDA1, ROCm0."""
    used: dict[str, int] = {}
    named = []
    for device in devices:
        number = used[device.backend] = used.get(device.backend, -1) + 1
        named.append(replace(device, name=f"{device.backend}{number}"))
    return named
