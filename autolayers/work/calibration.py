"""Predictions corrected by launches that were measured on the machine.

    Calibration(machine.measured).of("MoE in RAM", "tg")     # Correction(factor=0.81, runs=3, ...)

A class of launches that was measured takes of its ratio what belongs to the machine rather than to
the launch's model and depth: more with each run (benchmarks/fit_speed.py). The other classes take
the part of it that a machine's classes share.
"""

from __future__ import annotations

from math import exp, log

from ..records import dataclass
from .rates import ONE_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..machine import Ratio

SHARED = 0.5  # of a ratio's logarithm


@dataclass(frozen=True)
class Correction:
    """What a predicted rate is multiplied by, and the measured runs that say so. `own`: they are of
    its class."""

    factor: float = 1.0
    runs: int = 0
    date: str = ""
    own: bool = False


NONE = Correction()


def counted(runs: int, one: float) -> float:
    """Return the part of their ratio's logarithm that `runs` launches of a class share with the
    machine's others, if one launch shares the part `one`."""
    return runs * one / (1 + (runs - 1) * one)


class Calibration:
    """Corrections by class and kind of rate."""

    def __init__(
        self,
        measured: Sequence[Ratio],
        one_run: Mapping[tuple[str, str], float] = ONE_RUN,
    ) -> None:
        self.measured = measured
        self.one_run = one_run

    def of(self, placement: str, kind: str) -> Correction:
        """Return the correction of one kind of rate (tg, pp) of a class of launches."""
        rows = [row for row in self.measured if row.kind == kind]
        own = [row for row in rows if row.placement == placement]
        if own:
            runs = sum(row.n for row in own)
            mean = sum(log(row.ratio) * row.n for row in own) / runs
            # A part of the ratio is the launch's own and not the machine's; more runs tell them
            # apart.
            mean *= counted(runs, self.one_run[placement, kind])
            return Correction(exp(mean), runs, max(row.date for row in own), True)
        if not rows:
            return NONE
        # Each class counts once, however many launches of it were measured.
        classes: dict[str, list[float]] = {}
        for row in rows:
            classes.setdefault(row.placement, []).append(log(row.ratio))
        means = [sum(values) / len(values) for values in classes.values()]
        return Correction(
            exp(SHARED * sum(means) / len(means)),
            sum(row.n for row in rows),
            max(row.date for row in rows),
        )
