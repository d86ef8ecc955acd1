"""A model of an unknown architecture would run out of memory, for all its upper bound.

The upper bound for graphs nobody knows: applied to the graphs that are known, it is never below
what llama.cpp measured.
"""

from __future__ import annotations

import dataclasses
import json
from itertools import chain

import pytest
from support import FIXTURES, WHOLE, hypothetical_gpus, model, sample, slow

import autolayers
from autolayers import estimate
from autolayers.builds import rules
from autolayers.flags.parse import parse
from autolayers.memory.bound import upper_bound
from autolayers.memory.breakdown import LowerBound
from autolayers.memory.cache import allocate
from autolayers.memory.context import resolve
from autolayers.memory.estimate import Estimator
from autolayers.memory.graphs import compute
from autolayers.memory.loaded import Loaded
from autolayers.memory.weights import place_weights


@WHOLE
@pytest.mark.parametrize(
    "kind", [slow("cases_models"), "cases_archs", slow("b11311/cases_models"), "b11311/cases_archs"]
)
def test_it_is_never_below_the_truth(kind: str, whole: bool) -> None:
    low, over, models = [], [], {}
    for line in (FIXTURES / "truth" / f"{kind}.jsonl").read_text().splitlines():
        case = json.loads(line)
        if "error" not in case:
            models.setdefault(case["model"], []).append(case)
    for case in chain(*(models if whole else sample(models, 12)).values()):
        m, params, devices = (
            model(case["model"]),
            parse(case["args"].split()).params,
            hypothetical_gpus(case["gpus_mib"]),
        )
        context = resolve(m, params, rules(case.get("build")))
        placement = place_weights(m, params, devices, context.load_mtp)
        bound = upper_bound(Loaded(m, params, context, placement, allocate(m, context, placement)))
        for name, size in zip(
            [*(d.name for d in placement.devices), "Host"], bound.sizes, strict=True
        ):
            truth = case["devices"][name]["compute"]
            if size < truth:
                low.append(
                    f"{case['model']} {case['gpus_mib']} {case['args']}: {name} {size} < {truth}"
                )
            if truth > 1 << 20:
                over.append(size / truth)
    assert not low, "\n".join(low)
    over.sort()
    # a bound of no use would pass the first assertion too
    assert over[len(over) // 2] < (8 if whole else 16)


def test_an_unknown_graph_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    m, params, devices = (
        model("llama-3.1-8b-q4_k_m"),
        parse(["-c", "8192"]).params,
        hypothetical_gpus([24576]),
    )
    known = estimate(m, params, devices)
    monkeypatch.setattr(compute, "builder", lambda name, mtp: None)
    unknown = estimate(m, params, devices)
    assert known.exact and not unknown.exact
    assert unknown.devices["CUDA0"].compute > known.devices["CUDA0"].compute
    assert unknown.host.compute >= known.host.compute
    assert dataclasses.replace(unknown.devices["CUDA0"], compute=0) == dataclasses.replace(
        known.devices["CUDA0"], compute=0
    )
    assert any("upper bound" in warning for warning in unknown.warnings)


@pytest.mark.parametrize(
    ("name", "override"),
    [
        # the builder's shapes do not meet
        ("headers/qwen3-30b-a3b-q4_k_m", "qwen3moe.attention.head_count=int:7"),
        # nor the backend's
        ("more/headers/granite-embed-modernbert", "modern-bert.attention.head_count_kv=int:0"),
        # layers the tensors do not have
        slow("more/headers/qwen4exp-80b", "qwen4exp.block_count=int:64"),
    ],
)
def test_keys_that_contradict_the_tensors_end_in_a_bound_or_a_refusal(
    name: str, override: str
) -> None:
    m = autolayers.read_model(str(FIXTURES / f"{name}.gguf"))
    for words in (["-c", "4096"], ["-c", "512", "-ngl", "3", "-fa", "on"]):
        try:
            found = estimate(
                m,
                parse([*words, "--override-kv", override]).params,
                hypothetical_gpus([24576, 24576]),
                runtime=True,
            )
        except autolayers.AutolayersError:
            continue
        assert sum(usage.compute for usage in found.devices.values()) > 0


@pytest.mark.parametrize(
    "override",
    [
        "qwen3moe.expert_used_count=int:129",
        "qwen3moe.expert_used_count=int:0",
        "qwen3moe.expert_group_count=int:128",
        "qwen3moe.expert_group_count=int:3",
    ],
)
def test_experts_that_llama_cpp_asserts_against_are_refused(override: str) -> None:
    m = model("qwen3-30b-a3b-q4_k_m")
    with pytest.raises(autolayers.ModelError, match="does not load that"):
        estimate(m, parse(["--override-kv", override]).params, hypothetical_gpus([24576]))


def test_measuring_ends_where_the_prompt_graph_is_enough_to_know() -> None:
    m, params, devices = (
        model("qwen3-30b-a3b-q4_k_m"),
        parse(["-c", "8192", "-ncmoe", "20"]).params,
        hypothetical_gpus([24576]),
    )
    whole = estimate(m, params, devices, runtime=True)
    asked = []
    part = Estimator(m).at_least(
        params, devices, lambda use: asked.append(use) or True, runtime=True
    )  # type: ignore[func-returns-value]
    assert asked == [part] and isinstance(part, LowerBound) and whole.exact
    assert part.devices["CUDA0"].model == whole.devices["CUDA0"].model
    assert 0 < part.devices["CUDA0"].compute <= whole.devices["CUDA0"].compute
    assert Estimator(m).at_least(params, devices, lambda use: False, runtime=True) == whole


@pytest.mark.parametrize(("slots", "mib"), [(2, 17.16), (3, 11.69), (4, 8.16)])
def test_slots_that_do_not_divide_the_micro_batch_need_no_bound(slots: int, mib: float) -> None:
    """MiniMax-M3 with a cache for each slot, by llama-server b11549."""
    words = f"-np {slots} -no-kvu -c 4096 -ngl 99 --gpu 24GiB"
    found = autolayers.plan(model("minimax-m3-moe"), words.split())
    assert found.exact and round(found.devices[0].compute / (1 << 20), 2) == mib
