"""--moe-cache-mib: experts of layers whose own are in RAM, kept on the layer's device as they are
used. Mirrors llama_moe_cache::impl of src/llama-moe-cache.cpp: layers of one device with the same
expert tensors share banks of slots, as many as fit into the device's share of the budget."""

from __future__ import annotations

from ..backends import HOST, REPACK, on
from ..errors import LaunchRefused
from ..records import dataclass
from ..units import pad

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..ggml.tensor import Ne
    from ..model import Model
    from .context import Context
    from .weights import Placement

    # (type, ne, bytes of one expert) of a layer's expert tensors
    Tensors = tuple[tuple[str, Ne, int], ...]

_PARTS = ("gate_up", "gate", "up", "down")
# get_alignment of ggml_backend_cpu_buffer_type, for the maps of slots
_HOST_ALIGNMENT = 32


@dataclass(frozen=True)
class Group:
    """Layers that share slots: their number, the experts of each, and the bytes of all of them in
    RAM."""

    slots: int
    layers: int
    n_expert: int
    size: int


@dataclass(frozen=True)
class Banks:
    """Bytes per buffer type, and the slots that each cached layer shares with those like it."""

    buffers: dict[str, int]
    slots: dict[int, int]
    groups: list[Group]
    shared: bool = False  # by several devices


def banks(
    model: Model, context: Context, placement: Placement, caches: Mapping[str, int] | None = None
) -> Banks:
    """Return what the cache of a launch allocates, after `caches` by device; without them what
    llama.cpp's measuring says: no weight is on a device yet, and rows are not padded. Raises
    LaunchRefused with llama.cpp's reason."""
    hp, devices = model.hparams, placement.devices
    # refuse if llama.cpp makes no such cache
    if not placement.devices:
        raise LaunchRefused("--moe-cache-mib: MoE cache requires a GPU backend")
    if context.split_mode == "tensor":
        raise LaunchRefused("--moe-cache-mib: MoE cache does not support tensor parallelism")
    if not hp.n_expert or not hp.n_expert_used_max:
        raise LaunchRefused("--moe-cache-mib: MoE cache requires a MoE model")
    # (device, tensors) -> layers; device -> bytes of its layers' experts in RAM
    groups, sizes = _in_ram(hp.n_layer_all, placement)
    shares = context.moe_split or _free(placement, caches)
    split = {
        device.name: share
        for device, share in zip(devices, shares, strict=False)
        if device.name in sizes
    }
    # devices without such layers get nothing of the budget
    whole = sum(split.values())
    allocated = Banks({}, {}, [], len(split) > 1)
    for (name, tensors), layers in groups.items():
        row = on(next(device for device in devices if device.name == name))
        # within a device the budget goes by size, so that each group caches the same fraction
        mine = _size(tensors) * len(layers)
        # equal shares where no device reports its free memory
        share = split.get(name, 0.0) / whole if whole else 1 / len(sizes)
        budget = int(context.moe_cache * share * mine / sizes[name])
        # the most slots within a budget, at most the number of experts
        # alloc_size grows with the slots: a search finds where llama.cpp's loop ends
        slots, high = 0, len(layers) * tensors[0][1][2]
        while slots < high:
            middle = (slots + high + 1) // 2
            if _banks(tensors, middle, row.alignment) <= budget:
                slots = middle
            else:
                high = middle - 1
        # a token's experts must all be in the bank at once: this group is not cached
        if slots < hp.n_expert_used_max:
            continue
        # slot_map: one i32 for each expert of each layer, in RAM
        maps = len(layers) * pad(4 * tensors[0][1][2], _HOST_ALIGNMENT)
        # measuring (no_alloc) adds alloc_size, a launch what the backend pads it to
        if caches is None:
            size = _banks(tensors, slots, row.alignment)
        else:
            # The bytes of a bank as a backend allocates it: `slots` experts and one more.
            n = slots + 1
            size = sum(row.padded(type_, (*ne[:2], n, 1), size * n) for type_, ne, size in tensors)
        for buffer, taken in ((name, size), (HOST, maps)):
            allocated.buffers[buffer] = allocated.buffers.get(buffer, 0) + taken
        allocated.slots.update(dict.fromkeys(layers, slots))
        allocated.groups.append(Group(slots, len(layers), tensors[0][1][2], mine))
    if groups and not allocated.slots:
        raise LaunchRefused(
            "--moe-cache-mib: MoE cache is too small to hold the experts of one token"
        )
    return allocated


def _cacheable(il: int, placement: Placement) -> Tensors:
    """Return a layer's experts, if they are in RAM and not repacked."""
    # gate and up may be one tensor
    names = [f"blk.{il}.ffn_{part}_exps.weight" for part in _PARTS]
    experts = [placed for name in names if (placed := placement.lookup(name))]
    buffers = {placed.buffer for placed in experts}
    if REPACK in buffers or not all(map(placement.is_host, buffers)):
        return ()
    # of a type that is not known the file says the size
    return tuple([(p.type, p.ne, -(-p.info.n_bytes // p.ne[2])) for p in experts])


def _in_ram(
    n_layer: int, placement: Placement
) -> tuple[dict[tuple[str, Tensors], list[int]], dict[str, int]]:
    """Return the layers with experts in RAM, and the bytes of these experts by device.

    Layers are grouped by (device, expert tensors), because only equal tensors share slots. A layer
    that runs on the CPU has no use for the cache, and repacked experts cannot be copied from.
    """
    groups: dict[tuple[str, Tensors], list[int]] = {}
    sizes: dict[str, int] = {}
    for il in range(n_layer):
        device = placement.dev_layer[il]
        tensors = () if device == HOST else _cacheable(il, placement)
        if not tensors:
            continue
        groups.setdefault((device, tensors), []).append(il)
        size = _size(tensors)
        sizes[device] = sizes.get(device, 0) + size
    return groups, sizes


def _free(placement: Placement, caches: Mapping[str, int] | None) -> list[int]:
    """Return the free memory of each device when the expert cache is made
    (ggml_backend_dev_memory)."""
    if caches is None:
        return [device.free for device in placement.devices]
    return [
        max(0, device.free - placement.buffers.get(device.name, 0) - caches.get(device.name, 0))
        for device in placement.devices
    ]


def _size(tensors: Tensors) -> int:
    return sum(size * ne[2] for _, ne, size in tensors)


def _banks(tensors: Tensors, slots: int, alignment: int) -> int:
    """Return the bytes of the banks of all tensors of a layer, with one more slot each
    (alloc_size)."""
    # one slot more: CUDA's MMQ may read past the last expert
    return sum(pad(size * (slots + 1), alignment) for _, _, size in tensors)
