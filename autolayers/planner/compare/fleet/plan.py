"""Which machine of a fleet serves which model, for how many users.

    found = plan_fleet(models, request, fleet, weights, Wanted(users=40, each=Users(rate=15)))
    found.servers, found.on["rack-1"], found.most, found.failing, found.next

Each model is planned once on each kind of machine and each number of its GPUs (options.py). Sorts
of servers come of that (sorts.py). The sorts that serve the most users are chosen (assign.py);
those that share a GPU are then planned together, until all that are chosen are. A number of users
is served by the fewest servers. Each is planned for the slots that it gets, and has its place on a
machine (places.py).
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count as counted
from math import ceil

from ....devices.assumed import host_of
from ....devices.fleet_file import Fleet, MachineKind
from ....errors import AutolayersError, DoesNotFit
from ....machine import Device
from ....memory.estimate import Known
from ....parallel import in_processes
from ....records import replace
from ...assignment import has_solver
from ...prices import TOO_SLOW
from ..cards import USUAL
from .answer import Failing, FleetPlan, FleetServer, Next, Place, Unserved, Wanted
from .assign import Servers, Sort, Supply, assign, dealt, fewest
from .options import option_of, part, planned
from .places import Places
from .sharing import shared
from .sorts import FleetQuestion, Sorts, memory_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ....model import Model
    from ....request import Request
    from ...plan import Plan

# of choosing and planning those that share a GPU, after which only planned ones are chosen
ROUNDS = 12
NEAR = 0.98  # of the bound: what is below it is said
# kinds for which the fleet without one machine, or with one more, is computed
_RENEWED = 16


def plan_fleet(
    models: Sequence[Model],
    request: Request,
    fleet: Fleet,
    weights: Sequence[float],
    wanted: Wanted,
    names: Sequence[str] = (),
    step: Callable[[str], None] = lambda what: None,
    shares: bool = True,
) -> FleetPlan:
    """Return the plan of a fleet. `step` is told what is done; `shares`: models may share a GPU. An
    interrupt ends the search, and the answer is the best so far. Raises DoesNotFit if none of the
    models is served."""
    names = tuple(names) or tuple(model.name or model.path for model in models)
    question = FleetQuestion(models, request, fleet, weights, wanted, names, step, shares)

    def chosen(rate: float) -> _Planner:
        goals = replace(wanted, each=replace(wanted.each, rate=rate or wanted.each.rate))
        return _Planner(replace(question, wanted=goals))

    best = chosen(0.0)
    if best.serves_all or wanted.users is None or wanted.each.promise or best.interrupted:
        return best.plan()
    # The number with the most tokens in all is advice, and no reason to serve fewer than may be.
    # The least promise serves the most; if it serves all, the highest is taken that does.
    with suppress(DoesNotFit):
        least = chosen(TOO_SLOW)
        best = min(best, least, key=lambda each: each.rank)
        if least.serves_all:
            # Tokens per second of each user.
            higher = (planner for rate in (20.0, 10.0, 5.0) if (planner := chosen(rate)).serves_all)
            best = next(higher, least)
    return replace(best.plan(), wanted=wanted)


class _Planner:
    """`models` that are served, and the `most` servers for them; `waiting`: sorts of the models for
    which no machine is left."""

    def __init__(self, question: FleetQuestion) -> None:
        self.question = question
        self.fleet = question.fleet
        self.wanted = question.wanted
        self.found = Sorts(question)
        self.interrupted = self.found.interrupted
        self.unserved = self.found.unserved
        # planned: launches of one model; those that share a GPU are only estimated (sharing.py)
        self.sure = {sort for sort in self.found.sorts if len(sort.serves) == 1}
        self.waiting: dict[int, list[Sort]] = {}
        self.alone = [len(kind.machines) == 1 for kind in self.fleet.kinds]
        self.models, self.most = self._served(self.found.sorts, self.found.models)

    @property
    def serves_all(self) -> bool:
        return not self.unserved and self.most.possible >= max(1, self.wanted.users or 1)

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better: models that are not served, and fewer users."""
        return len(self.unserved), -self.most.possible

    def plan(self) -> FleetPlan:
        """Return the plan of what was chosen."""
        most, possible, bound = self.most, self.most.possible, self.most.bound
        self.question.step("planning the servers")
        # Never more than are possible: the rest has no slot.
        number = possible if self.wanted.users is None else min(possible, self.wanted.users)
        users = dealt(number, most.supply.weights)
        chosen = most
        # Without a number of users all machines serve as many as they can.
        if self.wanted.users is not None and not self.interrupted:
            chosen = self._fewest(users)
        servers, places = self._servers(chosen, users)
        failing = tuple(self._failing(servers, places, users))
        # While a model waits for a machine nobody is served in the wanted ratio, so any machine
        # helps.
        more = self._next(chosen, 0 if self.waiting else possible)
        return FleetPlan(
            self.fleet,
            tuple(self.question.names),
            tuple(self.question.weights),
            self.wanted,
            tuple(servers),
            tuple(places),
            tuple(users),
            possible,
            # The bound may be a little below what was found, by rounding.
            None if bound is None else max(possible, int(bound + 1e-6)),
            tuple(self.unserved),
            failing,
            tuple(more),
            tuple(self._notes()),
            self.interrupted,
        )

    def _notes(self) -> Iterator[str]:
        yield from self.fleet.notes
        possible, bound = self.most.possible, self.most.bound
        if bound is None and not has_solver():
            yield "pip install 'autolayers[fleet]' may find servers for more users"
        elif bound is not None and possible < NEAR * int(bound):
            yield (
                f"more than {possible} users may be possible, {int(bound)} at most: the search "
                "ended before it knew"
            )
        if self.found.uses and not self.fleet.said:
            yield 'a network of 1 Gbit/s and 0.3 ms is assumed: set "link" in the file to change it'
        if self.interrupted:
            yield "interrupted: this is the best so far"

    # --- which are chosen

    def _served(self, sorts: list[Sort], models: list[int]) -> tuple[list[int], Servers]:
        """Return the models that are served, and the servers. A model whose promise no machine
        keeps once it is measured is noted and left out, and so is one for which no machine is
        left."""
        names = self.question.names
        while models:
            # The choice may depend on plans that fail once they are measured, so it is made again
            # with fewer models.
            servers = self._chosen(sorts, models)
            if all(servers.users[i] for i in models):
                return models, servers
            # No sort is left: each that had it was measured and did not keep the promise.
            sorts = [*servers.supply.sorts]
            out = [i for i in models if i not in _models_of(sorts)]
            self.unserved += [
                Unserved(i, f"{names[i]}: no machine gives {self.question.promise}") for i in out
            ]
            if not out:
                # The largest of those for which no machine is left waits for one, as more of the
                # others may be served without it.
                left = max(
                    [i for i in models if not servers.users[i]],
                    key=lambda i: self.question.models[i].size,
                )
                self.unserved.append(Unserved(left, f"{names[left]}: no machine is left for it"))
                self.waiting[left] = [sort for sort in sorts if sort.models == {left}]
                out = [left]
            models = [i for i in models if i not in out]
            sorts = [sort for sort in sorts if sort.models.issubset(models)]
        raise DoesNotFit("; ".join(each.why for each in self.unserved))

    def _chosen(self, sorts: list[Sort], models: Sequence[int]) -> Servers:
        """Return the servers, those that share a GPU planned together; none of any sort if a model
        has no sort left."""
        supply = Supply(sorts, self.question.room, self.question.shares_of(models))
        failed: set[Sort] = set()
        for number in counted(1):
            self.question.step(f"choosing servers, round {number}")
            servers = assign(supply.of(sorts))
            new = self._unsure(servers)
            if not new or self.interrupted:
                return servers
            self._check(new)
            failed |= {sort for sort in new if sort not in self.sure}
            # The new ones that failed their test would fail it again; in the last round only models
            # that no sure sort serves may have others.
            sorts = [sort for sort in sorts if sort in self.sure or sort not in new]
            if number >= ROUNDS:
                done = _models_of(self.sure)
                sorts = [
                    sort for sort in sorts if sort in self.sure or sort.serves[0][0] not in done
                ]
            else:
                # fewer users may be served where these were too many: half of each model
                fewer = [
                    Sort(sort.takes, tuple([(i, max(1, users // 2)) for i, users in sort.serves]))
                    for sort in new
                    if sort in failed
                ]
                sorts += [sort for sort in fewer if sort not in failed and sort not in sorts]
            # A model lost its last sort: the caller decides what becomes of it.
            if not _models_of(sorts).issuperset(models):
                break
        return Servers(supply.of(sorts), (0,) * len(sorts))

    def _unsure(self, servers: Servers) -> list[Sort]:
        """Return the sorts that are chosen and not planned."""
        return [sort for sort, _ in servers.used if sort not in self.sure]

    def _check(self, sorts: Sequence[Sort]) -> None:
        """Note the sorts whose models do share a GPU; all of them after an interrupt."""

        def shares(sort: Sort) -> bool:
            return bool(self._sharers_plans(sort, [users for _, users in sort.serves], check=True))

        try:
            answers = in_processes(shares, sorts)
        except KeyboardInterrupt:
            self.interrupted = True
            self.sure |= {*sorts}
            return
        for sort, answer in zip(sorts, answers, strict=True):
            if isinstance(answer, AutolayersError):
                # A launch that does not fit is None; this is an error of the request.
                raise answer
            if answer:
                self.sure.add(sort)

    def _sharers_plans(self, sort: Sort, slots: Sequence[int], check: bool) -> list[Plan] | None:
        """Return the plans of models that share a GPU; None where these slots do not fit, or
        `check` and the promise is not kept."""
        question, at = self.question, sort.takes[0]
        return shared(
            [(question.models[i], size) for (i, _), size in zip(sort.serves, slots, strict=True)],
            question.request,
            question.part(at),
            self.wanted.each,
            [self.found.options[i][at] for i, _ in sort.serves],
            check,
        )

    def _fewest(self, users: Sequence[int]) -> Servers:
        """Return the servers that the users take, each model one at least; without a promise none
        that share a GPU where the others serve all users."""
        needed = [max(1, count) if i in self.models else 0 for i, count in enumerate(users)]
        most = self.most
        # Without a promise sharing only slows everybody down, so it is the last resort.
        if not self.wanted.each.promise:
            weights = [each / sum(needed) for each in needed]
            own = [sort for sort in most.supply.sorts if len(sort.serves) == 1]
            # `quick`: only whether it is enough matters.
            apart = assign(Supply(own, most.supply.room, weights), quick=True)
            if all(has >= needs for has, needs in zip(apart.users, needed, strict=True)):
                most = apart
        for last in range(ROUNDS):
            costs = [self._cost(sort) for sort in most.supply.sorts]
            found = fewest(most, needed, costs, self.alone)
            new = self._unsure(found)
            if not new:
                break
            # what does not share a GPU when it is planned is not chosen again
            again = last + 2 < ROUNDS
            if again:
                self._check(new)
            counts = {
                sort: count
                for sort, count in zip(most.supply.sorts, most.counts, strict=True)
                if sort in self.sure or (again and sort not in new)
            }
            most = Servers(most.supply.of([*counts]), tuple(counts.values()))
        return found

    def _cost(self, sort: Sort) -> float:
        """Return the bytes of the GPUs of a server, of equal ones the seconds of a token; without a
        promise these alone."""
        # Smaller servers leave the large GPUs free.
        kinds = self.fleet.kinds
        # Without a promise the faster GPU is the better one.
        options = [self.found.options[i].get(sort.takes[0]) for i, _ in sort.serves]
        rates = [option.best for option in options if option]
        seconds = sum(1 / rate for rate in rates if rate) * len(sort.serves)
        if not (self.wanted.each.promise or sort in self.found.uses):
            return seconds
        size = 0.0
        for kind, gpus in sort.takes:
            # the bytes of its GPUs, of its RAM where they have none of their own
            own = sum(each.free for each in kinds[kind].devices if not each.in_ram)
            size += (own or kinds[kind].host.available) / kinds[kind].gpus * gpus
        # less than a MiB decides only between GPUs of the same memory
        return size + min(seconds, 1.0) * (1 << 20)

    # --- servers and their places

    def _servers(
        self, chosen: Servers, users: Sequence[int]
    ) -> tuple[list[FleetServer], list[Place]]:
        """Return the launches for the slots that each gets, and their machines."""
        largest = chosen.largest(self.alone)
        measurements: dict[int, Known] = {}
        servers: list[FleetServer] = []
        # Large servers first: they need a whole machine, small ones find a place anywhere.
        order: list[tuple[int, object, int, Sort, list[int]]] = []
        # Servers of one sort are the same launch: planned once, placed `count` times.
        for number, (sort, count) in enumerate(chosen.used):
            # Of a server that can have `each` of the possible slots in all: its part of the users,
            # and of those of the largest server while that is away; at least one, at most what
            # was measured.
            slots = [each for _, each in sort.serves]
            for row, (i, each) in enumerate(sort.serves if self.wanted.users is not None else ()):
                left = chosen.users[i] - largest[i] or chosen.users[i]
                slots[row] = min(each, max(1, users[i]), max(1, ceil(users[i] * each / left)))
            plans = self._plans(sort, slots, measurements)
            mine = [*range(len(servers), len(servers) + len(plans))]
            order += [(-sort.gpus, sort.serves, number, sort, mine)] * count
            servers += [
                # fewer than were wanted where llama.cpp accepts only some numbers
                FleetServer(
                    i,
                    sort.takes,
                    min(size, plan.breakdown.n_seq_max),
                    plan,
                    len(plans),
                    self.found.uses.get(sort),
                )
                for (i, _), size, plan in zip(sort.serves, slots, plans, strict=True)
            ]
        places = Places(self.fleet, chosen)
        of_servers = []
        for _, _, _, sort, mine in sorted(order, key=lambda row: row[:3]):
            names, gpus = places.take(sort)
            of_servers += [Place(server, gpus, names) for server in mine]
        return servers, of_servers

    def _plans(self, sort: Sort, slots: list[int], measurements: dict[int, Known]) -> list[Plan]:
        """Return the launch of each model of a sort. The slots may have changed since it was
        chosen, so it is planned for these."""
        if len(slots) > 1:
            # With the slots that the users need, otherwise with those that were chosen and are
            # known to fit: the promise was checked with at least these users.
            most = [users for _, users in sort.serves]
            return (
                self._sharers_plans(sort, slots, check=False)
                or self._sharers_plans(sort, most, check=False)
                or []
            )
        ((i, _),) = sort.serves
        wanted = replace(self.wanted.each, count=slots[0])
        if sort in self.found.uses:
            use = self.found.use(i, sort.takes, replace(wanted, grows=True))
            # If the new plan does not fit, the one that was measured stays.
            if use is not None and use.plan.fits:
                self.found.uses[sort] = use
            return [self.found.uses[sort].plan]
        question, known = self.question, measurements.setdefault(i, Known())
        machine = question.part(sort.takes[0])
        return [planned(question.models[i], question.request, machine, wanted, known)]

    # --- what if

    def _failing(
        self, servers: Sequence[FleetServer], places: Sequence[Place], users: Sequence[int]
    ) -> Iterator[Failing]:
        """Yield the machine of each kind that is missed most, and the users that are served without
        one."""
        slots = [0] * len(users)
        lost: dict[str, dict[int, int]] = {}
        for place in places:
            server = servers[place.server]
            slots[server.model] += server.slots
            for name in place.machines:
                own = lost.setdefault(name, {})
                own[server.model] = own.get(server.model, 0) + server.slots
        for number, kind in enumerate(self.fleet.kinds):
            # Users of each model that have no slot left without this machine's.
            waiting = {
                box.name: sum(
                    max(0, users[i] - slots[i] + size) for i, size in lost.get(box.name, {}).items()
                )
                for box in kind.machines
            }
            name = max(waiting, key=waiting.__getitem__)
            known = not self.interrupted and len(self.fleet.kinds) <= _RENEWED
            again = self._with_room(self.most.supply, number, -kind.gpus) if known else None
            yield Failing(number, name, waiting[name], again)

    @staticmethod
    def _with_room(supply: Supply, kind: int, gpus: int) -> int:
        """Return the users that are served with more GPUs of a kind, which may be new."""
        room = [*supply.room, *[0] * (kind + 1 - len(supply.room))]
        room[kind] += gpus
        return assign(replace(supply, room=room), quick=True).possible

    def _next(self, chosen: Servers, than: int) -> list[Next]:
        """Return the machines that serve more users `than` these, the most first: one more of each
        kind, and a desktop with a usual card for the model that is served worst, the first of those
        for which none is left."""
        if self.interrupted:
            return []
        kinds = self.fleet.kinds
        models, sorts = self.models, [*self.most.supply.sorts]
        # A model without a machine counts with the others, as the new machine is for it.
        for i, own in [*self.waiting.items()][:1]:
            models = [*models, i]
            sorts += own
        supply = Supply(sorts, self.question.room, self.question.shares_of(models))
        ideas = []
        if len(kinds) <= _RENEWED:
            ideas = [
                Next(
                    f"another {kind.machines[0].name}: {kind.title}",
                    number,
                    self._with_room(supply, number, kind.gpus),
                    memory_of(kind),
                )
                for number, kind in enumerate(kinds)
            ]
        # Who has the fewest users for its weight limits all others.
        short = min(models, key=lambda i: chosen.users[i] / self.question.weights[i])

        def bought(name: str) -> Next:
            """Return a desktop with a card and 32 GiB of RAM, for the model that is short."""
            device = Device.hypothetical(name)
            kind = MachineKind((), (device,), host_of(32 << 30, (device,)))
            request = self.question.request
            machine = part(kind, 1, request.policy)
            option = option_of(self.question.models[short], request, machine, self.wanted.each)
            # A new kind: its number is the first that the fleet does not use.
            extra = Sort(((len(kinds), 1),), ((short, option.users),))
            users = self._with_room(supply.of([*sorts, extra]), len(kinds), 1)
            return Next(kind.title, None, users, memory_of(kind))

        try:
            ideas += [each for each in in_processes(bought, USUAL) if isinstance(each, Next)]
        except KeyboardInterrupt:
            self.interrupted = True
        return sorted(
            (each for each in ideas if each.users > than),
            key=lambda each: (-each.users, each.memory),
        )


def _models_of(sorts: Iterable[Sort]) -> set[int]:
    """Return the models that these sorts serve."""
    return {model for sort in sorts for model in sort.models}
