"""The launch with the most layers on the devices, measured: what kinds promise (candidates.py) may
be too little.

    most(kind, n_ctx, FULL)              # the largest number that fits
    divided(kind, ladder, count, FIT)    # this number, over several devices
"""

from __future__ import annotations

from .bisection import largest_count, last

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...flags.params import Params
    from ..candidates import Kind
    from ..evaluate import Candidate, Fidelity
    from .ladder import Ladder

SPLITS = 6  # of one number of layers that are measured
GUESSES = 4  # numbers that are tried by what was measured, before the range is halved


def most(kind: Kind, n_ctx: int | None, fidelity: Fidelity) -> Candidate | None:
    """The launch of this kind with the most layers that fits on the devices; None if none does."""
    ladder = kind.ladder(n_ctx)
    if ladder is None:
        return None
    if not kind.frame.splits:
        expected = kind.buffers.at(kind.point(ladder(ladder.top)))
        return largest_count(kind.evaluator, ladder, ladder.top, fidelity, expected)
    if not kind.buffers.known:
        _measure_smallest(kind, n_ctx, fidelity)

    def should_fit(count: int) -> bool:
        return _promised(kind, ladder, count) is not None

    best, low, high, guesses = None, -1, ladder.top + 1, 0
    while low + 1 < high:
        guess = (low + high) // 2
        if guesses < GUESSES:
            guess = max(low + 1, last(low, high - 1, should_fit, high - 1))
        found = divided(kind, ladder, guess, fidelity)
        low, high = (low, guess) if found is None else (guess, high)
        best = found or best
        guesses += 1
    return best


def divided(kind: Kind, ladder: Ladder, count: int, fidelity: Fidelity) -> Candidate | None:
    """The launch with this number of layers and the fastest split that fits on the devices; what
    each split takes corrects the next one."""
    tried: set[Params] = set()
    fitting: list[Candidate] = []
    while len(tried) < SPLITS:
        params = _promised(kind, ladder, count)
        if params is None or params in tried:
            break
        tried.add(params)
        candidate = kind.evaluator.candidate(params, fidelity)
        if candidate is None:
            break
        kind.record(candidate)
        if candidate.fits_devices:
            fitting.append(candidate)
    return kind.cost.fastest(fitting) if fitting else None


def _promised(kind: Kind, ladder: Ladder, count: int) -> Params | None:
    """The launch with this number of layers that should fit by what was measured so far."""
    return kind.divided(ladder, count, kind.buffers.at(kind.point(ladder(count))))


def _measure_smallest(kind: Kind, n_ctx: int | None, fidelity: Fidelity) -> None:
    smallest = kind.smallest(n_ctx)
    found = None if smallest is None else kind.evaluator.candidate(smallest.params, fidelity)
    if found is not None:
        kind.record(found)
