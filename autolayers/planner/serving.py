"""Limits what grows in system memory while llama-server serves: --cache-ram, --ctx-checkpoints."""

from __future__ import annotations

from ..flags.params import Params
from ..flags.write import to_words
from ..memory.breakdown import Breakdown
from ..memory.server import CACHE_RAM, CTX_CHECKPOINTS
from ..units import MiB, human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..memory.breakdown import Static

STEP = 256            # MiB of --cache-ram: free memory fluctuates, the flags should not change with every MiB
ENOUGH = 8            # checkpoints per slot; more are kept only if memory remains for saved prompts too


def certain(params: Params, use: Static) -> int:
    """Bytes that serving may add in any case: what no flag limits, what given flags allow, and one checkpoint
    per slot if their number is left to the plan."""
    if not isinstance(use, Breakdown):
        return 0
    sizes = _bounded(params, use)
    return use.growing - sum(sizes.values()) + sizes.get("ctx_checkpoints", 0) // CTX_CHECKPOINTS


def limits(params: Params, use: Breakdown, spare: int) -> dict[str, int]:
    """The fewest flags with which growth stays within `spare` bytes on top of `certain`."""
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


def reason(before: Params, after: Params, use: Static) -> str:
    """Why limits were added to a launch."""
    assert isinstance(use, Breakdown)
    added = Params(**{name: getattr(after, name) for name in _bounded(before, use)})
    return (f"{' '.join(to_words(added))}: saved prompts and checkpoints could grow to "
            f"{human(use.growing)} of RAM, but less is left")


def _bounded(params: Params, use: Breakdown) -> dict[str, int]:
    """What the flags limit that were not given, in bytes by the field of Params."""
    return {extra.bounded_by: extra.size for extra in use.extras
            if extra.bounded_by and getattr(params, extra.bounded_by) is None}
