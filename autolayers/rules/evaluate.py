"""Evaluates rules of thumb."""

from __future__ import annotations

from math import ceil

from ..errors import UsageError
from ..records import dataclass
from .inputs import Inputs, flag, read
from .table import RULES, Rule


@dataclass(frozen=True)
class Result:
    """What one rule says: bytes, or a count of layers (`rule.unit`)."""

    rule: Rule
    value: float
    working: str  # the formula with the numbers in it
    note: str = ""
    as_published: float | None = None  # the source's own figure where its arithmetic differs
    gpus: int | None = None  # GPUs of the given size that hold the value

    @property
    def gb(self) -> float:
        """The value in GB of 10**9 bytes, as the sources count."""
        return self.value / 1e9


def evaluate(name: str, **given: object) -> Result:
    """Return one rule by its name; inputs as numbers or as a user types them ("70B", "fp16",
    "80GiB").

    Raises UsageError for an unknown rule, for a missing input (naming its option) and for nonsense.

    >>> evaluate("serving", params="70B", bits=16).gb
    168.0
    """
    if name not in RULES:
        raise UsageError(f"no such rule: {name!r} (one of {', '.join(RULES)})")
    return apply(RULES[name], read(given))


def evaluate_all(**given: object) -> tuple[dict[str, Result], dict[str, str]]:
    """Return every rule whose inputs are there, by name; and for each other rule the reason why
    not.

    Raises UsageError for nonsense, and if no rule can be computed.
    """
    return apply_all(read(given))


def apply(rule: Rule, inputs: Inputs) -> Result:
    """Return one rule. Raises UsageError that names the options of the inputs that are missing."""
    missing = [flag(name) for name in rule.needs if getattr(inputs, name) is None]
    if missing:
        raise UsageError(f"{rule.name} needs {', '.join(missing)}")
    answer = rule.compute(inputs)
    # a rule that counts layers has no number of GPUs
    gpus = None
    if inputs.gpu is not None and rule.unit == "bytes":
        gpus = ceil(answer.value / inputs.gpu)
    return Result(rule, answer.value, answer.working, answer.note, answer.as_published, gpus)


def apply_all(inputs: Inputs) -> tuple[dict[str, Result], dict[str, str]]:
    """Return what `evaluate_all` says, of inputs that are read already."""
    results: dict[str, Result] = {}
    refused: dict[str, str] = {}
    for rule in RULES.values():
        # a scheme picks one of the training rules; others apply to any
        if inputs.scheme is not None and rule.scheme is not None and rule.scheme != inputs.scheme:
            continue
        try:
            results[rule.name] = apply(rule, inputs)
        except UsageError as error:
            # by name: which options this rule still needs
            refused[rule.name] = str(error)
    if not results:
        raise UsageError(
            "nothing to compute: give a model file, --params (with --bits for serving), or "
            "--layers, --hidden and --sequence for the KV cache"
        )
    return results, refused
