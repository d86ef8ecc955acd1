"""Models in turns: the groups with the fewest swaps, against every way to group them, and the
preset of which the most models may be loaded, against every choice of devices; 130 random small
cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support import model, requested, slow

from autolayers import Device, estimate
from autolayers.api import plan_groups
from autolayers.devices import Host
from autolayers.flags.policy import read
from autolayers.machine import Machine
from autolayers.planner.evaluate import RAM_MARGIN
from autolayers.planner.several import groups as several
from autolayers.planner.several.assign import Option
from autolayers.planner.several.options import Launches

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


@pytest.mark.parametrize(("seed", "cases"), [(0, 2), *(slow(n, 10) for n in range(10))])
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


@pytest.mark.parametrize(("seed", "cases"), [(0, 1), *(slow(n, 5) for n in range(6))])
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
