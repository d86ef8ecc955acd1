"""What ik_llama.cpp (github.com/ikawrakow/ik_llama.cpp, 8337e4cd of 2026-08-15) allocates unlike
llama.cpp.

    split.py       which layers go where, and which experts to RAM
    placer.py      weights
    matrices.py    -sm none, graph and attn on several GPUs
    cache.py       keys and values
    families.py    its graphs, a row each
    graph.py, latent.py, delta.py, gemma4.py, cut.py    the loop that reads rows, and their parts
    scheduler.py, reserve.py    its buffers
    bound.py       buffers where the graph is not modelled
"""

from __future__ import annotations

from ....errors import LaunchRefused, ModelError
from ....graph import builder
from ....memory import cache as llama_cache
from ....memory.bound import upper_bound
from ....memory.graphs.compute import measure
from ....memory.graphs.laid_out import BROKEN, Contradiction, GraphCache
from ....memory.graphs.prepare import prepare
from ....memory.graphs.reserve import script_of_setting
from ....records import replace
from . import bound
from .cache import allocate, refuse
from .placer import IkPlacer, settings_of
from .reserve import IkWeights, reserved
from .split import free_mib, in_ram, latent_form, mib_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ....builds import Rules
    from ....flags.params import Params
    from ....machine import Device
    from ....memory.breakdown import Extra, GraphBuffers
    from ....memory.cache import Memory
    from ....memory.context import Context
    from ....memory.graphs.scheduled import Steps
    from ....memory.loaded import Loaded
    from ....memory.weights import Placement, WeightPlacer
    from ....model import Model

__all__ = ["IkPlacer", "computed", "derived", "experts_in_ram", "launch", "script", "shares"]


def launch(
    model: Model, params: Params, context: Context, devices: Sequence[Device], placer: WeightPlacer
) -> tuple[Placement, Memory]:
    """Return the weights and caches. Raises LaunchRefused where it does not load them."""
    settings = settings_of(context.rules)
    bound.refuse(model, params, context)
    mla = latent_form(model, params, settings)
    refuse(model, context, settings, mla)
    placement = placer.place(params, devices, context.load_mtp)
    # graphs are priced as llama.cpp's; the bytes are its own
    memory = llama_cache.allocate(model, context, placement)
    return placement, replace(
        memory, buffers=allocate(model, context, placement, settings, mla).buffers
    )


def derived(loaded: Loaded) -> Iterator[Extra]:
    mla = latent_form(loaded.model, loaded.params, settings_of(loaded.context.rules))
    return bound.derived(loaded.model, loaded.placement, mla)


def computed(loaded: Loaded, cache: GraphCache) -> GraphBuffers:
    """Return the graph buffers: as its own graph takes them, or at most. What prices them is
    llama.cpp's graph."""
    model, context, placement = loaded.model, loaded.context, loaded.placement
    settings = settings_of(context.rules)
    mla = latent_form(model, loaded.params, settings)
    try:
        measured = measure(loaded, cache)
    except (LaunchRefused, ModelError):  # of what llama.cpp has not
        measured = replace(upper_bound(loaded), warning="", steps=script(loaded, cache))
    own = allocate(model, context, placement, settings, mla)
    several = len(placement.devices) > 1
    main = len(placement.devices) - 1 if settings.fit and several else loaded.params.main_gpu or 0
    own_sizes = reserved(model, context, placement, own, settings, mla, main)
    sizes, exact = own_sizes or ((), False)
    if own_sizes is None:
        sizes = bound.compute(model, context, placement, loaded.memory, measured.sizes)
    if not exact:
        name = context.rules.engine.name
        warning = (
            f"the graph of {name} is not modelled for this launch: its buffers are an upper bound"
        )
        measured = replace(measured, warning=measured.warning or warning)
    return replace(measured, sizes=sizes, runtime=None)


def shares(
    model: Model, params: Params, used: Sequence[Device], rules: Rules, counts: Sequence[int]
) -> tuple[float, ...]:
    """Return -ts in MiB: for these numbers of layers on each device, or as it shares them out
    without one; () with --fit, whose devices it fills itself."""
    settings = settings_of(rules)
    if settings.fit:
        return ()
    if counts:
        return tuple(map(float, mib_of(model, params, settings, counts)))
    return tuple(map(float, free_mib(used, settings)))


def experts_in_ram(
    model: Model, params: Params, used: Sequence[Device], rules: Rules, count: int
) -> tuple[int, ...]:
    """Return the layers that its own -ncmoe means; the last ones where it would not load, or moves
    none (-sm none)."""
    last = model.hparams.n_layer_all - 1
    try:
        layers = in_ram(model, params, used, settings_of(rules), count)
    except LaunchRefused:
        layers = ()
    return layers or tuple(range(last, last - count, -1))


def script(loaded: Loaded, cache: GraphCache) -> Steps | None:
    """Return the steps of llama.cpp's graph, with the weights that are derived; None where it is
    not known."""
    build = builder(loaded.model.architecture, mtp=loaded.context.kind == "mtp")
    if build is None:
        return None
    try:
        return script_of_setting(prepare(loaded, build, cache, IkWeights))
    except (Contradiction, LaunchRefused, ModelError, *BROKEN):
        return None
