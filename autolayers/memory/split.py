"""Which devices a model uses, and which of them gets which layer.

Mirrors llama_prepare_model_devices (src/llama.cpp) and the layer split of
llama_model_base::load_tensors (src/llama-model.cpp), as modelled.
"""

from __future__ import annotations

from struct import Struct

from ..backends import HOST, on
from ..builds import NEWEST_RULES, Rules
from ..errors import LaunchRefused
from ..gguf import BY_NAME, row_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..flags.params import Params
    from ..ggml.tensor import Ne
    from ..machine import Device

_FLOAT = Struct("f")


def _used(params: Params, mode: str, devices: Sequence[Device]) -> list[Device]:
    """Return the devices that the flags choose."""
    if params.device is not None:
        # The devices of --device
        by_name = {device.name: device for device in devices}
        for name in params.device:
            if name not in by_name:
                raise LaunchRefused(
                    f"invalid device: {name} (there are: {', '.join(by_name) or 'none'})"
                )
        used = [by_name[name] for name in params.device]
    else:
        # a meta device may combine GPUs, integrated ones and RPC servers
        used = list(devices) if mode == "tensor" else _by_default(devices)
    # -sm none: --main-gpu picks among the devices that are left
    return _main(params.main_gpu or 0, used) if mode == "none" and used else used


def model_devices(
    params: Params, devices: Sequence[Device], rules: Rules = NEWEST_RULES
) -> tuple[tuple[Device, ...], bool, tuple[str, ...]]:
    """Return the machine's devices that this model uses (llama_prepare_model_devices)."""
    mode = params.split_mode or "layer"
    used = _used(params, mode, devices)
    if mode == "tensor" and not used:
        raise LaunchRefused("split mode tensor needs at least one device")
    warnings = []
    # make_gpu_buft_list throws for a backend without ggml_backend_split_buffer_type
    if mode == "row" and used:
        # refuse -sm row on a device whose backend cannot split a matrix
        for device in used:
            if not on(device, rules=rules).splits_rows():
                raise LaunchRefused(
                    f"device {device.name} does not support split buffers (-sm row); "
                    "use -sm layer or -sm tensor"
                )
        warnings.append("split mode row: the shares of the devices are an upper bound")
    warnings += dict.fromkeys(doubt for device in used if (doubt := on(device).doubt))
    return tuple(used), not warnings, tuple(warnings)


def _by_default(devices: Sequence[Device]) -> list[Device]:
    """Return RPC servers' devices, then the GPUs; integrated GPUs if there is no other one.

    RPC comes first to save transfers over the network: the output layer, whose logits are read
    back for every token, is on a local GPU then. A GPU that two backends list (one PCI address)
    counts once, for the first.
    """
    gpus: list[Device] = []
    for device in devices:
        addresses = {gpu.pci_id for gpu in gpus}
        # e.g. one GPU by CUDA and by Vulkan, in a build with both
        is_listed = device.pci_id is not None and device.pci_id in addresses
        if device.kind == "gpu" and not is_listed:
            gpus.append(device)
    remote = [device for device in devices if device.kind == "rpc"]
    integrated = [device for device in devices if device.kind == "igpu"]
    return remote + (gpus or integrated)


def _main(main_gpu: int, used: list[Device]) -> list[Device]:
    """Return the one device of --split-mode none; no device for a negative --main-gpu."""
    if main_gpu < 0:
        return []
    if main_gpu >= len(used):
        raise LaunchRefused(
            f"invalid value for main_gpu: {main_gpu} (available devices: {len(used)})"
        )
    return [used[main_gpu]]


def float32(x: float) -> float:
    """Return the nearest float32, infinite if there is none."""
    try:
        # C's float: a double's last bits would move a layer at the boundary of two devices
        value: float = _FLOAT.unpack(_FLOAT.pack(x))[0]
    except OverflowError:
        return float("inf")
    return value


def layer_devices(
    n: int,
    n_gpu_layers: int,
    devices: Sequence[Device],
    tensor_split: Sequence[float],
    rules: Rules = NEWEST_RULES,
) -> list[str]:
    """Return the device of each of the `n` layers, the output layer last; in float32, whose
    rounding decides at the boundaries."""
    # i_gpu_start: the last layers go to devices
    start = max((n if rules.output_first else n - 1) - n_gpu_layers, 0)
    # load_tensors: shares are of the offloaded layers, the output among them, not of all layers
    count = min(n_gpu_layers, n) if devices else 0
    layers = [HOST] * n
    if not count:
        return layers
    cumulated = []
    # the sums as load_tensors makes them, each rounded to float32
    total = 0.0
    for share in _splits(devices, tensor_split):
        total = float32(total + float32(share))
        cumulated.append(total)
    # no device reports free memory, and no -ts was given
    if total == 0:
        for i in range(count if devices else 0):
            layers[start + i] = devices[-1].name
        return layers
    bounds = [float32(x / total) for x in cumulated]
    device = 0  # std::upper_bound of growing fractions
    for i in range(count):
        fraction = float32(i / count)
        while device < len(devices) - 1 and not fraction < bounds[device]:
            device += 1
        layers[start + i] = devices[device].name
    return layers


def _splits(devices: Sequence[Device], tensor_split: Sequence[float]) -> list[float]:
    # load_tensors: by what is free when the model loads, not by the devices' sizes; zeros alone
    # count as no -ts
    given = list(tensor_split[: len(devices)]) + [0.0] * max(0, len(devices) - len(tensor_split))
    return given if any(given) else [float(device.free) for device in devices]


def shares_of(params: Params, used: Sequence[Device]) -> dict[str, float]:
    """Return each device's part of a matrix with split mode row."""
    splits = _splits(used, params.tensor_split or ())
    total = sum(splits) or 1.0
    return {device.name: share / total for device, share in zip(used, splits, strict=True)}


def split_rows(
    shares: dict[str, float],
    type_: str,
    ne: Ne,
    size: int,
    divisible: bool,
    granule: int = 512,
) -> list[tuple[str, int]]:
    """Return (device, bytes) of a tensor that split mode row cuts: at most its share and one
    granule of rows, or all of it on every device. An upper bound."""
    # norms and biases are copied
    if not divisible:
        return [(name, size) for name in shares]
    # rounding of row borders, at most a granule
    extra = row_size(type_, ne[0]) * granule * ne[2] if type_ in BY_NAME else size
    return [
        (name, min(size, int(size * share) + extra)) for name, share in shares.items() if share > 0
    ]
