"""Owners of one GPU would wait for launches that were looked at already, or lose one that --fit's
own margin has room for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support import MiB

from autolayers.flags.params import Params
from autolayers.machine import Device, Machine
from autolayers.planner.buffers import ALIKE
from autolayers.planner.evaluate import FIT
from autolayers.planner.one.bisection import _Numbers
from autolayers.planner.one.parts import _can_be_written, _covered


@pytest.mark.parametrize(
    ("margin", "budget", "target", "covered"),
    [
        (900, 0, None, True),
        (1024, 0, None, True),
        (1025, 0, None, False),
        # a budget takes from the device what --fit would use
        (900, 124, None, True),
        (900, 125, None, False),
        (900, 0, (900, 5000), True),
        (900, 0, (899, 5000), False),
    ],
)
def test_the_search_was_as_wide_as_fits_where_its_margin_is_no_larger(
    margin: int, budget: int, target: tuple[int, ...] | None, covered: bool
) -> None:
    limits = {"CUDA0": (8000 - budget) * MiB, "CUDA1": 1}
    machine = Machine((Device("CUDA1", 1, 1), Device("CUDA0", 1, 8000 * MiB)), limits)
    parts = (("a", (margin - 100) * MiB), ("b", 100 * MiB))
    best: Any = SimpleNamespace(spare={"CUDA0": 0}, margins={"CUDA0": parts})
    evaluator: Any = SimpleNamespace(machine=machine)
    assert _covered(evaluator, Params(fit_target=target), best) is covered
    best.spare["CUDA1"] = 0
    assert not _covered(evaluator, Params(fit_target=target), best)


@pytest.mark.parametrize(
    ("shares", "buffer", "written"),
    [(0, "CPU", True), (15, "CUDA1", True), (16, "CUDA1", False), (2, "RPC0", False)],
)
def test_a_launch_that_no_flags_say_is_none(shares: int, buffer: str, written: bool) -> None:
    """-ts takes 15 numbers, and the buffer of an RPC server has no name for -ot."""
    flags = Params(tensor_split=(1.0,) * shares or None, overrides=(("blk", buffer),))
    launch: Any = SimpleNamespace(params=flags)
    assert _can_be_written(launch) is written


def test_a_launch_may_fit_in_exactly_what_it_takes() -> None:
    """Weights and caches, and the share of another launch's buffers."""
    use = {name: SimpleNamespace(model=600, context=300, total=950) for name in ("CUDA0", "CUDA1")}
    alike: Any = SimpleNamespace(overheads=lambda limits: {"CUDA0": 200})

    def may(limit: int, share: float, refused: bool = False) -> bool:
        evaluator: Any = SimpleNamespace(
            static=lambda params: None if refused else SimpleNamespace(devices=use),
            machine=Machine((), {"CUDA0": limit, "CUDA1": 0}),
        )
        return _Numbers(evaluator, lambda n: Params(), FIT, False).may_fit(Params(), alike, share)

    assert may(1000, 0.5) and not may(999, 0.5) and may(1100, 1.0) and not may(1099, 1.0)
    assert not may(5000, 0.5, refused=True)


@pytest.mark.parametrize(
    ("at_low", "above", "limit", "may", "measured"),
    [
        # what the launch with two fewer takes rules it out already
        (400, 100, 799, False, []),
        (400, 100, 800, True, [4]),
        (100, 400, 841, False, [4]),
        (None, 400, 843, True, [4]),
        # llama.cpp would refuse the one between
        (100, None, 600, True, [4]),
    ],
)
def test_two_layers_more_may_fit_where_one_does_not(
    at_low: int | None, above: int | None, limit: int, may: bool, measured: list[int]
) -> None:
    """Five layers of 100 bytes each, and most of the buffers of the launch with three or four."""
    seen: list[int] = []

    def launch(buffers: int | None) -> Any:
        if buffers is None:
            return None
        return SimpleNamespace(overheads=lambda limits: {"CUDA0": int(buffers / ALIKE)})

    def candidate(count: int, fidelity: object) -> Any:
        seen.append(count)
        return launch(above)

    def static(count: int) -> Any:
        return SimpleNamespace(
            devices={"CUDA0": SimpleNamespace(model=60 * count, context=40 * count)}
        )

    evaluator: Any = SimpleNamespace(
        candidate=candidate, static=static, machine=Machine((), {"CUDA0": limit})
    )
    make: Any = lambda count: count  # noqa: E731
    found = _Numbers(evaluator, make, FIT, False).may_fit_again(3, launch(at_low))
    assert (found, seen) == (may, measured)
