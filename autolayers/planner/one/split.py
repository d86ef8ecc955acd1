"""Layers over several unequal devices: the fastest tensor split that fits, and the most layers that
any split fits."""

from __future__ import annotations

from ...flags.kinds import MOST_SHARES
from ...flags.params import N_UBATCH
from ...records import replace
from ...work.speed import layer_devices
from ..overheads import ONE_MORE, Overheads
from .bisection import largest_count, last
from .partition import best_partition, even_partition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...flags.params import Params
    from ...work.speed import CostModel
    from ..evaluate import Candidate, Evaluator, Fidelity
    from .ladder import Ladder

PAIRS = 300  # of layers that a partition compares, as long as one node of a graph takes


class TensorSplit:
    """Splits of one model over one machine's devices, measured at one fidelity; `overheads` predict
    which ones can fit."""

    def __init__(self, evaluator: Evaluator, cost: CostModel, fidelity: Fidelity) -> None:
        self.evaluator, self.cost, self.fidelity = evaluator, cost, fidelity
        self.everything = evaluator.model.hparams.n_layer_all + 1
        self.overheads = Overheads(evaluator.machine.limits)
        self.of_output: dict[tuple[int | None, int | None, str], int] = {}

    def best(
        self, params: Params, default_first: bool = True, ram: bool = True
    ) -> Candidate | None:
        """These flags with the fastest split that fits, llama.cpp's default included; None if none
        fits.

        `default_first`: before anything is measured, try llama.cpp's default ahead of the best
        estimated split. `ram`: system memory must suffice too."""
        free = is_free(self.evaluator, params)
        if not self.evaluator.may_fit(params, any_split=free):
            return None
        if not free:
            return self._kept(self.evaluator.candidate(params, self.fidelity), ram)
        if self.overheads or not default_first:
            found = self._refined(params, ram)
            if found is not None:
                return found
            if self.overheads and self._default_cannot_fit(params):
                return None
        # llama.cpp's own split, by free memory
        default = self.evaluator.candidate(params, self.fidelity)
        if default is None:
            return None
        self.overheads.record(default, trusted=True)
        if _fits(default, ram) and self.lower_bound(params) >= self.cost.speed(default).request:
            return default
        found = self._refined(params, ram)
        fitting = [
            candidate
            for candidate in (default, found)
            if candidate is not None and _fits(candidate, ram)
        ]
        return self.cost.fastest(fitting) if fitting else None

    def most(self, make: Ladder) -> Candidate | None:
        """The launch with the largest count that fits on the devices, with the best split if there
        is one to choose."""
        top = make.top
        if not is_free(self.evaluator, make(top)):
            return self._kept(
                largest_count(
                    self.evaluator, make, top, self.fidelity, self.overheads.at(make(top))
                ),
                ram=False,
            )
        best = self.best(make(top), ram=False)
        if best is not None:
            return best
        low, high, steps, near = -1, top, 0, -1
        while low + 1 < high:
            guess = (low + high) // 2
            if steps < 4:
                guess = near = last(
                    low, high - 1, lambda count: self.partition(make(count)) is not None, near
                )
            guess = min(max(guess, low + 1), high - 1)
            candidate = self.best(make(guess), default_first=False, ram=False)
            if candidate is None:
                high = guess
            else:
                low, best = guess, candidate
            steps += 1
        return best

    def promising(self, make: Ladder, near: int) -> Params | None:
        """The launch with the largest count, perhaps `near`, that should fit by the overheads
        measured so far; None if none should. Measures nothing."""
        found: dict[int, Params | None] = {-1: None}

        def fits(count: int) -> bool:
            found[count] = self._should_fit(make(count))
            return found[count] is not None

        return found[last(-1, make.top, fits, near)]

    def _should_fit(self, params: Params) -> Params | None:
        """These flags, with a split if there is one to choose, if they should fit."""
        if is_free(self.evaluator, params):
            split = self.partition(params)
            return None if split is None else replace(params, tensor_split=split)
        use, limits = self.evaluator.static(params), self.evaluator.machine.limits
        fits = use is not None and all(
            usage.total + self.overheads.at(params).get(name, 0) <= limits[name]
            for name, usage in use.devices.items()
            if usage.total
        )
        return params if fits else None

    def lower_bound(self, params: Params) -> float:
        """Seconds of the reference request with the fastest split that should fit by the overheads
        measured so far; infinite if none should. Measures nothing. For a smaller context than any
        so far, half of the overheads are assumed."""
        split, static = (
            self.partition(params, self.overheads.least(params)),
            self.evaluator.static(params),
        )
        if split is None or static is None:
            return float("inf")
        return self.cost.predict(replace(params, tensor_split=split), static).request

    def partition(
        self, params: Params, overheads: Mapping[str, int] | None = None
    ) -> tuple[float, ...] | None:
        """The fastest split that should fit by these overheads, or those measured so far, as layers
        per device."""
        layers = None if self.evaluator.exhausted else self.evaluator.layers(params)
        count = params.layers_wanted(self.everything)
        if layers is None or not count:
            return None
        limits, n_ubatch = self.evaluator.machine.limits, params.n_ubatch or N_UBATCH
        if self.overheads.rules_out(params):
            return None
        cached = params.kv_offload is not False
        sizes = [usage.model + (usage.context if cached else 0) for usage in layers[-count:]]
        names = self.evaluator.device_names(params)[:MOST_SHARES]
        overheads = self.overheads.at(params) if overheads is None else overheads
        capacities = [limits[name] - overheads.get(name, 0) for name in names]
        costs = self.cost.layer_seconds(params, params.n_ctx or 1 << 60)
        seconds = [costs[name][-count:] for name in names]
        visits = [self.cost.visits(name, n_ubatch) for name in names]
        hop = self.cost.hop(n_ubatch)
        self.evaluator.spend(len(sizes) ** 2 * len(names) // PAIRS)
        splits = [best_partition(sizes, seconds, capacities, hop, visits)]
        for i, name in enumerate(names):
            room = limits[name] - self._of_output(params, name, overheads.get(name, 0))
            if i and capacities[i] < sizes[-1] <= room:
                costs_before = [each[:-1] for each in seconds[:i]]
                before = best_partition(sizes[:-1], costs_before, capacities[:i], hop, visits[:i])
                splits.append(before and (*before, 1))
        if not any(splits):
            return None
        if splits[0] is not None and self._pipelined(params):
            splits.append(even_partition(sizes, seconds, capacities))
        found = [_short(split) for split in dict.fromkeys(splits) if split is not None]
        static = self.evaluator.static(params)
        if len(found) == 1 or static is None:
            return found[0]
        return min(
            found,
            key=lambda split: (
                self.cost.predict(replace(params, tensor_split=split), static).request
            ),
        )

    def _of_output(self, params: Params, name: str, known: int) -> int:
        """Overheads of a device that has the output layer alone: it computes no attention. A guess
        until measured."""
        return self.of_output.get((params.n_ctx, params.n_ubatch, name), known // 4)

    def _pipelined(self, params: Params) -> bool:
        """Whether prompts may overlap on several devices, so that an even split may be the
        fastest."""
        static = self.evaluator.static(params)
        return static is not None and self.cost.clock(params, static).pipelined

    def _refined(self, params: Params, ram: bool) -> Candidate | None:
        """The best split by the known overheads, corrected by measurements until it fits and no
        other is predicted faster."""
        seen: set[tuple[float, ...]] = set()
        best: Candidate | None = None
        for _ in range(6):
            split = self.partition(params)
            if split is None or split in seen:
                break
            seen.add(split)
            shape = replace(params, tensor_split=split)
            if (
                best is not None
                and self.cost.predict(shape, best.breakdown).request
                >= self.cost.speed(best).request
            ):
                break
            candidate = self.evaluator.candidate(shape, self.fidelity)
            if candidate is None:
                break
            self.overheads.record(candidate, trusted=candidate.fits_devices)
            if split[-1] == 1:
                name = self.evaluator.device_names(params)[len(split) - 1]
                self.of_output[params.n_ctx, params.n_ubatch, name] = candidate.overheads(
                    self.evaluator.machine.limits
                ).get(name, 0)
            if _fits(candidate, ram):
                best = candidate
        return best

    def _default_cannot_fit(self, params: Params) -> bool:
        """Whether llama.cpp's own split is far from fitting, by the measurements so far."""
        if self.overheads.smaller(params):
            return False
        use = self.evaluator.static(params)
        return use is None or any(
            use.devices[name].total + size * ONE_MORE > self.evaluator.machine.limits[name]
            for name, size in self.overheads.at(params).items()
            if use.devices[name].total
        )

    def _kept(self, candidate: Candidate | None, ram: bool) -> Candidate | None:
        """A launch that has no split to choose, if it fits; its overheads are recorded."""
        if candidate is None or not _fits(candidate, ram):
            return None
        self.overheads.record(candidate, trusted=True)
        return candidate


def _fits(candidate: Candidate, ram: bool) -> bool:
    return candidate.fits if ram else candidate.fits_devices


def is_free(evaluator: Evaluator, params: Params) -> bool:
    """Whether there is a split to choose: several devices, whole layers, and no flag that fixes
    it."""
    if evaluator.engine.cuts:
        return False
    return (
        len(evaluator.machine.devices) > 1
        and params.tensor_split is None
        and params.split_mode in (None, "layer")
        and len(evaluator.device_names(params)) > 1
    )


def explicit_split(evaluator: Evaluator, params: Params) -> Params:
    """The flags with layer counts instead of llama.cpp's own split: free memory may change before
    the launch. Of a program that shares out bytes, with what its own split goes by."""
    if params.n_gpu_layers == 0 or not is_free(evaluator, params):
        return params
    if evaluator.engine.shares_bytes:
        shares = evaluator.estimator.shares(params, evaluator.machine.devices)
        given = replace(params, tensor_split=shares or None)
        same = evaluator.placement(given).dev_layer == evaluator.placement(params).dev_layer
        return given if same else params
    where = layer_devices(evaluator.placement(params))
    shares = _short([where.count(name) for name in evaluator.device_names(params)])
    return replace(params, tensor_split=shares) if len(shares) <= MOST_SHARES else params


def shared(evaluator: Evaluator, params: Params, counts: Sequence[float]) -> Params:
    """The flags with these numbers of layers on each device."""
    if len(counts) < 2 or not evaluator.engine.shares_bytes:
        return replace(params, tensor_split=tuple(map(float, counts)))
    shares = evaluator.estimator.shares(params, evaluator.machine.devices, tuple(map(int, counts)))
    return replace(params, tensor_split=shares or None)


def _short(counts: Sequence[int]) -> tuple[float, ...]:
    """Layers per device without those of the last devices that have none."""
    used = max((i for i, count in enumerate(counts) if count), default=0)
    return tuple([float(count) for count in counts[: used + 1]])
