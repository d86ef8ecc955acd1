"""Which launch of each model, so that all fit at once and their requests take the fewest weighted
seconds.

    Assigning([ModelOptions([...]), ModelOptions([...], weight=3)], Room(sizes)).best()

All choices of one option per model are tried, but for those that cannot beat the best so far. That
is exact unless LOOKED options are looked at first, or more than one model is split over devices.
Then it is the best choice found, and never worse than serving the models one after another in their
order.
"""

from __future__ import annotations

from itertools import groupby, permutations

from ...records import dataclass, field, replace
from ..assignment import Column, Left, choices, has_solver, solved
from ..evaluate import RAM_MARGIN
from .servers import held, servers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ...flags.params import Params
    from ...machine import Machine
    from ..assignment import Rule
    from .servers import Servers

RAM = "RAM"  # its name beside those of devices
UNLIMITED = 1 << 62  # bytes of it that nobody knows
# Bounds an answer's time: the branches multiply with every model and option.
LOOKED = 200_000  # options that are looked at: models may have hundreds each
STEP = 8  # to try one takes as long as to look at this many
_SOLVED = 50_000  # the same for HiGHS
# Each is a layout of all layers over what is left (options.Launches.cut).
MOST_CUTS = 24  # how often to try splitting a model over the leftover memory
# a choice with a split model must be this much better: each needs many layouts to find
CUT_GAIN = 1.005
# Sums of the same seconds in another order differ by rounding.
EQUAL = 1 + 1e-9
# Of more models not every set is looked at, and what they measured is not kept.
MOST_EXACT = 10


@dataclass(frozen=True)
class Option:
    """A launch that a model may have: bytes on each device, including the margin, and bytes of
    system memory that are certain. `seconds` is the time of its request, `price` what the search
    minimises. `whole`: all of it is on devices."""

    params: Params
    # Bytes, e.g. {"CUDA0": 9_663_676_416}.
    takes: Mapping[str, int]
    ram: int
    seconds: float
    # `seconds`, or more where layers are split over devices (options.Launches._price).
    price: float
    whole: bool = True
    measured: bool = True  # else sizes are estimates

    @property
    def needs(self) -> dict[str, int]:
        """What it takes of devices and of RAM."""
        return {**self.takes, RAM: self.ram}

    def fits(self, left: Mapping[str, int]) -> bool:
        """Return whether the devices and system memory have this much left."""
        return all(size <= left[name] for name, size in self.needs.items())


@dataclass(frozen=True)
class ModelOptions:
    """The options of one model. `cut(left)` finds one split over several devices within the
    leftover memory; its price is at least `cut_price`."""

    options: Sequence[Option]
    weight: float = 1.0
    cut: Callable[[Mapping[str, int]], Option | None] | None = None
    # Infinite without `cut`, so that the least price is that of the options.
    cut_price: float = float("inf")
    # a lower bound of `cut`'s price
    cut_bound: Callable[[Mapping[str, int]], float] = lambda left: 0.0

    @property
    def least_cut(self) -> float:
        """The least weighted price of `cut`."""
        return self.weight * self.cut_price


@dataclass(frozen=True)
class Assignment:
    """One option per model; `exact`: no other choice has a lower sum of weighted prices."""

    chosen: tuple[Option, ...]
    price: float
    exact: bool


@dataclass(frozen=True)
class Room:
    """What models share: bytes of each device and of RAM. `servers`: devices that one model must
    have to itself; `alike`: devices with equal values are the same to every model."""

    sizes: Mapping[str, int]
    servers: Servers = field(default_factory=dict)
    alike: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, machine: Machine) -> Room:
        # Everything else on the machine needs RAM_MARGIN once.
        ram = UNLIMITED if machine.ram is None else machine.ram - RAM_MARGIN
        # Equal cards differ in free memory, but what is left of them is compared anyway.
        alike = {
            device.name: str(replace(device, name="", uuid=None, pci_id=None, free=0))
            for device in machine.devices
        }
        return cls({**machine.limits, RAM: ram}, servers_of(machine.devices), alike)

    @property
    def bytes(self) -> int:
        """Those of all devices."""
        return sum(self.sizes.values()) - self.sizes[RAM]

    def column(self, option: Option, weight: float = 1.0) -> Column:
        # One device of an RPC server takes all of that server (servers.py).
        takes = held(option.needs, self.sizes, self.servers)
        return Column(option, tuple(takes.items()), weight * option.price)

    def columns(self, options: Sequence[Option], weight: float = 1.0) -> list[Column]:
        """Return options, the cheapest first."""
        return sorted([self.column(option, weight) for option in options], key=_price)


def part(machine: Machine, room: Mapping[str, int]) -> Machine:
    """Return the machine with this much of each device, and of RAM besides RAM_MARGIN."""
    return replace(
        machine,
        limits={name: room.get(name, 0) for name in machine.limits},
        ram=None if machine.ram is None else RAM_MARGIN + room[RAM],
    )


def fitting(columns: Sequence[Column], left: Left) -> Iterator[Column]:
    """Yield the columns that still fit, the cheapest first: on a tie, on the emptiest device."""
    for _, same in groupby(columns, key=_price):
        has_room = [column for column in same if left.has(column.takes)]
        yield from sorted(
            has_room,
            key=lambda column: (
                -min(
                    (left.left[name] - size for name, size in column.what.takes.items()), default=0
                )
            ),
        )


def _price(column: Column) -> float:
    return column.price


class Assigning:
    """One search; `complete`: nothing was left out, even if the answer is None."""

    def __init__(
        self,
        models: Sequence[ModelOptions],
        room: Room,
        most_looked: int = LOOKED,
        solver: bool = True,
    ) -> None:
        self.models = models
        self.room = room
        # Of each model, by weighted price; who may be split also has a column of no bytes.
        self.columns: list[list[Column]] = []
        for model in models:
            best: list[tuple[Column, dict[Any, int]]] = []
            for column in room.columns(model.options, model.weight):
                takes = dict(column.takes)
                # What takes no less of anything than a cheaper one is never better.
                if not any(
                    all(size <= takes.get(name, -1) for name, size in other.takes)
                    for other, _ in best
                ):
                    best.append((column, takes))
            self.columns.append([column for column, _ in best])
        self.left = Left(room.sizes)
        # price, crowding, options
        self.best_so_far: tuple[float, float, tuple[Option, ...]] | None = None
        self.cuts = self.looked = 0
        self.solver = solver and has_solver()
        # HiGHS is faster where a short search does not end, but knows no splits.
        self.splits = any(model.cut for model in models)
        short = self.solver and not self.splits
        self.most_looked = most_looked // 10 if short else most_looked

    @property
    def complete(self) -> bool:
        return self.looked <= self.most_looked and self.cuts < MOST_CUTS

    def best(self, first: bool = False) -> Assignment | None:
        """Return the best choice, or the `first` that was found. Ties: fewest models per device,
        then most even use. None if none was found."""
        # The largest model first, as it fits in the fewest places. One that only a split can hold
        # counts as the largest.
        order = sorted(
            range(len(self.models)),
            key=lambda i: (
                -max(
                    (sum(option.takes.values()) for option in self.models[i].options),
                    default=1 << 62,
                )
            ),
        )
        proven = False
        # Give the branches a price to beat. The models' own order is the promise that no answer is
        # worse than planning one after the other.
        for models in (range(len(order)), order, order[::-1]):
            self._one_after_another(models, self.columns)
            if first and self.best_so_far:
                break
        else:
            for chosen in self._promising_choices(order):
                self._with_cuts(chosen)
                if first and self.best_so_far:
                    break
            if self.solver and self.looked > self.most_looked:
                proven = self._solve()
        if self.best_so_far is None:
            return None
        return Assignment(self.best_so_far[2], self.best_so_far[0], proven or self.complete)

    def _solve(self) -> bool:
        """Keep the best choice without a split, by HiGHS; return whether it is proven to be."""
        columns = [(i, column) for i, mine in enumerate(self.columns) for column in mine]
        rules: list[Rule] = []
        # One of each model: at least, and at most
        for i in range(len(self.models)):
            for sign in (1.0, -1.0):
                rules.append((sign, {at: sign for at, (j, _) in enumerate(columns) if i == j}))
        for name, size in self.room.sizes.items():
            # In parts of the room: HiGHS compares with a tolerance.
            parts = {
                at: -dict(column.takes).get(name, 0) / max(1, size)
                for at, (_, column) in enumerate(columns)
            }
            rules.append((-1.0, parts))
        prices = {at: column.price for at, (_, column) in enumerate(columns)}
        ones = [1] * len(columns)
        found = solved(prices, rules, ones, ones, 2.0, 1e-4)
        self.looked += _SOLVED
        if found.x is None:
            return False
        chosen = {
            i: each for (i, each), number in zip(columns, found.x, strict=True) if number > 0.5
        }
        for column in chosen.values():
            self.left.take(column.takes)
        fits = min(self.left.left.values()) >= 0
        if fits:
            self._keep(chosen)
        for column in chosen.values():
            self.left.give_back(column.takes)
        return fits and found.status == 0 and not self.splits

    def _one_after_another(self, order: Sequence[int], columns: Sequence[Sequence[Column]]) -> None:
        """Give each model in turn the best option that the models before it leave."""
        chosen: dict[int, Column] = {}
        for i in order:
            column = next(fitting(columns[i], self.left), None)
            # Finding a split is slow, so only where it could be cheaper than what is known to fit.
            if column is None or self.models[i].least_cut < column.price:
                both = [each for each in (column, self._cut(i)) if each is not None]
                column = min(both, key=_price, default=None)
            if column is None:
                break
            chosen[i] = column
            self.left.take(column.takes)
        # Only if every model has its place.
        else:
            self._keep(chosen)
        for column in chosen.values():
            self.left.give_back(column.takes)

    def _promising_choices(self, order: Sequence[int]) -> Iterator[dict[int, Column]]:
        """Yield an option of each model, except choices that cannot beat the best so far. A model
        that is to be split has a column without an option."""
        splits = [[Column(None, (), model.least_cut)] if model.cut else [] for model in self.models]
        worth: Mapping[Any, float] = dict.fromkeys(self.room.sizes, 0.0)
        columns = self.columns
        # What bytes are worth tells a good choice, and its price what they are worth.
        for _ in range(3 if all(map(len, columns)) else 0):
            worth = self._worth(worth, splits)
            columns = [sorted(self._priced(mine, worth), key=_price) for mine in self.columns]
            # Each would lay out splits again.
            if not any(splits):
                self._one_after_another(order, columns)
        # What a choice costs besides its own bytes: the worth of all bytes is paid back.
        rooms = sum(worth[name] * size for name, size in self.room.sizes.items())
        # rest[k]: what the models of order[k:] cost at least, whatever the others leave.
        rest = [-rooms]
        for i in reversed(order):
            rest.insert(0, rest[0] + min(map(_price, columns[i] + splits[i]), default=float("inf")))

        def next_ones(chosen: Sequence[Column]) -> Iterator[Column]:
            i = order[len(chosen)]
            others = sum(map(_price, chosen)) + rest[len(chosen) + 1]
            self.looked += len(columns[i])
            seen: set[object] = set()
            for column in fitting(columns[i], self.left):
                self.looked += STEP
                if not self._promising(others + column.price):
                    # the other options of this model cost at least as much
                    break
                # On a second device of a kind, with as much left, everything would be the same.
                where = sorted(
                    (self.room.alike.get(name, name), self.left.left[name], size)
                    for name, size in column.what.takes.items()
                )
                alike = (column.price, column.what.ram, tuple(where))
                if alike not in seen:
                    seen.add(alike)
                    yield column
            # Splits are laid out last, when it is known what the other models leave.
            for split in splits[i]:
                if self._promising(others + split.price, CUT_GAIN):
                    yield split

        for chosen in choices(len(order), next_ones, self.left):
            yield dict(zip(order, chosen, strict=True))

    def _priced(self, columns: Sequence[Column], worth: Mapping[Any, float]) -> list[Column]:
        """Return columns whose price has what their bytes are worth."""
        self.looked += len(columns)
        return [
            Column(
                column.what,
                column.takes,
                column.price + sum([worth[name] * size for name, size in column.takes]),
            )
            for column in columns
        ]

    def _worth(
        self, worth: Mapping[Any, float], splits: Sequence[Sequence[Column]]
    ) -> Mapping[Any, float]:
        """Return better seconds that a byte of each room is worth: with these prices models that
        choose for themselves nearly share the room, so what they cost together is nearly the least
        of all choices (Lagrange's multipliers, by the subgradients of their dual)."""
        room = {name: size for name, size in self.room.sizes.items() if 0 < size < UNLIMITED}
        best = float("-inf"), worth
        known = self.best_so_far
        goal = known[0] if known else sum(max(map(_price, mine)) for mine in self.columns if mine)
        for turn in range(20):
            bound = -sum(worth[name] * size for name, size in room.items())
            taken: dict[Any, int] = dict.fromkeys(self.room.sizes, 0)
            for mine, split in zip(self.columns, splits, strict=True):
                column = min([*self._priced(mine, worth), *split], key=_price)
                bound += column.price
                for name, size in column.takes:
                    taken[name] += size
            if bound > best[0]:
                best = bound, worth
            # Parts of a room that are too much, or too little of what has a price
            over = {
                name: part
                for name, size in room.items()
                if (part := taken[name] / size - 1) > 0 or worth[name]
            }
            length = sum(part**2 for part in over.values())
            if not length or goal <= bound:
                break
            step = (goal - bound) / length * (1 - turn / 20) * (0.7 if known else 0.3)
            dearer = {name: worth[name] + step * part / room[name] for name, part in over.items()}
            worth = {**worth, **{name: max(0.0, price) for name, price in dearer.items()}}
        return best[1]

    def _with_cuts(self, chosen: dict[int, Column]) -> None:
        """Keep a choice, its models without an option split over the leftover memory: in every
        order."""
        cuts = [i for i, column in chosen.items() if column.what is None]
        if cuts:
            fixed = self._sum({i: each.what for i, each in chosen.items() if i not in cuts})
            bound = sum(
                self.models[i].weight * self.models[i].cut_bound(self.left.left) for i in cuts
            )
            # A split has to promise half a per cent: finding its layout takes a whole search of
            # its own.
            if not self._promising(fixed + bound, CUT_GAIN):
                return
        # Who is split first gets the most of what is left. Three in all six orders would use up
        # MOST_CUTS.
        for order in permutations(cuts) if len(cuts) < 3 else [cuts]:
            split: dict[int, Column] = {}
            for i in order:
                column = self._cut(i)
                if column is None:
                    break
                split[i] = column
                self.left.take(column.takes)
            else:
                self._keep({**chosen, **split})
            for column in split.values():
                self.left.give_back(column.takes)

    def _cut(self, i: int) -> Column | None:
        """Return the model split over several devices within the leftover memory."""
        cut = self.models[i].cut
        if cut is None or self.cuts >= MOST_CUTS:
            return None
        # Counted even if it fails: the layout took its time.
        self.cuts += 1
        option = cut(self.left.left)
        column = None if option is None else self.room.column(option, self.models[i].weight)
        return column if column and self.left.has(column.takes) else None

    def _sum(self, options: Mapping[int, Option]) -> float:
        return sum(self.models[i].weight * option.price for i, option in options.items())

    def _promising(self, price: float, gain: float = 1.0) -> bool:
        if self.looked > self.most_looked:
            return False
        if self.best_so_far is None:
            return price < float("inf")
        # Equal prices are searched only at first, for the crowding: with many equal devices they
        # are too numerous.
        if self.looked < self.most_looked // 10:
            return price * gain <= self.best_so_far[0] * EQUAL
        return price * gain * EQUAL < self.best_so_far[0]

    def _keep(self, columns: Mapping[int, Column]) -> None:
        """Keep a choice, if it is the best so far."""
        options = {i: column.what for i, column in sorted(columns.items())}
        price = self._sum(options)
        # Of equal sums the most even use: what a device has left becomes context later
        # (multi.shared_out).
        crowding = sum(
            (1 - self.left.left[name] / limit) ** 2
            + sum(name in option.takes for option in options.values()) ** 2
            for name, limit in self.room.sizes.items()
            if limit > 0 and name != RAM
        )
        if (
            self.best_so_far is None
            or price * EQUAL < self.best_so_far[0]
            or (price <= self.best_so_far[0] * EQUAL and crowding < self.best_so_far[1])
        ):
            self.best_so_far = price, crowding, tuple(options.values())
