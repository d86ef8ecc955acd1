"""A slow network would be used where one machine is faster.

The boxes that are used are those with the fastest request, and the network costs what it is said
to.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from support import model, requested, slow

import autolayers
from autolayers import Device
from autolayers.devices.cluster_file import Box, Cluster
from autolayers.errors import UsageError
from autolayers.flags.params import Params
from autolayers.flags.policy import Policy
from autolayers.machine import Host
from autolayers.planner.compare.cluster import plan_cluster, use_of
from autolayers.report.text import plan_text

HEAD = Box("desk", (Device.hypothetical("rtx-3090"),), Host(64 << 30, 64 << 30, "given"))


def box(name: str, card: str, link: tuple[float, float], count: int = 1) -> Box:
    devices = tuple(Device.hypothetical(card) for _ in range(count))
    return Box(name, devices, None, name, tuple(range(50052, 50052 + count)), name, link)


SHED, ATTIC = (
    box("shed", "rtx-3060", (3e8, 2.5e-4), 2),
    box("attic", "rtx-4060-ti-16g", (2.5e7, 4e-3)),
)
POLICY = Policy(n_ctx_min=8192)


# Boxes of a few layers
LITTLE = Box("desk", (Device.hypothetical("1GiB"),), HEAD.host)
FEW = (box("shed", "1GiB", (3e8, 2.5e-4), 2), box("attic", "1500MiB", (2.5e7, 4e-3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head", "boxes"),
    [
        ("llama-3.1-8b-q4_k_m:8", HEAD, (SHED, ATTIC)),
        slow("llama-3.1-8b-q4_k_m:8", LITTLE, FEW),
        *(
            pytest.param(name, HEAD, (SHED, ATTIC), marks=pytest.mark.slow)
            for name in ("llama-3.1-8b-q4_k_m", "llama-3.3-70b-q4_k_m", "qwen3-30b-a3b-q4_k_m")
        ),
    ],
)
def test_the_best_of_all_sets_is_taken(name: str, head: Box, boxes: tuple[Box, ...]) -> None:
    found = plan_cluster(model(name), requested(Params(), POLICY), Cluster(head, boxes))
    every = [
        use_of(model(name), requested(Params(), POLICY), Cluster(head, boxes), some)
        for count in range(3)
        for some in combinations(boxes, count)
    ]
    assert 1 + len(found.others) == len(every) == 4
    assert found.best.plan.fits
    fastest = min(use.plan.speed.request for use in every if use.plan.fits)
    assert found.best.plan.speed.request <= fastest * 1.02**2
    if model(name).size < head.devices[0].free:
        # the head's card holds it
        assert found.best.boxes == () and "--rpc" not in found.best.plan.flags
    else:
        assert boxes[0] in found.best.boxes
        rpc = found.best.plan.flags[found.best.plan.flags.index("--rpc") + 1]
        assert rpc.startswith("shed:50052,shed:50053")
        weights = {device.name: device.model for device in found.best.plan.devices}
        assert found.best.sent["shed"] == weights["RPC0"] + weights["RPC1"] > 0
        assert found.best.load == max(
            found.best.sent[each.name] / each.link[0] for each in found.best.boxes if each.link
        )


def test_a_token_costs_a_round_trip_for_each_server() -> None:
    target = model("llama-3.3-70b-q4_k_m:8")
    flags = Params(n_ctx=8192, n_gpu_layers=9, tensor_split=(2, 2, 5))

    def seconds(latency: float, rate: float) -> float:
        shed = box("shed", "rtx-3060", (rate, latency), 2)
        return (
            1
            / use_of(
                target, requested(flags, Policy()), Cluster(HEAD, (shed,)), (shed,)
            ).plan.speed.generation
        )

    near, far = seconds(0.0, 1e12), seconds(5e-3, 1e12)
    assert far - near == pytest.approx(2 * 5e-3, rel=1e-3)
    depth = 2048 + 512 / 2
    # there and back, f32, and the mask, for both servers
    sent = 2 * (2 * 4 * 8192 + 2 * depth)
    assert seconds(0.0, 1e7) - near == pytest.approx(sent / 1e7, rel=0.02)


def test_servers_without_a_file_are_on_a_network_too() -> None:
    """--rpc alone: the way to a server is taken as 1 Gbit/s, which is said; to one on this machine
    it is loopback."""
    target = model("llama-3.3-70b-q4_k_m:8")
    flags = ["-c", "8192", "-ngl", "9", "-ts", "4,5"]
    home = replace(
        Device.hypothetical("rtx-3090"), name="RPC0", backend="RPC", kind="rpc", link=None
    )

    def seconds(far: Device) -> tuple[float, dict[str, float], str]:
        plan = autolayers.plan(
            target, flags, devices=[far, Device.hypothetical("rtx-3090")], host=HEAD.host
        )
        return (
            1 / plan.speed.generation,
            dict(plan.speed.assumed),
            " ".join(plan_text(plan).split()),
        )

    near, assumed, text = seconds(replace(home, link=1e12, latency=0.0))
    assert assumed == {} and "network" not in text
    far, assumed, text = seconds(home)
    assert assumed == {"network": 1.25e8} and "network assumed to be 1 Gbit/s" in text
    assert far - near == pytest.approx(
        3e-4 + (2 * 4 * 8192 + 2 * (2048 + 512 / 2)) / 1.25e8, rel=1e-3
    )


def test_a_server_is_left_out_where_the_way_to_it_costs_more_than_it_brings() -> None:
    """Its device is faster than the one here, which holds the model too."""
    target = model("llama-3.1-8b-q4_k_m")
    for latency, used in ((1e-5, True), (0.02, False)):
        far = replace(
            Device.hypothetical("rtx-5090"),
            name="RPC0",
            backend="RPC",
            kind="rpc",
            link=1e10,
            latency=latency,
        )
        plan = autolayers.plan(
            target, ["-c", "8192"], devices=[far, Device.hypothetical("rtx-3060")], host=HEAD.host
        )
        assert bool(plan.devices[0].used) is used, latency


@pytest.mark.slow
def test_what_lies_in_ram_belongs_to_the_devices_that_are_here() -> None:
    """They come first then, and the server with the fastest link last: it sends the logits."""

    def part(of: Box) -> Box:
        return replace(
            of,
            devices=tuple(
                replace(each, total=each.total // 7, free=each.free // 7) for each in of.devices
            ),
        )

    target, boxes = model("llama-4-scout-q4_k_m:8"), (part(SHED), part(ATTIC))
    own = ("RPC0", "RPC1", "RPC2", "CUDA0")
    found, *before = (
        use_of(
            target,
            requested(Params(n_ctx=16384, device=order, tensor_split=split), Policy()),
            Cluster(part(HEAD), boxes),
            boxes,
        ).plan
        for order, split in ((None, None), *((own, (n, 0, 0, 9 - n)) for n in range(1, 5)))
    )
    assert (
        found.params.device == ("CUDA0", "RPC2", "RPC0", "RPC1")
        and found.fits
        and found.params.overrides
    )
    assert found.speed.request < min(plan.speed.request for plan in before if plan.fits)
    # llama.cpp knows no RPC0 before
    assert found.flags.index("--rpc") < found.flags.index("-dev")


@pytest.mark.slow
def test_a_slow_network_makes_fewer_boxes_faster() -> None:
    target, slow = model("qwen3-30b-a3b-q4_k_m:8"), box("attic", "3GiB", (1e6, 0.2))
    head = Box("desk", (Device.hypothetical("2GiB"),), HEAD.host)
    near = box("attic", "3GiB", (1.25e9, 1e-4))
    assert plan_cluster(target, requested(Params(), POLICY), Cluster(head, (near,))).best.boxes == (
        near,
    )
    assert (
        plan_cluster(target, requested(Params(), POLICY), Cluster(head, (slow,))).best.boxes == ()
    )


def test_a_budget_is_of_the_device_with_that_name_where_all_boxes_are_used() -> None:
    target, cluster = model("llama-3.2-1b-q8_0"), Cluster(HEAD, (SHED, ATTIC))
    policy = Policy(n_ctx_min=8192, budget=(("RPC2", 4 << 30), ("RPC0", 5 << 30)))
    free = {
        boxes: [
            row.free
            for row in use_of(target, requested(Params(), policy), cluster, boxes).plan.devices
        ]
        for boxes in ((SHED, ATTIC), (ATTIC,))
    }
    assert free[SHED, ATTIC][::2] == [5 << 30, 4 << 30] and free[ATTIC,][0] == 4 << 30
    with pytest.raises(UsageError, match="there is no device RPC3"):
        plan_cluster(target, requested(Params(), Policy(budget=(("RPC3", 4 << 30),))), cluster)


@pytest.mark.slow
def test_a_margin_is_of_the_device_at_that_place_where_all_boxes_are_used() -> None:
    shed, attic = FEW[0], replace(FEW[1], devices=(Device.hypothetical("3GiB"),))
    shed = replace(shed, devices=tuple(Device.hypothetical("2GiB") for _ in range(2)))
    target, cluster = (
        model("llama-3.3-70b-q4_k_m:8"),
        Cluster(replace(LITTLE, devices=shed.devices[:1]), (shed, attic)),
    )
    policy = Policy(n_ctx_min=8192, margin=(1 << 28, 2 << 28, 3 << 28))
    request = requested(Params(), policy)
    kept = {
        boxes: [row.margin >> 28 for row in use_of(target, request, cluster, boxes).plan.devices]
        for boxes in ((shed, attic), (attic,), ())
    }
    assert kept == {(shed, attic): [1, 2, 3, 3], (attic,): [3, 3], (): [3]}
    with pytest.raises(UsageError, match="--margin has 5 sizes for 4 devices"):
        plan_cluster(target, requested(Params(), Policy(margin=(1 << 30,) * 5)), cluster)


def test_the_heads_file_says_how_many_threads_compute() -> None:
    head = Box("desk", HEAD.devices, replace(HEAD.host, threads=6))
    found = plan_cluster(
        model("llama-3.3-70b-q4_k_m"), requested(Params(n_ctx=8192), POLICY), Cluster(head, ())
    )
    assert found.best.plan.params.n_threads == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head", "card", "count"),
    [
        ("llama-3.1-8b-q4_k_m:4", LITTLE, "2GiB", 5),
        pytest.param("llama-3.3-70b-q4_k_m", HEAD, "rtx-3060", 6, marks=pytest.mark.slow),
    ],
)
def test_of_many_boxes_one_after_the_other_is_dropped(
    name: str, head: Box, card: str, count: int
) -> None:
    boxes = tuple(box(f"b{i}", card, (1e9, 1e-4)) for i in range(count))
    found = plan_cluster(model(name), requested(Params(), POLICY), Cluster(head, boxes))
    assert found.best.plan.fits and len(found.others) == count
    assert 0 < len(found.best.boxes) <= count // 2
