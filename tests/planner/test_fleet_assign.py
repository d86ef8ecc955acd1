"""A fleet would need more machines, or users wait longer, than necessary.

Servers of a fleet: the search against all possibilities, and against HiGHS where SciPy is
there.
"""

from __future__ import annotations

import os
from itertools import product

import pytest
from small_fleets import fleet, taken
from support import slow

from autolayers.planner import assignment
from autolayers.planner.compare.fleet import assign as part
from autolayers.planner.compare.fleet.assign import Servers, Sort, Supply, assign, dealt


def best(sorts: list[Sort], room: list[int], weights: list[float]) -> float:
    """By trying all."""
    found = 0.0
    ranges = [range(1 + min(room[kind] // gpus for kind, gpus in sort.takes)) for sort in sorts]
    for counts in product(*ranges):
        left = [*room]
        for sort, count in zip(sorts, counts, strict=True):
            for kind, gpus in sort.takes:
                left[kind] -= gpus * count
        if min(left) >= 0:
            found = max(found, Servers(Supply(sorts, room, weights), counts).in_ratio)
    return found


@pytest.mark.slow
def test_without_a_solver_one_server_after_the_other_serves_nine_in_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small fleets, with trying all switched off in the package."""
    monkeypatch.setattr(part, "ALL", 0)
    shares = []
    for seed in range(40):
        sorts, room, weights = fleet(seed, 2, 2 + seed % 2, 4)
        found = assign(Supply(sorts, room, weights), solver=False)
        used = taken(sorts, found.counts, room)
        assert found.bound is None
        assert all(each <= has for each, has in zip(used, room, strict=True))
        most = best(sorts, room, weights)
        shares.append(found.in_ratio / most if most else 1.0)
    assert sum(shares) / len(shares) >= 0.9


@pytest.mark.parametrize("seeds", [range(3), slow(range(3, 40))])
def test_the_solver_is_within_2_percent_of_all_possibilities(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    monkeypatch.setattr(part, "ALL", 0)
    for seed in seeds:
        sorts, room, weights = fleet(seed, 2, 2 + seed % 2, 4)
        found = assign(Supply(sorts, room, weights))
        assert found.in_ratio >= 0.98 * best(sorts, room, weights), seed
        assert found.bound is not None and found.bound >= found.in_ratio - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(2), slow(range(2, 12))])
def test_ten_thousand_machines_are_within_2_percent_of_the_bound(seeds: range) -> None:
    pytest.importorskip("scipy")
    for seed in seeds:
        sorts, room, weights = fleet(seed, 5, 12, 2000)
        found = assign(Supply(sorts, room, weights))
        assert found.bound is not None
        assert found.in_ratio >= 0.98 * found.bound, seed


def test_all_room_is_used_and_users_are_whole() -> None:
    sorts, room, weights = fleet(7, 3, 4, 300)
    found = assign(Supply(sorts, room, weights), solver=False)
    used = taken(sorts, found.counts, room)
    assert all(
        min(gpus for sort in sorts for kind, gpus in sort.takes if kind == i)
        > room[i] - used[i]
        >= 0
        for i in range(3)
    )
    number = found.possible
    parts = dealt(number, weights)
    assert sum(parts) == number
    assert all(part <= has for part, has in zip(parts, found.users, strict=True))
    assert dealt(10, [0.5, 0.25, 0.25]) == [5, 3, 2] and dealt(0, [1.0]) == [0]


def test_what_highs_prints_is_not_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    with assignment.silenced():
        os.write(1, b"HighsMipSolverData\n")
    print("the answer")
    assert capfd.readouterr().out == "the answer\n"
