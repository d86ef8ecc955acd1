"""Which GPU to buy: known GPUs, pairs of them and machines with unified memory that run a model, smallest
first.

    kinds = find(model, params, policy, n_ctx=32768)
    kinds[ONE][0].name, kinds[ONE][0].left, kinds[ONE][0].speed.generation

Each is measured like any launch. Launches on GPUs of one type take the same memory, so they share an
Estimator.
"""

from __future__ import annotations

import re

from ...devices.cards import CARDS
from ...devices.given import numbered
from ...flags.params import EXPERTS_REGEX, HOST_BUFFER
from ...machine import Device, Machine
from ...memory.companions import NONE
from ...memory.estimate import Estimator
from ...records import dataclass, replace
from ...units import GiB, MiB
from ...work.speed import CostModel
from ..evaluate import FIT, FULL, Evaluator
from ..one.solve import Search

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...devices.cards import Card
    from ...flags.params import Params
    from ...flags.policy import Policy
    from ...memory.companions import Companions
    from ...model import Model
    from ...work.speed import Speed
    from ..evaluate import Candidate

# what runs it, and how
ONE, TWO, UNIFIED, EXPERTS = "one card", "two cards", "unified memory", "experts in RAM"
KINDS = (ONE, TWO, UNIFIED, EXPERTS)
MOST = 12      # of one type; then all others with the same memory


@dataclass(frozen=True)
class Runs:
    """A GPU, or `count` of them, that runs the model; bytes. `left` is what remains free on the fullest one,
    `ram` what must be in system memory."""

    name: str
    description: str
    count: int
    memory: int
    left: int
    ram: int
    speed: Speed

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "description": self.description, "count": self.count,
                "memory": self.memory,
                "remaining": self.left, "ram": self.ram, "speed": self.speed.to_dict()}


class Wanted:
    """One model at the wanted context, to try on GPUs."""

    def __init__(self, model: Model, params: Params, policy: Policy, n_ctx: int,
                 companions: Companions = NONE) -> None:
        model = model.overridden(params.override_kv)
        self.policy = policy
        self.estimator = Estimator(model, policy.build, companions)
        self.model = model
        self.whole = replace(params, n_ctx=n_ctx, n_gpu_layers=model.hparams.n_layer_all + 1)

    def on(self, name: str, card: Card, count: int, experts: bool = False) -> Runs | None:
        """How it runs on `count` of this GPU; None if it does not fit."""
        device = Device.hypothetical(name)
        devices = tuple(numbered([device] * count))
        machine = Machine(devices, {each.name: each.free for each in devices}, self.policy.ram,
                          self.policy.ram)
        evaluator = Evaluator(self.estimator, machine, self.policy.margin)
        params = self.whole
        if experts:
            params = replace(params, overrides=(*params.overrides, (EXPERTS_REGEX, HOST_BUFFER)))
        if not evaluator.may_fit(params, any_split=True):
            return None
        cost = evaluator.cost(self.policy.workload)
        found = evaluator.candidate(params, FULL)
        if found is not None and not found.fits and count > 1:
            found = self._split(evaluator, cost, params)
        if found is None or not found.fits:
            return None
        return Runs(name, card.description, count, device.total, min(found.spare.values()),
                    found.breakdown.resident, cost.price(found))

    def _split(self, evaluator: Evaluator, cost: CostModel, params: Params) -> Candidate | None:
        """With the split that a plan would choose."""
        search = Search(evaluator, params, self.policy, cost, FIT)
        best = search.split.best(params)
        return None if best is None else evaluator.candidate(best.params, FULL)


def find(model: Model, params: Params, policy: Policy, n_ctx: int, companions: Companions = NONE,
         least: float = 0.0) -> dict[str, list[Runs]]:
    """The smallest that reach the wanted tokens per second, by category: least memory first, of equal memory
    the fastest. A GPU that suffices alone is listed neither in pairs nor with experts in RAM."""
    wanted = Wanted(model, params, policy, n_ctx, companions)
    alone: set[str] = set()
    found: dict[str, list[Runs]] = {}
    for kind, count, unified in ((ONE, 1, False), (UNIFIED, 1, True), (TWO, 2, False), (EXPERTS, 1, False)):
        found[kind] = []
        if kind == EXPERTS and not model.is_moe:
            continue
        for name, card in sorted(CARDS.items(), key=lambda item: item[1].usable):
            size = _gib(card.usable * MiB)
            if len(found[kind]) >= MOST and size > max(_gib(runs.memory) for runs in found[kind]):
                break
            if card.unified != unified or name in alone or (kind == TWO and _built_in(name)) \
                    or not card.bandwidth:       # as fast as unknown RAM
                continue
            runs = wanted.on(name, card, count, kind == EXPERTS)
            if runs is not None:
                alone |= {name} if count == 1 else set()
                if runs.speed.generation >= least:
                    found[kind].append(runs)
    return {kind: sorted(found[kind], key=lambda runs: (_gib(runs.memory), -runs.speed.generation))
            for kind in KINDS}


def _gib(memory: int) -> int:
    """The memory size on the box of a GPU with this much memory."""
    return -(-memory // GiB)


def _built_in(name: str) -> bool:
    """Laptop GPUs, which do not come in pairs: rtx-4070-laptop, rx-6800m, arc-a770m."""
    return re.search(r"-laptop|-a?\d+[ms]\b", name) is not None
