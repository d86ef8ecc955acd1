"""The possible launches of one of several models at its smallest context: each with its bytes and
its seconds.

    whole on one device     measured
    partly in RAM           experts or FFN weights of leading layers, or whole layers, by number:
                            estimated from weights, caches and the graph buffers of one such launch,
                            and measured when it is chosen
    cut over devices        the fastest split of the layers over the memory that others leave

A model is split only if no single device is free; a split is never priced below the slowest single
device.
"""

from __future__ import annotations

from ...flags.params import N_BATCH, N_UBATCH, Params
from ...memory.estimate import Known
from ...memory.meter import Meter
from ...records import lazy, replace
from .. import serving
from ..buffers import ALIKE, Buffers, Needs
from ..candidates import PlacementKind
from ..embedder import way_beside_others
from ..evaluate import FULL, Candidate, Evaluator
from ..frames import MICRO_BATCHES, Frame
from ..one.bisection import last
from ..one.contexts import contexts
from ..one.ladder import Ladder, Ladders
from ..one.partition import is_free
from ..prices import SPLIT
from ..problem import Problem
from .assign import RAM, UNLIMITED, ModelOptions, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...model import Model
    from ...request import Request
    from ...work.speed import CostModel
    from ..buffers import Point

    Home = tuple[str, ...] | None

FEW = 16  # layer counts in RAM to try first
# extra layers in RAM to try until a split launch fits by its measured sizes
_TRIES = 4


class Launches:
    """The options of one model, which `read` returns. `given` are its flags, `params` the same at
    the smallest context."""

    def __init__(
        self,
        read: Callable[[], Model],
        request: Request,
        measurements: Known | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.read = read
        self.meter = meter or Meter()
        self.request = request
        self.measurements = measurements or Known()
        self.policy = request.policy
        self.machine = request.machine
        self.given = way_beside_others(self.problem)
        # The smallest context: what is left becomes context at the end (multi.shared_out).
        self.params = replace(self.given, n_ctx=contexts(self.problem, self.given).smallest)
        self.ladders = Ladders(self.problem, self.given)
        self.few = FEW
        self._options: dict[Params, Option | None] = {}
        # the least bytes besides weights and caches, by devices and micro-batch
        self._least: dict[Home, dict[int, dict[str, int]]] = {}
        # the least system memory besides weights and caches
        self._ram: dict[Home, int] = {}
        self._numbers: dict[Home, list[set[int]]] = {}  # layer counts in RAM to try, by ladder
        self._cuts: dict[object, Option | None] = {}
        self._of_cuts = Buffers(self.machine.limits)

    @lazy
    def problem(self) -> Problem:
        return Problem(self.read(), self.request, measurements=self.measurements, meter=self.meter)

    @property
    def evaluator(self) -> Evaluator:
        return self.problem.evaluator

    @lazy
    def cost(self) -> CostModel:
        return self.problem.reference

    def settle(self) -> None:
        """Computes `whole` and `ideal`, then drops what was measured to save memory (used for many
        models)."""
        _ = self.whole, self.ideal
        # Of many models only two layer counts in RAM are tried first.
        self.few = 2
        # `lazy` keeps its value in __dict__: without it, the next use reads the model again.
        for name in ("problem", "cost"):
            self.__dict__.pop(name, None)
        self.measurements = Known()

    @lazy
    def homes(self) -> list[Home]:
        """The single devices that may hold all of it; unchanged if the flags leave no choice."""
        if not is_free(self.evaluator, self.params) or self.ladders.top == 0:
            return [self.params.device]
        return [(name,) for name in self.evaluator.device_names(self.params)]

    @property
    def divisible(self) -> bool:
        """Whether the planner may split it over devices."""
        return len(self.homes) > 1

    @lazy
    def whole(self) -> list[Option]:
        """All layers on one device, for each device with enough memory."""
        launches = (self.option(self._at(home)) for home in self.homes)
        return [
            option
            for option in launches
            if option is not None and option.fits({**self.machine.limits, RAM: UNLIMITED})
        ]

    @lazy
    def ideal(self) -> dict[Home, float]:
        """Seconds of its request with all layers on each device, if the memory sufficed."""
        seconds = {}
        for home in self.homes:
            static = self.evaluator.static(self._at(home))
            # llama.cpp would refuse this launch, so the device is no home for the model.
            seconds[home] = (
                float("inf")
                if static is None
                else self.cost.predict(self._at(home), static).request
            )
        return seconds

    @lazy
    def slowest(self) -> float:
        """Seconds of its request on the slowest device that it fits on; 0 if it fits on none."""
        return max((option.seconds for option in self.whole), default=0.0)

    def choice(self, weight: float, spilled: list[Option], cut: bool) -> ModelOptions:
        """Return the options to choose from."""
        options = [*self.whole, *spilled]
        # A model that no split makes fit on the empty machine needs no search for one.
        if not (cut and self.divisible) or self._cut_least == float("inf"):
            return ModelOptions(options, weight)
        return ModelOptions(options, weight, self.cut, self._cut_least, self._cut_bound)

    def option(self, params: Params) -> Option | None:
        """Return a launch, measured; None if llama.cpp would refuse it."""
        if params not in self._options:
            candidate = (
                # Weights and caches alone rule a launch out without its graphs.
                self.evaluator.candidate(params, FULL) if self.evaluator.may_fit(params) else None
            )
            self._options[params] = None if candidate is None else self._measured(candidate)
            if candidate is not None:
                static = self.evaluator.static(candidate.params)
                if static is not None:
                    home = candidate.params.device
                    ram = self._in_ram(candidate) - self.evaluator.in_ram(static)
                    smallest = self._least.setdefault(home, {}).setdefault(
                        candidate.params.n_ubatch or N_UBATCH, {}
                    )
                    # The least of all that were measured, so that no estimate is above the real
                    # size.
                    for name, size in candidate.overheads(self.machine.limits).items():
                        smallest[name] = min(size, smallest.get(name, size))
                    self._ram[home] = min(ram, self._ram.get(home, ram))
        return self._options[params]

    def _at(self, home: Home) -> Params:
        return replace(self.params, device=home, n_gpu_layers=self.ladders.top)

    def _measured(self, candidate: Candidate) -> Option:
        limits, params = self.machine.limits, candidate.params
        takes = {name: limits[name] - left for name, left in candidate.spare.items()}
        seconds = self.cost.speed(candidate).request
        price = self._price(seconds, len(takes))
        return Option(
            params, takes, self._in_ram(candidate), seconds, price, self._is_whole(params)
        )

    def _is_whole(self, params: Params) -> bool:
        """Return whether everything that may be on devices is, and no tensor rule was added to the
        given ones."""
        everything = self.ladders.everything
        return params.layers_wanted(everything) == min(self.ladders.top, everything) and len(
            params.overrides
        ) == len(self.given.overrides)

    def _price(self, seconds: float, n_devices: int) -> float:
        if n_devices < 2 or not self.divisible or not self.slowest:
            return seconds
        # A split takes memory of several devices: it must not displace a launch on one.
        return max(seconds, self.slowest) * SPLIT.factor ** (n_devices - 1)

    # --- partly in RAM

    def spilled(self, home: Home, like: Params | None = None) -> list[Option]:
        """Return the launches on one device with some or all weights in RAM, including neighbours
        of `like`."""
        ladders = self._ladders(replace(self.params, device=home))
        if home not in self._numbers:
            self._numbers[home] = [
                # Of 48 layers 1, 4, 7 ... 46 and 48.
                {*range(1, ladder.top, max(1, ladder.top // self.few)), ladder.top}
                for ladder in ladders
            ]
        options = []
        for ladder, numbers in zip(ladders, self._numbers[home], strict=True):
            for number in sorted(numbers) if like is not None else ():
                # Its neighbours, up to those that are tried already.
                if ladder.with_in_ram(number) == like:
                    step = max(1, ladder.top // self.few)
                    numbers.update(
                        range(max(1, number - step + 1), min(ladder.top, number + step - 1) + 1)
                    )
            options += [self._estimated(ladder.with_in_ram(number)) for number in sorted(numbers)]
        return [option for option in options if option is not None]

    def known(self, options: Sequence[Option]) -> list[Option]:
        """Return the same launches as far as they are measured by now, and possible."""
        again = [self._options.get(option.params, option) for option in options]
        return [option for option in again if option is not None]

    def _ladders(self, base: Params) -> list[Ladder]:
        """Return the ways of keeping weights in RAM."""
        # A given number of layers is used as it is, unless --strategy asks for more.
        if self.ladders.literal and self.policy.strategy is None:
            return []
        ladders = []
        for like in self._batches(base):
            ladders += [
                self.ladders.in_ram(like),
                self.ladders.bare(like) or self.ladders.layers(like),
            ]
        return [ladder for ladder in ladders if ladder is not None]

    def _batches(self, base: Params) -> list[Params]:
        """Return the flags, and with a larger micro-batch unless that is given or no prompt is
        longer."""
        given = base.n_ubatch is not None or base.n_batch is not None
        # No prompt is longer than the context, so a larger micro-batch would never be full.
        short = base.n_ctx is not None and base.n_ctx <= N_UBATCH
        embeds = base.embedding or base.reranking
        if given or short or embeds or self.policy.strategy == "layers":
            return [base]
        # The one that is tried first for one model too: weights in RAM are copied less often.
        large = MICRO_BATCHES[0]
        return [base, replace(base, n_ubatch=large, n_batch=max(N_BATCH, large))]

    def _estimated(self, params: Params) -> Option | None:
        """Return a launch with underestimated graph buffers and margin, until it is measured."""
        option = self._options.get(params)
        static = self.evaluator.static(params)
        if option is not None or static is None:
            return option
        if params.device not in self._least:
            # Buffers and margins are learned from one launch: with no layers on the device they are
            # the smallest. This one is the next best if llama.cpp refuses that.
            self.option(replace(params, n_gpu_layers=0)) or self.option(params)
        # The least that measured launches with this micro-batch took of each device besides
        # weights and caches, or those with any
        by_micro_batch = self._least.get(params.device, {})
        takes = {
            name: static.devices[name].total + int(size * ALIKE)
            for name, size in (
                by_micro_batch.get(params.n_ubatch or N_UBATCH)
                or next(iter(by_micro_batch.values()), {})
            ).items()
        }
        seconds = self.cost.predict(params, static).request
        ram = self.evaluator.in_ram(static) + self._ram.get(params.device, 0)
        return Option(params, takes, ram, seconds, seconds, whole=False, measured=False)

    def _in_ram(self, candidate: Candidate) -> int:
        """Return the bytes of system memory that a launch certainly needs."""
        return self.evaluator.in_ram(candidate.breakdown) + serving.certain(
            candidate.params, candidate.breakdown
        )

    # --- cut over devices

    @lazy
    def _cut_least(self) -> float:
        """The price of a split launch that has all devices to itself."""
        if self.slowest:
            return self.slowest * SPLIT.factor
        alone = self.cut({**self.machine.limits, RAM: UNLIMITED})
        return alone.price if alone else float("inf")

    @lazy
    def _missing_price(self) -> float:
        """The least seconds that a byte of weights in RAM costs the request."""
        # A byte in RAM costs each token the time that the CPU reads it longer than the fastest
        # device.
        fastest = min(
            1 / (device.bandwidth * device.rates.read) for device in self.cost.devices.values()
        )
        # Of experts, a token reads only those that it chose.
        part = self.cost.weights.used if self.cost.weights.n_expert else 1.0
        return max(0.0, 1 / self.cost.host.ram - fastest) * part * self.policy.workload.generate

    @lazy
    def _on_devices(self) -> int:
        """The bytes of weights and caches with all layers on devices."""
        static = self.evaluator.static(replace(self.params, n_gpu_layers=self.ladders.top))
        return static.on_devices if static else 0

    def _missing(self, left: Mapping[str, int]) -> int:
        """Return the bytes of weights and caches that exceed these devices' memory."""
        return max(0, self._on_devices - sum(left[name] for name in self.machine.limits))

    def _cut_bound(self, left: Mapping[str, int]) -> float:
        more = self._missing(left) - self._missing(self.machine.limits)
        return self._cut_least + more * self._missing_price

    def cut(self, left: Mapping[str, int]) -> Option | None:
        """Return the fastest launch over several devices with this much memory left; None if there
        is none."""
        names = [
            name
            for name in self.evaluator.device_names(self.params)
            # A device that cannot hold the graph buffers of a split is left out.
            if left[name] > self._of_split(self.params).get(name, 0) * ALIKE
        ]
        while len(names) > 1:
            key = tuple((name, left[name]) for name in (*names, RAM))
            if key not in self._cuts:
                self._cuts[key] = self._cut(tuple(names), left)
            if self._cuts[key] is not None:
                return self._cuts[key]
            # it may be too small even for graph buffers
            names.remove(min(names, key=lambda name: left[name]))
        return None

    def measure_cut(self, option: Option) -> None:
        """Measures a launch that `cut` found; if it does not fit, `cut` will not return it
        again."""
        self.option(option.params)
        self._measure(option.params)
        # The buffers are known better now, so answers from before may be wrong.
        self._cuts.clear()

    def _measure(self, params: Params) -> None:
        """Notes what a launch over several devices takes besides weights and caches."""
        candidate = self.evaluator.candidate(params, FULL)
        if candidate is not None:
            self._of_cuts.record(self._point(params), candidate, 0)

    def _cut(self, names: tuple[str, ...], left: Mapping[str, int]) -> Option | None:
        # In llama.cpp's own order -dev says nothing.
        every = (
            self.given.device if names == tuple(self.evaluator.device_names(self.params)) else names
        )
        frame = Frame(self.problem, replace(self.params, device=every))
        whole = Ladder("layers", frame.given, self.ladders.everything)
        if not self._of_cuts.taken:
            # The first launch tells how large graph buffers over several devices are.
            self._measure(whole(self.ladders.top))

        option = self._laid_out(frame, whole, min(self.ladders.top, whole.top), left)
        if option is not None:
            return option
        options = [
            self._fewest_in_ram(frame, ladder, left) for ladder in self._ladders(frame.given)
        ]
        possible = [option for option in options if option is not None]
        return min(possible, key=lambda option: option.price, default=None)

    def _fewest_in_ram(
        self, frame: Frame, ladder: Ladder, left: Mapping[str, int]
    ) -> Option | None:
        """Return the launch over several devices with the fewest layers in RAM that fits."""
        taken = self._of_split(ladder.base)
        kind = PlacementKind(frame, ladder.kind, ladder.base, self._of_cuts, left)

        def fits(count: int) -> bool:
            return kind.divided(ladder, count, Needs.alike(taken)) is not None

        # Fewest by the last measured buffers; if they turn out larger, some layers more.
        fewest = max(1, ladder.top - last(0, ladder.top, fits))
        for number in range(fewest, min(ladder.top, fewest + _TRIES) + 1):
            option = self._laid_out(frame, ladder, ladder.top - number, left)
            if option is not None:
                return option
        return None

    def _of_split(self, params: Params) -> dict[str, int]:
        """Return the bytes per device that are neither weights nor caches in launches over several
        devices, as last measured."""
        return dict(self._of_cuts.at(self._point(params)).layers) if self._of_cuts.taken else {}

    @staticmethod
    def _point(params: Params) -> Point:
        """Return what these buffers depend on: devices that are left out change little."""
        return None, "cut", params.n_ctx or 0, params.n_ubatch or N_UBATCH

    def _laid_out(
        self, frame: Frame, ladder: Ladder, count: int, left: Mapping[str, int]
    ) -> Option | None:
        """Return a launch with its fastest split that fits, measured as needed."""
        # Grows until the split fits or is shown not to: sizes of this launch, not of others.
        taken = self._of_split(ladder.base)
        kind = PlacementKind(frame, ladder.kind, ladder.base, self._of_cuts, left)
        for _ in range(_TRIES):
            shape = kind.divided(ladder, count, Needs.alike(taken))
            if shape is None:
                return None
            static = self.evaluator.static(shape)
            if static is None:
                return None
            if shape.n_gpu_layers == self.ladders.everything:  # more may be given
                shape = replace(shape, n_gpu_layers=self.ladders.top)
            if shape not in self._options:
                # An estimate; the caller measures it if it is chosen (`measure_cut`).
                # A launch over several devices before it is measured
                takes = {
                    name: static.devices[name].total + taken.get(name, 0)
                    for name in self.evaluator.device_names(shape)
                }
                seconds = self.cost.predict(shape, static).request
                return Option(
                    shape,
                    takes,
                    self.evaluator.in_ram(static),
                    seconds,
                    self._price(seconds, len(takes)),
                    self._is_whole(shape),
                    measured=False,
                )
            option = self._options[shape]
            if option is None or option.fits(left):
                return option
            # The last division took more than expected of a device: divide with what it really
            # took.
            for name, size in option.takes.items():
                taken[name] = max(taken.get(name, 0), size - static.devices[name].total)
        return None
