"""Owners of several GPUs would get a smaller context than their memory has room for.

Several GPUs: no plan gives away the context that its own split has room for.
"""

from __future__ import annotations

import pytest
from support import few_rows, model, requested, slow

import autolayers
from autolayers.api import fit_choice
from autolayers.devices import hypothetical
from autolayers.flags.policy import read
from autolayers.planner.one.contexts import Contexts, contexts
from autolayers.planner.problem import Problem
from autolayers.records import replace

MACHINES = (
    "12GiB,12GiB",
    "6GiB,8GiB",
    "3xrtx-3090",
    "rtx-4090,rtx-3090",
    "rtx-3060,rtx-4060-ti-16g",
    "24GiB,24GiB,48GiB",
    "6GiB,10GiB,12GiB,16GiB",
)
MODELS = (
    "llama-3.1-8b-q4_k_m",
    "llama-3.3-70b-q4_k_m",
    "qwen3-30b-a3b-q4_k_m",
    "deepseek-v2-lite-q4_k_m",
)
FEW = 32768  # a larger context may cost nothing, a smaller one a few per cent


@pytest.mark.parametrize(
    ("words", "requests", "smallest", "largest", "step"),
    [
        ("", 1, 4096, 131072, 256),
        ("-np -1", 1, 4096, 131072, 256),
        ("-np 1", 1, 4096, 131072, 256),
        # each slot has a part of its own, unless they share one
        ("-np 2", 1, 8192, 262144, 512),
        ("-np 4", 1, 16384, 524288, 1024),
        ("-np 4 -kvu", 1, 4096, 131072, 256),
        ("-c 8192", 1, 8192, 8192, 256),
        ("-c 8192 -np 2 --ctx-min 8k", 1, 8192, 8192, 256),
        ("--ctx 20000", 1, 20000, 20000, 256),
        ("--ctx max", 1, 4096, 131072, 256),
        ("--ctx-min 8k", 1, 8192, 131072, 256),
        ("--ctx-min 8k -np 2", 1, 16384, 262144, 512),
        ("--ctx-min 200k", 1, 204800, 204800, 256),
        ("--ctx-min 200k -np 2", 1, 409600, 409600, 512),
        ("--fit-ctx 6000", 1, 6000, 131072, 256),
        ("--fit-ctx 6000 -np 2", 1, 12000, 262144, 512),
        # what the workload holds, of which a context of an agent is more
        ("--workload agent", 1, 32768, 131072, 256),
        ("--workload 3000+2000", 1, 5120, 131072, 256),
        ("--workload 3000+2001@3000", 1, 8192, 131072, 256),
        ("--workload 3000+2000@3193", 1, 8448, 131072, 256),
        ("--workload 60000+100000", 1, 131072, 131072, 256),
        ("--workload 3000+2000 --fit-ctx 6000", 1, 6000, 131072, 256),
        # of all requests that are served at once
        ("--workload 3000+2000", 3, 15104, 131072, 256),
        ("--workload 3000+2000 -np 3", 3, 15360, 393216, 768),
        ("--workload 300+200 -np 3", 3, 4095, 393216, 768),
        ("--workload 300+200 -np 3 --fit-ctx 600", 3, 1800, 393216, 768),
        ("--workload 300+200", 3, 4096, 131072, 256),
    ],
)
def test_a_context_holds_what_is_asked_for_and_no_more_than_was_trained(
    words: str, requests: int, smallest: int, largest: int, step: int
) -> None:
    params, policy = read(words.split(), None)
    policy = replace(policy, workload=replace(policy.workload, requests=requests))
    trained = model("llama-3.1-8b-q4_k_m:4")
    found = contexts(Problem(trained, requested(params, policy)), params)
    fixed = smallest == largest
    assert found == (Contexts(smallest) if fixed else Contexts(None, (smallest, largest), step))
    assert found.smallest == smallest


@pytest.mark.parametrize(
    ("words", "n"), [("", 256), ("--workload agent", 256), ("-np 3", 768), ("--ctx-min 8k", 8192)]
)
def test_a_model_trained_on_little_has_no_more_unless_more_is_asked_for(words: str, n: int) -> None:
    params, policy = read(words.split(), None)
    found = contexts(Problem(model("granite-moe"), requested(params, policy)), params)
    assert found == Contexts(n)


def whole(plan: autolayers.Plan) -> bool:
    """All layers on the GPUs, no weights in RAM."""
    return (
        plan.fits
        and plan.n_gpu_layers > plan.model.hparams.n_layer_all
        and not plan.params.overrides
    )


# Of eight layers, for every run
SMALL = (
    ("llama-3.1-8b-q4_k_m:8", "2GiB,2GiB"),
    ("llama-3.1-8b-q4_k_m:8", "1500MiB,2GiB"),
    ("llama-3.3-70b-q4_k_m:8", "3x3GiB"),
    slow("qwen3-30b-a3b-q4_k_m:8", "3GiB,3GiB"),
    ("deepseek-v2-lite-q4_k_m:8", "2GiB,3GiB"),
    ("llama-3.3-70b-q4_k_m:8", "2500MiB,3GiB,4GiB"),
)


@pytest.mark.parametrize(
    ("name", "gpus"),
    few_rows(6, [*SMALL, *(slow(name, gpus) for name in MODELS for gpus in MACHINES)]),
)
def test_a_plan_uses_the_context_that_its_split_has_room_for(name: str, gpus: str) -> None:
    """The split given back without -c has no more, and --ctx max at least as much as the
    default."""
    devices = hypothetical(gpus)
    plan = autolayers.plan(model(name), [], devices=devices)
    if not whole(plan):
        return
    n = plan.breakdown.n_ctx
    most = autolayers.plan(model(name), ["--ctx", "max"], devices=devices)
    assert whole(most) and most.breakdown.n_ctx >= n
    at = plan.flags.index("-c")
    again = autolayers.plan(model(name), [*plan.flags[:at], *plan.flags[at + 2 :]], devices=devices)
    if n < FEW and again.speed.request <= plan.speed.request * 1.05:
        assert again.breakdown.n_ctx <= n * 1.05
    fit = fit_choice(model(name), [], devices=devices)
    if (
        fit is not None
        and fit.fits
        and fit.params.layers_wanted(plan.n_gpu_layers) >= plan.n_gpu_layers
        and not fit.params.overrides
    ):
        assert most.breakdown.n_ctx >= 0.97 * fit.breakdown.n_ctx
