"""The projector for images in RAM (--no-mmproj-offload), and what an image then takes."""

from __future__ import annotations

from ..memory.extras import patches_of
from ..model.projectors import kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from ..work.speed import CostModel
    from .evaluate import Evaluator


def on_a_device(evaluator: Evaluator, given: Params) -> bool:
    """Whether the projector is on a device because no flag says where."""
    return evaluator.estimator.companions.mmproj is not None and bool(evaluator.machine.devices) \
        and given.mmproj_offload is None and given.mmproj_device is None and given.device != ()


def image_words(evaluator: Evaluator, cost: CostModel) -> str:
    """What an image of the projector's own size takes on the CPU and on the first device: its matrices' arithmetic for
    each patch, at the rates of prompts."""
    header = evaluator.estimator.companions.mmproj
    assert header is not None
    elements = sum(info.n_elements for info in header.tensors.values() if len(info.ne) > 1 and info.ne[1] > 1)
    flops = 2.0 * elements * patches_of(header, kind_of(header))
    device = cost.devices[evaluator.machine.devices[0].name]
    fast, slow = flops / (device.fp16 * device.rates.matmul), flops / cost.core_flops
    return f"an image takes about {slow:.1f} s instead of {fast:.1f}"
