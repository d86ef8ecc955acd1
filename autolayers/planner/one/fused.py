"""Keeps a delta net one op, in builds that part it where layers are in RAM (work/unfused.py): by one slot, or by
leaving what is in RAM to the processor."""

from __future__ import annotations

from ...records import replace
from ..evaluate import FULL
from .solve import solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...flags.params import Params
    from ...flags.policy import Policy
    from ...work.speed import CostModel
    from ..evaluate import Candidate, Evaluator

FLAGS = {"n_parallel": "-np 1", "op_offload": "--no-op-offload"}


def kept_fused(evaluator: Evaluator, params: Params, policy: Policy, cost: CostModel,
               chosen: Candidate | None) -> tuple[Params, Candidate | None, tuple[str, ...]]:
    """What counts as given, the launch and the reason: that of the search, or the fastest with a flag for it."""
    if chosen is None or not cost.parts(chosen):
        return params, chosen, ()
    changes: dict[str, int | bool] = {}
    if params.n_parallel is None:
        changes["n_parallel"] = 1
    if params.op_offload is None:
        changes["op_offload"] = False
    best, given, flag = chosen, params, ""
    for name, value in changes.items():
        asked = replace(params, **{name: value})  # type: ignore[arg-type]
        found = solve(evaluator, asked, policy, cost)
        if found is None or (best.fits and not found.fits):
            continue
        better = found.fits > best.fits or cost.speed(found).request < cost.speed(best).request
        if better:
            best, given, flag = found, asked, FLAGS[name]
    if not flag:
        return params, chosen, ()
    before, after = cost.speed(chosen).prompt, cost.speed(best).prompt
    why = (f"{flag}: with more slots and layers in RAM b{evaluator.estimator.rules.number} computes the delta net in "
           f"single operations: prompts about {before:.3g} tokens/s instead of {after:.3g}")
    return given, evaluator.candidate(best.params, FULL, last=True), (why,)


def warning(cost: CostModel, candidate: Candidate) -> str:
    """What a launch loses whose delta net is not one op; "" for others."""
    if not cost.parts(candidate):
        return ""
    return (f"llama.cpp b{cost.estimator.rules.number} computes the delta net of several slots in single operations "
            "where layers are in RAM: prompts are 10 times slower or worse; -np 1 or --no-op-offload avoids it, as do "
            "builds from b10679 on")
