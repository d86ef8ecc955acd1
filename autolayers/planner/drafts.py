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
from ..records import replace
from ..work.drafts import NAMED, Drafting
from .best_launch import best_launch
from .evaluate import FULL, Candidate
from .prices import DRAFT, worth
from .problem import Problem, Promise, Solution
from .variants import FITS, Variant, best_first, by_worth, like

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .variants import Tried

_SIMPLE = "draft-simple"


def drafts(problem: Problem) -> str:
    """Return the type of the launch's drafts; "" for none, or if only its text decides what it
    gains (n-grams). A draft model is used without --spec-type too where it may be given."""
    companions = problem.request.companions
    types = with_draft_type(problem.given, companions).spec_type
    if types:
        return next((kind for kind in types if kind.startswith("draft-")), "")
    return _SIMPLE if companions.draft is not None else ""


def with_draft(problem: Problem) -> Solution:
    """Return the launch of a model with a draft: used on its device, used in RAM, or not used."""
    plain = best_launch(_without(problem))
    if plain.fitting is None:  # with the draft even less fits
        return Solution(problem, best_launch(problem).candidate)
    typed = bool(with_draft_type(problem.given, problem.request.companions).spec_type)
    # With --spec-type the user decides; llama-server then says what it cannot do.
    useless = "" if typed else _useless(problem)
    variants = [] if useless else [*_drafting(problem, plain)]
    # builds before the names draft with every model that is given
    if not typed and _number(problem) >= NAMED:
        # What does not use the draft: the launch without it, or where the program gets the given
        # words in any case with it, on the model's devices or in RAM.
        waiting = [Variant(problem if problem.request.verbatim else plain.problem)]
        if problem.request.verbatim and _free(problem):
            # Only if it is in the way on the devices.
            bound = by_worth(plain.problem, plain.candidate)
            waiting.append(Variant(problem.with_flags(device_draft=()), bound))
        variants = [*waiting, *variants]

    def solved(variant: Variant) -> Solution:
        if variant.problem is plain.problem:
            return plain
        candidate = variant.problem.evaluator.candidate(like(plain, variant.problem), FULL)
        others: tuple[Promise, ...] = ()
        if candidate is None or not candidate.fits:
            found = best_launch(variant.problem)
            candidate, others = found.candidate, found.others
        return _with_number(Solution(variant.problem, candidate, others=others))

    tried, left = best_first(
        variants, solved, lambda _, solution: by_worth(solution.problem, solution.candidate)
    )
    if not tried:
        return Solution(problem, best_launch(problem).candidate)
    best = tried[0].solution
    if best.fitting is None:
        first = next((each.solution for each in tried if each.variant.what), best)
        return Solution(problem, first.candidate)
    why = useless or _reasons(best, tried, left, plain)
    others = (*[each.promise for each in left], *best.others)
    if useless or best is plain:
        said = "-md is left out" if best is plain else "leave -md out"
        return replace(best, reasons=(), others=others, notes=(f"{said}: {why}",))
    return replace(best, reasons=(why,), others=others)


def may_gain(problem: Problem, chosen: Candidate) -> bool:
    """Return whether a launch would answer DRAFT times as fast if what the problem's --spec-type
    drafts with took no memory."""
    drafting = replace(_as_given(problem), model=None)
    params = replace(chosen.params, spec_type=problem.given.spec_type)
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


def _drafting(problem: Problem, plain: Solution) -> Iterator[Variant]:
    """Yield what to try: drafting where the flags put the draft, and with it in RAM. No launch of
    one is worth more than the plain launch would be if the draft took no memory."""
    typed = with_draft_type(problem.given, problem.request.companions).spec_type
    # From these builds on a draft model is only used if --spec-type says so.
    if not typed and _number(problem) >= NAMED:
        problem = problem.with_flags(spec_type=(_SIMPLE,))
    launch = plain.candidate
    assert launch is not None
    for placed in [problem, problem.with_flags(device_draft=())] if _free(problem) else [problem]:
        drafting = _as_given(placed)
        # Where a launch drafts, in words.
        where = "on the model's device" if drafting.model is None else "on the GPU"
        drafted = placed.drafting_with(drafting)
        params = replace(launch.params, spec_type=placed.given.spec_type)
        bound = FITS, worth(drafted, params, launch.breakdown)
        what = f"drafting {'in RAM' if drafting.place == HOST else where}"
        yield Variant(drafted, bound, what=what)


def _as_given(problem: Problem) -> Drafting:
    """Return how a launch drafts by the given flags, with the number of tokens open if it is."""
    given = problem.given
    n_max = given.draft_n_max
    model = problem.request.companions.draft
    place = ""  # the model's own block
    if model is not None:
        # llama.cpp puts the draft on -devd, otherwise where the model is.
        devices = given.device if given.device_draft is None else given.device_draft
        on = devices or [device.name for device in problem.machine.devices]
        in_ram = devices == () or given.n_gpu_layers_draft == 0 or not problem.machine.devices
        place = HOST if in_ram else on[0]
    acceptance = problem.policy.acceptance
    share = None
    if acceptance is not None:
        share = acceptance, DRAFT_N_MAX if n_max is None else max(1, n_max)
    return Drafting(drafts(problem), model, place, n_max, share)


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


def _without(problem: Problem) -> Problem:
    """Return the problem without the draft."""
    other_types = tuple([kind for kind in problem.given.spec_type if not kind.startswith("draft-")])
    usual = vars(Params())
    of_draft = {
        name: usual[name] for name in usual if name.startswith("draft_") or "_draft" in name
    }
    companions = problem.request.companions
    # What was measured stays, unless a draft model was part of it.
    if companions.draft is not None:
        problem = problem.of(problem.model, replace(companions, draft=None))
    return problem.with_flags(**of_draft, spec_type=other_types)


def _with_number(solution: Solution) -> Solution:
    """Return the launch with the number of drafted tokens that is predicted best, if that is open
    and it drafts; fewer where that does not fit."""
    problem, candidate = solution.problem, solution.candidate
    drafting = problem.drafting
    if candidate is None or drafting is None or problem.given.draft_n_max is not None:
        return solution
    draft = problem.cost.speed(candidate).draft
    if draft is None:
        return solution
    for n in range(draft.n, 0, -1) if _number(problem) >= NAMED else ():
        fewer = problem.evaluator.candidate(replace(candidate.params, draft_n_max=n), FULL)
        if fewer is not None and fewer.fits:
            return replace(
                solution, problem=problem.drafting_with(replace(drafting, n=n)), candidate=fewer
            )
    return replace(solution, problem=problem.drafting_with(replace(drafting, n=DRAFT_N_MAX)))


def _reasons(best: Solution, tried: list[Tried], left: list[Variant], plain: Solution) -> str:
    """Return what drafting gains, or why it is not done."""
    without = _rate(plain)
    drafted = [
        ("", _rate(each.solution), each.variant.what)
        for each in tried
        if each.variant.what and each.rank[0] == FITS
    ]
    launch = plain.candidate
    assert launch is not None
    for each in left:
        if each.what:
            # The plain launch, if what it drafts with took no memory.
            params = replace(launch.params, spec_type=each.problem.given.spec_type)
            promised = each.problem.cost.predict(params, launch.breakdown).generation
            drafted.append(("at most ", promised, each.what))
    # without devices both ways are in RAM
    rates_there = [f"{limit}{rate:.1f} {what}" for limit, rate, what in drafted]
    others = ", ".join(dict.fromkeys(rates_there))
    assert best.candidate is not None
    draft = best.problem.cost.speed(best.candidate).draft
    if draft is None:
        loses = f"{without:.1f} tokens/s without it, {others or 'and with it nothing fits'}"
        if any(rate > without for _, rate, _ in drafted):
            loses += ": less than a tenth in all, and that depends on the text"
        if best is plain:
            return loses
        words = " ".join(to_words(Params(device_draft=best.problem.given.device_draft)))
        wait = f", or it waits in RAM ({words})" if words else ""
        return f"the draft model loses: {loses}; leave -md out{wait}"
    rate = _rate(best)
    if without > rate:
        return f"the draft loses: {without:.1f} tokens/s without it, {others}: leave it out"
    rates = ", ".join(f"{text} {rate:.1f}" for text, rate in draft.rates)
    tokens = f"{draft.n} token" + "s" * (draft.n > 1)
    line = f"drafts of {tokens}: {draft.plain:.1f} tokens/s become {rate:.1f} ({rates})"
    if without > draft.plain * 1.01:
        line += f"; without the draft {without:.1f}"
    return line


def _rate(solution: Solution) -> float:
    assert solution.candidate is not None
    return solution.problem.cost.speed(solution.candidate).generation
