"""How a decision fell: the candidates that were measured, and what ruled each out.

    found = why(model, request)
    found.candidates[0].placement, found.candidates[0].seconds, found.candidates[0].verdict
    found.more, found.smaller        # the plan with one more GiB, and of the next smaller quantisation
"""

from __future__ import annotations

from ..errors import AutolayersError, LaunchRefused
from ..records import dataclass, replace
from ..units import GiB, human
from .evaluate import FULL, Evaluator
from .one.solve import solve
from .quantisations import below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Machine
    from ..model import Model
    from ..request import Request
    from ..work.speed import CostModel
    from .evaluate import Candidate

BETTER, WORSE = 3, 3      # rows: candidates that were faster and do not fit, and others that fit


@dataclass(frozen=True)
class Row:
    """`seconds`: of the request that placements are compared by; `devices` and `ram`: bytes without the margin."""

    placement: str
    n_ctx: int
    devices: int
    ram: int
    seconds: float
    verdict: str
    chosen: bool = False

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True)
class Why:
    """`measured`: how many launches were."""

    candidates: tuple[Row, ...]
    measured: int
    more: str = ""
    smaller: str = ""

    def to_dict(self) -> dict[str, object]:
        return {"candidates": [row.to_dict() for row in self.candidates], "measured": self.measured,
                "one_more_gib": self.more, "next_quantisation": self.smaller}


def why(model: Model, request: Request) -> Why:
    """Raises LaunchRefused where llama.cpp would refuse every launch."""
    params, policy, machine, companions, _ = request.terms
    evaluator = Evaluator.of(model.overridden(params.override_kv), machine, policy.build, policy.margin, companions)
    cost = evaluator.cost(policy.workload)
    chosen = solve(evaluator, params, policy, cost)
    if chosen is None:
        raise evaluator.refusal or LaunchRefused("llama.cpp would refuse this launch")
    now = cost.speed(chosen).request
    rows = _rows(evaluator, cost, chosen, now)
    return Why(tuple(rows), len(evaluator.measured), _more(evaluator, request, chosen, now),
               _smaller(model, evaluator, request, now))


def _rows(evaluator: Evaluator, cost: CostModel, chosen: Candidate, now: float) -> list[Row]:
    """The chosen launch between the nearest faster ones, which do not fit, and the next ones that do: of each placement
    and context the fastest."""
    best: dict[tuple[str, int], tuple[float, Candidate]] = {}
    for candidate in evaluator.measured:
        if candidate.params == chosen.params:
            continue
        seconds = cost.speed(candidate).request
        key = evaluator.described(candidate.params), candidate.breakdown.n_ctx
        if key not in best or (not candidate.fits, seconds) < (not best[key][1].fits, best[key][0]):
            best[key] = seconds, candidate
    best.pop((evaluator.described(chosen.params), chosen.breakdown.n_ctx), None)
    out = sorted((pair for pair in best.values() if not pair[1].fits and pair[0] < now),
                 key=lambda pair: _short(pair[1]))
    fits = sorted((pair for pair in best.values() if pair[1].fits), key=lambda pair: pair[0])
    shown = [*sorted(out[:BETTER], key=lambda pair: pair[0]), (now, chosen), *fits[:WORSE]]
    return [_row(evaluator, candidate, seconds, chosen, now) for seconds, candidate in shown]


def _row(evaluator: Evaluator, candidate: Candidate, seconds: float, chosen: Candidate, now: float) -> Row:
    use = candidate.breakdown
    if candidate is chosen:
        verdict = "chosen" if candidate.fits else "nothing fits; " + _constraint(candidate)
    elif not candidate.fits:
        verdict = _constraint(candidate)
    elif seconds > now:
        verdict = f"{seconds / now:.2f} times as long"
    else:
        verdict = f"context {use.n_ctx} instead of {chosen.breakdown.n_ctx}" \
            if use.n_ctx != chosen.breakdown.n_ctx else "not faster by enough"
    return Row(evaluator.described(candidate.params), use.n_ctx, sum(one.total for one in use.devices.values()),
               evaluator.in_ram(use), seconds, verdict, candidate is chosen)


def _constraint(candidate: Candidate) -> str:
    short = [f"{name} short by {human(-left)}" for name, left in candidate.spare.items() if left < 0]
    if candidate.ram_missing:
        short.append(f"RAM short by {human(candidate.ram_missing)}")
    return ", ".join(short)


def _short(candidate: Candidate) -> int:
    return candidate.ram_missing + sum(-left for left in candidate.spare.values() if left < 0)


def _more(evaluator: Evaluator, request: Request, chosen: Candidate, now: float) -> str:
    """What one more GiB buys: on the device with the least left, or of RAM without devices."""
    machine = evaluator.machine
    if machine.limits:
        name = min(chosen.spare or machine.limits, key=lambda name: chosen.spare.get(name, machine.limits[name]))
        larger: Machine = replace(machine, limits={**machine.limits, name: machine.limits[name] + GiB}, devices=tuple(
            replace(device, total=device.total + GiB, free=device.free + GiB) if device.name == name else device
            for device in machine.devices))
        what = f"on {name}"
    elif machine.ram is not None:
        larger, what = replace(machine, ram=machine.ram + GiB), "of RAM"
    else:
        return ""
    other = Evaluator(evaluator.estimator, larger, evaluator.target)
    return f"1 GiB more {what}: {_outcome(other, request, now)}"


def _smaller(model: Model, evaluator: Evaluator, request: Request, now: float) -> str:
    """What the largest quantisation below this one changes."""
    for kind, smaller in below(model):
        other = Evaluator.of(smaller, evaluator.machine, request.policy.build, evaluator.target, request.companions,
                             meter=evaluator.estimator.meter)
        return f"as {kind.upper()}, {human(smaller.size)}: {_outcome(other, request, now)}"
    return ""


def _outcome(evaluator: Evaluator, request: Request, now: float) -> str:
    cost = evaluator.cost(request.policy.workload)
    try:
        found = solve(evaluator, request.params, request.policy, cost)
    except AutolayersError:      # of this machine or file alone
        found = None
    found = found and (evaluator.candidate(found.params, FULL) or found)
    if found is None or not found.fits:
        return "fits no better"
    seconds = cost.speed(found).request
    change = f"{now / seconds:.2f} times as fast" if seconds < 0.99 * now else "no faster"
    return f"{evaluator.described(found.params)}, context {found.breakdown.n_ctx}, {change}"
