"""What a fleet costs: python benchmarks/bench_fleet.py

First how many servers of each sort are chosen: for four kinds of machines and ten models, the
processor seconds with HiGHS and without it, and the users that are served against the bound that
HiGHS proves. Then whole plans of 2 to 30 models on four kinds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autolayers.devices.fleet_file import read  # noqa: E402
from autolayers.flags.users import Users  # noqa: E402
from autolayers.model import read_model  # noqa: E402
from autolayers.planner.assignment import has_solver  # noqa: E402
from autolayers.planner.compare.fleet.assign import Sort, Supply, assign  # noqa: E402
from autolayers.planner.compare.fleet.plan import Wanted, plan_fleet  # noqa: E402
from autolayers.request import Request  # noqa: E402

MACHINES = (10, 30, 100, 1_000, 10_000)
# models, machines, and users where not as many as may be
PLANNED = ((2, 10, None), (2, 10_000, None), (8, 220, 100), (8, 10_000, 1_000), (30, 220, 300))
MODELS = 10
KINDS = {
    "small": ("rtx-3060", 0.5),
    "desk": ("rtx-3090", 0.3),
    "rack": ("rtx-4090", 0.15),
    "big": ("a100-80gb", 0.05),
}
NAMES = (
    "llama-3.2-1b-q8_0",
    "llama-3.1-8b-q4_k_m",
    "qwen3-30b-a3b-q4_k_m",
    "gemma-3-4b-q8_0",
    "gpt-oss-20b-mxfp4",
    "qwen2.5-7b-q4_k_m",
    "gemma-2-9b-q4_k_m",
    "llama-3.3-70b-q4_k_m",
    "deepseek-v2-lite-q4_k_m",
    "phi-3-mini-q4_k_m",
)


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
        found = assign(Supply(sorts, room, weights), solver=solver)
        seconds = cpu() - start
        bound = bound or found.bound
        users = found.in_ratio
        row += [f"{seconds:8.2f}", f"{100 * users / bound:8.1f} %" if bound else f"{'-':>8}"]
    print(f"{machines:10d} {' '.join(row)}")


def planned(models: int, machines: int, users: int | None, folder: str) -> None:
    """30 models are ten, three times each."""
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
    names = [NAMES[i % len(NAMES)] for i in range(models)]
    start = cpu(), time.monotonic()
    fleet = read(str(path))
    found = plan_fleet(
        [read_model(str(ROOT / "fixtures" / "headers" / f"{name}.gguf")) for name in names],
        Request.of([], {}, devices=[]),
        fleet,
        [1.0] * models,
        Wanted(users, Users(rate=20.0)),
        names=[f"{name}-{i}" for i, name in enumerate(names)],
    )
    seconds = cpu() - start[0], time.monotonic() - start[1]
    bound = f"{100 * found.most / found.bound:8.1f} %" if found.bound else f"{'-':>8}"
    print(
        f"{models:6d} {machines:10d} {seconds[0]:8.1f} {seconds[1]:8.1f} "
        f"{len(found.places):8d} {sum(found.users):8d} {found.most:8d} {bound}",
        flush=True,
    )


def main() -> None:
    print(
        f"choosing, {MODELS} models on {len(KINDS)} kinds: processor seconds, and users of the "
        f"bound"
    )
    print(f"{'machines':>10} {'HiGHS' if has_solver() else 'no SciPy':>8} {'':>10} {'own':>8}")
    for machines in MACHINES:
        chosen(machines)
    print("whole plans: processor seconds, seconds, servers, users, users at most, of the bound")
    with tempfile.TemporaryDirectory() as folder:
        for models, machines, users in PLANNED:
            planned(models, machines, users, folder)


if __name__ == "__main__":
    main()
