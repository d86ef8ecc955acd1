"""From a model, a machine and the flags that are given to the launch that uses the machine best.

What is given stays, what is not given is solved (solve.py); the answer says what it takes (plan.py) and why
(explain.py).
"""

from __future__ import annotations

from ..machine import Machine
from .answer import fit_choice_on, plan_on, plan_request
from .plan import DeviceRow, FitChoice, HostRow, LayerRow, Plan

__all__ = ["DeviceRow", "FitChoice", "HostRow", "LayerRow", "Machine", "Plan", "fit_choice_on", "plan_on",
           "plan_request"]
