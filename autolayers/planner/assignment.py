"""What to choose where room is short: a launch of each of several models on one machine
(several/assign.py), or how many servers of each sort a fleet runs (compare/fleet/assign.py).

    choices(3, columns, room)               # every choice of three columns, depth first
    solved(goal, rules, highest, whole)     # the best of all, by HiGHS

A column takes some of each room: bytes of a device, GPUs of a kind of machine. Few possibilities
are all tried. Of more, HiGHS finds the best (`pip install autolayers[fleet]`): branch and bound
with a proof.
"""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import contextmanager
from importlib.util import find_spec

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Takes = Iterable[tuple[Hashable, int]]  # how much of each room
    Rule = tuple[float, Mapping[int, float]]  # numbers times these, in all this at least

ALL = 20_000  # possibilities up to which each is tried


@dataclass(frozen=True)
class Column:
    """What may be chosen: `what` it stands for, what it takes, and its price."""

    what: Any
    takes: Takes
    price: float = 0.0


class Left:
    """What is left of each room."""

    def __init__(self, room: Mapping[Any, int]) -> None:
        self.left = dict(room)

    def has(self, takes: Takes) -> bool:
        for name, size in takes:  # noqa: SIM110 - most of a search's time is here
            if size > self.left[name]:
                return False
        return True

    def take(self, takes: Takes) -> None:
        for name, size in takes:
            self.left[name] -= size

    def give_back(self, takes: Takes) -> None:
        for name, size in takes:
            self.left[name] += size


def choices(
    count: int, columns: Callable[[Sequence[Column]], Iterator[Column]], room: Left, steps: int = 0
) -> Iterator[list[Column]]:
    """Yield choices of this many columns, depth first, in this many `steps` if not all: `columns`
    yields those that there is room for beside the ones that are chosen, and is asked for the next
    when the room is the same again."""
    chosen: list[Column] = []
    # Of each depth up to this one what was not tried.
    untried = [columns(chosen)] if count else []
    if not count:
        yield chosen
    for step in itertools.count(1):
        if not untried or step == steps:
            return
        column = next(untried[-1], None)
        if column is not None:
            room.take(column.takes)
            chosen.append(column)
            if len(chosen) < count:
                untried.append(columns(chosen))
                continue
            yield chosen
        else:
            untried.pop()
        if chosen:
            room.give_back(chosen.pop().takes)


def has_solver() -> bool:
    return find_spec("scipy") is not None


def solved(
    goal: Mapping[int, float],
    rules: Sequence[Rule],
    highest: Sequence[float],
    whole: Sequence[int],
    seconds: float,
    gap: float,
) -> Any:
    """Return the answer of scipy.optimize.milp: numbers from 0 to the `highest` of each, whole ones
    where `whole` is 1, that keep the rules and make the goal small; within this gap of the least,
    unless the seconds are up."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    # A sparse matrix, as nearly all numbers are 0.
    places = [(i, at, number) for i, (_, row) in enumerate(rules) for at, number in row.items()]
    down, along, numbers = zip(*places, strict=True)
    matrix = coo_array((numbers, (down, along)), shape=(len(rules), len(highest))).tocsr()
    with silenced():
        return milp(
            [goal.get(at, 0.0) for at in range(len(highest))],
            integrality=whole,
            bounds=Bounds([0.0] * len(highest), highest),
            constraints=[LinearConstraint(matrix, [least for least, _ in rules], float("inf"))],
            options={"time_limit": seconds, "mip_rel_gap": gap},
        )


@contextmanager
def silenced() -> Iterator[None]:
    """Silence HiGHS, which prints some lines to standard output, which is for the answer."""
    sys.stdout.flush()
    # Below Python: HiGHS is C++ and writes to file descriptor 1 itself.
    stdout = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)
