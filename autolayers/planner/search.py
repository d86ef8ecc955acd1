"""Two searches over measured launches: the largest number of layers, and the largest context."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..memory.breakdown import Breakdown
    from ..params import Params
    from .probe import Probe, Trial


def largest_count(probe: Probe, make: Callable[[int], Params], top: int) -> Trial | None:
    """The launch with the largest count in 0..top that fits on the devices, or None.

    Weights and caches grow with the count and are cheap to know; graph buffers are not and need not grow: they
    drop where the last layer leaves the CPU. So the cheap part rules counts out, and the buffers last measured
    tell what to measure next.
    """
    best = probe.trial(make(top)) if probe.possible(make(top)) else None
    if best is not None and best.on_devices:
        return best
    ceiling = last(-1, top, lambda count: probe.possible(make(count)))
    low, found = _between(probe, make, -1, ceiling + 1, None, best, lambda trial: trial.on_devices)
    # Buffers may shrink again just above: a layer less on the CPU is a copy less.
    if low + 2 <= ceiling:
        trial = probe.trial(make(low + 2))
        if trial is not None and trial.on_devices:
            return trial
    return found


def largest_context(probe: Probe, make: Callable[[int], Params], low: int, high: int, step: int,
                    above: Trial | None = None) -> Trial | None:
    """The launch with the largest context of low, high or a multiple of `step` between them that fits, or None. `above` is
    the launch at `high`, where it is known not to fit; then the smallest is only asked for if no other fits."""
    most = above or (probe.trial(make(high)) if probe.possible(make(high)) else None)
    if most is not None and most.fits:
        return most
    least = probe.trial(make(low)) if low < high and above is None else None
    if above is None and (least is None or not least.fits):
        return None
    first = low // step            # of the steps, none of them below `low`
    _, found = _between(probe, lambda n: make((first + n) * step), 0, -(-high // step) - first, least, most, lambda trial: trial.fits)
    if found is None and above is not None:
        least = probe.trial(make(low))
    return found or least


def _between(probe: Probe, make: Callable[[int], Params], low: int, high: int, below: Trial | None, above: Trial | None,
             fits: Callable[[Trial], bool]) -> tuple[int, Trial | None]:
    """(number, launch) of the largest number between low, which fits, and high, which does not; (low, None) if none does.
    `below` and `above` are their launches, or ones like them, where they were measured."""
    found: Trial | None = None
    first, end = low, high
    steps = 0
    while low + 1 < high:
        if steps < 5:
            known = [(n, trial) for n, trial in ((first, below), (end, above)) if trial is not None]
            guess = last(low, high - 1, lambda n, known=known: _expected(probe, make(n), n, known)) if known else high - 1  # type: ignore[misc]
        else:                      # buffers that jump about: no guess is better than the middle
            guess = (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
        trial = probe.trial(make(guess))
        if trial is not None and fits(trial):
            found, low, first, below = trial, guess, guess, trial
        else:
            high = guess
            if trial is not None:
                end, above = guess, trial
        steps += 1
    return low, found


def last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last of low..high for which it holds; low itself is not asked."""
    high += 1
    while low + 1 < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _expected(probe: Probe, params: Params, n: int, known: list[tuple[int, Trial]]) -> bool:
    """Whether these flags should fit: weights and caches are known, the rest follows from the launches of one or two other
    numbers, on whose line it is expected to lie."""
    static = probe.static(params)
    if static is None:
        return False
    (first, near), (second, far) = known[0], known[-1]
    part = 0.0 if first == second else (n - first) / (second - first)
    for name in near.spare.keys() | far.spare.keys():
        limit = probe.machine.limits[name]
        beside = [limit - trial.spare.get(name, limit) - _static(trial.breakdown, name) for trial in (near, far)]
        if beside[0] + (beside[1] - beside[0]) * part + _static(static, name) > limit:
            return False
    return True


def _static(use: Breakdown, name: str) -> int:
    return use.devices[name].model + use.devices[name].context
