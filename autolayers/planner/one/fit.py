"""What `llama-server --fit on` would choose by itself; no plan may be slower. Mirrors
common_params_fit_impl (common/fit.cpp, as modelled). It first reduces the context, unless that is
given. Then it places layers from the last device to the first, in mixtures of experts without their
experts. Then it places experts from the first device on, and a part of one more layer per
device."""

from __future__ import annotations

from ...backends import HOST
from ...flags.params import FIT_PARAMS_MIN_CTX, FIT_PARAMS_TARGET
from ...memory.context import CELL_BLOCK
from ...records import dataclass, replace
from ...units import MiB
from ..evaluate import FIT
from .contexts import streams_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...flags.params import Params
    from ...memory.breakdown import Static
    from ..evaluate import Candidate, Evaluator, Fidelity

ENDLESS = 1 << 62  # bytes of a launch that llama.cpp would refuse
# The part of a partly offloaded layer that goes elsewhere, by the part that stays
# get_overflow_pattern: what leaves, by common_layer_fraction_t.
_ELSEWHERE = {
    "attention": "ffn_(gate|up|gate_up|down).*",
    "up": "ffn_(gate|gate_up|down).*",
    "gate": "ffn_down.*",
    "dense": "ffn_(up|down|gate_up|gate)_(ch|)exps",
}


def whole_ffn_elsewhere(params: Params) -> Params | None:
    """Return the flags with all FFN weights of a layer on the other device that has a part of them:
    fewer hops, which --fit does not weigh. None if there is no such part."""
    rules = tuple(
        [
            (pattern if buffer == HOST else _of_whole_ffn(pattern), buffer)
            for pattern, buffer in params.overrides
        ]
    )
    return None if rules == params.overrides else replace(params, overrides=rules)


def _of_whole_ffn(pattern: str) -> str:
    r"""Return the rule of a device's first partial layer, e.g. r"blk\.12\.ffn_down.*", with all FFN
    weights; any other rule as it is."""
    for part in ("up", "gate"):
        if pattern.endswith(_ELSEWHERE[part]):
            return pattern.removesuffix(_ELSEWHERE[part]) + _ELSEWHERE["attention"]
    return pattern


@dataclass(frozen=True)
class _Shape:
    """Per device: its layers, how many of them (the last ones) are partial, what stays of the first
    partial one, and the buffer for the rest of it; `start` is the first device whose layers may
    still lack their experts."""

    # As ngl_t in fit.cpp: n_layer, n_part and overflow_type of each device, and its overflow
    # buffer.
    layers: tuple[int, ...]
    part: tuple[int, ...]
    stays: tuple[str, ...]
    spill: tuple[str, ...]
    start: int = 0

    def put(self, device: int, **changes: object) -> _Shape:
        """Return this shape with other values for one device."""
        fields = {name: _at(getattr(self, name), device, value) for name, value in changes.items()}
        return replace(self, **fields)  # type: ignore[arg-type]


def _at(values: tuple[object, ...], index: int, value: object) -> tuple[object, ...]:
    return (*values[:index], value, *values[index + 1 :])


def fit(evaluator: Evaluator, given: Params, fidelity: Fidelity) -> Candidate | None:
    """Return the launch that --fit makes of the given flags, measured; None if llama.cpp would
    refuse it.

    Whether it fits is decided by the plan's own margins, not by --fit's.
    """

    def measure(params: Params, limits: Mapping[str, int]) -> Static | None:
        return evaluator.usage(params, limits, FIT)

    params = _Fit(evaluator, given, measure).choose()
    return None if params is None else evaluator.candidate(params, fidelity)


def fit_with_overheads(
    evaluator: Evaluator,
    given: Params,
    overheads: Mapping[str, int],
    targets: Mapping[str, int] | None = None,
) -> Params | None:
    """Return what --fit would choose if everything but weights and caches took `overheads` bytes of
    each used device, and if it filled the devices up to `targets` (None: to its own margin).
    Measures nothing."""

    def measure(params: Params, limits: Mapping[str, int]) -> Static | None:
        return _with_compute(evaluator.static(params), overheads)

    return _Fit(evaluator, given, measure, targets).choose()


def fit_estimated(evaluator: Evaluator, given: Params, fidelity: Fidelity) -> Params | None:
    """Return what --fit would choose if graph buffers are close to those of earlier launches; only
    what that leaves undecided is measured."""

    def measure(params: Params, limits: Mapping[str, int]) -> Static | None:
        static = evaluator.static(params)
        ranges = evaluator.compute_range(params.n_ctx)
        if static is None:
            return None
        for name, limit in limits.items():
            taken = static.devices[name].total
            if not taken:
                continue
            smallest, largest = ranges.get(name, (0, limit))
            # A launch whose buffers may decide either way is measured; the smallest and largest
            # known ones, with an eighth more on both sides, decide the others.
            if taken + smallest * 7 // 8 <= limit < taken + largest * 9 // 8:
                return evaluator.usage(params, limits, fidelity)
        return _with_compute(static, {name: sum(sizes) // 2 for name, sizes in ranges.items()})

    return _Fit(evaluator, given, measure).choose()


def _with_compute(use: Static | None, compute: Mapping[str, int]) -> Static | None:
    """Return a launch's sizes with these graph buffers, on the devices that have weights."""
    if use is None:
        return None
    devices = {}
    for name, usage in use.devices.items():
        size = compute.get(name, 0) if usage.model else 0
        devices[name] = replace(usage, compute=size)
    return replace(use, devices=devices)


class _Fit:
    """One run of common_params_fit_impl. `measure(params, limits)` returns what a launch allocates,
    or a lower bound above `limits` for some device; `targets`: bytes up to which to fill each
    device."""

    def __init__(
        self,
        evaluator: Evaluator,
        given: Params,
        measure: Callable[[Params, Mapping[str, int]], Static | None],
        targets: Mapping[str, int] | None = None,
    ) -> None:
        self.up_to = targets
        self.evaluator = evaluator
        self.given = given
        self.measure = measure
        self.names: list[str] = []
        self.n_layer = evaluator.model.hparams.n_layer_all
        self.experts = bool(evaluator.model.hparams.n_expert)
        self.n_ctx = given.n_ctx

    def choose(self) -> Params | None:
        """Return the flags that --fit ends with."""
        given = self.given
        model = self.evaluator.model
        # common_params_fit_impl throws here, and llama-server goes on with the flags as they are.
        if given.split_mode == "tensor":
            return given
        automatic = given.n_ctx is None and not given.kv_unified_per_slot
        # n_ctx_max and n_ctx_min_total: both for each stream.
        largest = model.n_ctx_train * streams_of(given)
        smallest = (given.fit_ctx or FIT_PARAMS_MIN_CTX) * streams_of(given)
        if automatic:
            self.n_ctx = largest
        with_context = replace(given, n_ctx=self.n_ctx)
        self.names = self.evaluator.device_names(given)
        if not self.names:
            return with_context
        # The bytes up to which to fill each device: what is free, less --fit-target.
        if self.up_to is not None:
            self.targets = {name: self.up_to[name] for name in self.names}
        else:
            # llama_memory_recurrent really allocates its states while llama.cpp measures, and the
            # free memory is read meanwhile: they count twice.
            states = self.evaluator.states(with_context)
            free = {
                device.name: device.free - states.get(device.name, 0)
                for device in self.evaluator.machine.devices
            }
            # 1024 MiB by default; the last of several values is also that of all further devices.
            wanted = self.given.fit_target or (FIT_PARAMS_TARGET,)
            self.targets = {
                name: free[name] - wanted[min(i, len(wanted) - 1)] * MiB
                for i, name in enumerate(self.names)
            }
        total = sum(self.targets.values())
        if automatic and largest > smallest and self._crowded(largest, smallest):
            self.n_ctx = smallest
            return self._placed()
        full = self.measure(with_context, {} if automatic else self.targets)
        if full is None:
            return None
        used = self._used(full)
        # Step 1: nothing needs to change.
        if all(use <= target for use, target in zip(used, self.targets.values(), strict=True)):
            return with_context
        # Step 2: less context, if all devices together lack memory.
        if automatic and sum(used) > total and largest > smallest:
            enough = self._shrink(largest, smallest, full)
            # One device then holds everything; of several each still needs its layers.
            if enough is None or (enough and len(self.names) == 1):
                return replace(given, n_ctx=self.n_ctx)
        return self._placed()

    def _placed(self) -> Params:
        """Return the flags with layers placed, unless they say where."""
        given = self.given
        # Flags that place layers or tensors end the search (an exception in fit.cpp); the context
        # stays.
        fixed = given.gives_layers or bool(given.overrides)
        split = any(share != 0 for share in given.tensor_split or ()) or given.split_mode == "row"
        if fixed or (len(self.names) > 1 and split):
            return replace(given, n_ctx=self.n_ctx)
        return self._place()

    def _crowded(self, largest: int, smallest: int) -> bool:
        """Return whether bounds show that even the smallest context is too large: what both take,
        by which others are interpolated, then need not be measured."""
        total = sum(self.targets.values())
        alone = len(self.names) == 1

        def taken(use: Static | None) -> int:
            return 0 if use is None else sum(self._used(use))

        if taken(self.evaluator.static(replace(self.given, n_ctx=largest))) <= total:
            return False
        at_least = replace(self.given, n_ctx=smallest)
        small = self.evaluator.static(at_least)
        # Measured only where weights and caches alone are not too much: on one device this decides.
        if alone and taken(small) < total:
            small = self.measure(at_least, {self.names[0]: total - 1})
        return taken(small) >= total

    def _used(self, use: Static) -> list[int]:
        return [use.devices[name].total for name in self.names]

    def _shrink(self, largest: int, smallest: int, full: Static) -> bool | None:
        """Set the context between the two by linear interpolation; False if even the smallest is
        too large."""
        target = sum(self.targets.values())
        if len(self.names) > 1:
            # Several devices waste half a layer each, in mixtures, which place single tensors, a
            # sixth.
            per_layer = sum(full.devices[name].model for name in self.names) // max(1, self.n_layer)
            target -= (len(self.names) + 1) * per_layer // (6 if self.experts else 2)
        small = self.measure(replace(self.given, n_ctx=smallest), {})
        if small is None:
            return None
        self.n_ctx = smallest
        used_least = sum(self._used(small))
        used_most = sum(self._used(full))
        if target <= used_least:
            return False
        n_ctx = smallest + (largest - smallest) * (target - used_least) // max(
            1, used_most - used_least
        )
        # 256 cells for each stream, as `align` in fit.cpp.
        step = CELL_BLOCK * max(1, smallest // (self.given.fit_ctx or FIT_PARAMS_MIN_CTX))
        self.n_ctx = max(n_ctx - n_ctx % step, smallest)
        return True

    # --- layers

    def _params(self, shape: _Shape) -> Params:
        rules: list[tuple[str, str]] = []
        total = sum(shape.layers)
        # set_ngl_tensor_split_tbo: the partial layers of a device are its last ones.
        layer = self.n_layer + 1 - total
        for device in range(len(self.names)):
            layer += shape.layers[device] - shape.part[device]
            for i in range(shape.part[device]):
                # Only a part of the first one may go to the next device; of the others the experts
                # go to RAM.
                stays, buffer = (
                    (shape.stays[device], shape.spill[device]) if i == 0 else ("dense", HOST)
                )
                rules.append((rf"blk\.{layer + i}\.{_ELSEWHERE[stays]}", buffer))
            layer += shape.part[device]
        split = tuple(float(n) for n in shape.layers) if len(self.names) > 1 and total else None
        return replace(
            self.given,
            n_ctx=self.n_ctx,
            n_gpu_layers=total,
            tensor_split=split,
            overrides=tuple(rules),
        )

    def _memory(self, shape: _Shape, *devices: int, ceiling: int | None = None) -> list[int]:
        """Return the bytes per device. Measuring stops as soon as one of these devices exceeds its
        target (or `ceiling`)."""
        limits = {
            self.names[d]: self.targets[self.names[d]] if ceiling is None else ceiling
            for d in devices
        }
        use = self.measure(self._params(shape), limits)
        return [ENDLESS] * len(self.names) if use is None else self._used(use)

    def _place(self) -> Params:
        count = len(self.names)
        shape = _Shape((0,) * count, (0,) * count, ("dense",) * count, (HOST,) * count)
        surplus = 0
        # global_surplus_cpu_moe: experts are placed only where everything else fits.
        if self.experts:
            bare = self.measure(
                replace(
                    self.given,
                    n_ctx=self.n_ctx,
                    overrides=((r"blk\.\d+\." + _ELSEWHERE["dense"], HOST),),
                ),
                {},
            )
            surplus = sum(self.targets.values()) - (
                sum(self._used(bare)) if bare is not None else ENDLESS
            )
        # Step 3: the last device first, as it has the output layer.
        for device in reversed(range(count)):
            left = self.n_layer + 1 - sum(shape.layers)
            if left:
                shape = self._fill(
                    shape,
                    self._dense(shape, device, left),
                    device,
                    lambda s, n, d=device: self._dense(s, d, n),  # type: ignore[misc]
                    lambda s, d=device: s.layers[d],  # type: ignore[misc]
                )
        # Step 4: whole layers instead of those without experts, from the first device on.
        if self.experts and surplus > 0 and any(n > 0 for n in shape.layers):
            shape = self._convert(shape)
        return self._params(shape)

    def _dense(self, shape: _Shape, device: int, more: int) -> _Shape:
        """Return `more` layers for a device, without their experts; the output layer, the first of
        the last device, is complete."""
        part = shape.part[device]
        if self.experts:
            part += (
                more - 1 if device == len(self.names) - 1 and shape.layers[device] == 0 else more
            )
        return shape.put(device, layers=shape.layers[device] + more, part=part)

    def _fill(
        self,
        low: _Shape,
        high: _Shape,
        device: int,
        grow: Callable[[_Shape, int], _Shape],
        size: Callable[[_Shape], int],
    ) -> _Shape:
        """Return the largest shape that fits, between one that fits and one that may not, by false
        position on one device's memory."""
        target = self.targets[self.names[device]]
        memory_high = self._memory(high, device)
        if memory_high[device] <= target:
            return high
        # a lower bound is enough for the first guess
        memory = self._memory(low, device, ceiling=0)
        delta = size(high) - size(low)
        while delta > 1:
            # step_size of fit.cpp: where the line between both would meet the target.
            step = delta * (target - memory[device]) // max(1, memory_high[device] - memory[device])
            test = grow(low, min(max(step, 1), delta - 1))
            memory_test = self._memory(test, device)
            if memory_test[device] <= target:
                low = test
                memory = memory_test
            else:
                high = test
                memory_high = memory_test
            before = delta
            delta = size(high) - size(low)
            # Where nothing can be moved between them the sizes stay equal: no step would end that.
            if delta >= before:
                break
        return low

    # --- experts

    def _convert(self, shape: _Shape) -> _Shape:
        last = len(self.names) - 1
        # id_dense_start: of the devices at the back that have layers, the first.
        start = last
        while start > 0 and shape.layers[start - 1] and shape.layers[start]:
            start -= 1
        shape = replace(shape, start=start)
        for device in range(last + 1):
            if device > shape.start:
                break
            # The upper end: all layers without experts become whole ones of this device.
            dense = sum(shape.part[shape.start :])
            high = replace(self._whole(shape, device, dense), start=last)
            shape = self._fill(
                shape,
                high,
                device,
                lambda s, n, d=device: self._whole(s, d, n),  # type: ignore[misc]
                lambda s, d=device: s.layers[d] - s.part[d],  # type: ignore[misc]
            )
            # A part of one more layer can only be of one that still lacks its experts.
            if shape.part[shape.start]:
                shape = self._extra(shape, device)
        return shape

    def _whole(self, shape: _Shape, device: int, more: int) -> _Shape:
        """Return the shape with `more` of the trailing dense-only layers complete, on one
        device."""
        start = shape.start
        while True:
            moved = min(more, shape.part[start])
            shape = shape.put(
                start, layers=shape.layers[start] - moved, part=shape.part[start] - moved
            )
            shape = shape.put(device, layers=shape.layers[device] + moved)
            more -= moved
            if shape.part[start] or start == len(self.names) - 1:
                return replace(shape, start=start)
            start += 1

    def _extra(self, shape: _Shape, device: int) -> _Shape:
        """Return a part of one more layer: up and perhaps gate, otherwise attention alone."""
        last = len(self.names) - 1
        donor = shape.start
        moved = shape.put(donor, layers=shape.layers[donor] - 1, part=shape.part[donor] - 1)
        # What does not stay overflows to the next device, of the last one to RAM.
        moved = moved.put(
            device,
            layers=moved.layers[device] + 1,
            part=moved.part[device] + 1,
            spill=self.names[device + 1] if device < last else HOST,
        )
        if not moved.part[donor] and donor < last:
            moved = replace(moved, start=donor + 1)
        # LAYER_FRACTION_UP, then GATE if that fits, otherwise ATTN: the order of fit.cpp.
        up = moved.put(device, stays="up")
        if not self._both_fit(up, device):
            attention = moved.put(device, stays="attention")
            return attention if self._both_fit(attention, device) else shape
        gate = moved.put(device, stays="gate")
        return gate if self._both_fit(gate, device) else up

    def _both_fit(self, shape: _Shape, device: int) -> bool:
        both = [d for d in (device, device + 1) if d < len(self.names)]
        # Strictly below the targets here, while whole layers may reach them: so in fit.cpp.
        memory = self._memory(shape, *both)
        return all(memory[d] < self.targets[self.names[d]] for d in both)
