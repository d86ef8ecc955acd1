"""A search would stop at a smaller count or context than fits, or measure more launches than it
needs.

The launches are lines of numbers: weights and caches known in advance, buffers only when measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from autolayers.flags.params import Params
from autolayers.planner.evaluate import FULL
from autolayers.planner.one.bisection import largest_context, largest_count, last

STEP = 10


class Launches:
    """Launches by one number: `each` bytes of weights and cache for each, `buffers(n)` besides.
    Numbers in `refused` are those that llama.cpp does not start. The same bytes are in system
    memory, if there are `ram`."""

    def __init__(
        self,
        limit: int,
        each: int,
        buffers: Callable[[int], int],
        refused: tuple[int, ...] = (),
        ram: int | None = None,
    ) -> None:
        self.machine = SimpleNamespace(limits={"GPU": limit}, ram=ram)
        self.limit, self.each, self.buffers, self.refused = limit, each, buffers, refused
        self.measured: list[int] = []

    def static(self, params: Params) -> SimpleNamespace:
        n = params.n_ctx or 0
        return SimpleNamespace(devices={"GPU": SimpleNamespace(model=self.each * n, context=0)})

    def ram_of(self, params: Params, use: object) -> int:
        return self.each * (params.n_ctx or 0)

    def may_fit(self, params: Params) -> bool:
        return self.each * (params.n_ctx or 0) <= self.limit

    def candidate(self, params: Params, fidelity: object) -> SimpleNamespace | None:
        n = params.n_ctx or 0
        if n not in self.measured:
            self.measured.append(n)
        if n in self.refused:
            return None
        taken = self.each * n + self.buffers(n)
        spare = self.limit - taken
        ram = self.machine.ram
        return SimpleNamespace(
            n=n,
            params=params,
            ram_spare=None if ram is None else ram - taken,
            breakdown=self.static(params),
            spare={"GPU": spare},
            fits=spare >= 0 and (ram is None or ram >= taken),
            fits_devices=spare >= 0,
            overheads=lambda limits: {"GPU": self.buffers(n)},
        )

    def fits(self, n: int) -> bool:
        return n not in self.refused and self.each * n + self.buffers(n) <= self.limit


def make(n: int) -> Params:
    return Params(n_ctx=n)


def count_of(launches: Launches, top: int = 32, overhead: int = 0) -> int | None:
    found = largest_count(launches, make, top, FULL, {"GPU": overhead} if overhead else {})
    return found and found.n


def context_of(launches: Launches, low: int, high: int, above: bool = False) -> int | None:
    known = launches.candidate(make(high if above else low), FULL)
    if known is None or (not above and not known.fits):
        return None
    launches.measured.clear()
    found = largest_context(launches, known, low, high, STEP, FULL)
    return found and found.n


@pytest.mark.parametrize("limit", [99, *range(100, 3500, 37), 3299, 3300, 3301])
def test_the_largest_count_fits_and_the_next_does_not(limit: int) -> None:
    launches = Launches(limit, 100, lambda n: 100)
    expected = max((n for n in range(33) if launches.fits(n)), default=None)
    assert count_of(launches) == expected
    # all, then the answer, and one more to know that it is the last
    assert len(launches.measured) <= 4
    launches.measured.clear()
    assert count_of(launches, overhead=100) == expected and len(launches.measured) <= 3


def test_one_launch_is_measured_where_all_fits() -> None:
    launches = Launches(3300, 100, lambda n: 100)
    assert count_of(launches) == 32 and launches.measured == [32]


def test_a_count_whose_weights_alone_are_too_large_is_not_measured() -> None:
    launches = Launches(1050, 100, lambda n: 40)
    assert count_of(launches) == 10 and max(launches.measured) == 10


def test_no_count_is_an_answer_where_not_even_none_fits() -> None:
    assert count_of(Launches(99, 100, lambda n: 100)) is None
    assert count_of(Launches(100, 100, lambda n: 100)) == 0


def test_the_next_but_one_may_fit_where_it_saves_a_copy() -> None:
    """Buffers of odd counts are larger."""
    # 21 needs 2100 + 500, 22 2200 + 390
    launches = Launches(2600, 100, lambda n: 510 if n % 2 else 390)
    assert count_of(launches) == 22


def test_a_refused_count_is_none_that_fits() -> None:
    launches = Launches(1300, 100, lambda n: 100, refused=(12, 32))
    assert count_of(launches) == 11


def test_buffers_that_grow_and_shrink_at_random_end_at_a_count_that_fits() -> None:
    rng = random.Random(5)
    for _ in range(60):
        table = [rng.randrange(300, 400) for _ in range(33)]
        launches = Launches(rng.randrange(200, 3800), 100, table.__getitem__)
        found = count_of(launches)
        fitting = [n for n in range(33) if launches.fits(n)]
        if found is None:
            assert not fitting or fitting == [32]
        else:
            assert launches.fits(found)
            # only a count that fits although the one below it does not can be missed
            assert all(n <= found + 1 or not launches.fits(n - 1) for n in fitting)
        assert len(launches.measured) <= 9


@pytest.mark.parametrize("limit", range(350, 1400, 13))
@pytest.mark.parametrize("above", [False, True])
def test_the_largest_context_is_a_step_or_an_end_of_the_range(limit: int, above: bool) -> None:
    launches = Launches(limit, 10, lambda n: n + 50)
    # in steps between them: 40, 50 ... 110
    steps = [35, *range(40, 118, STEP), 118]
    if above and launches.fits(118):
        return
    # the smallest is the answer of last resort: whether it fits is the caller's question then
    expected = max((n for n in steps if launches.fits(n)), default=35 if above else None)
    assert context_of(launches, 35, 118, above) == expected
    assert len(launches.measured) <= 5


def test_the_largest_context_is_tried_first_and_alone_where_it_fits() -> None:
    launches = Launches(10_000, 10, lambda n: n)
    assert context_of(launches, 35, 118) == 118 and launches.measured == [118]


def test_the_smallest_context_is_measured_last_where_the_largest_is_known_not_to_fit() -> None:
    launches = Launches(700, 10, lambda n: n)
    assert context_of(launches, 20, 118, above=True) == 60 and 20 not in launches.measured
    launches = Launches(221, 10, lambda n: n)
    assert context_of(launches, 20, 118, above=True) == 20 and launches.measured[-1] == 20


@pytest.mark.parametrize("limit", range(500, 1400, 17))
def test_the_largest_context_is_not_measured_where_the_buffers_of_a_smaller_one_rule_it_out(
    limit: int,
) -> None:
    """Buffers of a larger context are at least ALIKE of those of a smaller one."""
    launches = Launches(limit, 10, lambda n: 100 + n)
    known = launches.candidate(make(30), FULL)
    assert known is not None and known.fits
    launches.measured.clear()
    found = largest_context(launches, known, 30, 118, STEP, FULL)
    steps = [*range(30, 118, STEP), 118]
    assert found is not None and found.n == max(n for n in steps if launches.fits(n))
    assert (118 in launches.measured) == (limit >= 1180 + 7 / 8 * 130)


@pytest.mark.parametrize("ram", range(500, 1400, 34))
def test_system_memory_rules_contexts_out_as_devices_do(ram: int) -> None:
    """A search for the largest context halved its way down where RAM alone was short."""
    launches = Launches(50_000, 10, lambda n: 100 + n, ram=ram)
    known = launches.candidate(make(3000), FULL)
    assert known is not None and not known.fits
    found = largest_context(launches, known, 30, 3000, STEP, FULL)
    steps = [n for n in range(30, 3001, STEP) if 11 * n + 100 <= ram]
    # the smallest is the answer of last resort
    assert found is not None and found.n == (max(steps) if steps else 30)
    assert len(launches.measured) <= 5


def test_a_range_of_one_context_is_measured_once() -> None:
    launches = Launches(200, 10, lambda n: 0)
    assert context_of(launches, 20, 20) == 20 and launches.measured == [20]


def test_the_last_number_that_holds_is_found_from_any_start() -> None:
    for low in (-1, 0, 3):
        for high in range(low, 9):
            for answer in range(low, high + 1):
                for near in range(-1, 11):
                    asked: list[int] = []

                    def holds(n: int, answer: int = answer, asked: list[int] = asked) -> bool:
                        asked.append(n)
                        return n <= answer

                    assert last(low, high, holds, near) == answer
                    # it is assumed for low, and no number is asked twice
                    assert low not in asked and len(asked) == len(set(asked))
                    assert all(low < n <= high for n in asked)


def test_a_start_close_to_the_answer_saves_tests() -> None:
    def count(near: int) -> int:
        asked: list[int] = []
        assert last(0, 1000, lambda n: not asked.append(n) and n <= 700, near) == 700
        return len(asked)

    assert count(-1) == 10 and count(700) == 2 and count(699) == 4 and count(701) == 2
