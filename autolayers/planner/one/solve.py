"""The search: given flags stay fixed, the others are solved.

    fixed context, or a range      contexts()
    fully offloaded                tried first, at the largest context
    else at the smallest context   whole layers | experts in RAM | FFN in RAM | parts of layers by --fit's rules
                                   and of those that fit the one with the fastest reference request (cost.py)
    then                           the largest context that fits with this placement
"""

from __future__ import annotations

from functools import partial

from ...backends import HOST
from ...flags.kinds import MOST_SHARES
from ...flags.params import EXPERTS_REGEX, FIT_PARAMS_MIN_CTX, FIT_PARAMS_TARGET, N_BATCH, N_PARALLEL, N_UBATCH
from ...garbage import without_gc
from ...records import lazy, replace
from ...work.speed import CostModel
from ..cache_types import LONG, low
from ..evaluate import FIT, FULL, PROMPT
from . import overrides
from .bisection import largest_context, last
from .contexts import MIXTURE, contexts
from .expert_cache import may_cache, with_expert_cache
from .fit import fit, fit_estimated, fit_with_overheads
from .ladder import Ladders
from .slice_shares import choices
from .split import TensorSplit, is_free

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...flags.params import Params
    from ...flags.policy import Policy
    from ..evaluate import Candidate, Evaluator, Fidelity
    from .ladder import Ladder

MICRO_BATCHES = (2048, 4096, 1024)
# a larger micro-batch must make the request this much faster: it takes layers off the GPU
BATCH_GAIN = 1.03
FREE_GAIN = 1.01      # or this much, if it takes memory that nothing else wants
CONTEXTS = (32768, 16384, 8192)     # tried where the placement leaves less
CONTEXT_PRICE = 1.05  # of the request's time that such a context may cost,
MIXTURE_PRICE = 1.10  # and with experts in RAM, which cost less than layers
LARGER = 1.25         # such a context is worth moving experts for if it is this much larger
# parts of layers on several GPUs need many flags: they must be this much faster than -ncmoe
PARTS_GAIN = 1.02
ORDER_GAIN = 1.02     # another order of the devices must make the request this much faster
PRUNE_FACTOR = 1.25   # on unlike GPUs, skip whole-layer candidates predicted this much slower

# Limits for an automatically chosen context if the CPU takes part:
TOKEN_SECONDS = 0.5   # seconds that a token may take with a full context above 32k,
TOKEN_GROWTH = 1.5    # or this factor over its time at the reference depth
RAM_SHARE = 7 / 8     # of the system memory may be taken


@without_gc
def solve(evaluator: Evaluator, given: Params, policy: Policy, cost: CostModel) -> Candidate | None:
    """The best launch, fully measured; one that does not fit if none does; None if llama.cpp would refuse all
    of them.

    llama.cpp puts RPC servers' devices first, and the first layers' weights go to RAM. So with servers and
    weights in RAM, this machine's devices are also tried as the first ones; the server with the fastest link
    is then last and sends the logits. With -sm tensor, unequal devices are also tried with unequal shares.
    Integrated GPUs are left out (-dev none) if the CPU, which reads the same RAM, is faster by more than the
    error of comparisons.
    """
    floor = contexts(evaluator.model, given, policy).least
    found = _best(evaluator, given, policy, cost)
    if floor == MIXTURE and (found is None or not found.fits):
        less = _best(evaluator, given, replace(policy, n_ctx_min=FIT_PARAMS_MIN_CTX), cost)
        return less or found
    return found


def _best(evaluator: Evaluator, given: Params, policy: Policy, cost: CostModel) -> Candidate | None:
    # Concurrent requests want a slot each, with its own cache: attention reads the cells of all slots in a
    # unified one
    requests = policy.workload.requests
    if given.n_parallel is None and requests > 1:
        work, cells = policy.workload, given.n_ctx or (policy.n_ctx if isinstance(policy.n_ctx, int) else 0)
        each = work.prompt + work.generate + work.depth
        most = max(1, cells // each) if cells else requests      # in a given context
        tried = [_placed(evaluator, replace(given, n_parallel=n), policy, cost) for n in _slots(min(requests, most))]
        fitting = [answer for answer in tried if answer is not None and answer.fits]
        return cost.fastest(fitting) if fitting else tried[-1]
    return _placed(evaluator, given, policy, cost)


def _slots(requests: int) -> tuple[int | None, ...]:
    """The slots to try for so many requests at once; None are llama-server's own, with one cache."""
    if requests <= N_PARALLEL:
        return None, requests
    return tuple(dict.fromkeys((requests, max(N_PARALLEL, requests // 2), N_PARALLEL)))


def _placed(evaluator: Evaluator, given: Params, policy: Policy, cost: CostModel) -> Candidate | None:
    """The best launch with these slots."""
    shares = choices(evaluator, cost, replace(given, n_ctx=contexts(evaluator.model, given, policy).least))
    if len(shares) > 1:
        tried = [_solved(evaluator, replace(given, tensor_split=of), policy, cost) for of in shares]
        answers = [answer for answer in tried if answer is not None]
        fitting = [answer for answer in answers if answer.fits]
        return cost.fastest(fitting) if fitting else next(iter(answers), None)
    found = _on_one_gpu(evaluator, given, policy, cost, _solved(evaluator, given, policy, cost))
    # even -ngl 0 computes on a device and keeps buffers there
    too_small = evaluator.machine.devices and (found is None or not found.fits_devices) and \
        policy.margin is None and given.fit_target is None and _may_leave_out(given, policy)
    if too_small or (found is not None and processor_alone(evaluator, given, policy)
                     and _processor_wins(evaluator, cost, found)):
        alone = _solved(evaluator, replace(given, device=()), policy, cost)
        if alone is not None and alone.fits:
            return alone
    devices = evaluator.machine.devices
    order = tuple(device.name for device in sorted(
        devices, key=lambda device: cost.devices[device.name].network if device.kind == "rpc" else 0.0))
    if found is None or given.device is not None or given.tensor_split is not None \
            or found.params.split_mode == "none" or order == tuple(device.name for device in devices) \
            or not cost.in_ram(found):
        return found
    other = _solved(evaluator, replace(given, device=order), policy, cost)
    if other is None or not other.fits:
        return found
    return other if not found.fits or cost.speed(other).request * ORDER_GAIN <= cost.speed(found).request else found


def _on_one_gpu(evaluator: Evaluator, given: Params, policy: Policy, cost: CostModel,
                found: Candidate | None) -> Candidate | None:
    """`found`, or a launch on one GPU with the others left out (-sm none), where that is faster: each device that
    llama.cpp knows of costs every token time, used or not. Less context must be CONTEXT_PRICE faster. Tried where all
    layers fit, on a device as large as the only one used, and where the first devices are too small for any launch."""
    names = evaluator.device_names(given)
    devices = {device.name: device for device in evaluator.machine.devices}
    if len(names) < 2 or (given.split_mode, given.main_gpu) != (None, None) or not _may_leave_out(given, policy):
        return found
    best, tried = found if found is not None and found.fits_devices else None, set()
    any_does = best is None
    limits = evaluator.machine.limits
    used = [name for name, usage in best.breakdown.devices.items() if usage.total] if best is not None else []
    least, everything = contexts(evaluator.model, given, policy).least, evaluator.model.hparams.n_layer_all + 1
    for i, name in enumerate(names):
        alone = replace(given, split_mode="none", main_gpu=i or None)
        kind = devices[name].description, limits[name]
        as_large = len(used) == 1 and limits[name] >= limits[used[0]]
        if devices[name].kind != "gpu" or kind in tried or not (any_does or as_large or evaluator.may_fit(
                replace(alone, n_ctx=least, n_gpu_layers=everything))):
            continue
        tried.add(kind)
        other = _solved(evaluator, alone, policy, cost)
        if other is None or not other.fits or (best is not None and not _better(cost, policy, other, best)):
            continue
        best = other
    return best or found


def _better(cost: CostModel, policy: Policy, one: Candidate, other: Candidate) -> bool:
    """Less context must be CONTEXT_PRICE faster; more may be as much slower, up to 32k a sequence."""
    if not other.fits:
        return True
    less, more = one.breakdown.n_ctx < other.breakdown.n_ctx, one.breakdown.n_ctx > other.breakdown.n_ctx
    if policy.n_ctx == "max" and (less or more):
        return more
    seconds, others = cost.speed(one).request, cost.speed(other).request
    if less:
        return seconds * CONTEXT_PRICE < others
    if more:
        return seconds <= others * (CONTEXT_PRICE if other.breakdown.n_ctx_seq < CONTEXTS[0] else 1.0)
    return seconds < others


def processor_alone(evaluator: Evaluator, given: Params, policy: Policy) -> bool:
    """Whether to compare with a launch without devices: they are integrated GPUs, and no given flag chooses
    them."""
    devices = evaluator.machine.devices
    return bool(devices) and all(device.kind == "igpu" for device in devices) and policy.n_ctx != "max" \
        and _may_leave_out(given, policy)


def _may_leave_out(given: Params, policy: Policy) -> bool:
    """Whether no flag chooses or fills the devices."""
    return given.device is None and given.n_gpu_layers in (None, -1) and not given.overrides \
        and given.split_mode in (None, "layer") and given.tensor_split is None and policy.strategy != "layers"


def _processor_wins(evaluator: Evaluator, cost: CostModel, found: Candidate) -> bool:
    """Whether the CPU is predicted to answer faster than this launch by more than the error of
    comparisons."""
    params = replace(found.params, device=(), overrides=(), tensor_split=None)
    use = evaluator.static(params)
    if use is None:
        return False
    speed = cost.predict(params, use)
    return speed.request * cost.doubt(speed) < cost.speed(found).request


def _solved(evaluator: Evaluator, given: Params, policy: Policy, cost: CostModel) -> Candidate | None:
    """The best launch with devices in the order of the flags.

    The search measures only the prompt graph, a lower bound; then the winner is measured fully. If it still
    fits, it is the best launch. If not, it may fit with less context; else the search is repeated at a
    fidelity that decides.
    """
    found = Search(evaluator, given, policy, cost, PROMPT).best()
    answer = found and evaluator.candidate(found.params, FULL, last=True)
    if found is None or (answer is not None and answer.fits == found.fits):
        return answer
    shape = found.params
    search = Search(evaluator, given, policy, cost, FIT)
    less = search.grow_context(lambda n: replace(shape, n_ctx=n), answer)
    if less is None or not less.fits:
        less = search.best()
    return less and evaluator.candidate(less.params, FULL, last=True)


def _with_context(params: Params, n_ctx: int | None) -> Params:
    return replace(params, n_ctx=n_ctx)


class Search:
    """The search for one model, machine and set of given flags, at one fidelity."""

    def __init__(self, evaluator: Evaluator, given: Params, policy: Policy, cost: CostModel,
                 fidelity: Fidelity) -> None:
        self.evaluator, self.given, self.policy, self.cost, self.fidelity = evaluator, given, policy, cost, fidelity
        self.model = evaluator.model
        self.ladders = Ladders(self.model, given, policy)
        self.contexts = contexts(self.model, given, policy)

    @lazy
    def split(self) -> TensorSplit:
        return TensorSplit(self.evaluator, self.cost, self.fidelity)

    def best(self) -> Candidate | None:
        """The best launch at this fidelity; of several cache types, the first that is fully offloaded."""
        given = self.given
        if not self.policy.kv_types or given.cache_type_k or given.cache_type_v:
            return self._solve(given)
        answers = []
        span, fine = self.contexts, [name for name in self.policy.kv_types if not low(name)]
        for name in self.policy.kv_types:
            # beyond LONG tokens none below q8_0 if there is another
            self.contexts = span
            if low(name) and fine:
                most = LONG * self._streams
                if (span.least or 0) > most:
                    continue
                self.contexts = span if span.most is None else replace(span, most=min(span.most, most))
            answer = self._solve(replace(given, cache_type_k=name, cache_type_v=name))
            if answer is None:
                continue
            if answer.fits and self.fully_offloaded(answer):
                return answer
            answers.append(answer)
        fitting = [answer for answer in answers if answer.fits]
        return self.cost.fastest(fitting) if fitting else self.least_bad(answers)

    @property
    def _streams(self) -> int:
        """Separate caches of the slots."""
        given = self.given
        return 1 if given.n_parallel is None or given.n_parallel < 0 or given.kv_unified else max(1, given.n_parallel)

    def _solve(self, params: Params) -> Candidate | None:
        if not self.evaluator.machine.devices or params.device == ():
            layers = params.n_gpu_layers if self.ladders.literal else 0
            return self.grow_context(lambda n: replace(params, n_ctx=n, n_gpu_layers=layers))
        if self.ladders.literal and self.policy.strategy is None:
            return self._literal(params)
        if not self.ladders.literal and not self.evaluator.usable(params):
            return self.evaluator.candidate(replace(params, n_ctx=self.contexts.least, n_gpu_layers=0),
                                            self.fidelity)
        found = self._fully_offloaded(params)
        if found is not None:
            return self._with_free_micro_batch(self._with_experts_for_context(found, params), params)
        found = self._partially_offloaded(params, self.contexts.least)
        if found is None or not found.fits:
            return found
        found = self._with_larger_micro_batch(found, params)
        if not self.contexts.fixed:
            found = self._with_nearly_free_context(found, params)
        if self.evaluator.machine.expert_upload and may_cache(self.evaluator, params, self.policy):
            found = with_expert_cache(self.evaluator, self.cost, self.ladders, found, params, self.fidelity)
        if self.contexts.fixed:
            return found
        answer = self._grown(found)
        other_shape = self._split_with_more_context(answer, params)
        other = None if other_shape is None else self.grow_context(lambda n: replace(other_shape, n_ctx=n))
        return other if other is not None and other.fits and other.breakdown.n_ctx > answer.breakdown.n_ctx else answer

    def _literal(self, params: Params) -> Candidate | None:
        """These layers with llama.cpp's own split, or with another one if only that fits."""
        own = self.grow_context(lambda n: replace(params, n_ctx=n))
        if own is None or own.fits or not is_free(self.evaluator, params):
            return own
        found = self.split.best(replace(params, n_ctx=self.contexts.least))
        return own if found is None else self._grown(found)

    def fully_offloaded(self, candidate: Candidate) -> bool:
        """All layers are on devices, no weight was sent to the host, and no attention runs on the CPU."""
        n, overrides = candidate.params.n_gpu_layers, candidate.params.overrides
        return n is not None and (n >= self.ladders.top
                                  or n == -2) and len(overrides) == len(self.given.overrides) \
            and not self.cost.attends_on_cpu(candidate)

    # --- context

    def grow_context(self, make: Callable[[int | None], Params], above: Candidate | None = None,
                     below: Candidate | None = None) -> Candidate | None:
        """The largest context that fits with this shape: less than that of the launch `above`, which does not
        fit, and at least that of `below`, which does. The smallest, not fitting, if none does."""
        span = self.contexts
        if span.fixed or span.least is None or span.most is None:
            return self.evaluator.candidate(make(span.least), self.fidelity)
        least = span.least if below is None else below.params.n_ctx or span.least
        most = span.most if above is None else above.params.n_ctx or span.most
        useful = self._useful(make, least, most)
        if useful < most:
            most, above = useful, None
        found = largest_context(self.evaluator, make, least, most, span.step, self.fidelity, above)
        return found if found is not None else self.evaluator.candidate(make(least), self.fidelity)

    def _useful(self, make: Callable[[int | None], Params], least: int, most: int) -> int:
        """The largest context of least..most that leaves enough system memory and, above 32k per sequence, whose
        tokens are fast enough; --ctx max skips both checks."""
        ram = self.evaluator.machine.ram
        if self.policy.n_ctx == "max":
            return most

        def useful(n: int) -> bool:
            params = make(n)
            use = self.evaluator.static(params)
            if use is None or not use.host.context:
                return use is not None
            if ram is not None and use.resident > ram * RAM_SHARE:
                return False
            speed = self.cost.predict(params, use)
            return n <= enough or 1 / speed.generation_full <= max(TOKEN_SECONDS, TOKEN_GROWTH / speed.generation)

        step = self.contexts.step
        enough = CONTEXTS[0] * (step // 256)
        first = least // step
        if most <= least or useful(most):
            return most
        count = last(0, most // step - first, lambda n: useful((first + n) * step))
        return max(least, (first + count) * step)

    def _split_with_more_context(self, candidate: Candidate, given: Params) -> Params | None:
        """These flags with a split that allows at least 25 % more context at the same speed, or None."""
        span, own, here = self.contexts, candidate.params, candidate.breakdown.n_ctx
        if (own.tensor_split is None or not is_free(self.evaluator, given) or span.most is None
                or any(buffer != HOST for _, buffer in own.overrides)):
            return None
        grid = [n for quarters in (5, 6, 8, 12, 16, 32, 64) if (n := here * quarters // 4) <= span.most]
        limit = self.cost.speed(candidate).request * (1 + 1e-9)
        shapes = [replace(own, tensor_split=None, n_ctx=n) for n in grid]
        found = last(-1, len(shapes) - 1, lambda i: self.split.lower_bound(shapes[i]) <= limit)
        split = None if found < 0 else self.split.partition(shapes[found])
        return None if split is None or split == own.tensor_split else replace(own, tensor_split=split)

    def _with_larger_micro_batch(self, found: Candidate, params: Params) -> Candidate:
        """`found`, or the same kind of placement with a larger micro-batch if that makes the request faster:
        weights in RAM are copied to the GPU once per micro-batch, and serve more tokens each time."""
        if not self._micro_batch_is_open(params) or not self.cost.copies(found):
            return found
        best = found
        for size in MICRO_BATCHES:
            larger = replace(params, n_ctx=self.contexts.least, n_ubatch=size, n_batch=max(N_BATCH, size))
            limit = self.cost.speed(best).request / BATCH_GAIN
            if self._promise(best, larger) >= limit:
                continue
            candidate = self._alike(best, larger)
            if candidate is not None and candidate.fits and self.cost.speed(candidate).request < limit:
                best = candidate
        return best

    def _micro_batch_is_open(self, params: Params) -> bool:
        return params.n_ubatch is None and params.n_batch is None and not params.embedding \
            and not params.reranking and self.policy.strategy != "layers"

    def _with_free_micro_batch(self, found: Candidate, params: Params) -> Candidate:
        """`found`, or the same placement of a mixture with a larger micro-batch, whose experts serve more tokens
        each time they are read: in the memory that is left, or that context above 32k per sequence would take."""
        use = found.breakdown
        enough = CONTEXTS[0] * (self.contexts.step // 256)
        if not self.model.hparams.n_expert or not self._micro_batch_is_open(params):
            return found
        may_shrink = use.n_ctx > enough and not self.contexts.fixed and self.policy.n_ctx != "max"
        best = found
        for size in MICRO_BATCHES:
            shape, now = replace(found.params, n_ubatch=size, n_batch=max(N_BATCH, size)), self.cost.speed(best).request
            seconds = self.cost.predict(shape, replace(use, n_ubatch=size, n_batch=max(N_BATCH, size))).request
            if seconds * FREE_GAIN >= now:
                continue
            candidate = self.evaluator.candidate(shape, self.fidelity)
            if candidate is not None and not candidate.fits and may_shrink and seconds * BATCH_GAIN < now:
                make = partial(_with_context, shape)
                candidate = largest_context(self.evaluator, make, enough, use.n_ctx, self.contexts.step, self.fidelity,
                                            candidate)
            if candidate is not None and candidate.fits and self.cost.speed(candidate).request < now:
                best = candidate
        return best

    def _with_nearly_free_context(self, found: Candidate, params: Params) -> Candidate:
        """`found`, or the same kind of placement with a context that costs a few per cent of the request's
        time."""
        price = MIXTURE_PRICE if self.model.hparams.n_expert else CONTEXT_PRICE
        use, limit = found.breakdown, self.cost.speed(found).request * price
        streams = use.n_ctx // max(1, use.n_ctx_seq)
        if not self._pays_for_context() or not found.params.n_gpu_layers:
            return found
        for wanted in CONTEXTS:
            n_ctx = wanted * streams
            at = replace(params, n_ctx=n_ctx, n_ubatch=found.params.n_ubatch, n_batch=found.params.n_batch)
            if not use.n_ctx < n_ctx <= (self.contexts.most or 0) or self._promise(found, at) > limit:
                continue
            candidate = self._alike(found, at)
            if candidate is not None and candidate.fits and self.cost.speed(candidate).request <= limit:
                self._pay(found, candidate)
                return candidate
        return found

    def _with_experts_for_context(self, found: Candidate, params: Params) -> Candidate:
        """`found`, a mixture with all layers on the GPUs, or with experts of some layers in RAM for a context that
        costs a few per cent of the request's time."""
        use, limit = found.breakdown, self.cost.speed(found).request * MIXTURE_PRICE
        streams = use.n_ctx // max(1, use.n_ctx_seq)
        if not self.model.hparams.n_expert or self.contexts.fixed or not self._pays_for_context() \
                or self.policy.n_ctx == "max" or self.policy.kv_types:
            return found
        for wanted in CONTEXTS:
            at = replace(params, n_ctx=wanted * streams)
            ladder = self.ladders.in_ram(at)
            if ladder is None or not use.n_ctx * LARGER <= wanted * streams <= (self.contexts.most or 0):
                continue
            shape = self.split.promising(ladder, ladder.top - 1)
            # part of a layer's experts may stay on the GPU
            if shape is None or self.cost.predict(replace(shape, overrides=shape.overrides[:-1]), use).request > limit:
                continue
            best = self.split.most(ladder)
            best = best and self.cost.fastest([best, *self._part_of_experts(ladder.base, best)])
            if best is not None and best.fits and self.cost.speed(best).request <= limit:
                self._pay(found, best)
                return self._grown(best)
        return found

    def _grown(self, found: Candidate) -> Candidate:
        """This placement with the largest context that fits."""
        return self.grow_context(partial(_with_context, found.params), below=found) or found

    def _pay(self, found: Candidate, candidate: Candidate) -> None:
        """Notes what a larger context costs."""
        price = self.cost.speed(candidate).request / self.cost.speed(found).request
        self.evaluator.paid[replace(candidate.params, n_ctx=None)] = found.breakdown.n_ctx, price

    def _pays_for_context(self) -> bool:
        """Whether a larger context may cost CONTEXT_PRICE: no given flag says which one is enough."""
        return self.policy.n_ctx_min is None and self.policy.strategy != "layers"

    def _promise(self, found: Candidate, params: Params) -> float:
        """Seconds of the request with these flags' best placement of `found`'s kind, by the measurements so
        far: unknown graph buffers are assumed to be no larger."""
        rung, use = self.ladders.of(found.params, params), found.breakdown
        shape = replace(params, n_gpu_layers=found.params.n_gpu_layers) if rung is None else self.split.promising(*rung)
        if shape is None:
            return float("inf")
        n_ctx = params.n_ctx or use.n_ctx
        return self.cost.predict(shape, replace(
            use, n_ctx=n_ctx, n_ctx_seq=use.n_ctx_seq * n_ctx // use.n_ctx,
            n_ubatch=params.n_ubatch or N_UBATCH, n_batch=params.n_batch or N_BATCH)).request

    def _alike(self, found: Candidate, params: Params) -> Candidate | None:
        """These flags' best placement of `found`'s kind."""
        rung = self.ladders.of(found.params, params)
        if rung is None:
            return self.evaluator.candidate(replace(params, n_gpu_layers=found.params.n_gpu_layers),
                                            self.fidelity)
        alike = self.split.most(rung[0])
        if alike is None or not self.model.hparams.n_expert:
            return alike
        return self.cost.fastest([alike, *self._part_of_experts(self.ladders.all_layers(params), alike)])

    # --- fully offloaded

    def _all_layers(self, params: Params, n_ctx: int | None) -> Params:
        return self.ladders.all_layers(replace(params, n_ctx=n_ctx))

    def _fully_offloaded(self, params: Params) -> Candidate | None:
        span = self.contexts
        largest = self.split.best(self._all_layers(params, span.most))
        if span.fixed or (largest is not None
                          and (not is_free(self.evaluator, params) or self.policy.n_ctx == "max")):
            return largest
        # more context may cost hops between GPUs, but no slower GPU (--ctx max takes that too)
        hops = (len(self.evaluator.machine.devices) - 1) * self.cost.hop(params.n_ubatch or N_UBATCH)
        bound = self.split.lower_bound(self._all_layers(params, span.least)) if largest is not None else 0.0
        if largest is not None and self.cost.speed(largest).request <= bound + hops < float("inf"):
            return largest
        smallest = self.split.best(self._all_layers(params, span.least))
        if smallest is None or span.least is None or span.most is None:
            return None
        limit = self.cost.speed(smallest).request * (1 + 1e-9) + hops
        if largest is not None and self.cost.speed(largest).request <= limit:
            return largest
        if not is_free(self.evaluator, params):
            return largest_context(self.evaluator, lambda n: self._all_layers(params, n), span.least,
                                   span.most,
                                   span.step, self.fidelity)
        if self.policy.n_ctx == "max":
            return self._context_by_split(params, smallest, span.most, float("inf"))
        found = smallest
        if self._pays_for_context():
            wanted = min(span.most, CONTEXTS[0] * (span.step // 256))
            found = self._context_by_split(params, smallest, wanted, limit * CONTEXT_PRICE)
            if self.cost.speed(found).request > limit:
                self._pay(smallest, found)
        return self._context_by_split(params, found, span.most, max(limit, self.cost.speed(found).request))

    def _context_by_split(self, params: Params, smallest: Candidate, most: int, limit: float) -> Candidate:
        """The largest context up to `most` of a fully offloaded launch whose request takes at most `limit`
        seconds; the split may change with the context. `smallest` is a launch with less."""
        step = self.contexts.step
        low, high, best = smallest.breakdown.n_ctx, most + step, smallest

        def promising(steps: int) -> bool:
            bound = self.split.lower_bound(self._all_layers(params, low + steps * step))
            return bound <= limit and bound != float("inf")

        failed = 0
        while high - low > max(step, low // 32):
            steps = last(0, (high - 1 - low) // step, promising)
            if not steps:
                break
            if failed > 1:       # what promises knows nothing of what is short: system memory, with a cache in it
                steps = min(steps, max(1, (high - low) // step // 2))
            guess = low + steps * step
            candidate = self.split.best(self._all_layers(params, guess))
            if candidate is None or self.cost.speed(candidate).request > limit:
                high, failed = guess, failed + 1
            else:
                low, best, failed = guess, candidate, 0
        shape = best.params
        found = largest_context(self.evaluator, lambda n: replace(shape, n_ctx=n), low, most, step,
                                self.fidelity)
        return found or best

    # --- partially offloaded

    def _partially_offloaded(self, params: Params, n_ctx: int | None) -> Candidate | None:
        at = replace(params, n_ctx=n_ctx)
        found: list[Candidate] = []
        finer = self.policy.strategy != "layers" and not params.overrides
        in_ram = self.ladders.in_ram(at)
        if in_ram is not None and in_ram.kind == "experts":
            found += self._experts(at, in_ram)
        ladder = self.ladders.layers(at)
        layers = None if ladder is None or self._whole_layers_dominated(ladder, found) else self.split.most(ladder)
        if layers is not None:
            found.insert(0, layers)
        if in_ram is not None and in_ram.kind == "ffn":
            found += self._feed_forward(in_ram, layers)
        if finer and not self.ladders.literal and not self._fit_is_covered(layers):
            found += self._fit_candidates(at, found)
        fitting = [candidate for candidate in found if candidate.fits]
        if fitting:
            return self._or_none(at, self.cost.fastest(fitting))
        if self.ladders.literal:
            return self.evaluator.candidate(at, self.fidelity)
        return self.least_bad(found, at if finer else None) or \
            self.evaluator.candidate(replace(at, n_gpu_layers=0), self.fidelity)

    def least_bad(self, found: list[Candidate], params: Params | None = None) -> Candidate | None:
        """If nothing fits in system memory: the fastest launch whose shortfall does not exceed that of
        --fit's for `params`. If none keeps the devices' margins, the first one."""
        limited = self.evaluator.machine.ram is not None
        rival = fit(self.evaluator, params, self.fidelity) if params and limited else None
        on_devices = [candidate for candidate in (*found, rival) if candidate is not None
                      and candidate.fits_devices]
        if rival is not None and rival.fits_devices:
            on_devices = [candidate for candidate in on_devices if candidate.ram_missing <= rival.ram_missing]
        return self.cost.fastest(on_devices) if on_devices else found[0] if found else None

    def _or_none(self, params: Params, best: Candidate) -> Candidate:
        """The best launch, or one without layers on the GPUs if that is faster: in small models, launching
        the kernels costs more than reading the layers."""
        if self.ladders.literal or best.params.n_gpu_layers == 0:
            return best
        bare = replace(params, n_gpu_layers=0)
        if self.cost.predict(bare, best.breakdown).request >= self.cost.speed(best).request:
            return best
        candidate = self.evaluator.candidate(bare, self.fidelity)
        return best if candidate is None or not candidate.fits else self.cost.fastest([best, candidate])

    def _whole_layers_dominated(self, ladder: Ladder, found: list[Candidate]) -> bool:
        """Whether an optimistic bound for whole-layer offload (half of the overheads) is already slower than
        the best candidate."""
        fitting = [candidate for candidate in found if candidate.fits]
        if not fitting:
            return False
        limits = self.evaluator.machine.limits
        space = sum(limits.values()) - sum(fitting[0].overheads(limits).values()) // 2

        def possible(count: int) -> bool:
            static = self.evaluator.static(ladder(count))
            return static is not None and sum(usage.total for usage in static.devices.values()) <= space

        bound = self.cost.predict(ladder(last(0, ladder.top, possible)), fitting[0].breakdown)
        # llama.cpp's own split, which is predicted here, need not be the fastest
        alike = len({self.cost.devices[name] for name in fitting[0].spare}) == 1
        best = self.cost.speed(self.cost.fastest(fitting)).request
        return bound.request > best * (1 if alike else PRUNE_FACTOR)

    def _fit_candidates(self, params: Params, known: list[Candidate]) -> list[Candidate]:
        """What is faster than these by --fit's rules: with our margins, with its own, or with smaller graph
        buffers than it measures, if that still fits. Nothing if even that is no faster."""
        given = self.given if self.given.n_ctx is not None else replace(params, n_gpu_layers=None)
        found: list[Candidate] = []
        fitting = [candidate for candidate in known if candidate.fits]

        def measured(shape: Params | None, gain: float = 1.0) -> Candidate | None:
            """The candidate for a shape that is predicted faster than everything that fits so far."""
            if shape is None:
                return None
            if fitting:
                best = self.cost.fastest(fitting)
                if self.cost.predict(shape, best.breakdown).request * gain >= self.cost.speed(best).request:
                    return None
            candidate = self.evaluator.candidate(shape, self.fidelity)
            if candidate is not None and candidate.fits and not overrides.overrides_rpc(candidate) \
                    and len(shape.tensor_split or ()) <= MOST_SHARES:
                found.append(candidate)
                fitting.append(candidate)
            return candidate

        if fitting:
            limits = self.evaluator.machine.limits
            overheads = self.cost.fastest(fitting).overheads(limits)
            for _ in range(4):
                candidate = measured(fit_with_overheads(self.evaluator, given, overheads, limits), PARTS_GAIN)
                if candidate is None or candidate.fits:
                    break
                grown = candidate.overheads(limits)
                overheads = {**overheads,
                             **{name: max(size, overheads.get(name, 0)) for name, size in grown.items()}}
            compute: dict[str, int] = {}
            for _ in range(4):
                candidate = measured(fit_with_overheads(self.evaluator, given, compute))
                if candidate is None:
                    return found
                # it might win with such small buffers: try buffers close to its real ones
                if not candidate.fits:
                    compute = {name: usage.compute * 31 // 32
                               for name, usage in candidate.breakdown.devices.items()}
        measured(fit_estimated(self.evaluator, given, self.fidelity))
        return found

    def _fit_is_covered(self, layers: Candidate | None) -> bool:
        """--fit's search space is a subset of what was already tried: whole layers on one device, with a
        margin that is no smaller."""
        if layers is None or self.model.hparams.n_expert or len(layers.spare) != 1:
            return False
        (name, parts), = layers.margins.items()
        target = (self.given.fit_target or (FIT_PARAMS_TARGET,))[0] << 20
        device = next(device for device in self.evaluator.machine.devices if device.name == name)
        return sum(size for _, size in parts) + device.free - self.evaluator.machine.limits[name] <= target

    def _experts(self, params: Params, ladder: Ladder) -> list[Candidate]:
        """The experts of as few leading layers as possible in RAM, then part of one of those layers back on
        the GPU."""
        found = self.split.most(ladder)
        if found is None:
            bare = self.ladders.bare(params)
            less = None if bare is None else self.split.most(bare)
            return [] if less is None else [less]
        return [found, *self._part_of_experts(ladder.base, found)]

    def _part_of_experts(self, base: Params, found: Candidate) -> list[Candidate]:
        """`found`, with as many matrices as fit of the last layer whose experts are in RAM moved back to the
        GPU."""
        rules = found.params.overrides[len(base.overrides):]
        count = len(rules)
        if not rules or rules[0][0] == EXPERTS_REGEX:
            return []
        shape = replace(overrides.with_experts_on_host(base, count - 1),
                        tensor_split=found.params.tensor_split)
        for params in overrides.with_part_of_experts_on_host(self.model, shape, count - 1):
            use = self.evaluator.static(params)
            if use is None or any(use.devices[name].model - found.breakdown.devices[name].model > spare
                                  for name, spare in found.spare.items()):
                continue
            candidate = self.evaluator.candidate(params, self.fidelity)
            if candidate is not None and candidate.fits_devices:
                return [candidate]
        return []

    def _feed_forward(self, ladder: Ladder, layers: Candidate | None) -> list[Candidate]:
        """FFN weights of the leading layers in RAM; attention and cache of all layers on the GPU."""
        found = self.split.most(ladder)
        if found is None:
            return []
        # the riskier placement must be faster by more than the error of comparisons of its kind
        speed = self.cost.speed(found)
        if layers is not None and layers.fits and \
                speed.request * self.cost.doubt(speed) > self.cost.speed(layers).request:
            return []
        return [found]
