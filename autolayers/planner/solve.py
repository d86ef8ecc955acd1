"""The search: what is given stays, what is not given is solved.

    fixed context, or a range      contexts()
    all layers on the GPUs         tried first, at the largest context
    else at the smallest context   whole layers | experts in RAM | FFN in RAM | parts of layers by --fit's rules
                                   and of those that fit the one with the fastest reference request (speed.py)
    then                           the largest context that this placement leaves room for
"""

from __future__ import annotations

from ..argument_table import EXPERTS_REGEX, FFN_REGEX
from .judge import Judge
from .search import largest_context, last
from .spread import Spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass, replace

    from ..model import Model
    from ..params import Params
    from ..wishes import Policy
    from .probe import Probe, Trial
else:
    from ..records import dataclass, replace

FLOOR = 4096          # tokens per sequence, llama.cpp's own --fit-ctx
PARTS_GAIN = 1.02     # parts of layers on several GPUs must promise this much more than -ncmoe: they take many words
OUTDONE = 1.25        # how much slower whole layers must be expected on unlike GPUs to be left out
SPILL_GAIN = 1.25     # FFN weights in RAM must promise this much more than whole layers: the prediction is not that good


@dataclass(frozen=True)
class Contexts:
    """The contexts that may be chosen: `most` first, `least` if it must be; one and the same where it is fixed."""

    least: int | None
    most: int | None
    step: int = 256

    @property
    def fixed(self) -> bool:
        return self.least == self.most


def contexts(model: Model, params: Params, policy: Policy) -> Contexts:
    """What -c, --ctx and --ctx-min leave open, in cells of the whole cache.

    A cache that is not unified has one stream per slot, and each slot gets an equal part; so the range is per
    sequence times the number of streams, as --fit counts (memory_static.md 4.3).
    """
    if params.n_ctx is not None or params.kv_unified_per_slot:
        return Contexts(params.n_ctx, params.n_ctx)
    auto_slots = params.n_parallel is None or params.n_parallel < 0
    slots = 4 if auto_slots else max(1, params.n_parallel or 1)
    streams = 1 if auto_slots or params.kv_unified else slots
    trained = max(1, model.n_ctx_train)
    if isinstance(policy.n_ctx, int):
        return Contexts(policy.n_ctx, policy.n_ctx)
    floor = policy.n_ctx_min if policy.n_ctx_min is not None else min(params.fit_ctx or FLOOR, trained)
    # With one cache for all slots --ctx max goes on until every slot could hold the trained context.
    most = trained * (slots if policy.n_ctx == "max" else streams)
    return Contexts(floor * streams, max(floor * streams, most), 256 * streams)


class Solver:
    """One model, one machine, one set of given flags."""

    def __init__(self, probe: Probe, given: Params, policy: Policy) -> None:
        self.probe, self.given, self.policy = probe, given, policy
        self.model = probe.model
        self.everything = self.model.hparams.n_layer_all + 1
        n = given.n_gpu_layers
        self.literal = n is not None and n != -1                 # -ngl was given
        self.top = n if n is not None and n >= 0 else self.everything
        self.contexts = contexts(self.model, given, policy)
        self.judge = Judge(probe)
        self.spread = Spread(probe, self.judge)

    # --- the answer

    def solve(self) -> Trial | None:
        """The best launch, with its whole bill; one that does not fit where nothing does; None where llama.cpp would refuse
        every one.

        The search believes the prompt graphs. They are a lower bound, so an answer that fits after all is the best one. One
        that does not may do so with less context; else the search is repeated with whole bills.
        """
        self.probe.quick = True
        found = self._best()
        self.probe.quick = False
        answer = found and self.probe.trial(found.params, whole=True)
        if found is None or (answer is not None and answer.fits == found.fits):
            return answer
        shape = found.params
        less = self._stretch(lambda n: replace(shape, n_ctx=n), answer)
        if less is None or not less.fits:
            self.spread = Spread(self.probe, self.judge)
            less = self._best()
        return less and self.probe.trial(less.params, whole=True)

    def _best(self) -> Trial | None:
        given = self.given
        if not self.policy.kv_types or given.cache_type_k or given.cache_type_v:
            return self._solve(given)
        answers = []
        for name in self.policy.kv_types:
            answer = self._solve(replace(given, cache_type_k=name, cache_type_v=name))
            if answer is None:
                continue
            if answer.fits and self.whole(answer):
                return answer
            answers.append(answer)
        fitting = [answer for answer in answers if answer.fits]
        return self.judge.fastest(fitting) if fitting else answers[0] if answers else None

    def _solve(self, params: Params) -> Trial | None:
        if not self.probe.machine.devices:
            return self._stretch(lambda n: replace(params, n_ctx=n, n_gpu_layers=params.n_gpu_layers if self.literal else 0))
        if self.literal and self.policy.strategy is None:
            return self._stretch(lambda n: replace(params, n_ctx=n))
        whole = self._whole(params)
        if whole is not None:
            return whole
        spilled = self._spilled(params, self.contexts.least)
        if spilled is None or not spilled.fits or self.contexts.fixed:
            return spilled
        shape = spilled.params
        answer = self._stretch(lambda n: replace(shape, n_ctx=n)) or spilled
        roomier = self._roomier(answer, params)
        other = None if roomier is None else self._stretch(lambda n: replace(roomier, n_ctx=n))
        return other if other is not None and other.fits and other.breakdown.n_ctx > answer.breakdown.n_ctx else answer

    def _roomier(self, trial: Trial, given: Params) -> Params | None:
        """These flags with the split that should allow the largest context and be no slower, if that is a good deal more."""
        span, own, here = self.contexts, trial.params, trial.breakdown.n_ctx
        if (own.tensor_split is None or not self.spread.open(given) or span.most is None
                or any(buffer != "CPU" for _, buffer in own.overrides)):
            return None
        grid = [n for n in (here * 5 // 4, here * 3 // 2, here * 2, here * 3, here * 4, here * 8, here * 16) if n <= span.most]
        limit = self.judge.speed(trial).request * (1 + 1e-9)
        shapes = [replace(own, tensor_split=None, n_ctx=n) for n in grid]
        found = last(-1, len(shapes) - 1, lambda i: self.spread.hoped(shapes[i]) <= limit)
        split = None if found < 0 else self.spread.partition(shapes[found])
        return None if split is None or split == own.tensor_split else replace(own, tensor_split=split)

    def whole(self, trial: Trial) -> bool:
        """All layers are on devices and no weight was sent to the host."""
        n = trial.params.n_gpu_layers
        return n is not None and (n >= self.top or n == -2) and len(trial.params.overrides) == len(self.given.overrides)

    # --- context

    def _full(self, params: Params, n_ctx: int | None) -> Params:
        """As many layers on the GPUs as may be: all, or the given number."""
        return replace(params, n_ctx=n_ctx, n_gpu_layers=self.top)

    def _stretch(self, make: Callable[[int | None], Params], above: Trial | None = None) -> Trial | None:
        """The largest context that fits with this shape, less than that of the launch `above`, which does not; the smallest,
        not fitting, where none does."""
        span = self.contexts
        if span.fixed or span.least is None or span.most is None:
            return self.probe.trial(make(span.least))
        most = span.most if above is None else above.params.n_ctx or span.most
        found = largest_context(self.probe, make, span.least, most, span.step, above)
        return found if found is not None else self.probe.trial(make(span.least))

    # --- everything on the GPUs

    def _whole(self, params: Params) -> Trial | None:
        span = self.contexts
        largest = self.spread.best(self._full(params, span.most))
        if span.fixed or (largest is not None and not self.spread.open(params)):
            return largest
        from .speed import hop

        # More context may cost hand-overs between GPUs, but no slower GPU (--ctx max takes that one too)
        hops = (len(self.probe.machine.devices) - 1) * hop(params.n_ubatch or 512)
        if largest is not None and self.judge.speed(largest).request <= self.spread.hoped(self._full(params, span.least)) + hops < float("inf"):
            return largest
        smallest = self.spread.best(self._full(params, span.least))
        if smallest is None or span.least is None or span.most is None:
            return None
        limit = self.judge.speed(smallest).request * (1 + 1e-9) + hops
        if largest is not None and self.judge.speed(largest).request <= limit:
            return largest
        if not self.spread.open(params):
            return largest_context(self.probe, lambda n: self._full(params, n),
                                   span.least, span.most, span.step)
        low, high, best = span.least, span.most, smallest
        near = max(span.step, (span.most - span.least) // 64 // span.step * span.step)
        while high - low > near:                                                # the split may change with the context
            steps = (high - low) // near
            guess = low + near * last(0, steps, lambda n, low=low: self.spread.hoped(self._full(params, low + near * n)) <= limit)  # type: ignore[misc]
            guess = max(min(guess, high - near), low + near)
            trial = self.spread.best(self._full(params, guess))
            if trial is None or self.judge.speed(trial).request > limit:
                high = guess
            else:
                low, best = guess, trial
        shape = best.params
        return largest_context(self.probe, lambda n: replace(shape, n_ctx=n), low, high, span.step) or best

    # --- part of it in RAM

    def _spilled(self, params: Params, n_ctx: int | None) -> Trial | None:
        at = replace(params, n_ctx=n_ctx)
        candidates: list[Trial] = []
        finer = self.policy.strategy != "layers" and not params.overrides
        if finer and self.model.hparams.n_expert:
            candidates += self._experts(at)
        layers = None if self.literal or self._outdone(at, candidates) else \
            self.spread.most(lambda n: replace(at, n_gpu_layers=n), self.everything)
        if layers is not None:
            candidates.insert(0, layers)
        if finer:
            if not self.model.hparams.n_expert:
                candidates += self._feed_forward(at, layers)
            if not self.literal and not self._includes_fit(layers):
                candidates += self._rival(at, candidates)
        fitting = [trial for trial in candidates if trial.fits]
        if fitting:
            return self.judge.fastest(fitting)
        if self.literal:
            return self.probe.trial(at)
        return candidates[0] if candidates else self.probe.trial(replace(at, n_gpu_layers=0))

    def _outdone(self, params: Params, candidates: list[Trial]) -> bool:
        """Whether whole layers would be slower than one of these even if half of what is not theirs were free."""
        fitting = [trial for trial in candidates if trial.fits]
        if not fitting:
            return False
        limits = self.probe.machine.limits
        room = sum(limits.values()) - sum(_beside(fitting[0], limits).values()) // 2

        def possible(count: int) -> bool:
            static = self.probe.static(replace(params, n_gpu_layers=count))
            return static is not None and sum(usage.total for usage in static.devices.values()) <= room

        bound = self.judge.predict(replace(params, n_gpu_layers=last(0, self.everything, possible)), fitting[0].breakdown)
        # llama.cpp's own split, which is predicted here, need not be the fastest
        alike = len({self.judge.bandwidths.devices[name] for name in fitting[0].spare}) == 1
        best = self.judge.speed(self.judge.fastest(fitting)).request
        return bound.request > best * (1 if alike else OUTDONE)

    def _rival(self, params: Params, candidates: list[Trial]) -> list[Trial]:
        """What is faster than these by --fit's rules: with our margins, with its own, or with smaller graph buffers than it
        finds, if that fits all the same. Nothing where even then it is no faster."""
        from .fit import likely, shaped

        given = self.given if self.given.n_ctx is not None else replace(params, n_gpu_layers=None)
        found: list[Trial] = []
        fitting = [trial for trial in candidates if trial.fits]

        def better(shape: Params | None, gain: float = 1.0) -> Trial | None:
            """The trial of a shape that promises to be faster than all that fits so far."""
            if shape is None:
                return None
            if fitting:
                best = self.judge.fastest(fitting)
                if self.judge.predict(shape, best.breakdown).request * gain >= self.judge.speed(best).request:
                    return None
            trial = self.probe.trial(shape)
            if trial is not None and trial.fits and not _on_rpc(trial):
                found.append(trial)
                fitting.append(trial)
            return trial

        if fitting:
            limits = self.probe.machine.limits
            beside = _beside(self.judge.fastest(fitting), limits)
            for _ in range(4):
                trial = better(shaped(self.probe, given, beside, limits), PARTS_GAIN)
                if trial is None or trial.fits:
                    break
                beside = {**beside, **{name: max(size, beside.get(name, 0)) for name, size in _beside(trial, limits).items()}}
            compute: dict[str, int] = {}
            for _ in range(4):
                trial = better(shaped(self.probe, given, compute))
                if trial is None:
                    return found
                if not trial.fits:       # with so small buffers it might win: so with nearly those that this choice really has
                    compute = {name: usage.compute * 31 // 32 for name, usage in trial.breakdown.devices.items()}
        better(likely(self.probe, given))
        return found

    def _includes_fit(self, layers: Trial | None) -> bool:
        """--fit would try nothing that was not tried: whole layers on one device, with a margin that is no smaller."""
        if layers is None or self.model.hparams.n_expert or len(layers.spare) != 1:
            return False
        (name, parts), = layers.margins.items()
        target = (self.given.fit_target or (1024,))[0] << 20
        device = next(device for device in self.probe.machine.devices if device.name == name)
        return sum(size for _, size in parts) + device.free - self.probe.machine.limits[name] <= target

    def _experts(self, params: Params) -> list[Trial]:
        """The experts of as few leading layers as possible in RAM, then part of one more layer's back on the GPU."""
        n_layer = self.model.hparams.n_layer_all
        base = replace(params, n_gpu_layers=self.top)
        found = self.spread.most(lambda spared: with_experts_on_host(base, n_layer - spared), n_layer)
        if found is None:
            if self.literal:
                return []
            bare = replace(params, overrides=(*params.overrides, (EXPERTS_REGEX, "CPU")))
            less = self.spread.most(lambda n: replace(bare, n_gpu_layers=n), self.everything)
            return [] if less is None else [less]
        return [found, *self._finer(base, found)]

    def _finer(self, base: Params, found: Trial) -> list[Trial]:
        count = len(found.params.overrides) - len(base.overrides)
        if count == 0:
            return []
        boundary = count - 1
        kinds = [kind for kind in ("up", "gate", "gate_up", "down") if f"blk.{boundary}.ffn_{kind}_exps.weight" in self.model.tensors]
        better: list[Trial] = []
        for kept in range(len(kinds) - 1, 0, -1):       # how many of the layer's matrices come back to the GPU
            on_host = "|".join(kinds[kept:])
            pattern = (rf"blk\.{boundary}\.ffn_({on_host})_(ch|)exps", "CPU")
            shape = replace(with_experts_on_host(base, boundary), tensor_split=found.params.tensor_split)
            trial = self.probe.trial(replace(shape, overrides=(*shape.overrides, pattern)))
            if trial is not None and trial.fits:
                better.append(trial)
                break
        return better

    def _feed_forward(self, params: Params, layers: Trial | None) -> list[Trial]:
        """FFN weights of the leading layers in RAM, attention and cache of all layers on the GPU."""
        if f"blk.{self.model.hparams.n_layer_all - 1}.ffn_down.weight" not in self.model.tensors:
            return []
        n_layer = self.model.hparams.n_layer_all
        base = replace(params, n_gpu_layers=self.top)

        def make(spared: int) -> Params:
            rules = tuple((rf"blk\.{i}{FFN_REGEX}", "CPU") for i in range(n_layer - spared))
            return replace(base, overrides=(*base.overrides, *rules))

        found = self.spread.most(make, n_layer)
        if found is None:
            return []
        if layers is not None and layers.fits:
            gain, loss = self.judge.speed(found), self.judge.speed(layers)
            if gain.request * SPILL_GAIN > loss.request:
                return []
        return [found]


def _beside(trial: Trial, limits: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each device that is used, margin included, that are neither weights nor cache."""
    use = trial.breakdown.devices
    return {name: limits[name] - spare - use[name].model - use[name].context for name, spare in trial.spare.items()}


def _on_rpc(trial: Trial) -> bool:
    """Whether tensors are sent to an RPC server: its buffers have names that only llama.cpp knows."""
    return any(buffer.startswith("RPC") for _, buffer in trial.params.overrides)


def with_experts_on_host(params: Params, count: int) -> Params:
    """The flags with the experts of the first `count` layers in system memory: what -ncmoe COUNT says."""
    rules = tuple((rf"blk\.{i}{EXPERTS_REGEX}", "CPU") for i in range(count))
    return replace(params, overrides=(*params.overrides, *rules))
