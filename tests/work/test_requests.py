"""More requests at once would be promised than the cells hold.

Requests at once never run in more slots, nor in more cells, than there are.
"""

import pytest
from support import model

import autolayers

GPU = ["--gpu", "rtx-3090", "--ram", "64GiB"]


def seconds(words: str) -> float:
    return autolayers.plan(model("llama-3.1-8b-q4_k_m:8"), [*GPU, *words.split()]).speed.request


def test_requests_beyond_the_slots_wait() -> None:
    four = seconds("-np 4 -c 65536 --workload 1k+256x4")
    assert seconds("-np 4 -c 65536 --workload 1k+256x32") == pytest.approx(8 * four)
    assert seconds("-np 32 -c 65536 --workload 1k+256x32") < 4 * four


def test_requests_that_the_cache_has_no_cells_for_wait() -> None:
    three = seconds("-np 3 -c 4096 -kvu --workload 1k+256x3")
    assert seconds("-np 64 -c 4096 -kvu --workload 1k+256x66") == pytest.approx(
        22 * three, rel=0.05
    )


def test_twice_the_requests_never_take_less() -> None:
    taken = [seconds(f"-np 8 -c 32768 --workload 1k+256x{n}") for n in (1, 2, 4, 8, 16, 32, 64)]
    assert taken == sorted(taken)


def test_slots_are_solved_for_requests_at_once() -> None:
    plan = autolayers.plan(model("llama-3.1-8b-q4_k_m:8"), [*GPU, "--workload", "1k+256x32"])
    assert plan.params.n_parallel == 32 and plan.fits
    assert (
        autolayers.plan(
            model("llama-3.1-8b-q4_k_m:8"), [*GPU, "--workload", "1k+256x3"]
        ).params.n_parallel
        is None
    )
    given = autolayers.plan(
        model("llama-3.1-8b-q4_k_m:8"), [*GPU, "--workload", "1k+256x32", "-np", "2"]
    )
    assert given.params.n_parallel == 2 and given.speed.request > plan.speed.request


def test_a_slot_has_the_cells_of_its_request_where_more_do_not_fit() -> None:
    plan = autolayers.plan(
        model("llama-3.1-8b-q4_k_m"), ["--gpu", "8GiB", "--workload", "512+128x16"]
    )
    assert plan.fits and plan.params.n_parallel == 16 and plan.n_gpu_layers == 33
    assert plan.breakdown.n_ctx_seq >= 640
