"""-q would print fewer layers than fit, or more.

The launch with the most layers on the devices, against every number of layers and every split of
them, all measured.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import few_rows, hypothetical_gpus, model, requested, slow

from autolayers.devices import Host
from autolayers.flags.params import Params
from autolayers.flags.policy import Policy, read
from autolayers.machine import Machine
from autolayers.planner.buffers import Buffers
from autolayers.planner.candidates import PlacementKind
from autolayers.planner.evaluate import FIT, Evaluator
from autolayers.planner.frames import Frame
from autolayers.planner.one.ladder import Ladder
from autolayers.planner.one.most import divided, launched, layers_alone, with_most_layers
from autolayers.planner.problem import Problem

NAME = "llama-3.2-1b-q8_0:6"
KINDS = ("layers", "ffn")


def kind(name: str, mib: tuple[int, ...], **given: object) -> PlacementKind:
    machine = Machine.of(hypothetical_gpus(mib), None, None, {})
    params = Params(n_ctx=4096, **given)  # type: ignore[arg-type]
    problem = Problem(model(NAME), requested(params, Policy(), machine))
    return PlacementKind(Frame(problem, params), name, params, Buffers(machine.limits))


def fits(evaluator: Evaluator, params: Params) -> bool:
    found = evaluator.candidate(params, FIT)
    return found is not None and found.fits_devices


def splits(ladder: Ladder, count: int, devices: int) -> list[tuple[float, ...]]:
    layers = ladder(count).layers_wanted(ladder.top if ladder.kind == "layers" else ladder.top + 1)
    if devices == 1:
        return []
    return [(float(first), float(layers - first)) for first in range(layers + 1)]


def largest(of: PlacementKind) -> int:
    """The largest number of layers that fits in any split."""
    ladder = of.ladder(4096)
    assert ladder is not None
    for count in range(ladder.top, -1, -1):
        launches = [ladder(count)] + [
            replace(ladder(count), tensor_split=split)
            for split in splits(ladder, count, len(of.frame.names))
        ]
        if any(fits(of.evaluator, params) for params in launches):
            return count
    return -1


def number(of: PlacementKind, params: Params) -> int:
    """How many layers of the kind a launch has on the devices."""
    ladder = of.ladder(4096)
    assert ladder is not None
    same = [
        count
        for count in range(ladder.top + 1)
        if replace(ladder(count), tensor_split=params.tensor_split) == params
    ]
    return same[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "mib",
    [
        slow((900,)),
        slow((1100,)),
        slow((2000,)),
        (700, 600),
        slow((600, 900)),
        slow((800, 800)),
        slow((1100, 700)),
        slow((1500, 1500)),
    ],
)
def test_no_launch_has_more_layers(name: str, mib: tuple[int, ...]) -> None:
    of = kind(name, mib)
    found = with_most_layers(of, 4096, FIT)
    best = largest(kind(name, mib))
    assert (-1 if found is None else number(of, found.params)) == best
    assert found is None or found.fits_devices


def test_a_given_split_stays() -> None:
    of = kind("layers", (1100, 1100), tensor_split=(1.0, 3.0))
    found = with_most_layers(of, 4096, FIT)
    assert found is not None and found.params.tensor_split == (1.0, 3.0)
    assert number(of, found.params) == max(
        n for n in range(8) if fits(of.evaluator, replace(found.params, n_gpu_layers=n))
    )


def test_of_a_number_of_layers_the_fastest_split_that_fits() -> None:
    of = kind("layers", (1500, 1100))
    ladder = of.ladder(4096)
    assert ladder is not None
    found = divided(of, ladder, 5, FIT)
    others = [
        of.evaluator.candidate(replace(ladder(5), tensor_split=split), FIT)
        for split in splits(ladder, 5, 2)
    ]
    fastest = of.cost.fastest([each for each in others if each and each.fits_devices])
    assert found is not None
    assert of.cost.speed(found).request == pytest.approx(of.cost.speed(fastest).request, rel=0.005)


def test_nothing_fits_where_even_buffers_do_not() -> None:
    assert with_most_layers(kind("ffn", (260, 260)), 4096, FIT) is None


# --- what -q prints


def alone(mib: tuple[int, ...], words: str) -> tuple[Evaluator, Params]:
    machine = Machine.of(hypothetical_gpus(mib), Host.hypothetical("8GiB"), None, {})
    params, policy = read(words.split(), None)
    return Problem(model(NAME), requested(params, policy, machine)).evaluator, params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mib", "words"),
    few_rows(
        2,
        [
            ((900,), ""),
            ((1100,), ""),
            ((1400,), "-c 4096"),
            ((1400,), "-c 60000"),
            ((1400,), "--fit off -c 8192"),
            ((1400,), "--fit off"),
            ((1400,), "-fitc 20000"),
            ((2300,), "-fitc 100000"),
            ((3600,), ""),
            ((700, 900), ""),
            ((1100, 700), "-c 16384"),
            ((900, 900), "-ts 3,1"),
            ((200,), ""),
        ],
    ),
)
def test_the_number_by_itself_is_the_largest_with_which_llama_server_fits(
    mib: tuple[int, ...], words: str
) -> None:
    evaluator, given = alone(mib, words)
    launches = [launched(evaluator, replace(given, n_gpu_layers=n)) for n in range(8)]
    fitting = [n for n, launch in enumerate(launches) if launch is not None and launch.fits]
    found = layers_alone(*alone(mib, words))
    assert found is not None
    assert found.params == launches[max(fitting, default=0)].params  # type: ignore[union-attr]
    assert found.fits == bool(fitting)


@pytest.mark.parametrize(
    ("mib", "words", "layers", "n_ctx", "spent"),
    [
        ((900,), "", 0, 4096, 1773),
        ((1100,), "", 3, 4096, 1719),
        ((1400,), "-c 4096", 7, 4096, 660),
        ((1400,), "-c 60000", 2, 60000, 1743),
        ((1400,), "--fit off -c 8192", 7, 8192, 465),
        ((1400,), "--fit off", 1, None, 1140),
        ((1400,), "-fitc 20000", 5, 20000, 1506),
        ((2300,), "-fitc 100000", 5, 100000, 1542),
        ((3600,), "", 7, 131072, 666),
        ((700, 900), "", 0, 4096, 1773),
        ((1100, 700), "-c 16384", 2, 16384, 2523),
        ((900, 900), "-ts 3,1", 4, 4096, 1950),
        ((200,), "", 0, 4096, 915),
        ((900,), "-ngl 0", 0, 4096, 861),
    ],
)
def test_the_number_by_itself_and_what_finding_it_costs(
    mib: tuple[int, ...], words: str, layers: int, n_ctx: int | None, spent: int
) -> None:
    evaluator, given = alone(mib, words)
    found = layers_alone(evaluator, given)
    assert found is not None
    assert (found.params.n_gpu_layers, found.params.n_ctx) == (layers, n_ctx)
    assert evaluator.estimator.meter.spent == spent


def test_a_given_number_is_launched_as_it_is() -> None:
    for words in ("-ngl 3", "-ngl 7 --fit off -c 131072"):
        found = layers_alone(*alone((900,), words))
        evaluator, given = alone((900,), words)
        expected = launched(evaluator, given)
        assert found is not None and expected is not None
        assert found.params == expected.params
        assert found.params.n_gpu_layers == given.n_gpu_layers
