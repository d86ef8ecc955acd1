"""Layers placed by --fit's rules, parts of them on each device: up to the plan's margins, and by
its own."""

from __future__ import annotations

from ...flags.kinds import MOST_SHARES
from ...flags.params import FIT_PARAMS_TARGET
from ...records import replace
from ..prices import worth
from . import overrides
from .bisection import largest_context
from .contexts import contexts
from .fit import fit_estimated, fit_with_overheads, whole_ffn_elsewhere

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...flags.params import Params
    from ..evaluate import Candidate, Evaluator, Fidelity
    from ..problem import Problem

TRIES = 4  # shapes by one margin, each by what the one before takes


def parts(problem: Problem, given: Params, best: Candidate, fidelity: Fidelity) -> list[Candidate]:
    """Return what is worth more than the best launch so far by --fit's rules, with the given
    context: with our margins, with its own, or with smaller graph buffers than it measures, if that
    still fits."""
    evaluator = problem.evaluator
    if _covered(evaluator, given, best):
        return []
    given = replace(given, n_gpu_layers=None)  # -1 says the same
    search = _Parts(problem, best, fidelity)
    search.by_our_margins(
        replace(given, n_ubatch=best.params.n_ubatch, n_batch=best.params.n_batch),
        best.overheads(evaluator.machine.limits),
    )
    # First by bounds; only if these leave something better are its real graph buffers needed.
    if not search.by_its_own(given):
        search.measured(fit_estimated(evaluator, given, fidelity))
    return search.better


class _Parts:
    """What was found that is worth more than all before."""

    def __init__(self, problem: Problem, best: Candidate, fidelity: Fidelity) -> None:
        self.problem = problem
        self.evaluator = problem.evaluator
        self.fidelity = fidelity
        self.limit = worth(problem, best.params, best.breakdown)
        self.better: list[Candidate] = []

    def measured(self, shape: Params | None) -> Candidate | None:
        """Return the candidate for a shape that should be worth more than all that fits so far."""
        if shape is None:
            return None
        candidate = self._tried(shape)
        self._with_fewer_hops(shape)
        return candidate

    def _tried(self, shape: Params) -> Candidate | None:
        static = self.evaluator.static(shape)
        # Weights and caches alone give its seconds, so what is worth less is never measured.
        if static is None or worth(self.problem, shape, static) >= self.limit:
            return None
        candidate = self.evaluator.candidate(shape, self.fidelity)
        if candidate is not None and candidate.fits and _can_be_written(candidate):
            self.better.append(candidate)
            self.limit = min(self.limit, worth(self.problem, shape, candidate.breakdown))
        return candidate

    def _with_fewer_hops(self, shape: Params) -> None:
        """Try the same without a layer whose FFN weights are on two devices, if need be with less
        context."""
        whole = whole_ffn_elsewhere(shape)
        candidate = None if whole is None else self._tried(whole)
        if candidate is None or candidate.fits:
            return
        span = contexts(self.problem, self.problem.given)
        n_ctx = candidate.breakdown.n_ctx
        if not span.open or n_ctx <= span.open[0]:
            return
        less = largest_context(
            self.evaluator, candidate, span.open[0], n_ctx, span.step, self.fidelity
        )
        if less is not None:
            self._tried(less.params)

    def by_our_margins(self, given: Params, overheads: Mapping[str, int]) -> None:
        limits = self.evaluator.machine.limits
        # Each try fills the devices beside what the one before really took.
        for _ in range(TRIES):
            candidate = self.measured(fit_with_overheads(self.evaluator, given, overheads, limits))
            if candidate is None or candidate.fits:
                return
            grown = candidate.overheads(limits)
            # They only grow, so that the tries end.
            larger = {name: max(size, overheads.get(name, 0)) for name, size in grown.items()}
            overheads = {**overheads, **larger}

    def by_its_own(self, given: Params) -> bool:
        """Return whether --fit's margins leave nothing better."""
        compute: dict[str, int] = {}
        for _ in range(TRIES):
            candidate = self.measured(fit_with_overheads(self.evaluator, given, compute))
            if candidate is None:
                return True
            # it might win with such small buffers: try buffers close to its real ones
            if not candidate.fits:
                compute = {
                    name: usage.compute * 31 // 32
                    for name, usage in candidate.breakdown.devices.items()
                }
        return False


def _can_be_written(candidate: Candidate) -> bool:
    few = len(candidate.params.tensor_split or ()) <= MOST_SHARES
    return few and not overrides.overrides_rpc(candidate)


def _covered(evaluator: Evaluator, given: Params, best: Candidate) -> bool:
    """Return whether --fit's search space was tried already: one device, with a margin that is no
    smaller."""
    # Over several devices --fit divides differently than the search.
    if len(best.spare) != 1:
        return False
    ((name, margin),) = best.margins.items()
    target = (given.fit_target or (FIT_PARAMS_TARGET,))[0] << 20
    device = next(device for device in evaluator.machine.devices if device.name == name)
    # The plan's margin and what a budget takes away, against what --fit leaves free.
    return sum(size for _, size in margin) + device.free - evaluator.machine.limits[name] <= target
