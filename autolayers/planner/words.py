"""Where a launch has its layers, in words."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params
    from ..memory.weights import PlacedTensor, Placement

EXPERTS = "_exps."


def describe(placement: Placement, params: Params, everything: int) -> str:
    """Return where the layers are, in words: by the tensors' placement, whichever flags caused
    it."""
    # -dev none: n_gpu_layers says nothing.
    n = 0 if params.device == () else params.layers_wanted(everything)
    return ", ".join([f"{n} of {everything} layers on the GPU", *_moved(placement)])


def _moved(placement: Placement) -> Iterator[str]:
    """Yield what is not where its layer is."""
    on_gpu = {device.name for device in placement.devices}
    # The tensors of each layer, in the order of the file.
    tensors_of: dict[int, list[PlacedTensor]] = {}
    for group in placement.groups:
        if 0 <= group.layer < len(placement.dev_layer):
            tensors_of.setdefault(group.layer, []).extend(group.tensors.values())
    layers = dict.fromkeys(("weights", "experts", "FFN weights"), 0)
    others = elsewhere = 0  # tensors
    spared = False  # some experts are on a GPU
    for layer, tensors in tensors_of.items():
        place = placement.dev_layer[layer]
        in_ram = [each.info.name for each in tensors if placement.is_host(each.buffer)]
        on_gpus = [each for each in tensors if not placement.is_host(each.buffer)]
        spared = spared or any(EXPERTS in each.info.name for each in on_gpus)
        # A layer in RAM has its tensors there: nothing was moved.
        if place not in on_gpu:
            continue
        elsewhere += sum(each.buffer in on_gpu - {place} for each in tensors)
        if not on_gpus:
            layers["weights"] += 1
            continue
        if any(EXPERTS in name for name in in_ram):
            layers["experts"] += 1
        elif any(".ffn_" in name for name in in_ram):
            layers["FFN weights"] += 1
        others += sum(".ffn_" not in name for name in in_ram)
    if layers["experts"] and not spared:
        yield "all experts in RAM"
        layers["experts"] = 0
    for what, count in layers.items():
        if count:
            yield f"{what} of {_many(count, 'layer')} in RAM"
    if others:
        yield f"{_many(others, 'more tensor')} in RAM"
    if elsewhere and not placement.shares:
        yield f"{_many(elsewhere, 'tensor')} on other GPUs than their layers"


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
