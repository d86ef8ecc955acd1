"""An operator would pay for a server too many.

The fewest servers for a number of users: HiGHS and the moves against all possibilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from small_fleets import fleet, taken
from support import slow

from autolayers.planner.compare.fleet import assign as part
from autolayers.planner.compare.fleet.assign import (
    Servers,
    Sort,
    Supply,
    assign,
    dealt,
    fewest,
)

MEMORY = [12.0, 24.0, 80.0]


def problems(
    seeds: range,
) -> Iterator[tuple[list[Sort], list[int], list[int], Servers]]:
    """Sorts, GPUs, a part of the users that they serve, and the servers for all of them."""
    for seed in seeds:
        sorts, room, weights = fleet(seed, 2, 2 + seed % 2, 4)
        most = assign(Supply(sorts, room, weights))
        if most.possible:
            users = max(1, most.possible * (1 + seed % 4) // 4)
            yield sorts, room, [max(1, each) for each in dealt(users, weights)], most


def costs_of(sorts: list[Sort]) -> list[float]:
    return [sum(MEMORY[kind] * size for kind, size in sort.takes) for sort in sorts]


def alone_of(room: list[int]) -> list[bool]:
    """Kinds of two GPUs are one machine of two."""
    return [size == 2 for size in room]


def is_alone(sort: Sort, room: list[int]) -> bool:
    return any(alone_of(room)[kind] for kind, _ in sort.takes)


def rank(
    sorts: list[Sort], room: list[int], counts: tuple[int, ...], needed: list[int]
) -> tuple[int, int, float] | None:
    """Models without slots for the users of one server, GPUs and memory; None where users are not
    served."""
    users = Servers(Supply(sorts, room, needed), counts).users
    if any(has < needs for has, needs in zip(users, needed, strict=True)):
        return None
    waiting = 0
    for model, needs in enumerate(needed):
        sizes = [
            dict(sort.serves).get(model, 0) * (count if is_alone(sort, room) else 1)
            for sort, count in zip(sorts, counts, strict=True)
            if count
        ]
        waiting += users[model] - max(sizes) < needs
    used = [
        (kind, size * count)
        for sort, count in zip(sorts, counts, strict=True)
        for kind, size in sort.takes
    ]
    return waiting, sum(size for _, size in used), sum(MEMORY[kind] * size for kind, size in used)


def best(sorts: list[Sort], room: list[int], needed: list[int]) -> tuple[int, int, float]:
    """By trying all."""
    ranges = [range(1 + min(room[kind] // size for kind, size in sort.takes)) for sort in sorts]
    found = []
    for counts in product(*ranges):
        if all(used <= has for used, has in zip(taken(sorts, counts, room), room, strict=True)):
            found.append(rank(sorts, room, counts, needed))
    return min(each for each in found if each is not None)


@pytest.mark.parametrize("seeds", [range(6), slow(range(6, 80))])
def test_highs_finds_the_fewest_of_all_possibilities(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    monkeypatch.setattr(part, "ALL", 0)
    for sorts, room, needed, most in problems(seeds):
        found = fewest(most, needed, costs_of(sorts), alone_of(room)).counts
        assert rank(sorts, room, found, needed) == best(sorts, room, needed)


def test_without_a_solver_no_server_is_left_that_is_not_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, "ALL", 0)
    for sorts, room, needed, most in problems(range(24)):
        costs = costs_of(sorts)
        found = fewest(most, needed, costs, alone_of(room), solver=False).counts
        mine, before = rank(sorts, room, found, needed), rank(sorts, room, most.counts, needed)
        assert mine is not None and before is not None and mine <= before
        for i, count in enumerate(found):
            less = (*found[:i], count - 1, *found[i + 1 :])
            fewer = rank(sorts, room, less, needed) if count else None
            assert fewer is None or fewer[0] > mine[0]


@pytest.mark.slow
def test_few_servers_with_many_slots_are_preferred() -> None:
    """Two of 60 slots rather than ten of ten, one to spare; for a third model there is one."""
    sorts = [
        Sort(((0, 1),), ((0, 10),)),
        Sort(((1, 1),), ((0, 60),)),
        Sort(((2, 1),), ((1, 8),)),
    ]
    costs = costs_of(sorts)
    most = Servers(Supply(sorts, [100, 50, 1], [0.9, 0.1]), (100, 50, 1))
    alone = [False] * 3
    assert fewest(most, [50, 5], costs, alone).counts == (0, 2, 1)
    assert fewest(most, [9, 5], costs, alone).counts == (2, 0, 1)
    assert fewest(most, [9, 5], costs, alone, solver=False).counts == (2, 0, 1)
