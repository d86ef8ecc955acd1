"""Somebody would buy a card that does not run the model.

The cards that are said to run a model do by its plan, and those that are left out do not: of a
few or of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import FEW_CARDS, FIXTURES, model, of_today, requested, slow

import autolayers
from autolayers.devices.cards import CARDS
from autolayers.flags.params import Params
from autolayers.flags.policy import Policy
from autolayers.machine import Device, Machine
from autolayers.planner.compare import cards
from autolayers.planner.compare.cards import EXPERTS, ONE, TWO, UNIFIED, Runs, find
from autolayers.planner.compare.choose import WHOLLY, verdict
from autolayers.planner.evaluate import FULL
from autolayers.planner.one.overrides import with_experts_on_host

MODELS = (
    "llama-3.1-8b-q4_k_m",
    "gpt-oss-20b-mxfp4",
    "qwen3-30b-a3b-q4_k_m",
    "llama-3.3-70b-q4_k_m",
)
N_CTX = 16384
Found = tuple[str, dict[str, list[Runs]]]


@contextmanager
def cards_of(which: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cards, "CARDS", FEW_CARDS if which == "few" else CARDS)
        yield


@pytest.fixture(params=["few", slow("all")])
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    with cards_of(request.param):
        yield


@pytest.fixture(
    scope="module",
    params=[(MODELS[0], "few"), *(slow((name, "all")) for name in of_today(MODELS, 4))],
    ids="-".join,
)
def found(request: pytest.FixtureRequest) -> Iterator[Found]:
    name, which = request.param
    with cards_of(which):
        yield name, find(model(name), requested(Params(), Policy()), N_CTX)


def plan(name: str, gpu: str, *words: str) -> autolayers.Plan:
    return autolayers.plan(model(name), ["-c", str(N_CTX), "--gpu", gpu, *words])


def test_each_kind_is_there_and_smallest_first(found: Found) -> None:
    name, kinds = found
    assert bool(kinds[EXPERTS]) == model(name).is_moe
    for kind in (ONE, TWO, UNIFIED):
        sizes = [-(-runs.memory // (1 << 30)) for runs in kinds[kind]]
        assert sizes and sizes == sorted(sizes)
        for size in set(sizes):
            speeds = [
                runs.speed.generation
                for runs, own in zip(kinds[kind], sizes, strict=True)
                if own == size
            ]
            assert speeds == sorted(speeds, reverse=True)


@pytest.mark.parametrize("ram", [slow(None), 8 << 30])
def test_a_mac_is_listed_by_its_own_ram(ram: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """--ram is that of the machines that the cards are put into."""
    macs = {name: CARDS[name] for name in ("m1-8g", "m1-16g", "m3-ultra-512g", "gb10")}
    monkeypatch.setattr(cards, "CARDS", macs)
    found = find(model("gpt-oss-20b-mxfp4"), requested(Params(), Policy(ram=ram)), 8192)[UNIFIED]
    memory = {runs.name: runs.memory >> 20 for runs in found}
    assert memory == {"m1-16g": 12124, "gb10": 124610, "m3-ultra-512g": 475136}


def test_one_card_is_what_its_plan_says(found: Found) -> None:
    name, kinds = found
    for kind in (ONE, UNIFIED):
        for runs in kinds[kind][::6]:
            own = plan(name, runs.name)
            assert own.fits and verdict(own) == WHOLLY
            assert (own.devices[0].remaining, own.host.resident) == (runs.left, runs.ram)
            assert own.speed.generation == runs.speed.generation
            # With the micro-batch of the plan: the default's prompts were a third of a mixture's
            assert own.speed.prompt == runs.speed.prompt
    listed = {runs.name for kind in (ONE, UNIFIED) for runs in kinds[kind]}
    largest = max(runs.memory for runs in kinds[ONE] if runs.name not in cards.USUAL)
    smaller = sorted(
        (card.usable, key)
        for key, card in cards.CARDS.items()
        if key not in listed and not card.unified and card.usable << 20 < largest
    )
    for _, key in smaller[-3:]:
        assert verdict(plan(name, key)) != WHOLLY


def test_pairs_are_of_cards_that_are_too_small_alone(found: Found) -> None:
    name, kinds = found
    alone = {runs.name for runs in kinds[ONE]}
    for runs in kinds[TWO]:
        assert runs.count == 2 and runs.name not in alone and "laptop" not in runs.name
    for runs in kinds[TWO][:2]:
        own = plan(name, f"2x{runs.name}")
        assert own.fits and verdict(own) == WHOLLY and runs.left >= 0
    # Not only of those that were tried before enough others were found
    for runs in kinds[TWO][-4:]:
        assert verdict(plan(name, runs.name)) != WHOLLY


def test_experts_in_ram_are_as_few_as_fit(found: Found) -> None:
    name, kinds = found
    for runs in kinds[EXPERTS][1::5]:
        # A plan may also have parts of one more layer's experts on the card
        free = plan(name, runs.name)
        assert runs.speed.prompt == pytest.approx(free.speed.prompt, rel=0.3)
        assert runs.speed.generation == pytest.approx(free.speed.generation, rel=0.06)
        # A smaller micro-batch than the plan's where its memory is that of a layer's experts
        for size in (free.breakdown.n_ubatch, 1024, 512):
            words = ["-ngl", "99", "-ub", str(size), "-b", str(max(2048, size))]
            own = plan(name, runs.name, "-ncmoe", str(runs.n_cpu_moe), *words)
            if (own.devices[0].remaining, own.host.resident) == (runs.left, runs.ram):
                break
        assert own.fits and (own.devices[0].remaining, own.host.resident) == (runs.left, runs.ram)
        assert not plan(name, runs.name, "-ncmoe", str(runs.n_cpu_moe - 1), *words).fits
    if kinds[EXPERTS]:
        with cards_of("few"):
            less = find(model(name), requested(Params(), Policy(ram=4 << 30)), N_CTX)
        assert len(less[EXPERTS]) < len(kinds[EXPERTS]) and less[ONE]
        assert all(runs.ram < 4 << 30 for runs in less[EXPERTS])


def test_cards_of_every_size_run_a_mixture_with_experts_in_ram(found: Found) -> None:
    """Down to the smallest that does, up to those that run it wholly; the usual cards of further
    sizes as well."""
    _, kinds = found
    alone = {runs.name for runs in kinds[ONE]}
    sizes = [-(-runs.memory // (1 << 30)) for runs in kinds[EXPERTS]]
    there = {
        -(-card.usable // 1024)
        for key, card in cards.CARDS.items()
        if not card.unified and "laptop" not in key and key not in alone
    }
    if sizes:
        assert sizes == sorted(sizes)
        smallest = sorted(set(sizes))[: cards.MOST]
        assert {size for size in there if smallest[0] <= size <= smallest[-1]} == set(smallest)
        others = [runs for runs in kinds[EXPERTS] if runs.name not in cards.USUAL]
        layers = [runs.n_cpu_moe for runs in others]
        assert layers == sorted(layers, reverse=True) and layers[-1] > 0
        assert len(others) == len({-(-runs.memory // (1 << 30)) for runs in others})


def test_what_is_too_slow_is_left_out(table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "llama-3.1-8b-q4_k_m"
    monkeypatch.setattr(cards, "MOST", min(cards.MOST, len(cards.CARDS) // 4))
    fast = find(model(name), requested(Params(), Policy()), N_CTX, min_rate=60)
    assert all(runs.speed.generation >= 60 for rows in fast.values() for runs in rows)
    assert fast[UNIFIED] and len(fast[ONE]) >= cards.MOST
    # all of one size, though there are more
    assert len({runs.memory >> 30 for runs in fast[ONE]}) < len(fast[ONE])
    none = find(model(name), requested(Params(), Policy()), N_CTX, min_rate=10_000)
    assert not any(none.values())


@pytest.mark.slow
def test_with_experts_in_ram_the_card_of_a_size_has_the_fastest_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the backend: by bandwidth and arithmetic alone an Arc A770 would be the card of 8
    GiB."""
    names = ("arc-a770-8g", "rtx-3070-ti", "rx-9060-xt-8g")

    def among(*some: str) -> list[Runs]:
        monkeypatch.setattr(cards, "CARDS", {name: CARDS[name] for name in some})
        return find(model("qwen3-30b-a3b-q4_k_m"), requested(Params(), Policy()), 8192)[EXPERTS]

    alone = {name: among(name)[0].speed.request for name in names}
    (chosen,) = [runs.name for runs in among(*names)]
    # the order in which they are tried is by an estimate
    assert alone[chosen] <= 1.05 * min(alone.values()) and chosen != names[0]


def test_cards_that_are_not_tried_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "CARDS", FEW_CARDS)
    monkeypatch.setattr(cards, "BUDGET", 0)
    said: list[str] = []
    found = find(model("gpt-oss-20b-mxfp4"), requested(Params(), Policy()), N_CTX, say=said.append)
    assert said[-1].startswith("experts in RAM: from rtx-") and "on no card was tried" in said[-1]
    assert not found[EXPERTS]


def test_the_cards_that_people_buy_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of gpt-oss-120b the table ended at 22 GiB, and an RTX 3060 is not the fastest of its size."""
    usual = {name: CARDS[name] for name in cards.USUAL}
    monkeypatch.setattr(
        cards, "CARDS", {**usual, **{name: CARDS[name] for name in ("rx-9070-gre", "rtx-5080")}}
    )
    monkeypatch.setattr(cards, "MOST", 2)
    found = find(model("gpt-oss-120b-mxfp4"), requested(Params(), Policy(ram=64 << 30)), 8192)
    assert usual.keys() <= {runs.name for runs in found[EXPERTS]}
    # the fastest of their sizes
    assert {"rx-9070-gre", "rtx-5080"} <= {runs.name for runs in found[EXPERTS]}
    found = find(model("llama-3.1-8b-q4_k_m"), requested(Params(), Policy()), 8192)
    assert usual.keys() <= {runs.name for runs in found[ONE]}
    assert found[ONE] == sorted(
        found[ONE], key=lambda runs: (-(-runs.memory // (1 << 30)), -runs.speed.generation)
    )
    example = cards.example(found)
    assert example is not None and example.name == "rtx-3060"


@pytest.mark.slow
def test_the_fewest_experts_in_ram_are_those_of_the_range_halved() -> None:
    """Sizes and the launches before say where to look, measured launches decide."""
    name = "qwen3-30b-a3b-q4_k_m:16"
    wanted = cards.WantedModel(model(name), requested(Params(), Policy()), 4096)
    size = wanted.problem.model.size * 3 // 5
    problem = wanted.problem.on(
        Machine((device := Device.hypothetical("24GiB"),), {device.name: size})
    )
    fitting = [
        n
        for n in range(17)
        if (
            found := problem.evaluator.candidate(with_experts_on_host(wanted.whole, range(n)), FULL)
        )
        and min(found.spare.values()) >= 0
    ]
    again = cards.WantedModel(model(name), requested(Params(), Policy()), 4096).problem.on(
        problem.machine
    )
    assert (
        wanted._fewest(again, wanted.whole) == fitting[0] > 0 and len(again.evaluator.measured) <= 4
    )


@pytest.mark.slow
def test_no_pair_is_of_a_card_that_runs_a_small_model_alone() -> None:
    """Cards that were not tried alone, as enough smaller ones were found, stood as pairs: 2x
    quadro-p2200 for a model of 1.2 GiB."""
    with cards_of("all"):
        small = find(model("llama-3.2-1b-q8_0"), requested(Params(), Policy()), 8192)
    assert small[ONE] and not small[TWO]


@pytest.mark.slow
def test_a_machine_has_the_ram_that_its_launch_needs() -> None:
    """DeepSeek V3.1 needs 359 GiB, which no desktop of two channels has: it was called as slow."""
    words = ["--gpu", "rtx-3090", "-c", "4096"]
    speed = plan_of("more/headers/deepseek-v3.1-q4_k_m", *words).speed
    assert dict(speed.assumed) == {"RAM": 200e9, "cores": 32}
    known = plan_of("more/headers/deepseek-v3.1-q4_k_m", *words, "--ram", "512GiB").speed
    assert speed.generation == pytest.approx(known.generation, rel=0.05)
    few = plan_of("headers/gpt-oss-20b-mxfp4", *words[:1], "rtx-2060-6g", *words[2:]).speed
    assert dict(few.assumed)["cores"] == 8


def plan_of(path: str, *words: str) -> autolayers.Plan:
    return autolayers.plan(str(FIXTURES / f"{path}.gguf"), words)
