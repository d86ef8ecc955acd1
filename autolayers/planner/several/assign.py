"""Which launch of each model, so that all fit at once and their requests take the fewest weighted
seconds.

    assign([Choice([Option(...), ...]), Choice([...], weight=3)], {"CUDA0": 24 << 30})

A branch and bound over one option per model. It is exact unless it exceeds STEPS steps or LOOKED
options, there are more than MOST_EXACT models, or more than one of them is split over devices. Then
it is the best choice found, and never worse than serving the models one after another in their
order.
"""

from __future__ import annotations

from itertools import groupby, islice, permutations

from ...records import dataclass
from .servers import held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...flags.params import Params
    from .servers import Servers

# Bounds an answer's time: the branches multiply with every model and option.
STEPS = 10_000
LOOKED = 200_000  # options that are looked at in all steps: models may have hundreds each
_TIES = 500  # steps during which equally good choices are explored too
# Of more models no branches are searched, and what they measured is not kept
# (sharing.Sharing.many).
MOST_EXACT = 10
# Each is a layout of all layers over what is left (options.Launches.cut).
MOST_CUTS = 24  # how often to try splitting a model over the leftover memory
# a choice with a split model must be this much better: each needs many layouts to find
CUT_GAIN = 1.005
# Sums of the same seconds in another order differ by rounding.
EQUAL = 1 + 1e-9


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

    def fits(self, left: Mapping[str, int], ram: int | None) -> bool:
        """Return whether the devices and system memory have this much left."""
        if ram is not None and self.ram > ram:
            return False
        return all(size <= left[name] for name, size in self.takes.items())


@dataclass(frozen=True)
class ModelOptions:
    """The options of one model. `cut(left, ram left)` finds one split over several devices within
    the leftover memory; its price is at least `cut_price`."""

    options: Sequence[Option]
    weight: float = 1.0
    cut: Callable[[Mapping[str, int], int | None], Option | None] | None = None
    # Infinite without `cut`, so that the least price is that of the options.
    cut_price: float = float("inf")
    # a lower bound of `cut`'s price
    cut_bound: Callable[[Mapping[str, int]], float] = lambda left: 0.0


@dataclass(frozen=True)
class Assignment:
    """One option per model; `exact`: no other choice has a lower sum of weighted prices."""

    chosen: tuple[Option, ...]
    price: float
    exact: bool


def assign(
    choices: Sequence[ModelOptions],
    limits: Mapping[str, int],
    ram: int | None = None,
    alike: Mapping[str, object] | None = None,
    servers: Servers | None = None,
) -> Assignment | None:
    """Return the best choice. Ties: fewest models per device, then most even use. None if none was
    found. `alike`: devices with equal values are the same to every model; `servers`: devices that
    one model must have to itself."""
    return BranchAndBound(choices, limits, ram, alike or {}, servers or {}).best()


class Left:
    """What the options that are taken so far, by model, leave of devices and system memory."""

    def __init__(self, limits: Mapping[str, int], ram: int | None, servers: Servers) -> None:
        self.left = dict(limits)
        self.ram = ram
        self.limits = limits
        self.servers = servers
        self.chosen: dict[int, Option] = {}

    def place(self, i: int, options: Sequence[Option]) -> bool:
        """Take one of a model's options if any fits: the fastest, on the emptiest device."""
        fitting = [option for option in options if option.fits(self.left, self.ram)]
        if not fitting:
            return False

        def rank(option: Option) -> tuple[float, int]:
            return option.price, -min((self.left[name] for name in option.takes), default=0)

        self.take(i, min(fitting, key=rank))
        return True

    def may(self, option: Option) -> bool:
        # One device of an RPC server takes all of that server (servers.py).
        return (self.ram is None or option.ram <= self.ram) and all(
            size <= self.left[name]
            for name, size in held(option.takes, self.limits, self.servers).items()
        )

    def take(self, i: int, option: Option) -> None:
        self.chosen[i] = option
        self._change(option, -1)

    def give_back(self, i: int) -> None:
        self._change(self.chosen.pop(i), 1)

    def _change(self, option: Option, sign: int) -> None:
        for name, size in held(option.takes, self.limits, self.servers).items():
            self.left[name] += sign * size
        if self.ram is not None:
            self.ram += sign * option.ram


def _price(option: Option) -> float:
    return option.price


class BranchAndBound:
    """One search; `complete`: nothing was left out, even if the answer is None."""

    def __init__(
        self,
        choices: Sequence[ModelOptions],
        limits: Mapping[str, int],
        ram: int | None,
        alike: Mapping[str, object],
        servers: Servers,
        part: int = 1,  # of STEPS and LOOKED: a quarter with 4
    ) -> None:
        self.choices = choices
        # of each model, the cheapest first: those of the same price together, with what they hold
        self.by_price = [
            [
                [(option, tuple(held(option.takes, limits, servers).items())) for option in same]
                for _, same in groupby(sorted(choice.options, key=_price), key=_price)
            ]
            for choice in choices
        ]
        self.limits = limits
        self.alike = {name: str(kind) for name, kind in alike.items()}
        self.state = Left(limits, ram, servers)
        # Takes no memory from the others, so that no choice of all models can cost less.
        self.lower_bounds = [
            choice.weight * min([choice.cut_price, *(o.price for o in choice.options)])
            for choice in choices
        ]
        # price, crowding, options
        self.best_so_far: tuple[float, float, tuple[Option, ...]] | None = None
        self.steps = self.cuts = self.looked = 0
        self.most_steps, self.most_looked = STEPS // part, LOOKED // part

    @property
    def complete(self) -> bool:
        return self._within and self.cuts < MOST_CUTS

    @property
    def _within(self) -> bool:
        return self.steps <= self.most_steps and self.looked <= self.most_looked

    def best(self) -> Assignment | None:
        # The largest model first, as it fits in the fewest places. One that only a split can hold
        # counts as the largest.
        by_size = sorted(
            range(len(self.choices)),
            key=lambda i: (
                -max(
                    (sum(option.takes.values()) for option in self.choices[i].options),
                    default=1 << 62,
                )
            ),
        )
        # Give the branches a price to beat. The models' own order is the promise that no answer is
        # worse than planning one after the other.
        for order in (range(len(self.choices)), by_size, by_size[::-1]):
            self._one_after_another(order)
        exact = len(self.choices) <= MOST_EXACT
        if exact:
            # rest[k]: what the models of by_size[k:] cost at least.
            rest = [0.0]
            for i in reversed(by_size):
                rest.append(rest[-1] + self.lower_bounds[i])
            self._branch(by_size, 0, 0.0, rest[::-1], ())
            exact = self.complete
        else:
            self._improve()
        return (
            None
            if self.best_so_far is None
            else Assignment(self.best_so_far[2], self.best_so_far[0], exact)
        )

    def _fitting(self, i: int) -> Iterator[Option]:
        """Yield the options of a model that still fit: the cheapest first; on a tie, on the
        emptiest device. What is left has to be the same whenever the next one is asked for."""
        left, ram = self.state.left, self.state.ram

        def emptiest(option: Option) -> int:
            return -min((left[name] - size for name, size in option.takes.items()), default=0)

        for same in self.by_price[i]:
            fitting = []
            for option, held_of in same:
                # As `Left.may`, without a call: this is most of a search's time
                if ram is not None and option.ram > ram:
                    continue
                for name, size in held_of:
                    if size > left[name]:
                        break
                else:
                    fitting.append(option)
            yield from sorted(fitting, key=emptiest) if len(fitting) > 1 else fitting

    def _cut(self, i: int) -> Option | None:
        """Return the model split over several devices within the leftover memory."""
        cut = self.choices[i].cut
        if cut is None or self.cuts >= MOST_CUTS:
            return None
        # Counted even if it fails: the layout took its time.
        self.cuts += 1
        option = cut(self.state.left, self.state.ram)
        return option if option is not None and self.state.may(option) else None

    def _keep(self) -> None:
        """Keep the current choice, if it is the best so far."""
        chosen = tuple(option for _, option in sorted(self.state.chosen.items()))
        price = sum(
            choice.weight * option.price
            for choice, option in zip(self.choices, chosen, strict=True)
        )
        # Of equal sums the most even use: what a device has left becomes context later
        # (multi.SharedOut).
        crowding = sum(
            (1 - self.state.left[name] / limit) ** 2
            + sum(name in option.takes for option in chosen) ** 2
            for name, limit in self.limits.items()
            if limit > 0
        )
        if (
            self.best_so_far is None
            or price * EQUAL < self.best_so_far[0]
            or (price <= self.best_so_far[0] * EQUAL and crowding < self.best_so_far[1])
        ):
            self.best_so_far = price, crowding, chosen

    def _one_after_another(self, order: Sequence[int]) -> None:
        """Give each model in turn the best option that the models before it leave."""
        for i in order:
            fitting = list(islice(self._fitting(i), 1))
            # Finding a split is slow, so only where it could be cheaper than what is known to fit.
            if not fitting or self.choices[i].cut_price < fitting[0].price:
                fitting += [option for option in [self._cut(i)] if option is not None]
            if not fitting:
                break
            self.state.take(i, min(fitting, key=lambda option: option.price))
        # Only if every model has its place.
        else:
            self._keep()
        for i in list(self.state.chosen):
            self.state.give_back(i)

    def _branch(
        self,
        order: Sequence[int],
        at: int,
        price: float,
        rest: Sequence[float],
        cuts: tuple[int, ...],
    ) -> None:
        """Try all choices for the models of order[at:], except those that cannot beat the best so
        far. `rest` are lower bounds of the cost of the models from each position on, `cuts` the
        models that are split over the leftover memory at the end."""
        if at == len(order):
            self._with_cuts(cuts)
            return
        i = order[at]
        choice = self.choices[i]
        seen: set[object] = set()
        self.looked += len(choice.options)
        for option in self._fitting(i):
            self.steps += 1
            own = price + choice.weight * option.price
            if not self._promising(own + rest[at + 1]):
                # the other options of this model cost at least as much
                break
            # On a second device of a kind, with as much left, everything would be the same.
            # The key by which an option equals one on another device
            where = sorted(
                (self.alike.get(name, name), self.state.left[name], size)
                for name, size in option.takes.items()
            )
            alike = (option.price, option.ram, tuple(where))
            if alike not in seen:
                seen.add(alike)
                self.state.take(i, option)
                self._branch(order, at + 1, own, rest, cuts)
                self.state.give_back(i)
        # Splits are laid out last, when it is known what the other models leave.
        own = price + choice.weight * choice.cut_price
        if choice.cut is not None and self._promising(
            (own + rest[at + 1]) * (CUT_GAIN if self.best_so_far else 1)
        ):
            self._branch(order, at + 1, own, rest, (*cuts, i))

    def _promising(self, price: float) -> bool:
        if not self._within:
            return False
        if self.best_so_far is None:
            return price < float("inf")
        # Equal prices are searched only at first, for the crowding: with many equal devices they
        # are too numerous.
        return (
            price <= self.best_so_far[0] * EQUAL
            if self.steps < _TIES
            else price * EQUAL < self.best_so_far[0]
        )

    def _with_cuts(self, cuts: tuple[int, ...]) -> None:
        """Try the current choice with these models split over the leftover memory, in every
        order."""
        price = self._bound(cuts)
        # A split has to promise half a per cent: finding its layout takes a whole search of its
        # own.
        if not self._promising(price * (CUT_GAIN if cuts and self.best_so_far else 1)):
            return
        # Who is split first gets the most of what is left. Three in all six orders would use up
        # MOST_CUTS.
        for order in permutations(cuts) if len(cuts) < 3 else [cuts]:
            for i in order:
                option = self._cut(i)
                if option is None:
                    break
                self.state.take(i, option)
            else:
                self._keep()
            for i in order:
                if i in self.state.chosen:
                    self.state.give_back(i)

    def _bound(self, cuts: tuple[int, ...]) -> float:
        """Return the least price of the current choice with these models split."""
        price = sum(
            self.choices[i].weight * option.price for i, option in self.state.chosen.items()
        )
        return price + sum(
            self.choices[i].weight * self.choices[i].cut_bound(self.state.left) for i in cuts
        )

    def _improve(self) -> None:
        """Give one model at a time another option than in the best choice, as long as that
        helps."""
        while self.best_so_far is not None and self.steps <= self.most_steps:
            before = self.best_so_far
            for i, option in enumerate(before[2]):
                self.state.take(i, option)
            for i in range(len(before[2])):
                self.state.give_back(i)
                # The cheapest four, so that a round over many models stays well below STEPS.
                for other in islice(self._fitting(i), 4):
                    self.steps += 1
                    self.state.take(i, other)
                    self._keep()
                    self.state.give_back(i)
                self.state.take(i, before[2][i])
            for i in list(self.state.chosen):
                self.state.give_back(i)
            # By price and crowding: the options themselves have no order.
            if self.best_so_far[:2] >= before[:2]:
                return
