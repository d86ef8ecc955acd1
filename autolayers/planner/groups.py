"""Models that take turns: which sets of them fit at the same time, each planned for its set.

    plan_groups_on     groups that are loaded in turn; each model is in one, wholly on the devices where it can be
    plan_any_on        launches of which any so many fit at once: what llama-server's router needs, which goes by number

A model that is partly in RAM even alone has the machine for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import LaunchRefused, ModelError
from ..memory.companions import NONE
from ..records import dataclass, replace
from .answer import plan_on
from .assign import MOST_EXACT, Assignment, Option
from .evaluate import RAM_MARGIN
from .multi import SharedOut, Together, measured_plan, settled, with_others
from .options import Launches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..flags.params import Params
    from ..flags.policy import Policy
    from ..memory.companions import Companions
    from ..model import Model
    from .evaluate import Machine
    from .plan import Plan


@dataclass(frozen=True)
class Groups:
    """Sets of models that fit at the same time, each with its members' numbers; `refused`: why a model
    cannot be read or loaded, by its number."""

    groups: tuple[Together, ...]
    members: tuple[tuple[int, ...], ...]
    machine: Machine
    refused: tuple[tuple[int, str], ...] = ()

    @property
    def fits(self) -> bool:
        return all(group.fits for group in self.groups)

    def plans(self) -> dict[int, Plan]:
        """The plan of each model, by its number."""
        found = {i: plan for group, members in zip(self.groups, self.members, strict=True)
                 for i, plan in zip(members, group.plans, strict=True)}
        return dict(sorted(found.items()))

    def to_dict(self) -> dict[str, object]:
        return {"schema": 1, "fits": self.fits, "members": [list(members) for members in self.members],
                "groups": [group.to_dict() for group in self.groups], "refused": dict(self.refused)}


@dataclass(frozen=True)
class AnyOf:
    """Launches of which any `most` fit at the same time. `alone`: the models that have the machine for themselves, and
    so keep `most` at 1."""

    plans: tuple[Plan, ...]
    numbers: tuple[int, ...]       # of the models planned
    most: int
    machine: Machine
    alone: tuple[int, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()

    @property
    def fits(self) -> bool:
        return all(plan.fits for plan in self.plans)


class _Question:
    """What is asked of every model, and the options of each that are wholly on devices."""

    def __init__(self, models: Sequence[Model], params: Params, policy: Policy, machine: Machine,
                 companions: Companions, notes: tuple[str, ...]) -> None:
        self.models, self.params, self.policy, self.machine = models, params, policy, machine
        self.companions, self.notes = companions, notes
        self.ram = None if machine.ram is None else machine.ram - RAM_MARGIN
        self.options: dict[int, list[Option]] = {}
        self.refused: list[tuple[int, str]] = []
        for i in range(len(models)):
            try:
                self.options[i] = self._whole(models[i])
            except (ModelError, LaunchRefused) as error:
                self.refused.append((i, str(error)))

    def _whole(self, model: Model) -> list[Option]:
        """A model's launches that are wholly on devices, and fit by themselves."""
        launches = Launches(lambda: model, self.params, self.policy, self.machine, self.companions)
        found = list(launches.whole)
        if not found and launches.divisible:
            cut = launches.cut(self.machine.limits, None)
            cut = launches.option(cut.params) if cut is not None and cut.whole else None
            found = [] if cut is None else [cut]
        return [option for option in found if self.has(self.machine.limits, self.ram, option)]

    @staticmethod
    def has(left: Any, ram: int | None, option: Option) -> bool:
        """Whether so much is left of the devices and of system memory."""
        return (ram is None or option.ram <= ram) and all(size <= left[name] for name, size in option.takes.items())

    def by_size(self) -> list[int]:
        """The models that can be wholly on devices, the largest first."""
        whole = [i for i, options in self.options.items() if options]
        return sorted(whole, key=lambda i: -max(sum(option.takes.values()) for option in self.options[i]))

    def alone(self, i: int) -> Plan | None:
        """A model's plan for the whole machine; None where llama.cpp would refuse it."""
        try:
            return settled(plan_on(self.models[i], self.params, self.policy, self.machine, self.companions, self.notes))
        except LaunchRefused as refusal:
            self.refused.append((i, str(refusal)))
            return None


@dataclass
class _Group:
    left: dict[str, int]
    ram: int | None
    chosen: dict[int, Option]

    def place(self, i: int, options: Sequence[Option]) -> bool:
        """Takes a model in where one of its options fits: the fastest, on the emptiest device."""
        fitting = [option for option in options if _Question.has(self.left, self.ram, option)]
        if not fitting:
            return False
        option = min(fitting, key=lambda option: (
            option.price, -min((self.left[name] for name in option.takes), default=0)))
        self.chosen[i] = option
        for name, size in option.takes.items():
            self.left[name] -= size
        self.ram = None if self.ram is None else self.ram - option.ram
        return True


def plan_groups_on(models: Sequence[Model], params: Params, policy: Policy, machine: Machine,
                   companions: Companions = NONE, notes: tuple[str, ...] = ()) -> Groups:
    """Groups as large as they can be: no model of a later group fits into an earlier one. The largest models come
    first."""
    asked = _Question(models, params, policy, machine, companions, notes)
    packed: list[_Group] = []
    for i in asked.by_size():
        if not any(group.place(i, asked.options[i]) for group in packed):
            packed.append(_Group(dict(machine.limits), asked.ram, {}))
            packed[-1].place(i, asked.options[i])
    found: list[tuple[tuple[int, ...], Together]] = []
    for group in packed:
        members = tuple(sorted(group.chosen))
        chosen = Assignment(tuple(group.chosen[i] for i in members), 0.0, exact=len(members) <= MOST_EXACT)
        plans = SharedOut(_Some(models, members), params, policy, machine, companions, notes, chosen).plans()
        found.append((members, Together(tuple(with_others(plans, machine)), machine, (1.0,) * len(members))))
    for i, options in asked.options.items():
        plan = None if options else asked.alone(i)
        if plan is not None:
            found.append(((i,), Together((plan,), machine, (1.0,))))
    found.sort(key=lambda it: it[0])
    return Groups(tuple(group for _, group in found), tuple(members for members, _ in found), machine,
                  tuple(asked.refused))


def plan_any_on(models: Sequence[Model], params: Params, policy: Policy, machine: Machine,
                companions: Companions = NONE, notes: tuple[str, ...] = ()) -> AnyOf:
    """The launches with which the most models may be loaded at once, whichever they are."""
    asked = _Question(models, params, policy, machine, companions, notes)
    order = asked.by_size()
    alone = tuple(i for i, options in asked.options.items() if not options)
    most, chosen = 1, None
    for most in range(len(order), 1, -1) if not alone else ():
        chosen = _any(asked, order, most)
        if chosen is not None:
            break
    if chosen is None:
        plans = {i: plan for i in asked.options if (plan := asked.alone(i)) is not None}
        return AnyOf(tuple(plans.values()), tuple(plans), 1, machine, alone, tuple(asked.refused))
    devices = {name: _parts({i: option.takes[name] for i, option in chosen.items() if name in option.takes}, limit,
                            most) for name, limit in machine.limits.items()}
    ram = None if asked.ram is None else _parts({i: option.ram for i, option in chosen.items()}, asked.ram, most)
    found = []
    for i, option in sorted(chosen.items()):
        limits = {name: parts.get(i, 0) for name, parts in devices.items()}
        mine = replace(machine, limits=limits, ram=None if ram is None else RAM_MARGIN + ram[i])
        found.append(settled(measured_plan(models[i], option, params, policy, mine, companions, notes, {})))
    return AnyOf(tuple(found), tuple(sorted(chosen)), most, machine, (), tuple(asked.refused))


def _parts(needs: Mapping[int, int], limit: int, most: int) -> dict[int, int]:
    """Bytes that each may take, so that any `most` of them are within the limit: what is spare of the heaviest in equal
    parts, and then to each what the heaviest others leave."""
    spare = (limit - _heaviest(list(needs.values()), most)) // max(1, min(most, len(needs)))
    found = {i: need + spare for i, need in needs.items()}
    for i in sorted(found, key=lambda i: found[i]):
        others = [size for j, size in found.items() if j != i]
        found[i] = max(found[i], limit - _heaviest(others, most - 1))
    return found


def _any(asked: _Question, order: Sequence[int], most: int) -> dict[int, Option] | None:
    """An option of each model, so that any `most` of them fit; None where that was not found."""
    sizes: dict[str, list[int]] = {name: [] for name in asked.machine.limits}
    ram: list[int] = []
    chosen: dict[int, Option] = {}
    for i in order:
        fitting = [option for option in asked.options[i]
                   if (asked.ram is None or _heaviest([*ram, option.ram], most) <= asked.ram)
                   and all(_heaviest([*sizes[name], size], most) <= asked.machine.limits[name]
                           for name, size in option.takes.items())]
        if not fitting:
            return None
        option = min(fitting, key=lambda option: (option.price, max(
            (_heaviest(sizes[name], most) for name in option.takes), default=0)))
        chosen[i] = option
        ram.append(option.ram)
        for name, size in option.takes.items():
            sizes[name].append(size)
    return chosen


def _heaviest(sizes: Sequence[int], most: int) -> int:
    """Bytes that any `most` of these take at most."""
    return sum(sorted(sizes, reverse=True)[:most])


class _Some(Sequence["Model"]):
    """Some of the models, by their numbers."""

    def __init__(self, models: Sequence[Model], members: Sequence[int]) -> None:
        self.models, self.members = models, members

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, i: Any) -> Any:
        return self.models[self.members[i]]

