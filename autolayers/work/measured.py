"""Published measurements of launches, to show beside a prediction: measured.csv, made by `python
fixtures/measured.py` of the rows that the constants are fitted to. It is read when it is asked for,
never to plan.

    asked = Asked.of(model, devices, "MoE in RAM", share=0.4, depth=2048)
    row = nearest(asked, "tg")
    row.rate, row.model, row.source
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import exp, log, log2

from ..backends import HOST
from ..devices.cards import CARDS
from ..devices.names import described
from ..flags.params import N_UBATCH
from ..keys import written
from ..machine import CLASSES
from ..records import dataclass, replace
from ..tables import text
from .rates import DOUBT
from .work import WeightCosts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..model import Model

_TWIN = 0.05  # active bytes this close are those of a twin
ENOUGH = 3  # measurements that a prediction is drawn to
_SHARE = 0.1  # of the weights: a placement this close is the same
_TENTH = 10.0  # how much a tenth of the weights elsewhere counts, in halvings of the depth
_KILO = 1024
_NO_SOURCE = 1.0  # nobody can read of it: as much as a halving
# builds of before were slower, which counts as much as these halvings of the depth
_OLD, _AGED = "2025", 4.0


@dataclass(frozen=True)
class MeasuredRate:
    """One measured rate in tokens per second: `kind` tg (tokens) or pp (prompts). `active`: bytes
    of weights that a token reads, `size` of all weights. `share`: the part of the active bytes that
    devices read. `ram`: bytes per second, None if it was not said. `predicted`: by the constants of
    this version."""

    id: str
    kind: str
    rate: float
    predicted: float
    placement: str
    cards: tuple[str, ...]
    backend: str
    model: str
    architecture: str
    active: int
    size: int
    share: float
    prompt: int
    generate: int
    depth: int
    words: str
    ram: float | None
    cores: int | None
    build: int | None
    date: str
    source: str  # where to read of it, "" if its address is not known

    @property
    def old(self) -> bool:
        """Whether its build is of before 2025, which were slower."""
        return self.date < _OLD

    @property
    def n_ubatch(self) -> int:
        words = self.words.split()
        return int(words[words.index("-ub") + 1]) if "-ub" in words else N_UBATCH

    def off(self, spread: float) -> bool:
        """Return whether its own prediction is off by more than a range says."""
        return not 1 / spread <= self.rate / self.predicted <= spread

    def to_dict(self) -> dict[str, object]:
        """Return the row with the names that the rows of fixtures/speeds and `tune --share`
        have."""
        return written("measured.prompt", self)


# how a value of the table is read, by its field's type
_READS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "int | None": lambda value: int(value) if value else None,
    "float | None": lambda value: float(value) if value else None,
    "tuple[str, ...]": lambda value: tuple(filter(None, value.split("+"))),
}


# Read once, when the first plan shows a measurement.
@cache
def rows() -> tuple[MeasuredRate, ...]:
    """Return all of them, of launches with stock settings, by llama-bench or a server."""
    import csv  # on demand

    lines = csv.DictReader(text("work/measured.csv").splitlines())
    columns = {name: _READS[kind] for name, kind in MeasuredRate.__annotations__.items()}
    return tuple(
        [
            MeasuredRate(
                **{
                    name: read(values["class" if name == "placement" else name])
                    for name, read in columns.items()
                }
            )
            for values in lines
        ]
    )


@dataclass(frozen=True)
class Asked:
    """A launch whose measurements are wanted; the fields are a Row's."""

    architecture: str
    active: int
    cards: tuple[str, ...]
    backend: str
    placement: str
    share: float = 1.0
    depth: float = 0.0

    @classmethod
    def of(
        cls,
        model: Model,
        cards: Sequence[str],
        backend: str,
        placement: str,
        share: float = 1.0,
        depth: float = 0.0,
    ) -> Asked:
        """Return the launch of a model on these cards (the names of `--gpu`)."""
        return cls(
            model.architecture, active(model), tuple(cards), backend, placement, share, depth
        )

    def sharing(self, share: float) -> Asked:
        """Return the launch with devices that read this part of the active bytes."""
        return replace(self, share=share)

    def at(self, depth: float) -> Asked:
        """Return the launch at this depth, in tokens."""
        return replace(self, depth=depth)


@lru_cache(maxsize=1)
def active(model: Model) -> int:
    """Return the bytes of weights that a token reads: of experts those that are chosen."""
    weights = WeightCosts(model)
    return round(sum(each.dense + each.experts * weights.used for each in weights.reads.values()))


def card_of(description: str, total: int) -> str:
    """Return the name of `--gpu` of a device with this description and as many bytes; "" if it is
    none that is known."""
    card = described(description, total >> 20)
    return next((name for name, listed in CARDS.items() if listed is card), "")


def alike(launch: Asked, kind: str) -> list[MeasuredRate]:
    """Return the rows of that model or a twin of it, placed alike on those cards; the nearest
    first, of equal ones the newest."""
    matching = [row for row in rows() if row.kind == kind and _is(row, launch)]
    return sorted(
        matching, key=lambda row: (_distance(row, launch), [-ord(letter) for letter in row.date])
    )


def nearest(launch: Asked, kind: str) -> MeasuredRate | None:
    """Return the first of `alike`."""
    return next(iter(alike(launch, kind)), None)


def _is(row: MeasuredRate, launch: Asked) -> bool:
    if (row.architecture, row.backend, row.placement) != (
        launch.architecture,
        launch.backend,
        launch.placement,
    ):
        return False
    return abs(log(row.active / launch.active)) <= log(1 + _TWIN) and same(row.cards, launch.cards)


def same(some: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether these are the same cards; how much memory they have does not matter."""
    return sorted(map(_kind, some)) == sorted(map(_kind, others))


def _kind(name: str) -> str:
    """Return what cards of one name and several sizes have in common."""
    return CARDS[name].description if name in CARDS else name


def _distance(row: MeasuredRate, launch: Asked) -> float:
    """Return how far a row is, in halvings of the depth."""
    # Twins within 5 % of the active bytes: the limit itself counts as one halving.
    size = abs(log(row.active / launch.active)) / log(1 + _TWIN)
    depth = abs(log2((_KILO + row.depth + row.prompt / 2) / (_KILO + launch.depth)))
    less = (_AGED if row.old else 0.0) + (0.0 if row.source else _NO_SOURCE)
    return size + depth + _TENTH * abs(row.share - launch.share) + less


def drawn(launch: Asked, kind: str, predicted: float, within: float) -> tuple[float, int] | None:
    """Return what measurements make of a prediction that is off by more than `within`: tokens per
    second, and how many there are; None with fewer than ENOUGH, or if they do not contradict it.
    Each counts by how far its own prediction is off, so that depth and placement do not matter, and
    builds of before 2025 do not."""
    ratios = [
        row.rate / row.predicted
        for row in alike(launch, kind)
        if abs(row.share - launch.share) <= _SHARE and not row.old
    ]
    if len(ratios) < ENOUGH:
        return None
    # All measurements must contradict it to the same side.
    slower = max(ratios) < 1 / within
    faster = min(ratios) > within
    if not (slower or faster):
        return None
    from statistics import median  # slow to import, and most plans need none

    # As if one more measurement agreed with the prediction.
    n = len(ratios)
    return predicted * exp(log(median(ratios)) * n / (n + 1)), n


def wanted(cards: Sequence[str]) -> str:
    """Return the class of launches whose row would help a machine with these cards most: the least
    measured there, of equal ones the one whose predictions are the least sure."""
    if not cards:
        return HOST
    count = dict.fromkeys(
        [name for name in CLASSES if (name == "multi-GPU") == (len(cards) > 1) and name != HOST], 0
    )
    for row in of_cards(cards):
        if row.placement in count:
            count[row.placement] += 1
    return min(count, key=lambda name: (count[name], -DOUBT[name, "tg"] * DOUBT[name, "pp"]))


def of_cards(cards: Sequence[str]) -> list[MeasuredRate]:
    """Return the rows of exactly these cards."""
    return [row for row in rows() if same(row.cards, cards)]
