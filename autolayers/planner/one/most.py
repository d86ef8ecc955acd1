"""The launch with the most layers on the devices, measured: what kinds promise (candidates.py) may
be too little.

    most(kind, n_ctx, FULL)              # the largest number that fits
    divided(kind, ladder, count, FIT)    # this number, over several devices
    layers_alone(evaluator, given)       # what -q prints

The last one is the n_gpu_layers that is right by itself. `llama-server [given flags] -ngl N`
chooses the context (as --fit does, from the trained one down), the split (by free memory) and the
cache types, so it is that launch that must fit.
"""

from __future__ import annotations

from ...flags.params import FIT_PARAMS_MIN_CTX
from ...records import replace
from ..evaluate import FULL, PROMPT
from .bisection import largest_count, last
from .fit import fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...flags.params import Params
    from ..candidates import PlacementKind
    from ..evaluate import Candidate, Evaluator, Fidelity
    from .ladder import Ladder


def with_most_layers(
    kind: PlacementKind, n_ctx: int | None, fidelity: Fidelity
) -> Candidate | None:
    """Return the launch of this kind with the most layers that fits on the devices; None if none
    does."""
    ladder = kind.ladder(n_ctx)
    # One device or a given split: only the number of layers is open.
    if not kind.frame.splits:
        expected = kind.buffers.at(kind.point(ladder(ladder.top))).output
        return largest_count(kind.evaluator, ladder, ladder.top, fidelity, expected)

    best = None
    low = -1
    high = ladder.top + 1
    guesses = 0
    while low + 1 < high:
        guess = (low + high) // 2
        # Four numbers by what was measured, as that still teaches something; then halves.
        if guesses < 4:
            should_fit = last(low, high - 1, lambda n: bool(kind.divided(ladder, n)), high - 1)
            guess = max(low + 1, should_fit)
        candidate = divided(kind, ladder, guess, fidelity)
        low, high = (low, guess) if candidate is None else (guess, high)
        best = candidate or best
        guesses += 1
    return best


def divided(
    kind: PlacementKind, ladder: Ladder, count: int, fidelity: Fidelity
) -> Candidate | None:
    """Return the launch with this number of layers and the fastest split that fits on the devices;
    what each split takes corrects the next one."""
    tried: set[Params] = set()
    fitting: list[Candidate] = []
    # Six splits of one number at most.
    while len(tried) < 6:
        params = kind.divided(ladder, count)
        # The same split again: what it takes is known, so nothing better comes.
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


# --- by itself


def layers_alone(evaluator: Evaluator, given: Params) -> Candidate | None:
    """Return the launch with the most whole layers that fits when only n_gpu_layers is added to the
    given flags; if none fits, the one with the fewest. None if llama.cpp would refuse all of
    them."""
    # A given number is used whether it fits or not.
    if given.n_gpu_layers is not None and given.n_gpu_layers >= 0:
        return launched(evaluator, given)
    everything = evaluator.model.hparams.n_layer_all + 1

    def at(n: int) -> Params:
        # With the least context that --fit may choose the launch takes the least.
        # The context that --fit would not go below.
        if given.n_ctx is not None or given.fit is False:
            least_context = given.n_ctx
        else:
            least_context = min(
                given.fit_ctx or FIT_PARAMS_MIN_CTX, max(1, evaluator.model.n_ctx_train)
            )
        return replace(given, n_gpu_layers=n, n_ctx=least_context)

    # Nothing needs to be searched if everything fits, which is the usual case.
    if evaluator.may_fit(at(everything)):
        whole = launched(evaluator, replace(given, n_gpu_layers=everything))
        if whole is not None and whole.fits:
            return whole
    # the prompt graph is a lower bound, so the first launch that fits from here down is the largest
    smallest = largest_count(evaluator, at, everything, PROMPT, {})
    count = 0 if smallest is None else smallest.params.layers_wanted(everything)
    best = launched(evaluator, replace(given, n_gpu_layers=count))
    while count and (best is None or not best.fits):
        count -= 1
        best = launched(evaluator, replace(given, n_gpu_layers=count))
    return best


def launched(evaluator: Evaluator, params: Params) -> Candidate | None:
    """Return what llama-server makes of these flags, measured; None if it would refuse them."""
    # With --fit off the flags are used as they are.
    if params.fit is False:
        return evaluator.candidate(params, FULL)
    return fit(evaluator, params, FULL)
