"""A better launch than the plan would exist.

Plans are the best launches there are (regret.py enumerates them).
"""

import pytest
from decisions.regret import regret
from support import swept


@pytest.mark.slow
@pytest.mark.parametrize("seed", swept(range(60), 15, [2]))
def test_a_plan_is_near_the_best_launch_of_its_space(seed: int) -> None:
    ratio, words = regret(seed)
    assert ratio <= 1.03, words
