"""Which machine of a fleet serves which model, for how many users.

    found = plan_fleet(models, request, fleet, weights, Wanted(users=40, each=Users(rate=15)))
    found.servers, found.on["rack-1"], found.most, found.failing, found.next

Each model is planned once on each kind of machine and each number of its GPUs (options.py). Sorts
of servers come of that: a model on a part of a machine, several small ones that share a GPU where
there are few GPUs, one over several machines by RPC where no machine holds it. The sorts that serve
the most users are chosen (assign.py); those that share a GPU are then planned together, until all
that are chosen are. A number of users is served by the fewest servers (fewest.py). Each is planned
for the slots that it gets.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import combinations_with_replacement
from math import ceil

from ....devices.assumed import host_of
from ....devices.cluster_file import Box, Cluster
from ....devices.fleet_file import Fleet, MachineKind
from ....errors import AutolayersError, DoesNotFit
from ....flags.users import Users
from ....machine import Device, Machine
from ....memory.estimate import Known
from ....parallel import cores, in_processes
from ....records import replace
from ....units import human
from ...prices import TOO_SLOW
from ...users import Requests
from ..cards import USUAL, WantedModel, by_size
from ..cluster import Use, use_of
from .answer import Failing, FleetPlan, FleetServer, Next, Place, Unserved, Wanted, served_at
from .assign import Sort, assign, dealt, has_solver, served, users_in_ratio
from .fewest import fewest
from .options import MachineOption, busiest, missing, option_of, options_of, part, planned
from .sharing import shared, sharers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ....model import Model
    from ....request import Request
    from ...plan import Plan

    Takes = tuple[tuple[int, int], ...]

# of choosing and planning those that share a GPU, after which only planned ones are chosen
ROUNDS = 12
NEAR = 0.98  # of the bound: what is below it is said
_SPAN = 4  # machines that one model spans at most
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

    def chosen(rate: float) -> _Planner:
        each = replace(wanted.each, rate=rate) if rate else wanted.each
        goals = replace(wanted, each=each)
        return _Planner(models, request, fleet, weights, goals, names, step, shares)

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
    def __init__(
        self,
        models: Sequence[Model],
        request: Request,
        fleet: Fleet,
        weights: Sequence[float],
        wanted: Wanted,
        names: Sequence[str],
        step: Callable[[str], None],
        shares: bool,
    ) -> None:
        self.models = models
        self.request = request
        self.fleet = fleet
        self.weights = weights
        self.wanted = wanted
        self.step = step
        self.names = tuple(names) or tuple(model.name or model.path for model in models)
        # Where there are many GPUs each model gets its own: sharing would only slow it down.
        # Below four GPUs for a model, models may share one.
        few = sum(self._room()) < 4 * len(models)
        self.may_share = shares and len(models) > 1 and few
        self.options: list[dict[tuple[int, int], MachineOption]] = [{} for _ in models]
        self.uses: dict[Sort, Use] = {}
        # planned: launches of one model; those that share a GPU are only estimated (sharing.py)
        self.sure: set[Sort] = set()
        self.short: dict[int, tuple[int, Takes]] = {}  # bytes that the closest machines lack
        self.measurements: dict[int, Known] = {}  # measurements of models whose servers are planned
        self.interrupted = False
        self.unserved: list[Unserved] = []
        # models for which no machine is left, and their sorts
        self.waiting: dict[int, list[Sort]] = {}
        self._plan_models()
        # A sort for each model on each part of a machine where it serves anyone, and more than
        # smaller parts do
        sorts = [
            Sort(((kind, gpus),), ((i, self._users_of(i, option)),))
            for i, options in enumerate(self.options)
            for (kind, gpus), option in options.items()
            if self._users_of(i, option)
            # A larger part must serve more than smaller ones on the same GPUs.
            and all(
                option.users > less.users * (gpus // size)
                for (same, size), less in options.items()
                if same == kind and size < gpus
            )
        ]
        # Notes the models that nothing serves, after machines together were tried, whose sorts
        # are added
        for i, options in enumerate(self.options):
            # sort.serves[0]: sorts have one model until `_sharing` adds others.
            if any(sort.serves[0][0] == i for sort in sorts):
                continue
            if not options:
                self.unserved.append(
                    Unserved(i, f"{self.names[i]}: not planned, as the search was interrupted")
                )
            # It fits somewhere, but is too slow there for what was promised.
            elif any(option.fits for option in options.values()):
                best = max(options.values(), key=lambda option: option.best)
                promise = " and ".join(self.wanted.each.words())
                self.unserved.append(
                    Unserved(
                        i,
                        f"{self.names[i]}: no machine gives {promise}; the fastest gives one user "
                        f"{best.best:.1f}",
                    )
                )
            elif together := self._together(i):
                sorts += together
            else:
                self.unserved.append(Unserved(i, self._too_large(i, options)))
        # The models that a machine may serve. Raises DoesNotFit without one.
        refused = {each.model for each in self.unserved}
        # Numbers of models stay those of the command, though some of them are not served.
        possible = [i for i in range(len(self.models)) if i not in refused]
        if not possible:
            raise self._served_none()
        served_models = possible
        sorts = [sort for sort in sorts if sort.serves[0][0] in served_models]
        sorts += self._sharing(served_models)
        self.chosen = self._served(sorts, served_models)
        # Floats may make 40 users 39.999999.
        served_models, sorts, counts, _ = self.chosen
        self.possible = int(users_in_ratio(sorts, counts, self._shares(served_models)) + 1e-6)

    @property
    def serves_all(self) -> bool:
        return not self.unserved and self.possible >= max(1, self.wanted.users or 1)

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better: models that are not served, and fewer users."""
        return len(self.unserved), -self.possible

    def plan(self) -> FleetPlan:
        """Return the plan of what was chosen."""
        served_models, sorts, counts, bound = self.chosen
        weights, possible = self._shares(served_models), self.possible
        self.step("planning the servers")
        # Never more than are possible: the rest has no slot.
        number = possible if self.wanted.users is None else min(possible, self.wanted.users)
        users = dealt(number, weights)
        # Without a number of users all machines serve as many as they can.
        if self.wanted.users is not None and not self.interrupted:
            counts = self._fewest(sorts, counts, served_models, users)
        servers, places = self._servers(sorts, counts, users)
        again: dict[int, int] = {}
        # the users served without one machine of each kind
        if not self.interrupted and len(self.fleet.kinds) <= _RENEWED:
            for kind_number, kind in enumerate(self.fleet.kinds):
                less = {kind_number: -kind.gpus}
                again[kind_number] = self._with_room(sorts, weights, less)
        notes = [*self.fleet.notes]
        if bound is None and not has_solver():
            notes.append("pip install 'autolayers[fleet]' may find servers for more users")
        elif bound is not None and possible < NEAR * int(bound):
            notes.append(
                f"more than {possible} users may be possible, {int(bound)} at most: the search "
                "ended before it knew"
            )
        if self.uses and not self.fleet.said:
            notes.append(
                'a network of 1 Gbit/s and 0.3 ms is assumed: set "link" in the file to change it'
            )
        if self.interrupted:
            notes.append("interrupted: this is the best so far")
        # The machine of each kind that is missed most
        slots = [0] * len(self.models)
        lost: dict[str, dict[int, int]] = {}
        for place in places:
            server = servers[place.server]
            slots[server.model] += server.slots
            for name in place.machines:
                own = lost.setdefault(name, {})
                own[server.model] = own.get(server.model, 0) + server.slots
        failing = []
        for number, kind in enumerate(self.fleet.kinds):
            # Users of each model that have no slot left without this machine's.
            waiting = {
                box.name: sum(
                    max(0, users[i] - slots[i] + size) for i, size in lost.get(box.name, {}).items()
                )
                for box in kind.machines
            }
            name = max(waiting, key=waiting.__getitem__)
            failing.append(Failing(number, name, waiting[name], again.get(number)))
        return FleetPlan(
            self.fleet,
            self.names,
            tuple(self.weights),
            self.wanted,
            tuple(servers),
            tuple(places),
            tuple(users),
            possible,
            # The bound may be a little below what was found, by rounding.
            None if bound is None else max(possible, int(bound + 1e-6)),
            tuple(self.unserved),
            tuple(failing),
            # While a model waits for a machine nobody is served in the wanted ratio, so any machine
            # helps.
            tuple(self._next(sorts, counts, served_models, 0 if self.waiting else possible)),
            tuple(notes),
            self.interrupted,
        )

    def _served_none(self) -> DoesNotFit:
        return DoesNotFit("; ".join(each.why for each in self.unserved))

    # --- what each model does on each kind

    def _plan_models(self) -> None:
        kinds = self.fleet.kinds

        def options(i: int) -> dict[tuple[int, int], MachineOption]:
            return options_of(self.models[i], self.request, kinds, self.wanted.each, self.may_share)

        # A chunk for each round of processes, so that an interrupt keeps the chunks before it.
        count = cores()
        try:
            for at in range(0, len(self.models), count):
                chunk = range(at, min(at + count, len(self.models)))
                self.step(f"planning model {at + 1} of {len(self.models)}")
                for i, options_found in zip(chunk, in_processes(options, chunk), strict=True):
                    if isinstance(options_found, AutolayersError):
                        raise options_found
                    self.options[i] = options_found
        except KeyboardInterrupt:
            # Not even the first model is planned: there is no answer to give.
            if not self.options[0]:
                raise
            self.interrupted = True

    def _users_of(self, i: int, option: MachineOption) -> int:
        """Return the users of an option; of a model that is too slow everywhere, one where nothing
        is promised."""
        # Nothing keeps up with reading: then one user is better served slowly than not at all.
        if self.wanted.each.promise or any(each.users for each in self.options[i].values()):
            return option.users
        return int(option.fits)

    def _too_large(self, i: int, options: dict[tuple[int, int], MachineOption]) -> str:
        refused = [option.refused for option in options.values() if option.refused]
        if len(refused) == len(options):
            return f"{self.names[i]}: {refused[0]}"
        (kind, _), closest = min(
            # What fits nowhere alone: the closest is shown, or the closest span (self.short).
            ((at, option) for at, option in options.items() if option.missing),
            key=lambda row: row[1].missing,
        )
        lacking, takes = self.short.get(
            i, (closest.missing, ((kind, self.fleet.kinds[kind].gpus),))
        )
        names = [
            box.name
            for number, gpus in takes
            for box in self.fleet.kinds[number].machines[: gpus // self.fleet.kinds[number].gpus]
        ]
        most_together = min(_SPAN, len(self.fleet.machines))
        together = f" and no {most_together} together hold" if most_together > 1 else " holds"
        why = (
            f"{self.names[i]}: no machine{together} it: {human(lacking)} are missing on "
            f"{' + '.join(names)}"
        )
        card = self._card(i)
        return (
            f"{why}; {card} would hold it"
            if card
            else f"{why}; no card that is known holds it alone"
        )

    def _card(self, i: int) -> str:
        """Return a card, or two, that would hold a model."""
        # 4096 tokens as in --fit, if no context is wanted.
        trial = WantedModel(self.models[i], self.request, self.wanted.each.context or 4096)
        for count in (1, 2):
            for name, card in by_size():
                # The input layer stays in RAM, so a card may be somewhat smaller than the file.
                if card.bandwidth and card.usable * count << 20 > self.models[i].size * 0.9:
                    runs = trial.on(name, card, count)
                    if runs is not None:
                        return f"{'2 x ' if count == 2 else ''}{card.description}"
                if trial.exhausted:
                    return ""
        return ""

    def _together(self, i: int) -> list[Sort]:
        """Return the machines by RPC, as few as hold the model, of these up to three sorts with the
        least memory."""
        spanning: list[Sort] = []
        for count in range(2, min(_SPAN, len(self.fleet.machines)) + 1):
            # The least memory first, so that large machines stay free for others.
            size = self.models[i].size
            # What `count` whole machines take, the head's kind first, whose memory may hold
            # `size` bytes, the least first
            kinds = self.fleet.kinds
            # Combinations of more kinds would be too numerous.
            # 16 kinds: those with the most memory.
            largest = sorted(range(len(kinds)), key=lambda kind: -_memory(kinds[kind]))[:16]
            spans: list[tuple[int, Takes]] = []
            for members in combinations_with_replacement(sorted(largest), count):
                numbers = Counter(members)
                # A kind with one machine cannot give two.
                enough = all(len(kinds[kind].machines) >= n for kind, n in numbers.items())
                memory = sum(_memory(kinds[kind]) for kind in members)
                # Weights are not all that a model needs, but some of them may stay on the disk.
                if enough and memory >= 0.8 * size:
                    spans += [(memory, takes) for takes in self._by_head(numbers)]
            # Six sets of kinds of each number of machines.
            for takes in [takes for _, takes in sorted(spans)][:6]:
                sort = self._spanning(i, takes)
                spanning += [] if sort is None else [sort]
                if len(spanning) == 3:
                    break
            # Fewer machines are always taken: each one more adds a hop to every token.
            if spanning:
                break
        return spanning

    def _by_head(self, numbers: Counter[int]) -> Iterator[Takes]:
        """Yield what these numbers of machines of each kind take, for each kind that may be the
        head."""
        # The first of `takes` is the head, where llama-server runs; the others run rpc-servers,
        # which need a device.
        kinds = self.fleet.kinds
        for head in numbers:
            others = numbers - Counter([head])
            if all(kinds[kind].devices for kind in others):
                order = [head, *(kind for kind in numbers if kind != head)]
                yield tuple([(kind, numbers[kind] * kinds[kind].gpus) for kind in order])

    def _spanning(self, i: int, takes: Takes) -> Sort | None:
        """Return the sort of a model on these machines together; None where they do not hold it or
        keep the promise."""
        each = self.wanted.each
        use = self._use(i, takes, replace(each, grows=True))
        if use is None:
            return None
        if not use.plan.fits:
            short = missing(use.plan), takes
            # The least that is missing is what the message names.
            self.short[i] = min(self.short.get(i, short), short)
            return None
        requests = use.plan.speed.requests
        assert isinstance(requests, Requests)
        most_users = requests.most if each.promise else busiest(requests.table) or 1
        if not most_users:
            return None
        sort = Sort(takes, ((i, most_users),))
        self.uses[sort] = use
        return sort

    def _use(self, i: int, takes: Takes, users: Users) -> Use | None:
        """Return a model on the first machines of these kinds."""
        head, *boxes = (
            # Any machines of the kind: all have the same devices. The places come later
            # (_machines).
            served_at(self.fleet.kinds[kind], self.fleet.kinds[kind].machines[at].name)
            for kind, gpus in takes
            for at in range(gpus // self.fleet.kinds[kind].gpus)
        )
        boxes = [replace(box, link=self.fleet.link) for box in boxes]
        request = self.request.with_goals(users=users)
        try:
            return use_of(self.models[i], request, Cluster(head, tuple(boxes)), boxes)
        except AutolayersError:
            return None

    # --- which are chosen

    def _shares(self, models: Sequence[int]) -> list[float]:
        """Return the part of the users that each of these models has, 0 for all others."""
        whole = sum(self.weights[i] for i in models)
        return [weight / whole * (i in models) for i, weight in enumerate(self.weights)]

    def _sharing(self, models: Sequence[int]) -> list[Sort]:
        """Return the sorts of several models on one GPU, where there are few GPUs for the
        models."""
        if not self.may_share or len(models) < 2:
            return []
        weights = {i: self.weights[i] for i in models}
        sorts = []
        for number, kind in enumerate(self.fleet.kinds):
            # Of an integrated GPU or a Mac the machine is one part.
            if not (len(kind.devices) == 1 or (bool(kind.devices) and kind.gpus > 1)):
                continue
            machine = part(kind, 1, self.request.policy)
            # A model may have no option here: its search was interrupted.
            fitting = {
                i: self.options[i][number, 1] for i in models if self.options[i].get((number, 1))
            }
            sorts += [
                Sort(((number, 1),), serves)
                for serves in sharers(fitting, machine, weights, self.wanted.each)
            ]
        return sorts

    def _served(
        self, sorts: list[Sort], models: list[int]
    ) -> tuple[list[int], list[Sort], tuple[int, ...], float | None]:
        """Return the models that are served, the sorts, how many of each, and the bound. A model
        whose promise no machine keeps once it is measured is noted and left out, and so is one for
        which no machine is left."""
        while True:
            # The choice may depend on plans that fail once they are measured, so it is made again
            # with fewer models.
            sorts, counts, bound = self._chosen(sorts, models)
            users = served(sorts, counts, len(self.models))
            if all(users[i] for i in models):
                return models, sorts, counts, bound
            # Note the models whose promise no machine keeps; if there are none, the largest of
            # those for which no machine is left, which then waits for one, as more of the others
            # may be served without it
            # No sort is left: each that had it was measured and did not keep the promise.
            possible = _models_of(sorts)
            refused = [i for i in models if i not in possible]
            if refused:
                promise = " and ".join(self.wanted.each.words())
                self.unserved += [
                    Unserved(i, f"{self.names[i]}: no machine gives {promise}") for i in refused
                ]
                out = refused
            else:
                left = max([i for i in models if not users[i]], key=lambda i: self.models[i].size)
                self.unserved.append(
                    Unserved(left, f"{self.names[left]}: no machine is left for it")
                )
                # The sorts that serve this model alone
                self.waiting[left] = [sort for sort in sorts if _models_of([sort]) == {left}]
                out = [left]
            models = [i for i in models if i not in out]
            sorts = [sort for sort in sorts if _models_of([sort]).issubset(models)]
            if not models:
                raise self._served_none()

    def _chosen(
        self, sorts: list[Sort], models: Sequence[int]
    ) -> tuple[list[Sort], tuple[int, ...], float | None]:
        """Return the sorts and how many of each, those that share a GPU planned together; early if
        a model has none left."""
        room = self._room()
        weights = self._shares(models)
        self.sure |= {sort for sort in sorts if len(sort.serves) == 1}
        number = 0
        failed: set[Sort] = set()
        while True:
            number += 1
            self.step(f"choosing servers, round {number}")
            assigned = assign(sorts, room, weights)
            new = self._unsure(sorts, assigned.counts)
            if not new or self.interrupted:
                return sorts, assigned.counts, assigned.bound
            # Those that failed are gone in the next round; those that hold stay without another
            # test.
            self.sure |= self._kept(new)
            failed |= {sort for sort in new if sort not in self.sure}
            # The new ones that failed their test would fail it again; in the last round only models
            # that no sure sort serves may have others.
            sorts = [sort for sort in sorts if sort in self.sure or sort not in new]
            if number >= ROUNDS:
                done = _models_of(self.sure)
                sorts = [
                    sort for sort in sorts if sort in self.sure or sort.serves[0][0] not in done
                ]
            if number < ROUNDS:
                # fewer users may be served where these were too many
                # A sort for half the users of each model
                fewer = [
                    Sort(
                        sort.takes,
                        tuple([(model, max(1, users // 2)) for model, users in sort.serves]),
                    )
                    for sort in new
                    if sort in failed
                ]
                sorts += [sort for sort in fewer if sort not in failed and sort not in sorts]
            # A model lost its last sort: the caller decides what becomes of it.
            if not _models_of(sorts).issuperset(models):
                return sorts, (0,) * len(sorts), None

    def _kept(self, sorts: Sequence[Sort]) -> set[Sort]:
        """Return the sorts whose models do share a GPU; all of them after an interrupt."""
        try:
            answers = in_processes(self._shares_a_gpu, sorts)
        except KeyboardInterrupt:
            self.interrupted = True
            return {*sorts}
        for answer in answers:
            if isinstance(answer, AutolayersError):
                # A launch that does not fit is None; this is an error of the request.
                raise answer
        return {sort for sort, answer in zip(sorts, answers, strict=True) if answer}

    def _shares_a_gpu(self, sort: Sort) -> bool:
        ((kind, gpus),) = sort.takes
        plans = shared(
            [(self.models[i], users) for i, users in sort.serves],
            self.request,
            part(self.fleet.kinds[kind], gpus, self.request.policy),
            self.wanted.each,
            [self.options[i][kind, gpus] for i, _ in sort.serves],
        )
        return plans is not None

    def _room(self) -> list[int]:
        """Return the parts of each kind's machines: their GPUs."""
        return [kind.gpus * len(kind.machines) for kind in self.fleet.kinds]

    # --- servers and their places

    def _fewest(
        self,
        sorts: Sequence[Sort],
        counts: Sequence[int] | dict[int, int],
        models: Sequence[int],
        users: Sequence[int],
    ) -> tuple[int, ...]:
        """Return how many servers of each sort the users take, each model one at least; without a
        promise none that share a GPU where the others serve all users."""
        sure = [*range(len(sorts))]
        needed = [max(1, count) if i in models else 0 for i, count in enumerate(users)]
        # Without a promise sharing only slows everybody down, so it is the last resort.
        if not self.wanted.each.promise:
            apart = self._unshared(sorts, sure, needed)
            if apart is not None:
                sure = [*apart]
                counts = apart
        alone = [len(kind.machines) == 1 for kind in self.fleet.kinds]
        for last in range(ROUNDS):
            chosen_counts = fewest(
                [sorts[i] for i in sure],
                self._room(),
                needed,
                [self._cost(sorts[i]) for i in sure],
                alone,
                [counts[i] for i in sure],
            )
            number = dict(zip(sure, chosen_counts, strict=True))
            chosen = tuple([number.get(i, 0) for i in range(len(sorts))])
            new = self._unsure(sorts, chosen)
            if not new:
                break
            # what does not share a GPU when it is planned is not chosen again
            again = last + 2 < ROUNDS
            self.sure |= self._kept(new) if again else set()
            tested = set(new if again else sorts)
            sure = [i for i in sure if sorts[i] in self.sure or sorts[i] not in tested]
        return chosen

    def _unsure(self, sorts: Sequence[Sort], counts: Sequence[int]) -> list[Sort]:
        """Return the sorts that are chosen and not planned."""
        used = [sort for sort, count in zip(sorts, counts, strict=True) if count]
        return [sort for sort in used if sort not in self.sure]

    def _unshared(
        self, sorts: Sequence[Sort], sure: Sequence[int], needed: list[int]
    ) -> dict[int, int] | None:
        """Return the number of servers of each sort that shares no GPU; None if these do not serve
        all users."""
        apart = [i for i in sure if len(sorts[i].serves) == 1]
        own = [sorts[i] for i in apart]
        weights = [each / sum(needed) for each in needed]
        # `quick`: only whether it is enough matters.
        alone = assign(own, self._room(), weights, quick=True).counts
        enough = served(own, alone, len(needed))
        if any(has < needs for has, needs in zip(enough, needed, strict=True)):
            return None
        return dict(zip(apart, alone, strict=True))

    def _cost(self, sort: Sort) -> float:
        """Return the bytes of the GPUs of a server, of equal ones the seconds of a token; without a
        promise these alone."""
        # Smaller servers leave the large GPUs free.
        kinds = self.fleet.kinds
        # Without a promise the faster GPU is the better one.
        at = sort.takes[0]
        rates = [self.options[i][at].best for i, _ in sort.serves if at in self.options[i]]
        seconds = sum(1 / rate for rate in rates if rate) * len(sort.serves)
        if self.wanted.each.promise or sort in self.uses:
            sizes = []
            for kind, gpus in sort.takes:
                # the bytes of its GPUs, of its RAM where they have none of their own
                own = sum(each.free for each in kinds[kind].devices if not each.in_ram)
                sizes.append((own or kinds[kind].host.available) / kinds[kind].gpus * gpus)
            # less than a MiB decides only between GPUs of the same memory
            return sum(sizes) + min(seconds, 1.0) * (1 << 20)
        return seconds

    def _servers(
        self, sorts: Sequence[Sort], counts: Sequence[int], users: Sequence[int]
    ) -> tuple[list[FleetServer], list[Place]]:
        """Return the launches for the slots that each gets, and their machines."""
        possible = served(sorts, counts, len(self.models))
        # The most users of each model that are served by what fails together
        largest = [0] * len(self.models)
        for sort, count in zip(sorts, counts, strict=True):
            # Whether its servers fail together, on the only machine of a kind
            together = (
                count
                if any(len(self.fleet.kinds[kind].machines) == 1 for kind, _ in sort.takes)
                else min(1, count)
            )
            for model, each in sort.serves:
                largest[model] = max(largest[model], each * together)
        servers: list[FleetServer] = []
        of_sort: dict[int, list[int]] = {}
        for number, (sort, count) in enumerate(zip(sorts, counts, strict=True)):
            # Servers of one sort are the same launch: planned once, placed `count` times.
            if not count:
                continue
            # Of a server that can have `each` of the possible slots in all: its part of the users,
            # and of those of the largest server while that is away; at least one, at most what
            # was measured.
            slots = [each for _, each in sort.serves]
            for row, (i, each) in enumerate(sort.serves if self.wanted.users is not None else ()):
                left = possible[i] - largest[i] if possible[i] > largest[i] else possible[i]
                slots[row] = min(each, max(1, users[i]), max(1, ceil(users[i] * each / left)))
            # The slots may have changed since it was chosen, so it is planned for these.
            if sort in self.uses:
                ((i, _),) = sort.serves
                wanted = replace(self.wanted.each, count=slots[0], grows=True)
                use = self._use(i, sort.takes, wanted)
                # If the new plan does not fit, the one that was measured stays.
                if use is not None and use.plan.fits:
                    self.uses[sort] = use
                plans = [self.uses[sort].plan]
            else:
                ((kind, gpus),) = sort.takes
                machine = part(self.fleet.kinds[kind], gpus, self.request.policy)
                if len(slots) > 1:
                    # With the slots that the users need, otherwise with those that were chosen and
                    # are known to fit.
                    plans = self._sharers_plans(sort, slots, machine) or self._sharers_plans(
                        sort, [users for _, users in sort.serves], machine
                    )
                else:
                    ((i, _),) = sort.serves
                    measurements = self.measurements.setdefault(i, Known())
                    wanted = replace(self.wanted.each, count=slots[0])
                    plans = [planned(self.models[i], self.request, machine, wanted, measurements)]
            of_sort[number] = list(range(len(servers), len(servers) + len(plans)))
            servers += [
                # fewer than were wanted where llama.cpp accepts only some numbers
                FleetServer(
                    i,
                    sort.takes,
                    min(size, plan.breakdown.n_seq_max),
                    plan,
                    len(plans),
                    self.uses.get(sort),
                )
                for (i, _), size, plan in zip(sort.serves, slots, plans, strict=True)
            ]
        # The places of servers, the largest first; those of one model apart, so that a machine
        # that fails takes few of them
        free = {
            box.name: list(range(kind.gpus)) for kind in self.fleet.kinds for box in kind.machines
        }
        # Large servers first: they need a whole machine, small ones find a place anywhere.
        order = sorted(
            (-sum(gpus for _, gpus in sorts[number].takes), sorts[number].serves, number)
            for number in of_sort
            for _ in range(counts[number])
        )
        used = self._machines_used(sorts, counts)
        at = [0] * len(self.fleet.kinds)
        places = []
        # Of each kind where to go on, so that the servers of a model are on different machines.
        for _, _, number in order:
            names, indices = self._machines(sorts[number], used, free, at)
            places += [Place(server, indices, names) for server in of_sort[number]]
        return servers, places

    def _sharers_plans(self, sort: Sort, slots: Sequence[int], machine: Machine) -> list[Plan]:
        """Return the plans of models that share a GPU; [] where these slots do not fit."""
        return (
            shared(
                [(self.models[i], size) for (i, _), size in zip(sort.serves, slots, strict=True)],
                self.request,
                machine,
                self.wanted.each,
                [self.options[i][sort.takes[0]] for i, _ in sort.serves],
                # `check`: the promise was checked when the sort was chosen, with at least these
                # users.
                check=False,
            )
            or []
        )

    def _machines(
        self, sort: Sort, used: Sequence[int], free: dict[str, list[int]], at: list[int]
    ) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
        """Return the machines of one server, and its GPUs if it has only a part of one; takes them
        from `free`."""
        names: list[str] = []
        gpus: tuple[int, ...] | None = None
        for kind, size in sort.takes:
            kind_of_machine = self.fleet.kinds[kind]
            for _ in range(max(1, size // kind_of_machine.gpus)):
                name = self._machine(
                    kind_of_machine.machines[: used[kind]],
                    kind,
                    min(size, kind_of_machine.gpus),
                    free,
                    at,
                )
                # The numbers of its GPUs, e.g. (2, 3); all of a machine that it takes whole.
                taken, free[name] = free[name][:size], free[name][size:]
                gpus = tuple(taken) if size < kind_of_machine.gpus else None
                names.append(name)
        return tuple(names), gpus

    def _machines_used(self, sorts: Sequence[Sort], counts: Sequence[int]) -> list[int]:
        """Return the fewest machines of each kind that have the GPUs, but two where a model has
        several servers there: so they do not all fail with one machine."""
        used = []
        for number, kind in enumerate(self.fleet.kinds):
            taken = 0
            servers = Counter[int]()
            for sort, count in zip(sorts, counts, strict=True):
                taken += count * dict(sort.takes).get(number, 0)
                if number in dict(sort.takes):
                    servers.update({model: count for model, _ in sort.serves})
            several = max(servers.values(), default=0) > 1
            # Rounded up to whole machines.
            used.append(min(len(kind.machines), max(-(-taken // kind.gpus), 2 * several)))
        return used

    @staticmethod
    def _machine(
        machines: Sequence[Box], kind: int, size: int, free: dict[str, list[int]], at: list[int]
    ) -> str:
        """Return the next of these machines of a kind, in turns, that has this many GPUs left."""
        # In turns from the last one on, so that two servers of a model are not on one machine.
        for turn in range(len(machines)):
            box = machines[(at[kind] + turn) % len(machines)]
            if len(free[box.name]) >= size:
                at[kind] = (at[kind] + turn + 1) % len(machines)
                return box.name
        raise AssertionError("no machine has room")

    # --- what if

    def _with_room(
        self,
        sorts: Sequence[Sort],
        weights: Sequence[float],
        more: dict[int, int],
        room: Sequence[int] = (),
    ) -> int:
        # `room` is that of kinds that are bought in addition.
        rooms = [size + more.get(kind, 0) for kind, size in enumerate([*self._room(), *room])]
        counts = assign(sorts, rooms, weights, quick=True).counts
        return int(users_in_ratio(sorts, counts, weights) + 1e-6)

    def _next(
        self, sorts: Sequence[Sort], counts: Sequence[int], models: Sequence[int], than: int
    ) -> list[Next]:
        """Return the machines that serve more users `than` these, the most first: one more of each
        kind, and a desktop with a usual card for the model that is served worst, the first of those
        for which none is left."""
        if self.interrupted:
            return []
        kinds = self.fleet.kinds
        # A model without a machine counts with the others, as the new machine is for it.
        for i, own in [*self.waiting.items()][:1]:
            models = [*models, i]
            sorts = [*sorts, *own]
            counts = [*counts, *[0] * len(own)]
        weights = self._shares(models)
        ideas = []
        if len(kinds) <= _RENEWED:
            ideas = [
                Next(
                    f"another {kind.machines[0].name}: {kind.title}",
                    number,
                    self._with_room(sorts, weights, {number: kind.gpus}),
                    _memory(kind),
                )
                for number, kind in enumerate(kinds)
            ]
        users = served(sorts, counts, len(self.models))
        # Who has the fewest users for its weight limits all others.
        short = min(models, key=lambda i: users[i] / self.weights[i])
        try:
            bought = in_processes(lambda name: self._bought(name, short, sorts, weights), USUAL)
            ideas += [each for each in bought if isinstance(each, Next)]
        except KeyboardInterrupt:
            self.interrupted = True
        return sorted(
            (each for each in ideas if each.users > than),
            key=lambda each: (-each.users, each.memory),
        )

    def _bought(
        self, name: str, short: int, sorts: Sequence[Sort], weights: Sequence[float]
    ) -> Next:
        """Return a desktop with a card, for the model that is short."""
        # A desktop with one of these cards and 32 GiB of RAM
        device = Device.hypothetical(name)
        kind = MachineKind((), (device,), host_of(32 << 30, (device,)))
        option = option_of(
            self.models[short], self.request, part(kind, 1, self.request.policy), self.wanted.each
        )
        # A new kind: its number is the first that the fleet does not use.
        extra = Sort(((len(self.fleet.kinds), 1),), ((short, option.users),))
        return Next(
            kind.title,
            None,
            self._with_room([*sorts, extra], weights, {}, [1]),
            _memory(kind),
        )


def _models_of(sorts: Iterable[Sort]) -> set[int]:
    """Return the models that these sorts serve."""
    return {model for sort in sorts for model, _ in sort.serves}


def _memory(kind: MachineKind) -> int:
    """Return the bytes that a launch may use there."""
    # Devices in RAM share the host's memory, so it would be counted twice.
    own = sum(device.free for device in kind.devices if not device.in_ram)
    return own + kind.host.available
