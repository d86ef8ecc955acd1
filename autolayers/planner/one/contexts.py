"""The contexts that a launch may have: what -c, --ctx and --ctx-min leave open."""

from __future__ import annotations

from ...flags.params import FIT_PARAMS_MIN_CTX
from ...memory.context import CELL_BLOCK
from ...records import dataclass
from ...units import pad

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...flags.params import Params
    from ..problem import Problem


@dataclass(frozen=True)
class Contexts:
    """The contexts to choose from. `open`: the least and the most, None if the context is `fixed`,
    which is None for a launch without -c."""

    fixed: int | None
    open: tuple[int, int] | None = None
    step: int = CELL_BLOCK

    @property
    def smallest(self) -> int | None:
        return self.open[0] if self.open else self.fixed


def contexts(problem: Problem, params: Params) -> Contexts:
    """Return what -c, --ctx and --ctx-min leave open with these given flags, in cells of the whole
    cache.

    Without a unified cache each slot has a stream with an equal part, so the range is per sequence
    times the number of streams, as in common_params_fit_impl.
    """
    if params.n_ctx is not None or params.kv_unified_per_slot:
        return Contexts(params.n_ctx)
    policy = problem.policy
    if isinstance(policy.n_ctx, int):
        return Contexts(policy.n_ctx)
    streams = streams_of(params)
    trained = max(1, problem.model.n_ctx_train)
    floor = policy.n_ctx_min
    if floor is None:
        # No more than the model was trained for, whatever the workload wants.
        # The cells that each stream should have at least
        work = problem.policy.workload
        wanted = work.prompt + work.generate + work.depth
        if streams == 1:
            wanted *= work.requests
        # the workload says what each slot must hold; one slot would have the usual minimum
        usual = FIT_PARAMS_MIN_CTX // streams if work.requests > 1 else FIT_PARAMS_MIN_CTX
        floor = min(max(params.fit_ctx or usual, work.context, pad(wanted, CELL_BLOCK)), trained)
    if floor >= trained:
        return Contexts(floor * streams)
    return Contexts(None, (floor * streams, trained * streams), CELL_BLOCK * streams)


def streams_of(params: Params) -> int:
    """Return the separate caches of the slots: llama-server's automatic ones share a unified one,
    several that are given have one each."""
    return 1 if params.kv_unified else max(1, params.n_parallel or 1)
