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
    moved = _Moved(placement)
    # The tensors of each layer, in the order of the file.
    tensors_of: dict[int, list[PlacedTensor]] = {}
    for group in placement.groups:
        if 0 <= group.layer < len(placement.dev_layer):
            tensors_of.setdefault(group.layer, []).extend(group.tensors.values())
    for layer, tensors in tensors_of.items():
        moved.note(layer, tensors)
    return ", ".join([f"{n} of {everything} layers on the GPU", *moved.words()])


class _Moved:
    """What is not where its layer is."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.on_gpu = {device.name for device in placement.devices}
        self.layers: dict[str, set[int]] = {
            "weights": set(),
            "experts": set(),
            "FFN weights": set(),
        }
        self.others = self.elsewhere = 0  # tensors
        self.spared = False  # some experts are on a GPU

    def note(self, layer: int, tensors: list[PlacedTensor]) -> None:
        place = self.placement.dev_layer[layer]
        in_ram = [tensor for tensor in tensors if self.placement.is_host(tensor.buffer)]
        on_gpus = [tensor for tensor in tensors if not self.placement.is_host(tensor.buffer)]
        self.spared = self.spared or any(EXPERTS in tensor.info.name for tensor in on_gpus)
        # A layer in RAM has its tensors there: nothing was moved.
        if place not in self.on_gpu:
            return
        # Whether it is on another GPU than its layer
        self.elsewhere += len(
            [each for each in tensors if (each.buffer in self.on_gpu and each.buffer != place)]
        )
        if not on_gpus:
            self.layers["weights"].add(layer)
            return
        names = [tensor.info.name for tensor in in_ram]
        if any(EXPERTS in name for name in names):
            self.layers["experts"].add(layer)
        elif any(".ffn_" in name for name in names):
            self.layers["FFN weights"].add(layer)
        self.others += sum(".ffn_" not in name for name in names)

    def words(self) -> Iterator[str]:
        if self.layers["experts"] and not self.spared:
            yield "all experts in RAM"
            self.layers["experts"].clear()
        for what, layers in self.layers.items():
            if layers:
                yield f"{what} of {_many(len(layers), 'layer')} in RAM"
        if self.others:
            yield f"{_many(self.others, 'more tensor')} in RAM"
        if self.elsewhere and not self.placement.shares:
            yield f"{_many(self.elsewhere, 'tensor')} on other GPUs than their layers"


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
