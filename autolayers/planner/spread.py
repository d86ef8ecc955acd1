"""Layers over several unequal devices: the fastest split that fits, and the most layers that have one."""

from __future__ import annotations

from .search import largest_count, last
from .split import best_partition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import replace

    from ..params import Params
    from .judge import Judge
    from .probe import Probe, Trial
else:
    from ..records import replace

FIRST_GUESS = 768 << 20      # of graph buffers and margin on a device, before any was measured


class Spread:
    """Splits of one model over one machine's devices. `measured` has by context the bytes per device that are no layer's
    (graph buffers, margin, what lives beside the model) as last measured: they predict which splits can fit. `idle` has by
    context and device the least of them that one without any layers had (op offload)."""

    def __init__(self, probe: Probe, judge: Judge) -> None:
        self.probe, self.judge = probe, judge
        self.everything = probe.model.hparams.n_layer_all + 1
        self.measured: dict[int, dict[str, int]] = {}
        self.idle: dict[tuple[int, str], int] = {}

    def open(self, params: Params) -> bool:
        """Whether there is a split to choose: several devices, whole layers, nothing given."""
        return (len(self.probe.machine.devices) > 1 and params.tensor_split is None
                and params.split_mode in (None, "layer") and len(self.probe.used(params)) > 1)

    def best(self, params: Params, plain_first: bool = True) -> Trial | None:
        """These flags with the fastest split that fits, llama.cpp's own one included; None where none fits.

        Where nothing was measured yet llama.cpp's own split comes first, or the best by a guess."""
        choice = self.open(params)
        if not self.probe.possible(params, any_split=choice):
            return None
        if not choice:
            trial = self.probe.trial(params)
            return trial if trial is not None and trial.fits else None
        if self.measured or not plain_first:
            found = self._fitting(params)
            if found is not None:
                return found
            if self.measured and self._hopeless(params):
                return None
        plain = self.probe.trial(params)             # llama.cpp's own split, by free memory
        if plain is None:
            return None
        self._learn(plain, anew=True)
        if plain.fits and self.hoped(params) >= self.judge.speed(plain).request:
            return plain
        found = self._fitting(params)
        candidates = [trial for trial in (plain, found) if trial is not None and trial.fits]
        return self.judge.fastest(candidates) if candidates else None

    def most(self, make: Callable[[int], Params], top: int) -> Trial | None:
        """The launch with the largest count in 0..top that fits, with the best split where there is one to choose."""
        if not self.open(make(top)):
            return largest_count(self.probe, make, top)
        best = self.best(make(top))
        if best is not None:
            return best
        low, high, steps = -1, top, 0
        while low + 1 < high:
            guess = (low + high) // 2
            if steps < 4:
                guess = last(low, high - 1, lambda count: self.partition(make(count)) is not None)
            guess = min(max(guess, low + 1), high - 1)
            trial = self.best(make(guess), plain_first=False)
            if trial is None:
                high = guess
            else:
                low, best = guess, trial
            steps += 1
        return best

    def hoped(self, params: Params) -> float:
        """Seconds of the reference request with the fastest split that should fit by what was measured so far; nothing is
        measured for it. Infinite where none should. With a smaller context than any so far half as much may do."""
        beside = self.overheads(params.n_ctx or 0)
        if self.measured and (params.n_ctx or 0) < min(self.measured):
            beside = {name: size // 2 for name, size in beside.items()}
        split, static = self.partition(params, beside), self.probe.static(params)
        if split is None or static is None:
            return float("inf")
        return self.judge.predict(replace(params, tensor_split=split), static).request

    def overheads(self, n_ctx: int) -> dict[str, int]:
        """Per device what was measured with this context, or what follows from the two contexts nearest to it: most of it
        is the same for all, the rest grows with the context."""
        known = sorted(self.measured, key=lambda other: abs(other - n_ctx))
        if not known:
            return dict.fromkeys(self.probe.machine.limits, FIRST_GUESS)
        near = self.measured[known[0]]
        if len(known) == 1 or known[0] == n_ctx:
            return near
        far = self.measured[known[1]]
        part = (n_ctx - known[0]) / (known[1] - known[0])
        return {name: max(0, size + int((far.get(name, size) - size) * part)) for name, size in near.items()}

    def settled(self, trial: Trial) -> Params:
        """The launch's flags with llama.cpp's own split written down as layer counts: free memory may change until then."""
        params = trial.params
        if params.n_gpu_layers == 0 or not self.open(params):
            return params
        from .speed import homes

        where = homes(self.probe.placement(params))
        return replace(params, tensor_split=tuple(float(where.count(name)) for name in self.probe.used(params)))

    def _fitting(self, params: Params) -> Trial | None:
        """The split that is best by the known overheads, corrected by what is measured until it fits and no other promises
        to be faster."""
        seen: set[tuple[float, ...]] = set()
        best: Trial | None = None
        for _ in range(6):
            split = self.partition(params)
            if split is None or split in seen:
                break
            seen.add(split)
            shape = replace(params, tensor_split=split)
            if best is not None and self.judge.predict(shape, best.breakdown).request >= self.judge.speed(best).request:
                break
            trial = self.probe.trial(shape)
            if trial is None:
                break
            self._learn(trial, anew=trial.fits)
            if trial.fits:
                best = trial
        return best

    def _hopeless(self, params: Params) -> bool:
        """Whether llama.cpp's own split is far from fitting, by what was measured so far."""
        n_ctx = params.n_ctx or 0
        if n_ctx < min(self.measured):       # with a smaller context much less may be needed
            return False
        use = self.probe.static(params)
        return use is None or any(
            use.devices[name].total + size * 3 // 4 > self.probe.machine.limits[name]
            for name, size in self.overheads(n_ctx).items() if use.devices[name].total)

    def partition(self, params: Params, beside: Mapping[str, int] | None = None) -> tuple[float, ...] | None:
        """The fastest split that should fit, by what was measured so far (or `beside`)."""
        from .speed import hop

        layers = self.probe.layers(params)
        count = self.everything if params.n_gpu_layers is None or params.n_gpu_layers < 0 else min(params.n_gpu_layers, self.everything)
        if layers is None or not count:
            return None
        n_ctx = params.n_ctx or 0
        if any(size > self.probe.machine.limits[name] for (least, name), size in self.idle.items() if least <= n_ctx):
            return None
        cached = params.kv_offload is not False
        sizes = [usage.model + (usage.context if cached else 0) for usage in layers[-count:]]
        names = self.probe.used(params)
        beside = self.overheads(n_ctx) if beside is None else beside
        capacities = [self.probe.machine.limits[name] - beside.get(name, 0) for name in names]
        slowness = [1 / self.judge.bandwidths.devices[name] for name in names]
        work = self.judge.work(params, n_ctx or self.judge.depth)[-count:]
        split = best_partition(sizes, work, capacities, slowness, hop(params.n_ubatch or 512))
        return None if split is None else tuple(float(n) for n in split)

    def _learn(self, trial: Trial, anew: bool) -> None:
        """Takes over a launch's overheads; while a split does not fit only larger ones, so that the search ends."""
        use = trial.breakdown
        n_ctx = trial.params.n_ctx or 0
        anew = anew or not self.measured
        before = self.overheads(n_ctx)
        known = self.measured[n_ctx] = dict(before)
        for name in self.probe.used(trial.params):
            parts = trial.margins.get(name)
            if parts is None and not anew:
                continue
            size = use.devices[name].compute + sum(size for _, size in parts or ())
            size += sum(extra.size for extra in use.extras if extra.device == name and not extra.upper_limit)
            known[name] = size if anew and parts is not None else max(size, before.get(name, 0))
            if parts is not None and not use.devices[name].model:
                self.idle[n_ctx, name] = min(size, self.idle.get((n_ctx, name), size))
