"""Several models would get a slower set of launches than there is, or one that does not fit: the
choice of one option per model, against every choice there is, in random small cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from autolayers.flags.params import Params
from autolayers.planner.assignment import Left
from autolayers.planner.several import assign as module
from autolayers.planner.several.assign import (
    RAM,
    UNLIMITED,
    Assigning,
    Assignment,
    ModelOptions,
    Option,
    Room,
)


def place(limits: Mapping[str, int], ram: int | None = None, **more: Any) -> Room:
    return Room({**limits, RAM: UNLIMITED if ram is None else ram}, **more)


def assign(
    choices: Sequence[ModelOptions], limits: Mapping[str, int], ram: int | None = None, **more: Any
) -> Assignment | None:
    return Assigning(choices, place(limits, ram, **more)).best()


def fit(chosen: Sequence[Option], limits: dict[str, int], ram: int | None) -> bool:
    """Whether these launches fit at the same time."""
    return all(
        sum(option.takes.get(name, 0) for option in chosen) <= limit
        for name, limit in limits.items()
    ) and (ram is None or sum(option.ram for option in chosen) <= ram)


def price(choices: list[ModelOptions], chosen: Sequence[Option]) -> float:
    pairs = zip(choices, chosen, strict=True)
    return sum(choice.weight * option.price for choice, option in pairs)


def least(
    choices: list[ModelOptions],
    limits: dict[str, int],
    ram: int | None,
    allowed: Callable[[Sequence[Option]], bool] = lambda chosen: True,
) -> float | None:
    """The smallest sum of weighted prices of all choices that fit and are allowed."""
    every = itertools.product(*(choice.options for choice in choices))
    fitting = [chosen for chosen in every if fit(chosen, limits, ram) and allowed(chosen)]
    return min((price(choices, chosen) for chosen in fitting), default=None)


def case(rng: random.Random) -> tuple[list[ModelOptions], dict[str, int], int | None]:
    limits = {f"CUDA{i}": rng.randint(4, 24) for i in range(rng.randint(1, 3))}
    choices, scale = [], rng.choice([0.01, 1.0])
    for _ in range(rng.randint(1, 4)):
        options = []
        for _ in range(rng.randint(1, 9)):
            names = rng.sample(sorted(limits), rng.randint(0, min(2, len(limits))))
            seconds = scale * rng.choice([rng.uniform(1, 20), 5.0])
            options.append(
                Option(
                    Params(),
                    {name: rng.randint(1, 12) for name in names},
                    rng.randint(0, 15),
                    seconds,
                    seconds,
                )
            )
        choices.append(ModelOptions(options, rng.choice([1, 1, 3, 0.5])))
    return choices, limits, rng.choice([None, 20, 40])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_all_choices_is_found(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        choices, limits, ram = case(rng)
        found, expected = assign(choices, limits, ram), least(choices, limits, ram)
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.exact and found.price == pytest.approx(expected)


def test_equal_devices_and_many_models_are_not_worse_than_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no step to spare each model still gets what those before it leave."""
    monkeypatch.setattr(module, "has_solver", lambda: False)
    rng = random.Random(7)
    for n in (3, 30):
        limits = {f"CUDA{i}": 40 for i in range(3)}
        choices = [
            ModelOptions(
                [
                    Option(Params(), {name: size}, 0, seconds, seconds)
                    for name in limits
                    for size, seconds in ((rng.randint(2, 6), 1.0), (1, 4.0))
                ]
            )
            for _ in range(n)
        ]
        left, before = dict(limits), 0.0
        for choice in choices:
            fitting = [
                o
                for o in choice.options
                if all(size <= left[name] for name, size in o.takes.items())
            ]
            option = min(fitting, key=lambda o: o.price)
            left.update({name: left[name] - size for name, size in option.takes.items()})
            before += option.price
        here = place(limits, alike=dict.fromkeys(limits, "the same"))
        found = Assigning(choices, here, 0).best()
        assert found is not None and found.price <= before and not found.exact


def test_equally_good_choices_put_the_fewest_models_on_a_device() -> None:
    limits = {"CUDA0": 24, "CUDA1": 24, "CUDA2": 24}
    choices = [
        ModelOptions([Option(Params(), {name: 5}, 0, 1.0, 1.0) for name in limits])
        for _ in range(3)
    ]
    found = assign(choices, limits, alike=dict.fromkeys(limits, "the same"))
    assert found is not None and {name for option in found.chosen for name in option.takes} == set(
        limits
    )


# --- models that may be split over what the others leave


def split(size: int, ram: int, seconds: float) -> Callable[..., Option | None]:
    """A model of this size over the devices with the most left, whatever is left of RAM; each
    device more is 1 % slower."""

    def cut(left: Mapping[str, int]) -> Option | None:
        rest, takes = size, {}
        devices = [name for name in left if name != RAM]
        for name in sorted(devices, key=lambda name: (-left[name], name)):
            if rest and left[name] > 0:
                takes[name] = min(rest, left[name])
                rest -= takes[name]
        if rest:
            return None
        price = seconds * 1.01 ** len(takes)
        return Option(Params(tensor_split=(1.0,)), takes, ram, price, price)

    return cut


@pytest.mark.parametrize("seed", range(2))
def test_a_model_is_split_where_that_is_better_than_each_of_its_devices(seed: int) -> None:
    rng = random.Random(100 + seed)
    splits = 0
    for _ in range(60):
        choices, limits, ram = case(rng)
        size, in_ram, seconds = rng.randint(6, 30), rng.randint(0, 10), rng.uniform(0.1, 20)
        cut = split(size, in_ram, seconds)
        own = [] if rng.random() < 0.5 else choices[-1].options
        choices = [*choices[:-1], ModelOptions(own, choices[-1].weight, cut, seconds * 1.01)]
        found = assign(choices, limits, ram)
        best = least(choices, limits, ram)
        for chosen in itertools.product(*(choice.options for choice in choices[:-1])):
            left = {
                name: limit - sum(option.takes.get(name, 0) for option in chosen)
                for name, limit in limits.items()
            }
            option = cut(left) if fit(chosen, limits, ram) else None
            if option is not None and fit((*chosen, option), limits, ram):
                own = price(choices, (*chosen, option))
                best = own if best is None else min(best, own)
        assert (found is None) == (best is None)
        if found is not None and best is not None:
            # a split has to gain 0.5 %
            assert best * (1 - 1e-9) <= found.price <= best * module.CUT_GAIN * (1 + 1e-9)
            splits += found.chosen[-1].params.tensor_split is not None
    assert splits > 5


def test_two_models_may_be_split_in_either_order() -> None:
    """The first one asked would take all of what is left of the large device."""
    choices = [
        ModelOptions((), 1.0, split(size, 0, seconds), seconds * 1.01)
        for size, seconds in ((6, 3.0), (10, 1.0))
    ]
    for order in (choices, choices[::-1]):
        found = assign(order, {"CUDA0": 10, "CUDA1": 6})
        assert found is not None
        assert sorted(len(option.takes) for option in found.chosen) == [1, 1]


# --- servers, of which each serves one model


@pytest.mark.parametrize("seed", range(2))
def test_a_server_has_one_model(seed: int) -> None:
    rng = random.Random(200 + seed)
    shared = 0
    for _ in range(60):
        choices, limits, ram = case(rng)
        together = tuple(sorted(limits)[:2])
        servers = dict.fromkeys(together, together)

        def one_model(chosen: Sequence[Option], names: tuple[str, ...] = together) -> bool:
            return sum(any(name in option.takes for name in names) for option in chosen) <= 1

        found = assign(choices, limits, ram, servers=servers)
        best = least(choices, limits, ram, one_model)
        assert (found is None) == (best is None)
        if found is not None:
            assert found.exact and found.price == pytest.approx(best)
            shared += len(choices) > 1
    assert shared > 5


# --- of choices with the same price


def crowding(chosen: tuple[Option, ...], limits: dict[str, int]) -> tuple[int, float]:
    """Squares of the models on each device, and of the part of it that they use."""
    users = [sum(name in option.takes for option in chosen) for name in limits]
    used = [
        sum(option.takes.get(name, 0) for option in chosen) / limit
        for name, limit in limits.items()
    ]
    return sum(n * n for n in users), sum(part * part for part in used)


def test_the_most_even_of_equally_good_choices_is_taken() -> None:
    """Each model may go to each device, and all have the same price: few to a device first, then
    the use that is the most even."""
    rng = random.Random(5)
    for n in (2, 3) * 20:
        limits = {f"CUDA{i}": rng.randint(20, 40) for i in range(n)}
        choices = []
        for _ in range(rng.randint(2, 4)):
            size = rng.randint(1, 12)
            choices.append(
                ModelOptions([Option(Params(), {name: size}, 0, 1.0, 1.0) for name in limits])
            )
        found = assign(choices, limits)
        every = itertools.product(*(choice.options for choice in choices))
        best = min(sum(crowding(way, limits)) for way in every if fit(way, limits, None))
        assert found is not None
        assert sum(crowding(found.chosen, limits)) == pytest.approx(best)


def test_a_device_without_free_memory_counts_for_nothing() -> None:
    both = [Option(Params(), {name: 4}, 0, 1.0, 1.0) for name in ("CUDA0", "CUDA1")]
    found = assign([ModelOptions(both)] * 2, {"CUDA0": 0, "CUDA1": 8})
    assert found is not None and [list(option.takes) for option in found.chosen] == [["CUDA1"]] * 2


def test_a_launch_fits_in_exactly_what_it_takes() -> None:
    option = Option(Params(), {"CUDA0": 5}, 7, 1.0, 1.0)
    for left, ram, fits in ((5, 7, True), (4, 7, False), (5, 6, False), (5, None, True)):
        assert option.fits(place({"CUDA0": left, "CUDA1": 0}, ram).sizes) is fits


# --- what is called the best of all


def test_ten_models_on_four_equal_devices_are_decided() -> None:
    """They are too many to try each way: 12 options each."""
    rng = random.Random(3)
    limits = {f"CUDA{i}": 60 for i in range(4)}
    choices = []
    for _ in range(10):
        options = [
            Option(Params(), {name: size}, 0, seconds, seconds)
            for size, seconds in ((rng.randint(10, 20), 1.0), (8, 3.0), (3, rng.uniform(6, 9)))
            for name in limits
        ]
        choices.append(ModelOptions(options, rng.choice([1.0, 2.0])))
    found = assign(choices, limits, alike=dict.fromkeys(limits, "the same"))
    assert found is not None and found.exact


def test_without_a_try_to_spare_a_split_is_not_called_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[object] = []

    def cut(left: Mapping[str, int]) -> Option | None:
        tried.append(left)
        return split(12, 0, 2.0)(left)

    limits = {"CUDA0": 8, "CUDA1": 8}
    for tries, exact in ((24, True), (2, False)):
        monkeypatch.setattr(module, "MOST_CUTS", tries)
        tried.clear()
        found = assign([ModelOptions((), 1.0, cut, 2.0)], limits)
        assert found is not None and found.exact is exact and len(found.chosen[0].takes) == 2
        assert len(tried) <= tries


# --- more models than are searched


def test_many_equal_models_are_spread_evenly() -> None:
    names = ("CUDA0", "CUDA1", "CUDA2")
    own = [Option(Params(), {name: 2}, 0, 1.0, 1.0) for name in names]
    found = assign([ModelOptions(own)] * 12, dict.fromkeys(names, 20))
    assert found is not None
    assert [sum(name in option.takes for option in found.chosen) for name in names] == [4, 4, 4]


@pytest.mark.parametrize("solver", [False, True])
def test_of_many_models_none_can_be_made_faster_by_itself(
    solver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if solver:
        pytest.importorskip("scipy")
    monkeypatch.setattr(module, "has_solver", lambda: solver)
    rng = random.Random(11)
    for _ in range(12):
        limits = {f"CUDA{i}": rng.randint(30, 60) for i in range(2)}
        ram = rng.choice([None, 60])
        choices = []
        for _ in range(12):
            options = [
                Option(Params(), {name: size}, 2, seconds, seconds)
                for name in limits
                for size, seconds in ((rng.randint(2, 8), 1.0 + rng.random()),)
            ]
            options.append(Option(Params(), {}, 6, 9.0, 9.0))
            choices.append(ModelOptions(options, rng.choice([1.0, 3.0])))
        found = assign(choices, limits, ram)
        if found is None:
            continue
        assert not solver or found.exact
        assert found.price == pytest.approx(price(choices, found.chosen))
        for i, choice in enumerate(choices):
            for other in choice.options:
                chosen = [*found.chosen[:i], other, *found.chosen[i + 1 :]]
                assert other.price >= found.chosen[i].price or not fit(chosen, limits, ram)


def hard(seed: int, count: int) -> tuple[list[ModelOptions], dict[str, int], int]:
    """Models whose launches trade bytes of one device for seconds, in memory for half of them."""
    rng = random.Random(seed)
    choices = []
    for _ in range(count):
        size, seconds = rng.uniform(3, 30), rng.uniform(1, 60)
        options = [
            Option(
                Params(),
                {"CUDA0": round(1e6 * size * (1 - at / 40)) + 900},
                round(1e6 * size * at / 40),
                own,
                own,
            )
            for at in range(40)
            for own in (1 + seconds * at / 40 + rng.random(),)
        ]
        choices.append(ModelOptions(options, rng.choice([1.0, 3.0])))
    total = sum(max(option.takes["CUDA0"] for option in choice.options) for choice in choices)
    return choices, {"CUDA0": total // 2}, total


@pytest.mark.parametrize("seed", range(3))
def test_what_bytes_are_worth_finds_the_best_of_many_launches(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after another the last models have no memory: five took 92 s of the 36 they need."""
    pytest.importorskip("scipy")
    choices, limits, ram = hard(seed, 5)
    monkeypatch.setattr(module, "has_solver", lambda: False)
    alone = assign(choices, limits, ram)
    monkeypatch.setattr(module, "has_solver", lambda: True)
    solved = Assigning(choices, place(limits, ram), 0).best()
    assert alone is not None and solved is not None and solved.exact
    assert solved.price <= alone.price * (1 + 1e-9) <= solved.price * 1.005


# --- what a search looks at


def option(price: float, ram: int = 0, **takes: int) -> Option:
    return Option(Params(), takes, ram, price, price)


def test_the_cheapest_launch_comes_first_of_equal_ones_that_with_the_most_left() -> None:
    options = [
        option(2.0, CUDA0=1),
        option(1.0, CUDA1=15),
        option(1.0, CUDA0=4),
        option(1.0, CUDA1=25),
        option(1.0, ram=9),
    ]
    here = place({"CUDA0": 10, "CUDA1": 20}, 8)
    found = [column.what for column in module.fitting(here.columns(options), Left(here.sizes))]
    # 6 left of CUDA0, 5 of CUDA1, which is larger
    assert found == [options[2], options[1], options[0]]


def test_a_search_that_needs_every_look_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_solver", lambda: False)
    rng = random.Random(21)
    choices = [
        ModelOptions([option(rng.uniform(1, 9), **{name: rng.randint(2, 9)}) for name in "ABC" * 2])
        for _ in range(5)
    ]
    here = place({"A": 14, "B": 12, "C": 10})
    first = Assigning(choices, here)
    found = first.best()
    assert found is not None and found.exact
    # bounds by what the others cost at least: all choices are 6 ** 5
    assert first.looked < 6**5
    for looked, exact in ((first.looked, True), (first.looked - 1, False)):
        again = Assigning(choices, here, looked).best()
        assert again is not None and again.exact is exact


def test_devices_of_one_kind_are_tried_once() -> None:
    names = ("A", "B", "C", "D")
    limits = dict.fromkeys(names, 20)
    choices = [
        ModelOptions([option(seconds, **{name: size}) for size, seconds in sizes for name in names])
        for sizes in (((9, 1.0), (5, 2.0)), ((11, 1.0), (6, 2.0)), ((8, 1.0), (4, 3.0))) * 2
    ]
    each = Assigning(choices, place(limits))
    alike = Assigning(choices, place(limits, alike=dict.fromkeys(names, "same")))
    one, other = each.best(), alike.best()
    assert one is not None and other is not None and one.price == other.price
    assert alike.looked < each.looked


class Cuts:
    """A split of 12 bytes over both devices for this price, and how often it was laid out."""

    def __init__(self, price: float = 2.0) -> None:
        self.price, self.tried = price, 0

    def __call__(self, left: Mapping[str, int]) -> Option | None:
        self.tried += 1
        return split(12, 0, self.price / 1.01**2)(left)


BOTH = {"CUDA0": 8, "CUDA1": 8}


@pytest.mark.parametrize(
    ("price", "tried"), [(1.0, False), (1.99, False), (2.1, True), (9.0, True)]
)
def test_a_split_is_laid_out_where_it_may_be_cheaper_by_half_a_percent(
    price: float, tried: bool
) -> None:
    cut = Cuts()
    found = assign([ModelOptions([option(price, CUDA0=1)], 1.0, cut, 2.0)], BOTH)
    assert found is not None and found.price == pytest.approx(min(price, 2.0))
    assert bool(cut.tried) is tried and cut.tried <= 3


def test_a_split_is_laid_out_where_the_other_models_leave_it_cheap() -> None:
    """The bound knows that 4 bytes less cost a second for each of them."""
    for bound, tried in ((lambda left: 2.0, True), (lambda left: 9.0, False)):
        cut = Cuts(price=6.0)
        choices = [
            ModelOptions([option(5.0, CUDA0=1)], 1.0, cut, 2.0, bound),
            ModelOptions([option(1.0, CUDA1=2)], 3.0),
        ]
        # one after another it is laid out once in each of three orders
        found = assign(choices, BOTH)
        assert found is not None and found.price == pytest.approx(8.0)
        assert (cut.tried > 3) is tried


def test_three_splits_are_laid_out_in_one_order() -> None:
    """All six would use up the tries."""
    limits = {"CUDA0": 20, "CUDA1": 20}
    for count, most in ((2, 10), (3, 12)):
        cuts = [Cuts() for _ in range(count)]
        found = assign([ModelOptions((), 1.0, cut, 2.0) for cut in cuts], limits)
        assert found is not None and len(found.chosen) == count
        assert sum(cut.tried for cut in cuts) <= most


def test_a_split_that_does_not_fit_what_is_left_is_none() -> None:
    def larger(left: Mapping[str, int]) -> Option | None:
        return option(1.0, CUDA0=9)

    assert assign([ModelOptions((), 1.0, larger, 1.0)], BOTH) is None


ROUNDED = 0.1 + 0.2  # a little more than 0.3


def test_of_prices_that_rounding_alone_makes_different_the_more_even_use_is_kept() -> None:
    even, crowded = {"A": 5}, {"A": 15}
    for prices in ((ROUNDED, 0.3), (0.3, ROUNDED), (0.3, 0.3)):
        first, second = option(prices[0], **even), option(prices[1], **crowded)
        for options in ([first, second], [second, first]):
            found = assign([ModelOptions(options)], {"A": 20, "B": 20})
            assert found is not None and found.chosen == (first,)
    less, more = option(0.3, **crowded), option(0.301, **even)
    found = assign([ModelOptions([more, less])], {"A": 20, "B": 20})
    assert found is not None and found.chosen == (less,)
