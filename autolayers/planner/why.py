"""How a decision fell: the candidates that were measured, and what ruled each out.

found = why(model, request)
found.candidates[0].placement, found.candidates[0].seconds, found.candidates[0].verdict
found.more, found.smaller        # the plan with one more GiB, and of the next smaller quantisation
"""

from __future__ import annotations

from itertools import islice

from ..errors import AutolayersError
from ..flags.params import Params
from ..flags.write import to_words
from ..memory.breakdown import Breakdown
from ..records import as_json, dataclass, replace
from ..units import GiB, human
from .evaluate import FIT, Candidate
from .planned import planned
from .prices import priced, worth
from .problem import Problem, Promise
from .quantisations import below
from .solve import solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Machine
    from ..model import Model
    from ..request import Request

BETTER, WORSE = 3, 3  # rows: candidates that were faster and do not fit, and others that fit


@dataclass(frozen=True)
class WhyRow:
    """`seconds`: of the request that placements are compared by; `prices`: the factors that count
    besides (planner/prices.py); `devices` and `ram`: bytes without the margin."""

    placement: str
    n_ctx: int
    devices: int
    ram: int
    seconds: float
    verdict: str
    chosen: bool = False
    prices: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {**as_json(self), "prices": dict(self.prices)}


@dataclass(frozen=True)
class Why:
    """`measured`: how many launches were. Of a trace, `tried`: all of them, in their order;
    `promised`: what was never measured, the best first. `decided`: as in `Solution`."""

    candidates: tuple[WhyRow, ...]
    measured: int
    more: str = ""
    smaller: str = ""
    tried: tuple[WhyRow, ...] = ()
    promised: tuple[Promise, ...] = ()
    decided: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {
            "candidates": [row.to_dict() for row in self.candidates],
            "measured": self.measured,
            "one_more_gib": self.more,
            "next_quantisation": self.smaller,
            **({"decided": dict(self.decided)} if self.decided else {}),
            **(
                {
                    "tried": [row.to_dict() for row in self.tried],
                    "promised": [
                        {"what": each.what, "seconds": each.seconds} for each in self.promised
                    ],
                }
                if self.tried
                else {}
            ),
        }


def why(model: Model, request: Request, trace: bool = False) -> Why:
    """`trace`: with all that was tried, and all that was only promised. Raises LaunchRefused where
    llama.cpp would refuse every launch."""
    solution, chosen, _ = planned(Problem(model, request))
    problem = solution.problem
    tried = len(problem.evaluator.measured) if trace else 0
    # The promises that nearly won have no sizes yet.
    for params in [each.params for each in solution.others if each.params is not None][:WORSE]:
        problem.evaluator.candidate(params, FIT)
    shown = _shown(problem, chosen)
    # A prompt graph alone says that a launch does not fit, but not that it does.
    while partly := [each for each in shown if each.fits and not _whole(each)]:
        if not any(problem.evaluator.candidate(each.params, FIT) for each in partly):
            break  # the budget is spent
        shown = _shown(problem, chosen)
    now = problem.cost.speed(chosen).compared
    more, smaller = _more(problem, chosen, now), ""
    # The largest quantisation below this one.
    for kind, file in islice(below(problem.model), 1):
        smaller = f"as {kind.upper()}, {human(file.size)}: {_outcome(problem.of(file), now)}"
    return Why(
        tuple([_row(problem, each, chosen) for each in shown if not each.fits or _whole(each)]),
        len(problem.evaluator.measured),
        more,
        smaller,
        tuple([_row(problem, each, chosen) for each in problem.evaluator.measured[:tried]]),
        solution.others if trace else (),
        solution.decided,
    )


def _whole(candidate: Candidate) -> bool:
    return isinstance(candidate.breakdown, Breakdown)


def _shown(problem: Problem, chosen: Candidate) -> list[Candidate]:
    """Return the chosen launch between the nearest faster ones, which do not fit, and the next ones
    that do: of each placement and context the one that is worth most."""
    evaluator = problem.evaluator
    best: dict[tuple[str, int], tuple[float, Candidate]] = {}
    now = worth(problem, chosen.params, chosen.breakdown)
    for candidate in evaluator.measured:
        if candidate.params == chosen.params or _unlike(problem, candidate.params):
            continue
        seconds = worth(problem, candidate.params, candidate.breakdown)
        key = evaluator.described(candidate.params), candidate.breakdown.n_ctx
        # Of each placement and context the one that fits, then the one that is worth most.
        if key not in best or (not candidate.fits, seconds) < (not best[key][1].fits, best[key][0]):
            best[key] = seconds, candidate
    best.pop((evaluator.described(chosen.params), chosen.breakdown.n_ctx), None)
    # Nearest first: what lacks the least is what people ask about.
    out = sorted(
        (pair for pair in best.values() if not pair[1].fits and pair[0] < now),
        key=lambda pair: (
            pair[1].ram_missing - sum(left for left in pair[1].spare.values() if left < 0)
        ),
    )
    fits = sorted((pair for pair in best.values() if pair[1].fits), key=lambda pair: pair[0])
    shown = [*sorted(out[:BETTER], key=lambda pair: pair[0]), (now, chosen), *fits[:WORSE]]
    return [candidate for _, candidate in shown]


def _unlike(problem: Problem, params: Params) -> str:
    """Return the words of a launch that answer another question: it was measured for fewer people,
    on the way to a flag, or with the draft elsewhere."""
    # but for where layers are
    placed = ("n_gpu_layers", "tensor_split", "overrides", "device", "split_mode", "main_gpu")
    given = {name: value for name, value in vars(problem.given).items() if name not in placed}
    # what is decided before a search, though nobody gave it
    wanted = {name: value for name, value in given.items() if value or name == "device_draft"}
    unlike = {name: vars(params)[name] for name in wanted if vars(params)[name] != wanted[name]}
    return " ".join(to_words(replace(Params(), **unlike))) or " ".join(sorted(unlike))


def _row(problem: Problem, candidate: Candidate, chosen: Candidate) -> WhyRow:
    evaluator = problem.evaluator
    use = candidate.breakdown
    seconds, now = (problem.cost.speed(each).compared for each in (candidate, chosen))
    prices = tuple(
        [(row.what, round(factor, 3)) for row, factor in priced(problem, candidate.params, use)]
    )
    if candidate is chosen:
        verdict = "chosen" if candidate.fits else "nothing fits; " + _constraint(candidate)
    elif unlike := _unlike(problem, candidate.params):
        verdict = f"measured before that was decided: {unlike}"
    elif not candidate.fits:
        verdict = _constraint(candidate)
    elif not _whole(candidate):
        verdict = "fits with its prompt graph alone; no more of it was measured"
    elif seconds >= 1.005 * now:  # else its prices decided
        verdict = f"{seconds / now:.2f} times as long"
    else:
        # what the chosen launch pays as well decides nothing
        paid = {row.what: each for row, each in priced(problem, chosen.params, chosen.breakdown)}
        what, factor = max(
            prices,
            key=lambda price: price[1] / paid.get(price[0], 1.0),
            default=("other flags", 1.0),
        )
        verdict = f"{what}: counts {factor:.2f} times as long"
    return WhyRow(
        evaluator.described(candidate.params),
        use.n_ctx,
        use.on_devices,
        evaluator.in_ram(use),
        seconds,
        verdict,
        candidate is chosen,
        prices,
    )


def _constraint(candidate: Candidate) -> str:
    short = [
        f"{name} short by {human(-left)}" for name, left in candidate.spare.items() if left < 0
    ]
    if candidate.ram_missing:
        short.append(f"RAM short by {human(candidate.ram_missing)}")
    return ", ".join(short)


def _more(problem: Problem, chosen: Candidate, now: float) -> str:
    """Return what one more GiB buys: on the device with the least left, or of RAM without
    devices."""
    machine = problem.machine
    if machine.limits:
        name = min(
            chosen.spare or machine.limits,
            key=lambda name: chosen.spare.get(name, machine.limits[name]),
        )
        # The device with the least left is the one that a GiB more helps.
        larger: Machine = replace(
            machine,
            limits={**machine.limits, name: machine.limits[name] + GiB},
            devices=tuple(
                replace(device, total=device.total + GiB, free=device.free + GiB)
                if device.name == name
                else device
                for device in machine.devices
            ),
        )
        what = f"on {name}"
    elif machine.ram is not None:
        larger = replace(machine, ram=machine.ram + GiB)
        what = "of RAM"
    else:
        return ""
    return f"1 GiB more {what}: {_outcome(problem.on(larger), now)}"


def _outcome(other: Problem, now: float) -> str:
    try:
        candidate = solve(other).fitting
    # Another machine or file may be refused for its own reasons: not an error of this plan.
    except AutolayersError:  # of this machine or file alone
        candidate = None
    if candidate is None:
        return "fits no better"
    seconds = other.cost.speed(candidate).compared
    change = f"{now / seconds:.2f} times as fast" if seconds < 0.99 * now else "no faster"
    placement = other.evaluator.described(candidate.params)
    n_ctx = candidate.breakdown.n_ctx
    return f"{placement}, context {n_ctx}, {change}"
