"""Flags that are added to a launch that was solved, each with its reason.

What lets the next request of a long conversation reuse the cache: --swa-full, --cache-reuse. Agents
send the same long prefix again and change what comes after it. A cache of full attention keeps the
prefix. A sliding-window cache has lost everything before its window, unless it is as large as the
context (--swa-full). Otherwise it restarts from the last checkpoint, as recurrent states do, and
computes the rest again.

What makes the graphs of one sequence smaller in ik_llama.cpp: -wgt 1.

What keeps a delta net one op in builds that part it where layers are in RAM (work/unfused.py): one
slot, or what is in RAM left to the processor.
"""

from __future__ import annotations

from ...engines import leaner
from ...records import replace
from ...units import human
from ...work.unfused import may_part
from ..best_launch import best_launch
from ..evaluate import FULL
from ..prices import LEAN, REUSE
from ..variants import DOES_NOT_FIT, FITS, REFUSED, Variant, best_first, by_worth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...flags.params import Params
    from ..evaluate import Candidate, Evaluator
    from ..problem import Problem, Solution
    from ..variants import Rank, Tried

CHUNK = 256  # least tokens to move, as in llama.cpp's own presets
FLAGS = {"n_parallel": "-np 1", "op_offload": "--no-op-offload"}


def with_added(problem: Problem, solved: Solution) -> Solution:
    """Return the search's launch, or the one with a flag that a plan adds before it is judged."""
    chosen = solved.candidate
    if chosen is None:
        return solved
    if leaner(problem.evaluator.engine) is not None:
        return _with_fewer_logits(problem, solved, chosen)
    if may_part(problem.model, problem.evaluator.estimator.rules):
        return _kept_fused(problem, solved, chosen)
    return solved


def _kept_fused(problem: Problem, solved: Solution, chosen: Candidate) -> Solution:
    """Return the search's launch, or the fastest with a flag that keeps the op, and the reason."""
    cost = problem.cost
    given = problem.given
    # `parts`: this build computes the delta net in single operations (work/unfused.py).
    if not cost.parts(chosen):
        return solved

    # Both avoid it; what the user decided is not changed.
    changes: dict[str, int | bool] = {}
    if given.n_parallel is None:
        changes["n_parallel"] = 1
    if given.op_offload is None:
        changes["op_offload"] = False
    variants = [
        Variant(problem.with_flags(**{name: value}), what=FLAGS[name])
        for name, value in changes.items()
    ]

    def ranked(_: Variant, solution: Solution) -> Rank:
        candidate = solution.candidate
        if candidate is None:
            return (REFUSED,)
        return FITS if candidate.fits else DOES_NOT_FIT, cost.speed(candidate).compared

    best = _best_of(problem, solved, variants, ranked)
    flag = best.variant.what
    if not flag or best.solution.candidate is None:
        return solved
    before = cost.speed(chosen).prompt
    after = cost.speed(best.solution.candidate).prompt
    number = problem.evaluator.estimator.rules.number
    why = (
        f"{flag}: with more slots and layers in RAM b{number} computes the delta net in single "
        f"operations: prompts "
        f"about {before:.3g} tokens/s instead of {after:.3g}"
    )
    return replace(best.solution, reasons=(why,))


def _with_fewer_logits(problem: Problem, solved: Solution, chosen: Candidate) -> Solution:
    """Return the search's launch, or one with the program's own words for smaller graphs where it
    is worth more, and the reason."""
    given = problem.given
    request = problem.request
    # Older commits have no such word.
    lean = leaner(problem.evaluator.engine) if request.build.knows("-wgt") else None
    drafts = bool(given.spec_type) or request.companions.draft is not None
    # Slots, drafts and embeddings ask for the logits of several tokens at once.
    several = given.n_parallel != 1 or drafts or given.embedding
    if lean is None or several:
        return solved
    use = chosen.breakdown
    if problem.whole(chosen) and (given.n_ctx or use.n_ctx_seq >= problem.model.n_ctx_train):
        return solved  # there is nothing to gain
    build = replace(request.build, engine=lean)
    # Its graphs are others.
    lean_problem = problem.anew(request=replace(request.with_goals(build=build), build=build))

    def ranked(variant: Variant, solution: Solution) -> Rank:
        fits, *seconds = by_worth(variant.problem, solution.candidate)
        return fits, *[each * (LEAN.factor if variant.what else 1.0) for each in seconds]

    best = _best_of(problem, solved, [Variant(lean_problem, what="-wgt 1")], ranked).solution
    if best is solved or best.candidate is None:
        return solved
    rows = best.candidate.breakdown.n_ubatch
    why = (
        "-wgt 1: buffers for the logits of one token, which is what one sequence asks for, instead "
        f"of those of each of {rows}"
    )
    return replace(best, reasons=(why,))


def _best_of(
    problem: Problem,
    solved: Solution,
    variants: list[Variant],
    ranked: Callable[[Variant, Solution], Rank],
) -> Tried:
    """Return the best of a search's launch and of those with an added flag."""
    tried, _ = best_first(
        [Variant(problem), *variants],
        lambda variant: best_launch(variant.problem) if variant.what else solved,
        ranked,
    )
    return tried[0]


def reusing(problem: Problem, chosen: Candidate) -> tuple[Candidate, tuple[str, ...]]:
    """Return the launch with these flags if they are nearly free, and the reason."""
    if not chosen.fits:
        return chosen, ()
    evaluator = problem.evaluator
    cost = problem.cost
    given = problem.given
    model = problem.model
    reasons = []
    if model.hparams.is_swa_any and given.swa_full is None:
        # Caches of windows as large as the context, so that no prefix is lost.
        full = evaluator.candidate(replace(chosen.params, swa_full=True), FULL)
        if full is None or not full.fits:
            reasons.append(_lost(chosen.params, "it would not fit"))
        elif (slower := cost.speed(full).request / cost.speed(chosen).request) > REUSE.factor:
            reasons.append(
                _lost(chosen.params, f"the request would take {slower:.2f} times as long")
            )
        else:
            more = _size(full) - _size(chosen)
            reasons.append(
                "--swa-full: a request that changes an earlier turn keeps everything "
                f"before it, for {human(more)} more and {slower - 1:.0%} of the time"
            )
            chosen = full
    # A recurrent state is only its last value: earlier ones exist as checkpoints alone.
    elif model.row.memory in ("recurrent", "hybrid", "hybrid-idx"):
        reasons.append(
            "the model's state cannot be rolled back: a request that changes an earlier "
            "turn is "
            "computed again from the last checkpoint before it (--ctx-checkpoints)"
        )
    if given.cache_reuse is None and _shifts(evaluator, chosen.params):
        moved = evaluator.candidate(replace(chosen.params, cache_reuse=CHUNK), FULL)
        if moved is not None:
            chosen = moved
            reasons.append(
                f"--cache-reuse {CHUNK}: text after a removed part is moved in the "
                f"cache instead "
                f"of computed again, in chunks of {CHUNK} tokens or more"
            )
    return chosen, tuple(reasons)


def _lost(params: Params, why: str) -> str:
    # without checkpoints nothing is left to begin at
    begin = (
        "its start"
        if params.ctx_checkpoints == 0
        else "the last checkpoint before it (--ctx-checkpoints)"
    )
    changed = "a request that changes an earlier turn"
    return f"no --swa-full ({why}): {changed} is computed again from {begin}"


def _size(candidate: Candidate) -> int:
    use = candidate.breakdown
    return use.host.total + use.on_devices


def _shifts(evaluator: Evaluator, params: Params) -> bool:
    """Return whether positions in the cache can be shifted: llama_memory_can_shift, and no
    images."""
    row = evaluator.model.row
    # M-RoPE has several positions for a token (n_pos_per_embd in llama_kv_cache::get_can_shift).
    if row.memory != "kv" or "mrope" in row.rope or params.mmproj:
        return False
    # llama_kv_cache_iswa shifts only if both of its caches have the same size.
    return not evaluator.model.hparams.is_swa_any or bool(params.swa_full)
