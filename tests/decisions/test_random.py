"""A larger card, a permission or the plan's own flags would give a worse plan.

What properties.py says holds for random plans: a few cases in every run, a tenth of a thousand
with -m slow.
"""

import pytest
from decisions.properties import failures
from support import of_today, slow, swept

QUICK = (
    503,  # a GPU that is too small for more than the output layer
    44399,  # nothing fits, and --fit's launch has no -ngl
    62029,  # caches in RAM, with which the output alone is faster than the whole model
)
# a second or more each
LONG = (
    47146,  # with a cache in RAM, graph buffers of a small context are much smaller
    44441,  # as 44357, with weights that -ot sends to RAM
    44357,  # without flash attention what operations take grows with the context
    44381,  # only the second best order of three cards has room for layers
    44477,  # a Mac whose RAM is too small for a micro-batch of 2048
    44792,  # an integrated GPU that only computes prompts
    44313,  # only another kind of placement is better in another order of two cards
    46269,  # a layer whose FFN weights would be on two of three GPUs
    48010,  # caches in RAM, with which the output alone on a GPU is faster than five layers
    46191,  # one GPU alone is found first, and the listed order is better
    45813,  # a mixture of experts for which 8192 tokens would take half as long again
    61016,  # experts fit only on a GPU that computes no attention
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*swept(range(1000), 100, QUICK), *map(slow, of_today(LONG, 5))])
def test_a_plan_has_the_properties(seed: int) -> None:
    assert not failures(seed)
