"""Splits of consecutive layers over unequal devices: fastest in sequence, and fastest when
pipelined."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def best_partition(
    sizes: Sequence[int],
    seconds: Sequence[Sequence[float]],
    capacities: Sequence[int],
    hop: float = 0.0,
    visits: Sequence[float] = (),
) -> tuple[int, ...] | None:
    """Consecutive layers for each device so that all fit in the least time; None if they cannot
    fit.

    `sizes` are bytes per layer, `capacities` bytes per device, and `seconds` the time of each layer
    on each device. `hop` is the cost in seconds of moving on to another device, `visits` the cost
    of each device that has layers. The order of the devices is llama.cpp's and cannot change. On a
    tie the first split in that order wins.
    """
    n = len(sizes)
    held = [0]
    for size in sizes:
        held.append(held[-1] + size)
    impossible = float("inf")
    best = [0.0] + [impossible] * n  # seconds of the first j layers on the devices so far
    chosen: list[list[int]] = []
    for capacity, costs, visit in zip(
        capacities, seconds, visits or [0.0] * len(seconds), strict=True
    ):
        work = [0.0]
        for cost in costs:
            work.append(work[-1] + cost)
        after, origin = list(best), list(range(n + 1))  # no layer at all
        for first in range(n):
            if best[first] == impossible:
                continue
            base = best[first] + visit + (hop if first else 0.0)
            for last in range(first + 1, n + 1):
                if held[last] - held[first] > capacity:
                    break
                taken = base + work[last] - work[first]
                if taken < after[last]:
                    after[last], origin[last] = taken, first
        best = after
        chosen.append(origin)
    if best[n] == impossible:
        return None
    result: list[int] = []
    end = n
    for origin in reversed(chosen):
        result.append(end - origin[end])
        end = origin[end]
    return tuple(reversed(result))


def even_partition(
    sizes: Sequence[int], seconds: Sequence[Sequence[float]], capacities: Sequence[int]
) -> tuple[int, ...] | None:
    """Consecutive layers for each device so that all fit and the slowest device takes the least
    time, which suits pipelined prompts; None if they cannot fit. Arguments as in best_partition."""
    n = len(sizes)

    def within(limit: float) -> list[int]:
        """As many layers as fit, device by device, where none takes longer than `limit`."""
        split, layer = [], 0
        for capacity, costs in zip(capacities, seconds, strict=True):
            first, held, taken = layer, 0, 0.0
            while layer < n and held + sizes[layer] <= capacity and taken + costs[layer] <= limit:
                held, taken, layer = held + sizes[layer], taken + costs[layer], layer + 1
            split.append(layer - first)
        return split

    low, high = 0.0, max((sum(costs) for costs in seconds), default=0.0) * (1 + 1e-9)
    if sum(within(high)) < n:
        return None
    for _ in range(20):  # to a millionth of the total
        middle = (low + high) / 2
        low, high = (low, middle) if sum(within(middle)) == n else (middle, high)
    return tuple(within(high))
