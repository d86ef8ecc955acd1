"""What a launch is worth: the seconds of the reference request, times a factor for each drawback
that seconds do not show. Each row says what it is for, why, and which test holds it.

    worth(problem, params, use)          # seconds, less is better
    priced(problem, params, use)         # the rows that count, each with its factor

A lever that is less sure than its rival has its uncertainty as factor (`cost.doubt`): it wins only
at the pessimistic end of its range.
"""

from __future__ import annotations

from math import log2

from ..backends import HOST
from ..flags.params import EXPERTS_REGEX, FFN_REGEX, FIT_PARAMS_MIN_CTX, Params
from ..flags.workload import CHAT
from ..records import dataclass
from ..work.expert_cache import DOUBT as CACHE_DOUBT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.breakdown import Static
    from .problem import Problem


@dataclass(frozen=True)
class Price:
    """A factor of the request's seconds."""

    what: str
    factor: float
    why: str
    test: str


TOO_SLOW = 3.0  # tokens per second: nobody waits for an answer
READABLE = 8.0  # the same: people read 5 to 8
# tokens of a sequence; more are worth little, and --kv-types chooses no coarse type for them
ENOUGH = 32768
TALK = 8192  # tokens of a conversation, if the workload does not say more

SHORT = Price(
    "half the context, below 32k a sequence",
    1.04,
    "conversations end sooner; in a dense model each further token takes weights off the GPU",
    "decisions/test_regret.py",
)
SHORT_MIXTURE = Price(
    "half the context of a mixture of experts, below 32k a sequence",
    1.085,
    "the same, where experts in RAM cost little",
    "planner/test_plan.py::TestContext",
)
LONG = Price(
    "half the context, above 32k a sequence or above --ctx-min",
    1.008,
    "few fill it, but at nearly the same speed more is better",
    "planner/test_search.py",
)
FILLED = Price(
    "a cache in RAM that takes longer as it fills, or a smaller part of the context",
    0.0,
    "the CPU reads a long cache slowly: a context counts only as far as it pays to fill it, as the "
    "mean of empty, half full and full",
    "planner/test_search.py",
)
MOST = Price(
    "half the context with --ctx max",
    2.0,
    "context is what is asked for: twice as much may take twice the time",
    "planner/test_search.py",
)
MICRO_BATCH = Price(
    "another micro-batch",
    1.01,
    "a flag that people need not read, and a prediction that its memory is not needed",
    "decisions/test_regret.py",
)
LEAN = Price(
    "a word of the program's own that makes its graphs smaller",
    1.01,
    "one more flag that people have to read",
    "engines/test_ik_llama.py",
)
ORDER = Price(
    "another order of the devices",
    1.003,
    "a flag, for devices that are listed in another order than they are used best; only between "
    "orders, so that the order in which they are listed changes nothing else",
    "planner/test_search.py",
)
PARTS = Price(
    "parts of layers on another device, or of several layers, by -ot",
    1.02,
    "up to dozens of patterns, which nobody can read or change",
    "decisions/test_regret.py",
)
COARSE = Price(
    "a cache below q8_0 that --kv-types allows",
    1.05,
    "some models break with it",
    "planner/test_quality.py",
)
FFN = Price(
    "FFN weights of a dense model in RAM",
    0.0,
    "less sure than whole layers: by the error of comparisons between the two",
    "planner/test_search.py",
)
CPU = Price(
    "no device",
    0.0,
    "the processor instead of an integrated GPU: by the error of comparisons",
    "planner/test_integrated.py",
)
IDLE = Price(
    "no layer on the GPUs that are there",
    1.15,
    "nobody expects a card to be left idle: the processor must win clearly",
    "planner/test_search.py",
)
_EXPERT_CACHE = Price(
    "a cache of experts", CACHE_DOUBT, "its hits depend on the text", "work/test_expert_cache.py"
)

DRAFT = Price("a draft in use", 1.1, "what it gains depends on the text", "planner/test_drafts.py")
REUSE = Price(
    "--swa-full, where the next request changes what follows a long prefix",
    1.05,
    "what is in the cache need not be computed again",
    "planner/test_plan.py",
)
CHECKPOINTS = Price(
    "no context checkpoints, where they alone roll a cache back",
    0.0,
    "one request in four changes what was said before (an edit, another try, thoughts that a "
    "template leaves out), and is computed again from its first token",
    "planner/test_serving.py",
)
WIDER = Price(
    "a context that one of several models may have besides the least",
    1.05,
    "as below 32k for one model alone",
    "planner/test_multi.py",
)

QUANTISED = Price(
    "a q8_0 cache, for --users",
    1.1,
    "an f16 one is what people expect: clearly more tokens in all",
    "planner/test_users.py",
)
WAITS = Price(
    "fewer slots than --users",
    1.1,
    "a slot for each is what people expect, and nobody waits for one",
    "planner/test_users.py",
)
PARTLY = Price(
    "weights in RAM, for --users",
    1.02,
    "more slots are predicted less surely there than fewer with all weights on the GPUs",
    "planner/test_users.py",
)
SLOW = Price(
    "half the tokens/s for each of --users, below 8",
    1.1,
    "as fast as people read; below that they had better wait for a slot",
    "planner/test_users.py",
)

# What another launch must gain: to be chosen,
SPLIT = Price(
    "a further device for one of several models that fits on one",
    1.01,
    "it takes memory of several devices, which others may need",
    "planner/test_multi.py",
)
MACHINE = Price(
    "a further machine of a cluster",
    1.02,
    "one more that may fail, and must be kept running",
    "planner/test_cluster.py",
)
# or to be said as an alternative
SERVERS = Price(
    "several servers, in all tokens of --users",
    1.1,
    "several ports, over which somebody must divide the users",
    "planner/test_users.py",
)
FASTER = Price("an alternative's rate", 1.03, "less is within the error", "planner/test_plan.py")
LARGER = Price("an alternative's context", 1.05, "less is no reason", "planner/test_plan.py")
PINNED = Price(
    "an alternative that pins weights in RAM, in prompts",
    1.25,
    "pinned memory cannot be given back to other programs",
    "planner/test_plan.py",
)
FILLED_FASTER = Price(
    "a smaller context in place of --ctx max, in the rate with a full one",
    1.5,
    "context is what was asked for",
    "planner/test_plan.py",
)
SAID = Price(
    "a q8_0 cache or a smaller file, said on one line",
    1.5,
    "it is another answer than was asked for: only what is worth another try",
    "planner/test_faster.py",
)

# all of the above, in the order in which docs/planner.md has them
ROWS = tuple([each for each in dict(vars()).values() if isinstance(each, Price)])


def worth(problem: Problem, params: Params, use: Static) -> float:
    """Return the seconds of the reference request, times the prices; with --strategy layers the
    layers that are missing, and of as many the fewer seconds."""
    seconds = problem.cost.at_any_context(params, use).compared
    for _, factor in priced(problem, params, use):
        seconds *= factor
    # As a sum: one layer more beats any number of seconds, which count less than 1.
    if problem.policy.strategy == "layers":
        everything = problem.everything
        return 1 + everything - params.layers_wanted(everything) + seconds / (seconds + 1)
    return seconds


def worth_to_people(
    seconds: float, rate: float, waits: bool, quantised: bool, partly: bool
) -> float:
    """Return the seconds in which all people have an answer, times the prices. `rate`: tokens per
    second of each; `waits`: there are fewer slots than there may be; `quantised`: their caches are
    smaller than was asked for; `partly`: weights are in RAM."""
    seconds *= max(1.0, _halvings(SLOW, rate, READABLE))
    for counts, row in ((waits, WAITS), (quantised, QUANTISED), (partly, PARTLY)):
        seconds *= row.factor if counts else 1.0
    return seconds


def priced(problem: Problem, params: Params, use: Static) -> Iterator[tuple[Price, float]]:
    """Yield the rows that count for a launch, with their factors."""
    row, factor = of_context(problem, use.n_ctx_seq)
    if factor > 1:
        # The price of the context is in `factor` already; what filling it adds is a row of its own.
        yield row, factor
    filled = of_filling(problem, params, use) / factor
    if filled > 1:
        yield FILLED, filled
    yield from _of_flags(problem, params)
    given = problem.given
    chosen = params.overrides[len(given.overrides) :]
    processor = params.device == () != given.device
    if processor or any(pattern.endswith(FFN_REGEX) for pattern, _ in chosen):
        doubt = problem.cost.doubt(problem.cost.at_any_context(params, use))
        yield (CPU if processor else FFN), doubt
    if params.ctx_checkpoints == 0 != given.ctx_checkpoints:
        # The price of computing a whole conversation again for one request in four.
        work, speed = problem.policy.workload, problem.cost.at_any_context(params, use)
        tokens = max(work.depth + work.prompt, min(TALK, use.n_ctx_seq))
        of_computing_again = 1 + 0.25 * tokens / speed.prompt / speed.compared
        yield CHECKPOINTS, of_computing_again


def _of_flags(problem: Problem, params: Params) -> Iterator[tuple[Price, float]]:
    """Yield those that only flags decide."""
    given = problem.given
    if params.n_ubatch != given.n_ubatch:
        yield MICRO_BATCH, MICRO_BATCH.factor
    if (
        problem.machine.devices
        and params.device != ()
        and params.n_gpu_layers == 0 != given.n_gpu_layers
    ):
        yield IDLE, IDLE.factor
    if problem.drafting is not None:
        yield DRAFT, DRAFT.factor
    if params.moe_cache_mib != given.moe_cache_mib:
        yield _EXPERT_CACHE, _EXPERT_CACHE.factor
    kind = params.cache_type_k
    if kind != given.cache_type_k and low(kind):
        yield COARSE, COARSE.factor
    chosen = params.overrides[len(given.overrides) :]
    parts = [buffer for pattern, buffer in chosen if is_part(pattern, buffer)]
    if parts not in ([], [HOST]):
        yield PARTS, PARTS.factor


def is_part(pattern: str, buffer: str) -> bool:
    """Return whether a rule is none of -ncmoe, -cmoe or -ncffn."""
    return buffer != HOST or not pattern.endswith((EXPERTS_REGEX, FFN_REGEX))


def low(cache_type: str | None) -> bool:
    """Return whether a cache of this type answers otherwise than one of f16, llama.cpp's own."""
    return cache_type not in (None, "f32", "f16", "bf16", "q8_0")


def chooses_context(problem: Problem) -> bool:
    """Return whether a context is worth something by itself: none is given, and not the number of
    layers alone is wanted."""
    policy = problem.policy
    given = problem.given.n_ctx is not None or isinstance(policy.n_ctx, int)
    return not given and (policy.n_ctx == "max" or policy.strategy != "layers")


def of_context(problem: Problem, n_ctx_seq: int) -> tuple[Price, float]:
    """Return the price of a context that is smaller than the model's; 1 if it is given."""
    policy = problem.policy
    trained = max(1, problem.model.n_ctx_train)
    if not chooses_context(problem) or n_ctx_seq >= trained:
        return LONG, 1.0
    if policy.n_ctx == "max":
        return MOST, _halvings(MOST, n_ctx_seq, trained)
    enough = min(ENOUGH, trained)
    if policy.n_ctx_min is not None or n_ctx_seq >= enough:
        return LONG, _halvings(LONG, n_ctx_seq, trained)
    row = SHORT_MIXTURE if problem.model.is_moe else SHORT
    return row, _halvings(row, n_ctx_seq, enough) * _halvings(LONG, enough, trained)


def of_filling(problem: Problem, params: Params, use: Static) -> float:
    """Return the price of the context; where the cache is in RAM that of the part that it pays to
    fill, times what filling it costs. A given context is filled."""
    full = use.n_ctx_seq
    whole = of_context(problem, use.n_ctx_seq)[1]
    if problem.policy.workload != CHAT or not use.host.context:
        return whole
    # A given context is used whole, so what a full one costs counts.
    if problem.fills:
        return problem.cost.growth(params, use, full)
    if not chooses_context(problem):
        return whole
    floor = problem.policy.n_ctx_min or problem.given.fit_ctx or FIT_PARAMS_MIN_CTX
    # From the smallest context that counts upwards: filling more pays until the cache in RAM is too
    # slow.
    lowest = float("inf")
    part = min(floor, full)
    while True:
        price = of_context(problem, part)[1] * problem.cost.growth(params, use, part)
        if price >= lowest or part == full:
            return min(price, lowest)
        lowest = price
        part = min(2 * part, full)


def _halvings(row: Price, n: float, larger: float) -> float:
    # E.g. 1.04 ** 2 for a quarter of the context.
    return float(row.factor ** log2(larger / max(0.001, n)))
