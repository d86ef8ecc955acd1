"""The launch that somebody wrote, beside the one that a plan takes for the same wishes.

    yours, better = beside(model, request)

Context, slots, cache types, devices and files are wishes, which both keep. Where weights and
caches lie, micro-batches and flash attention are means: yours has them as written, or as --fit
(llama-server's default) chooses them, and the better one has those of a plan.
"""

from __future__ import annotations

from ...errors import LaunchRefused
from ...records import replace
from ..answer import plan_request
from ..one.most import launched
from ..prices import FASTER
from ..problem import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...model import Model
    from ...request import Request
    from ..plan import Plan

# fields of Params that are no wish of anybody, and what leaves each open
MEANS: dict[str, object] = {
    "n_gpu_layers": None,
    "overrides": (),
    "tensor_split": None,
    "split_mode": None,
    "main_gpu": None,
    "n_batch": None,
    "n_ubatch": None,
    "flash_attn": None,
    "kv_offload": None,
    "op_offload": None,
    "moe_cache_mib": None,
    "fit": None,
    "fit_target": None,
    "fit_ctx": None,
}


def beside(model: Model, request: Request) -> tuple[Plan | LaunchRefused, Plan]:
    """Return the launch of these flags as the program makes it, or why llama.cpp would refuse it,
    and the plan with their means open. Raises LaunchRefused where that one would be refused too."""
    freed = replace(request.params, **MEANS)  # type: ignore[arg-type]
    better = plan_request(model, replace(request, verbatim=False).with_params(freed))
    try:
        # The flags with all that the program decides without them, so that nothing is left to a
        # plan.
        problem = Problem(model, request)
        evaluator, given = problem.evaluator, problem.given
        made = launched(evaluator, given)
        if made is None:
            as_written = given  # the plan says why it is refused
        else:
            use = made.breakdown
            as_written = replace(
                made.params,
                n_gpu_layers=made.params.layers_wanted(problem.everything),
                n_ctx=use.n_ctx,
                n_batch=made.params.n_batch or max(use.n_batch, use.n_ubatch),
                n_ubatch=use.n_ubatch,
                # More devices than one could be listed in another order
                device=given.device
                if given.device is not None
                else tuple(evaluator.device_names(given)),
            )
        return plan_request(model, request.with_params(as_written)), better
    except LaunchRefused as refusal:
        return refusal, better


def is_better(yours: Plan, better: Plan) -> bool:
    """Return whether a plan is clearly better: it fits and the other does not, or it writes, reads
    or holds more than that."""
    if not better.fits or not yours.fits:
        return better.fits
    here, there = yours.speed, better.speed
    pairs = (
        (here.generation, there.generation),
        (here.generation_full, there.generation_full),
        (here.prompt, there.prompt),
        (yours.breakdown.n_ctx, better.breakdown.n_ctx),
    )
    return any(more > FASTER.factor * less for less, more in pairs)
