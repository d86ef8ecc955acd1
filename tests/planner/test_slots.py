"""Requests at once would be cut off, in slots too small for them.

Slots for requests at once: in a given context each has the cells of one request.
"""

from __future__ import annotations

import pytest
from support import HEADERS, slow

import autolayers

MODEL = str(HEADERS / "llama-3.1-8b-q4_k_m.gguf")
TOKENS = 2048 + 512


def plan(requests: int, *words: str) -> autolayers.Plan:
    return autolayers.plan(
        MODEL, ["--gpu", "rtx-3090", "--ram", "64GiB", "--workload", f"2048+512x{requests}", *words]
    )


@pytest.mark.parametrize(
    ("n_ctx", "requests", "most"), [slow(32768, 8, 8), slow(32768, 32, 12), (4096, 64, 1)]
)
def test_no_more_requests_run_at_once_than_a_given_context_holds(
    n_ctx: int, requests: int, most: int
) -> None:
    found = plan(requests, "-c", str(n_ctx))
    slot = found.breakdown.n_ctx_seq
    assert slot >= TOKENS and (found.params.n_parallel or most) == most
    assert not any("less than" in line for line in found.warnings)
    alone = plan(1, "-c", str(n_ctx))
    # waves of `most` requests: none is faster than one of as many
    assert found.speed.request >= requests / most * alone.speed.request / most * 0.9


@pytest.mark.slow
def test_twice_the_requests_never_take_less() -> None:
    seconds = [plan(n, "-c", "32768").speed.request for n in (1, 2, 4, 8, 16, 32)]
    assert seconds == sorted(seconds)
