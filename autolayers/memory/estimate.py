"""The memory model of one model: what its launches allocate, per device, to the byte.

    estimator = Estimator(model)
    estimator.breakdown(params, devices)           # Breakdown
    estimator.static(params, devices)  # weights and caches alone, in a tenth of the time
    # a Breakdown, or a LowerBound as soon as that is enough
    estimator.at_least(params, devices, enough)

It queries no device and opens no file: `devices` are the available ones, `params` the wanted
launch, `companions` the headers of the other files.
"""

from __future__ import annotations

from contextlib import suppress

from ..backends import HOST, on
from ..builds import NEWEST, Build, Rules, rules
from ..errors import LaunchRefused
from ..gguf import BY_NAME
from ..records import replace
from .breakdown import Breakdown, Extra, GraphBuffers, LowerBound, Static, Usage, larger
from .cache import Memory, allocate
from .companions import NONE, Companions, layer_inputs, refuse_unfit, wants_extras, with_draft_type
from .context import Context, refuse_first_token, resolve
from .graphs.compute import measure, script
from .graphs.laid_out import GraphCache
from .loaded import Loaded
from .margin import margin, matmuls, ops_of
from .meter import BY_LAYER, PLACED, Meter
from .saved import state_of
from .server import serving
from .split import model_devices
from .weights import Placement, WeightPlacer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import TypeVar

    from ..backends.ops import Ops, Parts
    from ..flags.params import Params
    from ..machine import Device
    from ..model import Model
    from .graphs.scheduled import Steps
    from .margin import Shapes
    from .moe_cache import Banks

    Answer = TypeVar("Answer", bound=Static)


_KEPT = 64  # caches of launches


def _as_graphs_see(device: Device, rules: Rules) -> Hashable:
    """Return what graphs on a device depend on, which is neither how much memory it has nor how
    fast it is."""
    # a search tries machines whose devices differ in memory alone: their graphs are shared
    backend = on(device, rules=rules)
    limits = tuple(sorted((device.limits or {}).items()))
    return device.name, device.backend, device.engine, backend.kind, backend.max_size, limits


class Known:
    """The graphs that estimates of one model, build and companions laid out, for those that
    follow. Nothing else of a question may decide another one."""

    def __init__(self) -> None:
        # by devices that are alike, the latest
        self.graphs: dict[tuple[Hashable, ...], GraphCache] = {}


def _that_loads(model: Model, build: Build | Rules | int | None) -> Build | Rules | int | None:
    """Return `build`, or where the user named none and the newest build lacks the architecture, the
    build that it was recorded of."""
    number = model.row.exact_from
    # an architecture that the newest modelled build has: nothing to correct
    if not number or model.row.after < NEWEST:
        return build
    if build is None:
        return number
    # a build that the user named stays, whatever it knows of the model
    unsaid = isinstance(build, Build) and not build.number and build.flags is None
    return replace(build, number=number) if unsaid and isinstance(build, Build) else build


class Estimator:
    """Estimates for one model and one build of llama.cpp (None: the newest known). Launches share
    common results.

    `companions` are the headers of the files in params (--mmproj, -md, --lora), read by the caller.
    Every method raises LaunchRefused, with llama.cpp's reason, if it would refuse the launch, and
    UsageError for names of missing devices.
    """

    def __init__(
        self,
        model: Model,
        build: Build | Rules | int | None = None,
        companions: Companions = NONE,
        known: Known | None = None,
        meter: Meter | None = None,
    ) -> None:
        """`known`: measurements of an earlier, equal Estimator, which this one adds to. `meter`: of
        the question that it works for, with others."""
        build = _that_loads(model, build)
        given = build.rules if isinstance(build, Build) else build
        self.rules = given if isinstance(given, Rules) else rules(given)
        self.companions = companions
        # before anything is placed: a broken file has no sizes
        refuse_unfit(model, companions)
        # what a build reads of a header may differ, e.g. a key that older ones ignore
        self.model = model = model.read_by(self.rules)
        # the program's own
        if self.rules.engine.is_llama_cpp:
            self.placer = WeightPlacer(model, self.rules)
        else:
            from ..engines.ik_llama.memory import IkPlacer

            self.placer = IkPlacer(model, self.rules)
        self.meter = meter or Meter()
        self.meter.spent += len(model.tensors)
        self._graphs: dict[tuple[Device, ...], GraphCache] = {}
        self._alike: dict[tuple[Hashable, ...], GraphCache] = {}
        self._known = known or Known()
        # the key ends in (runtime, measuring): each asks for other parts
        self._launches: dict[tuple[Params, tuple[Device, ...], bool, bool], Breakdown] = {}
        self._memories: dict[object, Memory] = {}
        self._server: dict[object, tuple[tuple[Extra, ...], Memory]] = {}
        self._layer_caches: dict[object, list[int]] = {}
        # of the last launch that was fully measured
        self._measured: tuple[object, GraphBuffers] | None = None
        self._placements: dict[tuple[Params, tuple[Device, ...], bool], Placement] = {}
        self._ops: dict[object, Ops] = {}
        self._shapes: dict[object, Shapes] = {}  # of matrices, by their names
        self._weights_of_layers: dict[object, list[int]] = {}
        # for the other builds that it may be
        self._others: dict[tuple[int, bool], Estimator] = {}

    def _spend(self, nodes: int) -> None:
        """Count as many nodes for each layer."""
        self.meter.spent += nodes * self.model.hparams.n_layer_all

    def alike(self, devices: Sequence[Device]) -> tuple[Hashable, ...]:
        """Return what graphs on devices depend on: equal for those that compute the same in the
        same way."""
        return tuple([_as_graphs_see(device, self.rules) for device in devices])

    def _cache(self, devices: tuple[Device, ...]) -> GraphCache:
        # the same devices first (a cheap key), then equal ones, then an earlier Estimator's
        if devices not in self._graphs:
            alike = self.alike(devices)
            if alike not in self._alike:
                self._alike[alike] = self._known.graphs[alike] = GraphCache(
                    self._known.graphs.get(alike), self.meter
                )
            self._graphs[devices] = self._alike[alike]
        return self._graphs[devices]

    def static(self, params: Params, devices: Sequence[Device]) -> Static:
        """Return the weights and caches: a lower bound without any graph."""
        self._spend(1)
        launch = self._launch(params, devices)
        nothing = [0] * (len(launch.placement.devices) + 1)
        return self._facts(Static, launch, devices, nothing)

    def breakdown(
        self,
        params: Params,
        devices: Sequence[Device],
        runtime: bool = False,
        measuring: bool = False,
    ) -> Breakdown:
        """Return the whole launch; `runtime` also finds what the graph buffers may grow to in use
        (`runtime_peak`). `measuring`: not what it allocates, but what llama.cpp's measuring says of
        it (common_fit, no weights loaded)."""
        whole = self.at_least(params, devices, None, runtime, measuring)
        assert isinstance(whole, Breakdown)
        return whole

    def at_least(
        self,
        params: Params,
        devices: Sequence[Device],
        enough: Callable[[LowerBound], bool] | None,
        runtime: bool = False,
        measuring: bool = False,
    ) -> Breakdown | LowerBound:
        """Return what `breakdown` returns, or the lower bound where `enough` accepts it, at a third
        of the price."""
        key = (params, tuple(devices), runtime, measuring)
        if key in self._launches:
            return self._launches[key]
        launch = self._launch(params, devices, measuring)

        def lower(sizes: Sequence[int], steps: Steps | None, flash_attn: bool) -> LowerBound:
            facts = self._facts(LowerBound, launch, devices, sizes, flash_attn)
            return replace(
                facts, steps=steps, extras=(*self._projector(params, devices), *facts.extras)
            )

        flash_attn = launch.context.flash_attn != "off"
        halt = (
            None if enough is None else lambda sizes, steps: enough(lower(sizes, steps, flash_attn))
        )
        # only the server has these
        # llama-server's own memory changes no graph: what-if tables over --cache-ram measure once
        graphs = (replace(params, cache_ram=None, ctx_checkpoints=None), *key[1:])
        if self._measured is None or self._measured[0] != graphs:
            measured = self._measure(launch, self._cache(key[1]), runtime, halt, measuring)
            # not remembered: only the prompt graph was laid out
            if measured.stopped:
                return replace(
                    lower(measured.sizes, measured.steps, measured.flash_attn),
                    as_measured=measured.as_measured,
                )
            self._measured = graphs, measured
        measured = self._measured[1]
        whole = self._whole(launch, devices, measured, measuring)
        # A build of unknown age or with local changes may be one of several: the largest of each
        # part counts, unless that one refuses the launch.
        for other in self.rules.others():
            which = other.number, other.changed
            if which not in self._others:
                self._others[which] = Estimator(
                    self.model, other, self.companions, meter=self.meter
                )
            with suppress(LaunchRefused):
                whole = larger(
                    whole, self._others[which].breakdown(params, devices, runtime, measuring)
                )
        self._launches[key] = whole
        return whole

    def _projector(self, params: Params, devices: Sequence[Device]) -> tuple[Extra, ...]:
        """Return what a projector takes, which no graph of the model changes."""
        if self.companions.mmproj is None:
            return ()
        from .extras import projector  # few launches need it

        return tuple(projector(self.companions.mmproj, params, devices, []))

    def _measure(
        self,
        launch: Loaded,
        cache: GraphCache,
        runtime: bool,
        halt: Callable[[Sequence[int], Steps | None], bool] | None,
        measuring: bool,
    ) -> GraphBuffers:
        """Return the graph buffers, with the script that prices them."""
        if self.rules.engine.is_llama_cpp:
            return measure(launch, cache, runtime, halt, measuring)
        from ..engines.ik_llama.memory import computed

        # ik_llama.cpp builds, splits and allocates its graphs by rules of its own
        return computed(launch, cache)

    def layers(self, params: Params, kind: Device) -> tuple[Usage, ...]:
        """Return what each layer takes on a device like `kind`, the output layer last (n_layer + 1
        entries).

        llama.cpp has no such number; it is what a device with only this layer would take. Small
        tensors that every device copies (rope factors) count in every layer.
        """
        # endless, so that no layer is left out
        device = replace(kind, name="layer", free=1 << 60, total=1 << 60)
        params = replace(
            with_draft_type(params, self.companions),
            n_gpu_layers=None,
            tensor_split=None,
            split_mode=None,
            main_gpu=None,
            device=None,
            rpc=(),
        )
        context = resolve(self.model, params, self.rules)
        # weights do not depend on the context, which a search varies most
        at = replace(params, n_ctx=None, n_batch=None, n_ubatch=None)
        key = at, device, context.load_mtp
        if key not in self._weights_of_layers:
            self._spend(BY_LAYER)
            self._weights_of_layers[key] = self.placer.by_layer(*key)
        weights = self._weights_of_layers[key]
        caches = self._caches_by_layer(params, context, device, len(weights))
        return tuple([Usage(model, cache) for model, cache in zip(weights, caches, strict=True)])

    def _caches_by_layer(
        self, params: Params, context: Context, device: Device, count: int
    ) -> list[int]:
        """Return the bytes that the caches of each layer take on `device`, the output layer
        last."""
        key = self._cached_alike(context), device
        # an expert cache follows the overrides too, which are not in the key
        if key not in self._layer_caches or context.moe_cache:
            # what is sent to any device is on this one
            here = [
                (pattern, HOST if target == HOST else device.name)
                for pattern, target in params.overrides
            ]
            placement = self.placer.place(
                replace(params, overrides=tuple(here)), [device], context.load_mtp
            )
            memory = allocate(self.model, context, placement)
            # The bytes on a device of each of `count` layers' caches.
            sizes = [0] * count
            for cache in memory.caches:
                for layer in cache.layers:
                    own = [tensor.size for tensor in layer.tensors if tensor.buffer == device.name]
                    sizes[layer.il] += int(sum(own) * memory.share)
            if context.moe_cache:
                from .moe_cache import banks

                # an expert cache is one bank for many layers: each counts an equal part
                slots = banks(self.model, context, placement).buffers.get(device.name, 0)
                sizes = [size + slots // count for size in sizes]
            self._layer_caches[key] = sizes
        return self._layer_caches[key]

    def refuse_first_token(self, params: Params) -> None:
        """Raise LaunchRefused for a launch that ends at its first token (see context)."""
        refuse_first_token(self.model, resolve(self.model, params, self.rules))

    def placement(
        self, params: Params, devices: Sequence[Device], load_mtp: bool = False
    ) -> Placement:
        """Return where these flags put every tensor, at any context: the same one for launches that
        differ in their context and their batches alone."""
        # llama.cpp places weights before it knows the context; ik_llama.cpp's -sm graph does not
        if not self.placer.by_context:
            params = replace(params, n_ctx=None, n_batch=None, n_ubatch=None)
        key = params, tuple(devices), load_mtp
        if key not in self._placements:
            self._spend(PLACED)
            self._placements[key] = self.placer.place(*key)
        return self._placements[key]

    def shares(
        self, params: Params, devices: Sequence[Device], counts: Sequence[int] = ()
    ) -> tuple[float, ...]:
        """Return the -ts that puts `counts` layers on the devices, for a program that splits by
        bytes. Without `counts`: the shares of its own split; () if that has none."""
        from ..engines.ik_llama.memory import shares

        used = self._all_used(params, devices)
        return shares(self.model, params, used, self.rules, counts)

    def _all_used(self, params: Params, devices: Sequence[Device]) -> tuple[Device, ...]:
        # -sm none would leave one device, and the shares are those of all
        return model_devices(replace(params, split_mode=None), devices, self.rules)[0]

    def experts_in_ram(
        self, params: Params, devices: Sequence[Device], count: int
    ) -> tuple[int, ...]:
        """Return the layers whose experts the program's own -ncmoe `count` keeps in RAM, in the
        order in which they go there."""
        # common/arg.cpp: -ncmoe N is an override of the experts of layers 0 to N - 1
        if self.rules.engine.is_llama_cpp:
            return tuple(range(count))
        from ..engines.ik_llama.memory import experts_in_ram

        used = self._all_used(params, devices)
        return experts_in_ram(self.model, params, used, self.rules, count)

    def script(self, params: Params, devices: Sequence[Device]) -> Steps | None:
        """Return the launch's graphs as steps, and which of its devices lack a kernel for them;
        None if the architecture's graph is unknown. Raises LaunchRefused."""
        launch, cache = self._launch(params, devices), self._cache(tuple(devices))
        if self.rules.engine.is_llama_cpp:
            return script(launch, cache)
        from ..engines.ik_llama.memory import script as own_script

        return own_script(launch, cache)

    def expert_banks(self, params: Params, placement: Placement) -> Banks:
        """Return what --moe-cache-mib keeps on the devices with the layers of this placement,
        before other caches. Raises LaunchRefused."""
        from .moe_cache import banks

        return banks(self.model, resolve(self.model, params, self.rules), placement, {})

    def caches(self, params: Params, placement: Placement) -> Memory:
        """Return what the context allocates before its first graph, with the layers of this
        placement."""
        return allocate(self.model, resolve(self.model, params, self.rules), placement)

    def margin(self, device: Device, params: Params, use: Breakdown | LowerBound) -> Parts:
        """Return what must stay free on a device in this launch, as named parts in bytes."""
        steps, computed = use.steps, None
        # each device of -sm tensor multiplies with a part of every matrix
        if steps is not None and params.split_mode != "tensor":
            computed = steps.multiplied(device.name)
        # all that ops_of reads: a search asks for thousands of margins
        key = (
            use.n_ctx_seq,
            use.n_ctx,
            use.n_ubatch,
            use.n_seq_max,
            use.flash_attn,
            params.embedding,
            params.reranking,
            params.pooling,
            params.backend_sampling,
            params.cache_type_k,
            params.cache_type_v,
            params.swa_full,
            use.kv_unified,
            computed,
        )
        ops = self._ops.get(key)
        if ops is None:
            if computed not in self._shapes:
                self._shapes[computed] = matmuls(self.model, computed)
            windows = self.rules.window_cache and not self.rules.engine.one_cache
            ops = ops_of(
                self.model,
                params,
                use,
                self._shapes[computed],
                self.rules.engine.reads_all,
                windows,
            )
            types = (params.cache_type_k or "f16", params.cache_type_v or "f16")
            # builds that convert a quantised cache outside of the graph: K and V of a layer in f16
            if (
                use.flash_attn
                and not self.rules.converts_in_graph
                and any(BY_NAME[t].blck_size > 1 for t in types)
            ):
                # of one layer
                wide = ops.n_embd_k_gqa + ops.n_embd_v_gqa
                ops = replace(ops, converted=2 * ops.n_kv * ops.n_stream * wide)
            self._ops[key] = ops
        return margin(device, self.model, params, use, ops, self.companions.draft)

    def _launch(self, params: Params, devices: Sequence[Device], measuring: bool = False) -> Loaded:
        """Resolve the context and place weights and caches, as this launch would load them. Raises
        LaunchRefused."""
        # the order matters: a draft's file decides the speculative type, and that the outputs
        params = with_draft_type(params, self.companions)
        context = resolve(self.model, params, self.rules)
        # of an EAGLE-3 or DFlash draft
        inputs = layer_inputs(self.model, self.companions)
        if inputs:
            context = replace(context, layer_inputs=inputs)
        if not self.rules.engine.is_llama_cpp:
            from ..engines.ik_llama.memory import launch

            own = launch(self.model, params, context, devices, self.placer)
            return Loaded(self.model, params, context, *own)
        placement = self.placement(params, devices, context.load_mtp)
        # caches follow the layers' devices, not the experts' overrides
        key = (
            self._cached_alike(context),
            placement.devices,
            placement.dev_layer,
            tuple(placement.shares.items()),
            placement.slices and placement.slices.key,
        )
        if key not in self._memories:
            # a search asks for few contexts many times, in turn; a sweep for thousands
            if len(self._memories) >= _KEPT:
                self._memories.clear()
            self._memories[key] = allocate(self.model, context, placement)
        memory = self._memories[key]
        doubts: tuple[str, ...] = ()
        notes: tuple[str, ...] = ()
        if context.backend_sampling:
            doubts = (
                "--backend-sampling: its copy of the logits is counted, its samplers are taken to "
                "be the default ones",
            )
        # made after the caches: measuring sees all memory free, a launch what they left
        if context.moe_cache:
            from .moe_cache import banks  # few launches need it

            cached = banks(self.model, context, placement, None if measuring else memory.buffers)
            buffers = dict(memory.buffers)
            for name, size in cached.buffers.items():
                buffers[name] = buffers.get(name, 0) + size
            memory = replace(memory, slots=cached.slots, buffers=buffers)
            if not cached.slots:
                notes = (
                    "--moe-cache-mib: no layer has all of its experts in host memory, so "
                    "nothing is cached",
                )
            elif len(devices) > 1 and not context.moe_split and cached.shared:
                doubts += (
                    "--moe-cache-mib: devices share it by what is free then, which the driver says",
                )
            elif any(not on(device).caches_experts for device in placement.devices):
                doubts += (
                    "--moe-cache-mib: its graph was not compared with llama.cpp on these devices",
                )
        return Loaded(self.model, params, context, placement, memory, doubts, notes)

    def _cached_alike(self, context: Context) -> Context:
        """Return what caches depend on: of the micro-batch only windows do (cache.window_cells)."""
        if self.model.hparams.swa_type != "none" or self.model.body is not None:
            return context
        return replace(context, n_batch=0, n_ubatch=0, n_outputs_max=0)

    def _facts(
        self,
        kind: type[Answer],
        launch: Loaded,
        devices: Sequence[Device],
        compute: Sequence[int],
        flash_attn: bool | None = None,
    ) -> Answer:
        """Return the facts of a launch; `compute` are bytes per device that the model uses and,
        last, of the host."""
        context, placement, buffers = launch.context, launch.placement, launch.memory.buffers
        # not strict: the last entry is the host's
        sizes = dict(zip([device.name for device in placement.devices], compute, strict=False))
        warnings = [*self.model.inexact, *placement.warnings, *launch.doubts, *launch.notes]
        row = self.model.row
        if row.after >= NEWEST and row.exact_from == self.rules.number:
            warnings.append(f"llama.cpp b{row.exact_from} has {row.name}, b{NEWEST} not yet")
        exact = placement.exact and not self.model.inexact and not launch.doubts
        # an inexact build makes every size a bound
        warning = self.rules.warning_for(self.model.row, bool(placement.devices))
        if warning:
            exact = False
            warnings.append(warning)
        usages = {device.name: Usage() for device in devices}
        for name in usages.keys() & sizes.keys():
            usages[name] = Usage(placement.buffers.get(name, 0), buffers.get(name, 0), sizes[name])
        # what the server holds besides the model, without a draft's part
        params, memory = launch.params, launch.memory
        # all that it depends on besides the caches
        limits = params.cache_ram, params.ctx_checkpoints, params.backend_sampling
        key = id(memory), context.n_outputs_max, context.embeddings, limits
        if key not in self._server:
            if len(self._server) >= _KEPT:
                self._server.clear()
            extras = serving(launch, self.rules)[0]
            # the memory stays with its number
            self._server[key] = extras, memory
        return kind(
            devices=usages,
            host=Usage(
                placement.host,
                # caches in RAM, and the expert cache's maps
                sum([size for name, size in buffers.items() if name not in sizes]),
                compute[-1],
            ),
            n_ctx=context.n_ctx,
            n_ctx_seq=context.n_ctx_seq,
            n_batch=context.n_batch,
            n_ubatch=context.n_ubatch,
            n_seq_max=context.n_seq_max,
            kv_unified=context.kv_unified,
            flash_attn=context.flash_attn != "off" if flash_attn is None else flash_attn,
            exact=exact,
            warnings=tuple(warnings),
            host_resident=placement.resident,
            extras=self._server[key][0],
        )

    def _whole(
        self, launch: Loaded, devices: Sequence[Device], measured: GraphBuffers, measuring: bool
    ) -> Breakdown:
        """Return the breakdown of a measured launch: its graphs, what comes in addition, and
        warnings."""
        context, placement = launch.context, launch.placement
        # llama_init_from_model refuses it for -fa off; -fa auto learns it from the graph,
        # so after it
        if not measured.flash_attn and context.type_v not in ("f32", "f16", "bf16"):
            raise LaunchRefused(
                "quantized V cache was requested, but this requires Flash Attention"
            )
        facts = self._facts(Breakdown, launch, devices, measured.sizes, measured.flash_attn)
        warnings, exact = list(facts.warnings), facts.exact
        if measured.warning:
            exact = False
            warnings.append(measured.warning)
        # a draft's is added by extras_of
        states = [state_of(self.model.hparams, context, launch.memory)]
        more: tuple[Extra, ...] = ()
        if wants_extras(launch.params, self.companions):
            from .extras import extras_of  # few launches need it

            more, doubts = extras_of(
                launch, devices, self.companions, measuring, states, self.meter
            )
            warnings += doubts
        if not self.rules.engine.is_llama_cpp:
            from ..engines.ik_llama.memory import derived

            more = (*more, *derived(launch))
        # after the extras, as a saved prompt has the draft's state too
        always, unlimited = serving(launch, self.rules, states)
        warnings += unlimited
        peak = None
        # `runtime_peak` counts from `compute`
        if measured.runtime is not None:
            names = [*(device.name for device in placement.devices), "Host"]
            peak = {
                name: max(0, runtime - size)
                for name, runtime, size in zip(names, measured.runtime, measured.sizes, strict=True)
            }
        return replace(
            facts,
            exact=exact,
            warnings=tuple(warnings),
            extras=(*more, *always),
            runtime_peak=peak,
            saved=tuple(states),
            steps=measured.steps,
            as_measured=measured.as_measured,
        )
