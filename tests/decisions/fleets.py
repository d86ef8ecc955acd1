"""Random fleets against what anybody could do: every machine given whole to one model, in every
way that there is.

    python tests/decisions/fleets.py [first seed] [number]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import model

from autolayers.devices.fleet_file import Fleet, read
from autolayers.errors import DoesNotFit
from autolayers.flags.users import Users
from autolayers.planner.compare.fleet.answer import FleetPlan, Wanted
from autolayers.planner.compare.fleet.options import option_of, part
from autolayers.planner.compare.fleet.plan import plan_fleet
from autolayers.request import Request
from autolayers.units import GiB

CARDS = ("rtx-3060", "rtx-4060-ti-16g", "rtx-3090", "rtx-4090", "rx-7900-xtx", "l40s")
MODELS = (
    "llama-3.2-1b-q8_0",
    "gemma-3-4b-q8_0",
    "llama-3.1-8b-q4_k_m",
    "qwen3-30b-a3b-q4_k_m",
    "qwen2.5-coder-7b-q5_k_m",
    "nomic-embed-text-v1.5-f16",
    "bge-m3-f16",
)
MOST_WAYS = 3_000  # of giving machines to models, beyond which a fleet is not compared


def drawn(seed: int) -> tuple[dict[str, object], list[str], Users]:
    """Return the machines of a fleet file, models, and what each user wants."""
    chance = random.Random(seed)
    machines: dict[str, object] = {}
    for at in range(chance.randint(1, 4)):
        cards = [chance.choice(CARDS)] * chance.choice((1, 1, 2))
        machines[f"m{at}"] = {
            "devices": [{"card": card} for card in cards],
            "host": {"total": chance.choice((32, 64, 128)) * GiB},
            "count": chance.choice((1, 1, 2, 3)),
        }
    models = chance.sample(MODELS, chance.randint(1, 6))
    return machines, models, Users(rate=chance.choice((0.0, 5.0, 15.0)))


def by_hand(fleet: Fleet, names: Sequence[str], each: Users) -> float:
    """Return the users in all where each machine serves one model whole, the best way of all;
    0 where there are too many ways to try."""
    request = Request.of([], {}, devices=[])
    serves = [
        [option_of(model(name), request, part(kind, kind.gpus, request.policy), each).users]
        for kind in fleet.kinds
        for name in names
    ]
    of_kind = [
        [users for (users,) in serves[at * len(names) : (at + 1) * len(names)]]
        for at in range(len(fleet.kinds))
    ]
    boxes = [at for at, kind in enumerate(fleet.kinds) for _ in kind.machines]
    if len(names) ** len(boxes) > MOST_WAYS:
        return 0.0
    best = 0.0
    for way in product(range(len(names)), repeat=len(boxes)):
        users = [0] * len(names)
        for box, chosen in zip(boxes, way, strict=True):
            users[chosen] += of_kind[box][chosen]
        best = max(best, min(users) * len(names))
    return best


def compared(seed: int) -> tuple[FleetPlan | None, float]:
    """Return the plan, None where no model is served, and the users of the best way by hand."""
    machines, names, each = drawn(seed)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "fleet.json"
        path.write_text(json.dumps({"machines": machines}))
        fleet = read(str(path))
    hand = by_hand(fleet, names, each)
    request = Request.of([], {}, devices=[])
    try:
        found = plan_fleet(
            [model(name) for name in names], request, fleet, [1.0] * len(names), Wanted(None, each)
        )
    except DoesNotFit:
        return None, hand
    return found, hand


def main() -> None:
    first, number = (*map(int, sys.argv[1:]), 0, 100)[:2]
    worse = without = 0
    for seed in range(first, first + number):
        found, hand = compared(seed)
        most = 0 if found is None or found.unserved else found.most
        bound = None if found is None else found.bound
        worse += most < int(hand)
        short = bound is not None and found is not None and found.most < 0.98 * int(bound)
        out = len(drawn(seed)[1]) if found is None else len(found.unserved)
        without += out
        left = f"{out} left out" * bool(out)
        print(
            seed, drawn(seed)[1:], most, int(hand), bound, "WORSE" * (most < int(hand)), short, left
        )
    print(f"{worse} of {number} worse than by hand, {without} models without a machine")


if __name__ == "__main__":
    main()
