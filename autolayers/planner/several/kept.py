"""Models that stay loaded beside others that take turns with what those leave: those of `--stay`,
and small ones that cost the others little."""

from __future__ import annotations

from ...errors import UsageError
from ...memory.meter import BUDGET
from ...records import replace
from ..answer import plan_request
from .groups import Groups, Some, plan_groups
from .multi import beside, settled, takes_of, with_least_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model import Model
    from ...request import Request
    from ..plan import Plan


def plan_turns(models: Sequence[Model], request: Request, weights: Sequence[float] = ()) -> Groups:
    """Return the groups that take turns, with the small models beside every one of them where that
    needs fewer swaps."""
    factors = tuple(weights) or (1.0,) * len(models)
    found = plan_groups(models, request, factors)
    beside = beside_all(models, request, found, factors) if len(found.groups) > 1 else None
    if beside is None or _swaps(beside, factors) >= _swaps(found, factors):
        return found
    return beside


def _swaps(found: Groups, factors: Sequence[float]) -> float:
    """Return how often two requests in a row, of those that take turns, are for two groups."""
    sizes = [sum(factors[i] for i in members) for members in found.members]
    return sum(sizes) ** 2 - sum(size**2 for size in sizes)


def beside_all(
    models: Sequence[Model], request: Request, found: Groups, factors: Sequence[float]
) -> Groups | None:
    """Return launches with the small models beside every other one, which has what these leave;
    None where there is none, or another one would be slower."""
    plans = found.plans()
    room = sum(request.machine.limits.values())
    # A sixteenth of all devices may lie beside every other model.
    small = [i for i, plan in plans.items() if sum(takes_of(plan).values()) <= (1 / 16) * room]
    if not small or len(small) == len(plans):
        return None
    # a quarter of one plan's budget for the sets beside these
    beside = plan_kept(models, small, request, factors, BUDGET // 4)
    mine = beside.plans()
    # Another one may take 5 % longer then.
    slower = [
        i not in mine or not mine[i].fits or mine[i].speed.request > 1.05 * plan.speed.request
        for i, plan in plans.items()
        if i not in small
    ]
    return None if any(slower) else beside


def plan_kept(
    models: Sequence[Model],
    keep: Sequence[int],
    request: Request,
    weights: Sequence[float] = (),
    most: int = BUDGET // 2,
) -> Groups:
    """Return the groups of the others, and the plans of those to keep, by their indices: each with
    the least context, as what it takes is taken from all groups."""
    rest = request
    kept: dict[int, Plan] = {}
    for i in sorted(keep, key=lambda i: -models[i].size):
        plan = plan_request(models[i], with_least_context(rest, models[i]))
        kept[i] = settled(plan)
        rest = replace(rest, machine=beside(rest.machine, plan))
    others = [i for i in range(len(models)) if i not in kept]
    if not others:
        raise UsageError("--stay: nothing is left to take turns: leave it out")
    factors = tuple(weights) or (1.0,) * len(models)
    turns = plan_groups(Some(models, others), rest, [factors[i] for i in others], most)
    return replace(
        turns,
        members=tuple([tuple([others[i] for i in group]) for group in turns.members]),
        refused=tuple([(others[i], why) for i, why in turns.refused]),
        machine=request.machine,
        kept=tuple(sorted(kept.items())),
    )


def numbers(names: Sequence[str], wanted: str) -> list[int]:
    """Return which models are meant: their names as given, or their files' names with or without
    the ending. Raises UsageError for one that is none of them, or several."""
    found = []
    for name in filter(None, wanted.split(",")):
        at = [i for i, path in enumerate(names) if name in _names(path)]
        if len(at) != 1:
            what = "none" if not at else f"{len(at)}"
            raise UsageError(f"--stay {name}: names {what} of the models")
        found += at
    return found


def _names(path: str) -> tuple[str, str, str]:
    file = path.replace("\\", "/").rpartition("/")[2]
    return path, file, file.removesuffix(".gguf")
