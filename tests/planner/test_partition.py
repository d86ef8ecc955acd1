"""Layers would be divided over devices otherwise than is fastest, or so that they do not fit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from autolayers.planner.one.partition import best_partition, even_partition, short


def splits(n: int, devices: int) -> Iterator[tuple[int, ...]]:
    """Every number of consecutive layers for each device."""
    for counts in itertools.product(range(n + 1), repeat=devices):
        if sum(counts) == n:
            yield counts


def parts(split: Sequence[int]) -> list[range]:
    ends = [0, *itertools.accumulate(split)]
    return [range(a, b) for a, b in itertools.pairwise(ends)]


def fits(split: Sequence[int], sizes: Sequence[int], capacities: Sequence[int]) -> bool:
    return all(
        sum(sizes[i] for i in part) <= capacity
        for part, capacity in zip(parts(split), capacities, strict=True)
    )


def in_sequence(
    split: Sequence[int], seconds: Sequence[Sequence[float]], hop: float, visits: Sequence[float]
) -> float:
    """All layers, a visit of each device that has some, and a hop from one to the next."""
    used = [device for device, count in enumerate(split) if count]
    work = sum(seconds[d][i] for d, part in enumerate(parts(split)) for i in part)
    return work + sum(visits[d] for d in used) + hop * max(0, len(used) - 1)


def slowest(split: Sequence[int], seconds: Sequence[Sequence[float]]) -> float:
    return max(sum(seconds[d][i] for i in part) for d, part in enumerate(parts(split)))


def cases() -> Iterator[tuple[list[int], list[list[float]], list[int], float, list[float]]]:
    rng = random.Random(9)
    for _ in range(80):
        n, devices = rng.randint(1, 6), rng.randint(1, 3)
        sizes = [rng.randint(1, 4) for _ in range(n)]
        seconds = [[rng.randint(1, 9) / 1 for _ in range(n)] for _ in range(devices)]
        capacities = [rng.randint(0, 9) for _ in range(devices)]
        yield sizes, seconds, capacities, rng.choice((0.0, 2.0)), [rng.choice((0.0, 3.0))] * devices


@pytest.mark.parametrize(("sizes", "seconds", "capacities", "hop", "visits"), [*cases()])
def test_the_split_is_the_fastest_of_all_that_fit(
    sizes: list[int],
    seconds: list[list[float]],
    capacities: list[int],
    hop: float,
    visits: list[float],
) -> None:
    fitting = [
        split for split in splits(len(sizes), len(seconds)) if fits(split, sizes, capacities)
    ]
    found = best_partition(sizes, seconds, capacities, hop, visits)
    even = even_partition(sizes, seconds, capacities)
    if not fitting:
        assert found is None and even is None
        return
    assert found in fitting
    least = min(in_sequence(split, seconds, hop, visits) for split in fitting)
    assert in_sequence(found, seconds, hop, visits) == pytest.approx(least)
    # pipelined: what counts is the slowest device, as far as devices filled in their order allow
    if even is not None:
        assert even in fitting


def test_of_splits_that_take_as_long_the_first_one_stays() -> None:
    alike = [[1.0] * 4] * 2
    assert best_partition([1] * 4, alike, [3, 3]) == (1, 3)
    # before a second device is looked at
    assert best_partition([1] * 4, alike, [4, 4]) == (4, 0)


def test_a_device_that_is_faster_is_filled_and_what_is_left_goes_to_the_other() -> None:
    fast, slow = [1.0] * 5, [3.0] * 5
    assert best_partition([2] * 5, [slow, fast], [10, 6]) == (2, 3)
    assert best_partition([2] * 5, [fast, slow], [6, 10]) == (3, 2)


def test_a_hop_and_a_visit_keep_all_layers_on_one_device() -> None:
    slow, fast = [1.2] * 4, [1.0] * 4
    two = [slow, fast]
    assert best_partition([1] * 4, two, [4, 3]) == (1, 3)
    # 4.8 seconds on one device; 4.2 on two and what moving costs
    assert best_partition([1] * 4, two, [4, 3], hop=0.5) == (1, 3)
    assert best_partition([1] * 4, two, [4, 3], hop=0.7) == (4, 0)
    assert best_partition([1] * 4, two, [4, 3], visits=(0.0, 0.7)) == (4, 0)
    assert best_partition([1] * 4, two, [4, 3], visits=(0.7, 0.0)) == (1, 3)


@pytest.mark.parametrize(
    ("seconds", "capacities", "split"),
    [
        ([[1.0] * 6, [1.0] * 6], [6, 6], (3, 3)),
        ([[1.0] * 6, [2.0] * 6], [6, 6], (4, 2)),
        ([[1.0] * 6, [1.0] * 6], [2, 6], (2, 4)),
        ([[1.0] * 6, [1.0] * 6, [1.0] * 6], [6, 6, 6], (2, 2, 2)),
        ([[1.0] * 6], [6], (6,)),
        ([[1.0] * 6], [5], None),
    ],
)
def test_pipelined_devices_take_equally_long(
    seconds: list[list[float]], capacities: list[int], split: tuple[int, ...] | None
) -> None:
    assert even_partition([1] * 6, seconds, capacities) == split
    if split:
        best = min(
            slowest(other, seconds)
            for other in splits(6, len(seconds))
            if fits(other, [1] * 6, capacities)
        )
        assert slowest(split, seconds) == best


def test_the_last_devices_without_layers_have_no_share() -> None:
    assert short([3, 0, 2, 0, 0]) == (3.0, 0.0, 2.0)
    assert short([0, 4]) == (0.0, 4.0) and short([5]) == (5.0,) and short([0, 0]) == (0.0,)
