"""A draft: on the GPU, in RAM or not used, and how many tokens a step, by the seconds of each
launch.

No layer is given away for a draft that loses. One that is given (-md) and not worth its memory is
left out, which is said; where the program gets that word in any case, it is loaded into RAM, which
llama-server does not draft with unless --spec-type says so.
"""

from __future__ import annotations

from ..backends import HOST
from ..builds import Build
from ..flags.params import Params
from ..flags.write import to_words
from ..memory.companions import with_draft_type
from ..memory.context import DRAFT_N_MAX
from ..model.vocabulary import unlike
from ..records import dataclass, replace
from ..work.drafts import NAMED, Drafting
from .evaluate import FULL, Candidate
from .prices import DRAFT, worth
from .problem import Problem, Solution
from .solve import solve

_SIMPLE = "draft-simple"


@dataclass(frozen=True)
class DraftChoice:
    """A launch, the problem that it solves, and how it drafts."""

    problem: Problem
    candidate: Candidate
    where: str

    @property
    def worth(self) -> float:
        return worth(self.problem, self.candidate.params, self.candidate.breakdown)

    @property
    def rate(self) -> float:
        return self.problem.cost.speed(self.candidate).generation


def drafts(problem: Problem) -> str:
    """Return the type of the launch's drafts; "" for none, or if only its text decides what it
    gains (n-grams). A draft model is used without --spec-type too where it may be given."""
    companions = problem.request.companions
    types = with_draft_type(problem.given, companions).spec_type
    if types:
        return next((kind for kind in types if kind.startswith("draft-")), "")
    return _SIMPLE if companions.draft is not None else ""


def with_draft(problem: Problem) -> Solution:
    """Return the launch of a model with a draft."""
    plain = _without(problem)
    if plain is None:  # with the draft even less fits
        return Solution(problem, solve(problem).candidate)
    typed = bool(with_draft_type(problem.given, problem.request.companions).spec_type)
    # With --spec-type the user decides; llama-server then says what it cannot do.
    useless = "" if typed else _useless(problem)
    variants = [] if useless else _variants(problem)
    tried = [choice for variant in variants if (choice := _tried(variant, plain)) is not None]
    # builds before the names draft with every model that is given
    waiting = None if typed or _number(problem) < NAMED else _waiting(problem, plain)
    possible = [choice for choice in (waiting, *tried) if choice and choice.candidate.fits]
    best = min(possible, key=lambda choice: choice.worth, default=None)
    if best is None:
        return Solution(problem, tried[0].candidate if tried else solve(problem).candidate)
    if useless or best is plain:
        why = useless or _reasons(best, tried, plain)[0]
        said = "-md is left out" if best is plain else "leave -md out"
        return Solution(best.problem, best.candidate, notes=(f"{said}: {why}",))
    return Solution(best.problem, best.candidate, _reasons(best, tried, plain))


def may_gain(problem: Problem, chosen: Candidate) -> bool:
    """Return whether a launch would answer DRAFT times as fast if what the problem's --spec-type
    drafts with took no memory."""
    given = problem.given
    drafting = Drafting(drafts(problem), None, _place(problem), given.draft_n_max, _share(problem))
    params = replace(chosen.params, spec_type=given.spec_type)
    drafted = problem.drafting_with(drafting).cost.predict(params, chosen.breakdown)
    return drafted.generation >= DRAFT.factor * problem.cost.price(chosen).generation


def _number(problem: Problem) -> int:
    return problem.build.rules.number


def _free(problem: Problem) -> bool:
    """Return whether the draft model's place is open."""
    given = problem.given
    placed = (
        given.device_draft is not None
        or given.n_gpu_layers_draft is not None
        or given.overrides_draft
    )
    return (
        bool(problem.machine.devices)
        and problem.request.companions.draft is not None
        and not placed
    )


def _variants(problem: Problem) -> list[Problem]:
    """Return what to try: drafting where the flags put the draft, and with it in RAM."""
    typed = with_draft_type(problem.given, problem.request.companions).spec_type
    # From these builds on a draft model is only used if --spec-type says so.
    if not typed and _number(problem) >= NAMED:
        problem = problem.with_flags(spec_type=(_SIMPLE,))
    return [problem, problem.with_flags(device_draft=())] if _free(problem) else [problem]


def _useless(problem: Problem) -> str:
    """Return why this draft model cannot gain anything, or why llama-server would not start with it
    in use; "" if it may."""
    draft = problem.request.companions.draft
    rules = Build(_number(problem)).rules
    # Builds before the names translate a draft's tokens.
    if draft is None or draft.row.draft_type or not rules.names_draft_type:
        return ""
    other = unlike(problem.model, draft, only_added=rules.draft_ends_if_added)
    if other:
        return f"llama-server does not draft with the draft's vocabulary: {other}"
    too_large = draft.size >= problem.model.size
    return "the draft is as large as the model, so no token comes sooner" if too_large else ""


def _without(problem: Problem) -> DraftChoice | None:
    """Return the launch without the draft."""
    other_types = tuple([kind for kind in problem.given.spec_type if not kind.startswith("draft-")])
    usual = vars(Params())
    of_draft = {
        name: usual[name] for name in usual if name.startswith("draft_") or "_draft" in name
    }
    companions = problem.request.companions
    # What was measured stays, unless a draft model was part of it.
    if companions.draft is not None:
        problem = problem.of(problem.model, replace(companions, draft=None))
    bare = problem.with_flags(**of_draft, spec_type=other_types)
    return _fitting(bare, solve(bare).candidate, "")


def _waiting(problem: Problem, plain: DraftChoice) -> DraftChoice | None:
    """Return the launch that does not use the draft: without it, or where the program gets the
    given words in any case with the draft in RAM, if that is open and it is in the way."""
    if not problem.request.verbatim:
        return plain
    # First on the model's devices; if it is in the way there, in RAM.
    variant = problem
    candidate = _like(variant, plain)
    if (candidate is None or not candidate.fits) and _free(problem):
        variant = problem.with_flags(device_draft=())
        candidate = _like(variant, plain)
    if candidate is None or not candidate.fits:
        candidate = solve(variant).candidate
    return _fitting(variant, candidate, "waiting")


def _fitting(problem: Problem, candidate: Candidate | None, where: str) -> DraftChoice | None:
    return (
        None if candidate is None or not candidate.fits else DraftChoice(problem, candidate, where)
    )


def _like(variant: Problem, plain: DraftChoice) -> Candidate | None:
    """Return the launch that was solved without the draft, measured with it."""
    placed = plain.candidate.params
    before = plain.problem.given
    # What the search solved for the launch without a draft.
    solved = {name: value for name, value in vars(placed).items() if value != getattr(before, name)}
    return variant.evaluator.candidate(replace(variant.given, **solved), FULL)


def _tried(variant: Problem, plain: DraftChoice) -> DraftChoice | None:
    """Return the launch that drafts with these flags, and the number of tokens if that is open."""
    given = variant.given
    drafting = Drafting(
        drafts(variant),
        variant.request.companions.draft,
        _place(variant),
        given.draft_n_max,
        _share(variant),
    )
    problem = variant.drafting_with(drafting)
    candidate = _like(problem, plain)
    if candidate is None or not candidate.fits:
        candidate = solve(problem).candidate
    if candidate is None:
        return None
    # Where a launch drafts, in words.
    if drafting.place == HOST:
        where = "RAM"
    else:
        where = "the model's device" if drafting.model is None else "the GPU"
    draft = problem.cost.speed(candidate).draft
    if given.draft_n_max is not None or draft is None:
        return DraftChoice(problem, candidate, where)
    # The number that is predicted best; fewer tokens where that does not fit.
    numbers = range(draft.n, 0, -1) if _number(problem) >= NAMED else ()
    for n in numbers:
        fewer = problem.evaluator.candidate(replace(candidate.params, draft_n_max=n), FULL)
        if fewer is not None and fewer.fits:
            return DraftChoice(problem.drafting_with(replace(drafting, n=n)), fewer, where)
    return DraftChoice(problem.drafting_with(replace(drafting, n=DRAFT_N_MAX)), candidate, where)


def _share(problem: Problem) -> tuple[float, int] | None:
    acceptance = problem.policy.acceptance
    n_max = problem.given.draft_n_max
    if acceptance is None:
        return None
    return acceptance, DRAFT_N_MAX if n_max is None else max(1, n_max)


def _place(problem: Problem) -> str:
    """Return the first device of the draft model; "" for the model's own block."""
    if problem.request.companions.draft is None:
        return ""
    # llama.cpp puts the draft on -devd, otherwise where the model is.
    params = problem.given
    machine_devices = problem.machine.devices
    devices = params.device_draft if params.device_draft is not None else params.device
    if devices == () or params.n_gpu_layers_draft == 0 or not machine_devices:
        return HOST
    return devices[0] if devices else machine_devices[0].name


def _reasons(best: DraftChoice, tried: list[DraftChoice], plain: DraftChoice) -> tuple[str, ...]:
    """Return what drafting gains, or why it is not done."""
    draft = best.problem.cost.speed(best.candidate).draft
    rates_there = [
        f"{choice.rate:.1f} drafting on {choice.where}".replace("on RAM", "in RAM")
        for choice in tried
        if choice.candidate.fits
    ]
    # without devices both ways are in RAM
    others = ", ".join(dict.fromkeys(rates_there))
    if draft is None:
        loses = f"{plain.rate:.1f} tokens/s without it, {others or 'and with it nothing fits'}"
        if any(choice.candidate.fits and choice.rate > plain.rate for choice in tried):
            loses += ": less than a tenth in all, and that depends on the text"
        if best is plain:
            return (loses,)
        words = " ".join(to_words(Params(device_draft=best.problem.given.device_draft)))
        wait = f", or it waits in RAM ({words})" if words else ""
        return (f"the draft model loses: {loses}; leave -md out{wait}",)
    rates = ", ".join(f"{text} {rate:.1f}" for text, rate in draft.rates)
    tokens = f"{draft.n} token" + "s" * (draft.n > 1)
    line = f"drafts of {tokens}: {draft.plain:.1f} tokens/s become {best.rate:.1f} ({rates})"
    if plain.rate > best.rate:
        return (f"the draft loses: {plain.rate:.1f} tokens/s without it, {others}: leave it out",)
    if plain.rate > draft.plain * 1.01:
        line += f"; without the draft {plain.rate:.1f}"
    return (line,)
