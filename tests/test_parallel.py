"""The number of processes would change an answer.

Work that is dealt out has the same results as work that is not.
"""

from __future__ import annotations

import os
import threading

import pytest
from support import slow

from autolayers.errors import ModelError
from autolayers.parallel import in_processes, in_threads


def half(n: int) -> int:
    if n % 2:
        raise ModelError(f"{n} is odd")
    return n // 2


@pytest.mark.parametrize(
    "run", [in_threads, in_processes, slow(lambda *a, **b: in_processes(*a, workers=3, **b))]
)
def test_results_are_in_order_and_errors_are_results(run) -> None:
    done: list[None] = []
    found = run(half, list(range(40)), done=lambda: done.append(None))
    assert [str(result) for result in found] == [
        f"{n} is odd" if n % 2 else str(n // 2) for n in range(40)
    ]
    assert len(done) == 40 and run(half, []) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_what_a_lost_process_did_not_answer_is_worked_out_here() -> None:
    here = os.getpid()

    def work(n: int) -> int:
        if n == 3 and os.getpid() != here:
            os._exit(9)
        return n * n

    assert in_processes(work, list(range(8)), workers=2) == [n * n for n in range(8)]


@pytest.mark.parametrize("allowed", [0, 1])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fewer_processes_work_where_the_system_allows_no_more(
    monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    fork, begun = os.fork, []

    def limited() -> int:
        if len(begun) == allowed:
            raise BlockingIOError("Resource temporarily unavailable")
        begun.append(None)
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    assert in_processes(half, [2, 4, 6], workers=3) == [1, 2, 3]


def test_threads_wait_together() -> None:
    barrier = threading.Barrier(4, timeout=300)
    assert in_threads(lambda n: barrier.wait() >= 0, [1, 2, 3, 4]) == [True] * 4
