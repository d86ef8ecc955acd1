"""Models that take turns: which sets of them fit at the same time, each planned for its set.

    plan_groups     groups that are loaded in turn; each model is in one, offloaded if possible
    plan_any        launches sized so that any N fit together: llama-server's router limits by count
                    (--models-max)

A model that is partly in RAM even alone has the machine to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from ...builds.table import Rules
from ...errors import LaunchRefused, ModelError, UsageError
from ...memory.margin import without_model
from ...memory.meter import BUDGET, Meter
from ...memory.ram import ram_of
from ...records import dataclass, replace
from ...units import whole
from ..answer import plan_request
from ..assignment import Left, choices
from .assign import (
    LOOKED,
    MOST_EXACT,
    RAM,
    UNLIMITED,
    Assigning,
    Assignment,
    ModelOptions,
    Option,
    Room,
    fitting,
    part,
)
from .multi import MeasuredFile, Together, settled, shared_out, with_others
from .options import Launches
from .servers import with_own_servers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ...machine import Machine
    from ...model import Model
    from ...request import Request
    from ..assignment import Column, Takes
    from ..plan import Plan


@dataclass(frozen=True)
class Groups:
    """Sets of models that fit at the same time, each with its members' indices; `refused`: why a
    model cannot be read or loaded, by its index. `proven`: no other groups need fewer swaps."""

    groups: tuple[Together, ...]
    members: tuple[tuple[int, ...], ...]
    machine: Machine
    refused: tuple[tuple[int, str], ...] = ()
    proven: bool = False
    kept: tuple[tuple[int, Plan], ...] = ()  # what stays loaded beside each of them

    @property
    def fits(self) -> bool:
        return all(group.fits for group in self.groups) and all(plan.fits for _, plan in self.kept)

    @property
    def stay(self) -> Together | None:
        """What stays loaded, as one set; None: nothing does."""
        plans = tuple([plan for _, plan in self.kept])
        return Together(plans, self.machine) if plans else None

    def plans(self) -> dict[int, Plan]:
        """Return the plan of each model, by its index."""
        by_index = {
            i: plan
            for group, members in zip(self.groups, self.members, strict=True)
            for i, plan in zip(members, group.plans, strict=True)
        }
        return dict(sorted((by_index | dict(self.kept)).items()))

    def to_dict(self) -> dict[str, object]:
        return {
            "schema": 1,
            "fits": self.fits,
            "members": [list(members) for members in self.members],
            "groups": [group.to_dict() for group in self.groups],
            "refused": dict(self.refused),
            "proven": self.proven,
            **({"kept": {i: plan.to_dict() for i, plan in self.kept}} if self.kept else {}),
        }


@dataclass(frozen=True)
class AnyOf:
    """Launches sized so that any `most` fit at the same time. `alone`: models that need the machine
    to themselves, which keep `most` at 1."""

    plans: tuple[Plan, ...]
    numbers: tuple[int, ...]  # of the planned models
    most: int
    machine: Machine
    alone: tuple[int, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()

    @property
    def fits(self) -> bool:
        return all(plan.fits for plan in self.plans)


class Question:
    """The shared request, and each model's options that need no RAM."""

    def __init__(
        self,
        models: Sequence[Model],
        request: Request,
        own: Mapping[int, Request] | None = None,
        most: int = BUDGET // 2,
    ) -> None:
        self.models = models
        # Sets are searched for until `most` nodes are spent
        self.meter = Meter(BUDGET * max(1, len(models)))
        self.most = most
        self.request = request
        self.own = own or {}
        self.measurements = MeasuredFile()
        self.room = Room.of(request.machine)
        self.options: dict[int, list[Option]] = {}
        # with few models, those that fit on no single device
        self.cut: dict[int, Launches] = {}
        self.refused: list[tuple[int, str]] = []
        # The same file twice has the same options
        first: dict[object, int] = {}
        # A model that cannot be loaded is reported; the others still get their groups.
        for i in range(len(models)):
            try:
                seen = first.setdefault((models[i].path, id(self.request_of(i))), i)
                self.options[i] = self._whole(i) if seen == i else self.options[seen]
                if seen in self.cut:
                    self.cut[i] = self.cut[seen]
            except (ModelError, LaunchRefused) as error:
                self.refused.append((i, str(error)))
            except KeyError:  # refused, as its first one was
                self.refused.append((i, dict(self.refused)[seen]))

    def some(self, members: Sequence[int]) -> Question:
        """Return the question for some of the models; nothing is measured again."""
        fewer = copy(self)
        fewer.models = Some(self.models, members)
        at = {i: place for place, i in enumerate(members)}
        fewer.own = {at[i]: mine for i, mine in self.own.items() if i in at}
        fewer.options = {at[i]: self.options[i] for i in members if i in self.options}
        fewer.cut = {at[i]: self.cut[i] for i in members if i in self.cut}
        fewer.refused = [(at[i], why) for i, why in self.refused if i in at]
        return fewer

    def _whole(self, i: int) -> list[Option]:
        """Return a model's launches that are fully offloaded and fit by themselves."""
        model = self.models[i]
        launches = Launches(lambda: model, self.request_of(i), meter=self.meter)
        options = list(launches.whole)
        # A split over devices is an option only of a model that no single device holds.
        if not options and launches.divisible:
            cut = _whole_cut(launches, {**self.room.sizes, RAM: UNLIMITED})
            options = [] if cut is None else [cut]
            # The split is laid out again for each set, in what the others leave. Of many models it
            # stays this one.
            if options and len(self.models) <= MOST_EXACT:
                self.cut[i] = launches
        return [option for option in options if option.fits(self.room.sizes)]

    def choice(self, i: int) -> ModelOptions:
        """Return the options of one model of a set."""
        launches = self.cut.get(i)
        if launches is None:
            return ModelOptions(self.options[i])
        return ModelOptions(
            (),
            cut=lambda left: _whole_cut(launches, left),
            # With the empty machine it is as fast as a split can be.
            cut_price=self.options[i][0].price,
        )

    def by_size(self) -> list[int]:
        """Return the models that can be fully offloaded, largest first."""
        whole = [i for i, options in self.options.items() if options]
        return sorted(
            whole, key=lambda i: -max(sum(option.takes.values()) for option in self.options[i])
        )

    def request_of(self, i: int) -> Request:
        """Return the request for one model, with the files that are loaded with it."""
        return self.own.get(i, self.request)

    def alone(self, i: int) -> Plan | None:
        """Return a model's plan for the whole machine; None if llama.cpp would refuse it."""
        try:
            return settled(plan_request(self.models[i], self.request_of(i)))
        except LaunchRefused as refusal:
            self.refused.append((i, str(refusal)))
            return None


def _whole_cut(launches: Launches, left: Mapping[str, int]) -> Option | None:
    """Return a model's fastest launch over several devices with this much memory left, without RAM,
    measured."""
    # Each division is by what the one before it took.
    for _ in range(4):
        option = launches.cut(left)
        if option is None or not option.whole or option.measured:
            return option if option is not None and option.whole else None
        launches.measure_cut(option)
    return None


# --- sets that fit at the same time


STEPS = 10_000  # of a search for launches, any few of them to fit together


class _Sets:
    """Which of a few models share a set so that random requests, in proportion to the models'
    weights, need the fewest swaps: the set sums' squares must add up to the most."""

    # Requests for models a and b in a row need no swap if both are in one set. That has the
    # probability sum(weight of set ** 2) / sum(weights) ** 2, so the squares are maximised.
    def __init__(self, question: Question, models: Sequence[int], weights: Sequence[float]) -> None:
        self.question = question
        self.models = models
        self.weights = weights
        self.looked = 0
        self.proven = True
        self.seconds: dict[int, float] = {}  # for each set that fits, by its bits

    def best(self) -> list[tuple[int, ...]]:
        """Return the groups that take turns, each as the indices of its models."""
        if self.models and self._may_fit(self.models) and self.chosen(self.models):
            return [tuple(sorted(self.models))]
        # best[mask]: (-sum of squares, seconds, -weight of the last set, the last set) of the best
        # way to divide the models of `mask`.
        best: list[tuple[float, float, float, int]] = [(0.0, 0.0, 0.0, 0)]
        for mask in range(1, 1 << len(self.models)):
            self._look_at(mask)
            # Each division is seen once: the set that is cut off has the model of the lowest bit.
            first = mask & -mask
            others = rest = mask ^ first
            ways = []
            # (others - 1) & rest counts down through all subsets of `rest`.
            while True:
                own = others | first
                if own in self.seconds:
                    swaps, seconds, *_ = best[mask ^ own]
                    weight = sum(self.weights[i] for i in self._members(own))
                    # Rounded, so that equal sums stay equal and the larger set wins.
                    ways.append(
                        (swaps - weight**2, round(seconds + self.seconds[own], 6), -weight, own)
                    )
                if not others:
                    break
                others = (others - 1) & rest
            best.append(min(ways))
        # Read the division backwards from the set of all models.
        sets = []
        mask = len(best) - 1
        while mask:
            sets.append(tuple(sorted(self._members(best[mask][3]))))
            mask ^= best[mask][3]
        return sets

    def chosen(
        self, members: Sequence[int], first: bool = False, most: int = LOOKED
    ) -> Assignment | None:
        """Return the launches of a set with the fewest seconds, or the `first` that fit."""
        options = [self.question.choice(i) for i in members]
        search = Assigning(options, self.question.room, most, solver=not first)
        assignment = search.best(first)
        self.looked += search.looked
        # None proves that the set does not fit only if the search saw everything.
        self.proven &= assignment is not None or search.complete
        return assignment

    def _members(self, mask: int) -> list[int]:
        return [i for bit, i in enumerate(self.models) if mask >> bit & 1]

    def _look_at(self, mask: int) -> None:
        """Note whether a set fits: only if all its subsets of one model less do, and certainly if
        its models fit one after the other."""
        # With a model less there is only more room.
        parts = [mask ^ (1 << bit) for bit in range(len(self.models)) if mask >> bit & 1]
        if any(part and part not in self.seconds for part in parts):
            return
        members = self._members(mask)
        if self._may_fit(members):
            # A set may take a whole search, a hundred of them all the time that there is: then only
            # what fits one after another is found, without another layout of a split.
            spent = self.looked > 40 * LOOKED or self.question.meter.spent > self.question.most
            split = len(members) > 1 and any(i in self.question.cut for i in members)
            more = not (spent and split)
            self.proven &= more
            most = 0 if spent else LOOKED // 4
            assignment = self.chosen(members, first=True, most=most) if more else None
            if assignment is not None:
                self.seconds[mask] = assignment.price

    def _may_fit(self, members: Sequence[int]) -> bool:
        """Return whether the least that each model takes fits in total."""
        # All devices counted as one, which never rejects a set that fits.
        smallest_bytes = sum(
            min(sum(option.takes.values()) for option in self.question.options[i]) for i in members
        )
        return smallest_bytes <= self.question.room.bytes


def _sets(question: Question, weights: Sequence[float]) -> tuple[list[dict[int, Option]], bool]:
    """Return the sets of models that are loaded at the same time, each with its launches, and
    whether no others need fewer swaps. Many models are sorted by size, largest or smallest first,
    and each joins the first set that it fits into."""
    order = question.by_size()
    # At ten models (3 ** 10 - 1) / 2 = 29,524 pairs of a set and its first part are compared.
    if len(order) <= MOST_EXACT:
        sets = _Sets(question, order, weights)
        sets_of_options = []
        for members in sets.best():
            chosen = sets.chosen(members)
            options = chosen.chosen if chosen else [question.options[i][0] for i in members]
            sets_of_options.append(dict(zip(members, options, strict=True)))
        return sets_of_options, sets.proven
    # Largest first packs tightly; smallest first puts the most models into the first set.
    columns = {i: question.room.columns(question.options[i]) for i in order}
    ways = []
    for some in (order, order[::-1]):
        packed: list[tuple[Left, dict[int, Option]]] = []
        for i in some:
            for left, launches in (*packed, (Left(question.room.sizes), {})):
                column = next(fitting(columns[i], left), None)
                if column is not None:
                    if not launches:
                        packed.append((left, launches))
                    left.take(column.takes)
                    launches[i] = column.what
                    break
        ways.append([dict(sorted(launches.items())) for _, launches in packed])
    return max(
        ways, key=lambda sets: sum(sum(weights[i] for i in chosen) ** 2 for chosen in sets)
    ), False


def plan_groups(
    models: Sequence[Model],
    request: Request,
    weights: Sequence[float] = (),
    most: int = BUDGET // 2,
) -> Groups:
    """Return the groups with the fewest swaps between them; no model fits into a group that is
    requested as often as its own, or more often. `weights` say how often each model is requested,
    by default equally."""
    return groups_of(Question(models, request, most=most), weights)


def groups_of(question: Question, weights: Sequence[float] = ()) -> Groups:
    """Return what plan_groups does, of options that are known."""
    models, request, machine = question.models, question.request, question.request.machine
    factors = tuple(weights) or (1.0,) * len(models)
    planned: list[tuple[tuple[int, ...], Together]] = []
    packed, proven = _sets(question, factors)
    budget = BUDGET // max(1, len(packed))  # of one question, as the search for the sets has it
    for chosen in packed:
        members = tuple(chosen)
        options = [*chosen.values()]
        mine = Some(models, members)
        plans = shared_out(mine, request, options, question.measurements, budget)
        own = tuple(factors[i] for i in members)
        planned.append((members, Together(tuple(with_others(plans, machine)), machine, own)))
    # Models that need RAM even alone have the machine to themselves.
    for i, options in question.options.items():
        plan = None if options else question.alone(i)
        if plan is not None:
            planned.append(((i,), Together((plan,), machine, (factors[i],))))
    # By the models' order, as no two groups have the same first model.
    planned.sort(key=lambda it: it[0])
    return Groups(
        tuple(group for _, group in planned),
        tuple(members for members, _ in planned),
        machine,
        tuple(question.refused),
        proven,
    )


def plan_any(
    models: Sequence[Model],
    request: Request,
    *,
    limit: int | None = None,
    own: Mapping[int, Request] | None = None,
) -> AnyOf:
    """Return the launches with which the most models, `limit` of them where it is given, may be
    loaded at once, whichever they are. `own`: the request for a model, by its index, where it is
    not that of all."""
    question = Question(models, request, own)
    found = any_of(question, limit)
    if found is not None:
        return found
    plans = {i: plan for i in question.options if (plan := question.alone(i)) is not None}
    alone = tuple(i for i, options in question.options.items() if not options)
    refused = tuple(question.refused)
    return AnyOf(tuple(plans.values()), tuple(plans), 1, request.machine, alone, refused)


def any_of(question: Question, limit: int | None = None) -> AnyOf | None:
    """Return the launches with which any two models or more fit; None if no two of any do."""
    # A model that fills the machine cannot be loaded with any other, so no two of "any" fit.
    if not all(question.options.values()):
        return None
    order = question.by_size()
    for count in range(min(len(order), limit or len(order)), 1, -1):
        chosen = _any(question, order, count)
        if chosen is not None:
            break
    else:
        return None
    machine = question.request.machine
    machines = _machines(machine, chosen, count)
    plans = []
    for i, option in sorted(chosen.items()):
        mine = replace(question.request_of(i), machine=machines[i])
        plan = question.measurements.plan(question.models[i], option, mine)
        plans.append(with_own_servers(plan, machine.devices))
    refused = tuple(question.refused)
    return AnyOf(tuple(plans), tuple(sorted(chosen)), count, machine, (), refused)


def plan_routed(
    models: Sequence[Model],
    request: Request,
    given: str | None = None,
    own: Mapping[int, Request] | None = None,
) -> AnyOf:
    """Return the launches for llama-server's router, which keeps any `given` (--models-max) of them
    loaded, or as many as fit. Raises UsageError for more than fit."""
    limit = whole(given or "") or None
    own = {i: beside_router(mine) for i, mine in (own or {}).items()}
    answer = plan_any(models, beside_router(request), limit=limit, own=own)
    # A preset for fewer beside the user's number would run out of memory at the next model
    count = len(answer.plans)
    if given and answer.most < min(limit or count, count):
        raise UsageError(
            f"--models-max {given}: {answer.most} of these {count} models fit at a time: "
            f"--models-max {answer.most}, or leave it out"
        )
    return answer


def beside_router(request: Request) -> Request:
    """Return the request with what llama-server's router itself leaves: it is a process without a
    model, in some builds with a context on each device."""
    machine = request.machine
    rules = request.build.rules
    holds = rules.router_has_devices or Rules.router_has_devices.doubtful(rules.number)
    limits = {
        device.name: max(0, machine.limits[device.name] - holds * without_model(device))
        for device in machine.devices
    }
    ram = None if machine.ram is None else max(0, machine.ram - ram_of(0, 0, 0).request)
    return replace(request, machine=replace(machine, limits={**machine.limits, **limits}, ram=ram))


def _machines(machine: Machine, chosen: Mapping[int, Option], count: int) -> dict[int, Machine]:
    """Return the part of the machine that each model has, so that any `count` of them have
    theirs."""
    parts: dict[int, dict[str, int]] = {i: {} for i in chosen}
    for name, limit in Room.of(machine).sizes.items():
        needs = {i: option.needs[name] for i, option in chosen.items() if name in option.needs}
        for i, size in _parts(needs, limit, count).items():
            parts[i][name] = size
    return {i: part(machine, parts[i]) for i in chosen}


def _parts(needs: Mapping[int, int], limit: int, count: int) -> dict[int, int]:
    """Return the bytes that each may take, so that any `count` of them stay within the limit: the
    heaviest share the spare memory equally, then each other model gets what the heaviest leave."""
    spare = (limit - _heaviest(list(needs.values()), count)) // max(1, min(count, len(needs)))
    parts = {i: need + spare for i, need in needs.items()}
    # Where a model is none of the heaviest, it may grow until it and the heaviest others fill the
    # device.
    for i in sorted(parts, key=lambda i: parts[i]):
        others = [size for j, size in parts.items() if j != i]
        parts[i] = max(parts[i], limit - _heaviest(others, count - 1))
    return parts


class _LeftByAny(Left):
    """What columns leave for another one, if any `count` of all are used at once."""

    def __init__(self, room: Mapping[str, int], count: int) -> None:
        super().__init__(room)
        self.room = room
        self.count = count
        self.taken: dict[Any, list[int]] = {name: [] for name in room}

    def take(self, takes: Takes) -> None:
        for name, size in takes:
            self.taken[name].append(size)
            self._count(name)

    def give_back(self, takes: Takes) -> None:
        for name, size in takes:
            self.taken[name].remove(size)
            self._count(name)

    def _count(self, name: Any) -> None:
        self.left[name] = self.room[name] - _heaviest(self.taken[name], self.count - 1)


def _any(question: Question, order: Sequence[int], count: int) -> dict[int, Option] | None:
    """Return an option of each model, so that any `count` of them fit: the fastest that leaves one
    for the models after it. None if not found in STEPS steps."""
    left = _LeftByAny(question.room.sizes, count)
    columns = [question.room.columns(question.options[i]) for i in order]

    def next_ones(chosen: Sequence[Column]) -> Iterator[Column]:
        return fitting(columns[len(chosen)], left)

    for chosen in choices(len(order), next_ones, left, STEPS):
        return {i: column.what for i, column in zip(order, chosen, strict=True)}
    return None


def _heaviest(sizes: Sequence[int], count: int) -> int:
    """Return the most bytes that any `count` of these take."""
    return sum(sorted(sizes, reverse=True)[:count])


# Reads a model only when it is wanted (model.models), as outlines of many are not kept.
class Some(Sequence["Model"]):
    """Some of the models, by their indices."""

    def __init__(self, models: Sequence[Model], members: Sequence[int]) -> None:
        self.models = models
        self.members = members

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, i: Any) -> Any:
        return self.models[self.members[i]]
