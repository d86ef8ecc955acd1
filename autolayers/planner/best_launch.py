"""The launch of a problem where inputs, people and drafts are decided: what flags leave open of it
is solved, each cache type, number of slots and use of checkpoints by a search of its own.

    solution = best_launch(problem)

Of all launches that fit, the one that is worth most. Only solve.py and what it decides ask here.
"""

from __future__ import annotations

from ..records import replace
from . import serving
from .candidates import RAM_SHARE
from .evaluate import FULL
from .frames import plain, slots
from .one.contexts import contexts, streams_of
from .prices import ENOUGH, chooses_context, low
from .problem import Solution
from .search import Search
from .variants import FITS, Variant, best_first, by_worth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params
    from .evaluate import Candidate
    from .problem import Problem
    from .variants import Rank, Tried


def best_launch(problem: Problem) -> Solution:
    """Return the best launch of a problem, fully measured; one that does not fit if none does."""
    given = plain(problem)
    plain_problem = problem.with_given(given)
    result = (
        _with_most_context(plain_problem)
        if plain_problem.policy.n_ctx == "max"
        else _by_cache_type(plain_problem)
    )
    result = replace(result, problem=problem)
    if result.candidate is None:
        return result
    changes = {
        name: value for name, value in vars(problem.given).items() if value != getattr(given, name)
    }
    params = result.candidate.params
    # The plan keeps the words that were given: -sm layer stays in the answer though it changes
    # nothing.
    back = {
        name: value for name, value in changes.items() if vars(params)[name] == vars(given)[name]
    }
    if params.n_gpu_layers is None:  # of --fit's launches; llama-server would decide again
        back["n_gpu_layers"] = params.layers_wanted(problem.everything) * bool(
            problem.machine.devices
        )
    if not back:
        return result
    as_given = replace(params, **back)
    same = problem.evaluator.candidate(as_given, FULL, last=True)
    return replace(result, candidate=same or result.candidate)


def _with_most_context(problem: Problem) -> Solution:
    """Return the largest context, of launches with nothing in RAM if the best one is of these: so
    it is no smaller."""
    # The usual answer first: --ctx max may not have less context than it, nor put in RAM what it
    # does not.
    best = _by_cache_type(problem.with_goals(n_ctx=None)).fitting
    if best is None:
        return _by_cache_type(problem)
    widest = _by_cache_type(problem, problem.whole(best) and bool(problem.machine.devices))
    most = widest.fitting
    larger = most is not None and most.breakdown.n_ctx >= best.breakdown.n_ctx
    return widest if larger else Solution(problem, best)


def _by_cache_type(problem: Problem, whole: bool = False) -> Solution:
    """Return the best launch; of several cache types that --kv-types allows the first with which
    nothing is in RAM."""
    given = problem.given
    types = problem.policy.kv_types
    if not types or given.cache_type_k:  # one of them, where several models share
        return _by_slots(problem, given, whole)
    variants = []
    for i, name in enumerate(types):
        typed = replace(given, cache_type_k=name, cache_type_v=name)
        smallest = contexts(problem, typed).smallest or 0
        # A coarse cache is for short contexts, unless only coarse ones are allowed.
        if low(name) and not all(map(low, types)) and smallest > ENOUGH * streams_of(typed):
            continue
        variants.append(Variant(problem, (FITS, float(i)), typed, name))

    def ranked(variant: Variant, solution: Solution) -> Rank:
        # The first type in the given order with which everything is on devices.
        if solution.fitting is not None and problem.whole(solution.fitting):
            return variant.bound
        fits, *cost = by_worth(problem, solution.candidate)
        return fits, float(len(types)), *cost

    tried, _ = best_first(
        variants, lambda variant: _by_slots(problem, variant.flags, whole), ranked
    )
    return tried[0].solution if tried else Solution(problem, None)


def _by_slots(problem: Problem, given: Params, whole: bool) -> Solution:
    """Return the best launch with as many slots as are worth most."""

    def without_checkpoints(tried: Tried) -> Iterator[Variant]:
        # Their RAM may be what another launch lacks: one for each slot is certain in all others.
        chosen, flags = tried.solution.candidate, tried.variant.flags
        if chosen is not None and flags.ctx_checkpoints != 0 and may_lack(problem, chosen):
            why = serving.without(serving.checkpoints(chosen.params, chosen.breakdown))
            yield Variant(problem, given=replace(flags, ctx_checkpoints=0), reasons=(why,))

    tried, _ = best_first(
        [Variant(problem, given=slotted) for slotted in slots(problem, given)],
        lambda variant: Search(problem, variant.flags, whole).best(),
        lambda _, solution: by_worth(problem, solution.candidate),
        without_checkpoints,
    )
    return tried[0].solution


def may_lack(problem: Problem, chosen: Candidate) -> bool:
    """Return whether a launch may lack the RAM of its context checkpoints for something else."""
    size = serving.checkpoints(chosen.params, chosen.breakdown)
    ram = problem.machine.ram
    free = problem.given.ctx_checkpoints is None and not problem.beside_a_launch
    if not (size and free) or ram is None or chosen.ram_spare is None:
        return False
    use = chosen.breakdown
    longest = not chooses_context(problem) or use.n_ctx_seq >= problem.model.n_ctx_train
    if chosen.fits and problem.whole(chosen) and longest:
        return False
    # Part of the RAM stays free where the processor reads the cache.
    return chosen.ram_spare < size + (1 - RAM_SHARE) * ram
