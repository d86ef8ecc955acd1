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

from ..flags.params import N_BATCH
from ..memory.context import CELL_BLOCK
from ..records import dataclass, lazy, replace
from .buffers import Buffers
from .candidates import RAM_SHARE, PlacementKind
from .evaluate import FIT, FULL, PROMPT
from .frames import Frame, at_least, frames, left_out, orders
from .one.bisection import largest_context, last
from .one.expert_cache import may_cache, with_expert_cache
from .one.fit import fit
from .one.most import with_most_layers
from .one.parts import parts
from .prices import ENOUGH, MICRO_BATCH, ORDER, of_context, worth
from .problem import Promise, Solution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..flags.params import Params
    from .candidates import PromisedLaunch
    from .evaluate import Candidate, Fidelity
    from .problem import Problem

    # (0: RAM is enough, 1: no more of it is missing than in --fit's own answer, 2: more), worth
    Rank = tuple[int, float]

TRIES = 12  # launches that are measured of one promise
HOPE = 16 << 20  # bytes that a launch may take less than it should; no estimate is so exact
_WORDS = {
    "experts": "experts of some layers in RAM",
    "ffn": "FFN weights of some layers in RAM",
    "layers": "whole layers in RAM",
    "bare": "whole layers in RAM, no part of one",
    "given": "as given",
    "none": "all layers in RAM",
}
_NOTHING: Rank = (3, 0.0)  # the rank of no launch


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
        self.given = given
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
        flags = self.problem, self.given, self.whole
        self._run(frames(*flags))
        # Worth counts layers there, and a promise may be too few.
        if self.policy.strategy == "layers":
            self._with_most_layers(frames(*flags))
        # All devices together hold no layer, though their number is free; one alone, another order
        # or none may be better.
        if self.fitting:
            best = self._winner()
            idle = not best.variant.kind.frame.as_given and best.candidate.params.n_gpu_layers == 0
        else:
            idle = not self.short
        if idle:
            self._run(left_out(*flags))
        # No promise held: the most that fits is sought by measuring alone.
        if not self.fitting and not self.short:
            self._with_most_layers(itertools.chain(frames(*flags), left_out(*flags)))
        # Measure what all devices in other orders promise, with each kind of placement
        if self.fitting and self.problem.given.device is None:
            frame = self._winner().variant.kind.frame
            given = self._listed(frame)
            if Frame(self.problem, given).splits:
                # The first order was already tried.
                for device in orders(self.problem, given)[1:]:
                    # A price only between orders: the listed one costs nothing, another one ORDER.
                    price = 1.0
                    if (device is None) != (frame.given.device is None):
                        price = ORDER.factor ** (1 if device else -1)
                    at = Frame(self.problem, replace(given, device=device), self.whole)
                    for kind in self._kinds([at]):
                        if kind.name != "none":  # without devices their order is of no interest
                            self._open(kind, price)
                self._run()
        self._between_contexts()
        self._with_parts()
        while self.fitting:
            best = self._winner()
            # Measured in full only now, with an expert cache if that pays and the largest context
            # that fits. If it does not fit after all, the next one is.
            kind = best.variant.kind
            candidate = best.candidate
            # An upload rate is known only where it was measured; without it the gain would be a
            # guess.
            if self.evaluator.machine.host.expert_upload and may_cache(
                self.problem, kind.frame.given
            ):
                candidate = self._cached(kind.frame, candidate, kind.shape)
            answer = self._in_full(kind.frame, candidate)
            if answer is not None and answer.fits:
                # What a context that is larger than the smallest costs
                span = kind.frame.contexts
                paid = 0, 1.0
                if span.open and answer.breakdown.n_ctx > span.open[0]:
                    # What the same kind would promise with the smallest context: usually faster, as
                    # more layers fit.
                    smallest = kind.promise(span.open[0])
                    if smallest is not None:
                        fastest = self.cost.predict(smallest.params, smallest.use).compared
                        paid = smallest.use.n_ctx, self.cost.speed(answer).compared / fastest
                # What was promised and not measured, the best first
                others = [
                    Promise(str(each), seconds, None if each.launch is None else each.launch.params)
                    for (_, seconds), *_, each in sorted(self.heap)
                ]
                return Solution(self.problem, answer, paid=paid, others=tuple(others))
            # The variant is opened again, by what its launch took.
            self.fitting = [each for each in self.fitting if each.candidate != best.candidate]
            self.least = min([(0, each.worth) for each in self.fitting], default=_NOTHING)
            if answer is not None:
                best.variant.kind.record(answer)
                if answer.fits_devices:
                    self.short.append(answer)
                elif len(best.variant.tried) < TRIES:
                    best.variant.tried.add(answer.params)
                    self._promise(best.variant)
            self._run()
        # Nothing fits. If the budget is spent, the best that each kind promised is measured even
        # so; otherwise the answer is, of those that fit on the devices, the fastest whose
        # shortfall of system memory does not exceed that of --fit's.
        for promised in self.cut.values():
            even_so = self.evaluator.candidate(promised.params, FULL, last=True)
            if even_so is not None and even_so.fits:
                return Solution(self.problem, even_so)
        given = self._smallest()
        ladders = Frame(self.problem, given).ladders
        if self.short:
            own = self._own_answer
            short = [*self.short, *([] if own is None else [own])]
            # Nothing that swaps more than --fit's own answer.
            possible = [each for each in short if self._lacks(each.ram_missing) < 2]
            launch = self.cost.fastest(sorted(possible, key=lambda each: each.ram_missing)).params
        elif ladders.literal:
            launch = given if self.policy.strategy is None else ladders.all_layers(given)
        else:
            # No layer on the devices takes the least; it says how much RAM is missing.
            launch = replace(given, n_gpu_layers=0)
        return Solution(self.problem, self.evaluator.candidate(launch, FULL, last=True))

    def _winner(self) -> _Fitting:
        return min(self.fitting, key=lambda each: each.worth)

    # --- best first

    def _run(self, frames: Iterable[Frame] = ()) -> None:
        """Measure variants, those of `frames` among them, until no promise is better than what was
        measured."""
        for kind in self._kinds(frames):
            self._open(kind)
        while self.heap and self.heap[0][0] < self.least:
            variant = heapq.heappop(self.heap)[-1]
            # A promise that was made by less than is known now is made again.
            if variant.launch is not None and variant.version == self.buffers.version:
                self._measure(variant)
            else:
                self._promise(variant)

    def _kinds(self, frames: Iterable[Frame]) -> Iterator[PlacementKind]:
        for frame in frames:
            for name in frame.names_of_kinds:
                yield PlacementKind(frame, name, frame.given, self.buffers)

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
        span, further, reached = kind.frame.contexts, variant.n_ctx, launch.use.n_ctx
        if launch.ram_missing or not span.open or kind.name == "none":
            return launch
        assert further is not None
        # The next doubling above what this launch already has.
        while further <= reached < span.open[1]:
            further = min(2 * further, span.open[1])
        if further > reached and (kind, further) not in self.opened:
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
        return at_least(self.problem, self.problem.given)

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
        if variant.launch is not None:
            # Other layers or parts on the devices are a new attempt: no care is needed yet.
            now, before = variant.launch.params, launch.params
            if (now.n_gpu_layers, now.overrides) != (before.n_gpu_layers, before.overrides):
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

    # --- what challenges the best one

    def _with_most_layers(self, frames: Iterable[Frame]) -> None:
        """Measure the launch with the most layers of each kind of placement whose number is
        open."""
        for kind in self._kinds(frames):
            n_ctx = kind.frame.contexts.smallest
            if kind.name not in ("given", "none"):
                candidate = with_most_layers(kind, n_ctx, self.fidelity)
                if candidate is not None:
                    self._note(_Variant(kind, n_ctx), candidate)

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
        # Each grid of contexts knows what the launches of the one before took.
        for _ in range(3 if self.fitting else 0):
            best = self._winner()
            kind, here = best.variant.kind, best.candidate.breakdown.n_ctx
            span, usual = kind.frame.contexts, kind.frame.given
            if not kind.frame.splits or not span.open:
                return
            farthest = min(2 * here, span.open[1])
            # Parts of the way from a context to twice as much.
            grid = [
                int(here + (farthest - here) * way) // span.step * span.step
                for way in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
            ]
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
        # Nearly what the best launch is worth.
        least = self._winner().worth * 1.1
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
                at = replace(of, n_ctx=n_ctx)
                opened = Frame(self.problem, replace(of, n_ctx=given.n_ctx), self.whole)
                kind = PlacementKind(opened, each.variant.kind.name, opened.given, self.buffers)
                for other in parts(self.problem, at, each.candidate, self.fidelity):
                    self._note(_Variant(kind, n_ctx), other)

    # --- the answer

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
            # The largest context below this one's that fits in full
            span = frame.contexts
            n_ctx = answer.breakdown.n_ctx
            if span.open and n_ctx > span.open[0]:
                less = largest_context(self.evaluator, answer, span.open[0], n_ctx, span.step, FIT)
                if less is not None:
                    answer = self.evaluator.candidate(less.params, FULL, last=True)
        return answer

    def _grown(self, frame: Frame, candidate: Candidate) -> Candidate:
        """Return the launch with the largest context that fits and is useful."""
        span = frame.contexts
        n_ctx = candidate.breakdown.n_ctx
        if not span.open or n_ctx >= span.open[1]:
            return candidate
        # What leaves enough system memory and, above 32k per sequence, whose tokens are fast
        # enough; --ctx max skips both checks.
        ram = self.evaluator.machine.ram
        # 32k for each stream: the step is that of all streams.
        enough = ENOUGH * (span.step // CELL_BLOCK)

        def useful(n: int) -> bool:
            at = replace(candidate.params, n_ctx=n)
            use = self.evaluator.static(at)
            # A cache that is only on devices slows nothing down and takes no RAM.
            if use is None or not use.host.context:
                return use is not None
            if ram is not None and use.resident > ram * RAM_SHARE:
                return False
            speed = self.cost.predict(at, use)
            # Half a second for a token, or half as long again as at the reference depth, is the
            # most.
            return n <= enough or 1 / speed.generation_full <= max(0.5, 1.5 / speed.generation)

        largest = span.open[1]
        if self.policy.n_ctx != "max" and not useful(largest):
            # In steps, none of them below the least.
            first = n_ctx // span.step
            steps = last(0, largest // span.step - first, lambda n: useful((first + n) * span.step))
            largest = max(n_ctx, (first + steps) * span.step)
        more = largest_context(self.evaluator, candidate, n_ctx, largest, span.step, self.fidelity)
        return candidate if more is None else more
