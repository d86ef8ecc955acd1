"""A launch would be called one that fits, and does not; or be measured twice.

What a launch takes of a machine, beside what llama.cpp allocates: margins, RAM, and how fully it is
measured.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import model

from autolayers.flags.params import Params
from autolayers.machine import Device, Machine
from autolayers.memory.breakdown import Breakdown, LowerBound
from autolayers.planner.evaluate import FIT, FULL, PROMPT, RAM_MARGIN, Candidate, Evaluator
from autolayers.records import replace

NAME = "llama-3.2-1b-q8_0:6"
MiB = 1 << 20
WHOLE = Params(n_gpu_layers=99, n_ctx=4096)


def machine(*mib: int, ram: int | None = None, backend: str = "CUDA", **facts: Any) -> Machine:
    devices = tuple(
        Device(f"{backend}{i}", size * MiB, size * MiB, backend=backend, **facts)
        for i, size in enumerate(mib)
    )
    return Machine(devices, {device.name: device.free for device in devices}, ram)


def evaluator(*mib: int, target: tuple[int, ...] | None = None, **facts: Any) -> Evaluator:
    return Evaluator.of(model(NAME), machine(*mib, **facts), target=target)


def measured(of: Evaluator, params: Params = WHOLE, fidelity: Any = FULL) -> Candidate:
    found = of.candidate(params, fidelity)
    assert found is not None
    return found


class TestRoom:
    def test_is_what_buffers_and_the_margin_leave(self) -> None:
        of = evaluator(8192)
        found = measured(of)
        use = found.breakdown.devices["CUDA0"]
        margin = sum(size for _, size in found.margins["CUDA0"])
        assert margin > 100 * MiB
        assert found.spare == {"CUDA0": 8192 * MiB - use.total - margin}
        assert found.overheads(of.machine.limits) == {"CUDA0": use.compute + margin}

    def test_may_be_used_up_to_the_last_byte(self) -> None:
        need = 8192 * MiB - measured(evaluator(8192)).spare["CUDA0"]
        for size, fits in ((need, True), (need - 1, False)):
            limited = replace(machine(8192), limits={"CUDA0": size})
            found = measured(Evaluator.of(model(NAME), limited))
            assert found.fits_devices is fits and found.spare["CUDA0"] == size - need

    def test_of_ram_is_used_up_to_the_last_byte(self) -> None:
        params = Params(n_gpu_layers=0, n_ctx=4096, cache_ram=0)
        found = measured(evaluator(8192, ram=64 << 30), params)
        assert found.ram_spare is not None and found.ram_missing == 0
        need = (64 << 30) - found.ram_spare
        assert need >= RAM_MARGIN + found.breakdown.resident
        for ram, missing in ((need, 0), (need - 1, 1), (need + 1, 0)):
            less = measured(evaluator(8192, ram=ram), params)
            assert less.fits is (not missing) and less.ram_missing == missing
        assert measured(evaluator(8192), params).ram_spare is None

    def test_an_unused_device_keeps_nothing_free(self) -> None:
        found = measured(evaluator(8192, 8192), replace(WHOLE, split_mode="none"))
        assert list(found.spare) == list(found.margins) == ["CUDA0"]

    def test_a_given_margin_replaces_ours_the_last_one_is_that_of_all_further_devices(self) -> None:
        found = measured(evaluator(8192, 8192, 8192, target=(5, 7)))
        assert found.margins == {
            "CUDA0": (("given", 5),),
            "CUDA1": (("given", 7),),
            "CUDA2": (("given", 7),),
        }

    def test_memory_that_devices_share_with_the_system_counts_in_ram(self) -> None:
        shared = machine(8192, ram=64 << 30, backend="MTL", kind="igpu", unified=True)
        of = Evaluator.of(model(NAME), shared)
        found = measured(of)
        assert of.in_ram(found.breakdown) - found.breakdown.resident == of.shared(found.breakdown)
        assert of.shared(found.breakdown) == found.breakdown.devices["MTL0"].total
        assert evaluator(8192).shared(found.breakdown) == 0


class TestFidelity:
    def test_a_launch_is_measured_once(self) -> None:
        of = evaluator(8192)
        assert measured(of) is measured(of) is measured(of, fidelity=PROMPT)
        assert of.measured == [measured(of)]

    def test_the_prompt_graph_is_a_bound_and_enough_for_itself(self) -> None:
        of = evaluator(8192)
        bound = measured(of, fidelity=PROMPT)
        assert isinstance(bound.breakdown, LowerBound)
        assert measured(of, fidelity=PROMPT) is bound
        full = measured(of, fidelity=FULL)
        assert isinstance(full.breakdown, Breakdown)
        assert full.spare["CUDA0"] <= bound.spare["CUDA0"]

    def test_what_does_not_fit_by_a_bound_is_not_measured_further(self) -> None:
        small = evaluator(900)
        bound = measured(small, fidelity=FIT)
        assert not bound.fits_devices and isinstance(bound.breakdown, LowerBound)
        assert measured(small, fidelity=FIT) is bound
        assert isinstance(measured(small, fidelity=FULL).breakdown, Breakdown)

    def test_where_it_fits_it_is_measured_in_full(self) -> None:
        assert isinstance(measured(evaluator(8192), fidelity=FIT).breakdown, Breakdown)
        of = evaluator(8192)
        measured(of, fidelity=PROMPT)
        assert isinstance(measured(of, fidelity=FIT).breakdown, Breakdown)

    def test_a_launch_that_llama_cpp_refuses_is_none_and_says_why(self) -> None:
        of = evaluator(8192)
        params = Params(n_ctx=4096, cache_type_v="q8_0", flash_attn="off")
        assert of.refusal is None and of.candidate(params, FULL) is None
        assert of.refusal is not None and of.measured == []
        first = of.refusal
        other = replace(params, n_ctx=8192)
        assert of.candidate(other, FULL) is None and of.refusal is first

    def test_beyond_the_budget_only_the_last_launch_is_measured(self) -> None:
        of = evaluator(8192)
        of.spend(1 << 60)
        assert of.exhausted and of.candidate(WHOLE, FULL) is None and of.static(WHOLE) is None
        assert of.usage(WHOLE, {}, FULL) is None
        assert of.candidate(WHOLE, FULL, last=True) is not None
        assert measured(of) is not None


class TestBounds:
    def test_weights_and_caches_rule_out_what_exceeds_a_device(self) -> None:
        of = evaluator(8192)
        static = of.static(WHOLE)
        assert static is not None and not static.devices["CUDA0"].compute
        need = static.devices["CUDA0"].total
        for size, may in ((need, True), (need - 1, False)):
            assert of.with_limits({"CUDA0": size}).may_fit(WHOLE) is may

    def test_with_any_split_all_devices_count_as_one(self) -> None:
        of = evaluator(8192, 8192)
        static = of.static(WHOLE)
        assert static is not None
        need = static.on_devices
        for size, may in ((need - 1, True), (need - 2, False)):
            limited = of.with_limits({"CUDA0": size, "CUDA1": 1})
            assert limited.may_fit(WHOLE, any_split=True) is may
            assert not limited.may_fit(WHOLE)

    def test_a_device_without_weights_may_be_full(self) -> None:
        of = evaluator(8192, 8192).with_limits({"CUDA0": 8192 * MiB, "CUDA1": -1})
        assert of.may_fit(replace(WHOLE, split_mode="none"))

    def test_limits_of_others_leave_ram_unlimited(self) -> None:
        assert evaluator(8192, ram=1 << 30).with_limits({"CUDA0": 1}).machine.ram is None

    def test_graph_buffers_of_launches_with_one_context_have_a_range(self) -> None:
        of = evaluator(8192, 8192)
        sizes = [
            measured(of, replace(WHOLE, n_ubatch=n, split_mode="none")).breakdown.devices["CUDA0"]
            for n in (512, 128, 256)
        ]
        measured(of, replace(WHOLE, n_ctx=8192, n_ubatch=1024, split_mode="none"))
        assert of.compute_range(4096) == {"CUDA0": (sizes[1].compute, sizes[0].compute)}

    def test_a_machine_is_usable_with_more_than_a_context_s_memory(self) -> None:
        assert evaluator(8192).usable(WHOLE) and evaluator(10, 8192).usable(WHOLE)
        assert not evaluator(10).usable(WHOLE) and not evaluator().usable(WHOLE)
        assert evaluator(10, target=(1,)).usable(WHOLE)
        assert evaluator(10).usable(replace(WHOLE, fit_target=(1,)))


class TestUsage:
    def test_is_a_bound_where_a_limit_is_exceeded_and_full_where_it_is_not(self) -> None:
        of = evaluator(8192)
        bound = of.usage(WHOLE, {"CUDA0": 1}, FIT)
        assert isinstance(bound, LowerBound)
        assert of.usage(WHOLE, {"CUDA0": 1}, FIT) is bound
        full = of.usage(WHOLE, {"CUDA0": 1 << 40}, FIT)
        assert isinstance(full, Breakdown) and of.usage(WHOLE, {"CUDA0": 1}, FIT) is full
        need = full.devices["CUDA0"].total
        other = evaluator(8192)
        assert isinstance(other.usage(WHOLE, {"CUDA0": need}, FIT), Breakdown)
        assert isinstance(other.usage(WHOLE, {"CUDA0": 1}, PROMPT), Breakdown)

    def test_is_shared_with_a_launch_that_was_measured(self) -> None:
        of = evaluator(8192)
        found = measured(of)
        assert found.breakdown.as_measured and of.usage(WHOLE, {}, FIT) is found.breakdown

    def test_of_a_refused_launch_there_is_none(self) -> None:
        of = evaluator(8192)
        params = Params(n_ctx=4096, cache_type_v="q8_0", flash_attn="off")
        assert of.usage(params, {}, FIT) is None and of.refusal is not None
        assert of.static(params) is None and not of.may_fit(params)


def test_devices_are_those_that_llama_cpp_uses_in_its_order() -> None:
    of = evaluator(8192, 8192)
    assert of.device_names(Params()) == ["CUDA0", "CUDA1"]
    assert of.device_names(Params(device=("CUDA1", "CUDA0"))) == ["CUDA1", "CUDA0"]
    assert of.device_names(Params(split_mode="none", main_gpu=1)) == ["CUDA1"]


@pytest.mark.parametrize("count", [1, 0])
def test_each_layer_has_its_bytes_whatever_flags_place_it(count: int) -> None:
    of = evaluator(*[8192] * count)
    rows = of.layers(Params(n_ctx=4096))
    assert rows is not None and len(rows) == 7
    assert of.layers(Params(n_ctx=4096, n_gpu_layers=2, tensor_split=(1.0,))) is rows
    static = evaluator(8192).static(WHOLE)
    assert static is not None
    # each layer by itself is rounded up
    whole = static.devices["CUDA0"].total
    assert whole <= sum(row.total for row in rows) <= whole + 7 * 512
