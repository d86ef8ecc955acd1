"""Which device each of several models goes on, and what of it goes into RAM: the relevant options,
and the best choice of them. The first round has only launches that fit on one device. If some model
is then slower than alone on its best device, splits over devices, and weights in RAM on every
device, are added if they could reduce the sum."""

from __future__ import annotations

from ...memory.meter import BUDGET
from ...records import lazy, replace
from .assign import (
    CUT_GAIN,
    EQUAL,
    LOOKED,
    MOST_EXACT,
    Assigning,
    Assignment,
    ModelOptions,
    Option,
    Room,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .options import Home, Launches


class Sharing:
    """Several models on one machine."""

    def __init__(self, launches: Sequence[Launches], weights: Sequence[float], room: Room) -> None:
        self.launches = launches
        self.weights = weights
        self.room = room
        self.spilled: list[dict[Home, list[Option]]] = [{} for _ in launches]
        self.cut = [False] * len(launches)
        self.many = len(launches) > MOST_EXACT

    @property
    def spent(self) -> bool:
        """Whether the search has cost what one plan may: then nothing is compared that need not
        be."""
        return any(launches.meter.spent > BUDGET // 2 for launches in self.launches)

    @lazy
    def shortest(self) -> list[float]:
        """Weighted seconds of each model with all layers on the best device, if the memory
        sufficed."""
        return [
            weight * min(launches.ideal.values())
            for launches, weight in zip(self.launches, self.weights, strict=True)
        ]

    def best(self) -> Assignment | None:
        """Return the best launch of each; None if they do not fit together."""
        assignment = self._assign()
        # Each model is as fast as it can be on any device, so nothing else needs to be measured.
        if assignment is not None and not self.slower(assignment):
            return assignment
        # Splits keep their measurements, for which many models have no room.
        if not self.many:
            self.cut = [launches.divisible for launches in self.launches]
        self._spill(self._assign())
        best: Assignment | None = None
        # Rounds of measuring an estimated choice and choosing again.
        for _ in range(64):
            assignment = self._assign()
            if assignment is None:
                return best
            # An estimated choice has to gain more if it splits a model.
            split = any(option.params.tensor_split for option in assignment.chosen)
            gain = CUT_GAIN if split else EQUAL
            if best is not None and (best.price <= assignment.price * gain or self.spent):
                return replace(best, exact=best.exact and not self.spent)
            # All its sizes are measured, and those of other options at most too small.
            # Measure the estimated ones of these launches and adds their neighbours as options;
            # False if none was estimated
            changed = False
            for i, option in enumerate(assignment.chosen):
                if option.measured:
                    continue
                changed = True
                launches = self.launches[i]
                home = option.params.device
                if option.params.tensor_split is not None:
                    launches.measure_cut(option)
                else:
                    launches.option(option.params)
                    # The rungs around a measured one are options from now on: it may have taken
                    # more or less than estimated.
                    self.spilled[i][home] = (
                        launches.known(self.spilled[i].get(home, []))
                        if self.spent
                        else launches.spilled(home, None if self.many else option.params)
                    )
                self._settle(i)
            if not changed:
                return assignment
            # Estimated sizes are lower bounds, so what was chosen may not fit. Its real sizes make
            # the next choice better.
            sure = self._measured(assignment)
            if sure is not None and (best is None or sure.price < best.price):
                best = sure
        # An unmeasured choice that promises less may remain.
        return best and replace(best, exact=False)

    def alone(self, i: int) -> float:
        """Return the seconds of a model's request with the machine to itself, by the options known
        so far."""
        assignment = self._assign([i])
        return assignment.chosen[0].seconds if assignment else float("inf")

    def slower(self, assignment: Assignment) -> bool:
        """Return whether any model is slower than on its best device."""
        return assignment.price > sum(self.shortest) * EQUAL

    def without(self, j: int) -> Assignment | None:
        """Return the best launches of the others, from the options so far."""
        return self._assign([i for i in range(len(self.launches)) if i != j])

    def _assign(self, models: Sequence[int] | None = None) -> Assignment | None:
        choices = []
        for i in range(len(self.launches)) if models is None else models:
            spilled = [option for options in self.spilled[i].values() for option in options]
            choices.append(self.launches[i].choice(self.weights[i], spilled, self.cut[i]))
        # What is only compared, or after the budget is spent, is not worth a long search.
        quick = models is not None or self.spent
        search = Assigning(choices, self.room, LOOKED // 4 if quick else LOOKED, not quick)
        found = search.best()
        # In the time of a node (memory.meter) four options are looked at.
        self.launches[0].meter.spent += search.looked // 4
        return found

    def _spill(self, assignment: Assignment | None) -> None:
        """Adds launches partly in RAM if they could reduce the sum below this."""
        total = sum(self.shortest)
        # The same file twice has the same launches
        known: dict[tuple[int, Home], list[Option]] = {}
        for i, launches in enumerate(self.launches):
            homes = sorted(launches.ideal.items(), key=lambda row: row[1])
            for home, seconds in homes:
                if (id(launches), home) in known:
                    self.spilled[i][home] = known[id(launches), home]
                    continue
                # A model that fits nowhere alone still has its best device
                if self.spent and (assignment is not None or self.spilled[i]):
                    break
                # Helps only if this model here and all others at their best would beat the sum so
                # far.
                if (
                    assignment is None
                    or total - self.shortest[i] + self.weights[i] * seconds
                    < assignment.price / EQUAL
                ):
                    self.spilled[i][home] = launches.spilled(home)
                    known[id(launches), home] = self.spilled[i][home]
            self._settle(i)

    def _settle(self, i: int) -> None:
        """Drop what a model of many measured, unless the next one is the same file."""
        if self.many and self.launches[i] is not self.launches[(i + 1) % len(self.launches)]:
            self.launches[i].settle()

    def _measured(self, assignment: Assignment) -> Assignment | None:
        """Return the best of the launches that are measured by now, with these ones."""
        sure = []
        for i, (launches, weight) in enumerate(zip(self.launches, self.weights, strict=True)):
            spilled = [option for options in self.spilled[i].values() for option in options]
            own = launches.option(assignment.chosen[i].params)
            known = [*launches.whole, *launches.known(spilled), *([own] if own else [])]
            sure.append(ModelOptions([option for option in known if option.measured], weight))
        search = Assigning(sure, self.room, LOOKED // 4, solver=False)
        again = search.best()
        self.launches[0].meter.spent += search.looked // 4
        return again and replace(again, exact=assignment.exact)
