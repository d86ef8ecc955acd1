"""What properties.py says holds for random plans: a few cases in every run, a tenth of a thousand
with -m slow."""

import pytest
from decisions.properties import failures
from support import swept

QUICK = (*range(0, 1000, 100), 503)  # 503: a GPU that is too small for more than the output layer


@pytest.mark.parametrize("seed", swept(range(1000), 10, QUICK))
def test_a_plan_has_the_properties(seed: int) -> None:
    assert not failures(seed)
