"""Models that fit would be called too large for a machine, or the dearer of two be taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support import hypothetical_gpus, model, requested, seldom

import autolayers
from autolayers.flags.policy import read
from autolayers.machine import Device, Machine
from autolayers.memory.margin import least
from autolayers.planner.several import multi, sharing
from autolayers.planner.several.multi import _too_large, _too_many
from autolayers.planner.several.options import Launches

GPU = 1000


@pytest.mark.parametrize(("sizes", "too"), [((1000, 875), False), ((1000, 876), True)])
def test_weights_are_too_large_where_four_fifths_exceed_all_memory(
    sizes: tuple[int, ...], too: bool
) -> None:
    models: Any = [SimpleNamespace(size=size) for size in sizes]
    devices = (Device("CUDA0", GPU, GPU),)
    assert _too_large(models, Machine(devices, {"CUDA0": GPU}, 500)) is too
    assert not _too_large(models, Machine(devices, {"CUDA0": GPU}))


@pytest.mark.parametrize(
    ("words", "counted"),
    [
        ("", True),
        ("-ngl 3", True),
        ("-ngl 0", False),
        ("-dev none", False),
        ("-fitt 1", False),
        ("--margin 1MiB", False),
    ],
)
def test_contexts_of_processes_are_too_many_where_they_exceed_the_devices(
    words: str, counted: bool
) -> None:
    devices = hypothetical_gpus([2000, 3000])
    params, policy = read(words.split(), None)
    machine = Machine.of(devices, None, None, {})
    request = requested(params, policy, machine)
    fit = sum(machine.limits[device.name] // least(device) for device in devices)
    assert not _too_many(fit, request)
    assert _too_many(fit + 1, request) is counted
    assert not _too_many(99, requested(params, policy))


@seldom
@pytest.mark.parametrize("count", [3, 12])
def test_a_search_that_has_spent_its_budget_ends_with_what_fits(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen large models on sixteen unequal GPUs took 43 s."""
    estimated = Launches._estimated
    counts = []

    def plans(budget: int) -> autolayers.Together:
        asked = []

        def counted(self: Launches, params: Any) -> Any:
            asked.append(params)
            return estimated(self, params)

        monkeypatch.setattr(Launches, "_estimated", counted)
        monkeypatch.setattr(sharing, "BUDGET", budget)
        names = ("llama-3.1-8b-q4_k_m:8", "qwen3-30b-a3b-q4_k_m:4")
        found = multi.plan_together(
            [model(names[i % 2]) for i in range(count)],
            autolayers.request.Request.of(
                autolayers.flags.parse.parse(
                    ["--gpu", "2GiB,3GiB,4GiB", "--ram", "48GiB"], command="plan"
                ),
                {},
            ),
        )
        counts.append(len(asked))
        return found

    budget = sharing.BUDGET
    cut, whole = plans(0), plans(budget)
    assert cut.fits and whole.fits and not cut.proven
    assert counts[0] < counts[1] / 2
    assert cut.seconds < 3 * whole.seconds
