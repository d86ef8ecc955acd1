"""Layers over several unequal devices: the fastest tensor split that fits, and the most layers that have one."""

from __future__ import annotations

from ...flags.params import N_UBATCH
from ...records import replace
from ...work.speed import layer_devices
from .bisection import FIRST_GUESS, largest_count, last
from .partition import best_partition, even_partition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...flags.params import Params
    from ...work.speed import CostModel
    from ..evaluate import Candidate, Evaluator, Fidelity
    from .ladder import Ladder


class TensorSplit:
    """Splits of one model over one machine's devices, measured at one fidelity.

    `measured` has, by context and micro-batch, the overheads in bytes per device (graph buffers, margin, extras) as
    last measured: they predict which splits can fit. `idle` has, by the same and the device, the least overhead of a
    device without any layers (op offload).
    """

    def __init__(self, evaluator: Evaluator, cost: CostModel, fidelity: Fidelity) -> None:
        self.evaluator, self.cost, self.fidelity = evaluator, cost, fidelity
        self.everything = evaluator.model.hparams.n_layer_all + 1
        self.measured: dict[tuple[int, int], dict[str, int]] = {}
        self.idle: dict[tuple[tuple[int, int], str], int] = {}

    def best(self, params: Params, default_first: bool = True, ram: bool = True) -> Candidate | None:
        """These flags with the fastest split that fits, llama.cpp's default included; None where none fits.

        `default_first`: where nothing was measured yet, llama.cpp's default is tried before the best by a guess. `ram`:
        system memory must suffice too."""
        free = is_free(self.evaluator, params)
        if not self.evaluator.may_fit(params, any_split=free):
            return None
        if not free:
            return self._kept(self.evaluator.candidate(params, self.fidelity), ram)
        if self.measured or not default_first:
            found = self._refined(params, ram)
            if found is not None:
                return found
            if self.measured and self._default_cannot_fit(params):
                return None
        default = self.evaluator.candidate(params, self.fidelity)       # llama.cpp's own split, by free memory
        if default is None:
            return None
        self._record(default, trusted=True)
        if _fits(default, ram) and self.lower_bound(params) >= self.cost.speed(default).request:
            return default
        found = self._refined(params, ram)
        fitting = [candidate for candidate in (default, found) if candidate is not None and _fits(candidate, ram)]
        return self.cost.fastest(fitting) if fitting else None

    def most(self, make: Ladder) -> Candidate | None:
        """The launch with the largest count that fits on the devices, with the best split where there is one to
        choose."""
        top = make.top
        if not is_free(self.evaluator, make(top)):
            return self._kept(largest_count(self.evaluator, make, top, self.fidelity, self.overheads(make(top))),
                              ram=False)
        best = self.best(make(top), ram=False)
        if best is not None:
            return best
        low, high, steps, near = -1, top, 0, -1
        while low + 1 < high:
            guess = (low + high) // 2
            if steps < 4:
                guess = near = last(low, high - 1, lambda count: self.partition(make(count)) is not None, near)
            guess = min(max(guess, low + 1), high - 1)
            candidate = self.best(make(guess), default_first=False, ram=False)
            if candidate is None:
                high = guess
            else:
                low, best = guess, candidate
            steps += 1
        return best

    def promising(self, make: Ladder, near: int) -> Params | None:
        """The launch with the largest count, perhaps `near`, that should fit by the overheads measured so far; None
        where none should. Nothing is measured."""
        found: dict[int, Params | None] = {-1: None}

        def fits(count: int) -> bool:
            found[count] = self._should_fit(make(count))
            return found[count] is not None

        return found[last(-1, make.top, fits, near)]

    def _should_fit(self, params: Params) -> Params | None:
        """These flags, with a split where there is one to choose, if they should fit."""
        if is_free(self.evaluator, params):
            split = self.partition(params)
            return None if split is None else replace(params, tensor_split=split)
        use, limits = self.evaluator.static(params), self.evaluator.machine.limits
        fits = use is not None and all(
            usage.total + self.overheads(params).get(name, 0) <= limits[name]
            for name, usage in use.devices.items() if usage.total)
        return params if fits else None

    def lower_bound(self, params: Params) -> float:
        """Seconds of the reference request with the fastest split that should fit by the overheads measured so far;
        nothing is measured for it. Infinite where none should. With a smaller context than any so far half of them may
        do."""
        overheads = self.overheads(params)
        if self.measured and self._smaller(params):
            overheads = {name: size // 2 for name, size in overheads.items()}
        split, static = self.partition(params, overheads), self.evaluator.static(params)
        if split is None or static is None:
            return float("inf")
        return self.cost.predict(replace(params, tensor_split=split), static).request

    def overheads(self, params: Params) -> dict[str, int]:
        """Bytes per device measured with this context and micro-batch, or interpolated from the two nearest to it: most
        of it is the same for all, the rest grows with both."""
        if not self.measured:
            return dict.fromkeys(self.evaluator.machine.limits, FIRST_GUESS)
        n_ctx, n_ubatch = _point(params)

        def at(size: int) -> dict[str, int]:
            return _on_line(n_ctx, {ctx: known for (ctx, other), known in self.measured.items() if other == size})

        return _on_line(n_ubatch, {size: at(size) for _, size in self.measured})

    def partition(self, params: Params, overheads: Mapping[str, int] | None = None) -> tuple[float, ...] | None:
        """The fastest split that should fit by the overheads measured so far (or by these), as layers per device."""
        layers = self.evaluator.layers(params)
        count = params.layers_wanted(self.everything)
        if layers is None or not count:
            return None
        n_ctx, n_ubatch = _point(params)
        limits = self.evaluator.machine.limits
        if any(size > limits[name] for ((ctx, least), name), size in self.idle.items()
               if ctx <= n_ctx and least <= n_ubatch):
            return None
        cached = params.kv_offload is not False
        sizes = [usage.model + (usage.context if cached else 0) for usage in layers[-count:]]
        names = self.evaluator.device_names(params)
        overheads = self.overheads(params) if overheads is None else overheads
        capacities = [limits[name] - overheads.get(name, 0) for name in names]
        costs = self.cost.layer_seconds(params, n_ctx or 1 << 60)
        seconds = [costs[name][-count:] for name in names]
        visits = [self.cost.visits(name, n_ubatch) for name in names]
        splits = [best_partition(sizes, seconds, capacities, self.cost.hop(n_ubatch), visits)]
        if splits[0] is None:
            return None
        if self._pipelined(params):
            splits.append(even_partition(sizes, seconds, capacities))
        found = [tuple(map(float, split)) for split in dict.fromkeys(splits) if split is not None]
        static = self.evaluator.static(params)
        if len(found) == 1 or static is None:
            return found[0]
        return min(found, key=lambda split: self.cost.predict(replace(params, tensor_split=split), static).request)

    def _pipelined(self, params: Params) -> bool:
        """Whether prompts may overlap on several devices, so that an even split may be the fastest."""
        static = self.evaluator.static(params)
        return static is not None and self.cost.clock(params, static).pipelined

    def _refined(self, params: Params, ram: bool) -> Candidate | None:
        """The split that is best by the known overheads, corrected by what is measured until it fits and no other
        is predicted faster."""
        seen: set[tuple[float, ...]] = set()
        best: Candidate | None = None
        for _ in range(6):
            split = self.partition(params)
            if split is None or split in seen:
                break
            seen.add(split)
            shape = replace(params, tensor_split=split)
            if best is not None and self.cost.predict(shape, best.breakdown).request >= self.cost.speed(best).request:
                break
            candidate = self.evaluator.candidate(shape, self.fidelity)
            if candidate is None:
                break
            self._record(candidate, trusted=candidate.fits_devices)
            if _fits(candidate, ram):
                best = candidate
        return best

    def _default_cannot_fit(self, params: Params) -> bool:
        """Whether llama.cpp's own split is far from fitting, by what was measured so far."""
        if self._smaller(params):
            return False
        use = self.evaluator.static(params)
        return use is None or any(
            use.devices[name].total + size * 3 // 4 > self.evaluator.machine.limits[name]
            for name, size in self.overheads(params).items() if use.devices[name].total)

    def _kept(self, candidate: Candidate | None, ram: bool) -> Candidate | None:
        """A launch without a split to choose if it fits; its overheads are recorded."""
        if candidate is None or not _fits(candidate, ram):
            return None
        self._record(candidate, trusted=True)
        return candidate

    def _record(self, candidate: Candidate, trusted: bool) -> None:
        """Record a launch's overheads; of one that is not `trusted` (it does not fit) only those that grew, which
        guarantees that the search ends. A device that a trusted launch does not use, last measured with more layers, is
        expected to need no more than those that it does use."""
        trusted = trusted or not self.measured
        point = _point(candidate.params)
        before = self.overheads(candidate.params)
        used = candidate.overheads(self.evaluator.machine.limits)
        most = max(used.values()) if trusted and used else None
        known = self.measured[point] = {name: size if most is None else min(size, most)
                                        for name, size in before.items()}
        for name, size in used.items():
            known[name] = size if trusted else max(size, before.get(name, 0))
            if not candidate.breakdown.devices[name].model:
                self.idle[point, name] = min(size, self.idle.get((point, name), size))

    def _smaller(self, params: Params) -> bool:
        """Whether this context is smaller than any that was measured: much less may be needed then."""
        return (params.n_ctx or 0) < min(ctx for ctx, _ in self.measured)


def _point(params: Params) -> tuple[int, int]:
    return params.n_ctx or 0, params.n_ubatch or N_UBATCH


def _on_line(x: int, known: dict[int, dict[str, int]]) -> dict[str, int]:
    """Sizes at x on the line through the two known ones that are nearest to it; the known one where there is no
    other."""
    order = sorted(known, key=lambda other: abs(other - x))
    near = known[order[0]]
    if len(order) == 1 or order[0] == x:
        return near
    far, part = known[order[1]], (x - order[0]) / (order[1] - order[0])
    return {name: max(0, size + int((far.get(name, size) - size) * part)) for name, size in near.items()}


def _fits(candidate: Candidate, ram: bool) -> bool:
    return candidate.fits if ram else candidate.fits_devices


def is_free(evaluator: Evaluator, params: Params) -> bool:
    """Whether there is a split to choose: several devices, whole layers, nothing given."""
    return (len(evaluator.machine.devices) > 1 and params.tensor_split is None
            and params.split_mode in (None, "layer") and len(evaluator.device_names(params)) > 1)


def explicit_split(evaluator: Evaluator, params: Params) -> Params:
    """The flags with llama.cpp's own split replaced by layer counts: free memory may change before the launch."""
    if params.n_gpu_layers == 0 or not is_free(evaluator, params):
        return params
    where = layer_devices(evaluator.placement(params))
    return replace(params, tensor_split=tuple(float(where.count(name)) for name in evaluator.device_names(params)))
