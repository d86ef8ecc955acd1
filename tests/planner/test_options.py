"""One of several models would be given memory that it does not fit into, or a slower launch than
there is: its options, measured, estimated and split over devices."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support import MiB, hypothetical_gpus, model, requested, slow

from autolayers.devices import Host
from autolayers.flags.policy import read
from autolayers.machine import Machine
from autolayers.planner.several.assign import RAM, UNLIMITED, Option
from autolayers.planner.several.options import Launches


def launches(name: str, words: str, *mib: int, ram: int = 64 << 30) -> Launches:
    params, policy = read(words.split(), None)
    machine = Machine.of(hypothetical_gpus(mib), Host(1 << 40, ram, "given"), None, {})
    return Launches(lambda: model(name), requested(params, policy, machine))


# --- partly in RAM


@pytest.mark.parametrize(
    ("name", "words"),
    [
        slow("llama-3.1-8b-q4_k_m:4", ""),
        slow("llama-3.1-8b-q4_k_m:4", "-c 4096 -ub 1024"),
        slow("qwen3-30b-a3b-q4_k_m:4", "-c 4096"),
        ("gemma-3-4b-q8_0:4", "--strategy layers"),
    ],
)
def test_an_estimate_is_at_most_what_a_launch_takes_and_close(name: str, words: str) -> None:
    of = launches(name, words, 2000, 3000)
    sure = launches(name, words, 2000, 3000)
    estimated = of.spilled(("CUDA1",))
    assert len(estimated) > 4
    for option in estimated:
        measured = sure.option(option.params)
        assert measured is not None and option.takes.keys() == measured.takes.keys()
        if option.measured:
            assert option == measured
            continue
        assert not option.whole and option.price == option.seconds
        assert option.seconds == pytest.approx(measured.seconds, rel=0.03)
        assert 0 <= measured.ram - option.ram < 128 * MiB
        assert all(0 <= size - option.takes[at] < 512 * MiB for at, size in measured.takes.items())


def rungs(options: list[Option]) -> dict[tuple[int | None, int | None], list[int]]:
    """The numbers of rules, by -ngl and -ub."""
    found: dict[tuple[int | None, int | None], list[int]] = {}
    for option in options:
        params = option.params
        key = params.n_gpu_layers, params.n_ubatch
        found.setdefault(key, []).append(len(params.overrides))
    return found


def test_every_third_number_of_layers_is_tried_first_and_then_those_around_the_chosen() -> None:
    of = launches("qwen3-30b-a3b-q4_k_m", "-c 4096", 6000)
    steps = [*range(1, 48, 3), 48]
    first = rungs(of.spilled(None))
    assert first[49, None] == first[49, 2048] == steps
    chosen = next(option for option in of.spilled(None) if len(option.params.overrides) == 22)
    assert rungs(of.spilled(None, chosen.params))[49, None] == sorted({*steps, *range(20, 25)})
    ends = (
        next(option for option in of.spilled(None) if len(option.params.overrides) == n)
        for n in (1, 48)
    )
    for end in ends:
        last = rungs(of.spilled(None, end.params))[49, None]
    assert last == sorted({*steps, *range(20, 25), 2, 3, 46, 47})
    assert first[49, 2048] == rungs(of.spilled(None))[49, 2048]
    # of many models half of the layers, and all
    of.settle()
    assert of.measurements.graphs == {} and "problem" not in vars(of)
    many = launches("qwen3-30b-a3b-q4_k_m", "-c 4096", 6000)
    many.settle()
    assert rungs(many.spilled(None))[49, None] == [1, 25, 48]


@pytest.mark.parametrize(
    ("words", "batches"),
    [
        ("-c 4096", [None, 2048]),
        ("-c 513", [None, 2048]),
        ("-c 512", [None]),
        ("-c 4096 -ub 256", [256]),
        ("-c 4096 -b 1024", [None]),
        ("-c 4096 --embedding", [None]),
        ("-c 4096 --strategy layers", [None]),
    ],
)
def test_a_larger_micro_batch_is_an_option_where_a_prompt_can_fill_it(
    words: str, batches: list[int | None]
) -> None:
    of = launches("llama-3.1-8b-q4_k_m:4", words, 2000)
    assert [params.n_ubatch for params in of._batches(of.params)] == batches


def test_given_layers_stay_unless_a_strategy_asks_for_more() -> None:
    given, more = "-c 4096 -ngl 3", "-c 4096 -ngl 3 --strategy auto"
    assert launches("qwen3-30b-a3b-q4_k_m:4", given, 2000).spilled(None) == []
    options = launches("qwen3-30b-a3b-q4_k_m:4", more, 2000).spilled(None)
    assert {*rungs(options)} == {(3, None), (3, 2048)}


def test_where_all_does_not_fit_into_ram_another_launch_tells_the_buffers() -> None:
    """With no layers on the device llama.cpp's weights exceed this RAM."""
    of = launches("llama-3.1-8b-q4_k_m:4", "-c 4096", 3000, ram=1 << 30)
    assert all(option.takes["CUDA0"] > 300 * MiB for option in of.spilled(None))


# --- split over devices


def test_a_split_is_not_priced_below_the_slowest_device_that_holds_all() -> None:
    """Each device more costs one per cent."""
    of = launches("llama-3.1-8b-q4_k_m:4", "-c 4096", 3000, 2000)
    assert of.slowest == pytest.approx(1.90126, rel=1e-4)
    assert of._price(1.0, 1) == 1.0 and of._price(9.0, 1) == 9.0
    assert of._price(1.0, 2) == of._cut_least == pytest.approx(of.slowest * 1.01)
    assert of._price(9.0, 2) == pytest.approx(9.09)
    assert of._price(9.0, 3) == pytest.approx(9 * 1.01**2)
    only = launches("llama-3.1-8b-q4_k_m:4", "-c 4096 -dev CUDA0", 3000, 2000)
    assert not only.divisible and only._price(9.0, 2) == 9.0
    none = launches("llama-3.3-70b-q4_k_m:4", "-c 4096", 2500, 2300)
    assert none.slowest == 0 and none._price(9.0, 2) == 9.0


def settled(
    of: Launches, left: Mapping[str, int], ram: int = UNLIMITED
) -> tuple[int, Option | None]:
    """A split that is measured, and how many were measured for it."""
    for count in range(20):
        option = of.cut({**left, RAM: ram})
        if option is None or option.measured:
            return count, option
        of.measure_cut(option)
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "words", "mib", "expected"),
    [
        slow(
            "llama-3.3-70b-q4_k_m:4",
            "-c 4096",
            (2500, 2300, 2000),
            {
                0: (2, 5, 0, (2.0, 2.0, 1.0), 5.39039),
                300: (0, 5, 0, (2.0, 2.0, 1.0), 5.39039),
                400: (3, 5, 1, (2.0, 2.0, 1.0), 6.28352),
                500: (0, 5, 2, (3.0, 1.0, 1.0), 7.07673),
                700: (1, 5, 3, (4.0, 1.0), 7.83498),
            },
        ),
        (
            "qwen3-30b-a3b-q4_k_m:4",
            "-c 4096",
            (1500, 1000),
            {
                0: (2, 5, 3, (4.0, 1.0), 1.32262),
                100: (1, 5, 4, (5.0,), 1.32982),
                200: (7, 5, 4, (5.0,), 1.64651),
            },
        ),
    ],
)
def test_a_split_has_as_few_layers_in_ram_as_the_memory_left_allows(
    name: str,
    words: str,
    mib: tuple[int, ...],
    expected: dict[int, tuple[int, int, int, tuple[float, ...], float]],
) -> None:
    of = launches(name, words, *mib)
    for less, (count, *shape, seconds) in expected.items():
        left = {name: size - less * MiB for name, size in of.machine.limits.items()}
        measured, option = settled(of, left)
        assert option is not None and option.fits({**left, RAM: UNLIMITED})
        params = option.params
        assert [params.n_gpu_layers, len(params.overrides), params.tensor_split] == shape
        assert (measured, option.seconds) == (count, pytest.approx(seconds, rel=1e-4))
        assert option.whole == (not params.overrides and params.n_gpu_layers == 5)
        assert of._cut_bound(left) <= option.price
    assert of.cut({**dict.fromkeys(of.machine.limits, 0), RAM: UNLIMITED}) is None


def test_a_split_that_exceeds_the_ram_left_is_not_taken() -> None:
    of = launches("llama-3.3-70b-q4_k_m:4", "-c 4096", 2500, 2300, 2000)
    left = {name: size - 500 * MiB for name, size in of.machine.limits.items()}
    _, option = settled(of, left)
    assert option is not None and settled(of, left, option.ram)[1] == option
    assert of.cut({**left, RAM: option.ram - 1}) != option


def test_bytes_that_others_take_cost_a_split_at_least_their_time_in_ram() -> None:
    of = launches("gemma-3-4b-q8_0:4", "-c 8192 --strategy layers", 900, 800)
    limits = of.machine.limits
    assert of._missing(limits) == 0 and of._cut_bound(limits) == of._cut_least
    less = {name: size - 400 * MiB for name, size in limits.items()}
    assert of._missing(less) / MiB == pytest.approx(234.84, rel=1e-4)
    assert of._missing_price == pytest.approx(1.02154e-9, rel=1e-4)
    assert of._cut_bound(less) == of._cut_least + of._missing(less) * of._missing_price
    # of a mixture's experts a token reads few
    mixture = launches("qwen3-30b-a3b-q4_k_m:4", "-c 4096", 1500, 1000)
    assert mixture._missing_price == pytest.approx(6.40767e-11, rel=1e-4)
