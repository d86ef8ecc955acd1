"""What grows in system memory while llama-server serves, kept within what is left: --cache-ram, --ctx-checkpoints."""

from __future__ import annotations

from ..flags.params import Params
from ..flags.write import to_words
from ..memory.breakdown import Breakdown
from ..memory.server import CACHE_RAM, CTX_CHECKPOINTS
from ..records import replace
from ..units import MiB, human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..memory.breakdown import Static
    from .evaluate import Candidate, Evaluator

STEP = 256            # MiB of --cache-ram: free memory moves, the flags should not with each MiB
ENOUGH = 8            # checkpoints per slot; more are only kept where memory is left for saved prompts too


def certain(params: Params, use: Static) -> int:
    """Bytes that serving may add in any case: what no flag bounds, what given flags allow, and one checkpoint a slot
    where their number is left to the plan."""
    if not isinstance(use, Breakdown):
        return 0
    sizes = _bounded(params, use)
    return use.growing - sum(sizes.values()) + sizes.get("ctx_checkpoints", 0) // CTX_CHECKPOINTS


def limits(params: Params, use: Breakdown, spare: int) -> dict[str, int]:
    """The flags, as few as needed, with which what grows stays within `spare` bytes more than `certain` counts."""
    sizes = _bounded(params, use)
    prompts = sizes.get("cache_ram", 0)
    each = sizes.get("ctx_checkpoints", 0) // CTX_CHECKPOINTS       # one more checkpoint for every slot
    spare = max(0, spare)
    if prompts + each * (CTX_CHECKPOINTS - 1) <= spare:
        return {}
    count = CTX_CHECKPOINTS
    if each:
        alone = 1 + (spare - prompts) // each if spare >= prompts else 0
        if alone >= ENOUGH or (alone and not prompts):
            return {"ctx_checkpoints": alone}
        if each * (CTX_CHECKPOINTS - 1) > spare // 2:
            count = min(ENOUGH if prompts else CTX_CHECKPOINTS, 1 + spare // 2 // each)
    found = {} if count == CTX_CHECKPOINTS else {"ctx_checkpoints": count}
    if prompts:
        left = (spare - each * (count - 1)) // MiB // STEP * STEP
        if left < CACHE_RAM:
            found["cache_ram"] = left
    return found


def bounded(evaluator: Evaluator, candidate: Candidate) -> Candidate:
    """The launch with those flags, where there is less system memory than could be taken."""
    use = candidate.breakdown
    if candidate.ram_spare is None or not isinstance(use, Breakdown):
        return candidate
    changes = limits(candidate.params, use, candidate.ram_spare)
    if not changes:
        return candidate
    return evaluator.candidate(replace(candidate.params, **changes), "full") or candidate  # type: ignore[arg-type]


def reason(before: Candidate, after: Candidate) -> str:
    """Why limits were added."""
    assert isinstance(before.breakdown, Breakdown)
    added = Params(**{name: getattr(after.params, name) for name in _bounded(before.params, before.breakdown)})
    return (f"{' '.join(to_words(added))}: saved prompts and checkpoints could grow to "
            f"{human(before.breakdown.growing)} of RAM, and less is left")


def _bounded(params: Params, use: Breakdown) -> dict[str, int]:
    """What flags that were not given bound, in bytes by the field of Params."""
    return {extra.bounded_by: extra.size for extra in use.extras
            if extra.bounded_by and getattr(params, extra.bounded_by) is None}
