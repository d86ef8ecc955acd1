"""Which file: quantisations of a model, or any models, each planned for one machine, and the
recommended one.

    assess(model, request)                     # Choice: how it runs, its largest context, its speed
    advise(choices)  # Advice: which one to take and by which rule, and the next one up

Of the quantisations of one model that fit, the first of these rules that has any decides:

    WHOLE    fully on the GPUs, at Q4 or above, as fast as people read: the largest
    READS    with weights in RAM, at Q4 or above, as fast as people read: closest to the original
             (a file that nearly fills the RAM only if all do)
    SLOW     at least half as fast as the fastest: the best of Q4, Q3 and Q2 that is there, and of
             its files the fastest, as a closer one would be slower still. None below Q3 where one
             above is READABLE

As fast as people read is READABLE tokens per second, of a mixture FLUENT: what one that is partly
in RAM reaches. A job may want more than that.
"""

from __future__ import annotations

from ...errors import LaunchRefused
from ...records import dataclass, replace
from ...units import GiB
from ..answer import plan_request
from ..prices import READABLE, TALK
from .quality import Divergence, Usual, closer, level, of, usual

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model import Model
    from ...request import Request
    from ...work.speed import Speed
    from ..embedder import EmbeddingInputs
    from ..measured import Measured
    from ..plan import Plan

# How a model runs, best first; also in the JSON
WHOLLY, EXPERTS, PARTLY, IN_RAM, NO = "wholly", "experts in RAM", "partly", "in RAM", "no"
FLUENT = 20.0  # tokens per second that are to be had of a mixture
# quality.level: below GOOD a file is the second choice, below POOR the last one
GOOD, POOR = 4, 3
# Why a file is taken
WHOLE, READS, SLOW = "whole", "reads", "slow"
# Less than this is left, or this part of the memory: other programs want it
LEFT, SHARE = GiB, 0.05


@dataclass(frozen=True)
class Choice:
    """One model on the machine, bytes. `n_ctx` is the largest context at this placement, 0 if none
    fits; `left` is what then remains on the devices."""

    verdict: str
    placement: str
    size: int
    bits_per_weight: float
    n_ctx_train: int
    n_ctx: int = 0
    speed: Speed | None = None
    flags: tuple[str, ...] = ()
    left: int = 0
    exact: bool = False
    warnings: tuple[str, ...] = ()
    usual: Usual | None = None  # quality of its type
    measured: Divergence | None = None  # of this very file
    family: str = ""  # the same for quantisations of one model
    mixture: bool = False  # of experts
    inputs: EmbeddingInputs | None = None  # of a model that answers embeddings: it writes no text
    beside: Measured | None = None  # rates that somebody measured of it
    # At the wanted context: tokens per second when it is full; the bytes that are left, where they
    # are few; and whether those are of the RAM
    full: float = 0.0
    few: int | None = None
    few_ram: bool = False

    @property
    def fits(self) -> bool:
        return self.verdict != NO

    @property
    def rate(self) -> float:
        """Tokens per second, 0 where nothing fits."""
        return self.speed.generation if self.speed else 0.0

    @property
    def level(self) -> int:
        return level(self.usual, self.measured, self.bits_per_weight)

    @property
    def fluent(self) -> bool:
        """Whether it answers as fast as people read."""
        return self.is_fluent(0.0)

    def is_fluent(self, least: float) -> bool:
        """Return whether it answers as fast as people read, and as a job needs (`least`)."""
        return self.rate >= max(least, FLUENT if self.mixture else READABLE)

    def to_dict(self) -> dict[str, object]:
        return {
            "verdict": self.verdict,
            "placement": self.placement,
            "size": self.size,
            "bits_per_weight": round(self.bits_per_weight, 3),
            "n_ctx": self.n_ctx,
            "n_ctx_train": self.n_ctx_train,
            "remaining": self.left,
            "few_left": self.few,
            "tokens_per_second_full": round(self.full, 3),
            "exact": self.exact,
            "flags": list(self.flags),
            "warnings": list(self.warnings),
            "speed": self.speed.to_dict() if self.speed else None,
            "measured": self.beside.to_dict() if self.beside else None,
            **({"inputs": self.inputs.to_dict()} if self.inputs else {}),
            "quality": {
                "usual": self.usual.to_dict() if self.usual else None,
                "measured": self.measured.to_dict() if self.measured else None,
            },
        }


@dataclass(frozen=True)
class Recommended:
    """Indices of the recommended file and of the next larger one, None if there is none. `rule`:
    why it is taken."""

    take: int
    next: int | None
    rule: str
    # the largest that is fully offloaded, where another model is larger and no slower
    # Shown with the advice: who wants no experts in RAM takes this one.
    over: int | None = None


def wanted_ctx(request: Request) -> int:
    """Return the minimum context that the user wants."""
    params = request.params
    policy = request.policy
    # A context that the user gave beats the least one, and both the workload's.
    given = params.n_ctx or (policy.n_ctx if isinstance(policy.n_ctx, int) else 0)
    return given or policy.n_ctx_min or max(TALK, policy.workload.context)


def assess(model: Model, request: Request, quality: Sequence[Divergence] = ()) -> Choice:
    """Return how a model runs, and its quality. `quality`: what was measured of any files."""
    return assessed(model, request, quality)[0]


def assessed(
    model: Model, request: Request, quality: Sequence[Divergence] = ()
) -> tuple[Choice, Plan | None]:
    """Return the same and its plan, None where no launch is possible."""
    choice, plan = assessed_briefly(model, request, quality, True)
    if plan is not None and choice.fits:
        choice = completed(choice, plan, request)
    return choice, plan


def completed(choice: Choice, plan: Plan, request: Request) -> Choice:
    """Return the choice with what is said of the wanted context: one more plan."""
    # The plan with the wanted context, all else as placed: files are compared alike.
    n_ctx = min(wanted_ctx(request), plan.breakdown.n_ctx)
    if n_ctx == plan.breakdown.n_ctx:
        at = plan
    else:
        free = request.with_goals(n_ctx=None, n_ctx_min=None)
        at = plan_request(plan.model, free.with_params(replace(plan.params, n_ctx=n_ctx)))
    few, few_ram = few_left(at)
    return replace(choice, full=at.speed.generation_full, few=few, few_ram=few_ram)


def assessed_briefly(
    model: Model, request: Request, quality: Sequence[Divergence] = (), smaller: bool = False
) -> tuple[Choice, Plan | None]:
    """Return the same, not `completed`. `smaller`: of one that does not fit, what would run."""
    choice, plan = _assess(model, replace(request, notes=()), smaller)
    choice = replace(
        choice,
        usual=usual(model),
        measured=of(model, quality),
        mixture=model.is_moe,
        family=f"{model.architecture} {model.n_elements}",
    )
    return choice, plan


def _assess(model: Model, request: Request, smaller: bool) -> tuple[Choice, Plan | None]:
    """Return how a model runs as `autolayers MODEL` plans it, if that has the wanted context; else
    with at least that; if nothing else fits with a `smaller` one."""
    # More than the model was trained for is not wanted of it.
    wanted = min(wanted_ctx(request), max(1, model.n_ctx_train))
    free = request.with_flags(n_ctx=None).with_goals(n_ctx=None, n_ctx_min=None)
    try:
        # A given context leaves the free plan nothing to decide.
        # Whether a context is given, or a least one.
        params = request.params
        policy = request.policy
        # --ctx max counts too: it is a wish for the context.
        gives_ctx = bool(params.n_ctx or policy.n_ctx or policy.n_ctx_min)
        own = None if gives_ctx else plan_request(model, free)
        if own is not None and own.fits and own.breakdown.n_ctx_seq >= wanted:
            return _choice(own, True), own
        # The free plan chose less context because it is faster; now at least as much as wanted.
        plan = plan_request(model, free.with_goals(n_ctx_min=wanted))
        if plan.fits:
            return _choice(plan, True), plan
        # Nothing with the wanted context fits: what would run with less is shown, as one that does
        # not fit.
        less = plan_request(model, free) if smaller and own is None else own
        shown = less if less is not None and less.fits else plan
        return _choice(shown, False), shown
    except LaunchRefused as refusal:
        bits = model.bits_per_weight
        return Choice(NO, str(refusal), model.size, bits, model.n_ctx_train), None


def few_left(plan: Plan) -> tuple[int | None, bool]:
    """Return how few bytes are left, and whether they are of the RAM; None if there is enough.
    Wholly on GPUs their memory may be outgrown too."""
    host = plan.host
    if host.free is not None:
        # What serving may add is limited by the plan to what is there
        ram = host.free - host.resident - host.shared - host.margin
        if ram < max(LEFT, SHARE * host.free):
            return ram, True
    if verdict(plan) != WHOLLY:
        return None, False
    used = [row for row in plan.devices if row.used]
    gpus = sum(row.remaining for row in used)
    few = gpus < max(LEFT, SHARE * sum(row.free for row in used))
    return (gpus if few else None), False


def _choice(plan: Plan, fits: bool) -> Choice:
    model = plan.model
    return Choice(
        verdict(plan) if fits else NO,
        plan.placement,
        model.size,
        model.bits_per_weight,
        model.n_ctx_train,
        plan.breakdown.n_ctx_seq if plan.fits else 0,
        plan.speed if plan.fits else None,
        plan.flags,
        min((device.remaining for device in plan.devices if device.used), default=0),
        plan.exact,
        plan.warnings,
        inputs=plan.inputs if plan.fits else None,
        beside=plan.measured if plan.fits else None,
    )


def verdict(plan: Plan) -> str:
    """Return how a plan that fits runs."""
    # Without devices n_gpu_layers says nothing.
    on_gpu = plan.n_gpu_layers if plan.devices else 0
    if not on_gpu:
        return IN_RAM
    # The output layer counts, as in llama.cpp: n_layer + 1 is everything.
    if on_gpu < plan.n_layer + 1:
        return PARTLY
    if not plan.params.overrides:
        return WHOLLY
    return EXPERTS if plan.model.is_moe else PARTLY


def advise(choices: Sequence[Choice], n_ctx: int = 0, least: float = 0.0) -> Recommended | None:
    """Return the recommended file of each model; of several models the largest that is fully
    offloaded, or that is larger and no slower with weights in RAM (a mixture), otherwise the
    fastest; None if none fits. Models that write text come first, then those trained for the wanted
    context. `least`: tokens per second that the user's job needs."""
    # Which choices fit; of these those that write text, and those trained for the context, if
    # there are any
    fitting = [i for i, choice in enumerate(choices) if choice.fits]
    # A file for embeddings is taken only if there is no other: it writes no text.
    fitting = [i for i in fitting if choices[i].inputs is None] or fitting
    fitting = [i for i in fitting if choices[i].n_ctx_train >= n_ctx] or fitting
    if not fitting:
        return None
    # Quantisations of one model are compared by quality, different models only by size and speed.
    families: dict[str, list[int]] = {}
    for i in fitting:
        families.setdefault(choices[i].family, []).append(i)
    rules = dict(_recommended(choices, files, least) for files in families.values())
    files = list(rules)
    # The file to take of those of several models, and the fully offloaded one that it is taken
    # over
    whole = [i for i in files if choices[i].verdict == WHOLLY]
    if not whole:
        # With weights in RAM in all of them, the fastest is the one that can be used.
        take, over = max(files, key=lambda i: (choices[i].rate, -i)), None
    else:
        largest = _largest(choices, whole)
        # A mixture partly in RAM may be larger than a dense model on the GPU, and no slower.
        better = [i for i in files if _larger_and_no_slower(choices[i], choices[largest])]
        take, over = (_largest(choices, better), largest) if better else (largest, None)
    # The next size up is named, so that the user sees what a larger file would cost.
    larger = [i for i, choice in enumerate(choices) if choice.size > choices[take].size]
    return Recommended(
        take, min(larger, key=lambda i: (choices[i].size, i), default=None), rules[take], over
    )


def _largest(choices: Sequence[Choice], files: Sequence[int]) -> int:
    """Return the largest file; of equal ones the first."""
    return max(files, key=lambda i: (choices[i].size, -i))


def _recommended(choices: Sequence[Choice], files: Sequence[int], least: float) -> tuple[int, str]:
    """Return the file to take of those of one model that fit, and by which rule."""
    good = [i for i in files if choices[i].level >= GOOD]
    fluent = [i for i in good if choices[i].is_fluent(least)]
    # A file that nearly fills the RAM would swap with the next program
    fluent = [i for i in fluent if not choices[i].few_ram] or fluent
    whole = [i for i in fluent if choices[i].verdict == WHOLLY]
    if whole:
        return _largest(choices, whole), WHOLE
    if fluent:
        # The closest to the original; the larger one where nothing says so
        closest, *others = fluent
        for i in others:
            nearer = compared(choices[i], choices[closest])
            # Nothing decides between them: more bits are at least no worse.
            if nearer > 0 or (not nearer and choices[i].size > choices[closest].size):
                closest = i
        return closest, READS
    # The fastest of the best; instead of a poor one, that of those that are not and can still be
    # read
    fastest = _fastest_of_best(choices, files)
    # Below Q3 the text suffers visibly, so a slower file that can still be read is better.
    above = [i for i in files if choices[i].level >= POOR and choices[i].rate >= READABLE]
    return (
        _fastest_of_best(choices, above) if choices[fastest].level < POOR and above else fastest
    ), SLOW


def _fastest_of_best(choices: Sequence[Choice], files: Sequence[int]) -> int:
    """Return the fastest file of the best level up to GOOD, among those not much slower than the
    fastest."""
    # Half of the fastest: within that people prefer quality to speed.
    slowest = 0.5 * max(choices[i].rate for i in files)
    near = [i for i in files if choices[i].rate >= slowest]
    return max(near, key=lambda i: (min(choices[i].level, GOOD), choices[i].rate, -i))


def _larger_and_no_slower(one: Choice, other: Choice) -> bool:
    # Files of one family are compared by quality (`compared`), not by size.
    if one.speed is None or other.speed is None or one.family == other.family:
        return False
    return (
        one.size > other.size
        and one.speed.generation >= other.speed.generation
        and one.speed.request <= other.speed.request
    )


def compared(one: Choice, other: Choice) -> int:
    """Return 1 where the first is closer to the original, -1 where the other is, 0 where nothing
    says so."""
    # Figures of different sources were measured on different texts.
    if one.measured and other.measured and one.measured.source == other.measured.source:
        return closer(one.measured, other.measured)
    bits = one.bits_per_weight - other.bits_per_weight
    # From half a bit per weight on the larger is closer (quality.py).
    if abs(bits) < 0.5:
        return 0
    return 1 if bits > 0 else -1


def front(choices: Sequence[Choice], take: int | None = None) -> list[bool]:
    """Return whether no other that fits is at least as small and as fast, not known to be less
    close, and better in one. What is taken (`take`) is: where nothing says which is closer, it has
    more bits."""

    def beaten(mine: Choice) -> bool:
        return any(_beats(other, mine) for other in choices if other is not mine)

    return [
        choice.fits and choice.speed is not None and (i == take or not beaten(choice))
        for i, choice in enumerate(choices)
    ]


def _beats(one: Choice, other: Choice) -> bool:
    if not one.fits or one.family != other.family:
        return False
    if one.speed is None or other.speed is None:
        return False
    nearer = compared(one, other)
    # How much faster one rate is; 0 of rates within two percent: predictions are not surer.
    gain = one.speed.generation - other.speed.generation
    faster = 0.0 if abs(gain) < 0.02 * other.speed.generation else gain
    # It loses in one of the three: so it does not beat the other.
    if nearer < 0 or faster < 0 or one.size > other.size:
        return False
    return nearer > 0 or faster > 0 or one.size < other.size
