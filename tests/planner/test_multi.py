"""Models that run at the same time would not fit, or be slower than they have to be.

Several models on one machine, through the library call.

200 random small cases are compared with every choice there is: each model whole or with some
layers' weights in RAM on each device, or cut over devices in every way, all of them measured.
"""

from __future__ import annotations

import gc
import itertools
import random
import sys
import weakref
from dataclasses import replace
from functools import partial

import pytest
from support import HEADERS, blocks, few_rows, header, model, requested, seldom, slow, swept

import autolayers
from autolayers import Device, LaunchRefused, estimate
from autolayers.api import plan_any, plan_groups, plan_together
from autolayers.devices import Host
from autolayers.flags.policy import read
from autolayers.machine import Machine
from autolayers.model.models import KEPT, Models
from autolayers.planner import Plan, plan_request
from autolayers.planner.evaluate import FULL, RAM_MARGIN, Evaluator
from autolayers.planner.several import multi
from autolayers.planner.several.multi import Together
from autolayers.planner.several.options import Launches

PATH = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
SMALL = ("llama-moe", "qwen2-dense", "gemma2-dense", "olmoe-moe", "granite-moe")  # of two layers
MiB = 1 << 20


@pytest.mark.parametrize("ask", [plan_together, plan_groups, plan_any])
def test_a_model_that_lacks_a_tensor_is_named(ask: object) -> None:
    tensors = blocks(2)
    del tensors["token_embd.weight"]
    broken = autolayers.Model(header("llama", tensors), "broken.gguf")
    reason = "broken.gguf: a llama model without token_embd.weight: llama.cpp does not load it"
    try:
        found = ask([model(SMALL[0]), broken], ["--gpu", "8GiB"])  # type: ignore[operator]
    except autolayers.ModelError as error:
        assert ask is plan_together and str(error) == reason
    else:
        assert found.refused == ((1, reason),)


# some in RAM, and too little of all memory
@seldom
@pytest.mark.parametrize("ram", [pytest.param("64GiB", marks=pytest.mark.slow), "16GiB"])
def test_of_many_models_only_their_plans_are_kept(
    ram: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    alive: list[int] = []
    evaluators: list[weakref.ref[Evaluator]] = []
    begin = Evaluator.__init__

    def counted(self: Evaluator, *args: object, **more: object) -> None:
        evaluators.append(weakref.ref(self))
        begin(self, *args, **more)  # type: ignore[arg-type]

    def reader(name: str) -> autolayers.Model:
        read.append(name)
        alive.append(sum(known() is not None for known in evaluators))
        return autolayers.read_model(PATH)

    def planned(n: int) -> tuple[Together, int]:
        gc.collect()
        before = sys.getallocatedblocks()
        found = plan_together(
            Models([str(i) for i in range(n)], reader), ["--gpu", "8GiB", "--ram", ram]
        )
        gc.collect()
        return found, (sys.getallocatedblocks() - before) // n

    monkeypatch.setattr(Evaluator, "__init__", counted)
    planned(2)
    assert len(read) == 2
    found, blocks = planned(KEPT + KEPT // 2)
    assert len(evaluators) > KEPT >= max(alive)
    one = autolayers.read_model(PATH)
    assert blocks < 3 * len(one.tensors)  # a model is ten objects for each tensor
    plan = found.plans[-1]
    assert (plan.model.name, plan.model.size, plan.n_layer) == (one.name, one.size, one.n_layer)
    assert plan.to_dict() and plan.speed.generation > 0


# --- against every choice


class Case:
    """Some small models, weights, and a machine with a fifth to one and a third of what all of them
    need."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.models = [model(rng.choice(SMALL)) for _ in range(rng.randint(2, 3))]
        self.weights = [rng.choice([1.0, 1.0, 3.0]) for _ in self.models]
        self.words = ["-fitt", "0", "-c", rng.choice(["512", "4096"])]
        self.params, self.policy = read(self.words, None)
        need = [
            estimate(m, self.params, [Device("CUDA0", 1 << 50, 1 << 50)]).devices["CUDA0"].total
            for m in self.models
        ]
        shares = [rng.uniform(0.1, 1) for _ in range(rng.randint(1, 3 if len(need) == 2 else 2))]
        total = sum(need) * rng.uniform(0.2, 1.3) / sum(shares)
        devices = [
            Device(f"CUDA{i}", size, size, bandwidth=rng.choice([None, 300e9, 1000e9]))
            for i, size in enumerate(int(total * share) + MiB for share in shares)
        ]
        ram = RAM_MARGIN + int(sum(m.size for m in self.models) * rng.uniform(0.3, 3))
        host = rng.choice([None, Host(1 << 40, ram, "given")])
        self.machine = Machine.of(devices, host, None, {})
        self.request = requested(self.params, self.policy, self.machine)
        self.launches = [
            Launches(partial(self.models.__getitem__, i), self.request)
            for i in range(len(self.models))
        ]

    def planned(self) -> Together:
        return multi.plan_together(self.models, self.request, self.weights)

    def price(self, plans: list[Plan]) -> float:
        """The sum that is compared: weighted seconds, where a model that fits on one device is not
        to be cut."""
        return sum(
            weight * launches._price(plan.speed.request, sum(1 for d in plan.devices if d.used))
            for weight, launches, plan in zip(self.weights, self.launches, plans, strict=True)
        )

    def every_launch(self, launches: Launches) -> list[tuple[float, dict[str, int], int]]:
        """(price, bytes per device, bytes of RAM) of every launch."""
        shapes = []
        for home in launches.homes:
            at = replace(launches.params, device=home)
            shapes += [launches._at(home)]
            shapes += [
                ladder.with_in_ram(n)
                for ladder in launches._ladders(at)
                for n in range(1, ladder.top + 1)
            ]
        names = [home[0] for home in launches.homes if home]
        for r in range(2, len(names) + 1 if launches.divisible else 0):
            for chosen in itertools.combinations(names, r):
                for ends in itertools.combinations(range(1, launches.ladders.everything), r - 1):
                    split = tuple(
                        float(b - a)
                        for a, b in itertools.pairwise((0, *ends, launches.ladders.everything))
                    )
                    shapes.append(replace(launches._at(chosen), tensor_split=split))
        measured = [launches.evaluator.candidate(shape, FULL) for shape in shapes]
        options = [launches._measured(found) for found in measured if found]
        return sorted(
            ((option.price, dict(option.takes), option.ram) for option in options),
            key=lambda it: it[0],
        )

    def least(self) -> float | None:
        """The smallest sum of all choices."""
        lists = [self.every_launch(launches) for launches in self.launches]
        best: float | None = None

        def choose(i: int, left: dict[str, int], ram: int | None, price: float) -> None:
            nonlocal best
            if best is not None and price >= best:
                return
            if i == len(lists):
                best = price
                return
            for own, takes, host in lists[i]:
                if (ram is None or host <= ram) and all(
                    size <= left[name] for name, size in takes.items()
                ):
                    rest = {name: size - takes.get(name, 0) for name, size in left.items()}
                    choose(
                        i + 1,
                        rest,
                        None if ram is None else ram - host,
                        price + self.weights[i] * own,
                    )

        ram = self.machine.ram
        choose(0, dict(self.machine.limits), None if ram is None else ram - RAM_MARGIN, 0.0)
        return best

    def one_after_another(self) -> float | None:
        """The sum where each model gets the best plan that those before it leave: on one device,
        where it is whole there."""
        limits, ram, plans = dict(self.machine.limits), self.machine.ram, []
        for launches, own in zip(self.launches, self.models, strict=True):
            here = replace(self.machine, limits=dict(limits), ram=ram)
            found = []
            for home in (*launches.homes, self.params.device):
                try:
                    plan = plan_request(
                        own, replace(self.request.with_flags(device=home), machine=here)
                    )
                except LaunchRefused:
                    continue
                whole = plan.n_gpu_layers > plan.n_layer and not plan.params.overrides
                if plan.fits and (whole or home == self.params.device):
                    found.append(plan)
                if found and home == launches.homes[-1]:
                    break
            if not found:
                return None
            plan = min(found, key=lambda plan: plan.speed.request)
            plans.append(plan)
            for device in plan.devices:
                limits[device.name] -= device.used + device.margin if device.used else 0
            ram = None if ram is None else ram - plan.host.resident - plan.host.growing
        return self.price(plans)


@pytest.mark.parametrize("first", swept(range(0, 2000, 100), 20))
def test_no_other_choice_is_better(first: int) -> None:
    for number in range(first, first + 10):
        case = Case(number)
        found, least = case.planned(), case.least()
        assert found.fits or least is None
        if least is not None:
            # models of 10 MB, whose kernels' launches cost more than their weights, are 5 % faster
            # with a layer in RAM
            assert case.price(list(found.plans)) <= least * 1.06, number


@pytest.mark.parametrize("seed", swept(range(60), 15, (11,)))
def test_what_holds_for_every_plan_of_several(seed: int) -> None:
    """No device and no RAM is given twice, nothing is worse than one after another, the flags say
    all of it."""
    case = Case(10_000 + seed)
    found, before = case.planned(), case.one_after_another()
    assert found.fits or before is None
    if not found.fits:
        return
    assert before is None or case.price(list(found.plans)) <= before * (1 + 1e-9)
    assert min(found.left().values()) >= 0 and (found.ram_left() is None or found.ram_left() >= 0)
    for own, plan in zip(case.models, found.plans, strict=True):
        again, _ = read([*plan.flags], None)
        use = estimate(own, again, case.machine.devices)
        assert {d.name: d.model + d.context + d.compute for d in plan.devices} == {
            name: usage.total for name, usage in use.devices.items()
        }


# --- what users see


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "names", "homes"),
    [
        # each on one device
        ("7GiB,4GiB", ("llama-3.1-8b-q4_k_m:8", "gemma-3-4b-q8_0:8", "gpt-oss-20b-mxfp4:8"), 1),
        # the large one is cut, the small one is not
        slow("2x5GiB", ("llama-3.3-70b-q4_k_m:8", "gemma-3-4b-q8_0:8"), 2),
        slow("3x6GiB", ("llama-3.1-8b-q4_k_m:8", "gemma-3-4b-q8_0:8", "gpt-oss-20b-mxfp4:8"), 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("24GiB,12GiB", ("llama-3.1-8b-q4_k_m", "gemma-3-4b-q8_0", "gpt-oss-20b-mxfp4"), 1),
                ("2x24GiB", ("llama-3.3-70b-q4_k_m", "gemma-3-4b-q8_0"), 2),
                ("3x12GiB", ("llama-3.1-8b-q4_k_m", "gemma-3-4b-q8_0", "gpt-oss-20b-mxfp4"), 1),
            )
        ),
    ],
)
def test_what_fits_on_one_device_is_not_cut(gpu: str, names: tuple[str, ...], homes: int) -> None:
    found = plan_together([model(name) for name in names], ["--gpu", gpu])
    assert found.fits
    used = [sum(1 for d in plan.devices if d.used) for plan in found.plans]
    assert used == [homes, *[1] * (len(names) - 1)]
    if len(found.machine.devices) == 3:
        # a device for each, where there are enough
        assert sorted(map(len, found.users().values())) == [1, 1, 1]


def test_what_has_no_space_is_what_costs_least_in_ram() -> None:
    """A few experts of the mixture rather than the dense model's layers."""
    dense, mixture = model("llama-3.1-8b-q4_k_m:8"), model("qwen3-30b-a3b-q4_k_m:8")
    words = ["--gpu", "3700MiB", "--ram", "64GiB", "-c", "4096"]
    found = plan_together([dense, mixture], words)
    first, second = found.plans
    assert (
        found.fits
        and first.n_gpu_layers == 9
        and not first.params.overrides
        and second.params.overrides
    )
    alone = autolayers.plan(dense, words)
    assert first.speed.request == pytest.approx(alone.speed.request, rel=0.01)
    # the dense model costs the mixture seconds
    assert found.costs[0][1] > 1 > found.costs[1][0] == 0.0


def test_weights_and_smallest_contexts_are_kept() -> None:
    models = [model("llama-3.1-8b-q4_k_m:8"), model("qwen2.5-7b-q4_k_m:8")]
    devices = [
        Device("CUDA0", 3 << 30, 3 << 30, bandwidth=760e9),
        Device("CUDA1", 4 << 30, 4 << 30, bandwidth=360e9),
    ]
    for weights, fast in (((1, 9), 1), ((9, 1), 0)):
        found = plan_together(models, ["--ctx-min", "16k"], devices, weights=weights)
        assert found.fits and all(plan.breakdown.n_ctx >= 16384 for plan in found.plans)
        assert found.users() == {"CUDA0": [fast], "CUDA1": [1 - fast]}
        assert found.to_dict()["weights"] == list(weights)


@pytest.mark.slow
def test_a_server_serves_one_model_at_a_time() -> None:
    """A ggml-rpc-server talks with one llama-server: no other has its devices, or names it in
    --rpc."""
    servers = {"a:1": ("RPC0",), "b:2": ("RPC1", "RPC2")}
    remote = [
        Device(name, 24 << 30, 23 << 30, server, "RPC", "rpc", link=1e9, latency=1e-4)
        for server, names in servers.items()
        for name in names
    ]
    devices = [*remote, Device.hypothetical("3GiB")]
    models = [
        model(name) for name in ("llama-3.1-8b-q4_k_m:8", "qwen3-8b-q4_k_m:8", "gemma-3-4b-q8_0:8")
    ]
    for count, planned in ((2, plan_together), (3, plan_together), (3, plan_groups), (2, plan_any)):
        found = planned(
            models[:count],
            ["--rpc", "a:1,b:2"],
            devices=devices,
            host=Host(64 << 30, 64 << 30, "given"),
        )
        groups = [list(group.plans) for group in getattr(found, "groups", [found])]
        assert found.fits and max(map(len, groups)) > 1
        if planned is plan_any:
            assert found.most == count
        for plans in groups:
            used = [
                {
                    server
                    for server, names in servers.items()
                    for row in plan.devices
                    if row.used and row.name in names
                }
                for plan in plans
            ]
            assert sum(map(len, used)) == len(set().union(*used))
            for plan, own in zip(plans, used, strict=True):
                words = dict(itertools.pairwise(plan.flags))
                assert words.get("--rpc", "") == ",".join(sorted(own)) and plan.params.rpc == tuple(
                    sorted(own)
                )
                assert not own or len(own) > 1 or words["-dev"].split(",")[0] == "RPC0"


@pytest.mark.parametrize(
    ("count", "words", "ram"),
    few_rows(
        3,
        [
            *(
                (count, *rest)
                for count in (1, 2)
                for rest in (("-ngl 99", 64), ("-ngl 20 -c 2048", 64), ("-ngl 99", 4))
            ),
            (1, "", 4),
            slow(2, "", 4),
        ],
    ),
)
def test_no_server_is_named_twice_where_models_are_more(words: str, ram: int, count: int) -> None:
    remote = [
        Device(f"RPC{i}", 12 << 30, 12 << 30, f"a:{i}", "RPC", "rpc", link=1e9, latency=1e-4)
        for i in range(count)
    ]
    models = [
        model(name) for name in ("llama-3.1-8b-q4_k_m:8", "qwen3-8b-q4_k_m:8", "gemma-3-4b-q8_0:8")
    ]
    rpc = ",".join(device.description for device in remote)
    found = plan_together(
        models,
        [*words.split(), "--rpc", rpc],
        devices=remote,
        host=Host(ram << 30, ram << 30, "given"),
    )
    named = [server for plan in found.plans for server in plan.params.rpc]
    assert len(named) == len(set(named)) and (not words or len(named) == count)
    for plan in found.plans:
        assert dict(itertools.pairwise(plan.flags)).get("--rpc", "") == ",".join(plan.params.rpc)
        assert plan.params.rpc or not any(row.used for row in plan.devices)


def test_models_on_one_device_share_what_is_left_for_their_contexts() -> None:
    models = [model("llama-3.2-1b-q8_0:6")] * 2
    found = plan_together(models, ["--gpu", "3GiB", "--ram", "16GiB"])
    first, second = (plan.breakdown.n_ctx for plan in found.plans)
    assert found.fits and abs(first - second) <= 512 and min(first, second) > 8192


def test_what_a_model_cannot_use_of_its_part_goes_to_the_other() -> None:
    """An embedding model has 8192 tokens in any case: a third of a card was left to nobody where it
    came last."""
    models = [model("llama-3.2-1b-q8_0:6"), model("bge-m3-f16")]
    for order in (models, models[::-1]):
        found = plan_together(order, ["--gpu", "3GiB", "--ram", "16GiB"])
        contexts = {plan.model.architecture: plan.breakdown.n_ctx for plan in found.plans}
        assert found.fits and contexts["bert"] == 8192 and contexts["llama"] > 16384
        assert found.left()["CUDA0"] < 64 * MiB


def test_of_cache_types_the_first_with_which_all_are_on_devices_is_taken() -> None:
    """A smaller one would be faster."""
    models = [model("llama-3.2-1b-q8_0:6")] * 2
    words = ["--ram", "16GiB", "-c", "32768", "--kv-types", "f16,q8_0"]
    for gpu, type_ in (("4GiB", "f16"), ("3100MiB", "q8_0")):
        found = plan_together(models, ["--gpu", gpu, *words])
        assert found.fits and all(plan.n_gpu_layers == 7 for plan in found.plans)
        assert [plan.params.cache_type_k for plan in found.plans] == [type_] * 2


def test_models_that_do_not_fit_are_planned_all_the_same() -> None:
    found = plan_together([model("llama-3.3-70b-q4_k_m:8")] * 2, ["--gpu", "1GiB", "--ram", "2GiB"])
    assert not found.fits and len(found.plans) == 2 and not found.proven


@pytest.mark.parametrize("count", [3, 30])
def test_the_same_file_many_times_is_planned_as_often_as_its_place_differs(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise 40 copies of a 70B that take turns are 15 seconds of a core."""
    planned = []
    plan = multi.plan_request

    def counted(*args: object, **more: object) -> Plan:
        planned.append(args)
        return plan(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(multi, "plan_request", counted)
    target = model("llama-3.2-1b-q8_0:4")
    # each has the machine to itself
    found = plan_groups([target] * count, ["--gpu", "1400MiB", "-c", "8192"])
    assert found.members == tuple((i,) for i in range(count)) and found.fits
    assert len({tuple(plan.flags) for plan in found.plans().values()}) == 1
    assert len(planned) == 1
