"""From a model, a machine and the given flags to the launch that makes the best use of the machine.
Given flags stay fixed, the others are solved (search.py). The answer says what the launch takes
(plan.py) and why it was chosen (explain.py)."""

from __future__ import annotations

from ..machine import Machine
from .answer import fit_choice, plan_in_steps, plan_request
from .plan import DeviceRow, FitChoice, HostRow, LayerRow, Plan

__all__ = [
    "DeviceRow",
    "FitChoice",
    "HostRow",
    "LayerRow",
    "Machine",
    "Plan",
    "fit_choice",
    "plan_in_steps",
    "plan_request",
]
