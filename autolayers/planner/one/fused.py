"""Keeps a delta net one op, in builds that part it where layers are in RAM (work/unfused.py): by
one slot, or by leaving what is in RAM to the processor."""

from __future__ import annotations

from ...records import replace
from ..search import Solved, search

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...work.speed import CostModel
    from ..evaluate import Candidate
    from ..problem import Problem

FLAGS = {"n_parallel": "-np 1", "op_offload": "--no-op-offload"}


def kept_fused(problem: Problem, solved: Solved) -> Solved:
    """That of the search, or the fastest with a flag for it, and the reason."""
    chosen, cost, given = solved.candidate, problem.cost, problem.given
    if chosen is None or not cost.parts(chosen):
        return solved
    changes: dict[str, int | bool] = {}
    if given.n_parallel is None:
        changes["n_parallel"] = 1
    if given.op_offload is None:
        changes["op_offload"] = False
    best, found, flag = chosen, solved, ""
    for name, value in changes.items():
        asked = problem.with_flags(**{name: value})
        other = search(asked)
        candidate = other.candidate
        if candidate is None or (best.fits and not candidate.fits):
            continue
        if candidate.fits > best.fits or cost.speed(candidate).compared < cost.speed(best).compared:
            best, flag = candidate, FLAGS[name]
            found = Solved(asked, candidate, paid=other.paid)
    if not flag:
        return solved
    before, after = cost.speed(chosen).prompt, cost.speed(best).prompt
    number = problem.evaluator.estimator.rules.number
    why = (
        f"{flag}: with more slots and layers in RAM b{number} computes the delta net in single "
        f"operations: prompts "
        f"about {before:.3g} tokens/s instead of {after:.3g}"
    )
    return replace(found, reasons=(why,))


def warning(cost: CostModel, candidate: Candidate) -> str:
    """What a launch loses whose delta net is not one op; "" for others."""
    if not cost.parts(candidate):
        return ""
    return (
        f"llama.cpp b{cost.estimator.rules.number} computes the delta net of several slots in "
        f"single operations "
        "where layers are in RAM: prompts are 10 times slower or worse; -np 1 or "
        "--no-op-offload avoids it, as do "
        "builds from b10679 on"
    )
