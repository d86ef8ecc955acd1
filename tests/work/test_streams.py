"""Speeds of several users at once would be off.

Several sequences at once, against measured launches: tokens per second of all, relative to one
sequence.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from math import log

import pytest
from support import FIXTURES, model, slow

import autolayers
from autolayers.devices import hypothetical
from autolayers.flags.policy import read
from autolayers.machine import Device, Host, Machine
from autolayers.planner.evaluate import FULL, Evaluator
from autolayers.records import replace
from autolayers.work import clock as clocks
from autolayers.work.clock import Clock
from autolayers.work.streams import STREAMS, Streams

NEAR = log(1.25)
GB10 = "https://github.com/ggml-org/llama.cpp/blob/master/benches/dgx-spark/dgx-spark.md"
HOST = Host(256 << 30, 250 << 30, "given", bandwidth=68e9, cores=16)
VEGA = Device(
    "Vulkan0",
    16 << 30,
    16 << 30,
    "AMD Radeon Vega 11 Graphics (RADV RAVEN)",
    kind="igpu",
    backend="Vulkan",
    bandwidth=35e9,
)


@cache
def curves(every: int = 1) -> list[tuple[str, str, Clock, float, dict[int, float]]]:
    """Of every n-th curve the source, mixture or dense, the launch's clock, the depth, and total
    tokens per second by sequences; without the builds of 2023 and 2024, whose kernels were
    others."""
    found = defaultdict(dict)
    for line in (FIXTURES / "levers" / "batch.jsonl").read_text().splitlines():
        row = json.loads(line)
        if not row["old"]:
            key = (
                row["source"],
                row["header"],
                row["type"],
                row["card"],
                row["backend"],
                row["words"],
                row["prompt"],
                row["generate"],
                row["build"],
                row["quant"],
                row["curve"],
            )
            found[key][row["streams"]] = row["total"]
    answer = []
    for key, totals in [*found.items()][::every]:
        source, header, kind, card, backend, words, prompt, generate, *_ = key
        of = model(header).quantised(kind) if kind else model(header)
        there = [] if card is None else [VEGA] if card == "vega-11" else hypothetical(card)
        machine = Machine.of([replace(device, backend=backend) for device in there], HOST, None, {})
        given = f"-c {32 * (prompt + generate + 64)} -np 32 -ngl {99 if there else 0} {words}"
        params, policy = read(given.split(), None)
        evaluator = Evaluator.of(of, machine, policy.build)
        launch = evaluator.candidate(params, FULL)
        assert launch is not None
        clock = evaluator.cost().clock(params, launch.breakdown)
        answer.append(
            (source, "mixture" if of.is_moe else "dense", clock, prompt + generate / 2, totals)
        )
    return answer


def errors(
    kind: str,
    sources: Collection[str] = (),
    law: Streams | None = None,
    patch: pytest.MonkeyPatch | None = None,
) -> Iterator[float]:
    """Of each row with more than one sequence, |log(predicted / measured)|."""
    for where, what, clock, depth, totals in curves():
        if what != kind or (sources and where not in sources):
            continue
        devices = clock.devices
        if law is not None and patch is not None:
            clock.devices = {
                name: replace(figures, streams=law) for name, figures in devices.items()
            }
            patch.setattr(clocks, "CPU", law)
        one = clock.token(depth)
        for n, total in totals.items():
            if n > 1:
                yield abs(log(n * one / clock.token(depth, n) / (total / totals[1])))
        clock.devices = devices
        if patch is not None:
            patch.undo()


def share(found: Iterator[float]) -> float:
    sizes = list(found)
    return sum(error <= NEAR for error in sizes) / len(sizes)


@pytest.mark.slow
def test_several_sequences_are_as_fast_as_measured() -> None:
    assert share(errors("mixture")) >= 0.88
    assert share(errors("dense")) >= 0.92


@pytest.mark.slow
def test_mixtures_of_a_source_left_out_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one constant is the one that fits most rows of the other sources; kernels are those of no
    backend."""
    near: list[bool] = []
    sources = {source for source, kind, *_ in curves() if kind == "mixture"}
    for left in sources:
        laws = [replace(STREAMS["", ""], spread=spread) for spread in (1.0, 0.9, 0.8, 0.7)]
        rows = {
            law: [
                error <= NEAR
                for source in sources
                if source != left
                for error in errors("mixture", [source], law, monkeypatch)
            ]
            for law in laws
        }
        best = max(laws, key=lambda law, rows=rows: sum(rows[law]))  # type: ignore[misc]
        near += [error <= NEAR for error in errors("mixture", [left], best, monkeypatch)]
    assert sum(near) / len(near) >= 0.7


@pytest.mark.slow
def test_dense_models_of_an_unknown_backend_are_half_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the constants of a backend without rows, as if each source were of one: about half,
    since kernels differ (an unknown CPU's row would be wrong by two, a GPU's is within 1.25)."""
    assert share(errors("dense", law=STREAMS["", ""], patch=monkeypatch)) >= 0.5
    assert share(errors("dense", [GB10], STREAMS["", ""], monkeypatch)) == 1.0


@pytest.mark.parametrize("every", [9, slow(1)])
def test_more_sequences_are_more_tokens_in_all(every: int) -> None:
    """But where a backend changes to matrix kernels that are slower at first (Vega: 9)."""
    for _, _, clock, depth, _ in curves(every):
        rates = [n / clock.token(depth, n) for n in (1, 2, 3, 4, 6, 8)]
        assert rates == sorted(rates)
        each = [1 / clock.token(depth, n) for n in (1, 2, 4, 8, 9, 16, 31, 32, 33, 64)]
        assert each == sorted(each, reverse=True)


def test_a_scan_of_states_scales_worse_than_attention() -> None:
    """NVIDIA's hybrid of 4B parameters reached 2.4 times one sequence's rate with 32, attention of
    7B 20 times."""

    def gain(name: str) -> float:
        words = ["--gpu", "gb10", "-c", "32768", "-np", "32", "--workload", "512+32x"]
        one, many = (
            autolayers.plan(model(name), [*words[:-1], f"{words[-1]}{n}"]).speed for n in (1, 32)
        )
        return many.generation / one.generation

    assert gain("mamba2-2.7b-q4_k_m") < 5 < 12 < gain("qwen2.5-7b-q8_0")


# Tokens per second of all by users: a mixture on Strix Halo by RADV (rows n28-f0452 to f0461, and
# llama-batched-bench of issue 25356), where 9 are slower than 8
RADV_USERS = {2: 1.37, 4: 1.78, 8: 1.96, 16: 1.42}


def users(backend: str) -> dict[int, float]:
    """Tokens per second of all, relative to one user's."""
    path = FIXTURES / "headers" / "qwen3-30b-a3b-q4_k_m.gguf"
    rates = {
        n: autolayers.plan(
            path,
            f"--gpu strix-halo-128g --backend {backend} -ngl 99 -c 65536 -np {n} "
            f"--workload 1+128@0x{n}".split(),
        ).speed.generation
        for n in (1, *RADV_USERS, 9)
    }
    return {n: rate / rates[1] for n, rate in rates.items()}


@pytest.mark.slow
def test_nine_users_of_a_mixture_by_radv_are_slower_than_eight() -> None:
    found = users("vulkan")
    assert found[9] < 0.85 * found[8]
    for n, measured in RADV_USERS.items():
        assert abs(log(found[n] / measured)) <= NEAR, (n, found[n], measured)


@pytest.mark.slow
def test_rocm_has_no_such_step() -> None:
    found = users("rocm")
    assert found[9] > found[8]
