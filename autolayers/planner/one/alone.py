"""The n_gpu_layers that is right by itself: what -q prints. `llama-server [given flags] -ngl N`
chooses the context (as --fit does, from the trained one down), the split (by free memory) and the
cache types, so it is that launch that must fit."""

from __future__ import annotations

from ...flags.params import FIT_PARAMS_MIN_CTX
from ...records import replace
from ..buffers import Buffers
from ..evaluate import FULL, PROMPT
from .bisection import largest_count
from .fit import fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...flags.params import Params
    from ..evaluate import Candidate, Evaluator


def layers_alone(evaluator: Evaluator, given: Params) -> Candidate | None:
    """The launch with the most whole layers that fits when only n_gpu_layers is added to the given
    flags; if none fits, the one with the fewest. None if llama.cpp would refuse all of them."""
    if given.n_gpu_layers is not None and given.n_gpu_layers >= 0:
        return launched(evaluator, given)
    everything = evaluator.model.hparams.n_layer_all + 1
    n_ctx = given.n_ctx
    if n_ctx is None and given.fit is not False:
        n_ctx = min(given.fit_ctx or FIT_PARAMS_MIN_CTX, max(1, evaluator.model.n_ctx_train))

    def at(n: int) -> Params:
        return replace(given, n_gpu_layers=n, n_ctx=n_ctx)

    if evaluator.may_fit(at(everything)):
        whole = launched(evaluator, replace(given, n_gpu_layers=everything))
        if whole is not None and whole.fits:
            return whole
    # the prompt graph is a lower bound, so the first launch that fits from here down is the largest
    smallest = largest_count(
        evaluator, at, everything, PROMPT, Buffers(evaluator.machine.limits).guess()
    )
    count = 0 if smallest is None else smallest.params.layers_wanted(everything)
    best = launched(evaluator, replace(given, n_gpu_layers=count))
    while count and (best is None or not best.fits):
        count -= 1
        best = launched(evaluator, replace(given, n_gpu_layers=count))
    return best


def launched(evaluator: Evaluator, params: Params) -> Candidate | None:
    """What llama-server makes of these flags, measured; None if it would refuse them."""
    if params.fit is False:
        return evaluator.candidate(params, FULL)
    return fit(evaluator, params, FULL)
