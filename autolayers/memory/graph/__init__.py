"""Graph buffers: the worst-case graphs by shape, ggml's scheduler and its allocator."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass

    from ...model import Model
    from ...params import Params
    from ..cache import Memory
    from ..context import Context
    from ..weights import Placement
    from .archs import Builder
else:
    from ...records import dataclass


@dataclass(frozen=True)
class Measured:
    """Bytes per device of the placement and, last, the host; a warning where they are only an upper bound."""

    sizes: tuple[int, ...]
    flash_attn: bool
    warning: str = ""
    stopped: bool = False                      # the prompt graph alone: a lower bound
    runtime: tuple[int, ...] | None = None     # what they may grow to in use, where that was asked for and can be more


def measure(model: Model, params: Params, context: Context, placement: Placement, memory: Memory,
            runtime: bool = False, enough: Callable[[tuple[int, ...]], bool] | None = None) -> Measured:
    """What llama_context::sched_reserve would allocate; with `runtime` also what real use may need above it. Where `enough`
    says yes to what the prompt graph takes, nothing more is measured."""
    from .archs import builder

    if context.kind == "mtp":
        from .archs.mtp import mtp_builder

        build = mtp_builder(model.architecture)
    else:
        build = builder(model.architecture)
    if build is not None:
        from .reserve import Contradiction

        try:
            return _simulated(model, params, context, placement, memory, runtime, build, enough)
        except Contradiction:
            pass
    from .bound import upper_bound

    return upper_bound(model, params, context, placement, memory)


def _simulated(model: Model, params: Params, context: Context, placement: Placement, memory: Memory, runtime: bool,
               build: Builder, enough: Callable[[tuple[int, ...]], bool] | None) -> Measured:
    from ...backends import backend
    from .prepare import prepare
    from .reserve import BROKEN, Contradiction, grows, reserve
    from .reserve import runtime as in_use

    try:
        setting = prepare(model, params, context, placement, memory, build)
    except BROKEN as error:
        raise Contradiction(str(error)) from error
    more = runtime and grows(setting)
    result = reserve(setting, more, enough)
    larger = in_use(setting, result) if more and not result.stopped else None
    unproven = sorted({device.backend for device in placement.devices if not backend(device.backend).proven})
    warning = f"compute buffers on {', '.join(unproven)} are not proven equal to llama.cpp's" if unproven else ""
    sizes = result.sizes
    if context.layer_inputs and not _keeps_inputs(build):
        hp = model.hparams
        kept = (len(context.layer_inputs) + max(1, hp.dsv4_hc_mult)) * hp.n_embd * context.n_ubatch * 4
        sizes = tuple(size + kept for size in sizes)
        warning = f"what the draft reads of {model.architecture}'s layers is counted on every device"
    return Measured(sizes, result.flash_attn, warning, result.stopped, larger)


def _keeps_inputs(build: object) -> bool:
    """Whether a builder marks the layer inputs that a draft reads (Context.layer_inputs) as outputs."""
    from .decoder import Decoder

    kind = type(build)
    return getattr(kind, "keeps_inputs", False) or (getattr(kind, "build", None) is Decoder.build and kind.__call__ is Decoder.__call__)
