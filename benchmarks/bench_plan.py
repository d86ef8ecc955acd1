"""What searches cost: python benchmarks/bench_plan.py

For each question the launches that were measured, with and without graph buffers, and the processor
time of the plan and the cost model's share of it; then that of all of them on Vulkan and Metal,
which reorder graphs: at most twice CUDA's. Then every larger model of the fixtures on three unlike
GPUs, which together hold half of it or a little more than all of it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import autolayers  # noqa: E402
from autolayers import Device  # noqa: E402
from autolayers.memory.estimate import Estimator  # noqa: E402
from autolayers.work.speed import CostModel  # noqa: E402

QUESTIONS = (
    ("llama-3.1-8b-q4_k_m", "--gpu 24GiB", "all fits at once"),
    ("llama-3.1-8b-q4_k_m", "--gpu 8GiB", "the context is what is searched"),
    ("llama-3.3-70b-q4_k_m", "--gpu 24GiB", "layers or FFN weights in RAM"),
    ("llama-3.3-70b-q4_k_m", "--gpu 24GiB,24GiB", "a split"),
    ("llama-3.3-70b-q4_k_m", "--gpu 24GiB,8GiB", "a split, and layers in RAM"),
    ("qwen3-30b-a3b-q4_k_m", "--gpu 8GiB", "experts in RAM"),
    ("qwen3-30b-a3b-q4_k_m", "--gpu 8GiB,6GiB", "experts in RAM, and a split"),
    ("llama-3.3-70b-q4_k_m", "--gpu 24GiB,12GiB,8GiB", "three GPUs, a split"),
    ("qwen3-30b-a3b-q4_k_m", "--gpu 4GiB,4GiB,4GiB", "three GPUs, experts in RAM"),
    ("qwen3-next-80b-a3b-q4_k_m", "--gpu 24GiB,24GiB,8GiB", "three GPUs, the context"),
    ("llama-4-scout-q4_k_m", "--gpu 24GiB,24GiB,8GiB", "three GPUs, experts in RAM"),
)


COST_MODEL = ("predict", "layer_seconds", "copies")  # what the search asks of it


class Timer:
    """Processor seconds of methods, those of a method inside another counted once."""

    def __init__(self, owner: type, names: tuple[str, ...]) -> None:
        self.seconds, self.depth = 0.0, 0
        for name in names:
            setattr(owner, name, self.timed(getattr(owner, name)))

    def timed(self, method):  # type: ignore[no-untyped-def]
        def run(*args, **more):  # type: ignore[no-untyped-def]
            self.depth += 1
            start = time.process_time()
            try:
                return method(*args, **more)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.seconds += time.process_time() - start

        return run


def main() -> None:
    asked: list[bool] = []
    at_least, static = Estimator.at_least, Estimator.static

    def counted_bound(*args: Any, **options: Any) -> Any:
        asked.append(True)
        return at_least(*args, **options)

    def counted_launch(*args: Any, **options: Any) -> Any:
        asked.append(False)
        return static(*args, **options)

    Estimator.at_least, Estimator.static = counted_bound, counted_launch
    cost = Timer(CostModel, COST_MODEL)
    print(f"{'':81} full  static      ms  cost model")
    for name, flags, what in QUESTIONS:
        model = autolayers.read_model(ROOT / "fixtures" / "headers" / f"{name}.gguf")
        asked.clear()
        cost.seconds = 0.0
        start = time.process_time()
        autolayers.plan(model, flags.split())
        taken = time.process_time() - start
        print(
            f"{name + ' ' + flags:50} {what:30} {sum(asked):4} {len(asked) - sum(asked):6} "
            f"{taken * 1000:8.0f} "
            f"{cost.seconds / taken:10.0%}"
        )
    backends()
    everywhere(cost)


def backends() -> None:
    """The questions again on backends that run a graph in an order of their own."""
    taken = dict.fromkeys(("cuda", "vulkan", "metal"), 0.0)
    for name, flags, _ in QUESTIONS:
        for backend in taken:
            model = autolayers.read_model(ROOT / "fixtures" / "headers" / f"{name}.gguf")
            start = time.process_time()
            autolayers.plan(model, [*flags.split(), "--backend", backend])
            taken[backend] += time.process_time() - start
    print(
        "\nall of them: "
        + ", ".join(
            f"{backend} {seconds * 1000:.0f} ms ({seconds / taken['cuda']:.1f} x)"
            for backend, seconds in taken.items()
        )
    )


def everywhere(cost: Timer) -> None:
    """Every larger model on three GPUs that have 42, 42 and 16 % of the memory."""
    taken: list[tuple[float, str]] = []
    cost.seconds = 0.0
    for path in sorted(ROOT.glob("fixtures/**/headers/*.gguf")):
        for share in (0.5, 1.15):
            try:
                model = autolayers.read_model(path)
                if model.size < 2e9:
                    continue
                devices = [
                    Device.hypothetical(str(int(model.size * share * part)), f"CUDA{i}")
                    for i, part in enumerate((0.42, 0.42, 0.16))
                ]
                start = time.process_time()
                autolayers.plan(model, devices=devices)
            except autolayers.AutolayersError:
                continue
            taken.append((time.process_time() - start, f"{model.name} x {share}"))
    taken.sort()
    print(
        f"\n{len(taken)} plans on three unlike GPUs: half in "
        f"{taken[len(taken) // 2][0] * 1000:.0f} ms, nine in ten in "
        f"{taken[len(taken) * 9 // 10][0] * 1000:.0f}, the slowest in {taken[-1][0] * 1000:.0f} "
        f"({taken[-1][1]}); "
        f"{sum(seconds < 0.5 for seconds, _ in taken)} in less than half a second; "
        f"cost model: {cost.seconds / sum(seconds for seconds, _ in taken):.0%} of the plans"
    )


if __name__ == "__main__":
    main()
