"""Waiting times of users would be promised too short.

The simulated server: nobody is served twice at once, nothing is lost, and waiting follows from
slots and prompts.
"""

from __future__ import annotations

from typing import Any

import pytest

from autolayers.flags.workload import Workload
from autolayers.work.queue import simulate


class Clock:
    """A machine of round figures: prompts at 1000 tokens/s, a token in 10 ms for one and 1 ms more
    for each other."""

    n_batch = 2048

    def prompt(self, n: int, depth: float) -> float:
        return n / 1000

    def token(self, depth: float, requests: int = 1) -> float:
        return 0.009 + 0.001 * requests


def run(users: int, slots: int, prompt: int = 500, generate: int = 100):
    clock: Any = Clock()
    return simulate(clock, Workload(prompt, generate), users, slots, 8192)


def test_one_user_waits_for_the_prompt_alone() -> None:
    served = run(1, 1)
    assert served.rate == pytest.approx(100, rel=0.01) and served.first == pytest.approx(
        0.5, rel=0.01
    )
    assert served.total == pytest.approx(100 / (0.5 + 99 * 0.01), rel=0.02)


def test_users_without_a_slot_wait_for_one() -> None:
    alone, queued = run(1, 1), run(4, 1)
    assert queued.rate == pytest.approx(alone.rate) and queued.total == pytest.approx(
        alone.total, rel=0.05
    )
    assert queued.first == pytest.approx(3 * (0.5 + 0.99) + 0.5, rel=0.05)


def test_prompts_slow_the_answers_of_others() -> None:
    short, long = run(4, 4, prompt=10), run(4, 4, prompt=2000)
    assert short.rate > 70 and long.rate < short.rate / 2 and long.first >= 2


def test_a_batch_has_room_for_a_token_of_each_answer_first() -> None:
    """Three prompts of 2000 tokens are not one batch of 2048: a batch has the end of one and the
    start of the next."""
    assert run(3, 3, prompt=2000, generate=2).first >= 2 * 2.0


def test_more_users_are_more_in_all_and_less_each() -> None:
    found = [run(n, n) for n in (1, 2, 4, 8, 16)]
    assert [served.total for served in found] == sorted(served.total for served in found)
    assert [served.rate for served in found] == sorted(
        (served.rate for served in found), reverse=True
    )
