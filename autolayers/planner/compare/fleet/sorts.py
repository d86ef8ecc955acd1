"""Which sorts of servers a fleet may run: a model on a part of a machine, several small ones that
share a GPU where there are few GPUs, one over several machines by RPC where no machine holds it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement

from ....devices.cluster_file import Cluster
from ....errors import AutolayersError
from ....parallel import cores, in_processes
from ....records import dataclass, replace
from ....units import human
from ...users import Requests
from ..cards import WantedModel, by_size
from ..cluster import Use, use_of
from .answer import Unserved, served_at
from .assign import Sort
from .options import MachineOption, busiest, missing, options_of, part
from .sharing import sharers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ....devices.fleet_file import Fleet, MachineKind
    from ....flags.users import Users
    from ....machine import Machine
    from ....model import Model
    from ....request import Request
    from .answer import Wanted

    Takes = tuple[tuple[int, int], ...]

_SPAN = 4  # machines that one model spans at most


@dataclass(frozen=True)
class FleetQuestion:
    """What is asked. `step` is told what is done; `shares`: models may share a GPU."""

    models: Sequence[Model]
    request: Request
    fleet: Fleet
    weights: Sequence[float]
    wanted: Wanted
    names: Sequence[str]
    step: Callable[[str], None]
    shares: bool

    @property
    def room(self) -> list[int]:
        """The parts of each kind's machines: their GPUs."""
        return [kind.gpus * len(kind.machines) for kind in self.fleet.kinds]

    @property
    def may_share(self) -> bool:
        # Where there are many GPUs each model gets its own: sharing would only slow it down.
        # Below four GPUs for a model, models may share one.
        few = sum(self.room) < 4 * len(self.models)
        return self.shares and len(self.models) > 1 and few

    @property
    def promise(self) -> str:
        return " and ".join(self.wanted.each.words())

    def shares_of(self, models: Sequence[int]) -> list[float]:
        """Return the part of the users that each of these models has, 0 for all others."""
        whole = sum(self.weights[i] for i in models)
        return [weight / whole * (i in models) for i, weight in enumerate(self.weights)]

    def part(self, at: tuple[int, int]) -> Machine:
        """Return a number of GPUs of a kind of machine."""
        kind, gpus = at
        return part(self.fleet.kinds[kind], gpus, self.request.policy)


class Sorts:
    """`options` of each model by kind of machine and GPUs, `uses` of the sorts that span machines,
    `unserved`: models that nothing serves."""

    def __init__(self, question: FleetQuestion) -> None:
        self.question = question
        self.uses: dict[Sort, Use] = {}
        self.short: dict[int, tuple[int, Takes]] = {}  # bytes that the closest machines lack
        self.interrupted = False
        self.unserved: list[Unserved] = []
        self.options: list[dict[tuple[int, int], MachineOption]] = [{} for _ in question.models]
        self._plan_models()
        every = range(len(question.models))
        self.sorts = [sort for i in every for sort in self._apart(i)]
        for i in sorted({*every}.difference(*(sort.models for sort in self.sorts))):
            together = self._together(i)
            self.sorts += together
            if not together:
                self.unserved.append(Unserved(i, f"{question.names[i]}: {self._why(i)}"))
        refused = {each.model for each in self.unserved}
        # Numbers of models stay those of the command, though some of them are not served.
        self.models = [i for i in every if i not in refused]
        if question.may_share and len(self.models) > 1:
            self.sorts += self._sharing()

    def _plan_models(self) -> None:
        asked = self.question

        def options(i: int) -> dict[tuple[int, int], MachineOption]:
            each, kinds = asked.wanted.each, asked.fleet.kinds
            return options_of(asked.models[i], asked.request, kinds, each, asked.may_share)

        # A chunk for each round of processes, so that an interrupt keeps the chunks before it.
        count = cores()
        try:
            for at in range(0, len(asked.models), count):
                chunk = range(at, min(at + count, len(asked.models)))
                asked.step(f"planning model {at + 1} of {len(asked.models)}")
                for i, options_found in zip(chunk, in_processes(options, chunk), strict=True):
                    if isinstance(options_found, AutolayersError):
                        raise options_found
                    self.options[i] = options_found
        except KeyboardInterrupt:
            # Not even the first model is planned: there is no answer to give.
            if not self.options[0]:
                raise
            self.interrupted = True

    def _apart(self, i: int) -> list[Sort]:
        """Return a sort of a model for each part of a machine where it serves anyone, and more than
        smaller parts do."""
        options = self.options[i]
        # Nothing keeps up with reading: then one user is better served slowly than not at all,
        # where nothing is promised.
        slow = not self.question.wanted.each.promise and not any(
            option.users for option in options.values()
        )
        sorts = []
        for (kind, gpus), option in options.items():
            users = int(option.fits) if slow else option.users
            # A larger part must serve more than smaller ones on the same GPUs.
            if users and all(
                option.users > less.users * (gpus // size)
                for (same, size), less in options.items()
                if same == kind and size < gpus
            ):
                sorts.append(Sort(((kind, gpus),), ((i, users),)))
        return sorts

    def _together(self, i: int) -> list[Sort]:
        """Return the machines by RPC, as few as hold a model that fits on none, of these up to
        three sorts with the least memory."""
        if not self.options[i] or any(option.fits for option in self.options[i].values()):
            return []
        spanning: list[Sort] = []
        for count in range(2, min(_SPAN, len(self.question.fleet.machines)) + 1):
            # Six sets of kinds of each number of machines.
            for _, takes in sorted(self._spans(i, count))[:6]:
                sort = self._spanning(i, takes)
                spanning += [] if sort is None else [sort]
                if len(spanning) == 3:
                    break
            # Fewer machines are always taken: each one more adds a hop to every token.
            if spanning:
                break
        return spanning

    def _spans(self, i: int, count: int) -> Iterator[tuple[int, Takes]]:
        """Yield what `count` whole machines that may hold a model take, the head's kind first, and
        their memory."""
        kinds = self.question.fleet.kinds
        # Combinations of more kinds would be too numerous.
        # 16 kinds: those with the most memory.
        largest = sorted(range(len(kinds)), key=lambda kind: -memory_of(kinds[kind]))[:16]
        for members in combinations_with_replacement(sorted(largest), count):
            numbers = Counter(members)
            # A kind with one machine cannot give two.
            enough = all(len(kinds[kind].machines) >= n for kind, n in numbers.items())
            memory = sum(memory_of(kinds[kind]) for kind in members)
            # Weights are not all that a model needs, but some of them may stay on the disk.
            if not enough or memory < 0.8 * self.question.models[i].size:
                continue
            # The first of `takes` is the head, where llama-server runs; the others run
            # rpc-servers, which need a device.
            for head in numbers:
                if all(kinds[kind].devices for kind in numbers - Counter([head])):
                    order = [head, *(kind for kind in numbers if kind != head)]
                    gpus = [numbers[kind] * kinds[kind].gpus for kind in order]
                    yield memory, tuple(zip(order, gpus, strict=True))

    def _spanning(self, i: int, takes: Takes) -> Sort | None:
        """Return the sort of a model on these machines together; None where they do not hold it or
        keep the promise."""
        each = self.question.wanted.each
        use = self.use(i, takes, replace(each, grows=True))
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

    def use(self, i: int, takes: Takes, users: Users) -> Use | None:
        """Return a model on the first machines of these kinds."""
        fleet = self.question.fleet
        head, *boxes = (
            # Any machines of the kind: all have the same devices. The places come later.
            served_at(fleet.kinds[kind], fleet.kinds[kind].machines[at].name)
            for kind, gpus in takes
            for at in range(gpus // fleet.kinds[kind].gpus)
        )
        boxes = [replace(box, link=fleet.link) for box in boxes]
        request = self.question.request.with_goals(users=users)
        try:
            return use_of(self.question.models[i], request, Cluster(head, tuple(boxes)), boxes)
        except AutolayersError:
            return None

    def _sharing(self) -> list[Sort]:
        """Return the sorts of several models on one GPU."""
        asked = self.question
        weights = {i: asked.weights[i] for i in self.models}
        sorts = []
        for number, kind in enumerate(asked.fleet.kinds):
            # Of an integrated GPU or a Mac the machine is one part.
            if not (len(kind.devices) == 1 or (bool(kind.devices) and kind.gpus > 1)):
                continue
            at = number, 1
            # A model may have no option here: its search was interrupted.
            fitting = {i: self.options[i][at] for i in self.models if self.options[i].get(at)}
            sorts += [
                Sort((at,), serves)
                for serves in sharers(fitting, asked.part(at), weights, asked.wanted.each)
            ]
        return sorts

    # --- why a model is not served

    def _why(self, i: int) -> str:
        options = self.options[i]
        if not options:
            return "not planned, as the search was interrupted"
        # It fits somewhere, but is too slow there for what was promised.
        if any(option.fits for option in options.values()):
            best = max(option.best for option in options.values())
            return (
                f"no machine gives {self.question.promise}; the fastest gives one user {best:.1f}"
            )
        refused = [option.refused for option in options.values() if option.refused]
        if len(refused) == len(options):
            return refused[0]
        kinds = self.question.fleet.kinds
        # What fits nowhere alone: the closest is shown, or the closest span.
        (kind, _), closest = min(
            ((at, option) for at, option in options.items() if option.missing),
            key=lambda row: row[1].missing,
        )
        lacking, takes = self.short.get(i, (closest.missing, ((kind, kinds[kind].gpus),)))
        names = [
            box.name
            for number, gpus in takes
            for box in kinds[number].machines[: gpus // kinds[number].gpus]
        ]
        most_together = min(_SPAN, len(self.question.fleet.machines))
        together = f" and no {most_together} together hold" if most_together > 1 else " holds"
        card = self._card(i)
        would = f"{card} would hold it" if card else "no card that is known holds it alone"
        return (
            f"no machine{together} it: {human(lacking)} are missing on {' + '.join(names)}; {would}"
        )

    def _card(self, i: int) -> str:
        """Return a card, or two, that would hold a model."""
        asked = self.question
        # 4096 tokens as in --fit, if no context is wanted.
        trial = WantedModel(asked.models[i], asked.request, asked.wanted.each.context or 4096)
        for count in (1, 2):
            for name, card in by_size():
                # The input layer stays in RAM, so a card may be somewhat smaller than the file.
                if card.bandwidth and card.usable * count << 20 > asked.models[i].size * 0.9:
                    runs = trial.on(name, card, count)
                    if runs is not None:
                        return f"{'2 x ' if count == 2 else ''}{card.description}"
                if trial.exhausted:
                    return ""
        return ""


def memory_of(kind: MachineKind) -> int:
    """Return the bytes that a launch may use on a machine of a kind."""
    # Devices in RAM share the host's memory, so it would be counted twice.
    own = sum(device.free for device in kind.devices if not device.in_ram)
    return own + kind.host.available
