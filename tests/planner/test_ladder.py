"""A launch would have one layer more or less in RAM than the rung of its ladder says, or a context
that flags do not leave open.

The rungs of each ladder as flags, the flags of tensors, and the contexts that flags leave open.
"""

from __future__ import annotations

import pytest
from support import hypothetical_gpus, model, requested

from autolayers.devices import Host
from autolayers.flags.params import EXPERTS_REGEX, FFN_REGEX, Params
from autolayers.flags.policy import read
from autolayers.machine import Machine
from autolayers.memory.context import CELL_BLOCK
from autolayers.planner.one.contexts import Contexts, contexts
from autolayers.planner.one.expert_cache import may_cache
from autolayers.planner.one.ladder import Ladder, Ladders, may_split_tensors
from autolayers.planner.one.overrides import (
    expert_matrices,
    merged,
    own_experts,
    with_matrices_in,
)
from autolayers.planner.problem import Problem
from autolayers.records import replace

DENSE = "llama-3.2-1b-q8_0:6"
MIXTURE = "qwen3-30b-a3b-q4_k_m:6"


def problem(words: str = "", name: str = DENSE, gpus: int = 1) -> Problem:
    machine = Machine.of(hypothetical_gpus([4096] * gpus), Host.hypothetical("64GiB"), None, {})
    params, policy = read(words.split(), None)
    return Problem(model(name), requested(params, policy, machine))


def ladders(words: str = "", name: str = DENSE) -> Ladders:
    asked = problem(words, name)
    return Ladders(asked, asked.given)


def in_ram(params: Params) -> list[str]:
    return [pattern for pattern, buffer in params.overrides if buffer == "CPU"]


class TestRungs:
    def test_whole_layers_are_a_number(self) -> None:
        found = ladders().layers(Params(n_ctx=4096))
        assert found is not None and (found.kind, found.top) == ("layers", 7)
        assert [found(n).n_gpu_layers for n in (0, 3, 7)] == [0, 3, 7]
        assert found.with_in_ram(2).n_gpu_layers == 5

    @pytest.mark.parametrize(
        ("name", "kind", "regex"),
        [(DENSE, "ffn", FFN_REGEX), (MIXTURE, "experts", EXPERTS_REGEX)],
    )
    def test_the_first_layers_go_to_ram_first(self, name: str, kind: str, regex: str) -> None:
        found = ladders(name=name).in_ram(Params())
        assert found is not None and (found.kind, found.top) == (kind, 6)
        assert found(6).overrides == () and found(6).n_gpu_layers == 7
        assert in_ram(found(4)) == [rf"blk\.{layer}{regex}" for layer in (0, 1)]
        assert len(found(0).overrides) == 6

    def test_the_next_layer_is_the_last_one_in_ram(self) -> None:
        found = ladders(name=MIXTURE).in_ram(Params())
        assert found is not None and [found.next_layer(n) for n in (0, 3, 5)] == [5, 2, 0]

    def test_bare_layers_have_all_of_it_in_ram(self) -> None:
        dense, mixture = ladders().bare(Params()), ladders(name=MIXTURE).bare(Params())
        assert dense is not None and mixture is not None
        assert (dense.kind, dense.top) == (mixture.kind, mixture.top) == ("bare", 7)
        assert dense(3).n_gpu_layers == 3 and len(dense(3).overrides) == 6
        assert mixture(3).overrides == ((EXPERTS_REGEX, "CPU"),)

    @pytest.mark.parametrize(
        ("words", "layers", "finer", "bare"),
        [
            ("", True, True, True),
            ("-ngl -1", True, True, True),
            ("-ngl 3", False, True, False),
            ("-ngl 0", False, True, False),
            ("--strategy layers", True, False, False),
            (r"-ot blk\.0\.ffn_up=CPU", True, False, False),
        ],
    )
    def test_what_is_given_closes_ladders(
        self, words: str, layers: bool, finer: bool, bare: bool
    ) -> None:
        asked = problem(words)
        of = Ladders(asked, asked.given)
        found = of.layers(asked.given), of.in_ram(asked.given), of.bare(asked.given)
        assert tuple(each is not None for each in found) == (layers, finer, bare)

    def test_a_given_number_is_the_top(self) -> None:
        assert [ladders(words).top for words in ("", "-ngl -1", "-ngl 0", "-ngl 3")] == [7, 7, 0, 3]
        assert [ladders(words).literal for words in ("", "-ngl -1", "-ngl 0")] == [
            False,
            False,
            True,
        ]
        finer = ladders("-ngl 3").in_ram(Params())
        assert finer is not None and finer(6).n_gpu_layers == 3


class TestLadderOfALaunch:
    @pytest.mark.parametrize("name", [DENSE, MIXTURE])
    def test_is_the_one_that_made_it(self, name: str) -> None:
        of, params = ladders(name=name), Params(n_ctx=4096)
        every = of.layers(params), of.in_ram(params), of.bare(params)
        for ladder in every:
            assert ladder is not None
            for count in range(1, ladder.top):
                found = of.of(ladder(count), params)
                assert found is not None and found[1] == count
                assert found[0](count) == ladder(count)

    def test_of_given_layers_there_is_none_to_climb(self) -> None:
        given = ladders("-ngl 3")
        assert given.of(Params(n_gpu_layers=3), Params()) is None
        assert ladders().of(Params(n_gpu_layers=0), Params()) is None

    def test_one_rung_up_has_one_layer_more(self) -> None:
        of = ladders()
        assert of.next_step(Params(n_gpu_layers=3, tensor_split=(1.0,))) == (
            "layer 4 of 7",
            Params(n_gpu_layers=4),
        )
        assert of.next_step(Params(n_gpu_layers=6)) is not None
        for n in (None, -1, 7, 99):
            assert of.next_step(Params(n_gpu_layers=n)) is None
        split = Params(n_gpu_layers=3, tensor_split=(1.0, 2.0), split_mode="tensor")
        up = of.next_step(split)
        assert up is not None and up[1].tensor_split == (1.0, 2.0)
        given = ladders("-ts 1,2").next_step(Params(n_gpu_layers=3, tensor_split=(1.0, 2.0)))
        assert given is not None and given[1].tensor_split == (1.0, 2.0)

    def test_one_rung_up_has_one_rule_less(self) -> None:
        finer = ladders().in_ram(Params())
        assert finer is not None
        up = ladders().next_step(finer(4))
        assert up == ("the FFN weights of one layer more", finer(5))
        experts = ladders(name=MIXTURE).in_ram(Params())
        assert experts is not None
        up = ladders(name=MIXTURE).next_step(experts(4))
        assert up == ("the experts of one layer more", experts(5))
        part = replace(experts(5), overrides=((r"blk\.38\.ffn_(down)_(ch|)exps", "CPU"),))
        found = ladders(name=MIXTURE).next_step(part)
        assert found is not None and found[0] == "the rest of layer 38"


class TestMatrices:
    def test_of_a_layer_s_experts_have_their_bytes(self) -> None:
        found = expert_matrices(model(MIXTURE), 2)
        assert list(found) == ["up", "gate", "down"]
        info = model(MIXTURE).tensors["blk.2.ffn_down_exps.weight"]
        assert found["down"] == info.n_bytes
        assert expert_matrices(model(DENSE), 2) == {}

    def test_as_many_as_stay_are_the_first(self) -> None:
        params = Params(overrides=(("a", "CPU"),))
        found = with_matrices_in(params, 2, ("up", "gate", "down"), 1, "CUDA1")
        assert found.overrides == (("a", "CPU"), (r"blk\.2\.ffn_(gate|down)_(ch|)exps", "CUDA1"))

    def test_of_neighbours_share_a_rule_flags_of_their_own_do_not(self) -> None:
        down = [(rf"blk\.{layer}\.ffn_down\.", "CPU") for layer in range(3)]
        assert merged(tuple(down)) == ((r"blk\.(0|1|2)\.ffn_down\.", "CPU"),)
        whole = tuple((rf"blk\.{layer}{FFN_REGEX}", "CPU") for layer in range(2))
        assert merged(whole) == whole
        other = (r"blk\.3\.ffn_up\.", "CPU")
        assert merged((*down[:1], other, *down[1:2])) == (*down[:1], other, *down[1:2])
        odd = ((r"blk\.\d+\.ffn_down\.", "CPU"), ("output", "CPU"), ("blk", "CPU"))
        assert merged(odd) == odd
        # none of these is of one block
        foreign = ((r"3\.ffn_down\.", "CPU"), (r"4\.ffn_down\.", "CPU"))
        several = ((r"blk\.(3|4)\.ffn_down\.", "CPU"), (r"blk\.(5|6)\.ffn_down\.", "CPU"))
        nothing = ((r"blk\.3", "CPU"), (r"blk\.4", "CPU"))
        assert merged(foreign) == foreign and merged(several) == several
        assert merged(nothing) == nothing

    def test_are_llama_cpp_s_words_where_the_program_means_the_same(self) -> None:
        asked = problem(name=MIXTURE)
        finer = ladders(name=MIXTURE).in_ram(Params())
        assert finer is not None
        assert own_experts(asked.evaluator, finer(4)) == (finer(4), [])


class TestContexts:
    @pytest.mark.parametrize(
        ("words", "smallest", "largest", "streams"),
        [
            ("", 4096, 131072, 1),
            ("-c 8192", 8192, 8192, 1),
            ("--ctx 8192", 8192, 8192, 1),
            ("--ctx max", 4096, 131072, 1),
            ("--ctx-min 8192", 8192, 131072, 1),
            ("--ctx-min 200000", 200000, 200000, 1),
            ("-np -1", 4096, 131072, 1),
            ("-np 1", 4096, 131072, 1),
            ("-np 3", 3 * 4096, 3 * 131072, 3),
            ("-np 3 -kvu", 4096, 131072, 1),
            ("-np 3 --ctx-min 8192", 3 * 8192, 3 * 131072, 3),
            ("-fitc 16384", 16384, 131072, 1),
            ("-fitc 300000", 131072, 131072, 1),
            ("--workload agent", 32768, 131072, 1),
            ("--workload 6000+1000", 7168, 131072, 1),
            ("--workload 6000+1000@100", 7168, 131072, 1),
            ("--workload 6000+1000@200", 7424, 131072, 1),
            # requests of automatic slots share the cells; each slot of its own has one
            ("--workload 2000+500x4", 10240, 131072, 1),
            ("--workload 2000+500x4 -np 4", 4 * 2560, 4 * 131072, 4),
            ("--workload 200+50x4 -np 4", 4 * 1024, 4 * 131072, 4),
            ("--workload 200+50 -np 4", 4 * 4096, 4 * 131072, 4),
        ],
    )
    def test_are_what_flags_leave_open(
        self, words: str, smallest: int, largest: int, streams: int
    ) -> None:
        asked = problem(words)
        found = contexts(asked, asked.given)
        between = Contexts(None, (smallest, largest), CELL_BLOCK * streams)
        assert found == (Contexts(smallest) if smallest == largest else between)
        assert found.smallest == smallest

    def test_of_a_unified_cache_with_own_sizes_are_as_given(self) -> None:
        asked = problem()
        params = replace(asked.given, kv_unified_per_slot=2048)
        assert contexts(asked, params) == Contexts(None)


@pytest.mark.parametrize(
    ("words", "name", "may"),
    [
        ("", MIXTURE, True),
        ("-sm none", MIXTURE, True),
        ("-sm layer", MIXTURE, True),
        ("-sm tensor", MIXTURE, False),
        ("--strategy layers", MIXTURE, False),
        ("", DENSE, False),
    ],
)
def test_experts_are_cached_where_nothing_given_decides(words: str, name: str, may: bool) -> None:
    asked = problem(words, name)
    knows = asked.build.knows("--moe-cache-mib")
    assert may_cache(asked, asked.given) is (may and knows)
    assert not may_cache(asked, replace(asked.given, moe_cache_mib=0))


@pytest.mark.parametrize(
    ("words", "gpus", "may"),
    [
        ("", 2, True),
        ("", 1, False),
        ("-fa off", 2, False),
        ("-fa on", 2, True),
        ("-sm layer", 2, False),
        ("-ts 1,1", 2, False),
        ("-dev CUDA0,CUDA1", 2, False),
        ("-ngl 7", 2, False),
        (r"-ot blk\.0\.ffn_up=CPU", 2, False),
    ],
)
def test_slices_are_offered_where_no_flag_is_against_them(words: str, gpus: int, may: bool) -> None:
    asked = problem(words, gpus=gpus)
    assert may_split_tensors(asked.evaluator, asked.given) is may


def test_slices_need_devices_of_one_backend() -> None:
    asked = problem(gpus=2)
    first, second = asked.machine.devices
    mixed = replace(asked.machine, devices=(first, replace(second, backend="Vulkan")))
    assert not may_split_tensors(asked.evaluator.on(mixed), asked.given)
    remote = tuple(replace(device, backend="RPC", kind="rpc") for device in (first, second))
    servers = replace(asked.machine, devices=remote)
    assert not may_split_tensors(asked.evaluator.on(servers), asked.given)


def test_experts_in_ram_may_be_others_than_the_first() -> None:
    ladder = Ladder("experts", Params(), 4, lambda _, count: tuple(range(4 - count, 4)))
    assert in_ram(ladder(3)) == [rf"blk\.3{EXPERTS_REGEX}"]
    assert ladder.next_layer(1) == 1 and ladder.next_layer(3) == 3
