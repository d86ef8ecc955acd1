"""Two searches over measured launches: the largest number of layers, and the largest context."""

from __future__ import annotations

from functools import partial

from ...records import dataclass, replace
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
    counts = _Numbers(evaluator, make, fidelity, False)
    # All of it first: often it fits, and otherwise its buffers guide the search.
    best = counts.measured(top) if evaluator.may_fit(make(top)) else None
    if best is not None and best.fits_devices:
        return best
    # Weights and caches alone rule counts out without a graph.
    ceiling = last(-1, top, lambda count: evaluator.may_fit(make(count)))
    low, largest = counts.between(-1, ceiling + 1, None, best, ALIKE, overheads)
    # the next larger count may fit again: one layer fewer on the CPU saves a copy
    if low + 2 <= ceiling and counts.may_fit_again(low, largest):
        candidate = counts.measured(low + 2)
        if candidate is not None and candidate.fits_devices:
            return candidate
    return largest


def largest_context(
    evaluator: Evaluator, known: Candidate, low: int, high: int, step: int, fidelity: Fidelity
) -> Candidate | None:
    """Return the launch with the largest context that fits, out of low, high and the multiples of
    `step` between them, or None. `known` is the launch at `low` if it fits, otherwise that at
    `high`; the smallest is then tried only if no other fits."""
    first = low // step  # in steps, none of them below `low`
    end = -(-high // step) - first

    def make(n: int) -> Params:
        return replace(known.params, n_ctx=n)

    steps = _Numbers(evaluator, lambda n: make((first + n) * step), fidelity, True)
    if not known.fits:
        _, largest = steps.between(0, end, None, known, 1.0, {})
        return largest or evaluator.candidate(make(low), fidelity)
    # The largest first, as nothing could be better.
    at_high = None
    if steps.may_fit(make(high), known, ALIKE):
        at_high = evaluator.candidate(make(high), fidelity)
    if at_high is not None and at_high.fits:
        return at_high
    _, largest = steps.between(0, end, known, at_high, 1.0, {})
    return largest or known


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


@dataclass(frozen=True)
class _Numbers:
    """Launches by a number, each measured to this fidelity; with `ram` system memory counts too."""

    evaluator: Evaluator
    make: Callable[[int], Params]
    fidelity: Fidelity
    ram: bool

    def measured(self, n: int) -> Candidate | None:
        return self.evaluator.candidate(self.make(n), self.fidelity)

    def between(
        self,
        low: int,
        high: int,
        at_low: Candidate | None,
        at_high: Candidate | None,
        share: float,
        overheads: Mapping[str, int],
    ) -> tuple[int, Candidate | None]:
        """Return (number, launch) of the largest number between low, which fits, and high, which
        does not; (low, None) if none does. `at_low` and `at_high` are their launches, or similar
        ones, if measured; if neither is, `overheads` are assumed. A larger number needs at least
        this `share` of the overheads of one that fits."""
        best: Candidate | None = None
        below, above = (low, at_low), (high, at_high)
        steps = 0
        while low + 1 < high:
            if steps < 5:
                points = [(n, launch) for n, launch in (below, above) if launch is not None]
                guess = high - 1
                if points or overheads:
                    guess = last(low, guess, partial(self._expected, points, overheads))
            else:  # buffer sizes are not monotonic here: fall back to bisection
                guess = (low + high) // 2
            guess = max(guess, low + 1)
            # Too large for certain: it needs `share` of the overheads of one that fits.
            if best is not None and not self._may(best, share, guess):
                high = 1 + last(low, guess - 1, partial(self._may, best, share))
                continue
            candidate = self.measured(guess)
            if candidate is not None and (candidate.fits if self.ram else candidate.fits_devices):
                low, best, below = guess, candidate, (guess, candidate)
            else:
                high = guess
                if candidate is not None:
                    above = guess, candidate
            steps += 1
        return low, best

    def _expected(
        self, points: list[tuple[int, Candidate]], overheads: Mapping[str, int], n: int
    ) -> bool:
        """Return whether a number should fit: weights and caches are known, the rest is
        extrapolated from the launches of one or two others, or is `overheads` if there are none."""
        needs, limits = self._needs(self.make(n)), self._limits()
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
        at_near, at_far = self._overheads(near), self._overheads(far)
        for name in at_near.keys() | at_far.keys():
            # A device that one of them does not use takes what its layers take.
            here, there = (
                sizes.get(name, -self._needs(it.params).get(name, 0))
                for sizes, it in ((at_near, near), (at_far, far))
            )
            if here + (there - here) * part + needs[name] > limits[name]:
                return False
        return True

    def may_fit_again(self, low: int, at_low: Candidate | None) -> bool:
        """Return whether low + 2 may fit although low + 1 does not, if it needs SIMILAR of its
        graph buffers and margin."""
        # Mostly what low needs rules it out, and low + 1 need not be measured.
        if at_low and not self._may(at_low, ALIKE * SIMILAR, low + 2):
            return False
        above = self.measured(low + 1)
        return above is None or self._may(above, SIMILAR, low + 2)

    def _may(self, alike: Candidate, share: float, n: int) -> bool:
        return self.may_fit(self.make(n), alike, share)

    def may_fit(self, params: Params, alike: Candidate, share: float) -> bool:
        """Return whether a launch may fit if it needs at least this share of another one's graph
        buffers and margins."""
        needs, limits = self._needs(params), self._limits()
        return bool(needs) and all(
            needs[name] + size * share <= limits[name]
            for name, size in self._overheads(alike).items()
        )

    def _limits(self) -> dict[str, int]:
        """Return the bytes of the devices, and those of system memory where they count and have a
        limit."""
        machine = self.evaluator.machine
        ram = {} if machine.ram is None or not self.ram else {_RAM: machine.ram}
        return {**machine.limits, **ram}

    def _needs(self, params: Params) -> dict[str, int]:
        """Return what is known of a launch without a graph: weights and caches, in system memory
        what the server holds too. Empty if llama.cpp would refuse it, or if the budget is spent."""
        use = self.evaluator.static(params)
        if use is None:
            return {}
        needs = {name: usage.model + usage.context for name, usage in use.devices.items()}
        return {**needs, _RAM: self.evaluator.ram_of(params, use)} if self.ram else needs

    def _overheads(self, measured: Candidate) -> dict[str, int]:
        """Return what a measured launch takes besides, and leaves free."""
        limits = self._limits()
        sizes = measured.overheads(limits)
        if self.ram and measured.ram_spare is not None:
            needs = self._needs(measured.params)
            sizes[_RAM] = limits[_RAM] - measured.ram_spare - needs.get(_RAM, 0)
        return sizes
