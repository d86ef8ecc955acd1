"""Graph buffers of one launch: simulated where the architecture's graph is modelled, otherwise
bounded from above."""

from __future__ import annotations

from contextlib import suppress

from ...backends import on
from ...errors import LaunchRefused
from ...graph import builder
from ...graph.decoder import Decoder
from ...records import replace
from ..bound import upper_bound
from ..breakdown import GraphBuffers
from .laid_out import BROKEN, Contradiction, GraphCache, Graphs, Setting
from .prepare import prepare
from .reserve import grows, reserve, runtime_sizes, script_of_setting
from .split_states import abort

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...graph import Builder
    from ...model import Model
    from ..context import Context
    from ..loaded import Loaded
    from ..slices import Slices
    from ..weights import Placement
    from .reserve import Enough
    from .scheduled import Steps

# times today's separate operations of a delta net, where a build has no fused one: its graphs took
# up to 1.62 in 500 launches of b7720 and b7960, and with several devices up to 1.07 in 400 of b8165
_UNFUSED, _UNFUSED_SPLIT = 1.7, 1.1
_WARM_UP = 2  # tokens of common_init_from_params: the first and the last of a text
_ORDERS = 8  # 1/8: safety margin for a backend whose order of nodes is not modelled


def measure(
    loaded: Loaded,
    cache: GraphCache,
    runtime: bool = False,
    enough: Enough | None = None,
    measuring: bool = False,
) -> GraphBuffers:
    """Return what llama_context::sched_reserve would allocate, or with `measuring` say before; with
    `runtime` also what real use may need above it. Where `enough` accepts what the prompt graph
    takes, nothing more is measured."""
    model, placement = loaded.model, loaded.placement
    # llama.cpp sees one meta device (-sm tensor), so there is one simulated buffer for all
    together = len(placement.devices) if placement.slices else 0

    def spread(sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes for all devices: with -sm tensor each has a buffer for the whole
        graph."""
        return (sizes[0],) * together + sizes[1:] if together else sizes

    build = builder(model.architecture, mtp=loaded.context.kind == "mtp")
    between = model.row.rewritten
    if between and between[0] < loaded.context.rules.number < between[1]:
        build = None
    # what the installed program measured is nearer than the rules of other backends
    if model.body is not None and not all(on(row).modelled for row in placement.devices):
        build = None
    if build is not None:
        halt = None if enough is None else lambda sizes, steps: enough(spread(sizes), steps)
        try:
            buffers = _simulated(loaded, cache, runtime, build, halt, measuring)
            return replace(
                buffers,
                sizes=spread(buffers.sizes),
                runtime=buffers.runtime and spread(buffers.runtime),
            )
        # a broken or unknown file gets the bound instead of a traceback
        except Contradiction:
            pass
    buffers = upper_bound(loaded)
    return replace(buffers, sizes=spread(_joined(buffers.sizes))) if together else buffers


def _joined(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the most of any device, and the host."""
    return max(sizes[:-1]), sizes[-1]


def script(loaded: Loaded, cache: GraphCache) -> Steps | None:
    """Return the steps of a launch's graphs (scheduled.script_of); None where the architecture's
    graph is not known."""
    build = builder(loaded.model.architecture, mtp=loaded.context.kind == "mtp")
    if build is None:
        return None
    try:
        return script_of_setting(prepare(loaded, build, cache))
    except (Contradiction, *BROKEN):
        return None


def _simulated(
    loaded: Loaded,
    cache: GraphCache,
    runtime: bool,
    build: Builder,
    enough: Enough | None,
    measuring: bool,
) -> GraphBuffers:
    """Return what the simulated graphs take, or more where something about them is not known."""
    model, context, placement = loaded.model, loaded.context, loaded.placement
    # a file may contradict itself as late as here, e.g. a head count of 0
    try:
        setting = prepare(loaded, build, cache)
    except BROKEN as error:
        raise Contradiction(str(error)) from error
    # what use may need above the reserved buffers is asked for only where it can differ
    more = runtime and grows(setting)
    result = reserve(setting, more, enough, measuring)
    # measuring computes nothing, and a draft's slices are its target's too
    if not (measuring or result.stopped or placement.target):
        _refuse_abort(setting, placement, result.fused)
    more = more or (runtime and result.alternates)
    larger = runtime_sizes(setting, result) if more and not result.stopped else None
    sizes, warning = result.sizes, ""
    undecided = any(backend.undecided for backend in setting.backends)
    if undecided and not result.stopped:
        placement, again, warning = _other_answer(placement, setting, cache)
        loaded = replace(loaded, placement=placement)
        other = prepare(loaded, build, again)
        # the other answer may be one that llama.cpp refuses: then the first one holds
        with suppress(LaunchRefused):
            sizes = tuple(map(max, sizes, reserve(other, measuring=measuring).sizes))
    # an unknown order of nodes may cost memory: at least the bound, which assumes no order
    modelled = all(backend.modelled for backend in setting.backends)
    if not modelled and not result.stopped:
        bound = upper_bound(loaded).sizes
        bound = _joined(bound) if placement.slices else bound
        sizes = tuple(
            [max(size + size // _ORDERS, limit) for size, limit in zip(sizes, bound, strict=True)]
        )
    sizes = _of_older_builds(sizes, model, context, len(placement.devices))
    # An EAGLE-3 or DFlash draft reads some layers' inputs, which are outputs of the target's graph
    # then and never freed. This builder does not mark them, so they are added.
    if context.layer_inputs and not _keeps_inputs(build):
        # The bytes of the layer inputs that a draft reads, and of two hidden states more.
        hp = model.hparams
        states: int = len(context.layer_inputs) + 2 * max(1, hp.dsv4_hc_mult)
        inputs = states * int(hp.n_embd) * context.n_ubatch * 4
        sizes = tuple(size + inputs for size in sizes)
        warning = (
            warning
            or f"what the draft reads of {model.architecture}'s layers is counted on every device"
        )
    return GraphBuffers(
        sizes, result.flash_attn, warning, result.stopped, larger, result.steps, result.as_measured
    )


def _refuse_abort(setting: Setting, placement: Placement, fused: dict[str, bool]) -> None:
    """Raise LaunchRefused for slices that the first decode cannot be computed in."""
    slices = placement.slices
    if slices is None or not setting.context.rules.checks_slices:
        return
    # neither the context nor the batch changes where a tensor is cut
    context = replace(setting.context, n_ctx=0, n_ctx_seq=0, n_batch=0, n_ubatch=0, n_outputs_max=0)
    key = context, slices.key, placement.groups, placement.dev_layer, tuple(fused.items())
    aborts = setting.cache.aborts
    if key not in aborts:
        aborts[key] = _abort(setting, slices, fused)
    if aborts[key]:
        raise LaunchRefused(aborts[key])


def _abort(setting: Setting, slices: Slices, fused: dict[str, bool]) -> str:
    """Return what slices cannot compute of a server's graphs, "" for nothing."""
    # one token is laid out otherwise than several, as one head is
    for n_tokens in (_WARM_UP, 1):
        graphs = Graphs(setting, n_tokens, 1, 1, fused)
        graphs.short = False  # each layer is cut at other places
        try:
            why = abort(graphs.built().graph.nodes, slices)
        # such a file is bounded, and no graph of it is known
        except Contradiction:
            why = ""
        finally:
            graphs.release()
        if why:
            return why
    return ""


def _other_answer(
    placement: Placement, setting: Setting, cache: GraphCache
) -> tuple[Placement, GraphCache, str]:
    """Return the placement on devices with the other answer, its cache of graphs, and a warning.

    A property that nobody gave (of a driver or of the build) decided something: both answers are
    planned, and each buffer is the larger one.
    """
    parts = [part for backend in setting.backends for part in backend.parts]
    other = tuple(
        [part.otherwise() or device for device, part in zip(placement.devices, parts, strict=False)]
    )
    again = cache.otherwise(tuple([part.undecided for part in parts]))
    warning = next((part.undecided_doubt for part in parts if part.undecided), "")
    return replace(placement, devices=other), again, warning


def _of_older_builds(
    sizes: tuple[int, ...], model: Model, context: Context, n_devices: int
) -> tuple[int, ...]:
    """Return the sizes by the factors of builds whose graph of this architecture is another one."""
    # builds without the fused operation ran the delta net as a chain of small ones
    if model.row.delta_net and not context.rules.fused_delta_nets:
        split = _UNFUSED_SPLIT if n_devices > 1 else 1.0
        factor = split if context.rules.expands_norms else _UNFUSED
        sizes = tuple([int(size * factor) for size in sizes])
    factor = model.row.grown(context.rules.number)
    if factor:
        sizes = tuple([int(size * factor) for size in sizes])
    return sizes


def _keeps_inputs(build: object) -> bool:
    """Whether a builder marks the layer inputs that a draft reads (Context.layer_inputs) as
    outputs."""
    kind = type(build)
    return getattr(kind, "keeps_inputs", False) or (
        getattr(kind, "build", None) is Decoder.build and kind.__call__ is Decoder.__call__
    )
