"""A model would wait for ever for an RPC server that another one has.

Whole servers for each of several models, and the flags that name them.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import model, slow

import autolayers
from autolayers.machine import Device, Machine
from autolayers.planner.plan import Plan
from autolayers.planner.several.servers import dealt, held, servers_of, with_own_servers
from autolayers.records import replace

GiB = 1 << 30


def remote(i: int, gib: int, server: str) -> Device:
    size = gib * GiB
    return Device(f"RPC{i}", size, size, description=server, backend="RPC", kind="rpc")


def machine(*devices: Device) -> Machine:
    return Machine(devices, {device.name: device.free for device in devices})


TWO_AND_ONE = (remote(0, 8, "a:1"), remote(1, 8, "a:1"), remote(2, 12, "b:1"))


def test_devices_of_one_server_have_its_name_and_local_ones_none() -> None:
    local = replace(remote(3, 8, "a:1"), name="CUDA0", kind="gpu")
    found = servers_of((*TWO_AND_ONE, local))
    both = ("RPC0", "RPC1")
    assert found == {"RPC0": both, "RPC1": both, "RPC2": ("RPC2",)}


def test_one_device_of_a_server_takes_all_of_it() -> None:
    servers = {"RPC0": ("RPC0", "RPC1"), "RPC1": ("RPC0", "RPC1")}
    limits = {"RPC0": 8, "RPC1": 9, "CUDA0": 5}
    assert held({"RPC0": 3}, limits, servers) == {"RPC0": 8, "RPC1": 9}
    # more than there is, as a launch that does not fit takes
    assert held({"RPC0": 30, "CUDA0": 2}, limits, servers) == {"RPC0": 30, "RPC1": 9, "CUDA0": 2}
    for takes, known in (({"CUDA0": 3}, servers), ({"RPC0": 3}, {})):
        assert held(takes, limits, known) == takes


def test_the_largest_server_goes_to_the_largest_model_and_so_on_in_turns() -> None:
    assert dealt([5, 9], machine(*TWO_AND_ONE)) == {"RPC0": 1, "RPC1": 1, "RPC2": 0}
    three = machine(*(remote(i, gib, f"{i}:1") for i, gib in enumerate((4, 12, 8))))
    assert dealt([5, 9], three) == {"RPC1": 1, "RPC2": 0, "RPC0": 1}
    assert dealt([5, 9], machine(Device("CUDA0", GiB, GiB))) == {}


class TestFlags:
    def plan(self, words: str, *devices: Device) -> Plan:
        return autolayers.plan(model("llama-3.2-1b-q8_0"), words.split(), devices=list(devices))

    @pytest.mark.parametrize(
        ("device", "endpoints", "named"),
        [slow("RPC2", ("b:1",), ("RPC0",)), ("RPC1", ("a:1",), ("RPC1",))],
    )
    def test_name_only_the_servers_that_are_used_numbered_as_in_llama_cpp(
        self, device: str, endpoints: tuple[str, ...], named: tuple[str, ...]
    ) -> None:
        words = f"--rpc a:1,b:1 -dev {device} -c 4096"
        found = with_own_servers(self.plan(words, *TWO_AND_ONE), TWO_AND_ONE)
        assert (found.params.rpc, found.params.device) == (endpoints, named)
        assert ",".join(endpoints) in found.flags and "a:1,b:1" not in found.flags

    def test_stay_where_all_servers_are_used(self) -> None:
        words = "--rpc a:1,b:1 -c 4096 -ts 1,1,1 -ngl 99"
        plan = self.plan(words, *TWO_AND_ONE)
        assert with_own_servers(plan, TWO_AND_ONE) is plan

    def test_stay_where_no_server_is_named_or_known(self) -> None:
        local = Device("CUDA0", 8 * GiB, 8 * GiB)
        plan = self.plan("-c 4096", local)
        assert with_own_servers(plan, [local]) is plan
        strangers = [replace(device, description="x") for device in TWO_AND_ONE]
        other = self.plan("--rpc a:1,b:1 -dev RPC2 -c 4096", *strangers)
        assert with_own_servers(other, strangers) is other

    def test_the_order_of_rpc_says_which_is_which_of_one_device_each(self) -> None:
        strangers: list[Any] = [
            replace(remote(i, 8, ""), description=f"somewhere {i}") for i in range(2)
        ]
        plan = self.plan("--rpc a:1,b:1 -dev RPC1 -c 4096", *strangers)
        found = with_own_servers(plan, strangers)
        assert (found.params.rpc, found.params.device) == (("b:1",), ("RPC0",))

    def test_a_split_has_parts_of_the_devices_that_stay(self) -> None:
        local = Device("CUDA0", 8 * GiB, 8 * GiB)
        devices = [*TWO_AND_ONE, local]
        plan = self.plan("--rpc a:1,b:1 -c 4096 -ngl 99 -ts 0,0,2,3", *devices)
        found = with_own_servers(plan, devices)
        assert (found.params.rpc, found.params.tensor_split) == (("b:1",), (2.0, 3.0))
