"""One graph: built, assigned to backends, split and allocated."""

from __future__ import annotations

from ...ggml.allocator import Arena, allocate
from ...ggml.scheduler import assign, split
from ...ggml.tensor import ENDLESS, Buffer, Tensor
from ...graph.llm import Llm
from ...graph.outputs import done
from ...records import dataclass
from ..meter import Meter
from .repeats import Layers, block_of
from .scheduled import Step, Walk, steps_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from typing import Any

    from ...backends import Backend
    from ...graph.inputs import CacheView, StateView
    from ..weights import WeightGroup

_KEPT = 128  # graphs of a question,
_KEPT_EARLIER = 4 * _KEPT  # and of those before it
# until prepare.py knows the layers' kinds: no layer is like another one
_NO_LAYERS = Layers((), None)
# what building a graph of tensors that contradict the keys may raise
BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


class Contradiction(Exception):
    """The file's tensors contradict its keys, or are not where its architecture has them: no graph
    that we know."""


class GraphCache:
    """What launches of one question learn for those that follow, of one model on the same devices;
    and the graphs that `before`, an earlier question's, laid out. A graph depends on its key alone,
    and counts as laid out once for every question: so what was asked before makes an answer
    quicker, and never another one."""

    def __init__(self, before: GraphCache | None = None, meter: Meter | None = None) -> None:
        self.meter = meter or Meter()
        # what each group of weights is like
        self.groups: dict[WeightGroup, tuple[int, int, int]] = {}
        # by kind of launch: the fused operations that stay
        self.fused: dict[object, dict[str, bool]] = {}
        # the same by graph (Graphs.key), and which backends are undecided about it
        self.fused_of_graph: dict[Hashable, tuple[dict[str, bool], tuple[bool, ...]]] = {}
        # by Graphs.key: of this question,
        self._graphs: dict[Hashable, _Kept] = {}
        # and of earlier ones
        self._earlier: dict[Hashable, _Kept] = {}
        # by kind of context: what layers are like (repeats.py)
        self.structures: dict[str, tuple[int, ...]] = {}
        # weights that graphs asked for and the file has not
        self.absent: dict[str, None] = {}
        # by kind of launch: why the slices of -sm tensor end its first decode, "" if they do not
        self.aborts: dict[Hashable, str] = {}
        # small numbers stand for long tuples of facts: keys of thousands of graphs compare fast
        self._numbers: dict[Hashable, int] = {}
        # by which backends are undecided: the results if their property is the other one
        self._others: dict[tuple[bool, ...], GraphCache] = {}
        if before is not None:
            # copies: another thread may still add to them
            self._earlier = {**before._earlier.copy(), **before._graphs.copy()}
            for key in [*self._earlier][:-_KEPT_EARLIER]:
                del self._earlier[key]
            for name in ("fused_of_graph", "absent", "_numbers"):
                setattr(self, name, getattr(before, name).copy())

    def number(self, key: Hashable) -> int:
        """Return a small number for `key`, the same for equal keys."""
        return self._numbers.setdefault(key, len(self._numbers))

    def make_room(self) -> None:
        """Forget this question's graphs where they are many."""
        # a sweep lays out thousands of them
        if len(self._graphs) >= _KEPT:
            self._graphs.clear()

    def graph(self, key: Hashable, lay_out: Callable[[], _Kept]) -> _Allocated | None:
        """Return the graph of a key; None: only the whole one says what it takes."""
        if key not in self._graphs:
            kept = self._earlier.get(key)
            if kept is None:
                kept = lay_out()
            else:
                self.meter.laid_out(kept.nodes)
            for name in {key, kept.whole or key}:
                self._graphs[name] = kept
        return self._graphs[key].graph

    def otherwise(self, undecided: tuple[bool, ...]) -> GraphCache:
        """Return the cache for the same devices where the undecided ones have the other of two
        properties."""
        if undecided not in self._others:
            self._others[undecided] = GraphCache(meter=self.meter)
        return self._others[undecided]


@dataclass(frozen=True)
class _Allocated:
    """One graph: bytes per backend, the backends of each layer's nodes, its steps, the layers that
    it has, and which backends are undecided about it."""

    sizes: tuple[int, ...]
    places: dict[int, tuple[int, ...]]
    steps: tuple[Step, ...]
    layers: tuple[int, ...]
    undecided: tuple[bool, ...]


@dataclass(frozen=True)
class _Kept:
    """A graph, None where only the whole one says what it takes; its `nodes` as the meter counts
    them, and under which key else it is kept: of a builder that builds all layers, whatever was
    chosen."""

    graph: _Allocated | None
    nodes: int
    whole: Hashable = None


@dataclass(frozen=True)
class Setting:
    """Everything one graph depends on except its number of tokens."""

    hparams: Any
    context: Any
    build: Callable[[Llm], Tensor | None]  # the architecture's builder
    weights: Callable[[], Callable[[str], Tensor | None]]  # a fresh lookup per graph
    # fresh tensors per graph
    caches: Callable[[Llm], tuple[dict[str, CacheView], dict[str, StateView]]]
    backends: Sequence[Backend]
    dev_layer: Sequence[int]
    full_offload: bool
    cache: GraphCache
    n_tensors: int  # in the model's file
    places: tuple[str, ...]  # names of the backends, the host's last
    n_copies: int = 1
    slots: Mapping[int, int] | None = None  # of the expert cache, by layer
    host_buffer: Buffer | None = None  # that of plain RAM
    # what graphs depend on but for what their layers are like:
    outside: Hashable = None
    # where weights in RAM may be copied, for this many tokens,
    many: Layers = _NO_LAYERS
    few: Layers = _NO_LAYERS  # and where they are not

    @property
    def undecided(self) -> tuple[bool, ...]:
        """Which backends are undecided about a graph, so far."""
        return tuple([backend.undecided for backend in self.backends])

    def leave_undecided(self, undecided: tuple[bool, ...]) -> None:
        """Set what a graph left undecided: a cached one asks no backend."""
        for backend, each in zip(self.backends, undecided, strict=True):
            backend.undecided |= each


class Graphs:
    """One of a launch's graphs: built, split and allocated when its sizes are asked for."""

    def __init__(
        self,
        setting: Setting,
        n_tokens: int,
        n_seqs: int,
        n_outputs: int,
        fused: dict[str, bool],
        walked: bool = True,
    ) -> None:
        """`walked`: its steps and places are of interest too."""
        self.setting = setting
        self.fused = fused
        self.walked = walked
        # ubatch_reserve gives each sequence as many tokens as the others
        if n_tokens % n_seqs:  # graph_reserve makes them a multiple
            n_tokens += n_seqs - n_tokens % n_seqs
            if not setting.context.rules.output_limit:
                n_outputs = max(n_outputs, n_tokens)
        self.shape = (n_tokens, n_seqs, n_outputs)
        # below this number of tokens no device asks for a copy of a weight in RAM (offload_op)
        smallest_batch = min(
            [b.offload_min_batch for b in setting.backends if b.offload_min_batch],
            default=n_tokens + 1,
        )
        self.layers = setting.few if n_tokens < smallest_batch else setting.many
        self.short = self.layers.repeats is not None  # layers that repeat are left out
        self._known: dict[bool, _Allocated] = {}  # with the builder's pins, and without
        self._llm: Llm | None = None

    @property
    def key(self) -> Hashable:
        """What the graph depends on."""
        return (
            self.setting.outside,
            self.shape,
            tuple(self.fused.items()),
            self.layers.key(self.short),
            self.walked,
        )

    @property
    def places(self) -> dict[int, tuple[int, ...]]:
        """The backends of each layer's nodes, once `sizes` was asked for."""
        graph = next(iter(self._known.values()))
        numbers = self.layers.copies(graph.layers)
        return {
            il: places
            for layer, places in graph.places.items()
            for il in numbers.get(layer, (layer,))
        }

    @property
    def steps(self) -> Walk:
        """As a launch runs them, once `sizes` was asked for."""
        graph = next(iter(self._known.values()))
        return Walk(graph.steps, self.layers.copies(graph.layers))

    def built(self, pins: bool = True) -> Llm:
        """Return the graph, every node with its backend."""
        if self._llm is None:
            try:
                self._llm = self._assigned(self.unassigned(), pins)
            except BROKEN as error:
                raise Contradiction(str(error)) from error
        return self._llm

    def unassigned(self) -> Llm:
        """Return the graph, no node with a backend."""
        setting, (n_tokens, n_seqs, n_outputs) = self.setting, self.shape
        llm = Llm(
            setting.hparams,
            setting.context,
            n_tokens=n_tokens,
            n_seqs=n_seqs,
            n_outputs=n_outputs,
            fused_ops=self.fused,
            lookup=setting.weights(),
            backends=setting.backends,
            dev_layer=setting.dev_layer,
            full_offload=setting.full_offload,
        )
        # llama_context::graph_max_nodes, the largest that any architecture has in any build
        llm.graph.max_nodes = max(1 << 14, 40 * n_tokens, 32 * setting.n_tensors)
        # tensors hold their place in a buffer once allocated, so each graph has fresh ones
        llm.caches, llm.states = setting.caches(llm)
        llm.slots, llm.host_buffer = setting.slots or {}, setting.host_buffer
        llm.chosen_layers = self.layers.numbers(True) if self.short else None
        done(llm, setting.build(llm))
        # a builder that cannot leave layers out has built all of them, whatever was chosen
        self.short = llm.skips
        return llm

    def _assigned(self, llm: Llm, pins: bool) -> Llm:
        setting = self.setting
        assign(llm.graph, setting.backends, setting.context.op_offload, setting.context.rules, pins)
        return llm

    def release(self) -> None:
        # graph and caches refer to each other, and `reserve` runs without the garbage collector
        if self._llm is not None:
            self._llm.release()
            self._llm = None

    def sizes(self, pins: bool = True) -> tuple[int, ...]:
        """Return the bytes per backend; without `pins` as if the builder pinned nothing."""
        if pins not in self._known:
            self._known[pins] = self._allocated(pins)
        return self._known[pins].sizes

    def _allocated(self, pins: bool) -> _Allocated:
        """Return the short graph, or the whole one where layers that it leaves out may need
        more."""
        # at most twice: short, then whole
        while True:
            key = self.key, pins
            graph = self.setting.cache.graph(key, lambda: self._measured(pins))
            self.release()
            if graph is not None:
                self.setting.leave_undecided(graph.undecided)
                return graph
            self.short = False

    def _measured(self, pins: bool) -> _Kept:
        """Build and allocate the graph."""
        chosen = self.short
        try:
            llm = self.built(pins)
            nodes = len(llm.graph.nodes)
            self.setting.cache.meter.laid_out(nodes)
            steps = self._steps(llm, pins) if self.walked else ()
            places = _places(llm) if self.walked else {}
            # the builder's pins mostly change nothing: the same places are laid out once
            other = self._known.get(not pins)
            alike = other is not None and self.walked and other.places == places
            sizes = other.sizes if other and alike else self._laid_out(llm)
        except BROKEN as error:
            raise Contradiction(str(error)) from error
        finally:
            self.release()
        if sizes is None:
            return _Kept(None, nodes)
        graph = _Allocated(
            sizes,
            places,
            steps,
            self.layers.numbers(self.short),
            self.setting.undecided,
        )
        # by a builder that builds all layers
        return _Kept(graph, nodes, None if self.short == chosen else (self.key, pins))

    def _steps(self, llm: Llm, pins: bool) -> tuple[Step, ...]:
        """Return the steps of the graph, always with the builder's pins."""
        # speeds are of a launch, which keeps the pins that measuring drops
        if pins or all(t.pinned < 0 or t.pinned == t.backend for t in llm.graph.nodes):
            return steps_of(llm.graph.nodes, self._prompt_tokens)
        self._assigned(llm, pins=True)
        steps = steps_of(llm.graph.nodes, self._prompt_tokens)
        self._assigned(llm, pins=False)
        return steps

    @property
    def _prompt_tokens(self) -> int:
        """0 for a graph of one token of each slot."""
        n_tokens, n_seqs, _ = self.shape
        return n_tokens if n_tokens > n_seqs else 0

    def _laid_out(self, llm: Llm) -> tuple[int, ...] | None:
        """Return the bytes per backend of a graph, which is used up; None where layers that it
        leaves out may need more."""
        setting, rules = self.setting, self.setting.context.rules
        marks = []
        if self.short and self.layers.repeats is not None:
            starts: dict[int, Tensor] = {}
            # a mark is the first node that reads a weight of the layer
            for node in llm.graph.nodes:
                starts.setdefault(block_of(node), node)
            marks = [(starts[one], starts[other]) for one, other in self.layers.repeats.marks]
        # pass 5 of ggml_backend_sched_split_graph: copies of what a split reads from elsewhere
        ready = split(llm.graph, setting.backends, rules, setting.n_copies)
        arenas: list[Arena] = []
        for b in setting.backends:
            # ggml_gallocr_new_n: backends of one buffer type (the CPU and BLAS) share one allocator
            shared = (
                a
                for a, other in zip(arenas, setting.backends, strict=False)
                if other.buffer is b.buffer
            )
            same_buffer = next(shared, None)
            # newer builds cut a graph's buffer into chunks of at most max_size (Vulkan, SYCL)
            largest = b.buffer.max_size if rules.graph_chunks else ENDLESS
            arenas.append(
                same_buffer
                or Arena(b.buffer.alignment, b.alloc_size, largest, not rules.best_chunk)
            )
        steady = allocate(ready.nodes, ready.leafs, arenas, marks)
        return tuple([arena.peak for arena in arenas]) if steady else None


def _places(llm: Llm) -> dict[int, tuple[int, ...]]:
    """Return the backends of each layer's nodes."""
    places: dict[int, list[int]] = {}
    layer = -1
    for node in llm.graph.nodes:
        # a node without a weight belongs to the layer of the last weight
        block = block_of(node)
        layer = layer if block < 0 else block
        places.setdefault(layer, []).append(node.backend)
    return {layer: tuple(backends) for layer, backends in places.items()}
