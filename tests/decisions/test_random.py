"""What properties.py says holds for random plans: a few cases in every run, a thousand with -m slow."""

import pytest
from decisions.properties import failures

FEW = 50        # every 50th case
ALWAYS = 503    # a GPU that is too small for more than the output layer


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed % FEW and seed != ALWAYS else [])
                                  for seed in range(1000)])
def test_a_plan_has_the_properties(seed: int) -> None:
    assert not failures(seed)
