"""Rules of thumb: memory for a model that has no file yet, by the published formulas, each named.

    from autolayers import rules
    rules.evaluate("serving", params="70B", bits=16, gpu="80GiB").gpus    # 2
    rules.evaluate_all(params="70B", bits=16)[0]["serving"].value         # 168e9 bytes

`autolayers.plan` is exact where there is a file; `rules.compare` sets the rules against it.
"""

from .evaluate import Result, evaluate, evaluate_all
from .exact import Comparison, compare
from .inputs import Inputs
from .table import RULES, Answer, Example, Rule

__all__ = [
    "RULES",
    "Answer",
    "Comparison",
    "Example",
    "Inputs",
    "Result",
    "Rule",
    "compare",
    "evaluate",
    "evaluate_all",
]
