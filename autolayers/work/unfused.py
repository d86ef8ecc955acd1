"""The chunked delta net as separate operations, which costs prompts 10 to 1500 times their time.

Builds with one op for it probe whether it runs on its layer's device, with 16 tokens for each slot
(resolve_fused_ops of src/llama-context.cpp, up to b10678). From 32 tokens on the products of a
layer in RAM are computed by a GPU, the probed op beside them, and llama.cpp then does without the
op in all layers.
"""

from __future__ import annotations

from ..backends import on
from ..memory.context import resolve
from ..memory.graphs.reserve import CHUNKED, reserved_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..builds import Rules
    from ..flags.params import Params
    from ..memory.weights import Placement
    from ..model import Model
    from .figures import Figures

# Seconds that a token takes in a layer in RAM, and bytes that one on a device moves, by elements of
# its values: through two launches of b9849 of Qwen3.5 9B with four slots, 42 tokens/s with 14
# layers in RAM of an RTX 3060 laptop, and 120 with two of a GTX 1070 Ti (538 and 241 with one slot)
IN_RAM, ON_DEVICE = 4.6e-7, 3440
DOUBT = 8.0  # the factor of a prompt's time
CHUNK = 64  # tokens to which a sequence's are filled up


def may_part(model: Model, rules: Rules) -> bool:
    """Return whether this build may compute the model's delta net as separate operations though it
    has one op."""
    return model.row.delta_net and rules.fused_delta_nets and not rules.stays_fused


def parts(model: Model, params: Params, rules: Rules, placement: Placement) -> bool:
    """Return whether a launch does. Raises LaunchRefused where llama.cpp would not make its
    context."""
    if not may_part(model, rules) or params.op_offload is False:
        return False
    layers = placement.dev_layer[: model.hparams.n_layer]
    in_ram = any(
        model.hparams.is_recr(il) and placement.is_host(name) for il, name in enumerate(layers)
    )
    if not in_ram:
        return False
    # The probe has 16 tokens for each slot: with two slots it reaches the 32 of op offload.
    probed = CHUNKED * reserved_slots(resolve(model, params, rules))
    return any(
        0 < on(device, rules=rules).offload_min_batch <= probed for device in placement.devices
    )


def seconds(model: Model, where: Sequence[str], devices: Mapping[str, Figures]) -> float:
    """Return the seconds of one token of a prompt, in a launch that does. `where`: the device of
    each layer, another name for none."""
    hp = model.hparams
    total = 0.0
    width = hp.ssm_d_inner or hp.n_head(0) * hp.head_v(0)
    for il, name in enumerate(where[: hp.n_layer]):
        if hp.is_recr(il):
            device = devices.get(name)
            total += width * (IN_RAM if device is None else ON_DEVICE / device.bandwidth)
    return total
