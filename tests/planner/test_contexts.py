"""Owners of several GPUs would get a smaller context than their memory has room for.

Several GPUs: no plan gives away the context that its own split has room for.
"""

from __future__ import annotations

import pytest
from support import few_rows, model, slow

import autolayers
from autolayers.api import fit_choice
from autolayers.devices import hypothetical

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
    few_rows(3, [*SMALL, *(slow(name, gpus) for name in MODELS for gpus in MACHINES)]),
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
