"""Limits what grows in system memory while llama-server serves: --cache-ram, --ctx-checkpoints; and
how many conversations that left their slot it keeps."""

from __future__ import annotations

from ..flags.params import Params
from ..flags.write import to_words
from ..keys import written
from ..memory.breakdown import Breakdown, Static
from ..memory.server import CACHE_RAM, CTX_CHECKPOINTS
from ..records import dataclass
from ..units import MiB, gib, human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.workload import Workload

# checkpoints per slot; more are kept only if memory remains for saved prompts too
ENOUGH = 8


def certain(params: Params, use: Static) -> int:
    """Return the bytes that serving may add in any case: what no flag limits, what given flags
    allow, and one checkpoint per slot if their number is left to the plan."""
    sizes = _bounded(params, use)
    # A checkpoint per slot is certain where their number is left to the plan: it may be reduced to
    # one.
    return use.growing - sum(sizes.values()) + _one_more(params, use)


def checkpoints(params: Params, use: Static) -> int:
    """Return the bytes of a checkpoint of each slot; 0 where llama-server makes none."""
    count = CTX_CHECKPOINTS if params.ctx_checkpoints is None else params.ctx_checkpoints
    sizes = [extra.size for extra in use.extras if extra.bounded_by == "ctx_checkpoints"]
    return sum(sizes) // max(1, count)


def _one_more(params: Params, use: Static) -> int:
    """Return the same where their number is left to the plan."""
    return checkpoints(params, use) if params.ctx_checkpoints is None else 0


def limits(params: Params, use: Breakdown, spare: int) -> dict[str, int]:
    """Return the fewest flags with which growth stays within `spare` bytes on top of `certain`."""
    sizes = _bounded(params, use)
    prompts = sizes.get("cache_ram", 0)
    # one more checkpoint for every slot
    each = _one_more(params, use)
    spare = max(0, spare)
    # Everything may grow as llama-server's defaults allow: no flag is needed.
    if prompts + each * (CTX_CHECKPOINTS - 1) <= spare:
        return {}
    count = CTX_CHECKPOINTS
    if each:
        # All prompts as by default, and as many checkpoints as then fit, if these are enough.
        alone = 1 + (spare - prompts) // each if spare >= prompts else 0
        if alone >= ENOUGH or (alone and not prompts):
            return {"ctx_checkpoints": alone}
        # Otherwise half of the memory for checkpoints at most, and the rest for prompts.
        if each * (CTX_CHECKPOINTS - 1) > spare // 2:
            count = min(ENOUGH if prompts else CTX_CHECKPOINTS, 1 + spare // 2 // each)
    flags = {} if count == CTX_CHECKPOINTS else {"ctx_checkpoints": count}
    if prompts:
        # In steps of 256, so that the flags stay the same when free memory changes by some MiB.
        left = (spare - each * (count - 1)) // MiB // 256 * 256
        if left < CACHE_RAM:
            flags["cache_ram"] = left
    return flags


@dataclass(frozen=True)
class Saved:
    """Conversations that left their slot: of `tokens` each, `state` bytes and at most `checkpoints`
    of `checkpoint` bytes; and the `limit` of all of them in bytes, None for none."""

    tokens: int
    state: int
    checkpoint: int
    checkpoints: int
    limit: int | None

    @property
    def each(self) -> int:
        return self.state + self.checkpoints * self.checkpoint

    @property
    def count(self) -> int | None:
        """How many are kept, whatever their checkpoints; None: as many as the RAM holds."""
        return None if self.limit is None else self.limit // self.each

    def to_dict(self) -> dict[str, object]:
        return written("saved", self)


def saved(params: Params, use: Breakdown, work: Workload) -> Saved | None:
    """Return the conversations of the workload's length; None where none are kept."""
    # --cache-ram 0 keeps nothing; a negative one has no limit.
    limit = next((extra.size for extra in use.extras if extra.bounded_by == "cache_ram"), None)
    if not use.saved or (limit is None and (params.cache_ram is None or params.cache_ram >= 0)):
        return None
    tokens = min(use.n_ctx_seq, work.depth + work.prompt + work.generate)
    some = any(extra.bounded_by == "ctx_checkpoints" for extra in use.extras)
    count = CTX_CHECKPOINTS if params.ctx_checkpoints is None else max(0, params.ctx_checkpoints)
    return Saved(
        tokens,
        sum(state.size(tokens) for state in use.saved),
        sum(state.checkpoint(tokens) for state in use.saved) if some else 0,
        count if some else 0,
        limit,
    )


def keeping(
    agents: int, params: Params, use: Breakdown, spare: int | None, work: Workload
) -> dict[str, int]:
    """Return the flags with which this many conversations stay, or as many as fit into `spare`
    bytes on top of `certain`."""
    here = saved(params, use, work)
    if here is None or params.cache_ram is not None:
        return {}
    # one more for every slot
    each = _one_more(params, use)
    # Fewer checkpoints until all conversations fit; if two are still too many, fewer conversations.
    for count in (
        (here.checkpoints,)
        if params.ctx_checkpoints is not None or not here.checkpoints
        else (CTX_CHECKPOINTS, 16, 8, 4, 2)
    ):
        size = here.state + count * here.checkpoint
        left = None if spare is None else spare - each * max(0, count - 1)
        if left is None or agents * size <= left:
            break
    conversations = agents if left is None else max(0, min(agents, left // size))
    # Rounded up to MiB, the unit of --cache-ram.
    flags = {"cache_ram": -(-conversations * size // MiB)}
    return flags if count == here.checkpoints else {**flags, "ctx_checkpoints": count}


def why_kept(agents: int, here: Saved) -> str:
    """Return why --cache-ram was set for conversations."""
    count = agents if here.count is None else min(agents, here.count)
    more = (
        f" and up to {here.checkpoints} checkpoints of {human(here.checkpoint)}"
        if here.checkpoint
        else ""
    )
    short = "" if count == agents else f": of {agents} that is what the RAM has space for"
    return (
        f"saved prompts keep {count} conversations of {here.tokens} tokens, {human(here.state)} "
        f"each{more}{short}"
    )


def reason(before: Params, after: Params, use: Static) -> str:
    """Return why limits were added to a launch."""
    added = Params(**{name: getattr(after, name) for name in _bounded(before, use)})
    return (
        f"{' '.join(to_words(added))}: saved prompts and checkpoints could grow to "
        f"{gib(use.growing)} of RAM, but less is left"
    )


def without(size: int) -> str:
    """Return why there are no checkpoints, which would take this much."""
    return (
        f"-ctxcp 0: a checkpoint for each slot would take {human(size)} of the RAM; without them a "
        "request that changes an earlier turn is computed again from its start"
    )


def _bounded(params: Params, use: Static) -> dict[str, int]:
    """Return what the flags limit that were not given, in bytes by the field of Params."""
    return {
        extra.bounded_by: extra.size
        for extra in use.extras
        if extra.bounded_by and getattr(params, extra.bounded_by) is None
    }
