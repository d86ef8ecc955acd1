"""What can be launched in a frame (frames.py): the kinds of placement, each with one micro-batch.

A Kind knows, without measuring, the largest part of the model that should be on the devices for a
context, and the largest context for that placement: by bytes of layers, and by the graph buffers
and margins measured so far.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right

from ..backends import HOST, backend_of
from ..flags.kinds import MOST_SHARES
from ..flags.params import N_BATCH, N_UBATCH
from ..memory.context import CELL_BLOCK
from ..records import dataclass, lazy, replace
from ..work.speed import layer_devices
from .buffers import Buffers
from .evaluate import RAM_MARGIN
from .one import overrides
from .one.bisection import last
from .one.ladder import Ladder
from .one.partition import best_partition, even_partition, explicit_split, shared, short
from .prices import ENOUGH, is_part, of_context, worth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..flags.params import Params
    from ..memory.breakdown import Static, Usage
    from .buffers import Needs, Point
    from .evaluate import Candidate
    from .frames import Frame

RAM_SHARE = 7 / 8  # of the system memory that a launch may take, if the processor takes part
# promises that did not fit, after which no part of a layer is tried, then a layer less
PATIENCE = 3


@dataclass(frozen=True)
class PromisedLaunch:
    """Flags that should fit on the devices, what they take without graph buffers, and their worth
    in seconds. `ram_missing`: bytes of system memory."""

    params: Params
    use: Static
    worth: float
    ram_missing: int = 0

    @property
    def rank(self) -> tuple[bool, float]:
        """First what system memory is large enough for, then what is worth most."""
        return self.ram_missing > 0, self.worth


class PlacementKind:
    """One kind of placement in a frame, with one micro-batch."""

    def __init__(
        self,
        frame: Frame,
        name: str,
        shape: Params,
        buffers: Buffers,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """`limits`: bytes of the devices, if others take some of their memory."""
        self.frame = frame
        self.name = name
        self.shape = shape
        self.buffers = buffers
        self.problem = frame.problem
        self.evaluator = frame.evaluator
        self.cost = frame.cost
        self.limits = limits or self.evaluator.machine.limits
        # By context: what each layer takes on a device, with all weights and with those in RAM left
        # out.
        self._sizes: dict[int | None, tuple[list[Usage], list[Usage]]] = {}
        # By context, failed promises, hope and version of the buffers.
        self._launches: dict[object, PromisedLaunch | None] = {}
        self.hope = 0  # bytes that launches may take more than they should
        # promises in a row that did not fit: the next ones are made with more care
        self.failed = 0

    def with_micro_batch(self, size: int) -> PlacementKind:
        """Return the same with another micro-batch."""
        shape = replace(self.shape, n_ubatch=size, n_batch=max(N_BATCH, size))
        return PlacementKind(self.frame, self.name, shape, self.buffers)

    def whole(self, params: Params) -> bool:
        """Return whether all layers and their weights are on the devices."""
        own = len(self.frame.given.overrides)
        return (
            len(params.overrides) == own
            and params.layers_wanted(self._everything) == self._everything
        )

    def ladder(self, n_ctx: int | None) -> Ladder:
        """Return the launches of this kind at a context, by the number of layers on the devices."""
        at = replace(self.shape, n_ctx=n_ctx)
        ladders = self.frame.ladders
        if self.name in ("experts", "ffn"):
            return ladders.finer(at)
        return ladders.without_finer(at) if self.name == "bare" else ladders.whole(at)

    def point(self, params: Params) -> Point:
        """Return what graph buffers depend on."""
        kind = self.name
        chosen = params.overrides[len(self.frame.given.overrides) :]
        if self.whole(params):
            # Nothing in RAM: graph buffers are the same whatever the kind is called.
            kind = "whole"
        elif chosen and is_part(*chosen[-1]):
            kind = f"part of {kind}"
        elif len(chosen) >= self.frame.ladders.n_layer:
            kind = f"all {kind}"
        n_ctx = params.n_ctx or self.evaluator.model.n_ctx_train
        return self.frame.key, kind, n_ctx, params.n_ubatch or N_UBATCH

    @lazy
    def _everything(self) -> int:
        return self.frame.ladders.everything

    # --- the launch that should fit

    def promise(self, n_ctx: int | None, failed: int = 0, hope: int = 0) -> PromisedLaunch | None:
        """Return the launch with the most on the devices that should fit with this context, and
        then the largest context that this placement should have; None if none should fit. With more
        care after as many promises as `failed`; with some `hope`: bytes that it may take more."""
        # The version: a promise is made again once more is known.
        key = n_ctx, failed, hope, self.buffers.version
        if key not in self._launches:
            self.failed = failed
            self.hope = hope
            best: PromisedLaunch | None = None
            # A smaller context or micro-batch did not fit the buffers of this frame.
            full = self.buffers.rules_out(self.point(replace(self.shape, n_ctx=n_ctx)))
            for params in () if full else self._placed(n_ctx):
                if best is not None and not self._may_beat(params, best):
                    continue
                grown = self._grown(params)
                if grown is not None and (best is None or grown.rank < best.rank):
                    best = grown
            self._launches[key] = best
        return self._launches[key]

    def _may_beat(self, params: Params, best: PromisedLaunch) -> bool:
        """Return whether a launch may be worth more with all the context that can be wanted."""
        use = self.evaluator.static(params)
        if use is None:
            return False
        price = of_context(self.problem, use.n_ctx_seq)[1]
        return best.ram_missing > 0 or worth(self.problem, params, use) < best.worth * price

    def _placed(self, n_ctx: int | None) -> Iterator[Params]:
        at = replace(self.shape, n_ctx=n_ctx)
        if self.name == "none":
            yield replace(at, n_gpu_layers=0)
            return
        if self.name == "given":
            yield from self._as_given(at)
            return
        ladder = self.ladder(n_ctx)
        placed = self._most(ladder)
        if placed is None:
            return
        # The most on the devices is nearly always the fastest, so only that is promised.
        count, params = placed
        yield params
        if self.name == "layers" and count > 1 and at.kv_offload is False:
            # their caches stay in RAM, so layers may be slower there than the output alone
            output = self.divided(ladder, 1)
            yield from filter(None, [output])
        # After PATIENCE failures whole layers are safer than parts.
        if self.name == "experts" and count < ladder.top and self.failed <= PATIENCE:
            # The launch with as many matrices as should fit of one more layer's experts, the
            # others in RAM or on another device
            next_layer = ladder.next_layer(count)
            if next_layer is not None:
                # One layer more than fits; parts of it go elsewhere until it does.
                less = replace(ladder(count + 1), tensor_split=params.tensor_split)
                for shape, layer in dict.fromkeys(self._with_one_more(less, next_layer)):
                    matrices = overrides.expert_matrices(self.evaluator.model, layer)
                    # The most matrices on the device come first, so the first part that should fit
                    # is the answer.
                    stays = range(len(matrices) - 1, 0, -1)
                    on_host = (
                        overrides.with_matrices_in(shape, layer, matrices, n, HOST) for n in stays
                    )
                    yield from itertools.islice(filter(self._should_fit, on_host), 1)
                    yield from self._with_matrices_elsewhere(ladder, count, shape, layer)

    def launch(self, params: Params) -> PromisedLaunch | None:
        """Return a launch, whether it should fit or not."""
        use = self.evaluator.static(params)
        return None if use is None else self._launch(params, use)

    def _as_given(self, at: Params) -> Iterator[Params]:
        """Yield these layers with llama.cpp's own split, or with another one if only that should
        fit."""
        own = self.frame.ladders.literal and at.n_gpu_layers is not None
        # A given number is used as it is; otherwise all that may be on devices.
        params = at if own else self.frame.ladders.all_layers(at)
        layers = params.layers_wanted(self._everything)
        ladder = self.frame.ladders.whole(at)
        divisible = self.frame.splits and layers and self._sized(ladder)
        # llama.cpp's own split is left alone while it should fit.
        if not divisible or (not self.failed and self._should_fit(params)):
            yield params
            return
        divided = self.divided(ladder, layers)
        # A given number stays as it was written, e.g. 99 of 33 layers.
        yield params if divided is None else replace(divided, n_gpu_layers=params.n_gpu_layers)

    def _most(self, ladder: Ladder) -> tuple[int, Params] | None:
        """Return the largest count that should fit, and the launch with its split."""
        top = ladder.top
        if self.name == "layers" and self.frame.ladders.in_ram(ladder.base) is not None:
            top -= 1  # all layers are the top of the finer ladder
        # Without any layer it would be the kind "none".
        lowest = 1 if self.name in ("layers", "bare") else 0
        lowest = ladder.top if self.frame.whole else lowest
        # A given split or rules of devices: sizes of single layers say nothing.
        if not self._divides(ladder):
            # The same where flags decide how layers or matrices are divided.
            # The top first: it is usual, and has buffers of its own.
            if lowest <= top and self._should_fit(ladder(top)):
                return top, ladder(top)
            count = last(lowest - 1, top - 1, lambda count: self._should_fit(ladder(count)))
            return None if count < lowest else (count, ladder(count))
        # After several failures one layer less, then two ...
        bound = self._at_most(ladder, top) - max(0, self.failed - PATIENCE - 1)
        # A bound by all memory together; which device holds what is decided for each count.
        for count in range(max(lowest, bound), lowest - 1, -1):
            params = self.divided(ladder, count)
            if params is not None:
                return count, params
        return None

    def divided(self, ladder: Ladder, count: int, needs: Needs | None = None) -> Params | None:
        """Return the launch with the fastest split that should fit beside what it `needs`, by
        default what is expected; None if none should. Where flags name a device for tensors,
        llama.cpp's own; or the given one."""
        if not self._divides(ladder):
            own = explicit_split(self.evaluator, ladder(count))
            return own if self._should_fit(own) else None
        split = self._split(ladder, count, needs or self.buffers.at(self.point(ladder(count))))
        if not split:
            return None if split is None else ladder(count)
        return shared(self.evaluator, ladder(count), split)

    def _at_most(self, ladder: Ladder, top: int) -> int:
        """Return a bound of the count, by the memory of all devices together."""

        # A device that lacks room for its buffers does not take room from the others.
        def room(count: int) -> int:
            needs = self.buffers.at(self.point(ladder(count)))
            least = [min(needs.layers[name], needs.alone[name]) for name in self.frame.names]
            if len(self.frame.names) == 1:
                least = [needs.output[name] for name in self.frame.names]
            rooms = map(self._room, self.frame.names, least)
            return sum([max(0, space) for space in rooms])

        # With everything on devices the graph buffers are others.
        if top == ladder.top and sum(self._bytes(ladder, top)) <= room(top):
            return top
        space = room(1)
        high = min(top, ladder.top - 1)
        return max(0, last(-1, high, lambda count: sum(self._bytes(ladder, count)) <= space))

    def _room(self, name: str, needed: int) -> int:
        """Return the bytes for layers on a device."""
        return self.limits[name] - needed + self.hope

    def _should_fit(self, params: Params) -> bool:
        use = self.evaluator.static(params)
        expected = self._expected(params)
        return use is not None and all(
            usage.total <= self._room(name, expected[name])
            for name, usage in use.devices.items()
            if usage.total
        )

    def _expected(self, params: Params, n_ctx: int | None = None) -> dict[str, int]:
        """Return what a launch should take on each device besides its layers, at another context if
        one is given."""
        needs = self.buffers.at(
            self.point(params if n_ctx is None else replace(params, n_ctx=n_ctx))
        )
        last, alone = self._output(params)
        return {name: needs.of(name, last, alone) for name in self.limits}

    def _output(self, params: Params) -> tuple[str, bool]:
        """Return the device that has the output, and whether it has nothing else."""
        split = params.tensor_split or ()
        if not split or len(split) > len(self.frame.names):
            return (self.frame.names or ("",))[-1], False
        return self.frame.names[len(split) - 1], len(split) > 1 and split[-1] == 1

    # --- bytes and seconds of layers

    def _layers(self, ladder: Ladder) -> tuple[Sequence[Usage], Sequence[Usage]]:
        """Return what each layer takes on a device, the output last: with all of its weights, and
        with those in RAM that this kind leaves there; nothing where flags name a device for
        tensors."""
        n_ctx = ladder.base.n_ctx
        # Rules that name a device move tensors away from their layers' devices.
        if any(buffer != HOST for _, buffer in self.shape.overrides):
            return (), ()
        if n_ctx not in self._sizes:
            if self.evaluator.exhausted:
                return (), ()
            # From launches with everything and with nothing of this kind on devices, so that any
            # count is a mix of both.
            on = self.evaluator.layers(ladder(ladder.top)) or ()
            off = (
                self.evaluator.layers(ladder(0)) or () if ladder.kind in ("experts", "ffn") else on
            )
            self._sizes[n_ctx] = list(on), list(off)
        return self._sizes[n_ctx]

    def _sized(self, ladder: Ladder) -> bool:
        """Return whether the sizes of single layers say what launches take."""
        return bool(self._layers(ladder)[0])

    def _divides(self, ladder: Ladder) -> bool:
        """Return whether layers are divided by their sizes: no flag divides them."""
        return self._sized(ladder) and (self.frame.splits or len(self.frame.names) < 2)

    def _bytes(self, ladder: Ladder, count: int) -> list[int]:
        """Return the bytes of the layers that are on devices, in their order."""
        on, off = self._layers(ladder)
        # -nkvo: the caches are in RAM, wherever the layers are.
        cached = ladder.base.kv_offload is not False
        in_ram, layers = self._divided(ladder, count)
        # Layers on devices are the last ones, the output among them.
        rows = [*off[:in_ram], *on[in_ram:]][len(on) - layers :]
        return [row.model + row.context if cached else row.model for row in rows]

    def _divided(self, ladder: Ladder, count: int) -> tuple[int, int]:
        """Return (layers with a part in RAM, layers on devices)."""
        if ladder.kind in ("experts", "ffn"):
            return ladder.top - count, ladder.base.layers_wanted(self._everything)
        return 0, count

    def _seconds(self, ladder: Ladder, count: int) -> list[list[float]]:
        """Return the seconds of the same layers on each device."""
        # An unknown trained context: as if it were endless.
        n_ctx = ladder.base.n_ctx or self.evaluator.model.n_ctx_train or 1 << 60
        in_ram, layers = self._divided(ladder, count)

        def of(params: Params) -> dict[str, list[float]]:
            return self.cost.layer_seconds(
                # Seconds of layers do not depend on these, so more launches share the answer.
                replace(
                    params, n_ubatch=None, n_batch=None, device=None, split_mode=None, main_gpu=None
                ),
                n_ctx,
            )

        on = of(ladder(ladder.top))
        off = of(ladder(0)) if in_ram else on
        # The first layers are in RAM or lack their experts.
        start = self._everything - layers
        return [[*off[name][:in_ram], *on[name][in_ram:]][start:] for name in self.frame.names]

    def _split(self, ladder: Ladder, count: int, needs: Needs) -> tuple[float, ...] | None:
        """Return the fastest split of the layers that should fit; () on one device, or of none."""
        sizes = self._bytes(ladder, count)
        names = self.frame.names[:MOST_SHARES]
        if len(names) == 1 or not sizes:
            # One device has all of them: no split is written.
            return () if sum(sizes) <= self._room(names[0], needs.output[names[0]]) else None
        room, with_output, output_alone = (
            [self._room(name, sizes[name]) for name in names]
            for sizes in (needs.layers, needs.output, needs.alone)
        )
        params = ladder(count)
        where = layer_devices(self.evaluator.placement(params))
        own = tuple([where.count(name) for name in names])
        seconds = self._seconds(ladder, count)[: len(names)]
        n_ubatch = params.n_ubatch or N_UBATCH
        visits = [self.cost.visits(name, n_ubatch) for name in names]
        # A partition compares 300 pairs of layers in the time that a node of a graph takes.
        self.evaluator.spend(len(sizes) ** 2 * len(names) // 300)
        splits = [
            best_partition(
                sizes, seconds, room, self.cost.hop(n_ubatch), visits, (with_output, output_alone)
            )
        ]
        # llama.cpp's own, by free memory
        if count == ladder.top and self._holds(own, sizes, [*room[:-1], with_output[-1]]):
            splits.append(own)
        static = self.evaluator.static(params)
        if static is None or not any(splits):
            return None
        # A -ts of shares of bytes, not of numbers of layers
        of_bytes = self.evaluator.engine.shares_bytes
        # With pipelined prompts the slowest device decides, not the sum.
        if (
            splits[0] is not None
            and count == ladder.top
            and not of_bytes
            and self.cost.clock(params, static).pipelined
        ):
            splits.append(even_partition(sizes, seconds, [*room[:-1], with_output[-1]]))
        # The split with which a request takes least; of shares of bytes, and among devices alike,
        # the last one that is nearly as fast. Backwards: `next` then takes it.
        possible = [
            tuple(map(float, split)) if of_bytes else short(split)
            for split in dict.fromkeys(splits[::-1])
            if split is not None
        ]
        if len(possible) == 1:
            return possible[0]
        times = [
            self.cost.predict(shared(self.evaluator, params, split), static).compared
            for split in possible
        ]
        # Equal devices: people expect an even split, so it wins if it is nearly as fast.
        alike = len({(self.cost.devices[name].bandwidth, self.limits[name]) for name in names}) == 1
        limit = min(times) * (1.002 if alike or of_bytes else 1.0)
        return next(split for split, time in zip(possible, times, strict=True) if time <= limit)

    def _holds(self, split: Sequence[int], sizes: Sequence[int], room: Sequence[int]) -> bool:
        ends = [0, *itertools.accumulate(split)]
        return ends[-1] == len(sizes) and all(
            sum(sizes[first:end]) <= space
            for (first, end), space in zip(itertools.pairwise(ends), room, strict=True)
        )

    # --- parts of layers

    def _with_one_more(self, less: Params, layer: int) -> Iterator[tuple[Params, int]]:
        """Yield launches with one more layer's experts on a device, and that layer: the last one
        that has them in RAM, or the first one of a later device."""
        yield less, layer
        split = (less.tensor_split or ()) if self._movable else ()
        for device in range(1, len(split)):
            # The layer before the first one of this device, which it gets in addition.
            first = self._everything - int(sum(split)) + int(sum(split[:device])) - 1
            if split[device] and split[0] > 1 and first > layer:
                moved = [split[0] - 1, *split[1:]]
                moved[device] += 1
                yield replace(less, tensor_split=tuple(moved)), first
        if len(split) > 1:
            # The last device computes no attention, which leaves more room for experts.
            output_alone = (*split[:-2], split[-2] + split[-1] - 1, 1.0)
            yield replace(less, tensor_split=output_alone), layer

    @property
    def _movable(self) -> bool:
        """Whether layers and matrices may be on any device."""
        return self.frame.splits and not self.evaluator.engine.shares_bytes

    def _with_matrices_elsewhere(
        self, ladder: Ladder, count: int, shape: Params, layer: int
    ) -> Iterator[Params]:
        """Yield launches with matrices of a layer's experts on each other device, the fewest that
        should fit. Bytes are compared first. An RPC server's buffer has no name."""
        split = [int(n) for n in shape.tensor_split or ()]
        if not self._movable or not split:
            return
        matrices = overrides.expert_matrices(self.evaluator.model, layer)
        sizes = [*matrices.values()]
        ends = [*itertools.accumulate(split)]
        own = self.frame.names[bisect_right(ends, layer - (self._everything - ends[-1]))]
        parted = overrides.with_matrices_in(shape, layer, matrices, 0, HOST)
        # what the layers leave, divided at these ends
        buffers, layers = self._expected(parted), self._bytes(ladder, count + 1)
        left = {name: self._room(name, buffers[name]) for name in self.frame.names}
        for name, (start, end) in zip(
            self.frame.names, itertools.pairwise([0, *ends]), strict=False
        ):
            left[name] -= sum(layers[start:end])
        left[own] += sum(sizes)
        for name in self.frame.names:
            for n in range(len(sizes) - 1, -1, -1) if name != own else ():
                has_room = sum(sizes[:n]) <= left[own] and sum(sizes[n:]) <= left[name]
                part = overrides.with_matrices_in(shape, layer, matrices, n, name)
                if has_room and not backend_of(name).remote and self._should_fit(part):
                    yield part
                    break

    # --- context

    def _grown(self, params: Params) -> PromisedLaunch | None:
        """Return the launch with the largest context that should fit: caches grow evenly, but for
        windows."""
        smallest = use = self.evaluator.static(params)
        span = self.frame.contexts
        if use is None:
            return None
        if not span.open:
            return self._launch(params, use)
        low, high = use.n_ctx, span.open[1]
        # A cache in RAM is read by the CPU, slowly, so no more than 32k of it are chosen.
        if use.host.context and self.problem.policy.n_ctx != "max":
            high = max(low, min(high, ENOUGH * (span.step // CELL_BLOCK)))
        larger = self.evaluator.static(replace(params, n_ctx=high)) if high > low else None
        if larger is None:
            return self._launch(params, use)
        for _ in range(3):
            # After failures only a part of the way: what launches take was more than expected.
            # A third less of the way for each promise that did not fit.
            share = self._share(params, use, larger, low, high) * max(0.0, 1 - 0.34 * self.failed)
            guess = int(low + (high - low) * share) // span.step * span.step
            if guess >= high:
                low, use = high, larger
                break
            # Less than a percent more context is not worth another estimate.
            if guess <= low * 1.01:
                break
            middle = self.evaluator.static(replace(params, n_ctx=guess))
            if middle is None:
                break
            if self._share(params, middle, larger, guess, high) > 0:
                low, use = guess, middle
            else:
                high, larger = guess, middle
        return self._launch(params if use is smallest else replace(params, n_ctx=low), use)

    def _launch(self, params: Params, use: Static) -> PromisedLaunch:
        ram = self.evaluator.machine.ram
        in_ram = self.evaluator.ram_of(params, use)
        needed = RAM_MARGIN + in_ram + self.buffers.of_ram(self.point(params))
        return PromisedLaunch(
            params,
            use,
            worth(self.problem, params, use),
            0 if ram is None else max(0, needed - ram),
        )

    def _share(self, params: Params, use: Static, larger: Static, low: int, high: int) -> float:
        """Return which part of the way from one context to a larger one should fit; 0 if not even
        the first should."""
        first = self._share_at(params, use, larger, low)
        if first <= 0:
            return 0.0
        second = self._share_at(params, use, larger, low + int((high - low) * min(1.0, first)))
        return min(1.0, second if second > 0 else first / 4)  # graph buffers grow too

    def _share_at(self, params: Params, use: Static, larger: Static, n_ctx: int) -> float:
        """Return the same, with the graph buffers of one context."""
        frame, kind, _, n_ubatch = self.point(params)
        point = frame, kind, n_ctx, n_ubatch
        if self.buffers.rules_out(point):
            return 0.0
        expected = self._expected(params, n_ctx)
        share = 1.0
        for name, usage in use.devices.items():
            grows = larger.devices[name].total - usage.total
            left = self._room(name, expected[name]) - usage.total
            if usage.total and left <= 0:
                return 0.0
            # Caches grow evenly with the context, so the room divided by the growth is the part of
            # the way.
            if grows > 0:
                share = min(share, left / grows)
        ram = self.evaluator.machine.ram
        here = self.evaluator.ram_of(params, use)
        grows = self.evaluator.ram_of(params, larger) - here
        if ram is None or grows <= 0:
            share_of_ram = 1.0
        else:
            # The processor reads that cache: an eighth of the RAM stays free for everything else.
            if use.host.context and self.problem.policy.n_ctx != "max":
                ram = int(ram * RAM_SHARE)
            left = ram - RAM_MARGIN - self.buffers.of_ram(point) - here
            share_of_ram = max(0.0, left / grows)
        return min(share, share_of_ram)

    def record(self, candidate: Candidate) -> None:
        """Notes what a measured launch takes besides weights and caches."""
        static = self.evaluator.static(candidate.params)
        if static is None:  # the budget is spent: nothing more is promised
            return
        # Beyond what is known without a graph: mostly the CPU's graph buffers.
        in_all = self.evaluator.ram_of(candidate.params, candidate.breakdown)
        taken = in_all - self.evaluator.ram_of(candidate.params, static)
        output, alone = self._output(candidate.params) if len(self.frame.names) > 1 else ("", False)
        self.buffers.record(self.point(candidate.params), candidate, taken, output, alone)
