"""Layers placed by --fit's rules, parts of them on each device: up to the plan's margins, and by
its own."""

from __future__ import annotations

from ...flags.kinds import MOST_SHARES
from ...flags.params import FIT_PARAMS_TARGET
from ...records import replace
from ..prices import worth
from . import overrides
from .fit import fit_estimated, fit_with_overheads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...flags.params import Params
    from ..evaluate import Candidate, Evaluator, Fidelity
    from ..problem import Problem


def parts(problem: Problem, given: Params, best: Candidate, fidelity: Fidelity) -> list[Candidate]:
    """What is worth more than the best launch so far by --fit's rules, with the given context:
    with our margins, with its own, or with smaller graph buffers than it measures, if that still
    fits."""
    evaluator = problem.evaluator
    if _covered(evaluator, given, best):
        return []
    at = given if problem.given.n_ctx is not None else replace(given, n_gpu_layers=None)
    ours = replace(at, n_ubatch=best.params.n_ubatch, n_batch=best.params.n_batch)
    limit = worth(problem, best.params, best.breakdown)
    found: list[Candidate] = []

    def measured(shape: Params | None) -> Candidate | None:
        """The candidate for a shape that should be worth more than all that fits so far."""
        nonlocal limit
        if shape is None:
            return None
        static = evaluator.static(shape)
        if static is None or worth(problem, shape, static) >= limit:
            return None
        candidate = evaluator.candidate(shape, fidelity)
        if (
            candidate is not None
            and candidate.fits
            and not overrides.overrides_rpc(candidate)
            and len(shape.tensor_split or ()) <= MOST_SHARES
        ):
            found.append(candidate)
            limit = min(limit, worth(problem, candidate.params, candidate.breakdown))
        return candidate

    limits = evaluator.machine.limits
    overheads = best.overheads(limits)
    for _ in range(4):
        candidate = measured(fit_with_overheads(evaluator, ours, overheads, limits))
        if candidate is None or candidate.fits:
            break
        grown = candidate.overheads(limits)
        overheads = {
            **overheads,
            **{name: max(size, overheads.get(name, 0)) for name, size in grown.items()},
        }
    compute: dict[str, int] = {}
    for _ in range(4):
        candidate = measured(fit_with_overheads(evaluator, at, compute))
        if candidate is None:
            return found
        # it might win with such small buffers: try buffers close to its real ones
        if not candidate.fits:
            compute = {
                name: usage.compute * 31 // 32
                for name, usage in candidate.breakdown.devices.items()
            }
    measured(fit_estimated(evaluator, at, fidelity))
    return found


def _covered(evaluator: Evaluator, given: Params, best: Candidate) -> bool:
    """Whether --fit's search space was tried already: one device, with a margin that is no
    smaller."""
    if len(best.spare) != 1:
        return False
    ((name, margin),) = best.margins.items()
    target = (given.fit_target or (FIT_PARAMS_TARGET,))[0] << 20
    device = next(device for device in evaluator.machine.devices if device.name == name)
    return sum(size for _, size in margin) + device.free - evaluator.machine.limits[name] <= target
