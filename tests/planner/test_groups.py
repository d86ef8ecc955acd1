"""Anyone who swaps models would load them more often than needed, or find that two do not fit.

Groups, sets and presets against every way to form them, in random small cases.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support import header, model, of_today, requested, slow

from autolayers import Device, Model, estimate
from autolayers.api import plan_groups
from autolayers.devices import Host
from autolayers.flags.params import Params
from autolayers.flags.policy import read
from autolayers.machine import Machine
from autolayers.memory.meter import Meter
from autolayers.planner.evaluate import RAM_MARGIN
from autolayers.planner.several import assign, matrix
from autolayers.planner.several import groups as several
from autolayers.planner.several.assign import Option, Room
from autolayers.planner.several.kept import plan_turns
from autolayers.planner.several.multi import Together, plan_together, takes_of
from autolayers.planner.several.options import Launches
from autolayers.request import Request

SMALL = ("llama-moe", "qwen2-dense", "gemma2-dense", "olmoe-moe", "granite-moe")  # of two layers
MiB = 1 << 20
Sets = tuple[tuple[int, ...], ...]


class Case:
    """Up to five small models, how often each is asked for, and a machine with a fifth to all of
    what they need."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.models = [model(rng.choice(SMALL)) for _ in range(rng.randint(2, 5))]
        self.weights = [rng.choice([1.0, 1.0, 1.0, 3.0]) for _ in self.models]
        self.params, self.policy = read(["-fitt", "0", "-c", rng.choice(["512", "4096"])], None)
        need = [
            estimate(m, self.params, [Device("CUDA0", 1 << 50, 1 << 50)]).devices["CUDA0"].total
            for m in self.models
        ]
        shares = [rng.uniform(0.1, 1) for _ in range(rng.randint(1, 3))]
        total = sum(need) * rng.uniform(0.2, 1.1) / sum(shares)
        devices = [
            Device(f"CUDA{i}", size, size, bandwidth=rng.choice([None, 300e9, 1000e9]))
            for i, size in enumerate(int(total * share) + MiB for share in shares)
        ]
        host = Host(
            1 << 40,
            RAM_MARGIN + int(sum(m.size for m in self.models) * rng.uniform(0.5, 3)),
            "given",
        )
        self.machine = Machine.of(devices, host, None, {})
        self.request = requested(self.params, self.policy, self.machine)
        self.whole = [self.every_whole_launch(i) for i in range(len(self.models))]

    def every_whole_launch(self, i: int) -> list[Option]:
        """On each device; cut over several in every way, where no device has the memory."""
        launches = Launches(lambda: self.models[i], self.request)
        if launches.whole or not launches.divisible:
            return launches.whole
        names = [home[0] for home in launches.homes if home]
        shapes = []
        for r in range(2, len(names) + 1):
            for chosen in itertools.combinations(names, r):
                for ends in itertools.combinations(range(1, launches.ladders.everything), r - 1):
                    split = tuple(
                        float(b - a)
                        for a, b in itertools.pairwise((0, *ends, launches.ladders.everything))
                    )
                    shapes.append(replace(launches._at(chosen), tensor_split=split))
        return [option for shape in shapes if (option := launches.option(shape))]

    def fits(self, members: tuple[int, ...]) -> bool:
        ram = None if self.machine.ram is None else self.machine.ram - RAM_MARGIN
        for options in itertools.product(*(self.whole[i] for i in members)):
            if (ram is None or sum(option.ram for option in options) <= ram) and all(
                sum(option.takes.get(name, 0) for option in options) <= limit
                for name, limit in self.machine.limits.items()
            ):
                return True
        return False

    def kept(self, groups: Sets) -> float:
        """How often a request finds its model in memory behind any other request: what is to be the
        largest."""
        return sum(sum(self.weights[i] for i in members) ** 2 for members in groups)


def partitions(numbers: tuple[int, ...]) -> Iterator[Sets]:
    if not numbers:
        yield ()
        return
    first, rest = numbers[0], numbers[1:]
    for r in range(len(rest) + 1):
        for others in itertools.combinations(rest, r):
            for found in partitions(tuple(n for n in rest if n not in others)):
                yield ((first, *others), *found)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "cases"), [(0, 2), *(slow(n, 10) for n in of_today(range(10)))])
def test_no_other_groups_need_fewer_swaps(seed: int, cases: int) -> None:
    for number in range(cases):
        case = Case(100 * seed + number)
        found = several.plan_groups(case.models, case.request, case.weights)
        assert found.proven and sorted(itertools.chain(*found.members)) == list(
            range(len(case.models))
        )
        alone = [i for i in range(len(case.models)) if not case.fits((i,))]
        assert all((i,) in found.members for i in alone)
        groups = tuple(members for members in found.members if members not in {(i,) for i in alone})
        fits = {
            members: case.fits(members)
            for members in {
                m
                for p in partitions(tuple(i for i in range(len(case.models)) if i not in alone))
                for m in p
            }
        }
        assert all(fits[members] for members in groups)
        every = [
            p
            for p in partitions(tuple(sorted(itertools.chain(*groups))))
            if all(fits[m] for m in p)
        ]
        assert case.kept(groups) == max(map(case.kept, every)), (seed, number)
        # so they are as large as can be
        for small, large in itertools.permutations(groups, 2):
            if sum(case.weights[i] for i in large) >= sum(case.weights[i] for i in small):
                assert not any(fits[tuple(sorted((*large, i)))] for i in small)


def assert_any_fit(found: several.AnyOf, machine: Machine) -> None:
    """Each `most` of the plans, whichever they are, fit at the same time on devices and in RAM."""
    if found.most == 1:
        return
    assert all(plan.fits for plan in found.plans)
    for members in itertools.combinations(found.plans, found.most):
        for name, limit in machine.limits.items():
            assert sum(takes_of(plan).get(name, 0) for plan in members) <= limit
        if machine.ram is not None:
            assert sum(plan.host.taken for plan in members) <= machine.ram - RAM_MARGIN


@pytest.mark.parametrize(("seed", "cases"), [(0, 1), *(slow(n, 5) for n in of_today(range(6)))])
def test_no_more_models_may_be_loaded_at_once_whichever_they_are(seed: int, cases: int) -> None:
    for number in range(cases):
        case = Case(10_000 + 100 * seed + number)
        found = several.plan_any(case.models, case.request)
        n = len(case.models)

        def together(most: int, case: Case = case) -> bool:
            """Whether there is an option of each so that any `most` fit."""
            ram = None if case.machine.ram is None else case.machine.ram - RAM_MARGIN
            for options in itertools.product(*case.whole):
                heaviest = {
                    name: sum(sorted((o.takes.get(name, 0) for o in options), reverse=True)[:most])
                    for name in case.machine.limits
                }
                if all(heaviest[name] <= limit for name, limit in case.machine.limits.items()) and (
                    ram is None or sum(sorted((o.ram for o in options), reverse=True)[:most]) <= ram
                ):
                    return True
            return False

        assert_any_fit(found, case.machine)
        cut = any(len(option.takes) > 1 for options in case.whole for option in options)
        best = max([1, *(most for most in range(2, n + 1) if together(most))])
        # a cut model takes one split
        assert found.most == best or (cut and found.most < best), (seed, number)


def test_of_many_models_as_many_as_fit_share_a_group() -> None:
    """More than are searched: each in the first group that it fits into, the smallest first where
    that is better."""
    small, large = (model(name) for name in ("llama-3.2-1b-q8_0:4", "llama-3.1-8b-q4_k_m:4"))
    found = plan_groups([large, *[small] * 11], ["--gpu", "3GiB", "--ram", "64GiB", "-c", "4096"])
    sizes = [len(members) for members in found.members]
    assert not found.proven and sum(sizes) == 12
    assert max(sizes) == len(
        plan_groups([small] * 11, ["--gpu", "3GiB", "--ram", "64GiB", "-c", "4096"]).members[0]
    )


# --- by sizes alone: 200 random cases take no time without a model


class Sizes:
    """Launches of models by their sizes alone, on up to three devices with some RAM."""

    def __init__(self, seed: int, least: int = 1, most: int = 5) -> None:
        rng = random.Random(seed)
        self.limits = {f"CUDA{i}": rng.randint(6, 24) for i in range(rng.randint(1, 3))}
        self.ram = rng.choice([None, 20, 40])
        self.options: dict[int, list[Option]] = {}
        for i in range(rng.randint(least, most)):
            own = []
            for name in self.limits:
                size, ram, seconds = rng.randint(1, 9), rng.randint(0, 15), rng.uniform(1, 9)
                option = Option(Params(), {name: size}, ram, seconds, seconds)
                own += [option] if option.fits(Room.of(self.machine).sizes) else []
            self.options[i] = own
        self.weights = [rng.choice([1.0, 1.0, 3.0]) for _ in self.options]
        self.together = tuple(sorted(self.limits)[:2]) if rng.random() < 0.3 else ()

    @property
    def asked(self) -> several.Question:
        found = object.__new__(several.Question)
        found.meter, found.most = Meter(), 1
        found.options, found.cut = self.options, {}
        servers = dict.fromkeys(self.together, self.together)
        found.room = replace(Room.of(self.machine), servers=servers)
        return found

    @property
    def machine(self) -> Machine:
        devices = [Device(name, size, size) for name, size in self.limits.items()]
        ram = None if self.ram is None else self.ram + RAM_MARGIN
        return Machine(tuple(devices), self.limits, ram)

    def fit(self, options: Iterable[Option], most: int | None = None) -> bool:
        """Whether these, or any `most` of them, fit at the same time."""
        chosen = list(options)
        for members in itertools.combinations(chosen, min(most or len(chosen), len(chosen))):
            served = [option for option in members if {*option.takes} & {*self.together}]
            if len(served) > 1:
                return False
            if self.ram is not None and sum(option.ram for option in members) > self.ram:
                return False
            for name, limit in self.limits.items():
                if sum(option.takes.get(name, 0) for option in members) > limit:
                    return False
        return True

    def ways(self, models: Iterable[int], most: int | None = None) -> list[tuple[Option, ...]]:
        """The launches of each of these models that fit."""
        every = itertools.product(*(self.options[i] for i in models))
        return [chosen for chosen in every if self.fit(chosen, most)]


@pytest.mark.slow
def test_by_sizes_no_other_groups_need_fewer_swaps() -> None:
    for seed in range(100):
        case = Sizes(seed)
        sets, proven = several._sets(case.asked, case.weights)
        whole = tuple(i for i, own in case.options.items() if own)
        assert proven and sorted(i for chosen in sets for i in chosen) == list(whole)
        assert all(case.fit(chosen.values()) for chosen in sets)
        fits = {
            members: bool(case.ways(members))
            for r in range(1, len(whole) + 1)
            for members in itertools.combinations(whole, r)
        }

        def kept(groups: Iterable[Iterable[int]], weights: list[float] = case.weights) -> float:
            return sum(sum(weights[i] for i in members) ** 2 for members in groups)

        every = [way for way in partitions(whole) if all(fits[members] for members in way)]
        best = max(map(kept, every))
        assert kept(sets) == best
        # of these the ones with the fewest seconds; on several devices they are not searched for
        prices = {
            members: min(sum(option.price for option in way) for way in case.ways(members))
            for members, fit in fits.items()
            if fit
        }
        least = min(sum(prices[members] for members in way) for way in every if kept(way) == best)
        found = sum(option.price for chosen in sets for option in chosen.values())
        assert least <= found * (1 + 1e-9)
        if len(sets) == 1 or len(case.limits) == 1:
            assert found == pytest.approx(least)


class Known(several._Sets):
    """Sets whose seconds are given: those that fit."""

    def __init__(self, weights: Sequence[float], seconds: dict[int, float]) -> None:
        found = object.__new__(several.Question)
        found.meter, found.most = Meter(), 1
        found.room = Room.of(Machine((), {}, None))
        super().__init__(found, range(len(weights)), weights)
        self.seconds = seconds

    def _may_fit(self, members: Sequence[int]) -> bool:
        return False

    def _look_at(self, mask: int) -> None:
        pass


def test_of_groups_with_as_few_swaps_those_with_the_fewest_seconds_are_taken() -> None:
    """Against every way to form them; of equal ones the largest last group."""
    for seed in range(60):
        rng = random.Random(seed)
        n = rng.randint(2, 5)
        weights = [float(rng.choice([1, 1, 1, 2, 3])) for _ in range(n)]
        seconds = {1 << i: rng.choice([1.0, 2.0, 2.5]) for i in range(n)}
        for mask in range(1 << n):
            if mask.bit_count() in (2, 3) and rng.random() < 0.7:
                seconds[mask] = rng.choice([1.0, 2.0, 3.0, 4.5])
        found = Known(weights, seconds).best()

        def worst_first(
            groups: Sets, weights: list[float] = weights, seconds: dict[int, float] = seconds
        ) -> tuple[float, float]:
            swaps = sum(sum(weights[i] for i in members) ** 2 for members in groups)
            return -swaps, sum(seconds[sum(1 << i for i in members)] for members in groups)

        every = [
            way
            for way in partitions(tuple(range(n)))
            if all(sum(1 << i for i in members) in seconds for members in way)
        ]
        assert sorted(i for members in found for i in members) == list(range(n))
        assert worst_first(tuple(found)) == min(map(worst_first, every))


def test_a_model_may_have_a_request_of_its_own() -> None:
    params, policy = read(["-fitt", "0", "-c", "512"], None)
    request = requested(
        params, policy, Machine.of([Device("CUDA0", 1 << 30, 1 << 30)], None, None, {})
    )
    models = [model(name) for name in SMALL[:2]]
    found = several.plan_any(models, request, own={1: request.with_flags(n_ctx=1024)})
    assert found.most == 2 and [plan.breakdown.n_ctx for plan in found.plans] == [512, 1024]
    assert several.plan_any(models, request, limit=1).most == 1


def test_no_model_that_can_be_loaded_has_no_sets() -> None:
    broken = Model(header("llama", {}), "broken.gguf")
    request = requested(*read([], None))
    found = matrix.plan_matrix([broken, broken], request)
    assert found.plans == found.sets == () and [i for i, _ in found.refused] == [0, 1]


def test_by_sizes_groups_are_called_the_best_only_if_nothing_was_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without steps of a search, only what fits one after another is sure."""
    monkeypatch.setattr(several, "LOOKED", 0)
    monkeypatch.setattr(assign, "has_solver", lambda: False)
    proven = {True: 0, False: 0}
    for seed in range(100):
        case = Sizes(seed, least=2)
        whole = [i for i, own in case.options.items() if own]
        sets, sure = several._sets(case.asked, case.weights)
        proven[sure] += 1
        assert sure or len(sets) > 1
        if len(sets) == 1 and len(whole) > 1:
            assert sure
    assert min(proven.values()) > 10


def test_by_sizes_any_of_the_preset_fit_and_share_what_is_left() -> None:
    presets = 0
    for seed in range(300, 420):
        case = Sizes(seed, least=2)
        if not all(case.options.values()):
            continue
        asked = case.asked
        for most in range(2, len(case.options) + 1):
            chosen = several._any(asked, asked.by_size(), most)
            assert (chosen is None) == (not case.ways(case.options, most))
            if chosen is None or case.together:
                continue
            presets += 1
            assert case.fit(chosen.values(), most)
            machines = several._machines(case.machine, chosen, most)
            for name in case.limits:
                shares = {i: machines[i].limits[name] for i in chosen if name in chosen[i].takes}
                assert all(size >= chosen[i].takes[name] for i, size in shares.items())
                unused = [machines[i].limits[name] for i in chosen if i not in shares]
                assert not any(unused)
                assert_shared_out(list(shares.values()), case.limits[name], most)
            if case.ram is not None:
                parts = [machines[i].ram - RAM_MARGIN for i in chosen]  # type: ignore[operator]
                assert all(part >= chosen[i].ram for i, part in zip(chosen, parts, strict=True))
                assert_shared_out(parts, case.ram, most)
            else:
                assert all(machines[i].ram is None for i in chosen)
    assert presets > 40


def assert_shared_out(parts: list[int], limit: int, most: int) -> None:
    """Any `most` of the parts are within the limit, and none could be larger by as much as one more
    for each."""
    for i, part in enumerate(parts):
        others = sorted(parts[:i] + parts[i + 1 :], reverse=True)[: most - 1]
        assert 0 <= limit - part - sum(others) < most


def test_by_sizes_many_models_join_the_first_group_with_space() -> None:
    for seed in range(40):
        case = Sizes(seed, least=11, most=14)
        sets, proven = several._sets(case.asked, case.weights)
        whole = [i for i, own in case.options.items() if own]
        assert not proven or len(whole) <= several.MOST_EXACT
        assert sorted(i for chosen in sets for i in chosen) == whole
        for at, chosen in enumerate(sets):
            assert case.fit(chosen.values())
            # on its own each would have the fastest launch
            for i in chosen if len(chosen) == 1 else ():
                assert chosen[i].price == min(option.price for option in case.options[i])
            for later in sets[at + 1 :]:
                if len(later) == 1:
                    (i,) = later
                    assert not any(case.fit((*chosen.values(), own)) for own in case.options[i])


# --- llama-swap's matrix: every set that fits


def test_every_largest_set_that_fits_is_listed_once() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        sizes = [rng.randint(1, 9) for _ in range(rng.randint(1, 7))]
        order = rng.sample(range(len(sizes)), len(sizes))

        def fits(members: Sequence[int], sizes: list[int] = sizes) -> bool:
            return len(members) == 1 or sum(sizes[i] for i in members) <= 14

        fitting = {
            members
            for r in range(1, len(sizes) + 1)
            for members in itertools.combinations(range(len(sizes)), r)
            if fits(members)
        }
        largest = [m for m in fitting if not any({*m} < {*other} for other in fitting)]
        assert sorted(matrix._every_set(order, fits)) == sorted(largest)
        grown = matrix._grown_sets(order, fits)
        assert {*grown} <= {*largest} and len(grown) == len({*grown})
        pairs = [pair for pair in fitting if len(pair) == 2]
        assert all(any({*pair} <= {*members} for members in grown) for pair in pairs)
        assert {i for members in grown for i in members} == {*range(len(sizes))}


def test_sets_of_a_matrix_fit_and_no_other_model_fits_beside_one() -> None:
    case = Case(20_003)
    found = matrix.plan_matrix(case.models, case.request, case.weights)
    assert found.fits and found.numbers == tuple(range(len(case.models)))

    def fits(members: tuple[int, ...]) -> bool:
        both = Together(tuple(found.plans[i] for i in members), case.machine)
        return min(both.left().values()) >= 0 and (both.ram_left() or 0) >= 0

    assert all(fits(members) for members in found.sets) and len(found.sets) > 1
    for members in found.sets:
        others = [i for i in found.numbers if i not in members]
        assert not any(fits((*members, i)) for i in others)
    groups = several.plan_groups(case.models, case.request, case.weights)

    def together(sets: Sets) -> float:
        pairs = {(i, j) for members in sets for i in members for j in members}
        return sum(case.weights[i] * case.weights[j] for i, j in pairs)

    assert together(found.sets) >= together(groups.members)
    # a set fits in exactly the RAM that it takes
    pair = found.plans[:2]
    taken = sum(plan.host.taken for plan in pair)
    for ram, sets in ((taken, ((0, 1),)), (taken - 1, ((0,), (1,)))):
        large = dict.fromkeys(case.machine.limits, 1 << 50)
        here = replace(case.machine, limits=large, ram=ram)
        assert matrix._sets(pair, here, (0, 1)) == sets
    assert all(cost >= 1 for cost in found.costs)


@pytest.mark.slow
def test_a_small_model_is_loaded_beside_every_other_one() -> None:
    """Who alternates a large model and embeddings would read 17 GiB with each request."""
    names = (
        "qwen3-30b-a3b-q4_k_m",
        "qwen3-coder-30b-a3b-q4_k_m",
        "llama-3.1-8b-q4_k_m",
        "nomic-embed-text-v1.5-f16",
    )
    request = Request.of(["--gpu", "rtx-3090", "--ram", "64GiB"], {})
    found = matrix.plan_matrix([model(name) for name in names], request)
    assert found.fits and len(found.sets) > 1 and all(3 in members for members in found.sets)
    # the large ones are still on the GPU
    assert all(found.plans[i].n_gpu_layers > found.plans[i].n_layer for i in (0, 1))
    assert all(not found.plans[i].params.overrides for i in (0, 1))
    turns = plan_turns([model(name) for name in names], request)
    assert turns.fits and [i for i, _ in turns.kept] == [3] and len(turns.groups) > 1
    # nothing stays where all fit together
    few = plan_turns([model(name) for name in names[2:]], request)
    assert not few.kept and len(few.groups) == 1


TEN = (
    *("llama-3.3-70b-q4_k_m", "llama-4-scout-q4_k_m", "qwen3-next-80b-a3b-q4_k_m"),
    *("granite-4.0-h-small-q4_k_m", "qwen3-30b-a3b-q4_k_m", "gpt-oss-20b-mxfp4"),
    *("gemma-2-9b-q4_k_m", "mamba2-2.7b-q4_k_m", "deepseek-v2-lite-q4_k_m", "gemma-3-4b-q8_0"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "nodes"),
    of_today(
        [(plan_together, 460_000), (several.plan_groups, 380_000), (matrix.plan_matrix, 1_100_000)]
    ),
)
def test_ten_different_models_take_about_one_plan_s_budget(
    ask: Callable[..., Any], nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest on four cards, where neither all fit nor each has one of its own."""
    spent = 0
    count = Meter.laid_out

    def counted(meter: Meter, laid_out: int) -> None:
        nonlocal spent
        spent += laid_out
        count(meter, laid_out)

    monkeypatch.setattr(Meter, "laid_out", counted)
    request = Request.of(["--gpu", "24GiB,24GiB,24GiB,24GiB", "--ram", "128GiB"], {})
    ask([model(name) for name in TEN], request)
    assert spent <= nodes
