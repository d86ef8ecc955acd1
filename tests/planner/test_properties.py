"""A plan's own flags would start another launch, or more memory give a slower one.

What holds for every plan, over random machines, models and constraints.

- Its flags, fed back, are the same launch: the same sizes, and it fits.
- More memory never makes the predicted speed worse, but for what a larger context may cost. (A
  ladder of cache types is left out: there the user prefers an earlier type to speed.)
- A split of layers is the fastest there is.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import log2

import pytest
from hypothesis import note
from hypothesis import strategies as st
from support import HEADERS, few_and_many, many

import autolayers
from autolayers import Device, LaunchRefused, estimate
from autolayers.api import fit_choice
from autolayers.devices import Host
from autolayers.flags.policy import read
from autolayers.planner import Plan, plan_request
from autolayers.planner.one.partition import best_partition
from autolayers.planner.prices import PARTS, SHORT_MIXTURE
from autolayers.request import Request
from autolayers.work.rates import SHARED

MODELS = {
    name: autolayers.read_model(HEADERS / f"{name}.gguf")
    for name in (
        "llama-3.2-1b-q8_0",
        "llama-moe",
        "qwen2-dense",
        "gemma2-dense",
        "olmoe-moe",
        "granite-moe",
    )
}
MiB = 1 << 20


@st.composite
def constraints(draw: st.DrawFn) -> list[str]:
    words = ["-fitt", str(draw(st.sampled_from([0, 1, 16])))]
    for options in (
        [["-c", "512"], ["-c", "4096"], ["-c", "20000"]],
        [["-np", "1"], ["-np", "3"], ["-np", "2", "-kvu"]],
        [["-ub", "32"], ["-ub", "256"]],
        [["-ctk", "q8_0", "-fa", "on"]],
        [["-nkvo"]],
        [["--strategy", "layers"], ["--strategy", "auto", "-ngl", "2"]],
        [["--ctx-min", "512"]],
    ):  # not more than any context here
        if draw(st.integers(0, 3)) == 0:
            words += draw(st.sampled_from(options))
    return words


@st.composite
def questions(draw: st.DrawFn) -> tuple[autolayers.Model, list[str], list[Device]]:
    """A model, flags, and devices that together have from much too little to more than enough for
    it."""
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    words = draw(constraints())
    params, _ = read(words, None)
    everything = replace(params, n_ctx=params.n_ctx or 4096, n_gpu_layers=None)
    try:
        need = (
            estimate(model, everything, [Device("CUDA0", 1 << 50, 1 << 50)]).devices["CUDA0"].total
        )
    except LaunchRefused:
        need = model.size
    shares = draw(st.lists(st.floats(0.05, 1.5), min_size=1, max_size=3))
    speeds = draw(
        st.lists(st.sampled_from([None, 300e9, 1000e9]), min_size=len(shares), max_size=len(shares))
    )
    sizes = [round(need * share / len(shares)) + MiB for share in shares]
    return (
        model,
        words,
        [
            Device(f"CUDA{i}", size, size, bandwidth=speed)
            for i, (size, speed) in enumerate(zip(sizes, speeds, strict=True))
        ],
    )


def planned(
    model: autolayers.Model, words: list[str], devices: list[Device], host: Host | None = None
) -> Plan | None:
    request = Request.of(words, devices=devices, host=host)
    try:
        return plan_request(model, request)
    except LaunchRefused:
        return None


def test_the_flags_fed_back_are_the_same_launch(
    question: tuple[autolayers.Model, list[str], list[Device]], ram: float | None
) -> None:
    model, words, devices = question
    host = None if ram is None else Host(1 << 40, round(model.size * ram), "given")
    found = planned(model, words, devices, host)
    if found is None:
        return
    note(f"{model.name} {words} {[d.free for d in devices]} -> {found.flags}")
    again = autolayers.plan(model, found.flags, devices=devices, host=host)
    assert again.flags == found.flags
    assert again.breakdown == found.breakdown
    assert again.fits == found.fits


test_the_flags_fed_back_are_the_same_launch = many(
    60,
    test_the_flags_fed_back_are_the_same_launch,
    questions(),
    st.one_of(st.none(), st.floats(0.1, 2)),
    parts=2,
)


def test_more_memory_never_makes_the_predicted_speed_worse(
    question: tuple[autolayers.Model, list[str], list[Device]], which: int, more: float
) -> None:
    model, words, devices = question
    found = planned(model, words, devices)
    if found is None or not found.fits:
        return
    grown = devices[which % len(devices)]
    grown = replace(
        grown, free=round(grown.free * (1 + more)), total=round(grown.total * (1 + more))
    )
    richer = planned(model, words, [grown if d.name == grown.name else d for d in devices])
    note(
        f"{model.name} {words} {[d.free for d in devices]} -> {found.flags}, {grown} -> "
        f"{richer and richer.flags}"
    )
    assert richer is not None and richer.fits
    limit = found.speed.request * (1 + 1e-9)
    # which may cost a few per cent, and hand-overs
    if richer.breakdown.n_ctx > found.breakdown.n_ctx:
        more = log2(richer.breakdown.n_ctx / found.breakdown.n_ctx)
        limit = limit * SHORT_MIXTURE.factor**more + (len(devices) - 1) * SHARED.hop * 1e-6 * (
            512 + 2048 / richer.breakdown.n_ubatch
        )
    # prompts overlap less; splits are not searched for that they overlap
    if _used(richer) < _used(found):
        limit *= 1.03
    # models of a few MB wait for kernels more than for weights
    if richer.n_gpu_layers > found.n_gpu_layers:
        limit *= 1.1
    assert richer.speed.request <= limit


test_more_memory_never_makes_the_predicted_speed_worse = many(
    25,
    test_more_memory_never_makes_the_predicted_speed_worse,
    questions(),
    st.integers(0, 2),
    st.floats(0.01, 1.0),
)


def _used(plan: Plan) -> int:
    """Devices with layers."""
    return sum(use.model > 0 for use in plan.breakdown.devices.values())


def test_no_plan_is_predicted_slower_than_what_fit_would_do(
    question: tuple[autolayers.Model, list[str], list[Device]],
) -> None:
    model, words, devices = question
    # then less is asked for
    if "--strategy" in words or "-ngl" in words or "--kv-types" in words:
        return
    try:
        found, rival = (
            autolayers.plan(model, words, devices=devices),
            fit_choice(model, words, devices),
        )
    except LaunchRefused:
        return
    if (
        found.fits
        and rival is not None
        and rival.fits
        and rival.breakdown.n_ctx >= found.breakdown.n_ctx
    ):
        note(
            f"{model.name} {words} {[d.free for d in devices]} -> {found.flags}, --fit "
            f"{rival.params}"
        )
        # its patterns of -ot count
        assert found.speed.compared <= rival.speed.compared * PARTS.factor


test_no_plan_is_predicted_slower_than_what_fit_would_do = many(
    60, test_no_plan_is_predicted_slower_than_what_fit_would_do, questions(), parts=2
)


def test_no_device_loses_its_margin(
    question: tuple[autolayers.Model, list[str], list[Device]],
) -> None:
    model, words, devices = question
    found = planned(model, words, devices)
    if found is None:
        return
    roomy = all(row.remaining >= 0 for row in found.devices if row.used)
    assert found.fits == roomy


test_no_device_loses_its_margin = many(60, test_no_device_loses_its_margin, questions(), parts=2)


def test_a_split_is_the_fastest_there_is(
    layers: list[tuple[int, int]], devices: list[tuple[int, int, int]], hop: float
) -> None:
    sizes, work = [size for size, _ in layers], [float(cost) for _, cost in layers]
    room, slowness, visits = zip(*devices, strict=True)

    def seconds(split: tuple[int, ...]) -> float | None:
        start, total = 0, 0.0
        for count, space, slow, visit in zip(split, room, slowness, visits, strict=True):
            if sum(sizes[start : start + count]) > space:
                return None
            total += (
                sum(work[start : start + count]) * slow
                + (visit if count else 0)
                + (hop if start and count else 0.0)
            )
            start += count
        return total

    splits = (
        split
        for split in itertools.product(range(len(layers) + 1), repeat=len(devices))
        if sum(split) == len(layers)
    )
    possible = [time for split in splits if (time := seconds(split)) is not None]
    found = best_partition(
        sizes, [[cost * slow for cost in work] for slow in slowness], room, hop, visits
    )
    if found is None:
        assert not possible
    else:
        assert seconds(found) == pytest.approx(min(possible))


test_a_split_is_the_fastest_there_is, test_more_splits_are = few_and_many(
    100,
    1000,
    test_a_split_is_the_fastest_there_is,
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=7),
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 5), st.sampled_from([0, 9])),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([0.0, 3.0]),
)
