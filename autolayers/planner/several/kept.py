"""Models that stay loaded (`--stay`), beside others that take turns with what those leave."""

from __future__ import annotations

from ...errors import UsageError
from ...records import replace
from ..answer import plan_request
from .groups import Groups, Some, plan_groups
from .multi import settled, takes_of, with_least_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model import Model
    from ...request import Request
    from ..plan import Plan


def plan_kept(
    models: Sequence[Model], keep: Sequence[int], request: Request, weights: Sequence[float] = ()
) -> Groups:
    """Return the groups of the others, and the plans of those to keep, by their indices: each with
    the least context, as what it takes is taken from all groups."""
    rest = request
    kept: dict[int, Plan] = {}
    for i in sorted(keep, key=lambda i: -models[i].size):
        plan = plan_request(models[i], with_least_context(rest, models[i]))
        kept[i] = settled(plan)
        machine, taken = rest.machine, takes_of(plan)
        limits = {name: max(0, size - taken.get(name, 0)) for name, size in machine.limits.items()}
        ram = None if machine.ram is None else max(0, machine.ram - plan.host.taken)
        rest = replace(rest, machine=replace(machine, limits=limits, ram=ram))
    others = [i for i in range(len(models)) if i not in kept]
    if not others:
        raise UsageError("--stay: nothing is left to take turns: leave it out")
    factors = tuple(weights) or (1.0,) * len(models)
    turns = plan_groups(Some(models, others), rest, [factors[i] for i in others])
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
