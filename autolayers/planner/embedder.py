"""Models that answer embeddings or a reranker's scores: what llama-server needs for them, and what
they are asked.

An encoder has no KV cache, so an input must lie in one micro-batch (server_slot::can_split): -b and
-ub of a whole context, or of 2048 tokens, where all layers then fit on the GPUs. The prompt cache
of llama-server keeps what was in an idle slot, whatever its task is; an embedding is never
continued, so --cache-ram 0.
"""

from __future__ import annotations

from ..keys import written
from ..records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params
    from ..model import Model
    from ..work.speed import Speed
    from .evaluate import Candidate
    from .problem import Problem

_RANK = 4  # llama_pooling_type; 0 does not pool, those between pool an input into one embedding
SHORT = 2048  # tokens: few inputs are longer


@dataclass(frozen=True)
class EmbeddingInputs:
    """Inputs of `tokens` tokens, and how many are answered `per_second`, one after the other."""

    tokens: int
    per_second: float

    def to_dict(self) -> dict[str, object]:
        return written("inputs", self)


def encodes(model: Model) -> bool:
    """Return whether the model is an encoder that pools: a diffusion model has no KV cache either,
    and writes text."""
    pooled = 0 < model.hparams.pooling_type <= _RANK
    return model.row.memory == "none" and pooled


def embeds(params: Params) -> bool:
    return bool(params.embedding or params.reranking)


def ways(problem: Problem) -> Iterator[Params]:
    """Yield the flags to plan with, best first, the usual ones last: of an encoder with
    micro-batches of a whole context, or of SHORT tokens. Other models have one way."""
    # The given flags with what an encoder is for, and without saved prompts
    model = problem.model
    params = problem.given
    if encodes(model) and not embeds(params):
        rank = model.hparams.pooling_type == _RANK
        params = replace(params, reranking=True) if rank else replace(params, embedding=True)
    # An idle slot's prompt would be kept for nothing: no embedding is continued.
    if embeds(params) and params.cache_ram is None and not problem.policy.agents:
        params = replace(params, cache_ram=0)
    # A given batch is the user's decision.
    if encodes(problem.model) and params.n_batch is None and params.n_ubatch is None:
        n_ctx = longest_input(problem)
        for size in dict.fromkeys((n_ctx, min(n_ctx, SHORT))):
            # No encoder that there is takes more than 32768.
            if 0 < size <= 1 << 17:
                yield replace(params, n_batch=size, n_ubatch=size)
    yield params


def way_beside_others(problem: Problem) -> Params:
    """Return the flags of one of several models: of an encoder with the shorter micro-batches."""
    found = [*ways(problem)]
    return found[-2] if len(found) > 1 else found[0]


def longest_input(problem: Problem) -> int:
    """Return the tokens of the longest input: the given or wanted context, the trained one at most,
    unless it is stretched; 0 if unknown."""
    wanted = problem.policy.n_ctx if isinstance(problem.policy.n_ctx, int) else 0
    asked, trained = problem.given.n_ctx or wanted, problem.model.n_ctx_train
    stretched = problem.given.rope_scaling or problem.given.rope_scale
    # Inputs of more tokens than it was trained for have no use, and micro-batches of them take GiB
    return asked if stretched or not trained else min(asked or trained, trained)


def suits(problem: Problem, candidate: Candidate) -> bool:
    """Return whether the first way may be taken that this is the launch of: it fits, and its
    micro-batches take no layer off the GPUs."""
    everything = problem.everything
    # Larger micro-batches are only worth it while nothing leaves the GPUs.
    return candidate.fits and (
        not problem.machine.devices or candidate.params.layers_wanted(everything) == everything
    )


def inputs(params: Params, speed: Speed, n_ctx_seq: int) -> EmbeddingInputs | None:
    """Return what a launch that embeds is asked: the workload's prompts, as long as a slot allows;
    None for others."""
    if not embeds(params):
        return None
    tokens = max(1, min(speed.workload.prompt, n_ctx_seq))
    return EmbeddingInputs(tokens, speed.prompt / tokens)
