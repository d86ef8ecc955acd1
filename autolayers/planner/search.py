"""One search: the launch that is worth most, of given slots and cache types.

    Search(problem, given).best()

Best first. Each kind of placement (candidates.py) promises a launch at each context; the one with
the best promise is measured, by the prompt graph alone, a lower bound. What it takes corrects the
promises of all others. The search ends when no promise is better than what was measured; then that
is measured in full.
"""

from __future__ import annotations

import heapq
import itertools
from functools import partial

from ..flags.params import N_BATCH
from ..memory.context import CELL_BLOCK
from ..records import replace
from .buffers import Buffers
from .candidates import PATIENCE, RAM_SHARE, Kind
from .evaluate import FIT, FULL, PROMPT
from .frames import Frame, Frames, orders
from .one.bisection import largest_context, last
from .one.expert_cache import may_cache, with_expert_cache
from .one.fit import fit
from .one.most import with_most_layers
from .one.parts import parts
from .prices import ENOUGH, MICRO_BATCH, ORDER, of_context, worth
from .problem import Solution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..flags.params import Params
    from .candidates import Launch
    from .evaluate import Candidate, Fidelity
    from .problem import Problem

# Shown by --why as what nearly won.
OTHERS = 8  # promises that are kept
TRIES = 12  # launches that are measured of one promise
NEAR = 64 << 20  # bytes that a launch may lack so that it is tried with less context
HOPE = 16 << 20  # bytes that launches may take less than they should,
_HOPES = 3  # so often for a promise,
_HOPED = 0.98  # if they are then worth this much more
# Each grid knows what the launches of the one before took.
_WAYS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the way to twice a context
_GRIDS = 3  # times that contexts between two promises are looked at, each by what is known then
CLOSE = 1.1  # promises that are looked at again before the search ends
_LATER = 1.0001  # a bound that is looked at after what it is of
# Otherwise a promise and its measurement would take turns over fractions of a percent.
SAME = 0.995  # a promise must be this much better than what was measured
# Limits of a context that nobody gave, if the CPU takes part:
_TOKEN_SECONDS = 0.5  # seconds that a token may take with a full context above 32k,
_TOKEN_GROWTH = 1.5  # or this factor over its time at the reference depth


class _Node:
    """A promise of one kind at a context; or a bound of the kind's launches with other
    micro-batches, of these `sizes`."""

    def __init__(
        self,
        kind: Kind,
        n_ctx: int | None,
        launch: Launch | None = None,
        sizes: tuple[int, ...] = (),
    ) -> None:
        self.kind = kind
        self.n_ctx = n_ctx
        self.launch = launch
        self.sizes = sizes
        # tries: measured launches; failed: in a row, that did not fit; hopes: see _HOPES; version:
        # of the buffers that the promise was made by.
        self.tries = self.failed = self.hopes = self.version = 0
        self.price = 1.0  # of another order of the devices
        self.first = True  # the smallest context that is tried of its kind
        self.guessed = False  # opened before anything was measured
        self.later = False  # of no interest while what has more on the devices may fit


class _Done(_Node):
    """A launch of one kind that was measured and fits."""

    def __init__(
        self, kind: Kind, n_ctx: int | None, launch: Launch | None, measured: Candidate
    ) -> None:
        super().__init__(kind, n_ctx, launch)
        self.measured = measured


class Search:
    """One search."""

    def __init__(self, problem: Problem, given: Params, whole: bool = False) -> None:
        self.problem = problem
        self.evaluator = problem.evaluator
        self.cost = problem.cost
        self.frames = Frames(problem, given, whole)
        self.whole = whole
        self.policy = problem.policy
        self.fidelity: Fidelity = PROMPT
        self.buffers = Buffers(self.evaluator.machine.limits)
        self.heap: list[tuple[float, int, int, _Node]] = []
        self.count = itertools.count()
        self.short: list[Candidate] = []  # launches that only RAM is too small for,
        self.lacking: list[tuple[Launch, _Node]] = []  # and promises of such
        self.probed: set[object] = set()  # kinds whose smallest launch was opened
        self.opened: set[tuple[Kind, object]] = set()  # contexts and launches that are open
        self.cut: list[Launch] = []  # those that the budget did not suffice for
        # kinds that promised nothing before anything was measured
        self.closed: list[_Node] = []

    def best(self) -> Solution:
        winner = self._of_frames()
        # What the frames do not try at first because it seldom wins; each may find something
        # better, which is then measured like all.
        for challenge in (self._unmeasured, self._orders, *[self._contexts] * _GRIDS, self._parts):
            if winner is not None and challenge(winner):
                self._push(winner, self._worth(winner))
                winner = self._run()
        # The winner is measured in full only now. If it does not fit after all, the next one is.
        while winner is not None:
            answer = self._finished(winner)
            if answer is not None:
                return Solution(
                    self.problem, answer, paid=self._paid(winner, answer), others=self._promised()
                )
            winner = self._run()
        return self._unfitting()

    def _of_frames(self) -> _Done | None:
        """Return the best launch of all frames that fits."""
        for frame in self.frames.all():
            self._open(frame)
        # No kind promised anything by guesses, which may be too large: measure the smallest
        # launches.
        if not self.heap:
            self._measure_smallest()
        winner = self._run()
        # Worth counts layers there, and a promise may be one too low.
        if self.policy.strategy == "layers":
            winner = self._with_most_layers(self.frames.all(), winner)
        # All devices together hold no layer; one alone, or another order, may.
        if self._leaves_idle(winner):
            if winner is not None:
                self._push(winner, self._worth(winner))
            for frame in self.frames.left_out():
                self._open(frame)
            winner = self._run()
        # Promises failed: the smallest launches of all kinds are measured, one may still fit.
        if winner is None:
            winner = self._with_most_layers(
                itertools.chain(self.frames.all(), self.frames.left_out())
            )
        return winner

    def _promised(self) -> tuple[Params, ...]:
        """Return the launches that were promised and not measured, the best first."""
        nodes = [node for *_, node in sorted(self.heap[:OTHERS])]
        return tuple([node.launch.params for node in nodes if node.launch is not None])

    def _leaves_idle(self, winner: _Done | None) -> bool:
        """Return whether no launch fits on the devices, or the best one has no layer there, though
        their number is free."""
        if winner is None:
            return not self.short
        if winner.kind.frame.as_given:
            return False
        return winner.measured.params.n_gpu_layers == 0

    def _with_most_layers(
        self, frames: Iterable[Frame], winner: _Done | None = None
    ) -> _Done | None:
        """Return the best promise, or the launch with the most layers of a frame: measured, as
        promises may be too little."""
        if winner is not None:
            self._push(winner, self._worth(winner))
        for frame in frames:
            for name in frame.names_of_kinds:
                # Their number of layers is fixed: there is no most.
                kind = Kind(frame, name, frame.given, self.buffers)
                if name in ("given", "none"):
                    continue
                candidate = with_most_layers(kind, frame.contexts.smallest, self.fidelity)
                if candidate is None or not candidate.fits:
                    continue
                launch = kind.launch(candidate.params)
                if launch is not None:
                    self._push(_Done(kind, launch.params.n_ctx, launch, candidate), launch.worth)
        return self._run()

    # --- best first

    def _open(self, frame: Frame) -> None:
        """Open the promises of a frame's kinds at the smallest context."""
        finer: Launch | None = None
        whole: Launch | None = None
        for name in frame.names_of_kinds:
            node = _Node(Kind(frame, name, frame.given, self.buffers), frame.contexts.smallest)
            # A kind with less on the devices is no faster, so its bound is that of the one with
            # more.
            more = whole or (finer if name == "bare" else None)
            if more is not None:
                node.later = True
                self._push(node, self._without_context(more) * _LATER)
                continue
            launch = self._promise(node)
            if launch is None:
                continue
            self._bound_micro_batches(node.kind, frame.contexts.smallest, launch)
            if launch.use.host.context:  # where caches are in RAM, fewer layers may be faster
                continue
            finer = launch if name in ("experts", "ffn") else finer
            # Only a launch with everything on the devices bounds all later kinds.
            whole = launch if node.kind.whole(launch.params) else whole

    def _without_context(self, launch: Launch) -> float:
        """Return what a launch would be worth with --ctx max and the largest context: what has less
        on the devices may have more of that."""
        if self.policy.n_ctx != "max":
            return launch.worth
        return launch.worth / of_context(self.problem, launch.use.n_ctx_seq)[1]

    def _bound_micro_batches(self, kind: Kind, n_ctx: int | None, launch: Launch) -> None:
        """Open a bound of the kind's launches with other micro-batches: as if these took no memory,
        nor the context."""
        sizes = kind.frame.micro_batches
        if not sizes:
            return
        seconds = [
            self.cost.predict(
                replace(launch.params, n_ubatch=size, n_batch=max(N_BATCH, size)),
                replace(launch.use, n_ubatch=size, n_batch=max(N_BATCH, size)),
            ).compared
            for size in sizes
        ]
        self._push(_Node(kind, n_ctx, sizes=sizes), min(seconds) * MICRO_BATCH.factor)

    def _promise(self, node: _Node) -> Launch | None:
        """Open a node by what its kind promises, and a bound of the larger contexts."""
        before = node.launch
        launch = node.kind.promise(node.n_ctx, node.failed)
        node.launch = launch
        node.version = self.buffers.version
        if launch is None:
            self._probe(node, before)
            return None
        if launch.ram_missing:  # no more context than must be
            launch = node.launch = (
                node.kind.launch(replace(launch.params, n_ctx=node.n_ctx)) or launch
            )
        if launch.ram_missing:
            self.lacking.append((launch, node))
            return None
        self._push(node, launch.worth)
        further = self._next_context(node, launch)
        if further is not None and (node.kind, further) not in self.opened and launch != before:
            self.opened.add((node.kind, further))
            larger = _Node(node.kind, further)
            larger.price = node.price
            larger.first = False
            # As if its context were all that can be wanted: a larger one is worth no more than
            # that.
            self._push(larger, launch.worth / of_context(self.problem, launch.use.n_ctx_seq)[1])
        return launch

    def _probe(self, node: _Node, before: Launch | None) -> None:
        """Open the smallest launch of a kind that promises nothing by what others take, which says
        what it takes."""
        if not self.buffers.taken:
            self.closed.append(node)
            return
        kind = node.kind
        key = kind.frame.key, kind.name, kind.shape.n_ubatch
        # Once for each kind, and only with its smallest context: more would not fit either.
        if not node.first or key in self.probed:
            return
        self.probed.add(key)
        smallest = kind.smallest(node.n_ctx)
        if (
            smallest is None
            or smallest.ram_missing
            or self.buffers.knows(kind.point(smallest.params))
        ):
            return
        node.launch = smallest
        self._push(node, smallest.worth if before is None else min(before.worth, smallest.worth))

    def _push(self, node: _Node, bound: float) -> None:
        node.guessed = not self.buffers.taken
        # Then the promise rests on guesses alone (Buffers.guess).
        # Of equal bounds the frame with the most memory first, then the one that came first.
        heapq.heappush(
            self.heap, (bound * node.price, -node.kind.frame.memory, next(self.count), node)
        )

    def _run(self) -> _Done | None:
        """Return the best measured launch that no promise is better than."""
        while self.heap:
            bound, _, _, node = heapq.heappop(self.heap)
            # Now there is something to predict the closed kinds by, so they may promise after all.
            if self.closed and self.buffers.taken:
                closed = self.closed
                self.closed = []
                for each in closed:
                    self._promise(each)
                self._push(node, bound / node.price)
                continue
            # The best of all, if no promise was made by less than what is known now.
            if isinstance(node, _Done):
                guesses = self._guesses(bound)
                if not guesses:
                    return node
                self._push(node, bound / node.price)
                for guess in guesses:
                    self._reopen(guess)
                continue
            # The promise is up to date: measure it. Otherwise promise again.
            if node.launch is not None and (
                node.version == self.buffers.version or node.tries >= TRIES
            ):
                self._measure(node)
            elif not node.sizes:
                new = node.launch is None
                launch = self._promise(node)  # by what was measured since
                # Its first promise: other micro-batches of this kind have no bound yet.
                if launch is not None and new and node.n_ctx == node.kind.frame.contexts.smallest:
                    self._bound_micro_batches(node.kind, node.n_ctx, launch)
            for size in node.sizes:
                self._promise(_Node(node.kind.with_micro_batch(size), node.n_ctx))
        return None

    def _guesses(self, best: float) -> list[_Node]:
        """Return the promises that may be too little, taken from the heap: those that were made
        before anything was measured, and those that are nearly as good by what was known
        earlier."""
        guesses = []
        for bound, *_, node in self.heap:
            early = node.guessed and node.kind.guessed_too_much(node.n_ctx)
            # Made by older measurements, and nearly as good as the best.
            stale = (
                node.launch is not None
                and node.version < self.buffers.version
                and bound < best * CLOSE
            )
            if not node.later and not isinstance(node, _Done) and (early or stale):
                guesses.append(node)
        self.heap = [entry for entry in self.heap if entry[-1] not in guesses]
        heapq.heapify(self.heap)
        return guesses

    def _reopen(self, node: _Node) -> None:
        """Open a promise or a bound again, by what is known now."""
        if not node.sizes:
            self._promise(node)
            return
        launch = node.kind.promise(node.n_ctx)
        if launch is not None:
            self._bound_micro_batches(node.kind, node.n_ctx, launch)

    def _measure(self, node: _Node) -> None:
        launch = node.launch
        assert launch is not None
        node.tries += 1
        candidate = self.evaluator.candidate(launch.params, self.fidelity)
        if candidate is None:
            # The budget is spent; what was promised is the answer if nothing was measured
            # (_unfitting).
            self.cut += [launch] * self.evaluator.exhausted
            return
        node.kind.record(candidate)
        seconds = float("inf")
        if candidate.fits:
            # The measured launch goes back into the heap: it wins if nothing promises more.
            done = _Done(node.kind, node.n_ctx, launch, candidate)
            done.price = node.price
            seconds = self._worth(done)
            self._push(done, seconds)
        elif candidate.fits_devices:
            self.short.append(candidate)
        # Another promise of the same kind: what this one took corrects it.
        if node.tries < TRIES:
            self._again(node, candidate, seconds)

    def _again(self, node: _Node, candidate: Candidate, seconds: float) -> None:
        """Open the promise by what was measured now, if it is another and better one."""
        node.failed = 0 if candidate.fits_devices else node.failed + 1
        use = candidate.breakdown.devices
        if any(left < 0 and not use[name].model for name, left in candidate.spare.items()):
            # idle devices lack room: only less context may help
            node.failed = max(node.failed, PATIENCE)
        again = node.kind.promise(node.n_ctx, node.failed)
        # Another placement is a new attempt: no care is needed yet.
        if again is not None and not _placed_alike(again.params, candidate.params):
            node.failed = 0
        if again is not None and again.params != candidate.params and again.worth < seconds * SAME:
            self._promise(node)
        if not candidate.fits_devices:
            self._nearly(node, candidate)
            self._hopefully(node, again, seconds)

    def _hopefully(self, node: _Node, again: Launch | None, seconds: float) -> None:
        """Opens what would fit if it took a little less than it should: no estimate is so exact."""
        # As if every device had HOPE more.
        launch = node.kind.promise(node.n_ctx, 0, HOPE)
        limit = seconds if again is None else min(seconds, again.worth)
        if launch is None or launch.ram_missing or launch.worth > limit * _HOPED:
            return
        if node.hopes < _HOPES and (node.kind, launch.params) not in self.opened:
            node.hopes += 1
            self._open_launch(node, launch)

    def _open_launch(self, node: _Node, launch: Launch) -> None:
        """Opens a launch, whether it should fit or not."""
        self.opened.add((node.kind, launch.params))
        same = _Node(node.kind, node.n_ctx, launch)
        # TRIES: measured as it is, and not promised again.
        same.version = self.buffers.version
        same.price = node.price
        same.tries = TRIES
        self._push(same, launch.worth)

    def _nearly(self, node: _Node, candidate: Candidate) -> None:
        """Opens a placement that lacks little with the smallest context of its promise: no estimate
        is so exact."""
        # Only devices that lack little, and a context that can still shrink.
        params = candidate.params
        if node.n_ctx == params.n_ctx or min(candidate.spare.values()) < -NEAR:
            return
        launch = node.kind.launch(replace(params, n_ctx=node.n_ctx))
        if launch is None or (node.kind, launch.params) in self.opened:
            return
        self._open_launch(node, launch)

    def _next_context(self, node: _Node, launch: Launch) -> int | None:
        """Return the next larger context to try with the same kind, None if this launch has as
        much."""
        span = node.kind.frame.contexts
        if not span.open or node.kind.name == "none":
            return None
        n_ctx = node.n_ctx
        assert n_ctx is not None
        _, largest = span.open
        reached = launch.use.n_ctx
        # The next doubling above what this launch already has.
        while n_ctx <= reached < largest:
            n_ctx = min(2 * n_ctx, largest)
        return n_ctx if n_ctx > reached else None

    def _worth(self, node: _Done) -> float:
        return worth(self.problem, node.measured.params, node.measured.breakdown)

    def _measure_smallest(self) -> None:
        """Measure the launches with the fewest layers on the devices, where nothing should fit."""
        closed = self.closed
        self.closed = []
        for node in closed:
            if node.kind.name == "given":
                continue
            # One layer, as few as say what a device with layers takes.
            candidate = self.evaluator.candidate(node.kind.ladder(node.n_ctx)(1), self.fidelity)
            if candidate is not None:
                node.kind.record(candidate)
                self._promise(node)

    # --- what challenges the best one

    def _unmeasured(self, winner: _Done) -> bool:
        """Open what promises that were never measured would be if they took a little less than
        other kinds did; return whether any is open."""
        limit = self._worth(winner) * winner.price * _HOPED
        before = len(self.heap)
        for *_, node in [*self.heap]:
            if node.launch is None or node.tries or isinstance(node, _Done):
                continue
            launch = node.kind.promise(node.n_ctx, 0, HOPE)
            if launch is None or launch.ram_missing or launch.worth * node.price >= limit:
                continue
            if (node.kind, launch.params) not in self.opened:
                self._open_launch(node, launch)
        return len(self.heap) > before

    def _orders(self, winner: _Done) -> bool:
        """Open all devices in other orders, with each kind of placement; return whether any is
        open."""
        frame = winner.kind.frame
        given = self._listed(winner)
        # The first order was already tried.
        others = orders(self.problem, given)[1:]
        if self.problem.given.device is not None or not Frame(self.problem, given).splits:
            return False
        before = len(self.heap)
        # Without devices their order is of no interest.
        names = [name for name in frame.names_of_kinds if name != "none"]
        # With one other order its micro-batches are affordable too.
        tried = {winner.kind.shape.n_ubatch, *(frame.micro_batches if len(others) == 1 else ())}
        sizes = [None, *sorted({size for size in tried if size} - {given.n_ubatch})]
        for device, name in itertools.product(others, names):
            at = replace(given, device=device)
            kind = Kind(Frame(self.problem, at, self.whole), name, at, self.buffers)
            for size in sizes:
                node = _Node(kind if size is None else kind.with_micro_batch(size), winner.n_ctx)
                # A price only between orders: the listed one costs nothing, another one ORDER.
                if (device is None) != (frame.given.device is None):
                    node.price = ORDER.factor ** (1 if device else -1)
                launch = self._promise(node)
                if name == winner.kind.name and launch is not None:
                    self._first_of_frame(node, launch)
        return len(self.heap) > before

    def _first_of_frame(self, node: _Node, launch: Launch) -> None:
        """Measures a launch with weights in RAM where nothing of its frame was: by what launches of
        other frames take, a promise may be much too little."""
        point = node.kind.point(launch.params)
        if not node.kind.whole(launch.params) and not self.buffers.knows(point):
            self._measure(node)

    def _listed(self, winner: _Node) -> Params:
        """Return the flags of its frame, with all devices as they are listed."""
        given = self.problem.given
        return replace(
            winner.kind.frame.given,
            device=given.device,
            split_mode=given.split_mode,
            main_gpu=given.main_gpu,
        )

    def _contexts(self, winner: _Done) -> bool:
        """Open other splits, for contexts between that of this one and the next that was tried."""
        frame = winner.kind.frame
        span = frame.contexts
        if not frame.splits or not span.open:
            return False
        here = winner.measured.breakdown.n_ctx
        # Above twice the context the next promise begins.
        farthest = min(2 * here, span.open[1])
        limit = self._worth(winner)
        kinds = [winner.kind]
        # A larger micro-batch takes memory that a larger context may be worth more than.
        if winner.kind.shape.n_ubatch != frame.given.n_ubatch:
            kinds.append(Kind(frame, winner.kind.name, frame.given, self.buffers))
        # Parts of the way, in whole steps.
        grid = [int(here + (farthest - here) * part) // span.step * span.step for part in _WAYS]
        better = [
            (launch.worth, n, kind)
            for n, kind in itertools.product(grid, kinds)
            if n > here
            and (kind, n) not in self.opened
            and (launch := kind.promise(n)) is not None
            and launch.worth < limit
        ]
        # The best of the grid; the next round looks around it again.
        for _, n_ctx, kind in sorted(better, key=lambda each: each[:2])[:1]:
            self.opened.add((kind, n_ctx))
            node = _Node(kind, n_ctx)
            node.price = winner.price
            self._promise(node)
        return bool(better)

    def _parts(self, winner: _Done) -> bool:
        """Open layers placed by --fit's rules, parts of them on each device; return whether any is
        open."""
        frame = winner.kind.frame
        measured = winner.measured
        given = self.problem.given
        # --strategy layers wants whole layers; given rules or numbers leave nothing to place.
        if self.policy.strategy == "layers" or given.overrides or frame.ladders.literal:
            return False
        # With everything on devices parts of layers are of no use.
        if not self.cost.in_ram(measured):
            return False
        before = len(self.heap)
        listed = self._listed(winner)
        # With the winner's context, and with the one that its promise began at, which may leave
        # room for more layers.
        contexts = (given.n_ctx or measured.params.n_ctx, winner.n_ctx)
        for of, n_ctx in dict.fromkeys(itertools.product((frame.given, listed), contexts)):
            kind = winner.kind
            if of != frame.given:
                kind = Kind(Frame(self.problem, of, self.whole), kind.name, of, self.buffers)
            for candidate in parts(self.problem, replace(of, n_ctx=n_ctx), measured, self.fidelity):
                node = _Done(kind, n_ctx, winner.launch, candidate)
                self._push(node, self._worth(node))
        return len(self.heap) > before

    # --- the answer

    def _finished(self, winner: _Done) -> Candidate | None:
        """Return the launch with an expert cache if that pays and the largest context that fits,
        measured in full; None if it does not fit after all: then its kind's next promise is
        open."""
        candidate = winner.measured
        frame = winner.kind.frame
        # An upload rate is known only where it was measured; without it the gain would be a guess.
        if self.evaluator.machine.expert_upload and may_cache(self.problem, frame.given):
            candidate = self._cached(frame, candidate, winner.kind.shape)
        answer = self._in_full(frame, candidate)
        if answer is not None and answer.fits:
            return answer
        if answer is not None:
            winner.kind.record(answer)
            if answer.fits_devices:
                self.short.append(answer)
                return None
            # Its kind promises again, by what the full measurement took.
            node = _Node(winner.kind, winner.n_ctx)
            node.tries = 1
            self._again(node, answer, float("inf"))
        return None

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

    def _paid(self, winner: _Done, answer: Candidate) -> tuple[int, float]:
        """Return what a context that is larger than the smallest costs."""
        span = winner.kind.frame.contexts
        if not span.open or answer.breakdown.n_ctx <= span.open[0]:
            return 0, 1.0
        # What the same kind would promise with the smallest context: usually faster, as more layers
        # fit.
        smallest = winner.kind.promise(span.open[0])
        if smallest is None:
            return 0, 1.0
        fastest = self.cost.predict(smallest.params, smallest.use).compared
        return smallest.use.n_ctx, self.cost.speed(answer).compared / fastest

    # --- where nothing fits

    def _unfitting(self) -> Solution:
        """Return the best promise if the budget is spent, otherwise a launch that does not fit: of
        those that fit on the devices the fastest whose shortfall of system memory does not exceed
        that of --fit's."""
        # The budget is spent: the best of what was promised is measured even so.
        if self.cut:
            promised = min(self.cut, key=lambda launch: launch.worth)
            candidate = self.evaluator.candidate(promised.params, FULL, last=True)
            if candidate is not None and candidate.fits:
                return Solution(self.problem, candidate)
        given = self.frames.at_least(self.problem.given)
        ladders = Frame(self.problem, given).ladders
        if ladders.literal:
            launch = given if self.policy.strategy is None else ladders.all_layers(given)
        else:
            # No layer on the devices takes the least; it says how much RAM is missing.
            launch = replace(given, n_gpu_layers=0)
        nearest = self._least_short(given)
        launch = launch if nearest is None else nearest.params
        return Solution(self.problem, self.evaluator.candidate(launch, FULL, last=True))

    def _least_short(self, given: Params) -> Candidate | None:
        # Launches that only RAM is too small for: the fastest of them is measured first.
        while not self.short and self.lacking:
            best = min(self.lacking, key=lambda lacking: lacking[0].worth)
            self.lacking.remove(best)
            self._measure(best[1])
        if not self.short:
            return None
        limited = self.evaluator.machine.ram is not None and not given.overrides
        rival = fit(self.evaluator, given, self.fidelity) if limited else None
        short = [*self.short, *([rival] if rival is not None and rival.fits_devices else [])]
        # Nothing that swaps more than --fit's own answer.
        if rival is not None and rival.fits_devices:
            short = [candidate for candidate in short if candidate.ram_missing <= rival.ram_missing]
        return self.cost.fastest(short)


def _placed_alike(one: Params, other: Params) -> bool:
    """Return whether two launches have the same layers and parts on the devices."""
    return (one.n_gpu_layers, one.overrides) == (other.n_gpu_layers, other.overrides)


def _with_context(params: Params, n_ctx: int | None) -> Params:
    return replace(params, n_ctx=n_ctx)
