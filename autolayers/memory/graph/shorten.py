"""Which layers to build so that all are known: of layers that repeat a few stand for the rest.

A layer changes the allocator in a way that depends on the state it finds, on what it is, on where the layer before it
runs and on what the next one is: the scheduler looks across both borders, and what the next one needs (the last one: which
rows are wanted) may be copied early. That is a layer's window. So the layers that are built yield a table
(state before, window) -> state after, and the whole model is walked through that table: every layer that was left out must
be in it, and each stretch left out must end in the state in which building went on. Then nothing would have changed: no
repetition is taken for granted, and no layer's peak is missed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

_AT_FIRST = 2     # times a window is built where nothing is known of the model yet
_TRIES = 4        # before all layers are built


class Shortened:
    """The layers to build, and what they stand for.

    `kinds` say of each layer what its nodes depend on, `outlines` the same without the types of host weights, `places`
    where it runs and its weights are. `jumps` are (index in `layers`, layer): after this one, built last, the model goes
    on as after that one. `learned` is kept between the launches of a model: how often a kind of layer must be built.
    """

    def __init__(self, kinds: Sequence[Hashable], outlines: Sequence[Hashable], places: Sequence[Hashable],
                 learned: dict[object, int]) -> None:
        final = {outline: i for i, outline in enumerate(outlines)}.values()     # may be the last to read an input
        n = len(kinds)
        around = [(places[i - 1] if i else None, kind, i in final, kinds[i + 1] if i + 1 < n else None, i + 2 == n)
                  for i, kind in enumerate(kinds)]
        self.windows = _numbers(around)
        # and with what is in the layer before: each such meeting is built at least once
        self._pairs = _numbers(zip([None, *outlines], self.windows, [*outlines[1:], None]))     # noqa: B905
        self._names = list(dict.fromkeys(around))
        self._learned = learned
        self._keep = [learned.get(name, _AT_FIRST) for name in self._names]   # how often each is built before one is left out
        self._cycle = [learned.get(("cycle", name), 2) for name in self._names]     # after how many layers the state is back
        self._tries = _TRIES
        self.layers: list[int] = []
        self.jumps: list[tuple[int, int]] = []
        if "all" in learned:
            self.build_all()
        else:
            self._choose()

    def _choose(self) -> None:
        windows, keep, pairs = self.windows, self._keep, self._pairs
        n = len(windows)
        self.layers, self.jumps = [], []
        seen = [0] * len(keep)
        met = set()
        i = 0
        while i < n:
            window = windows[i]
            self.layers.append(i)
            seen[window] += 1
            met.add(pairs[i])
            if seen[window] >= keep[window]:
                furthest, cycle = i, self._cycle[window]
                for j in range(i + 1, n):
                    other = windows[j]
                    if seen[other] < keep[other] or pairs[j] not in met:
                        break
                    if pairs[j] == pairs[i] and (j - i) % cycle == 0:
                        furthest = j
                if furthest > i:
                    self.jumps.append((len(self.layers) - 1, furthest))
                    i = furthest
            i += 1
        if len(self.layers) > n * 7 // 8:        # not worth the risk of another try
            self.build_all()

    def left_out(self) -> set[int]:
        """The windows of the layers that are not built."""
        return {self.windows[i] for k, last in self.jumps for i in range(self.layers[k] + 1, last + 1)}

    def proven(self, states: Sequence[Hashable]) -> bool:
        """Whether the states after each built layer prove that the others change nothing; if not, more are chosen."""
        if len(states) != len(self.layers):
            return self.build_all()
        table: dict[tuple[object, int], object] = {}
        needed = [0] * len(self._names)
        seen = [0] * len(self._names)
        before: object = None
        for il, state in zip(self.layers, states, strict=True):
            window = self.windows[il]
            seen[window] += 1
            known = table.get((before, window))
            if known is None:
                table[before, window] = state
                needed[window] = seen[window]
            elif known != state:          # there is more to this layer than we know
                self._learned["all"] = 1
                return self.build_all()
            before = state
        unknown: set[int] = set()
        off = False
        for k, last in self.jumps:
            first, state, back = self.layers[k], states[k], 0
            for i in range(first + 1, last + 1):
                after = table.get((state, self.windows[i]))
                if after is None:
                    unknown.add(self.windows[i])
                else:
                    state = after
                if not back and state == states[k] and self._pairs[i] == self._pairs[first]:
                    back = i - first
            if state != states[k]:
                off = True
                window = self.windows[first]
                self._cycle[window] = self._learned["cycle", self._names[window]] = back or self._cycle[window] * 3
        if unknown or off:
            return self.build_more(unknown)
        for name, count in zip(self._names, needed, strict=True):
            self._learned[name] = max(count, self._learned.get(name, 1))
        return True

    def build_more(self, unknown: Iterable[int]) -> bool:
        """Chooses anew, with more of the layers of these windows."""
        self._tries -= 1
        if not self._tries:
            return self.build_all()
        for window in unknown:
            self._keep[window] += self._keep[window] // 2 or 1
            self._learned[self._names[window]] = self._keep[window]
        self._choose()
        return False

    def build_all(self) -> bool:
        """Chooses every layer, and says whether that is what was chosen before."""
        before = self.jumps
        self.layers, self.jumps = list(range(len(self.windows))), []
        return not before


def _numbers(things: Iterable[Hashable]) -> list[int]:
    """Equal things get equal numbers, from 0 on."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(thing, len(known)) for thing in things]
