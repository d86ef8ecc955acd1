"""The frames of a search: what is decided before kinds of placement are compared. The order of the
devices or one of them alone, slots, shares of slices.

    frames(problem, given, whole)
    left_out(problem, given, whole)        # where no launch fits on all devices
"""

from __future__ import annotations

import itertools

from ..flags.params import N_PARALLEL, Params
from ..records import lazy, replace
from ..units import GiB
from .one.contexts import contexts, streams_of
from .one.ladder import Ladders
from .one.partition import is_free, slices
from .prices import ENOUGH, low

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .problem import Problem

MICRO_BATCHES = (2048, 4096, 1024)


class Frame:
    """The launches that some flags leave open, with devices, slots and cache types decided."""

    def __init__(self, problem: Problem, given: Params, whole: bool = False) -> None:
        """`whole`: nothing may be in RAM."""
        self.problem = problem
        self.given = given
        self.whole = whole
        self.evaluator = problem.evaluator
        self.cost = problem.cost
        # The contexts to choose from; at most ENOUGH tokens a sequence with a cache type
        # below q8_0 that is not the only one
        span = contexts(problem, given)
        kind = given.cache_type_k
        # The type that was given, a fine one, or coarse ones alone: no limit for this type.
        free = kind == problem.given.cache_type_k or not low(kind)
        if free or not span.open or all(map(low, problem.policy.kv_types)):
            self.contexts = span
        else:
            least, most = span.open
            self.contexts = replace(
                span, open=(least, max(least, min(most, ENOUGH * streams_of(given))))
            )
        self.ladders = Ladders(problem, given)
        self.names = self.evaluator.device_names(given)
        # Launches of frames with the same key have the same graph buffers (buffers.Point).
        self.key = (
            given.device,
            given.split_mode,
            given.main_gpu,
            given.n_parallel,
            given.cache_type_k,
            given.tensor_split,
        )

    @property
    def memory(self) -> int:
        """Bytes of its devices."""
        return sum([self.evaluator.machine.limits[name] for name in self.names])

    @property
    def splits(self) -> bool:
        """Whether layers can be divided over several devices."""
        return is_free(self.evaluator, self.given)

    @lazy
    def micro_batches(self) -> tuple[int, ...]:
        """Those to try besides the given or usual one."""
        given = self.given
        # Embedders and rerankers get theirs elsewhere (embedder.py).
        closed = (
            given.embedding
            or given.reranking
            or self.problem.policy.strategy == "layers"
            or self.as_given
        )
        fixed = given.n_ubatch is not None or given.n_batch is not None
        return () if closed or fixed else MICRO_BATCHES

    @property
    def as_given(self) -> bool:
        """Whether layers are given, and nothing else is to be solved around them."""
        return self.ladders.literal and (
            self.problem.policy.strategy is None or self.ladders.top == 0
        )

    @lazy
    def names_of_kinds(self) -> tuple[str, ...]:
        """The kinds of placement, the one with all layers on the devices first."""
        finer = self.ladders.in_ram(self.given)
        # Beside an integrated GPU FFN weights lie in the same memory: only experts, which are many,
        # are better read by the processor.
        if finer is not None and finer.kind == "ffn" and integrated(self.problem):
            finer = None
        if self.as_given:
            return ("given",)
        if not self.names:
            return ("none",)
        if self.ladders.literal:
            return ("given",) if finer is None else (finer.kind,)
        if self.whole:
            return ("layers",) if finer is None else (finer.kind,)
        bare = () if finer is None or self.ladders.bare(self.given) is None else ("bare",)
        # -ngl 0 is not -dev none: the device still computes prompts
        return (*(() if finer is None else (finer.kind,)), "layers", *bare, "none")


def frames(problem: Problem, given: Params, whole: bool) -> Iterator[Frame]:
    """Yield all devices in their best order, and one of them alone, with the shares to try.
    `whole`: nothing may be in RAM."""
    for shared in _shared(problem, given):
        first = Frame(problem, replace(shared, device=orders(problem, shared)[0]), whole)
        # The order is given or the best one; others are tried once there is a launch to beat
        # (search.Search.best).
        yield first
        # A program that shares out bytes keeps its own split where it fits.
        splits = len(first.names) > 1 and not problem.evaluator.engine.shares_bytes
        if splits and may_leave_out(problem, shared):
            yield from _alone(problem, shared, whole)
        if processor_alone(problem, shared):
            yield Frame(problem, replace(shared, device=()))


def left_out(problem: Problem, given: Params, whole: bool) -> Iterator[Frame]:
    """Yield the frames for where no launch fits on all devices: other orders of them, one alone,
    and none."""
    for shared in _shared(problem, given):
        for order in orders(problem, shared)[1:]:
            yield Frame(problem, replace(shared, device=order), whole)
        if may_leave_out(problem, shared):
            if len(problem.evaluator.device_names(shared)) > 1:
                yield from _alone(problem, shared, whole, anyhow=True)
            margin = shared.fit_target is not None or problem.policy.margin is not None
            if shared.device is None and not margin:
                yield Frame(problem, replace(shared, device=()))


def at_least(problem: Problem, given: Params) -> Params:
    """Return the flags with the least context."""
    return replace(given, n_ctx=contexts(problem, given).smallest)


def _shared(problem: Problem, given: Params) -> Iterator[Params]:
    """Yield the given flags with shares of slices."""
    # -sm tensor alone has shares to try; otherwise one value, as given.
    for shares in slices(problem.evaluator, problem.cost, at_least(problem, given)):
        yield replace(given, tensor_split=shares)


def _alone(problem: Problem, given: Params, whole: bool, anyhow: bool = False) -> Iterator[Frame]:
    """Yield one GPU with the others left out (-sm none), as each device that llama.cpp knows of
    costs every token time: where all layers fit, or two fifths of the memory are, or `anyhow`."""
    evaluator, limits = problem.evaluator, problem.evaluator.machine.limits
    by_name = {device.name: device for device in evaluator.machine.devices}
    names = evaluator.device_names(given)
    tried = set()
    for i, name in enumerate(names):
        # Equal cards are tried once.
        device = by_name[name]
        kind = device.description, problem.cost.devices[name].bandwidth, limits[name]
        if kind in tried or device.kind != "gpu":
            continue
        tried.add(kind)
        # -mg counts in llama.cpp's order of the devices; 0 is its default.
        alone = replace(given, split_mode="none", main_gpu=i or None)
        if evaluator.engine.shares_bytes:
            alone = replace(given, device=(name,))
        every = replace(at_least(problem, alone), n_gpu_layers=problem.everything)
        large = limits[name] >= 0.4 * sum([limits[each] for each in names])
        if anyhow or large or evaluator.may_fit(every):
            yield Frame(problem, alone, whole)


def slots(problem: Problem, given: Params) -> Iterator[Params]:
    """Yield the given flags with the slots to try: concurrent requests want one each, with its own
    cache, as attention reads the cells of all slots in a unified one."""
    work = problem.policy.workload
    policy = problem.policy
    if given.n_parallel is not None or work.requests == 1:
        yield given
        return
    cells = given.n_ctx or (policy.n_ctx if isinstance(policy.n_ctx, int) else 0)
    each = work.prompt + work.generate + work.depth
    # No more slots than the given context has room for.
    highest = min(work.requests, max(1, cells // each)) if cells else work.requests
    counts = (
        (None, highest)
        if highest <= N_PARALLEL
        else (highest, max(N_PARALLEL, highest // 2), N_PARALLEL)
    )
    for count in dict.fromkeys(counts):
        yield replace(given, n_parallel=count)


def plain(problem: Problem) -> Params:
    """Return the given flags without those that say what llama.cpp does anyway."""
    # "-sm layer" and "-mg 0" are llama.cpp's defaults, so they may not forbid other launches.
    given = problem.given
    evaluator = problem.evaluator
    if given.split_mode == "layer":
        given = replace(given, split_mode=None)
    if given.split_mode is None and given.main_gpu == 0:
        given = replace(given, main_gpu=None)
    # -dev says not the processor
    if (
        given.device
        and not integrated(problem)
        and list(given.device) == evaluator.device_names(replace(given, device=None))
    ):
        given = replace(given, device=None)
    return given


def may_leave_out(problem: Problem, given: Params) -> bool:
    """Return whether there are devices, and no flag fills them."""
    placed = given.gives_layers or given.overrides or problem.policy.strategy == "layers"
    split = (
        given.split_mode not in (None, "layer")
        or given.main_gpu is not None
        or given.tensor_split is not None
    )
    return bool(problem.machine.devices) and not (placed or split)


def integrated(problem: Problem) -> bool:
    """Return whether all devices are integrated GPUs."""
    return {device.kind for device in problem.machine.devices} == {"igpu"}


def processor_alone(problem: Problem, given: Params) -> bool:
    """Return whether to compare with a launch without devices: they are integrated GPUs, and no
    given flag chooses them."""
    if not integrated(problem) or problem.policy.n_ctx == "max":
        return False
    return given.device is None and may_leave_out(problem, given)


def orders(problem: Problem, given: Params) -> list[tuple[str, ...] | None]:
    """Return the orders of the devices to choose from, the most promising first; None is
    llama.cpp's own.

    The first layers' weights go to RAM, and their prompts are computed by the first device. So that
    is the fastest one, in whatever order they are listed; RPC servers, which llama.cpp puts first,
    may also come last, by their links.
    """
    names = problem.evaluator.device_names(given)
    # A given split counts devices in llama.cpp's order, so that must stay.
    fixed = given.device is not None or given.tensor_split is not None or given.main_gpu is not None
    engine = problem.evaluator.engine
    if fixed or problem.beside_a_launch or given.split_mode is not None or engine.cuts:
        return [given.device]
    if len(names) < 2 or given.n_gpu_layers == 0:
        return [given.device]
    figures = problem.cost.devices
    remote = {device.name for device in problem.machine.devices if device.kind == "rpc"}
    if not remote.isdisjoint(names):
        # Llama.cpp's order, which lists RPC devices first, and the one with the near devices first:
        # fewer layers' prompts cross the network.
        near = sorted(names, key=lambda name: figures[name].network if name in remote else 0.0)
        return [None] if near == names else [None, tuple(near)]
    # The orders of local devices, the fastest device first in the first one
    limits = problem.machine.limits

    def rank(name: str) -> tuple[bool, float, int]:
        # Devices of equal rank are interchangeable; memory counts in whole GiB.
        size = 0 if engine.shares_bytes else limits[name] // GiB  # parts of bytes fit any order
        # below a GiB it holds little besides its own buffers
        return limits[name] < GiB, -figures[name].bandwidth, -size

    best = sorted(names, key=rank)
    every = (
        itertools.permutations(best) if len(best) <= 3 else iter([tuple(best), tuple(best[::-1])])
    )
    by_rank: dict[tuple[object, ...], tuple[str, ...]] = {}
    # The best, the listed one, and with few devices all others; each rank order once.
    for order in (tuple(best), tuple(names), *every):
        listed = (
            tuple(names)
            if [rank(name) for name in order] == [rank(name) for name in names]
            else order
        )
        by_rank.setdefault(tuple([rank(name) for name in listed]), listed)
    return [None if list(order) == names else order for order in by_rank.values()]
