"""A cache of experts (--moe-cache-mib) instead of layers of experts: the same VRAM, where the
machine's upload rate is known."""

from __future__ import annotations

from ...backends import HOST
from ...records import replace
from ...units import MiB, human
from ...work.expert_cache import DOUBT, loses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...flags.params import Params
    from ...work.speed import CostModel
    from ..evaluate import Candidate, Evaluator, Fidelity
    from ..problem import Problem
    from .ladder import Ladders

FLAG = "--moe-cache-mib"
STEP = 64  # MiB


def may_cache(problem: Problem, given: Params) -> bool:
    """Return whether a cache of experts may be added: no given flag decides about it, the build has
    it and it did not lose on every such machine."""
    decided = given.moe_cache_mib is not None or given.split_mode not in (None, "layer", "none")
    if decided or problem.policy.strategy == "layers":
        return False
    possible = problem.model.hparams.n_expert and problem.machine.devices
    return bool(possible) and problem.build.knows(FLAG) and not loses(problem.machine)


def hits(cost: CostModel, candidate: Candidate) -> tuple[str, ...]:
    """Return what the launch's cache of experts is predicted to do."""
    cached = cost.clock(candidate.params, candidate.breakdown).cached
    if cached is None:
        return ()
    sent = cached.size * cost.weights.used * cached.missed
    hit, least, most = (100 * share for share in cached.hits)
    return (
        f"{FLAG} {candidate.params.moe_cache_mib}: about {hit:.0f} % ({least:.0f} to {most:.0f} %) "
        f"of a token's experts are there, "
        f"{human(int(sent))} are uploaded at {'' if cached.measured else 'an assumed '}"
        f"{cached.upload / 1e9:.3g} GB/s",
    )


def with_expert_cache(
    evaluator: Evaluator,
    cost: CostModel,
    ladders: Ladders,
    plain: Candidate,
    params: Params,
    fidelity: Fidelity,
) -> Candidate:
    """Return `plain`, or a launch with a cache that makes the request faster by more than the error
    of comparisons: with as many layers' experts on the GPUs, half of them or none, and the largest
    cache that fits."""
    # By DOUBT faster, as hits depend on the text.
    best = plain
    limit = cost.speed(plain).request / DOUBT
    for shape in _shapes(ladders, plain, params):
        cached = _largest(evaluator, cost, shape, fidelity, limit)
        if cached is not None and cost.speed(cached).request < limit:
            best = cached
            limit = cost.speed(cached).request
    return best


def _shapes(ladders: Ladders, plain: Candidate, params: Params) -> Iterator[Params]:
    """Yield launches whose cache may be worth more than their experts on the GPUs."""
    # Without experts in RAM there is nothing to cache.
    if not any(buffer == HOST for _, buffer in plain.params.overrides):
        return
    yield plain.params
    rung = ladders.of(plain.params, params)
    if rung is None or rung[0].kind != "experts":
        return
    ladder, count = rung
    # Fewer layers' experts on the devices leave more of them for the cache.
    for fewer in dict.fromkeys((count // 2, 0)):
        if fewer < count:
            yield replace(plain.params, overrides=ladder(fewer).overrides)


def _largest(
    evaluator: Evaluator, cost: CostModel, shape: Params, fidelity: Fidelity, limit: float
) -> Candidate | None:
    """Return the launch with the largest cache that fits; None if a request takes `limit` seconds
    or more, as a smaller cache has fewer hits."""

    def pays(size: int) -> bool:
        at = replace(shape, moe_cache_mib=size)
        use = evaluator.static(at) if size >= STEP else None
        return use is not None and cost.predict(at, use).request < limit

    use = evaluator.static(shape)
    # Weights and context alone leave no more than this, so mostly no graph is needed.
    space = sum(evaluator.machine.limits.values()) - (0 if use is None else use.on_devices)
    if not pays(space // MiB // STEP * STEP):
        return None
    bare = evaluator.candidate(shape, fidelity)
    if bare is None or not bare.fits:
        return None
    size = sum(bare.spare.values()) // MiB // STEP * STEP
    for _ in range(3):  # as often as a smaller one is tried
        if not pays(size):
            return None
        cached = evaluator.candidate(replace(shape, moe_cache_mib=size), fidelity)
        if cached is None or cached.fits:
            return cached
        lacking = max(-left for left in cached.spare.values())
        if lacking <= 0:  # of RAM
            return None
        # The cache is shared out over the devices: all shares shrink so that one may.
        size -= -(-lacking * len(cached.spare) // MiB // STEP) * STEP
    return None
