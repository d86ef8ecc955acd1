"""What a fleet costs: python benchmarks/bench_fleet.py

First how many servers of each sort are chosen: for four kinds of machines and ten models, the
processor seconds with HiGHS and without it, and the users that are served against the bound that
HiGHS proves. Then whole plans of two models on four kinds, whose number of machines alone grows.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autolayers.devices.fleet_file import read  # noqa: E402
from autolayers.flags.users import Users  # noqa: E402
from autolayers.model import read_model  # noqa: E402
from autolayers.planner.compare.fleet.assign import Sort, assign, has_solver, most  # noqa: E402
from autolayers.planner.compare.fleet.plan import Wanted, plan_fleet  # noqa: E402
from autolayers.request import Request  # noqa: E402

MACHINES = (10, 30, 100, 1_000, 10_000)
PLANNED = (10, 100, 10_000)
MODELS = 10
KINDS = {
    "small": ("rtx-3060", 0.5),
    "desk": ("rtx-3090", 0.3),
    "rack": ("rtx-4090", 0.15),
    "big": ("a100-80gb", 0.05),
}
NAMES = ("llama-3.2-1b-q8_0", "llama-3.1-8b-q4_k_m")


def cpu() -> float:
    """Processor seconds, those of other processes that ended counted."""
    return sum(os.times()[:4])


def sorts_of(seed: int) -> tuple[list[Sort], list[float]]:
    """A server of each model on each kind, fewer users of larger models."""
    chance = random.Random(seed)
    weights = [chance.choice((1, 1, 2, 5)) for _ in range(MODELS)]
    sorts = [
        Sort(((kind, 1),), ((model, max(1, int(speed * chance.uniform(0.3, 3)))),))
        for kind, speed in enumerate((6, 12, 20, 40))
        for model in range(MODELS)
    ]
    return sorts, [weight / sum(weights) for weight in weights]


def chosen(machines: int) -> None:
    sorts, weights = sorts_of(machines)
    room = [max(1, int(machines * share)) for _, share in KINDS.values()]
    row = []
    bound = None
    for solver in (True, False):
        start = cpu()
        found = assign(sorts, room, weights, solver=solver)
        seconds = cpu() - start
        bound = bound or found.bound
        users = most(sorts, found.counts, weights)
        row += [f"{seconds:8.2f}", f"{100 * users / bound:8.1f} %" if bound else f"{'-':>8}"]
    print(f"{machines:10d} {' '.join(row)}")


def planned(machines: int, folder: str) -> None:
    path = Path(folder) / f"{machines}.json"
    rows = {
        name: {
            "devices": [{"card": card}],
            "host": {"total": 64 << 30},
            "count": max(1, int(machines * share)),
        }
        for name, (card, share) in KINDS.items()
    }
    path.write_text(json.dumps({"machines": rows}))
    start = cpu()
    fleet = read(str(path))
    found = plan_fleet(
        [read_model(str(ROOT / "fixtures" / "headers" / f"{name}.gguf")) for name in NAMES],
        Request.of([], {}, devices=[]),
        fleet,
        [1.0, 1.0],
        Wanted(None, Users(rate=20.0)),
    )
    seconds = cpu() - start
    bound = f"{100 * found.most / found.bound:8.1f} %" if found.bound else f"{'-':>8}"
    print(f"{machines:10d} {seconds:8.1f} {len(found.places):8d} {found.most:8d} {bound}")


def main() -> None:
    print(
        f"choosing, {MODELS} models on {len(KINDS)} kinds: processor seconds, and users of the "
        f"bound"
    )
    print(f"{'machines':>10} {'HiGHS' if has_solver() else 'no SciPy':>8} {'':>10} {'own':>8}")
    for machines in MACHINES:
        chosen(machines)
    print(f"whole plans, {len(NAMES)} models: processor seconds, servers, users, of the bound")
    with tempfile.TemporaryDirectory() as folder:
        for machines in PLANNED:
            planned(machines, folder)


if __name__ == "__main__":
    main()
