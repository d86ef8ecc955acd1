"""Shares of unequal devices with -sm tensor, where -ts does not give them: llama.cpp gives each the same."""

from __future__ import annotations

from ..records import replace
from .evaluate import FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..flags.params import Params
    from .cost import CostModel
    from .evaluate import Evaluator

ALIKE = 1.05             # devices whose memory and bandwidth differ by less get the same share


def choices(evaluator: Evaluator, cost: CostModel, given: Params) -> list[tuple[float, ...] | None]:
    """-ts of `given`: llama.cpp's equal shares (None), and of unequal devices those by bandwidth and by the memory that
    is left for slices. One where there is nothing to choose."""
    names = evaluator.device_names(given) if given.split_mode == "tensor" and given.tensor_split is None else []
    if len(names) < 2:
        return [given.tensor_split]
    limits = [float(evaluator.machine.limits[name]) for name in names]
    rates = [cost.devices[name].bandwidth for name in names]
    if all(max(each) <= ALIKE * min(each) for each in (limits, rates)):
        return [None]
    found = [None, _percent(rates)]
    left = _left(evaluator, given, names)
    if left and min(left) > 0:
        found.append(_percent(left))
    return list(dict.fromkeys(found))


def _left(evaluator: Evaluator, given: Params, names: Sequence[str]) -> list[float]:
    """Bytes of each device for slices: without graph buffers, margins, and what every device holds whole."""
    whole = evaluator.static(replace(given, tensor_split=tuple(float(i == 0) for i in range(len(names)))))
    equal = evaluator.candidate(given, FULL)
    if whole is None or equal is None:
        return []
    limits, overheads = evaluator.machine.limits, equal.overheads(evaluator.machine.limits)
    copied = whole.devices[names[-1]].model
    return [float(limits[name] - overheads.get(name, 0) - copied) for name in names]


def _percent(parts: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(max(1, round(100 * part / sum(parts)))) for part in parts)
