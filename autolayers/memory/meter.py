"""What the estimates of one question may cost: one budget for its search, its reasons and its
remedies.

    meter = Meter()
    estimator = Estimator(model, meter=meter)       # and every other Estimator of the question
    meter.exhausted, meter.refused
"""

from __future__ import annotations

# In nodes of graphs laid out; each stands for 5 to 10 microseconds of one core. Plans of real
# models take 80,000 to 710,000 with their reasons, large mixtures on four GPUs up to 900,000; a
# header may declare 512 different layers.
BUDGET = 750_000


LARGE = 15_000  # nodes of a graph

# What else is counted, in nodes that take as long, for each layer: a placement of the weights, the
# bytes of single layers, and who computes what
PLACED, BY_LAYER, WORK = 2, 18, 6


class OverBudget(Exception):
    """The budget was spent in the middle of a launch that need not be measured."""


class Meter:
    """Counts what the Estimators of a question do. `refused`: something was not measured because of
    the budget."""

    def __init__(self, budget: int | None = None) -> None:
        self.budget = BUDGET if budget is None else budget
        self.spent = 0
        self.refused = False
        self.ends = False  # whether OverBudget ends the measuring of the present launch

    def laid_out(self, nodes: int) -> None:
        """Count a graph. Raises OverBudget."""
        # Beyond LARGE, which no real model's is, its tensors are not in a core's caches.
        self.spent += nodes + max(0, nodes - LARGE)
        if self.ends and self.exhausted:
            raise OverBudget

    @property
    def exhausted(self) -> bool:
        """Whether nothing more may be measured; who asks and is refused leaves a mark."""
        over = self.spent > self.budget
        self.refused = self.refused or over
        return over
