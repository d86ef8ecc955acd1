"""An operator's machine would be overbooked, or a promise broken when one fails.

Which machine of a fleet serves which model: memory on every machine, promises, what a failing
machine costs.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import few_rows, model, seldom, slow

from autolayers.devices.fleet_file import Fleet, read
from autolayers.errors import DoesNotFit
from autolayers.flags.users import Users
from autolayers.planner.answer import plan_request
from autolayers.planner.compare.fleet.answer import FleetPlan, Wanted
from autolayers.planner.compare.fleet.options import option_of, part, sizes
from autolayers.planner.compare.fleet.plan import plan_fleet
from autolayers.planner.users import Requests
from autolayers.records import replace
from autolayers.request import Request
from autolayers.units import GiB

ONE, EIGHT, LARGE = "llama-3.2-1b-q8_0", "llama-3.1-8b-q4_k_m", "llama-3.3-70b-q4_k_m"


def machine(*cards: str, ram: int = 32, **more: Any) -> dict[str, Any]:
    return {"devices": [{"card": card} for card in cards], "host": {"total": ram * GiB}, **more}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("autolayers.planner.compare.fleet.plan.USUAL", ("rtx-3060",))

    def make(
        machines: dict[str, Any],
        *names: str,
        users: int | None = None,
        each: Users | None = None,
        weights: tuple[float, ...] = (),
        **more: Any,
    ) -> FleetPlan:
        (tmp_path / "fleet.json").write_text(json.dumps({"machines": machines, **more}))
        return plan_fleet(
            [model(name) for name in names],
            Request.of([], {}, devices=[]),
            read(str(tmp_path / "fleet.json")),
            weights or [1.0] * len(names),
            Wanted(users, each or Users()),
            names=names,
        )

    return make


def test_a_promise_is_kept_by_what_is_measured(plan) -> None:
    found = plan({"rack": machine("rtx-3060", count=300)}, ONE, users=2000, each=Users(rate=30.0))
    (server,) = found.servers
    replicas = found.replicas(0)
    assert found.fits and server.rate >= 30 and found.most % 300 == 0
    # one may fail, and no other one is needed
    assert server.slots * (replicas - 1) >= 2000 > found.most // 300 * (replicas - 2)
    assert found.failing[0].waiting == 0
    check_memory(found)


def check_memory(found: FleetPlan) -> None:
    """Each launch fits, and those of a machine together are within its GPUs and its RAM."""
    fleet: Fleet = found.fleet
    for kind in fleet.kinds:
        for box in kind.machines:
            ram, taken = 0, Counter[int]()
            for place in found.on[box.name]:
                server = found.servers[place.server]
                assert server.plan.fits
                if server.use is not None:
                    continue
                ram += server.plan.ram.limit or 0
                for number, row in zip(
                    place.gpus or range(len(kind.devices)), server.plan.devices, strict=True
                ):
                    taken[number] += row.used + row.margin
            assert ram <= kind.host.available
            assert all(size <= kind.devices[number].free for number, size in taken.items())


@seldom
def test_each_user_gets_what_was_promised(plan) -> None:
    found = plan(
        {"rack": machine("rtx-3060", count=2), "desk": machine("rtx-3090", "rtx-3090", ram=64)},
        ONE,
        EIGHT,
        users=40,
        each=Users(rate=15.0),
        weights=(1, 3),
    )
    assert found.fits and found.users == (10, 30) and not found.unserved
    check_memory(found)
    slots = Counter[int]()
    for number, server in enumerate(found.servers):
        assert server.rate >= 15 and server.plan.breakdown.n_seq_max >= server.slots
        slots[server.model] += server.slots * found.replicas(number)
    assert slots[0] >= 10 and slots[1] >= 30
    assert found.most >= 40 and found.bound is not None and found.bound >= found.most
    # a server has one GPU of the two in one machine
    gpus = [place.gpus for place in found.on["desk"]]
    assert gpus and {*gpus} <= {(0,), (1,)}
    # one machine of four parts fails: its users wait, others do not
    for failing in found.failing:
        lost = sum(found.servers[place.server].slots for place in found.on[failing.machine])
        assert (
            0 <= failing.waiting <= lost
            and failing.again is not None
            and failing.again <= found.most
        )
    assert found.next and all(each.users > found.most for each in found.next)
    assert [each.users for each in found.next] == sorted(
        (each.users for each in found.next), reverse=True
    )


@seldom
def test_users_that_cannot_be_served_are_counted(plan) -> None:
    found = plan({"rack": machine("rtx-3060", count=2)}, EIGHT, users=100, each=Users(rate=15.0))
    assert not found.fits and 0 < found.most < 100 and found.users == (found.most,)
    again = plan(
        {"rack": machine("rtx-3060", count=2)}, EIGHT, users=found.most, each=Users(rate=15.0)
    )
    assert again.fits and all(server.rate >= 15 for server in again.servers)
    more = plan({"rack": machine("rtx-3060", count=200)}, EIGHT, users=100, each=Users(rate=15.0))
    assert more.most == 100 * found.most


def test_more_models_than_gpus_share_them_within_memory(plan) -> None:
    found = plan({"desk": machine("rtx-3090", ram=64)}, ONE, EIGHT, f"{EIGHT}:8", users=6)
    assert (
        found.fits
        and len(found.servers) == 3
        and all(server.share == 3 for server in found.servers)
    )
    check_memory(found)
    assert all(server.slots >= 2 for server in found.servers)


@seldom
def test_rpc_only_where_no_machine_holds_the_model(plan) -> None:
    pair = {"a": machine("rtx-3090", ram=12), "b": machine("rtx-3090", ram=12)}
    found = plan(pair, LARGE, users=2)
    (server,), (place,) = found.servers, found.places
    assert (
        server.use is not None and server.takes == ((0, 2),) and set(place.machines) == {"a", "b"}
    )
    assert "--rpc" in server.plan.flags and found.fits and server.plan.fits
    assert any("1 Gbit/s" in note for note in found.notes)
    assert plan({**pair, "c": machine("rtx-3060", ram=64)}, LARGE, users=1).servers[0].use is None


@seldom
@pytest.mark.parametrize("count", [3, slow(4)])
def test_a_model_spans_as_few_machines_as_hold_it(count: int, plan) -> None:
    """70B of 42.5 GB on cards of 16 or 12 GiB."""
    card = {3: "rtx-4060-ti-16gb", 4: "rtx-3060"}[count]
    found = plan({"a": machine(card, ram=8, count=5)}, LARGE, users=1)
    (server,), (place,) = found.servers, found.places
    assert server.use is not None and server.takes == ((0, count),) and server.plan.fits
    assert place.machines == tuple(f"a-{number}" for number in range(1, count + 1))
    use = found.use(place)
    assert [box.name for box in use.boxes] == [*place.machines[1:]]
    endpoints = [f"a-{number}:50052" for number in range(2, count + 1)]
    assert ",".join(endpoints) in use.plan.flags and set(use.sent) == {*place.machines[1:]}
    assert sum(not places for places in found.on.values()) == 5 - count


@seldom
def test_a_model_that_nothing_holds_says_what_is_missing(plan) -> None:
    with pytest.raises(
        DoesNotFit,
        match=r"70b.*: no machine and no 2 together hold it: .* [GM]iB are "
        r"missing on .*b.*; .* would hold it",
    ):
        plan({"a": machine("rtx-3060", ram=8), "b": machine("rtx-3060", ram=12)}, LARGE)
    found = plan(
        {"a": machine("rtx-3060", ram=8), "b": machine("rtx-3060", ram=12)}, LARGE, ONE, users=2
    )
    assert (
        [each.model for each in found.unserved] == [0] and found.users == (0, 2) and not found.fits
    )


def test_a_promise_that_no_machine_keeps(plan) -> None:
    with pytest.raises(
        DoesNotFit,
        match=r"no machine gives 500 tokens/s each; the fastest gives "
        r"one user \d+",
    ):
        plan({"a": machine("rtx-3060")}, EIGHT, each=Users(rate=500.0))


def test_an_interrupt_answers_with_what_is_planned(plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from autolayers.planner.compare.fleet import sorts as part

    def stop(work: Any, items: Any, **_: Any) -> list[Any]:
        if 1 in items:
            raise KeyboardInterrupt
        return [work(i) for i in items]

    monkeypatch.setattr(part, "in_processes", stop)
    monkeypatch.setattr(part, "cores", lambda: 1)
    found = plan({"a": machine("rtx-3060")}, ONE, EIGHT)
    assert (
        found.interrupted and not found.fits and [server.model for server in found.servers] == [0]
    )
    assert [each.why for each in found.unserved] == [
        f"{EIGHT}: not planned, as the search was interrupted"
    ]
    assert "interrupted: this is the best so far" in found.notes


@pytest.mark.parametrize("there", [False, True])
def test_a_bound_that_is_far_or_unknown_is_said(
    there: bool, plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autolayers.planner.compare.fleet import plan as part

    found = part.assign
    monkeypatch.setattr(part, "has_solver", lambda: there)
    monkeypatch.setattr(
        part,
        "assign",
        lambda *words, **more: replace(
            answer := found(*words, **more),
            bound=2 * (answer.bound or 0) if there else None,
        ),
    )
    answer = plan({"a": machine("rtx-3060")}, ONE)
    assert answer.notes[-1] == (
        f"more than {answer.most} users may be possible, {answer.bound} at most: the search ended "
        "before it knew"
        if there
        else "pip install 'autolayers[fleet]' may find servers for more users"
    )


@pytest.mark.parametrize(
    ("name", "card", "rate", "ram"),
    few_rows(
        1,
        [
            slow(EIGHT, "rtx-3060", 15.0, 32),
            slow(EIGHT, "rtx-3090", 15.0, 32),  # the caches are of q8_0 in the end
            slow("gemma-3-4b-q8_0", "rtx-4090", 20.0, 64),
            slow("qwen3-30b-a3b-q4_k_m", "rtx-3060", 20.0, 64),  # experts in RAM
        ],
    ),
)
def test_nearly_as_many_keep_a_promise_as_when_each_number_is_searched(
    name: str, card: str, rate: float, ram: int, tmp_path: Path
) -> None:
    rows = {"machines": {"a": machine(card, ram=ram)}}
    (tmp_path / "fleet.json").write_text(json.dumps(rows))
    request = Request.of([], {}, devices=[])
    here = part(read(str(tmp_path / "fleet.json")).kinds[0], 1, request.policy)
    wanted = Users(rate=rate)
    option = option_of(model(name), request, here, wanted)
    searched = plan_request(model(name), replace(request.with_goals(users=wanted), machine=here))
    assert isinstance(searched.speed.requests, Requests)
    most = searched.speed.requests.most
    assert most is not None and 1 < 0.95 * most <= option.users <= most


@seldom
def test_few_servers_have_many_slots_and_other_machines_are_free(plan) -> None:
    found = plan(
        {"small": machine("rtx-3060", count=120), "rack": machine("rtx-4090", count=50)},
        ONE,
        EIGHT,
        users=100,
        each=Users(rate=20.0),
    )
    assert found.fits and found.users == (50, 50) and len(found.places) <= 6
    assert sum(not places for places in found.on.values()) == 170 - len(found.places)
    assert all(each.waiting == 0 for each in found.failing)
    for server in found.servers:
        assert server.slots > 16 and server.rate >= 20
    check_memory(found)


def test_a_machine_is_divided_into_equal_parts() -> None:
    assert [sizes(count) for count in (1, 2, 3, 6, 8)] == [
        [1],
        [1, 2],
        [1, 3],
        [1, 2, 6],
        [1, 2, 4, 8],
    ]


THREE = {
    "rack-1": machine("rtx-4090", ram=64),
    "rack-2": machine("rtx-3090", ram=64),
    "desk": machine("rtx-3060", ram=64),
}
EMBEDS = "nomic-embed-text-v1.5-f16"


@pytest.mark.slow
def test_a_fleet_plans_embeddings_for_any_number_of_users(plan) -> None:
    """llama.cpp refuses slots that do not divide the micro-batch: 66 people get 128 slots."""
    found = plan(THREE, EMBEDS, users=66, each=Users(rate=10.0))
    assert found.fits and {each.plan.breakdown.n_seq_max for each in found.servers} == {128}
    # without a promise some may wait
    seven = plan(THREE, EMBEDS, users=7)
    assert all(each.slots == each.plan.breakdown.n_seq_max == 4 for each in seven.servers)


@seldom
def test_who_asks_for_less_is_not_served_less(plan) -> None:
    """50 people are served at 20 tokens/s, so they are where no rate is asked for."""
    asked = plan(THREE, "qwen3-30b-a3b-q4_k_m", users=50, each=Users(rate=20.0))
    found = plan(THREE, "qwen3-30b-a3b-q4_k_m", users=50)
    assert asked.fits and found.fits and found.most >= 50 and not found.wanted.each.promise
    assert all(server.rate >= 20 for server in found.servers)


@seldom
def test_a_model_has_what_another_leaves_of_the_only_gpu(plan) -> None:
    """Both are planned by `autolayers A B` on this machine: none is left without a machine."""
    found = plan({"a": machine("rtx-3090", ram=64)}, "qwen3-coder-30b-a3b-q4_k_m", EIGHT, users=2)
    assert found.fits and sorted(server.model for server in found.servers) == [0, 1]
    check_memory(found)
    assert all(server.rate > 30 for server in found.servers)


@seldom
@pytest.mark.parametrize(("rate", "left_out"), [(5.0, []), (30.0, [0])])
def test_as_many_models_as_can_be_are_served(rate: float, left_out: list[int], plan) -> None:
    """On one small GPU the mixture has what the small models leave, with fewer users and fewer
    saved prompts; where it is too slow beside them it is left out, and no other."""
    names = ("qwen3-30b-a3b-q4_k_m:32", EMBEDS, "llama-3.2-1b-q8_0:8")
    found = plan({"a": machine("rtx-3060", ram=24)}, *names, each=Users(rate=rate))
    assert [each.model for each in found.unserved] == left_out
    check_memory(found)


@seldom
def test_the_smallest_model_does_not_take_the_fastest_card_alone(plan) -> None:
    """The large model stands on both large cards: it outlives either, and embeddings do too."""
    models = ("qwen3-30b-a3b-q4_k_m", EIGHT, EMBEDS)
    found = plan(THREE, *models, users=12, each=Users(rate=20.0))
    on = {
        name: {found.servers[place.server].model for place in places}
        for name, places in found.on.items()
    }
    assert found.fits and 0 in on["rack-1"] and 0 in on["rack-2"]
    waiting = {each.machine: each.waiting for each in found.failing}
    assert waiting["rack-1"] == waiting["rack-2"] == 0
