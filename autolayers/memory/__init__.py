"""The memory model: what a launch of llama-server allocates, per device, to the byte.

    estimate(model, params, devices) -> Breakdown

It never asks a device anything: `devices` says what there is, `params` what is wanted.
"""

from __future__ import annotations

from ..builds import MODELLED
from ..errors import LaunchRefused
from .breakdown import Breakdown, Extra, Usage
from .cache import allocate
from .context import resolve
from .weights import place_weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..devices.device import Device
    from ..model import Model
    from ..params import Params

__all__ = ["Breakdown", "Extra", "Usage", "estimate"]


def estimate(model: Model, params: Params, devices: Sequence[Device], build: int | None = None,
             compute: bool = True, runtime: bool = False,
             enough: Callable[[Breakdown], bool] | None = None) -> Breakdown:
    """The Breakdown of llama-server started with `params` on `devices` (all the machine has, in llama.cpp's order).

    What is None in params has llama-server's default, and n_gpu_layers None, -1 or -2 offloads everything. `compute=False`
    leaves the graph buffers and the extras out: weights and caches alone, in a tenth of the time. `runtime` also finds what
    the graph buffers may grow to in use (`runtime_peak`: bytes above `compute`). `enough` is asked with a lower bound,
    weights, caches and the prompt graph, and where it says yes that is the answer (`partial`), at a third of the price.
    `build` is llama.cpp's build number,
    None for the newest known. Raises LaunchRefused where llama.cpp would refuse, with its reason.
    """
    model = model.overridden(params.override_kv)
    beside = None
    if _companied(params):
        from .extras import companions, with_draft_type

        files = (params.mmproj, params.model_draft, params.lora)
        beside = model.memo.get(files) or model.memo.setdefault(files, companions(params))
        params = with_draft_type(params, beside)
    context = resolve(model, params, build)
    if beside is not None:
        from ..records import replace
        from .extras import layer_inputs

        context = replace(context, layer_inputs=layer_inputs(model, beside))
    placement = place_weights(model, params, devices, context.load_mtp)
    key = (context, placement.devices, placement.dev_layer, placement.shares)
    last = model.memo.get("memory")            # searches ask for the same caches many times in a row
    memory = last[1] if last is not None and last[0] == key else allocate(model, context, placement)
    model.memo["memory"] = (key, memory)
    names = [device.name for device in placement.devices]
    exact = placement.exact and not model.inexact
    warnings = [*model.inexact, *placement.warnings]
    if build and build < MODELLED:
        exact = False
        warnings.append(f"llama.cpp build {build} is older than the rules used here (build {MODELLED}): an upper bound")

    def bill(compute: Sequence[int], **known: Any) -> Breakdown:
        sizes = dict(zip(names, compute, strict=False))
        usage = {device.name: Usage(placement.buffers.get(device.name, 0), memory.buffers.get(device.name, 0), sizes[device.name])
                 if device.name in sizes else Usage() for device in devices}
        host = Usage(placement.host, sum(size for name, size in memory.buffers.items() if name not in sizes), compute[-1])
        return Breakdown(
            devices=usage, host=host, n_ctx=context.n_ctx, n_ctx_seq=context.n_ctx_seq, n_batch=context.n_batch,
            n_ubatch=context.n_ubatch, n_seq_max=context.n_seq_max, kv_unified=context.kv_unified,
            host_resident=placement.resident, **known)

    flash_attn = context.flash_attn != "off"
    if not compute:
        return bill([0] * (len(names) + 1), flash_attn=flash_attn, exact=exact, warnings=tuple(warnings))
    from .graph import measure

    halt = None if enough is None else lambda sizes: enough(bill(sizes, flash_attn=flash_attn, exact=False, partial=True))
    measured = measure(model, params, context, placement, memory, runtime, halt)
    if measured.stopped:
        return bill(measured.sizes, flash_attn=measured.flash_attn, exact=False, warnings=tuple(warnings), partial=True)
    peak = None if measured.runtime is None else {
        name: max(0, most - size) for name, most, size in
        zip([*names, "Host"], measured.runtime, measured.sizes, strict=True)}
    if measured.warning:
        exact = False
        warnings.append(measured.warning)
    if not measured.flash_attn and context.type_v not in ("f32", "f16", "bf16"):
        raise LaunchRefused("quantized V cache was requested, but this requires Flash Attention")
    from .serving import serving

    extras, unlimited = serving(model, params, context, memory)
    warnings += unlimited
    if beside is not None:
        from .extras import extras as others

        more, doubts = others(model, params, devices, context, placement, memory, beside, measure)
        extras = (*more, *extras)
        warnings += doubts
    return bill(measured.sizes, flash_attn=measured.flash_attn, exact=exact, warnings=tuple(warnings), extras=extras,
                runtime_peak=peak)


def _companied(params: Params) -> bool:
    """Whether something is asked for beside the model; what comes with every server is not meant."""
    return bool(params.mmproj or params.model_draft or params.lora or params.control_vector
                or "draft-mtp" in params.spec_type or "ngram-mod" in params.spec_type)
