"""One search: the launch that is worth most, of given slots and cache types.

    Search(problem, given).best()

Best first, in one loop. Each variant is a kind of placement (candidates.py) with a micro-batch,
from one context on. It promises the launch that it should have by what was measured, and where
nothing was like it by less: so a promise is rarely too little. The best promise is measured, by the
prompt graph alone, which is a lower bound; what it takes corrects all promises. The loop ends when
none is worth more than what was measured. That is then measured in full.
"""

from __future__ import annotations

import heapq
import itertools
from functools import partial

from ..flags.params import N_BATCH
from ..memory.context import CELL_BLOCK
from ..records import dataclass, lazy, replace
from .buffers import Buffers
from .candidates import RAM_SHARE, PlacementKind
from .evaluate import FIT, FULL, PROMPT
from .frames import Frame, Frames, orders
from .one.bisection import largest_context, last
from .one.expert_cache import may_cache, with_expert_cache
from .one.fit import fit
from .one.most import with_most_layers
from .one.parts import parts
from .prices import ENOUGH, MICRO_BATCH, ORDER, of_context, worth
from .problem import Promise, Solution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..flags.params import Params
    from .candidates import PromisedLaunch
    from .evaluate import Candidate, Fidelity
    from .problem import Problem

    # (0: RAM is enough, 1: no more of it is missing than in --fit's own answer, 2: more), worth
    Rank = tuple[int, float]

TRIES = 12  # launches that are measured of one promise
HOPE = 16 << 20  # bytes that a launch may take less than it should; no estimate is so exact
CLOSE = 1.1  # of what the best launch is worth
# Each grid of contexts knows what the launches of the one before took.
_GRIDS = 3
_WAYS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the way from a context to twice as much
_WORDS = {
    "experts": "experts of some layers in RAM",
    "ffn": "FFN weights of some layers in RAM",
    "layers": "whole layers in RAM",
    "bare": "whole layers in RAM, no part of one",
    "given": "as given",
    "none": "all layers in RAM",
}
_NOTHING: Rank = (3, 0.0)  # the rank of no launch
# Limits of a context that nobody gave, if the CPU takes part:
_TOKEN_SECONDS = 0.5  # seconds that a token may take with a full context above 32k,
_TOKEN_GROWTH = 1.5  # or this factor over its time at the reference depth


class _Variant:
    """One kind of placement from a context on, and what it promises."""

    def __init__(self, kind: PlacementKind, n_ctx: int | None, price: float = 1.0) -> None:
        """`price`: of another order of the devices."""
        self.kind = kind
        self.n_ctx = n_ctx
        self.price = price
        self.launch: PromisedLaunch | None = None
        self.tried: set[Params] = set()  # launches that were measured
        self.failed = 0  # of these, in a row, that did not fit
        self.version = -1  # of the buffers that the promise was made by

    def __str__(self) -> str:
        frame, shape = self.kind.frame, self.kind.shape
        device = frame.given.device
        words = [
            _WORDS[self.kind.name],
            f"context from {self.n_ctx}" if self.n_ctx else "",
            f"micro-batch {shape.n_ubatch}" if shape.n_ubatch else "",
            f"on {', '.join(device) or 'no device'}" if device is not None else "",
        ]
        return ", ".join(filter(None, words))


@dataclass(frozen=True)
class _Fitting:
    """A launch of a variant that was measured and fits."""

    variant: _Variant
    candidate: Candidate
    worth: float


class Search:
    """One search. `whole`: nothing may be in RAM."""

    def __init__(self, problem: Problem, given: Params, whole: bool = False) -> None:
        self.problem = problem
        self.evaluator = problem.evaluator
        self.cost = problem.cost
        self.policy = problem.policy
        self.frames = Frames(problem, given, whole)
        self.whole = whole
        self.fidelity: Fidelity = PROMPT
        self.buffers = Buffers(self.evaluator.machine.limits, self.evaluator.least(given))
        self.heap: list[tuple[Rank, int, int, _Variant]] = []
        self.count = itertools.count()
        self.opened: set[tuple[PlacementKind, int | None]] = set()
        self.fitting: list[_Fitting] = []
        self.short: list[Candidate] = []  # launches that only RAM is too small for
        self.least = _NOTHING  # the best rank that was measured
        # by kind of placement: the best that the budget did not suffice for
        self.cut: dict[str, PromisedLaunch] = {}

    def best(self) -> Solution:
        self._run(self.frames.all())
        # Worth counts layers there, and a promise may be too few.
        if self.policy.strategy == "layers":
            self._with_most_layers(self.frames.all())
        # All devices together hold no layer; one alone, another order or none may be better.
        if self._leaves_idle():
            self._run(self.frames.left_out())
        # No promise held: the most that fits is sought by measuring alone.
        if not self.fitting and not self.short:
            self._with_most_layers(itertools.chain(self.frames.all(), self.frames.left_out()))
        self._in_other_orders()
        self._between_contexts()
        self._with_parts()
        while self.fitting:
            best = self._winner()
            # Measured in full only now. If it does not fit after all, the next one is.
            answer = self._finished(best)
            if answer is not None and answer.fits:
                paid = self._paid(best, answer)
                return Solution(self.problem, answer, paid=paid, others=self._promised())
            self._reject(best, answer)
            self._run()
        return self._unfitting()

    def _winner(self) -> _Fitting:
        return min(self.fitting, key=lambda each: each.worth)

    def _leaves_idle(self) -> bool:
        """Return whether no launch fits on the devices, or the best one has no layer there, though
        their number is free."""
        if not self.fitting:
            return not self.short
        best = self._winner()
        return not best.variant.kind.frame.as_given and best.candidate.params.n_gpu_layers == 0

    def _promised(self) -> tuple[Promise, ...]:
        """Return what was promised and not measured, the best first."""
        promises = [(seconds, variant) for (_, seconds), *_, variant in sorted(self.heap)]
        return tuple(
            [
                Promise(str(each), seconds, None if each.launch is None else each.launch.params)
                for seconds, each in promises
            ]
        )

    # --- best first

    def _run(self, frames: Iterable[Frame] = ()) -> None:
        """Measure variants, those of `frames` among them, until no promise is better than what was
        measured."""
        for frame in frames:
            for name in frame.names_of_kinds:
                self._open(PlacementKind(frame, name, frame.given, self.buffers))
        while self.heap and self.heap[0][0] < self.least:
            variant = heapq.heappop(self.heap)[-1]
            # A promise that was made by less than is known now is made again.
            if variant.launch is not None and variant.version == self.buffers.version:
                self._measure(variant)
            else:
                self._promise(variant)

    def _open(self, kind: PlacementKind, price: float = 1.0) -> None:
        """Open a kind's variants: at the smallest context, which opens the larger ones, and with
        other micro-batches."""
        n_ctx = kind.frame.contexts.smallest
        launch = self._promise(_Variant(kind, n_ctx, price))
        if launch is None:
            return
        for size in kind.frame.micro_batches:
            # As if it took no memory, and had all the context that can be wanted.
            n_batch = max(N_BATCH, size)
            params = replace(launch.params, n_ubatch=size, n_batch=n_batch)
            use = replace(launch.use, n_ubatch=size, n_batch=n_batch)
            seconds = self.cost.predict(params, use).compared
            variant = _Variant(kind.with_micro_batch(size), n_ctx, price)
            self._push(variant, launch.ram_missing, seconds * MICRO_BATCH.factor)

    def _promise(self, variant: _Variant) -> PromisedLaunch | None:
        """Open a variant by what its kind promises, and one with the next larger context."""
        kind = variant.kind
        # With less care at first: one launch that did not fit says what the next ones take.
        failed = variant.failed if kind.name == "given" else max(0, variant.failed - 1)
        launch = kind.promise(variant.n_ctx, failed, HOPE)
        if launch is not None and launch.params in variant.tried:
            launch = kind.promise(variant.n_ctx, failed)
        # After a failure what fits by all that is known may be more than care leaves.
        known = kind.promise(variant.n_ctx, 0) if failed else None
        if known is not None and known.params not in variant.tried:
            better = launch is None or known.worth < launch.worth
            launch = known if better else launch
        if launch is not None and launch.ram_missing:  # no more context than must be
            launch = kind.launch(replace(launch.params, n_ctx=variant.n_ctx)) or launch
        if launch is not None and launch.params in variant.tried:
            launch = None  # nothing better is known
        variant.launch = launch
        variant.version = self.buffers.version
        if launch is None:
            return None
        self._push(variant, launch.ram_missing, launch.worth)
        further = None if launch.ram_missing else self._next_context(variant, launch)
        if further is not None and (kind, further) not in self.opened:
            self.opened.add((kind, further))
            # As if its context were all that can be wanted: a larger one is worth no more.
            bound = launch.worth / of_context(self.problem, launch.use.n_ctx_seq)[1]
            self._push(_Variant(kind, further, variant.price), 0, bound)
        return launch

    def _push(self, variant: _Variant, ram_missing: int, bound: float) -> None:
        rank = self._lacks(ram_missing), bound * variant.price
        # Of equal bounds the frame with the most memory first, then the one that came first.
        memory = variant.kind.frame.memory
        heapq.heappush(self.heap, (rank, -memory, next(self.count), variant))

    def _lacks(self, ram_missing: int) -> int:
        """Return 0 where RAM is enough, 1 where no more of it is missing than in --fit's own
        answer, and 2 where more is."""
        if not ram_missing:
            return 0
        own = self._own_answer
        return 1 if own is None or ram_missing <= own.ram_missing else 2

    @lazy
    def _own_answer(self) -> Candidate | None:
        """What --fit makes of the given flags where RAM is limited, if that fits on the devices."""
        if self.evaluator.machine.ram is None or self.problem.given.overrides:
            return None
        own = fit(self.evaluator, self._smallest(), self.fidelity)
        return own if own is not None and own.fits_devices else None

    def _smallest(self) -> Params:
        """Return the given flags with the least context."""
        return self.frames.at_least(self.problem.given)

    def _next_context(self, variant: _Variant, launch: PromisedLaunch) -> int | None:
        """Return the next larger context to try with the same kind, None if this launch has as
        much."""
        span = variant.kind.frame.contexts
        if not span.open or variant.kind.name == "none":
            return None
        n_ctx = variant.n_ctx
        assert n_ctx is not None
        _, largest = span.open
        reached = launch.use.n_ctx
        # The next doubling above what this launch already has.
        while n_ctx <= reached < largest:
            n_ctx = min(2 * n_ctx, largest)
        return n_ctx if n_ctx > reached else None

    def _measure(self, variant: _Variant) -> None:
        """Measure what a variant promises, and open it again by what that took."""
        launch = variant.launch
        assert launch is not None
        candidate = self.evaluator.candidate(launch.params, self.fidelity)
        if candidate is None:
            # The budget is spent: the best of what was promised is the answer if nothing fits.
            if self.evaluator.exhausted:
                self.cut.setdefault(variant.kind.name, launch)
            return
        variant.tried.add(launch.params)
        variant.kind.record(candidate)
        self._note(variant, candidate)
        variant.failed = 0 if candidate.fits_devices else variant.failed + 1
        if len(variant.tried) >= TRIES:
            return
        self._promise(variant)
        # Another placement is a new attempt: no care is needed yet.
        if variant.launch is not None and not _placed_alike(variant.launch.params, launch.params):
            variant.failed = 0

    def _note(self, variant: _Variant, candidate: Candidate) -> None:
        """Keep a measured launch, if only RAM is too small for it."""
        value = worth(self.problem, candidate.params, candidate.breakdown) * variant.price
        if candidate.fits:
            self.fitting.append(_Fitting(variant, candidate, value))
        elif candidate.fits_devices:
            self.short.append(candidate)
        else:
            return
        self.least = min(self.least, (self._lacks(candidate.ram_missing), value))

    def _reject(self, best: _Fitting, answer: Candidate | None) -> None:
        """Open the variant again whose launch does not fit in full, by what that took."""
        self.fitting = [each for each in self.fitting if each.candidate != best.candidate]
        self.least = min([(0, each.worth) for each in self.fitting], default=_NOTHING)
        if answer is None:
            return
        best.variant.kind.record(answer)
        if answer.fits_devices:
            self.short.append(answer)
        elif len(best.variant.tried) < TRIES:
            best.variant.tried.add(answer.params)
            self._promise(best.variant)

    # --- what challenges the best one

    def _with_most_layers(self, frames: Iterable[Frame]) -> None:
        """Measure the launch with the most layers of each kind of placement whose number is
        open."""
        for frame in frames:
            n_ctx = frame.contexts.smallest
            for name in frame.names_of_kinds:
                if name in ("given", "none"):
                    continue
                kind = PlacementKind(frame, name, frame.given, self.buffers)
                candidate = with_most_layers(kind, n_ctx, self.fidelity)
                if candidate is not None:
                    self._note(_Variant(kind, n_ctx), candidate)

    def _in_other_orders(self) -> None:
        """Measure what all devices in other orders promise, with each kind of placement."""
        if not self.fitting or self.problem.given.device is not None:
            return
        frame = self._winner().variant.kind.frame
        given = self._listed(frame)
        if not Frame(self.problem, given).splits:
            return
        # The first order was already tried.
        for device in orders(self.problem, given)[1:]:
            # A price only between orders: the listed one costs nothing, another one ORDER.
            price = 1.0
            if (device is None) != (frame.given.device is None):
                price = ORDER.factor ** (1 if device else -1)
            at = Frame(self.problem, replace(given, device=device), self.whole)
            for name in at.names_of_kinds:
                if name != "none":  # without devices their order is of no interest
                    self._open(PlacementKind(at, name, at.given, self.buffers), price)
        self._run()

    def _listed(self, frame: Frame) -> Params:
        """Return the flags of a frame, with all devices as they are listed."""
        given = self.problem.given
        return replace(
            frame.given,
            device=given.device,
            split_mode=given.split_mode,
            main_gpu=given.main_gpu,
        )

    def _between_contexts(self) -> None:
        """Measure other splits, for contexts between that of the best one and twice as much, where
        the next variant begins; with the usual micro-batch too, whose memory a larger context may
        be worth more than."""
        tried: set[tuple[int | None, int]] = set()
        for _ in range(_GRIDS if self.fitting else 0):
            best = self._winner()
            kind, here = best.variant.kind, best.candidate.breakdown.n_ctx
            span, usual = kind.frame.contexts, kind.frame.given
            if not kind.frame.splits or not span.open:
                return
            farthest = min(2 * here, span.open[1])
            grid = [int(here + (farthest - here) * way) // span.step * span.step for way in _WAYS]
            kinds = [kind]
            if kind.shape.n_ubatch != usual.n_ubatch:
                kinds.append(PlacementKind(kind.frame, kind.name, usual, self.buffers))
            better = [
                (launch.worth * best.variant.price, n_ctx, each)
                for n_ctx, each in itertools.product(grid, kinds)
                if n_ctx > here
                and (each.shape.n_ubatch, n_ctx) not in tried
                and (launch := each.promise(n_ctx, 0, HOPE)) is not None
                and not launch.ram_missing
            ]
            _, n_ctx, found = min(better, key=lambda each: each[:2], default=(0.0, 0, kind))
            if not n_ctx:
                return
            tried.add((found.shape.n_ubatch, n_ctx))
            self._promise(_Variant(found, n_ctx, best.variant.price))
            self._run()

    def _with_parts(self) -> None:
        """Measure layers placed by --fit's rules, parts of them on each device: for each order of
        the devices whose best launch is nearly the best."""
        given = self.problem.given
        if not self.fitting or self.policy.strategy == "layers" or given.overrides:
            return  # --strategy layers wants whole layers
        least = self._winner().worth * CLOSE
        bests: dict[Params, _Fitting] = {}
        for each in sorted(self.fitting, key=lambda each: each.worth):
            if each.worth < least:
                bests.setdefault(each.variant.kind.frame.given, each)
        for each in [*bests.values()]:
            frame = each.variant.kind.frame
            # Given numbers leave nothing to place; with everything on devices parts are of no use.
            if frame.ladders.literal or not self.cost.in_ram(each.candidate):
                continue
            # With its context, and with the one that its promise began at, which may leave room for
            # more layers.
            contexts = (given.n_ctx or each.candidate.params.n_ctx, each.variant.n_ctx)
            for of, n_ctx in dict.fromkeys(
                itertools.product((frame.given, self._listed(frame)), contexts)
            ):
                self._note_parts(each, replace(of, n_ctx=n_ctx))

    def _note_parts(self, best: _Fitting, given: Params) -> None:
        frame = Frame(self.problem, replace(given, n_ctx=self.problem.given.n_ctx), self.whole)
        kind = PlacementKind(frame, best.variant.kind.name, frame.given, self.buffers)
        for other in parts(self.problem, given, best.candidate, self.fidelity):
            self._note(_Variant(kind, given.n_ctx), other)

    # --- the answer

    def _finished(self, best: _Fitting) -> Candidate | None:
        """Return the launch with an expert cache if that pays and the largest context that fits,
        measured in full."""
        kind = best.variant.kind
        candidate = best.candidate
        # An upload rate is known only where it was measured; without it the gain would be a guess.
        if self.evaluator.machine.host.expert_upload and may_cache(self.problem, kind.frame.given):
            candidate = self._cached(kind.frame, candidate, kind.shape)
        return self._in_full(kind.frame, candidate)

    def _cached(self, frame: Frame, candidate: Candidate, shape: Params) -> Candidate:
        """Return the launch with an expert cache, if that pays."""
        ladders = frame.ladders
        return with_expert_cache(
            self.evaluator, self.cost, ladders, candidate, shape, self.fidelity
        )

    def with_cache(self, chosen: Candidate) -> Candidate | None:
        """Return a search's answer with an expert cache and the largest context that then fits;
        None if it does not pay."""
        given, use = self.problem.given, chosen.params
        frame = Frame(self.problem, given)
        shape = replace(given, n_batch=use.n_batch, n_ubatch=use.n_ubatch)
        cached = self._cached(frame, chosen, shape)
        return None if cached is chosen else self._in_full(frame, cached)

    def _in_full(self, frame: Frame, candidate: Candidate) -> Candidate | None:
        """Return the launch with the largest context that fits, measured in full."""
        candidate = self._grown(frame, candidate)
        answer = self.evaluator.candidate(candidate.params, FULL, last=True)
        # PROMPT is a lower bound: from here on graphs are computed until it is known whether they
        # fit.
        if answer is not None and not answer.fits:
            self.fidelity = FIT
            answer = self._with_less_context(frame, answer)
        return answer

    def _grown(self, frame: Frame, candidate: Candidate) -> Candidate:
        span = frame.contexts
        n_ctx = candidate.breakdown.n_ctx
        if not span.open or n_ctx >= span.open[1]:
            return candidate
        make = partial(_with_context, candidate.params)
        largest = self._useful(frame, candidate.params, n_ctx, span.open[1])
        more = largest_context(
            self.evaluator, make, n_ctx, largest, span.step, self.fidelity, below=candidate
        )
        return candidate if more is None else more

    def _with_less_context(self, frame: Frame, answer: Candidate) -> Candidate | None:
        """Return the largest context below this one's that fits in full."""
        span = frame.contexts
        n_ctx = answer.breakdown.n_ctx
        if not span.open or n_ctx <= span.open[0]:
            return answer
        make = partial(_with_context, answer.params)
        less = largest_context(self.evaluator, make, span.open[0], n_ctx, span.step, FIT, answer)
        return answer if less is None else self.evaluator.candidate(less.params, FULL, last=True)

    def _useful(self, frame: Frame, params: Params, low: int, high: int) -> int:
        """Return the largest context of low..high that leaves enough system memory and, above 32k
        per sequence, whose tokens are fast enough; --ctx max skips both checks."""
        ram = self.evaluator.machine.ram
        step = frame.contexts.step
        # 32k for each stream: the step is that of all streams.
        enough = ENOUGH * (step // CELL_BLOCK)

        def useful(n: int) -> bool:
            at = replace(params, n_ctx=n)
            use = self.evaluator.static(at)
            # A cache that is only on devices slows nothing down and takes no RAM.
            if use is None or not use.host.context:
                return use is not None
            if ram is not None and use.resident > ram * RAM_SHARE:
                return False
            speed = self.cost.predict(at, use)
            return n <= enough or 1 / speed.generation_full <= max(
                _TOKEN_SECONDS, _TOKEN_GROWTH / speed.generation
            )

        if self.policy.n_ctx == "max" or high <= low or useful(high):
            return high
        # In steps, none of them below the least.
        first = low // step
        return max(
            low,
            (first + last(0, high // step - first, lambda n: useful((first + n) * step))) * step,
        )

    def _paid(self, best: _Fitting, answer: Candidate) -> tuple[int, float]:
        """Return what a context that is larger than the smallest costs."""
        kind = best.variant.kind
        span = kind.frame.contexts
        if not span.open or answer.breakdown.n_ctx <= span.open[0]:
            return 0, 1.0
        # What the same kind would promise with the smallest context: usually faster, as more layers
        # fit.
        smallest = kind.promise(span.open[0])
        if smallest is None:
            return 0, 1.0
        fastest = self.cost.predict(smallest.params, smallest.use).compared
        return smallest.use.n_ctx, self.cost.speed(answer).compared / fastest

    # --- where nothing fits

    def _unfitting(self) -> Solution:
        """Return the best promise if the budget is spent, otherwise a launch that does not fit: of
        those that fit on the devices the fastest whose shortfall of system memory does not exceed
        that of --fit's."""
        # The budget is spent: the best that each kind promised is measured even so.
        for promised in self.cut.values():
            candidate = self.evaluator.candidate(promised.params, FULL, last=True)
            if candidate is not None and candidate.fits:
                return Solution(self.problem, candidate)
        given = self._smallest()
        ladders = Frame(self.problem, given).ladders
        if self.short:
            own = self._own_answer
            short = [*self.short, *([] if own is None else [own])]
            # Nothing that swaps more than --fit's own answer.
            possible = [each for each in short if self._lacks(each.ram_missing) < 2]
            launch = self.cost.fastest(sorted(possible, key=_ram_missing)).params
        elif ladders.literal:
            launch = given if self.policy.strategy is None else ladders.all_layers(given)
        else:
            # No layer on the devices takes the least; it says how much RAM is missing.
            launch = replace(given, n_gpu_layers=0)
        return Solution(self.problem, self.evaluator.candidate(launch, FULL, last=True))


def _ram_missing(candidate: Candidate) -> int:
    return candidate.ram_missing


def _placed_alike(one: Params, other: Params) -> bool:
    """Return whether two launches have the same layers and parts on the devices."""
    return (one.n_gpu_layers, one.overrides) == (other.n_gpu_layers, other.overrides)


def _with_context(params: Params, n_ctx: int | None) -> Params:
    return replace(params, n_ctx=n_ctx)
