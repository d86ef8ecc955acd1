"""A draft: on the GPU, in RAM or not used, and how many tokens a step, by the seconds of each launch.

No layer is given away for a draft that loses. A draft model that is given (-md) stays given: where it is not worth its
memory it is loaded into RAM, which llama-server does not draft with unless --spec-type says so.
"""

from __future__ import annotations

from ..backends import HOST
from ..builds import TODAY, Build
from ..flags.params import Params
from ..flags.write import to_words
from ..memory.companions import with_draft_type
from ..memory.context import DRAFT_N_MAX
from ..model.vocabulary import unlike
from ..records import dataclass, replace
from ..work.drafts import GAIN, NAMED, Drafting
from .evaluate import FULL, Evaluator
from .search import Solved, solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.policy import Policy
    from ..work.speed import CostModel
    from .evaluate import Candidate

SIMPLE = "draft-simple"


@dataclass(frozen=True)
class Choice:
    """A launch: what is given with it, what prices it, and how it drafts."""

    given: Params
    cost: CostModel
    candidate: Candidate
    where: str

    @property
    def rate(self) -> float:
        return self.cost.speed(self.candidate).generation


def drafts(params: Params, evaluator: Evaluator) -> str:
    """The type of the launch's drafts; "" for none, or if only its text decides what it gains (n-grams). A draft model
    is used without --spec-type too where it may be given."""
    companions = evaluator.estimator.companions
    said = with_draft_type(params, companions).spec_type
    if said:
        return next((kind for kind in said if kind.startswith("draft-")), "")
    return SIMPLE if companions.draft is not None else ""


def with_draft(evaluator: Evaluator, given: Params, policy: Policy) -> Solved:
    """The launch of a model with a draft."""
    plain = _without(evaluator, given, policy)
    said = bool(with_draft_type(given, evaluator.estimator.companions).spec_type)
    other = "" if said else _other_vocabulary(evaluator, policy)
    tried = [choice for variant in (() if other else _variants(evaluator, given, policy))
             if (choice := _tried(evaluator, variant, policy, plain)) is not None]
    drafting = max((choice for choice in tried if choice.candidate.fits), key=lambda choice: choice.rate, default=None)
    # builds before the names draft with every model that is given
    idle = None if said or _number(policy) < NAMED else _idle(evaluator, given, policy, plain)
    best = drafting
    if idle is not None and (drafting is None or drafting.rate < idle.rate * GAIN):
        best = idle
    if best is None:
        cost = evaluator.cost(policy.workload)
        return Solved(given, cost, tried[0].candidate if tried else solve(evaluator, given, policy, cost))
    reasons = (f"llama-server does not draft with the draft's vocabulary: {other}",) if other else _reasons(
        best, tried, plain)
    return Solved(best.given, best.cost, best.candidate, reasons)


def _number(policy: Policy) -> int:
    build = policy.build if isinstance(policy.build, Build) else Build(policy.build) if policy.build else TODAY
    return build.rules.number


def _free(given: Params, evaluator: Evaluator) -> bool:
    """Whether the draft model's place is open."""
    return bool(evaluator.machine.devices) and evaluator.estimator.companions.draft is not None \
        and given.device_draft is None and given.n_gpu_layers_draft is None and not given.overrides_draft


def _variants(evaluator: Evaluator, given: Params, policy: Policy) -> list[Params]:
    """What to try: drafting where the flags put the draft, and with it in RAM."""
    companions = evaluator.estimator.companions
    if not with_draft_type(given, companions).spec_type and _number(policy) >= NAMED:
        given = replace(given, spec_type=(SIMPLE,))
    return [given, replace(given, device_draft=())] if _free(given, evaluator) else [given]


def _other_vocabulary(evaluator: Evaluator, policy: Policy) -> str:
    """Why llama-server would not start with this draft model in use, "" if it would."""
    draft, rules = evaluator.estimator.companions.draft, Build(_number(policy)).rules
    if draft is None or draft.row.draft_type or rules.translates_drafts or not rules.names_draft_type:
        return ""
    return unlike(evaluator.model, draft, only_added=rules.draft_ends_if_added)


def _without(evaluator: Evaluator, given: Params, policy: Policy) -> Choice | None:
    """The launch without the draft."""
    companions = replace(evaluator.estimator.companions, draft=None)
    other = Evaluator.of(evaluator.model, evaluator.machine, policy.build, evaluator.target, companions,
                         meter=evaluator.estimator.meter)
    bare = replace(given, model_draft=None, draft_n_max=None, device_draft=None, n_gpu_layers_draft=None,
                   spec_type=tuple([kind for kind in given.spec_type if not kind.startswith("draft-")]))
    cost = other.cost(policy.workload)
    found = solve(other, bare, policy, cost)
    return None if found is None or not found.fits else Choice(bare, cost, found, "")


def _idle(evaluator: Evaluator, given: Params, policy: Policy, plain: Choice | None) -> Choice | None:
    """The launch that loads the draft and does not use it: into RAM, if that is open and it is in the way."""
    variant, cost = given, evaluator.cost(policy.workload)
    found = _like(evaluator, variant, plain)
    if (found is None or not found.fits) and _free(given, evaluator):
        variant = replace(given, device_draft=())
        found = _like(evaluator, variant, plain)
    if found is None or not found.fits:
        found = solve(evaluator, variant, policy, cost)
    return None if found is None or not found.fits else Choice(variant, cost, found, "idle")


def _like(evaluator: Evaluator, variant: Params, plain: Choice | None) -> Candidate | None:
    """The launch without the draft, with it."""
    if plain is None:
        return None
    placed = plain.candidate.params
    solved = {name: value for name, value in vars(placed).items() if value != getattr(plain.given, name)}
    return evaluator.candidate(replace(variant, **solved), FULL)


def _tried(evaluator: Evaluator, variant: Params, policy: Policy, plain: Choice | None) -> Choice | None:
    """The launch that drafts with these flags, and the number of tokens if that is open."""
    drafting = Drafting(drafts(variant, evaluator), evaluator.estimator.companions.draft, _place(evaluator, variant),
                        variant.draft_n_max, _share(variant, policy))
    cost = evaluator.cost(policy.workload, drafting)
    found = _like(evaluator, variant, plain)
    if found is None or not found.fits:
        found = solve(evaluator, variant, policy, cost)
    if found is None:
        return None
    where = "RAM" if drafting.place == HOST else "the GPU" if drafting.model is not None else "the model's device"
    found_draft = cost.speed(found).draft
    if variant.draft_n_max is not None or found_draft is None:
        return Choice(variant, cost, found, where)
    numbers = range(found_draft.n, 0, -1) if _number(policy) >= NAMED else ()
    for n in numbers:
        fewer = evaluator.candidate(replace(found.params, draft_n_max=n), FULL)
        if fewer is not None and fewer.fits:
            return Choice(variant, evaluator.cost(policy.workload, replace(drafting, n=n)), fewer, where)
    return Choice(variant, evaluator.cost(policy.workload, replace(drafting, n=DRAFT_N_MAX)), found, where)


def _share(params: Params, policy: Policy) -> tuple[float, int] | None:
    if policy.acceptance is None:
        return None
    return policy.acceptance, DRAFT_N_MAX if params.draft_n_max is None else max(1, params.draft_n_max)


def _place(evaluator: Evaluator, params: Params) -> str:
    """The first device of the draft model; "" for the model's own block."""
    if evaluator.estimator.companions.draft is None:
        return ""
    devices = params.device_draft if params.device_draft is not None else params.device
    if devices == () or params.n_gpu_layers_draft == 0 or not evaluator.machine.devices:
        return HOST
    return devices[0] if devices else evaluator.machine.devices[0].name


def _reasons(best: Choice, tried: list[Choice], plain: Choice | None) -> tuple[str, ...]:
    """What drafting gains, or why it is not done."""
    draft = best.cost.speed(best.candidate).draft
    others = ", ".join(f"{choice.rate:.1f} drafting on {choice.where}".replace("on RAM", "in RAM") for choice in tried
                       if choice.candidate.fits)
    if draft is None:
        words = " ".join(to_words(Params(device_draft=best.given.device_draft)))
        rate = plain.rate if plain is not None else best.rate
        return (f"the draft model loses: {rate:.1f} tokens/s without it, {others or 'and with it nothing fits'}; leave "
                f"-md out{f', or it waits in RAM ({words})' * bool(words)}",)
    rates = ", ".join(f"{text} {rate:.1f}" for text, rate in draft.rates)
    tokens = f"{draft.n} token" + "s" * (draft.n > 1)
    line = f"drafts of {tokens}: {draft.plain:.1f} tokens/s become {best.rate:.1f} ({rates})"
    if plain is not None and plain.rate > best.rate:
        return (f"the draft loses: {plain.rate:.1f} tokens/s without it, {others}: leave it out",)
    if plain is not None and plain.rate > draft.plain * 1.01:
        line += f"; without the draft {plain.rate:.1f}"
    return (line,)
