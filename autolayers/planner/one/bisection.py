"""Two searches over measured launches: the largest number of layers, and the largest context."""

from __future__ import annotations

from ..buffers import ALIKE, SIMILAR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...flags.params import Params
    from ..evaluate import Candidate, Evaluator, Fidelity

_RAM = "RAM"


def largest_count(
    evaluator: Evaluator,
    make: Callable[[int], Params],
    top: int,
    fidelity: Fidelity,
    overheads: Mapping[str, int],
) -> Candidate | None:
    """Return the launch with the largest count in 0..top that fits on the devices, or None.

    Weights and caches grow with the count and are cheap to compute. Graph buffers are neither: they
    shrink when the last layer leaves the CPU. So weights and caches rule counts out, and the last
    measured buffers (before that, `overheads`) choose what to measure next.
    """
    # All of it first: often it fits, and otherwise its buffers guide the search.
    best = evaluator.candidate(make(top), fidelity) if evaluator.may_fit(make(top)) else None
    if best is not None and best.fits_devices:
        return best
    # Weights and caches alone rule counts out without a graph.
    ceiling = last(-1, top, lambda count: evaluator.may_fit(make(count)))
    low, largest = _between(
        evaluator,
        make,
        -1,
        ceiling + 1,
        fidelity,
        None,
        best,
        False,
        ALIKE,
        overheads,
    )
    # the next larger count may fit again: one layer fewer on the CPU saves a copy
    if low + 2 <= ceiling and _may_fit_again(evaluator, make, low, largest, fidelity):
        candidate = evaluator.candidate(make(low + 2), fidelity)
        if candidate is not None and candidate.fits_devices:
            return candidate
    return largest


def largest_context(
    evaluator: Evaluator,
    make: Callable[[int], Params],
    low: int,
    high: int,
    step: int,
    fidelity: Fidelity,
    above: Candidate | None = None,
    below: Candidate | None = None,
) -> Candidate | None:
    """Return the launch with the largest context that fits, out of low, high and the multiples of
    `step` between them, or None. `below` is the launch at `low`, if known to fit. `above` is the
    launch at `high`, if known not to fit; then the smallest is tried only if no other fits."""
    may_fit = (
        evaluator.may_fit(make(high))
        if below is None
        else _may_fit(evaluator, make(high), below, ALIKE, True)
    )
    # The largest first, as nothing could be better.
    at_high = above or (evaluator.candidate(make(high), fidelity) if may_fit else None)
    if at_high is not None and at_high.fits:
        return at_high
    at_low = below
    if below is None and above is None and low < high:
        at_low = evaluator.candidate(make(low), fidelity)
    if above is None and (at_low is None or not at_low.fits):
        return None
    first = low // step  # in steps, none of them below `low`
    _, largest = _between(
        evaluator,
        lambda n: make((first + n) * step),
        0,
        -(-high // step) - first,
        fidelity,
        at_low,
        at_high,
        True,
        1.0,
    )
    # Only now: in most searches some larger one fits.
    if largest is None and above is not None:
        at_low = evaluator.candidate(make(low), fidelity)
    return largest or at_low


def _between(
    evaluator: Evaluator,
    make: Callable[[int], Params],
    low: int,
    high: int,
    fidelity: Fidelity,
    below: Candidate | None,
    above: Candidate | None,
    ram: bool,
    share: float,
    overheads: Mapping[str, int] | None = None,
) -> tuple[int, Candidate | None]:
    """Return (number, launch) of the largest number between low, which fits, and high, which does
    not; (low, None) if none does. `below` and `above` are their launches, or similar ones, if
    measured; if neither is, `overheads` are assumed. With `ram` system memory counts too. A larger
    number needs at least this `share` of the overheads of one that fits."""
    best: Candidate | None = None
    first = low
    end = high
    steps = 0
    while low + 1 < high:
        if steps < 5:
            points = [
                (n, measured)
                for n, measured in ((first, below), (end, above))
                if measured is not None
            ]

            # `points` as a default, as the function is made in a loop.
            def expected(n: int, points: list[tuple[int, Candidate]] = points) -> bool:
                return _expected(evaluator, make(n), n, points, ram, overheads or {})

            guess = last(low, high - 1, expected) if points or overheads else high - 1
        else:  # buffer sizes are not monotonic here: fall back to bisection
            guess = (low + high) // 2
        guess = max(guess, low + 1)
        # Too large for certain: it needs `share` of the overheads of one that fits.
        if best is not None and not _may_fit(evaluator, make(guess), best, share, ram):

            def may(n: int, alike: Candidate = best) -> bool:
                return _may_fit(evaluator, make(n), alike, share, ram)

            high = last(low, guess - 1, may) + 1
            continue
        candidate = evaluator.candidate(make(guess), fidelity)
        if candidate is not None and (candidate.fits if ram else candidate.fits_devices):
            best = candidate
            low = guess
            first = guess
            below = candidate
        else:
            high = guess
            if candidate is not None:
                end = guess
                above = candidate
        steps += 1
    return low, best


def last(low: int, high: int, holds: Callable[[int], bool], near: int = -1) -> int:
    """Return the last of low..high for which `holds` is true, assuming it for low. `near`, if in
    range, is tested first: close to the answer it saves tests."""
    # From `near` outwards in doubling steps, then by halves.
    high += 1
    step = 1
    while low < near < high:
        if holds(near):
            low = near
            near += step
        else:
            high = near
            near -= step
        step *= 2
    while low + 1 < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _expected(
    evaluator: Evaluator,
    params: Params,
    n: int,
    points: list[tuple[int, Candidate]],
    ram: bool,
    overheads: Mapping[str, int],
) -> bool:
    """Return whether these flags should fit: weights and caches are known, the rest is extrapolated
    from the launches of one or two other numbers, or is `overheads` if there are none."""
    needs = _needs(evaluator, params, ram)
    limits = _limits(evaluator, ram)
    if not needs:
        return False
    if not points:
        return all(
            taken + overheads.get(name, 0) <= limits[name]
            for name, taken in needs.items()
            if taken and name != _RAM
        )
    (first, near), (second, far) = points[0], points[-1]
    # On the line through the overheads of the two that were measured.
    part = 0.0 if first == second else (n - first) / (second - first)
    at_near, at_far = _overheads(evaluator, near, ram), _overheads(evaluator, far, ram)
    for name in at_near.keys() | at_far.keys():
        # A device that one of them does not use takes what its layers take.
        here, there = (
            sizes.get(name, -_needs(evaluator, it.params, ram).get(name, 0))
            for sizes, it in ((at_near, near), (at_far, far))
        )
        if here + (there - here) * part + needs[name] > limits[name]:
            return False
    return True


def _may_fit_again(
    evaluator: Evaluator,
    make: Callable[[int], Params],
    low: int,
    at_low: Candidate | None,
    fidelity: Fidelity,
) -> bool:
    """Return whether low + 2 may fit although low + 1 does not, if it needs SIMILAR of its graph
    buffers and margin."""
    # Mostly what low needs rules it out, and low + 1 need not be measured.
    if at_low and not _may_fit(evaluator, make(low + 2), at_low, ALIKE * SIMILAR):
        return False
    above = evaluator.candidate(make(low + 1), fidelity)
    return above is None or _may_fit(evaluator, make(low + 2), above, SIMILAR)


def _may_fit(
    evaluator: Evaluator, params: Params, alike: Candidate, share: float, ram: bool = False
) -> bool:
    """Return whether a launch may fit if it needs at least this share of another one's graph
    buffers and margins; with `ram` in system memory too."""
    needs, limits = _needs(evaluator, params, ram), _limits(evaluator, ram)
    return bool(needs) and all(
        needs[name] + size * share <= limits[name]
        for name, size in _overheads(evaluator, alike, ram).items()
    )


def _limits(evaluator: Evaluator, ram: bool) -> dict[str, int]:
    """Return the bytes of the devices; with `ram` those of system memory, where it has a limit."""
    limits = dict(evaluator.machine.limits)
    if ram and evaluator.machine.ram is not None:
        limits[_RAM] = evaluator.machine.ram
    return limits


def _needs(evaluator: Evaluator, params: Params, ram: bool) -> dict[str, int]:
    """Return what is known of a launch without a graph: weights and caches, in system memory what
    the server holds too. Empty if llama.cpp would refuse it, or if the budget is spent."""
    use = evaluator.static(params)
    if use is None:
        return {}
    needs = {name: usage.model + usage.context for name, usage in use.devices.items()}
    return {**needs, _RAM: evaluator.ram_of(params, use)} if ram else needs


def _overheads(evaluator: Evaluator, measured: Candidate, ram: bool) -> dict[str, int]:
    """Return what a measured launch takes besides, and leaves free."""
    limits = _limits(evaluator, ram)
    sizes = measured.overheads(limits)
    if ram and measured.ram_spare is not None:
        needs = _needs(evaluator, measured.params, ram)
        sizes[_RAM] = limits[_RAM] - measured.ram_spare - needs.get(_RAM, 0)
    return sizes
