"""Splits over unequal devices: of consecutive layers, fastest in sequence and fastest when
pipelined; their flags; and of every layer under -sm tensor."""

from __future__ import annotations

from ...flags.kinds import MOST_SHARES
from ...records import replace
from ...work.speed import layer_devices
from ..evaluate import FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...flags.params import Params
    from ...work.speed import CostModel
    from ..evaluate import Evaluator

# small integers, which match the ends of heads and blocks better than percentages
PARTS = range(2, 9)


def best_partition(
    sizes: Sequence[int],
    seconds: Sequence[Sequence[float]],
    capacities: Sequence[int],
    hop: float = 0.0,
    visits: Sequence[float] = (),
    of_output: tuple[Sequence[int], Sequence[int]] | None = None,
) -> tuple[int, ...] | None:
    """Return the consecutive layers for each device so that all fit in the least time; None if they
    cannot fit.

    `sizes` are bytes per layer, `capacities` bytes per device, and `seconds` the time of each layer
    on each device. `hop` is the cost in seconds of moving on to another device, `visits` the cost
    of each device that has layers; `of_output` the capacities of a device that has the last layer
    too, with others and alone. The order of the devices is llama.cpp's and cannot change. On a
    tie the first split in that order wins.
    """
    n = len(sizes)
    # held[j]: bytes of the first j layers, so that any range of layers is a difference.
    held = [0]
    for size in sizes:
        held.append(held[-1] + size)
    impossible = float("inf")
    best = [0.0] + [impossible] * n  # seconds of the first j layers on the devices so far
    chosen: list[list[int]] = []
    with_output, alone = of_output or (capacities, capacities)
    for i, (capacity, costs, visit) in enumerate(
        zip(capacities, seconds, visits or [0.0] * len(seconds), strict=True)
    ):
        # The same sums of this device's seconds.
        work = [0.0]
        for cost in costs:
            work.append(work[-1] + cost)
        # no layer at all
        after = list(best)
        origin = list(range(n + 1))
        for first in range(n):
            if best[first] == impossible:
                continue
            # No hop to the device that has the first layer.
            base = best[first] + visit + (hop if first else 0.0)
            at_end = alone[i] if first == n - 1 else with_output[i]
            for last in range(first + 1, n + 1):
                # More layers take more, but the last one may change what a device needs besides.
                if held[last] - held[first] > (at_end if last == n else capacity):
                    if last == n or held[n] - held[first] > at_end:
                        break
                    continue
                taken = base + work[last] - work[first]
                if taken < after[last]:
                    after[last], origin[last] = taken, first
        best = after
        chosen.append(origin)
    if best[n] == impossible:
        return None
    # Read backwards: where a device begins, the one before it ends.
    result: list[int] = []
    end = n
    for origin in reversed(chosen):
        result.append(end - origin[end])
        end = origin[end]
    return tuple(reversed(result))


def even_partition(
    sizes: Sequence[int], seconds: Sequence[Sequence[float]], capacities: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the consecutive layers for each device so that all fit and the slowest device takes
    the least time, which suits pipelined prompts; None if they cannot fit. Arguments as in
    best_partition."""
    n = len(sizes)

    def within(limit: float) -> list[int]:
        """Return as many layers as fit, device by device, where none takes longer than `limit`."""
        split = []
        layer = 0
        for capacity, costs in zip(capacities, seconds, strict=True):
            first = layer
            held = 0
            taken = 0.0
            while layer < n and held + sizes[layer] <= capacity and taken + costs[layer] <= limit:
                held += sizes[layer]
                taken += costs[layer]
                layer += 1
            split.append(layer - first)
        return split

    # The slowest device with all layers, and a little more, as sums are rounded.
    low = 0.0
    high = max((sum(costs) for costs in seconds), default=0.0) * (1 + 1e-9)
    if sum(within(high)) < n:
        return None
    for _ in range(20):  # to a millionth of the total
        middle = (low + high) / 2
        low, high = (low, middle) if sum(within(middle)) == n else (middle, high)
    return tuple(within(high))


# --- flags


def is_free(evaluator: Evaluator, params: Params) -> bool:
    """Return whether there is a split to choose: several devices, whole layers, and no flag that
    fixes it."""
    if evaluator.engine.cuts or len(evaluator.device_names(params)) < 2:
        return False
    return params.tensor_split is None and params.split_mode in (None, "layer")


def explicit_split(evaluator: Evaluator, params: Params) -> Params:
    """Return the flags with layer counts instead of llama.cpp's own split: free memory may change
    before the launch. Of a program that shares out bytes, with what its own split goes by."""
    if params.n_gpu_layers == 0 or not is_free(evaluator, params):
        return params
    if evaluator.engine.shares_bytes:
        shares = evaluator.estimator.shares(params, evaluator.machine.devices)
        given = replace(params, tensor_split=shares or None)
        same = evaluator.placement(given).dev_layer == evaluator.placement(params).dev_layer
        return given if same else params
    where = layer_devices(evaluator.placement(params))
    shares = short([where.count(name) for name in evaluator.device_names(params)])
    return replace(params, tensor_split=shares) if len(shares) <= MOST_SHARES else params


def shared(evaluator: Evaluator, params: Params, counts: Sequence[float]) -> Params:
    """Return the flags with these numbers of layers on each device."""
    if len(counts) < 2 or not evaluator.engine.shares_bytes:
        return replace(params, tensor_split=tuple(map(float, counts)))
    shares = evaluator.estimator.shares(params, evaluator.machine.devices, tuple(map(int, counts)))
    return replace(params, tensor_split=shares or None)


def short(counts: Sequence[int]) -> tuple[float, ...]:
    """Return the layers per device without those of the last devices that have none."""
    used = max((i for i, count in enumerate(counts) if count), default=0)
    return tuple([float(count) for count in counts[: used + 1]])


# --- slices of every layer


def slices(evaluator: Evaluator, cost: CostModel, given: Params) -> list[tuple[float, ...] | None]:
    """Return the values for -ts: llama.cpp's equal shares (None), and for unequal devices those by
    bandwidth and by the memory left for slices. Only one value if there is nothing to choose."""
    if given.split_mode != "tensor" or given.tensor_split is not None:
        return [given.tensor_split]
    names = evaluator.device_names(given)
    if len(names) < 2:
        return [None]
    limits = [float(evaluator.machine.limits[name]) for name in names]
    rates = [cost.devices[name].bandwidth for name in names]
    # llama.cpp's equal shares are right where memory and bandwidth differ by a twentieth at most.
    if all(max(each) <= 1.05 * min(each) for each in (limits, rates)):
        return [None]
    # The memory left for slices: without graph buffers, margins, and what every device holds in
    # full, which is what the last one holds with all slices on the first.
    on_first = tuple(float(i == 0) for i in range(len(names)))
    whole = evaluator.static(replace(given, tensor_split=on_first))
    equal = evaluator.candidate(given, FULL)
    left: list[float] = []
    if whole is not None and equal is not None:
        overheads = equal.overheads(evaluator.machine.limits)
        copied = whole.devices[names[-1]].model
        left = [
            limit - overheads.get(name, 0) - copied
            for name, limit in zip(names, limits, strict=True)
        ]
    wanted = [rates, left]
    shares = [
        _nearest_slices(evaluator, given, names, parts)
        for parts in wanted
        if min(parts, default=0) > 0
    ]
    return list(dict.fromkeys((None, *shares)))


def _nearest_slices(
    evaluator: Evaluator, given: Params, names: Sequence[str], parts: Sequence[float]
) -> tuple[float, ...]:
    """Return the shares whose slices come closest to these parts; slices end at heads and
    blocks."""

    def excess(shares: tuple[float, ...]) -> float:
        use = evaluator.static(replace(given, tensor_split=shares))
        if use is None:
            return float("inf")
        return max(
            (use.devices[name].model + use.devices[name].context) / part
            for name, part in zip(names, parts, strict=True)
        )

    whole = sum(parts)
    return min(
        # Of n parts in all, at least one each: per cent, or small integers (PARTS).
        (tuple(float(max(1, round(n * part / whole))) for part in parts) for n in (100, *PARTS)),
        key=excess,
    )
