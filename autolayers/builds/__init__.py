"""What changed in llama.cpp at which build: the one place that compares build numbers.

    rules(11434).mixed_input       # whether that build has this rule of the table
    rules(None)                    # the newest known
    Build(7000).knows("-lm")       # whether it accepts a flag

A change of llama.cpp is a line of rules.tsv; graph, memory, backends and launch read it by
its name.
"""

from __future__ import annotations

from .build import TODAY, Build
from .rule import Rule, RuleSet
from .sources import NEWEST
from .table import NEWEST_RULES, OLDEST_EXACT, Rules, rules

__all__ = [
    "NEWEST",
    "NEWEST_RULES",
    "OLDEST_EXACT",
    "TODAY",
    "Build",
    "Rule",
    "RuleSet",
    "Rules",
    "rules",
]
