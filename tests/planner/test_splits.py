"""Flags would divide layers over devices otherwise than they were planned, or say a split that
nobody asked for.
"""

from __future__ import annotations

import pytest
from support import model, requested, slow

import autolayers
from autolayers.api import fit_choice
from autolayers.devices import Host
from autolayers.flags.params import Params
from autolayers.flags.policy import Policy
from autolayers.machine import Device, Machine
from autolayers.planner.one.partition import explicit_split, is_free, shared, slices
from autolayers.planner.problem import Problem
from autolayers.records import replace


def problem(*mib: int, params: Params | None = None) -> Problem:
    devices = [Device(f"CUDA{i}", size << 20, size << 20) for i, size in enumerate(mib)]
    machine = Machine.of(devices, Host.hypothetical("64GiB"), None, {})
    return Problem(model("llama-3.1-8b-q4_k_m:8"), requested(params or Params(), Policy(), machine))


@pytest.mark.parametrize(
    ("count", "given", "free"),
    [
        (2, {}, True),
        (1, {}, False),
        (2, {"split_mode": "layer"}, True),
        (2, {"split_mode": "none"}, False),
        (2, {"tensor_split": (1.0, 1.0)}, False),
        (2, {"device": ("CUDA1",)}, False),
    ],
)
def test_a_split_is_chosen_where_no_flag_says_it(
    count: int, given: dict[str, object], free: bool
) -> None:
    params = replace(Params(), **given)  # type: ignore[arg-type]
    assert is_free(problem(*[4096] * count).evaluator, params) is free


def test_llama_cpp_s_own_split_is_written_as_numbers_of_layers() -> None:
    evaluator = problem(2048, 2048).evaluator
    found = explicit_split(evaluator, Params(n_gpu_layers=9, n_ctx=4096))
    assert found.tensor_split == (5.0, 4.0)
    # none on the first device: four layers are fewer than its half of them
    assert explicit_split(evaluator, Params(n_gpu_layers=1)).tensor_split == (1.0,)
    for params in (Params(n_gpu_layers=0), Params(n_gpu_layers=9, tensor_split=(1.0, 1.0))):
        assert explicit_split(evaluator, params) == params


def test_numbers_of_layers_are_the_shares_of_llama_cpp() -> None:
    evaluator = problem(2048, 2048).evaluator
    assert shared(evaluator, Params(), (3, 2)).tensor_split == (3.0, 2.0)
    assert shared(evaluator, Params(), (3,)).tensor_split == (3.0,)


class TestSlices:
    def of(self, *mib: int, **given: object) -> list[tuple[float, ...] | None]:
        asked = problem(*mib)
        params = replace(Params(n_ctx=4096, split_mode="tensor"), **given)  # type: ignore[arg-type]
        return slices(asked.evaluator, asked.cost, params)

    def test_are_equal_where_devices_are(self) -> None:
        assert self.of(4096, 4096) == [None]
        # less than ALIKE apart
        assert self.of(4096, 4000) == [None]

    def test_are_given_or_not_asked_for(self) -> None:
        assert self.of(4096, 8192, tensor_split=(3.0, 1.0)) == [(3.0, 1.0)]
        assert self.of(4096, 8192, split_mode="layer") == [None]
        assert self.of(8192) == [None]

    def test_follow_the_memory_that_is_left(self) -> None:
        first, *others = self.of(2048, 8192)
        assert first is None and others
        assert any(share is not None and share[1] > 2 * share[0] for share in others)
        assert all(share is not None and min(share) >= 1 for share in others)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # the first split that is fastest leaves 4 GiB of the second card free
        slow("llama-3.3-70b-q4_k_m", "--gpu rtx-6000-ada,rtx-3090 --ram 96GiB"),
        # a larger micro-batch takes memory that the context is worth more than
        slow("gemma-3-12b-q4_k_m", "--gpu rtx-2080-ti,rtx-2080-ti,rtx-3090 --ram 64GiB -np 8"),
        ("llama-3.1-8b-q4_k_m:8", "--gpu 3GiB,2GiB --ram 96GiB"),
    ],
)
def test_the_largest_context_of_several_gpus_is_no_smaller_than_fits(name: str, words: str) -> None:
    of, given = model(name), words.split()
    most = autolayers.plan(of, [*given, "--ctx", "max"])
    rival = fit_choice(of, given)
    assert rival is not None and most.fits
    assert most.breakdown.n_ctx >= rival.breakdown.n_ctx
    assert most.speed.request <= 1.02 * rival.speed.request
