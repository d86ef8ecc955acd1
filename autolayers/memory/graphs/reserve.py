"""Compute buffers: build the worst-case graphs, schedule and allocate them, as
llama_context::sched_reserve does.

A launch reserves a prompt graph (n_ubatch tokens) and a generation graph (one token a slot) into
the same buffers, so each buffer is as large as the larger of the two needs it. Source:
src/llama-context.cpp as modelled.

The graph builder pins some nodes to a backend: a layer's last to its device (graph_get_cb), and
with -nkvo attention without flash attention to the CPU (build_attn_mha). llama.cpp's measuring
(--fit, llama-fit-params) drops these pins for the prompt graph, because
ggml_backend_sched_reserve_size resets the scheduler first; a launch keeps them
(ggml_backend_sched_reserve). `reserve` says what a launch allocates, or what is measured;
`runtime_sizes` what a launch may grow to.
"""

from __future__ import annotations

from ...garbage import without_gc
from ...records import dataclass
from .laid_out import BROKEN, Contradiction, Graphs, Setting
from .repeats import structures
from .scheduled import Steps, Walk, script_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..context import Context

    # of what the prompt graph takes, by backend, and its steps
    Enough = Callable[[tuple[int, ...], Steps | None], bool]

N_COPIES = 4  # GGML_SCHED_MAX_COPIES: pipeline parallelism
_HYPER_CONNECTIONS = ("hc_pre", "hc_comb", "hc_post")
_DELTA_NETS = ("gdn_ar", "gdn_ch")  # the fused delta net, of one token a sequence and of more
_DRIFT = 100  # 1/100: relative change of size that counts as a jump
CHUNKED = 16  # llm_fused_op_gdn_ch_probe: tokens per sequence of the graph that is asked
_PINNED_BELOW = 32  # tokens with which graph_get_cb pins layers in RAM too


@dataclass(frozen=True)
class _Reserved:
    """Bytes per backend (the last is the host), and what was decided on the way. `pinned`: bytes of
    the prompt graph with the builder's pins, where that was asked for."""

    sizes: tuple[int, ...]
    # e.g. {"flash_attn": True, "lid": False, ...}
    fused: dict[str, bool]
    pinned: tuple[int, ...] | None = None
    stopped: bool = False  # the prompt graph alone was more than enough
    # the graphs of prompts and of tokens do not run on the same backends
    alternates: bool = False
    steps: Steps | None = None
    as_measured: bool = True  # measuring says the same

    @property
    def flash_attn(self) -> bool:
        return self.fused["flash_attn"]


@without_gc
def reserve(
    setting: Setting,
    pinned: bool = False,
    enough: Enough | None = None,
    measuring: bool = False,
) -> _Reserved:
    """Return the larger of the prompt and the generation graph per buffer, as a launch allocates
    them or, `measuring`, as llama.cpp says before; with `pinned` also what `runtime_sizes` starts
    from.

    Where `enough` accepts what the prompt graph takes, before anything else is measured, that is
    the answer; with `pinned` the graph of those that `runtime_sizes` asks for which is mostly the
    largest.
    """
    c = setting.context
    n_seqs = reserved_slots(c)
    # sched_reserve: no micro-batch holds more than the context
    n_tokens = min(c.n_ctx, c.n_ubatch)
    # assume that everything is fused until the generation graph decides, as that needs less memory;
    # not if a launch like this one was not fused
    alike = (
        "fused",
        c.type_k,
        c.type_v,
        c.offload_kqv,
        c.flash_attn,
        *[b.kind for b in setting.backends],
        len(setting.backends) - 1 in setting.dev_layer,
    )
    # a search may stop at the prompt graph: the decision is then taken from a launch like this one
    hasty = enough is not None and setting.cache.fused.get(alike) == _unresolved(setting)
    setting.cache.make_room()
    prompt: Graphs | None = None
    walked = not measuring  # which is about bytes alone
    generation = None if hasty else _resolve_fused(setting, n_seqs)
    fused = _unresolved(setting) if generation is None else generation.fused
    setting.cache.fused.setdefault(alike, fused)
    # llama-server: one per slot, and those of drafts (server_output_limits)
    n_outputs = min(n_tokens, c.n_outputs_max)
    # whether a launch keeps the builder's pins
    keeps_pins = not (c.rules.drops_pins or c.rules.drops_pins_again)
    # its prompt graph on one device and several, pipelined or not (in 243 launches of several);
    # measuring does not
    pins = keeps_pins and not (c.rules.measured and measuring)
    # a second round only where the generation graph decides otherwise than assumed
    while True:
        # a fused operation that falls away changes the prompt graph as well
        if prompt is None or prompt.fused != fused:
            prompt = Graphs(setting, n_tokens, n_seqs, n_outputs, fused, walked)
        if enough is not None:
            # with a full cache and one sequence it is the largest of those in use
            if pinned and setting.hparams.architecture.graph_grows:
                filled = {**fused, "filled": True, "one_stream": _has_streams(c)}
                first = Graphs(setting, n_tokens, 1, n_outputs, filled, walked)
                first_sizes = first.sizes()
            else:
                first = prompt
                first_sizes = first.sizes(pins)
            seen = Steps(Walk(), first.steps, setting.places) if walked else None
            if enough(first_sizes, seen):
                return _Reserved(
                    first_sizes,
                    fused,
                    stopped=True,
                    steps=seen,
                    as_measured=not _launches_differ(setting),
                )
        if generation is None:
            generation = _resolve_fused(setting, n_seqs)
        # the generation graph agrees with what the prompt graph was built with
        if generation.fused == fused:
            break
        fused = generation.fused
    # sched_reserve: the prompt, one token, then the prompt again, so that no micro-batch
    # reallocates
    sizes = _most(prompt.sizes(pins), generation.sizes(keeps_pins))
    # sched_reserve's last step for KIMI_LINEAR and MINIMAX_01, which measuring only splits
    if not measuring and _reserves_alone(setting):
        sizes = _most(sizes, Graphs(setting, n_tokens, 1, n_outputs, fused).sizes(keeps_pins))
    # without pipeline a micro-batch in use is laid out like the prompt graph with its pins
    base = (prompt.sizes() if setting.n_copies == 1 else sizes) if pinned else None
    return _Reserved(
        sizes,
        fused,
        base,
        alternates=walked and prompt.places != generation.places,
        steps=Steps(generation.steps, prompt.steps, setting.places) if walked else None,
        as_measured=measuring or not _launches_differ(setting),
    )


def _most(some: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(max, some, others))


def _launches_differ(setting: Setting) -> bool:
    """Whether a launch may allocate other buffers than llama.cpp's measuring says."""
    c = setting.context
    if not c.rules.measured:
        return False
    # -nkvo pins attention to the CPU; on several devices the pins of norms move nodes
    if not c.offload_kqv or len(setting.backends) > 2:
        return True
    # graph_get_cb pins layers in RAM too for micro-batches this small
    return c.n_ubatch < _PINNED_BELOW or _reserves_alone(setting)


def _reserves_alone(setting: Setting) -> bool:
    """Whether a launch reserves its prompt graph for one sequence too: the last graph_reserve of
    sched_reserve.

    `inp_diag_decay` grows with the square of the tokens per sequence, so one sequence may need more
    than several.
    """
    row, c = setting.hparams.architecture, setting.context
    return row.even_slots is not None and c.n_seq_max > 1 and c.rules.has(row.even_slots)


def grows(setting: Setting) -> bool:
    """Whether `runtime_sizes` can differ from `reserve` at all."""
    c = setting.context
    if _reserves_one(setting) or setting.hparams.architecture.graph_grows:
        return True
    several = len(setting.backends) > 2
    # layers in RAM make the graphs of prompts and of tokens run on other backends
    on_host = any(b == len(setting.backends) - 1 for b in setting.dev_layer)
    # a prompt of one slot sees one stream, so its graph is another than the reserved one
    if c.n_seq_max > 1 and not c.kv_unified and (on_host or several):
        return True
    if c.rules.measured:
        return False
    return several or (not c.offload_kqv and c.flash_attn != "on")


def _shorter(
    setting: Setting,
    n_tokens: int,
    n_seqs: int,
    n_outputs: int,
    fused: dict[str, bool],
    reserved: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the bytes per backend for a prompt's last micro-batch, of any size; `reserved` for a
    whole one. Each of `n_seqs` sequences has as many tokens as the others.

    After a graph that ran elsewhere (a token's, for which weights in RAM are not copied),
    ggml_gallocr_alloc_graph plans a micro-batch again, for the tokens that it has. Weights that are
    copied may then not fit into what activations left free, and the buffer grows: its size is
    linear in the tokens, but for such jumps. One token less and half of them show whether there is
    one; if so, the line through half and three quarters is followed, at the latest to `n_tokens`.
    """

    def sizes(n: int) -> tuple[int, ...]:
        return Graphs(setting, n, n_seqs, min(n, n_outputs), fused, walked=False).sizes()

    # about half of the tokens, three quarters, all but one: multiples of the sequences
    shortest, middling, longest = [
        max(n // n_seqs, 1) * n_seqs for n in (n_tokens // 2 - 1, n_tokens * 3 // 4, n_tokens - 1)
    ]
    highest, lowest = sizes(longest), sizes(shortest)
    # no jump on any device: two graphs were enough
    peaks = _most(highest, lowest)
    if all(
        low <= high - (longest - shortest) * (whole - high) // n_seqs + whole // _DRIFT
        # the last: the host
        for whole, high, low in list(zip(reserved, highest, lowest, strict=True))[:-1]
    ):
        return peaks
    more = []
    for size, high, middle, low in zip(peaks, highest, sizes(middling), lowest, strict=True):
        # bytes per token between two sizes that were laid out
        slopes = [
            (a - b) / n
            for a, b, n in ((high, middle, longest - middling), (middle, low, middling - shortest))
            if a > b
        ]
        # a jump between two sizes spoils their slope: the flatter one is the line's
        more.append(max(size, middle, middle + int(min(slopes, default=0) * (n_tokens - middling))))
    return tuple(more)


def reserved_slots(context: Context) -> int:
    """Return the slots that graphs are reserved for: n_seqs of llama_context's constructor."""
    rules = context.rules
    # two ranges of builds reserve a single sequence where all share one cache
    one = context.kv_unified and (rules.reserves_one or rules.reserves_one_again)
    return 1 if one else int(context.n_seq_max)


def _reserves_one(setting: Setting) -> bool:
    """Whether graphs of several slots are reserved for one."""
    slots: int = setting.context.n_seq_max
    return reserved_slots(setting.context) < slots


@without_gc
def runtime_sizes(setting: Setting, reserved: _Reserved) -> tuple[int, ...]:
    """Return the bytes per backend that a launch may grow to while it runs, after `reserve` with
    `pinned`.

    A real launch keeps the builder's pins in the prompt graph too; it reserves it once more for a
    single sequence where the graph grows with tokens per sequence; and a micro-batch of one
    sequence may need more than the reserved graph of all (separate streams, partial offload), which
    ggml_gallocr_alloc_graph then allocates: it sees its own stream of the cache alone
    ("one_stream"). Some graphs grow with what the cache holds ("filled": minimax-m3).
    """
    c = setting.context
    n_tokens = min(c.n_ctx, c.n_ubatch)
    n_outputs = min(n_tokens, c.n_outputs_max)
    # what a launch holds already: use can only add to it
    sizes = reserved.pinned or reserved.sizes
    filled = {**reserved.fused, "filled": True}
    # the graphs that may be larger than the reserved one: (tokens, sequences, outputs, fused)
    n_seqs = c.n_seq_max
    grows_with = setting.hparams.architecture.graph_grows
    graphs: list[tuple[int, int, int, dict[str, bool]]] = []
    # e.g. MiniMax-M3, whose sparse attention ranks the blocks that the cache holds
    if grows_with == "cache":
        graphs.append((n_tokens, n_seqs, n_outputs, filled))
    # more tokens per sequence than the reserved graph of all slots has; with streams see below
    if grows_with and n_seqs > 1 and not _has_streams(c):
        graphs.append((n_tokens, 1, n_outputs, filled))
    if _has_streams(c):
        alone = {**filled, "one_stream": True}
        # a prompt, and a token, of a single slot
        graphs += [(n_tokens, 1, n_outputs, alone), (1, 1, 1, alone)]
    # all slots at once, which were not reserved
    if _reserves_one(setting):
        graphs += [(n_tokens, n_seqs, n_outputs, filled), (n_seqs, n_seqs, n_seqs, filled)]
    for tokens, seqs, outputs, fused in graphs:
        sizes = _most(sizes, Graphs(setting, tokens, seqs, outputs, fused).sizes())
    # where all graphs run on the same backends, nothing is planned again after a token
    if not reserved.alternates or n_tokens <= 1:
        return sizes
    batches = [(1, {**filled, "one_stream": True})]
    if _has_streams(c):
        batches.append((c.n_seq_max, filled))
    for seqs, fused in batches:
        sizes = _most(sizes, _shorter(setting, n_tokens, seqs, n_outputs, fused, sizes))
    return sizes


def _has_streams(c: Context) -> bool:
    """Return whether several sequences have a cache each."""
    return c.n_seq_max > 1 and not c.kv_unified


@without_gc
def structures_of(setting: Setting) -> tuple[int, ...]:
    """Return what each layer of a model is like in its graphs (repeats.structures)."""
    kind = setting.context.kind
    if kind not in setting.cache.structures:
        try:
            # one token a slot: the smallest graph that has every layer
            n = setting.context.n_seq_max
            llm = Graphs(setting, n, n, n, _unresolved(setting)).unassigned()
        except BROKEN as error:
            raise Contradiction(str(error)) from error
        setting.cache.structures[kind] = structures(
            llm.graph.nodes, llm.graph.leafs, setting.hparams.n_layer
        )
        llm.release()
    return setting.cache.structures[kind]


@without_gc
def script_of_setting(setting: Setting) -> Steps:
    """Return the steps of a token's and of a prompt's graph, and which devices lack a kernel for
    them."""

    def script(n_tokens: int) -> Walk:
        try:
            graphs = Graphs(setting, n_tokens, 1, 1, _unresolved(setting))
            llm = graphs.unassigned()
        except BROKEN as error:
            raise Contradiction(str(error)) from error
        # a graph without backends counts like one that is laid out
        setting.cache.meter.spent += len(llm.graph.nodes)
        steps = script_of(llm.graph.nodes, setting.backends[:-1], n_tokens)
        llm.release()
        return Walk(steps, graphs.layers.copies(graphs.layers.numbers(graphs.short)))

    return Steps(script(1), script(setting.context.n_ubatch))


def _unresolved(setting: Setting) -> dict[str, bool]:
    rules = setting.context.rules
    return {
        # auto begins as on (llama_context's constructor)
        "flash_attn": setting.context.flash_attn != "off",
        "lid": rules.fused_indexer,
        "kv_rows": rules.attends_by_rows,
        "top_k_mask": rules.masks_top_k,
        **dict.fromkeys(_HYPER_CONNECTIONS, rules.fused_hyper_connections),
        **dict.fromkeys(_DELTA_NETS, rules.fused_delta_nets),
    }


def _probes(setting: Setting) -> list[str]:
    """Return the fused operations that llama.cpp decides about by itself."""
    probes = ["flash_attn"] if setting.context.flash_attn == "auto" else []
    # newer builds leave auto_fgdn and auto_flid off: these operations are never unfused
    if not setting.context.rules.stays_fused:
        probes += [*_DELTA_NETS, "lid"]
    if setting.context.rules.masks_top_k:
        probes.append("top_k_mask")
    return probes + (list(_HYPER_CONNECTIONS) if setting.hparams.dsv4_hc_mult else [])


def _resolve_fused(setting: Setting, n_seqs: int) -> Graphs:
    """Decide which fused ops stay: those that would run on their layer's own device, in every layer
    (resolve_fused_ops).

    Gives the generation graphs, which llama.cpp asks; their `fused` is the answer.
    """
    fused, probes = _unresolved(setting), _probes(setting)
    graphs = Graphs(setting, n_seqs, n_seqs, n_seqs, fused)
    # the answer depends on no more than the graph does
    key = graphs.key
    if key in setting.cache.fused_of_graph:
        fused, undecided = setting.cache.fused_of_graph[key]
        setting.leave_undecided(undecided)
        return Graphs(setting, n_seqs, n_seqs, n_seqs, fused)
    delta_nets = False
    # resolve_fused_ops asks in this order: attention, delta nets, indexer, hyper connections
    for probe in probes:  # one graph serves all questions until an answer changes it
        fused_nodes = graphs.built().fused_nodes
        delta_nets = delta_nets or any(kind == "gdn_ar" for kind, _, _ in fused_nodes)
        # the chunked delta net has more than one token per sequence, so it has its own graph
        if probe == "gdn_ch" and delta_nets:
            prompt = Graphs(setting, CHUNKED * n_seqs, n_seqs, CHUNKED * n_seqs, fused)
            fused_nodes = prompt.built().fused_nodes
            prompt.release()
        # device_mismatch: in one layer is enough to disable it in all
        if any(kind == probe and t.backend != setting.dev_layer[il] for kind, t, il in fused_nodes):
            fused = {**fused, probe: False}
            graphs.release()
            graphs = Graphs(setting, n_seqs, n_seqs, n_seqs, fused)
        # nothing left to ask about in this graph
        elif not any(kind in probes for kind, _, _ in fused_nodes):
            break
    setting.cache.fused_of_graph[key] = graphs.fused, setting.undecided
    return graphs
