"""What a launch takes on this machine, and whether it fits: every search of the planner measures
here."""

from __future__ import annotations

from ..backends import DEFAULT
from ..errors import LaunchRefused, ModelError
from ..flags.params import Params
from ..flags.workload import CHAT
from ..machine import Device, Machine
from ..memory.breakdown import Breakdown, LowerBound, Static, shared
from ..memory.companions import NONE
from ..memory.estimate import Estimator
from ..memory.margin import least
from ..memory.meter import OverBudget
from ..memory.split import model_devices
from ..records import dataclass, replace
from . import serving
from .words import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from ..backends.ops import Parts
    from ..builds import Build
    from ..engines import Engine
    from ..flags.workload import Workload
    from ..memory.breakdown import Usage
    from ..memory.companions import Companions
    from ..memory.estimate import Known
    from ..memory.meter import Meter
    from ..memory.weights import Placement
    from ..model import Model
    from ..work.drafts import Drafting
    from ..work.speed import CostModel

    Measured = Breakdown | LowerBound
    Fidelity = Literal["prompt", "fit", "full"]

# How fully a candidate is measured:
PROMPT: Fidelity = "prompt"  # weights, caches and the prompt graph: a lower bound
FIT: Fidelity = "fit"  # enough to know whether it fits on the devices
FULL: Fidelity = "full"

# Layers are as large on it as on others.
ANY = Device(f"{DEFAULT.name}0", 1 << 60, 1 << 60)

# system memory: llama-server itself, the driver's host side, and all other programs
RAM_MARGIN = 512 << 20


@dataclass(frozen=True)
class Candidate:
    """A launch and what it allocates. `spare` is what is left on each used device after its margin
    (negative: missing). `ram_spare` is the same for system memory (None: unlimited), also less what
    serving is certain to add."""

    params: Params
    breakdown: Measured
    margins: Mapping[str, Parts]
    spare: Mapping[str, int]
    ram_spare: int | None

    @property
    def fits_devices(self) -> bool:
        """Every device keeps its margin."""
        return all(left >= 0 for left in self.spare.values())

    @property
    def fits(self) -> bool:
        return self.fits_devices and (self.ram_spare is None or self.ram_spare >= 0)

    @property
    def ram_missing(self) -> int:
        """Missing bytes of system memory."""
        return max(0, -(self.ram_spare or 0))

    def overheads(self, limits: Mapping[str, int]) -> dict[str, int]:
        """Return the bytes on each used device that are neither weights nor cache: graph buffers,
        extras, margin."""
        use = self.breakdown.devices
        return {
            name: limits[name] - spare - use[name].model - use[name].context
            for name, spare in self.spare.items()
        }


class Evaluator:
    """Measures launches of one model on one machine, each only once."""

    def __init__(
        self, estimator: Estimator, machine: Machine, target: tuple[int, ...] | None = None
    ) -> None:
        self.estimator = estimator
        self.machine = machine
        self.target = target
        self.model: Model = estimator.model
        # why llama.cpp would not start the first launch that it refuses: the given words' own, as
        # side ways come later
        self.refusal: LaunchRefused | None = None
        self._candidates: dict[Params, Candidate | None] = {}
        self._usages: dict[Params, Measured | None] = {}
        self._static: dict[Params, Static | None] = {}
        self._layers: dict[Params, tuple[Usage, ...] | None] = {}
        self._names: dict[object, list[str]] = {}

    @classmethod
    def of(
        cls,
        model: Model,
        machine: Machine,
        build: Build | int | None = None,
        target: tuple[int, ...] | None = None,
        companions: Companions = NONE,
        measurements: Known | None = None,
        meter: Meter | None = None,
    ) -> Evaluator:
        """Return an Evaluator with an Estimator of its own. `target`: bytes to leave free per
        device instead of the margin. `measurements`: earlier ones of this model for these devices.
        `meter`: of the question."""
        return cls(Estimator(model, build, companions, measurements, meter), machine, target)

    def on(self, machine: Machine) -> Evaluator:
        """Measures the same model's launches on another machine; nothing is measured there yet."""
        return Evaluator(self.estimator, machine, self.target)

    def with_limits(self, limits: Mapping[str, int]) -> Evaluator:
        """Return the same, with this limit per device and unlimited system memory."""
        other = self.on(replace(self.machine, limits=limits, ram=None))
        # Sizes of weights and caches do not depend on limits.
        other._static = self._static
        other._layers = self._layers
        return other

    def experts_in_ram(self, params: Params, count: int) -> tuple[int, ...]:
        """Return the layers that the program's own -ncmoe `count` means."""
        return self.estimator.experts_in_ram(params, self.machine.devices, count)

    @property
    def exhausted(self) -> bool:
        """Whether the question's budget is spent: then only the final launch of a search is still
        measured."""
        return self.estimator.meter.exhausted

    def spend(self, nodes: int) -> None:
        """Counts work besides measuring, in nodes of a graph that take as long."""
        self.estimator.meter.spent += nodes

    @property
    def measured(self) -> list[Candidate]:
        """Every launch that was measured so far and that llama.cpp would not refuse."""
        return [candidate for candidate in self._candidates.values() if candidate is not None]

    def candidate(self, params: Params, fidelity: Fidelity, last: bool = False) -> Candidate | None:
        """Return the launch, measured at least to this fidelity. None if llama.cpp would refuse it
        (see `refusal`), or if the budget is spent and it is not the `last`."""
        # What was measured more fully serves all who want less.
        if params in self._candidates:
            earlier = self._candidates[params]
            if earlier is None or isinstance(earlier.breakdown, Breakdown) or fidelity == PROMPT:
                return earlier
            # A lower bound that does not fit is enough to know.
            if fidelity == FIT and not earlier.fits_devices:
                return earlier
        if not last and self.exhausted:
            return None

        def enough(use: LowerBound) -> bool:
            return fidelity == PROMPT or not self._candidate(params, use).fits_devices

        # The last launch of a search is measured even beyond the budget.
        self.estimator.meter.ends = not last
        try:
            self.estimator.refuse_first_token(params)
            use = self.estimator.at_least(
                params,
                self.machine.devices,
                None if fidelity == FULL else enough,
                runtime=self.target is None,
            )
            self._candidates[params] = self._candidate(params, use)
        except LaunchRefused as refusal:
            self.refusal = self.refusal or refusal
            self._candidates[params] = None
        except OverBudget:
            return None
        except ModelError as error:  # the graph needs a tensor that the file lacks
            path = self.model.path
            raise ModelError(
                str(error) if str(error).startswith(path) else f"{path}: {error}"
            ) from None
        finally:
            self.estimator.meter.ends = False
        return self._candidates[params]

    def usage(
        self, params: Params, limits: Mapping[str, int], fidelity: Fidelity
    ) -> Measured | None:
        """Return what llama.cpp's measuring says that the launch allocates, without margins; a
        lower bound where a device would need more than `limits` has for it."""

        def too_much(use: Static) -> bool:
            return any(use.devices[name].total > size for name, size in limits.items())

        candidate = self._candidates.get(params)
        measured: Measured | None = self._usages.get(params)
        # llama.cpp's measuring allocates the same for most launches: then both share a measurement.
        if candidate is not None and candidate.breakdown.as_measured:
            measured = candidate.breakdown
        if measured is None or (
            isinstance(measured, LowerBound) and fidelity != PROMPT and not too_much(measured)
        ):
            if self.exhausted:
                return None
            self.estimator.meter.ends = True
            try:
                measured = self.estimator.at_least(
                    params,
                    self.machine.devices,
                    lambda use: fidelity == PROMPT or too_much(use),
                    measuring=True,
                )
            except LaunchRefused as refusal:
                self.refusal = self.refusal or refusal
                measured = None
            except OverBudget:
                return None
            finally:
                self.estimator.meter.ends = False
            self._usages[params] = measured
        return measured

    def compute_range(self, n_ctx: int | None) -> dict[str, tuple[int, int]]:
        """Return the smallest and the largest graph buffer of a device in all launches measured
        with this context."""
        ranges: dict[str, tuple[int, int]] = {}
        uses = [
            (params, candidate.breakdown)
            for params, candidate in self._candidates.items()
            if candidate is not None
        ]
        for params, use in (*uses, *self._usages.items()):
            if use is not None and params.n_ctx == n_ctx:
                for name, usage in use.devices.items():
                    # A device without weights has no graph buffer, which would make all ranges
                    # begin at 0.
                    if usage.model:
                        smallest, largest = ranges.get(name, (usage.compute, usage.compute))
                        ranges[name] = min(smallest, usage.compute), max(largest, usage.compute)
        return ranges

    def static(self, params: Params) -> Static | None:
        """Return the weights and caches without graph buffers: cheap, and a lower bound. None if
        llama.cpp would refuse it, or if the budget is spent."""
        if params not in self._static:
            if self.exhausted:
                return None
            try:
                self._static[params] = self.estimator.static(params, self.machine.devices)
            except LaunchRefused as refusal:
                self.refusal = self.refusal or refusal
                self._static[params] = None
        return self._static[params]

    def may_fit(self, params: Params, any_split: bool = False) -> bool:
        """Return False if weights and caches alone exceed the devices (with `any_split`: all of
        them together)."""
        static = self.static(params)
        if static is None:
            return False
        needs = {name: usage.model + usage.context for name, usage in static.devices.items()}
        if any_split:
            return sum(needs.values()) <= sum(self.machine.limits.values())
        return all(need <= self.machine.limits[name] for name, need in needs.items() if need)

    def placement(self, params: Params) -> Placement:
        """Return where these flags put every tensor, at any context."""
        return self.estimator.placement(params, self.machine.devices)

    def states(self, params: Params) -> dict[str, int]:
        """Return the bytes of recurrent states by the buffer that they are in."""
        sizes: dict[str, int] = {}
        for cache in self.estimator.caches(params, self.placement(params)).caches:
            for layer in cache.layers if cache.recurrent else ():
                for tensor in layer.tensors:
                    sizes[tensor.buffer] = sizes.get(tensor.buffer, 0) + tensor.size
        return sizes

    def described(self, params: Params) -> str:
        """Return where these flags put the layers, in words."""
        return describe(self.placement(params), params, self.model.hparams.n_layer_all + 1)

    @property
    def engine(self) -> Engine:
        """The program that is planned for."""
        return self.estimator.rules.engine

    def cost(self, workload: Workload | None = None, drafting: Drafting | None = None) -> CostModel:
        """Return what predicts the speed of launches here."""
        from ..work.speed import CostModel  # -q of a model that fits needs none

        return CostModel(self.estimator, self.machine, workload, drafting)

    def device_names(self, params: Params) -> list[str]:
        """Return the devices that llama.cpp uses with these flags, in its order."""
        # The only flags that model_devices reads.
        key = (params.device, params.split_mode, params.main_gpu)
        if key not in self._names:
            self._names[key] = [
                device.name
                for device in model_devices(params, self.machine.devices, self.estimator.rules)[0]
            ]
        return self._names[key]

    def layers(self, params: Params) -> tuple[Usage, ...] | None:
        """Return Estimator.layers on devices of this machine's kind; None if llama.cpp would refuse
        these flags."""
        # Sizes of whole layers depend on none of these.
        params = replace(
            params,
            n_gpu_layers=None,
            tensor_split=None,
            split_mode=None,
            main_gpu=None,
            device=None,
            rpc=(),
        )
        if params not in self._layers:
            kind = next(iter(self.machine.devices), ANY)
            try:
                self._layers[params] = self.estimator.layers(params, kind)
            except LaunchRefused as refusal:
                self.refusal = self.refusal or refusal
                self._layers[params] = None
        return self._layers[params]

    def usable(self, params: Params) -> bool:
        """Return whether any device has more memory than every launch must leave free on it."""
        return bool(self.target or params.fit_target) or any(
            self.machine.limits[device.name] > least(device) for device in self.machine.devices
        )

    def least(self, params: Params) -> dict[str, int]:
        """Return the bytes that every launch must leave free on each device."""
        given = self.target or params.fit_target
        return {device.name: 0 if given else least(device) for device in self.machine.devices}

    def margin(self, device: Device, params: Params, use: Measured) -> Parts:
        """Return the named parts of a device's margin; a given --fit-target or --margin replaces
        them all."""
        if self.target:
            position = list(use.devices).index(device.name)
            return (("given", self.target[min(position, len(self.target) - 1)]),)
        return self.estimator.margin(device, params, use)

    def shared(self, use: Static) -> int:
        """Return the bytes on devices that share the system's memory."""
        return shared(use, self.machine.devices)

    def ram_of(self, params: Params, use: Static) -> int:
        """Return the same, and what serving is certain to add."""
        return self.in_ram(use) + serving.certain(params, use)

    def in_ram(self, use: Static) -> int:
        """Return the bytes that must be in system memory at once."""
        return use.resident + self.shared(use)

    def bounded(self, candidate: Candidate, agents: int = 0, work: Workload = CHAT) -> Candidate:
        """Return the launch with flags that bound what grows while it serves, if system memory is
        too small for all of it, or that keep this many conversations."""
        use = candidate.breakdown
        if not isinstance(use, Breakdown) or (candidate.ram_spare is None and not agents):
            return candidate
        changes = (
            serving.keeping(agents, candidate.params, use, candidate.ram_spare, work)
            if agents
            else serving.limits(candidate.params, use, candidate.ram_spare or 0)
        )
        if not changes:
            return candidate
        smaller = replace(candidate.params, **changes)  # type: ignore[arg-type]
        return self.candidate(smaller, FULL, last=True) or candidate

    def _candidate(self, params: Params, use: Measured) -> Candidate:
        extra = use.extra_by_device()
        margins: dict[str, Parts] = {}
        spare: dict[str, int] = {}
        for device in self.machine.devices:
            taken = use.devices[device.name].total + extra.get(device.name, 0)
            # A device with nothing on it needs no margin.
            if not taken:
                continue
            margins[device.name] = self.margin(device, params, use)
            margin_size = sum(size for _, size in margins[device.name])
            spare[device.name] = self.machine.limits[device.name] - margin_size - taken
        ram = self.machine.ram
        needed = RAM_MARGIN + self.ram_of(params, use)
        return Candidate(params, use, margins, spare, None if ram is None else ram - needed)
