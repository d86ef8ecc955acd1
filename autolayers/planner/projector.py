"""The projector for images in RAM (--no-mmproj-offload), and what an image then takes."""

from __future__ import annotations

from ..memory.extras import patches_of
from ..model.projectors import kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .problem import Problem


def on_a_device(problem: Problem) -> bool:
    """Whether the projector is on a device because no flag says where."""
    given = problem.given
    if problem.request.companions.mmproj is None or not problem.machine.devices:
        return False
    return given.mmproj_offload is None and given.mmproj_device is None and given.device != ()


def image_words(problem: Problem) -> str:
    """What an image of the projector's own size takes on the CPU and on the first device: its
    matrices' arithmetic for each patch, at the rates of prompts."""
    header, cost = problem.request.companions.mmproj, problem.cost
    assert header is not None
    elements = sum(
        info.n_elements for info in header.tensors.values() if len(info.ne) > 1 and info.ne[1] > 1
    )
    flops = 2.0 * elements * patches_of(header, kind_of(header))
    device = cost.devices[problem.machine.devices[0].name]
    fast, slow = flops / (device.fp16 * device.rates.matmul), flops / cost.core_flops
    return f"an image takes about {slow:.1f} s instead of {fast:.1f}"
