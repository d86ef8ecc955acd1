"""The best split of consecutive layers over unequal devices."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def best_partition(sizes: Sequence[int], costs: Sequence[float], capacities: Sequence[int], slowness: Sequence[float],
                   hop: float = 0.0) -> tuple[int, ...] | None:
    """Consecutive layers for each device so that all fit and take the least time; None if they cannot fit.

    `sizes` are bytes to hold and `costs` work per layer, `capacities` bytes per device and `slowness` its seconds for
    a unit of work; `hop` is the price in seconds of going on to one more device. The order of the devices is
    llama.cpp's and cannot change. Of equally fast splits the first found in that order.
    """
    n = len(sizes)
    held, work = [0], [0.0]
    for size, cost in zip(sizes, costs, strict=True):
        held.append(held[-1] + size)
        work.append(work[-1] + cost)
    impossible = float("inf")
    best = [0.0] + [impossible] * n            # seconds for the first j layers on the devices so far
    chosen: list[list[int]] = []
    for capacity, slow in zip(capacities, slowness, strict=True):
        after, origin = list(best), list(range(n + 1))       # no layer at all
        for first in range(n):
            if best[first] == impossible:
                continue
            base = best[first] + (hop if first else 0.0)
            for last in range(first + 1, n + 1):
                if held[last] - held[first] > capacity:
                    break
                seconds = base + (work[last] - work[first]) * slow
                if seconds < after[last]:
                    after[last], origin[last] = seconds, first
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
