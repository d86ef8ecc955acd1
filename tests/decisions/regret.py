"""How far a plan is from the best launch there is: everything is enumerated with the same
estimator, for small models.

    python tests/decisions/regret.py [N [SEED]]

A launch is every number of layers, of experts or of FFN weights in RAM, with every micro-batch that
is tried, and on two or three GPUs with every split of the layers, or one of them alone. All have
the plan's context, and are compared by what they are worth (planner/prices.py): regret 1.02 is a
plan that is worth 2 % less than the best that fits.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import model, requested

import autolayers
from autolayers.devices import Host
from autolayers.devices.given import hypothetical
from autolayers.flags.params import Params
from autolayers.flags.policy import read
from autolayers.machine import Machine
from autolayers.planner.evaluate import FULL, PROMPT
from autolayers.planner.frames import MICRO_BATCHES
from autolayers.planner.one.ladder import Ladders
from autolayers.planner.prices import worth
from autolayers.planner.problem import Problem
from autolayers.records import replace

MODELS = (
    "llama-3.1-8b-q4_k_m:8",
    "qwen3-30b-a3b-q4_k_m:8",
    "gpt-oss-20b-mxfp4:8",
    "gemma-2-9b-q4_k_m:8",
    "llama-3.2-1b-q8_0:8",
    "deepseek-v2-lite-q4_k_m:8",
    "qwen3-8b-q4_k_m:8",
)
CARDS = (
    "rtx-3060",
    "rtx-3090",
    "rtx-4090",
    "rtx-3070",
    "rx-7900-xtx",
    "rtx-2070-super",
    "m2-pro-16g",
)
WORDS = ("", "-c 8192", "-np 1", "--ctx-min 16k", "-ctk q8_0 -ctv q8_0", "--workload 4k+128")


def launches(problem: Problem, n_ctx: int) -> Iterator[Params]:
    """Every launch of the space, at one context."""
    ladders = Ladders(problem, problem.given)
    at = replace(problem.given, n_ctx=n_ctx)
    batches = [at, *[replace(at, n_ubatch=size, n_batch=max(2048, size)) for size in MICRO_BATCHES]]
    names = problem.evaluator.device_names(at)
    for params in batches:
        for ladder in (ladders.layers(params), ladders.in_ram(params), ladders.bare(params)):
            for count in range(ladder.top + 1) if ladder is not None else ():
                launch = ladder(count)
                layers = launch.layers_wanted(ladders.everything)
                yield launch
                for i in range(len(names) if len(names) > 1 and layers else 0):
                    yield replace(launch, split_mode="none", main_gpu=i or None)
                for ends in itertools.combinations_with_replacement(
                    range(layers + 1), len(names) - 1
                ):
                    if len(names) > 1 and layers:
                        counts = [b - a for a, b in itertools.pairwise((0, *ends, layers))]
                        yield replace(launch, tensor_split=tuple(map(float, counts)))


def question(seed: int) -> tuple[str, list[str], str, str]:
    """(model, GPUs, RAM, flags) of one case."""
    rng = random.Random(seed)
    name = rng.choice(MODELS)
    size = model(name).size / 2**20
    count = rng.choice((1, 1, 1, 2, 2))
    free = [max(300, int(size * rng.uniform(0.2, 1.3) / count)) for _ in range(count)]
    gpus = [f"{rng.choice(CARDS[:-1] if count > 1 else CARDS)}@{mib}MiB" for mib in free]
    return name, gpus, rng.choice(("16GiB", "64GiB")), rng.choice(WORDS)


def regret(seed: int) -> tuple[float, str]:
    """(worth of the plan by that of the best, the case in words)."""
    name, gpus, ram, words = question(seed)
    cards = []
    for i, gpu in enumerate(gpus):
        card, _, free = gpu.partition("@")
        device = hypothetical(card)[0]
        size = int(free.removesuffix("MiB")) << 20
        cards.append(replace(device, name=f"{device.backend}{i}", total=size, free=size))
    params, policy = read(words.split(), None)
    host = Host(int(ram[:-3]) << 30, int(ram[:-3]) << 30, "given")
    plan = autolayers.plan(model(name), words.split(), devices=cards, host=host)
    text = f"{name} {' '.join(gpus)} --ram {ram} {words}: {' '.join(plan.flags)}"
    if not plan.fits:
        return 1.0, text
    problem = Problem(model(name), requested(params, policy, Machine.of(cards, host, None, {})))
    evaluator = problem.evaluator
    mine = evaluator.candidate(replace(plan.params, n_threads=params.n_threads), FULL)
    assert mine is not None
    best, best_launch = worth(problem, mine.params, mine.breakdown), mine
    for launch in launches(problem, plan.breakdown.n_ctx):
        static = evaluator.static(launch)
        if static is None or worth(problem, launch, static) >= best * 0.999:
            continue
        found = evaluator.candidate(launch, PROMPT)
        found = found and found.fits and evaluator.candidate(launch, FULL)
        if found and found.fits and worth(problem, launch, found.breakdown) < best:
            best, best_launch = worth(problem, launch, found.breakdown), found
    return (
        worth(problem, mine.params, mine.breakdown) / best,
        f"{text}  best: {best_launch.params.n_gpu_layers} "
        f"{best_launch.params.tensor_split} {best_launch.params.split_mode or ''} -ub "
        f"{best_launch.params.n_ubatch} "
        f"{len(best_launch.params.overrides)} rules",
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    found = []
    for seed in range(first, first + count):
        found.append(regret(seed))
        if found[-1][0] > 1.005:
            print(f"{found[-1][0]:.3f}  {found[-1][1]}", flush=True)
    best = sum(ratio <= 1.005 for ratio, _ in found)
    print(
        f"{best} of {count} are the best ({100 * best / count:.1f} %), worst regret "
        f"{max(found)[0]:.3f}"
    )


if __name__ == "__main__":
    main()
