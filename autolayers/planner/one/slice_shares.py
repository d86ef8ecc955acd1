"""Shares of unequal devices under -sm tensor without -ts; llama.cpp's default is equal shares."""

from __future__ import annotations

from ...records import replace
from ..evaluate import FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...flags.params import Params
    from ...work.speed import CostModel
    from ..evaluate import Evaluator

ALIKE = 1.05  # devices whose memory and bandwidth differ by less get the same share
# small integers, which match the ends of heads and blocks better than percentages
_PARTS = range(2, 9)


def choices(evaluator: Evaluator, cost: CostModel, given: Params) -> list[tuple[float, ...] | None]:
    """Values for -ts: llama.cpp's equal shares (None), and for unequal devices those by bandwidth
    and by the memory left for slices. Only one value if there is nothing to choose."""
    names = (
        evaluator.device_names(given)
        if given.split_mode == "tensor" and given.tensor_split is None
        else []
    )
    if len(names) < 2:
        return [given.tensor_split]
    limits = [float(evaluator.machine.limits[name]) for name in names]
    rates = [cost.devices[name].bandwidth for name in names]
    if all(max(each) <= ALIKE * min(each) for each in (limits, rates)):
        return [None]
    wanted = [rates, _left(evaluator, given, names)]
    found = [
        _nearest(evaluator, given, names, parts) for parts in wanted if parts and min(parts) > 0
    ]
    return list(dict.fromkeys((None, *found)))


def _left(evaluator: Evaluator, given: Params, names: Sequence[str]) -> list[float]:
    """Bytes of each device for slices: without graph buffers, margins, and what every device holds
    in full."""
    whole = evaluator.static(
        replace(given, tensor_split=tuple(float(i == 0) for i in range(len(names))))
    )
    equal = evaluator.candidate(given, FULL)
    if whole is None or equal is None:
        return []
    limits, overheads = evaluator.machine.limits, equal.overheads(evaluator.machine.limits)
    copied = whole.devices[names[-1]].model
    return [float(limits[name] - overheads.get(name, 0) - copied) for name in names]


def _nearest(
    evaluator: Evaluator, given: Params, names: Sequence[str], parts: Sequence[float]
) -> tuple[float, ...]:
    """The shares whose slices come closest to these parts; slices end at heads and blocks."""

    def excess(shares: tuple[float, ...]) -> float:
        use = evaluator.static(replace(given, tensor_split=shares))
        if use is None:
            return float("inf")
        return max(
            (use.devices[name].model + use.devices[name].context) / part
            for name, part in zip(names, parts, strict=True)
        )

    whole = sum(parts)
    return min(
        (tuple(float(max(1, round(n * part / whole))) for part in parts) for n in (100, *_PARTS)),
        key=excess,
    )
