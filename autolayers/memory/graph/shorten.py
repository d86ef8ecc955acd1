"""Which layers to build so that all are known: of layers that repeat a few stand for the rest.

What a layer takes from the allocator and gives back follows from what it is, from where it and its neighbours run, and from
whether it is the first or the last of its kind: the first copies what the others read too, the last lets go of it. That is
a layer's window, and one layer of each window is built. Its script (allocator.py) is then played once for every layer of the
model, in order, from whatever state the buffers are in by then, so that no layer's peak is missed.

A script can be played again only where it stands for itself: it gives back what it took, its own inputs, and what the
layer before handed on, and leaves nothing but what it hands on itself. That is not assumed but seen; where it is not so, more
layers are built, in the end all.
"""

from __future__ import annotations

from .allocator import play

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from typing import Any

    from .allocator import Arena, Event, Place, Script

_NEAR = 3         # layers that a block taken ahead may wait for its own


class Shortened:
    """The layers to build, and what they stand for.

    `kinds` say of each layer what its nodes depend on, `outlines` the same without the types of host weights, `places`
    where it runs and its weights are. `jumps` are (index in `layers`, layer): between the two the model is built no further.
    `learned` is kept between the launches of a model: how often a kind of layer must be built.
    """

    def __init__(self, kinds: Sequence[Hashable], outlines: Sequence[Hashable], places: Sequence[Hashable],
                 learned: dict[object, int]) -> None:
        n = len(kinds)
        last = set({outline: i for i, outline in enumerate(outlines)}.values())
        first = {outline: n - 1 - i for i, outline in enumerate(reversed(outlines))}
        news = set(first.values())
        around = [(places[i - 1] if i else None, kind, i in news, i in last, outlines[i + 1] if i + 1 < n else None, i + 1 in news, i + 1 in last,
                   i + 2 == n) for i, kind in enumerate(kinds)]
        self.windows = _numbers(around)
        self._names = list(dict.fromkeys(around))
        self._learned = learned
        self._keep = [learned.get(name, 1) for name in self._names]       # how often each is built before one is left out
        self.layers: list[int] = []
        self.jumps: list[tuple[int, int]] = []
        self._choose()

    def _choose(self) -> None:
        windows, keep = self.windows, self._keep
        n = len(windows)
        self.layers, self.jumps = [], []
        seen = [0] * len(keep)
        i = 0
        while i < n:
            window = windows[i]
            self.layers.append(i)
            seen[window] += 1
            if seen[window] >= keep[window]:
                furthest = i
                for j in range(i + 1, n):
                    other = windows[j]
                    if seen[other] < keep[other]:
                        break
                    if other == window:
                        furthest = j
                if furthest > i:
                    self.jumps.append((len(self.layers) - 1, furthest))
                    i = furthest
            i += 1

    def build_more(self, unknown: Iterable[int]) -> None:
        """Chooses anew, with a second layer of each of these windows, or all where two were not enough."""
        n = len(self.windows)
        before = len(self.layers)
        for window in unknown:
            self._keep[window] = self._learned[self._names[window]] = 2 if self._keep[window] < 2 else n
        self._choose()
        if len(self.layers) <= before:
            self.build_all()

    def build_all(self) -> None:
        """Chooses every layer."""
        self.layers, self.jumps = list(range(len(self.windows))), []


def walk(script: Script, short: Shortened, arenas: Sequence[Arena]) -> bool:
    """Plays the script of the layers that are built in place of all; False where more have to be built, which `short` has
    then chosen."""
    segments = script.segments
    if not short.jumps:
        places: dict[Any, Place] = {}
        for events in segments:
            play(events, places, arenas)
        return True
    if len(script.ends) != len(short.layers):        # a layer hands on nothing that is computed
        short.build_all()
        return False
    return _Walk(script, short, arenas).play()


class _Walk:
    """One model's way through the segments of the layers that were built; the segment of layers[k] is k + 1."""

    def __init__(self, script: Script, short: Shortened, arenas: Sequence[Arena]) -> None:
        self.script, self.short, self.arenas = script, short, arenas
        # by segment: blocks of its own that are taken further ahead
        self.early: dict[int, list[int]] = {}
        ahead: dict[int, list[int]] = {}           # by the segment that takes them
        for block, (first, last) in script.readers.items():
            if first == last and script.home[block] < first:
                ahead.setdefault(script.home[block], []).append(block)
        steps: set[int] = set()                    # copied by one layer for the next, again and again
        for home, blocks in ahead.items():
            if home and all(script.gone[block] == home + 1 for block in blocks):
                steps.update(blocks)
                continue
            for block in blocks:
                # what it was copied from must not go at once
                if not home or script.segments[home][self._index(block) - 1][1] >= 0:
                    self.early.setdefault(script.readers[block][0], []).append(block)
        # by segment, the blocks that it hands on: what its layer ends in, and what was made for one of the next few layers
        self.handed: list[list[int]] = [[], *([end] for end in script.ends), []]
        for block, (home, gone) in enumerate(zip(script.home, script.gone, strict=True)):
            if home and gone <= home + _NEAR and (block not in script.readers or block in steps):
                for segment in range(home, gone):
                    if block != script.ends[segment - 1]:
                        self.handed[segment].append(block)
        self.more: dict[tuple[int, int], list[Event]] = {}      # what is taken early for layers that are left out

    def play(self) -> bool:
        script, short, arenas, handed = self.script, self.short, self.arenas, self.handed
        standing = self._standing()
        if standing is None:
            return False
        places: dict[Any, Place] = {}
        jumps = dict(short.jumps)
        known: dict[tuple[int, Hashable], tuple[Any, ...]] = {}
        for segment, events in enumerate(script.segments):
            play(self._with_more(segment, events), places, arenas)
            if segment - 1 not in jumps:
                continue
            begin = short.layers[segment - 1] + 1
            state = self._state(places, handed[segment])
            fresh = True             # whether the arenas are in this state
            for il, t in enumerate(standing[segment], begin):
                after = None if t in self.early else known.get((t, state))
                if after is None:
                    if not fresh:
                        self._restore(state)
                        fresh = True
                    mine = dict(zip(handed[t - 1], state[0], strict=True))
                    for block in self.early.get(t, ()):
                        mine[block] = places[il, block]
                    play(script.segments[t], mine, arenas)
                    after = known[t, state] = self._state(mine, handed[t])
                else:
                    fresh = False
                state = after
            if not fresh:
                self._restore(state)
            places.update(zip(handed[segment], state[0], strict=True))
        return True

    def _state(self, places: dict[Any, Place], handed: list[int]) -> tuple[Any, ...]:
        """What the layers to come depend on: where that lies which the one before handed on, and what is free."""
        return (tuple([places[block] for block in handed]), *[arena.state() for arena in self.arenas])

    def _restore(self, state: tuple[Any, ...]) -> None:
        for arena, what in zip(self.arenas, state[1:], strict=True):
            arena.restore(what)

    def _standing(self) -> dict[int, list[int]] | None:
        """By the segment that they follow, the segments that stand for the layers left out; None where one is missing."""
        short = self.short
        jumps = dict(short.jumps)
        built: dict[int, list[int]] = {}
        found: dict[int, list[int]] = {}
        unknown: set[int] = set()
        for k, il in enumerate(short.layers):
            segment = k + 1
            built.setdefault(short.windows[il], []).insert(0, segment)
            if k not in jumps:
                continue
            stretch = short.windows[il + 1:jumps[k] + 1]
            stands = {window: self._standing_for(built[window], segment) for window in dict.fromkeys(stretch)}
            chain = found[segment] = [stands[window] for window in stretch]
            unknown.update(window for window, t in stands.items() if not t)
            # each hands on what the next one was built to get, the last one what the layer that is built next was
            for one, other in set(zip([segment, *chain], [*chain, segment + 1], strict=True)):
                if one and other and self._kinds(one) != self._kinds(other - 1):
                    unknown.update(short.windows[short.layers[t - 1]] for t in (one, min(other, len(short.layers))))
        if unknown:
            short.build_more(unknown)
            return None
        for segment, stretch in found.items():
            for il, t in enumerate(stretch, short.layers[segment - 1] + 1):
                self._take_early(t, il, segment)
        return found

    def _standing_for(self, built: list[int], segment: int) -> int:
        """Of the segments of a window one that may be played again behind `segment`; 0 where none may."""
        return next((t for t in built if self._stands(t) and self._homes(t) <= self._homes(segment) and self._serves(t, segment)), 0)

    def _serves(self, t: int, segment: int) -> bool:
        """Whether all that a segment reads of what many read is there behind `segment` too, and nothing that is not needed
        before would be copied there instead."""
        script, mine = self.script, {*self.handed[t - 1], *self.early.get(t, ())}
        if any(0 < script.gone[block] <= segment for block in script.reads[t] - mine):
            return False
        copies = {what for block, what, _ in script.segments[t] if what >= 0 and block in script.readers}
        return not any(0 < script.home[block] <= segment < first and script.took[block][0] in copies
                       for block, (first, last) in script.readers.items() if first < last)

    def _kinds(self, segment: int) -> list[tuple[int, int]]:
        """Arenas and sizes of what is handed on."""
        return [self.script.took[block] for block in self.handed[segment]]

    def _homes(self, t: int) -> set[int]:
        """The segments, but for the start, that take something for this one early."""
        return {self.script.home[block] for block in self.early.get(t, ())} - {0}

    def _stands(self, t: int) -> bool:
        """Whether a segment gives back all that it takes, and nothing else but what was its own or handed on to it."""
        script = self.script
        before, after = self.handed[t - 1], self.handed[t]
        if t < 2 or before[0] < 0 or after[0] < 0:
            return False
        mine = {*before, *self.early.get(t, ())}
        for block, what, _ in script.segments[t]:
            if what >= 0:
                mine.add(block)
            elif block not in mine:
                return False
        return after[0] in mine and all(block in after or script.gone[block] in (0, t) for block in mine)

    def _index(self, block: int) -> int:
        """Where in its home segment a block is taken."""
        return next(i for i, event in enumerate(self.script.segments[self.script.home[block]]) if event[0] == block)

    def _take_early(self, t: int, il: int, reached: int) -> None:
        """Notes what is to be taken before layer `il` begins, for which segment `t` stands, behind what those up to `reached`
        take in the same place."""
        script = self.script
        for block in self.early.get(t, ()):
            home = script.home[block]
            events = script.segments[home]
            at = self._index(block)
            reader, end = t, at + 1
            while end < len(events):
                other, what, _ = events[end]
                if what >= 0:
                    first = script.readers[other][0] if other in script.readers else 0
                    if not reader <= first <= reached:
                        break
                    reader = first
                end += 1
            self.more.setdefault((home, end), []).append(((il, block), *events[at][1:]))

    def _with_more(self, segment: int, events: list[Event]) -> list[Event]:
        if not self.more or not any(home == segment for home, _ in self.more):
            return events
        whole: list[Event] = []
        for i in range(len(events) + 1):
            whole += self.more.get((segment, i), ())
            whole += events[i:i + 1]
        return whole


def _numbers(things: Iterable[Hashable]) -> list[int]:
    """Equal things get equal numbers, from 0 on."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(thing, len(known)) for thing in things]
