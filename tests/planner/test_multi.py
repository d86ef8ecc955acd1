"""Several models on one machine, through the library call."""

from __future__ import annotations

import gc
import sys

from support import HEADERS

import autolayers
from autolayers.api import plan_together
from autolayers.model.models import KEPT, Models
from autolayers.planner.multi import Together

PATH = str(HEADERS / "llama-3.2-1b-q8_0.gguf")


def test_of_many_models_only_their_plans_are_kept() -> None:
    read: list[str] = []

    def reader(name: str) -> autolayers.Model:
        read.append(name)
        return autolayers.read_model(PATH)

    def planned(n: int) -> tuple[Together, int]:
        gc.collect()
        before = sys.getallocatedblocks()
        found = plan_together(Models([str(i) for i in range(n)], reader), ["--gpu", "8GiB", "--ram", "64GiB"])
        gc.collect()
        return found, (sys.getallocatedblocks() - before) // n

    planned(KEPT)
    assert len(read) == KEPT
    found, blocks = planned(3 * KEPT)
    one = autolayers.read_model(PATH)
    assert blocks < 2 * len(one.tensors)             # a model is ten objects for each tensor
    plan = found.plans[-1]
    assert (plan.model.name, plan.model.size, plan.n_layer) == (one.name, one.size, one.n_layer)
    assert plan.to_dict() and plan.speed.generation > 0
