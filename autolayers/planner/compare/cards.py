"""Which GPU to buy: known GPUs, pairs of them and machines with unified memory that run a model,
smallest first.

    kinds = find(model, request, n_ctx=32768)
    kinds[ONE][0].name, kinds[ONE][0].left, kinds[ONE][0].speed.generation

Each is measured like any launch, with the default micro-batch; what is listed has the one that a
plan of it chooses. Launches on GPUs of one type take the same memory, so they share an Estimator.
"""

from __future__ import annotations

import re

from ...devices.assumed import host_of
from ...devices.cards import CARDS, Card
from ...devices.given import numbered
from ...flags.params import N_BATCH, Params
from ...machine import Device, Machine
from ...memory.meter import BUDGET, Meter
from ...records import dataclass, replace
from ...units import GiB, MiB
from ..buffers import Buffers
from ..candidates import PlacementKind
from ..evaluate import FIT, FULL
from ..frames import Frame
from ..measured import Measured, measured_on
from ..one.bisection import largest_count
from ..one.ladder import Ladder
from ..one.most import divided
from ..one.overrides import with_experts_on_host
from ..prices import MICRO_BATCH
from ..problem import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...model import Model
    from ...request import Request
    from ...work.speed import Speed

# what runs it, and how
ONE, TWO, UNIFIED, EXPERTS = "one card", "two cards", "unified memory", "experts in RAM"
# The names are keys of the JSON and headings of the report.
KINDS = (ONE, TWO, UNIFIED, EXPERTS)
MOST = 12  # of one type; then all others with the same memory
# What people buy new or used, listed wherever it runs the model, though others of its size are
# faster or enough smaller ones do
USUAL = ("rtx-3060", "rtx-4060-ti-16g", "rtx-5060-ti-16g", "rtx-3090", "rtx-4090", "rtx-5090")


@dataclass(frozen=True)
class Runs:
    """A card, or `count` of them, that runs the model; bytes. `left` is what remains on the fullest
    one, `ram` what must be in system memory, `n_cpu_moe` the layers whose experts are there
    (-ncmoe)."""

    name: str
    description: str
    count: int
    memory: int
    left: int
    ram: int
    speed: Speed
    n_cpu_moe: int = 0
    measured: Measured | None = None

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "description": self.description,
            "count": self.count,
            "memory": self.memory,
            "remaining": self.left,
            "ram": self.ram,
            "n_cpu_moe": self.n_cpu_moe,
            "speed": self.speed.to_dict(),
            "measured": self.measured.to_dict() if self.measured else None,
        }


class WantedModel:
    """One model at the wanted context, to try on GPUs."""

    def __init__(self, model: Model, request: Request, n_ctx: int) -> None:
        # The context is given, as in the command that plans one of them: with it a request's time
        # is that of several depths.
        at = request.with_flags(n_ctx=n_ctx)
        # Five times a plan's budget, as each of hundreds of cards may be tried.
        self.problem = Problem(model, at, meter=Meter(5 * BUDGET))
        self.model = self.problem.model
        self.whole = replace(request.params, n_ctx=n_ctx, n_gpu_layers=self.problem.everything)

    def on(self, name: str, card: Card, count: int, experts: bool = False) -> Runs | None:
        """Return how it runs on a number of this card, with as few layers' `experts` in RAM as
        needed; None where it does not fit."""
        problem = self._on(name, count)
        if not experts:
            return self._runs(problem, name, card, self.whole)
        low = self._fewest(problem, self.whole)
        runs = self._runs(problem, name, card, with_experts_on_host(self.whole, range(low)))
        # -ncmoe 0 is the same launch as on one card, which ONE lists.
        return None if runs is None or not low else replace(runs, n_cpu_moe=low)

    def batched(self, runs: Runs, card: Card, min_rate: float) -> Runs:
        """Return how a card runs it with the micro-batch that answers a request soonest, at this
        rate or more: with experts in RAM a larger one reads them less often."""
        problem = self._on(runs.name, runs.count)
        # Of the flags that were asked for: all layers are given here
        for size in self._soonest(problem, runs, Frame(problem, problem.given).micro_batches):
            if self.exhausted:
                break
            whole = replace(self.whole, n_ubatch=size, n_batch=max(N_BATCH, size))
            layers = self._fewest(problem, whole, runs.n_cpu_moe) if runs.n_cpu_moe else 0
            params = with_experts_on_host(whole, range(layers))
            other = self._runs(problem, runs.name, card, params)
            if other is not None and other.speed.generation >= min_rate:
                better = other.speed.compared * MICRO_BATCH.factor < runs.speed.compared
                return replace(other, n_cpu_moe=layers) if better else runs
        return runs

    def _soonest(self, problem: Problem, runs: Runs, sizes: Sequence[int]) -> Iterator[int]:
        """Yield the micro-batches that answer a request sooner than the default one, the soonest
        first, by weights and caches alone: no graph is built for the others."""
        order = []
        for size in sizes:
            whole = replace(self.whole, n_ubatch=size, n_batch=max(N_BATCH, size))
            params = with_experts_on_host(whole, range(runs.n_cpu_moe))
            use = problem.evaluator.static(params)
            if use is not None:
                order.append((problem.cost.predict(params, use).compared, size))
        now = runs.speed.compared / MICRO_BATCH.factor
        # Of equal ones the smaller, as a plan takes it
        yield from [size for seconds, size in sorted(order) if seconds < now]

    def _fewest(self, problem: Problem, whole: Params, low: int = 0) -> int:
        """Return the fewest layers, `low` or more, whose experts are in RAM so that the others are
        on the card; all of them for none."""
        n_layer = self.model.n_layer
        on_card = Ladder("experts", whole, n_layer)
        most = largest_count(problem.evaluator, on_card, n_layer - low, FULL, {})
        return n_layer if most is None else len(most.params.overrides) - len(whole.overrides)

    def _on(self, name: str, count: int) -> Problem:
        devices = tuple(numbered([Device.hypothetical(name)] * count))
        # A machine with unified memory brings its RAM; for a card it is --ram, if given.
        size = devices[0].ram or self.problem.policy.ram
        host = None if size is None else host_of(size, devices)
        return self.problem.on(Machine.of(devices, host, None, {}))

    @property
    def exhausted(self) -> bool:
        """Whether no further card can be tried."""
        return self.problem.evaluator.exhausted

    def _runs(self, problem: Problem, name: str, card: Card, params: Params) -> Runs | None:
        evaluator = problem.evaluator
        number = len(problem.machine.devices)
        # Most cards of a list are too small; two bounds of bytes say so without a graph.
        if not evaluator.may_fit(params, any_split=True):
            return None
        candidate = evaluator.candidate(params, FULL)
        # llama.cpp splits by free memory; another split may fit where that does not.
        if candidate is not None and not candidate.fits and number > 1:
            # The launch with the split that a plan would choose.
            frame = Frame(problem, candidate.params)
            own, candidate = candidate, None
            if frame.splits:
                kind = PlacementKind(frame, "given", own.params, Buffers(problem.machine.limits))
                # What llama.cpp's own split took tells the size of the buffers, so that the first
                # guess is close.
                kind.record(own)
                ladder = Ladder("layers", own.params, problem.everything)
                count = own.params.layers_wanted(problem.everything)
                best = divided(kind, ladder, count, FIT)
                candidate = best and evaluator.candidate(best.params, FULL)
        if candidate is None or not candidate.fits:
            return None
        speed = problem.cost.price(candidate)
        device = problem.machine.devices[0]
        return Runs(
            name,
            card.description,
            number,
            device.total,
            # The fullest device decides what could still be added.
            min(candidate.spare.values()),
            candidate.breakdown.resident,
            speed,
            measured=measured_on(self.model, [name] * number, device.backend, speed),
        )


def find(
    model: Model,
    request: Request,
    n_ctx: int,
    min_rate: float = 0.0,
    say: Callable[[str], None] = lambda note: None,
) -> dict[str, list[Runs]]:
    """Return, by category, the smallest GPUs that reach the wanted tokens per second, and the USUAL
    ones: the least memory first, the fastest first among equals. A GPU that suffices alone is
    listed neither in pairs nor with experts in RAM. `say` is told if not all were tried."""
    wanted = WantedModel(model, request, n_ctx)
    by_kind: dict[str, list[Runs]] = {}
    # Cards that run it alone are not listed again as pairs or with experts in RAM.
    alone: set[str] = set()
    tried: set[str] = set()
    for kind in (ONE, UNIFIED, TWO, EXPERTS):  # what suffices alone comes first
        # Those that are too slow alone count too: a second one computes after the first, and adds
        # no speed.
        running = list(_of_kind(wanted, kind, alone, tried, min_rate, say))
        by_kind[kind] = [runs for runs in running if runs.speed.generation >= min_rate]
        alone |= {runs.name for runs in running if runs.count == 1}
    runs = by_kind[EXPERTS]
    # The fastest of each size, and the usual ones
    fastest: dict[int, Runs] = {}
    for each in sorted(runs, key=lambda each: each.speed.request):
        fastest.setdefault(_gib(each.memory), each)
    by_kind[EXPERTS] = [
        each for each in runs if each.name in USUAL or each is fastest[_gib(each.memory)]
    ]
    by_kind = {
        kind: [wanted.batched(each, CARDS[each.name], min_rate) for each in rows]
        for kind, rows in by_kind.items()
    }
    return {
        kind: sorted(by_kind[kind], key=lambda runs: (_gib(runs.memory), -runs.speed.generation))
        for kind in KINDS
    }


def _of_kind(
    wanted: WantedModel,
    kind: str,
    alone: set[str],
    tried: set[str],
    min_rate: float,
    say: Callable[[str], None],
) -> Iterator[Runs]:
    """Yield those that run it, until MOST are fast enough; then the USUAL ones. `alone` is of those
    `tried` alone."""
    sizes: list[int] = []  # of those that are fast enough
    largest: int | None = None  # what is listed of more memory is usual
    # Stays None until enough are fast enough; from then on only USUAL ones of more memory are
    # tried.
    cards = by_size()
    if kind == EXPERTS:
        cards = _strongest() if wanted.model.is_moe else []
    for name, card in cards:
        if card.unified != (kind == UNIFIED) or name in alone:
            continue
        if not card.bandwidth or (kind == TWO and _built_in(name)):  # as fast as unknown RAM
            continue
        if largest is None:
            # With experts in RAM several cards of one size are tried, but only the fastest is
            # listed.
            number = len(set(sizes)) if kind == EXPERTS else len(sizes)
            largest = max(sizes) if number >= MOST else None
        if largest is not None and _gib(card.usable * MiB) > largest and name not in USUAL:
            continue
        if wanted.exhausted:
            say(f"{kind}: from {name} on no card was tried, as this model's graphs are very large")
            return
        # Who would run it alone, and was not tried as enough others do, is no pair
        if kind == TWO and name not in tried and wanted.on(name, card, 1) is not None:
            continue
        if kind == ONE:
            tried.add(name)
        runs = wanted.on(name, card, 2 if kind == TWO else 1, kind == EXPERTS)
        if runs is None:
            continue
        if runs.speed.generation >= min_rate:
            sizes.append(_gib(runs.memory))
        yield runs


def example(by_kind: Mapping[str, Sequence[Runs]]) -> Runs | None:
    """Return one of them to plan for: a usual card where one runs it."""
    rows = [runs for kind in KINDS for runs in by_kind[kind]]
    usual = [runs for runs in rows if runs.name in USUAL and runs.count == 1]
    return next(iter([*usual, *rows]), None)


def by_size() -> list[tuple[str, Card]]:
    return sorted(CARDS.items(), key=lambda item: item[1].usable)


def _strongest() -> list[tuple[str, Card]]:
    """Return each backend's strongest card of each size of memory, and the usual ones, the smallest
    first: with experts in RAM most sizes run a model."""
    strongest_of: dict[tuple[int, str], tuple[str, Card]] = {}
    for name, card in CARDS.items():
        # A size of each backend, e.g. one of AMD beside one of NVIDIA.
        kind = _gib(card.usable * MiB), card.backend
        if (
            not card.unified
            and not _built_in(name)
            and (kind not in strongest_of or _power(card) > _power(strongest_of[kind][1]))
        ):
            strongest_of[kind] = name, card
    strongest = {name for name, _ in strongest_of.values()}
    return [(name, card) for name, card in by_size() if name in strongest or name in USUAL]


def _power(card: Card) -> float:
    """Return how strong a card is: tokens take bandwidth, prompts arithmetic."""
    return card.bandwidth * card.fp16


def _gib(memory: int) -> int:
    """Return the memory size on the box of a GPU with this much memory."""
    # Rounded up, as a driver reports somewhat less than the box says, e.g. 23.6 of 24 GiB.
    return -(-memory // GiB)


def _built_in(name: str) -> bool:
    """Return whether it is a laptop's GPU, which does not come in pairs: rtx-4070-laptop, rx-6800m,
    arc-a770m."""
    return re.search(r"-laptop|-a?\d+[ms]\b", name) is not None
