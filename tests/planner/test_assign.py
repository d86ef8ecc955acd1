"""The choice of one option per model, against every choice there is: 400 random small cases."""

from __future__ import annotations

import itertools
import random

import pytest

from autolayers.flags.params import Params
from autolayers.planner.several import assign as module
from autolayers.planner.several.assign import Choice, Option, assign


def least(choices: list[Choice], limits: dict[str, int], ram: int | None) -> float | None:
    """The smallest sum of weighted prices of all choices that fit."""
    best = None
    for chosen in itertools.product(*(choice.options for choice in choices)):
        fits = all(
            sum(option.takes.get(name, 0) for option in chosen) <= limit
            for name, limit in limits.items()
        )
        if fits and (ram is None or sum(option.ram for option in chosen) <= ram):
            price = sum(
                choice.weight * option.price for choice, option in zip(choices, chosen, strict=True)
            )
            best = price if best is None else min(best, price)
    return best


def case(rng: random.Random) -> tuple[list[Choice], dict[str, int], int | None]:
    limits = {f"CUDA{i}": rng.randint(4, 24) for i in range(rng.randint(1, 3))}
    choices = []
    for _ in range(rng.randint(1, 4)):
        options = []
        for _ in range(rng.randint(1, 9)):
            names = rng.sample(sorted(limits), rng.randint(0, min(2, len(limits))))
            seconds = rng.choice([rng.uniform(1, 20), 5.0])
            options.append(
                Option(
                    Params(),
                    {name: rng.randint(1, 12) for name in names},
                    rng.randint(0, 15),
                    seconds,
                    seconds,
                )
            )
        choices.append(Choice(options, rng.choice([1, 1, 3, 0.5])))
    return choices, limits, rng.choice([None, 20, 40])


@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_all_choices(seed: int) -> None:
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
    monkeypatch.setattr(module, "STEPS", 0)
    rng = random.Random(7)
    for n in (3, 30):
        limits = {f"CUDA{i}": 40 for i in range(3)}
        choices = [
            Choice(
                [
                    Option(Params(), {name: size}, 0, seconds, seconds)
                    for name in limits
                    for size, seconds in ((rng.randint(2, 6), 1.0), (1, 4.0))
                ]
            )
            for _ in range(n)
        ]
        left, price = dict(limits), 0.0
        for choice in choices:
            fitting = [
                o
                for o in choice.options
                if all(size <= left[name] for name, size in o.takes.items())
            ]
            option = min(fitting, key=lambda o: o.price)
            left.update({name: left[name] - size for name, size in option.takes.items()})
            price += option.price
        found = assign(choices, limits, alike=dict.fromkeys(limits, "the same"))
        assert found is not None and found.price <= price and not found.exact


def test_of_equally_good_choices_that_with_the_fewest_models_to_a_device() -> None:
    limits = {"CUDA0": 24, "CUDA1": 24, "CUDA2": 24}
    choices = [
        Choice([Option(Params(), {name: 5}, 0, 1.0, 1.0) for name in limits]) for _ in range(3)
    ]
    found = assign(choices, limits, alike=dict.fromkeys(limits, "the same"))
    assert found is not None and {name for option in found.chosen for name in option.takes} == set(
        limits
    )
