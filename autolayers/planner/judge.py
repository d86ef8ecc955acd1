"""Which of two launches is faster, as predicted."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import replace

    from ..memory.breakdown import Breakdown, Usage
    from ..params import Params
    from .probe import Probe, Trial
    from .speed import Bandwidths, Speed, Traffic
else:
    from ..records import replace


class Judge:
    """Predicts the speed of measured launches of one model on one machine; imports and reads only when first asked."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._traffic: Traffic | None = None
        self._bandwidths: Bandwidths | None = None
        self._speeds: dict[Params, Speed] = {}

    def speed(self, trial: Trial) -> Speed:
        return self.predict(trial.params, trial.breakdown)

    def predict(self, params: Params, use: Breakdown) -> Speed:
        """The speed of a launch; of its breakdown only the context and the micro-batch count."""
        if params not in self._speeds:
            from .speed import predict

            shallow, deep = self._caches(params, min(self.depth, use.n_ctx_seq)), self._caches(params, use.n_ctx_seq)
            self._speeds[params] = predict(
                self.traffic, self.probe.placement(params), params, shallow, deep, self.bandwidths, use.n_ubatch)
        return self._speeds[params]

    def fastest(self, trials: list[Trial]) -> Trial:
        """The trial with the shortest reference request; the first of equals."""
        return trials[0] if len(trials) == 1 else min(trials, key=lambda trial: self.speed(trial).request)

    def work(self, params: Params, n_ctx_seq: int) -> list[float]:
        """What each layer (output last) costs the reference request on a device: seconds times its bytes per second."""
        caches = self._caches(params, min(self.depth, n_ctx_seq)) if params.kv_offload is not False else ()
        return self.traffic.costs(self.probe.placement(replace(params, n_gpu_layers=None, tensor_split=None)), caches)

    @property
    def depth(self) -> int:
        """Tokens in the cache at the end of the reference request."""
        from .speed import ANSWER, PROMPT

        return PROMPT + ANSWER

    @property
    def traffic(self) -> Traffic:
        if self._traffic is None:
            from .speed import Traffic

            self._traffic = Traffic(self.probe.model)
        return self._traffic

    @property
    def bandwidths(self) -> Bandwidths:
        if self._bandwidths is None:
            from .speed import bandwidths

            machine = self.probe.machine
            self._bandwidths = bandwidths(machine.devices, machine.ram_bandwidth, machine.bus_bandwidth)
        return self._bandwidths

    def _caches(self, params: Params, depth: int) -> tuple[Usage, ...]:
        """Each layer's cache with `depth` tokens of one sequence in it."""
        alone = replace(params, overrides=(), n_ctx=depth, n_parallel=1, kv_unified=None, kv_offload=None)
        return self.probe.layers(alone) or ()
