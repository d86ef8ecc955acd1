"""Trying launches: what one would take on this machine, and whether that fits. Every search of the planner asks here."""

from __future__ import annotations

from ..errors import LaunchRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from dataclasses import dataclass, replace

    from ..devices.device import Device
    from ..memory.breakdown import Breakdown, Usage
    from ..memory.weights import Placement
    from ..model import Model
    from ..params import Params
else:
    from ..records import dataclass, replace


RAM_MARGIN = 512 << 20    # of system memory: llama-server itself, the driver's host side, and everything else that runs


@dataclass(frozen=True)
class Machine:
    """Where the launch is to run. `limits` is what may be taken per device (free memory, or the user's budget);
    `ram` is what may be taken of system memory, None where it is not known. Bytes."""

    devices: tuple[Device, ...]
    limits: Mapping[str, int]
    ram: int | None = None
    ram_total: int | None = None
    ram_bandwidth: float | None = None     # bytes per second, measured
    bus_bandwidth: float | None = None


@dataclass(frozen=True)
class Trial:
    """One launch, measured. `spare` is what is left on each device that is used once the margin is kept (negative:
    missing), `ram_spare` the same for system memory (None: not limited)."""

    params: Params
    breakdown: Breakdown
    margins: Mapping[str, tuple[tuple[str, int], ...]]
    spare: Mapping[str, int]
    ram_spare: int | None

    @property
    def on_devices(self) -> bool:
        """Every device keeps its margin."""
        return all(left >= 0 for left in self.spare.values())

    @property
    def fits(self) -> bool:
        return self.on_devices and (self.ram_spare is None or self.ram_spare >= 0)


class Probe:
    """Measures launches of one model on one machine, each only once."""

    def __init__(self, model: Model, machine: Machine, build: int | None = None,
                 target: tuple[int, ...] | None = None) -> None:
        self.model, self.machine, self.build, self.target = model, machine, build, target
        self.refusal: LaunchRefused | None = None    # the last reason for which llama.cpp would not start
        self.quick = False       # that a launch fits may be said of its prompt graph alone, which is nearly always the largest
        self._trials: dict[Params, Trial | None] = {}
        self._usages: dict[Params, Breakdown | None] = {}
        self._static: dict[Params, Breakdown | None] = {}
        self._placements: dict[Params, Placement] = {}
        self._layers: dict[Params, tuple[Usage, ...] | None] = {}

    def trial(self, params: Params, whole: bool = False) -> Trial | None:
        """The launch's bill, or None where llama.cpp would refuse it (the reason is kept in `refusal`).

        Of a launch that does not fit only as much is measured as shows it, unless the `whole` bill is wanted.
        """
        known = self._trials.get(params, self)
        begun = isinstance(known, Trial) and known.breakdown.partial
        if known is self or (begun and (whole or (known.on_devices and not self.quick))):  # type: ignore[union-attr]
            known = self._trials[params] = self._measure(params, whole)
        return known  # type: ignore[return-value]

    def usage(self, params: Params, most: Mapping[str, int]) -> Breakdown | None:
        """What the launch allocates, without margins; at least that, where a device would need more than `most` has for it."""
        trial = self._trials.get(params)
        known = trial.breakdown if trial is not None else self._usages.get(params)

        def too_much(use: Breakdown) -> bool:
            return any(use.devices[name].total > size for name, size in most.items())

        if known is None or (known.partial and not self.quick and not too_much(known)):
            known = self._usages[params] = self._estimate(params, self.machine.devices, runtime=False,
                                                          enough=lambda use: self.quick or too_much(use))
        return known

    def computes(self, n_ctx: int | None) -> dict[str, tuple[int, int]]:
        """The smallest and the largest graph buffer that a device had in any launch measured with this context."""
        found: dict[str, tuple[int, int]] = {}
        uses = [(params, trial.breakdown) for params, trial in self._trials.items() if trial is not None]
        for params, use in (*uses, *self._usages.items()):
            if use is not None and params.n_ctx == n_ctx:
                for name, usage in use.devices.items():
                    if usage.model:
                        least, largest = found.get(name, (usage.compute, usage.compute))
                        found[name] = min(least, usage.compute), max(largest, usage.compute)
        return found

    def static(self, params: Params) -> Breakdown | None:
        """Weights and caches without the graph buffers: cheap, and a lower bound."""
        if params not in self._static:
            self._static[params] = self._estimate(params, self.machine.devices, compute=False)
        return self._static[params]

    def possible(self, params: Params, any_split: bool = False) -> bool:
        """False where weights and caches alone are more than the devices have (with `any_split`: all of them together)."""
        static = self.static(params)
        if static is None:
            return False
        needs = {name: usage.model + usage.context for name, usage in static.devices.items()}
        if any_split:
            return sum(needs.values()) <= sum(self.machine.limits.values())
        return all(need <= self.machine.limits[name] for name, need in needs.items() if need)

    def placement(self, params: Params) -> Placement:
        """Where these flags put every tensor, with whatever context."""
        params = replace(params, n_ctx=None)
        if params not in self._placements:
            from ..memory.weights import place_weights

            self._placements[params] = place_weights(self.model, params, self.machine.devices)
        return self._placements[params]

    def used(self, params: Params) -> list[str]:
        """The names of the devices that llama.cpp uses with these flags, in its order."""
        return [device.name for device in self.placement(replace(params, n_gpu_layers=None, tensor_split=None)).devices]

    def layers(self, params: Params) -> tuple[Usage, ...] | None:
        """What each layer takes on a device, the output layer last (n_layer + 1 entries).

        llama.cpp has no such number; it is what each of n_layer + 1 equal devices would take if every one had
        exactly one layer. Small tensors that every device copies (rope factors) are counted in every layer.
        """
        from ..devices.device import Device

        count = self.model.hparams.n_layer_all + 1
        kind = self.machine.devices[0] if self.machine.devices else Device("CUDA0", 1 << 60, 1 << 60)
        one_each = replace(params, n_gpu_layers=count, tensor_split=(1.0,) * count, split_mode=None, main_gpu=None,
                           device=None, rpc=())
        if one_each not in self._layers:
            shelf = tuple(replace(kind, name=f"CUDA{i}", free=1 << 60, total=1 << 60) for i in range(count))
            found = self._estimate(one_each, shelf, compute=False)
            self._layers[one_each] = None if found is None else tuple(found.devices[d.name] for d in shelf)
        return self._layers[one_each]

    def margin(self, device: Device, params: Params, breakdown: Breakdown) -> tuple[tuple[str, int], ...]:
        """The named parts of what stays free on a device; --fit-target or --margin given means exactly that and nothing
        else is kept."""
        if self.target:
            position = list(breakdown.devices).index(device.name)
            return (("given", self.target[min(position, len(self.target) - 1)]),)
        from ..memory.margin import margin

        return margin(device, self.model, params, breakdown)

    def _estimate(self, params: Params, devices: Sequence[Device], compute: bool = True, runtime: bool = True,
                  enough: Callable[[Breakdown], bool] | None = None) -> Breakdown | None:
        from ..memory import estimate

        try:
            return estimate(self.model, params, devices, self.build, compute, runtime and compute and self.target is None, enough)
        except LaunchRefused as refusal:
            self.refusal = refusal
            return None

    def _measure(self, params: Params, whole: bool) -> Trial | None:
        use = self._estimate(params, self.machine.devices,
                             enough=None if whole else lambda use: self.quick or not self._trial(params, use).on_devices)
        return None if use is None else self._trial(params, use)

    def _trial(self, params: Params, use: Breakdown) -> Trial:
        beside = beside_by_device(use)
        margins: dict[str, tuple[tuple[str, int], ...]] = {}
        spare: dict[str, int] = {}
        for device in self.machine.devices:
            taken = use.devices[device.name].total + beside.get(device.name, 0)
            if not taken:
                continue
            margins[device.name] = self.margin(device, params, use)
            kept = sum(size for _, size in margins[device.name])
            spare[device.name] = self.machine.limits[device.name] - kept - taken
        ram = self.machine.ram
        return Trial(params, use, margins, spare, None if ram is None else ram - RAM_MARGIN - resident(use, beside))


def beside_by_device(use: Breakdown) -> dict[str, int]:
    """Bytes of what lives beside the model from the start; what only may grow to a limit is not counted."""
    sums: dict[str, int] = {}
    for extra in use.extras:
        if not extra.upper_limit:
            sums[extra.device] = sums.get(extra.device, 0) + extra.size
    return sums


def resident(use: Breakdown, beside: Mapping[str, int]) -> int:
    """Bytes of system memory that the launch needs at once: mapped weights count as the pages that are read."""
    weights = use.host_resident or use.host.model
    return weights + use.host.context + use.host.compute + beside.get("Host", 0)
