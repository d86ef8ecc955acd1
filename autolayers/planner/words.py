"""Where a launch has its layers, in words."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from ..memory.weights import PlacedTensor, Placement

EXPERTS = "_exps."


def describe(placement: Placement, params: Params, everything: int) -> str:
    """Where the layers are, in words: by the tensors' placement, whichever flags caused it."""
    n = 0 if params.device == () else params.layers_wanted(everything)
    on_gpu = {device.name for device in placement.devices}
    layers: dict[int, list[PlacedTensor]] = {}
    for group in placement.groups:
        if 0 <= group.layer < len(placement.dev_layer):
            layers.setdefault(group.layer, []).extend(group.tensors.values())
    moved: dict[str, set[int]] = {"weights": set(), "experts": set(), "FFN weights": set()}
    others = elsewhere = 0
    spared = False
    for il, tensors in layers.items():
        in_ram = [tensor.info.name for tensor in tensors if placement.is_host(tensor.buffer)]
        spared = spared or any(
            EXPERTS in tensor.info.name and not placement.is_host(tensor.buffer)
            for tensor in tensors
        )
        if placement.dev_layer[il] not in on_gpu:
            continue
        elsewhere += sum(
            tensor.buffer in on_gpu and tensor.buffer != placement.dev_layer[il]
            for tensor in tensors
        )
        if len(in_ram) == len(tensors):
            moved["weights"].add(il)
            continue
        if any(EXPERTS in name for name in in_ram):
            moved["experts"].add(il)
        elif any(".ffn_" in name for name in in_ram):
            moved["FFN weights"].add(il)
        others += sum(".ffn_" not in name for name in in_ram)
    text = f"{n} of {everything} layers on the GPU"
    if moved["experts"] and not spared:
        text += ", all experts in RAM"
        moved["experts"].clear()
    for what, found in moved.items():
        if found:
            text += f", {what} of {len(found)} layer{'s' * (len(found) != 1)} in RAM"
    if others:
        text += f", {others} more tensor{'s' * (others != 1)} in RAM"
    if elsewhere and not placement.shares:
        text += f", {elsewhere} tensor{'s' * (elsewhere != 1)} on other GPUs than their layers"
    return text
