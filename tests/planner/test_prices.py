"""A flag that was given would be paid for as if the search had chosen it.

Which rows of prices count for a launch, and what its flags leave open before that.
"""

from __future__ import annotations

import pytest
from support import model

from autolayers.flags.parse import parse
from autolayers.machine import Device
from autolayers.memory.context import CELL_BLOCK
from autolayers.planner.frames import MICRO_BATCHES, Frame
from autolayers.planner.one.contexts import contexts
from autolayers.planner.one.overrides import merged
from autolayers.planner.prices import (
    COARSE,
    CPU,
    FFN,
    FILLED,
    IDLE,
    MICRO_BATCH,
    PARTS,
    Price,
    priced,
)
from autolayers.planner.problem import Problem
from autolayers.planner.several.servers import servers_of
from autolayers.request import Request

NAME = "llama-3.1-8b-q4_k_m:8"
ALL = r"blk\.{}\.ffn_(up|down|gate)\."


def problem(*words: str) -> Problem:
    return Problem(model(NAME), Request.of(["--gpu", "4GiB", "--ram", "32GiB", *words]))


def rows(launch: str, *given: str) -> list[str]:
    """What is paid for these flags of a launch where nothing, or these words, were given."""
    asked = problem("-c", "4096", *given)
    params = parse([*launch.split(), "-c", "4096", *given]).params
    use = asked.evaluator.static(params)
    assert use is not None
    return [price.what for price, _ in priced(asked, params, use)]


@pytest.mark.parametrize(
    ("launch", "paid"),
    [
        ("-ngl 9", []),
        (f"-ngl 9 -ot {ALL.format(0)}=CPU", [FFN]),
        ("-ngl 0 -dev none", [FILLED, CPU]),
        ("-ngl 0", [FILLED, IDLE]),
        ("-ngl 9 -ub 1024", [MICRO_BATCH]),
        ("-ngl 9 -ctk q8_0 -ctv q8_0", []),
        ("-ngl 9 -ctk q4_0 -ctv q4_0", [COARSE]),
        (r"-ngl 9 -ot blk\.0\.ffn_up=CPU -ot blk\.1\.ffn_up=CPU", [PARTS]),
    ],
)
def test_each_launch_pays_for_what_it_does(launch: str, paid: list[Price]) -> None:
    assert rows(launch) == [price.what for price in paid]


@pytest.mark.parametrize(
    ("words", "paid"),
    [("-ctk q4_0 -ctv q4_0", []), ("-ub 1024", []), ("-dev none", [FILLED.what])],
)
def test_what_was_given_costs_nothing(words: str, paid: list[str]) -> None:
    """But for the cache that is in RAM, which is slow as it fills."""
    assert rows("-ngl 9", *words.split()) == paid


def test_each_slot_has_a_cache_of_its_own() -> None:
    def of(*words: str) -> tuple[int | None, int]:
        asked = problem(*words)
        found = contexts(asked, asked.given)
        return found.smallest, found.step // CELL_BLOCK

    assert of() == (4096, 1)
    assert of("-np", "4") == (16384, 4)
    assert of("-np", "4", "-kvu") == (4096, 1)
    assert of("-np", "2", "-fitc", "8192") == (16384, 2)


def test_other_micro_batches_are_tried_only_where_they_are_open() -> None:
    def of(*words: str) -> tuple[int, ...]:
        asked = problem(*words)
        return Frame(asked, asked.given).micro_batches

    assert of() == MICRO_BATCHES
    for words in ("--embedding", "--reranking", "-ub 512", "-b 512", "--strategy layers", "-ngl 3"):
        assert of(*words.split()) == ()


def test_a_server_has_its_own_devices_alone() -> None:
    def device(name: str, kind: str, where: str) -> Device:
        return Device(name, 1 << 30, 1 << 30, description=where, kind=kind)

    found = servers_of(
        [
            device("RPC0", "rpc", "a:1"),
            device("RPC1", "rpc", "b:1"),
            device("RPC2", "rpc", "a:1"),
            device("CUDA0", "gpu", "a:1"),
        ]
    )
    assert found == {"RPC0": ("RPC0", "RPC2"), "RPC1": ("RPC1",), "RPC2": ("RPC0", "RPC2")}


def test_rules_of_neighbouring_layers_are_written_together() -> None:
    one, other = r"blk\.3\.ffn_down\.", r"blk\.4\.ffn_down\."
    assert merged(((one, "CPU"),)) == ((one, "CPU"),)
    assert merged(((one, "CPU"), (other, "CPU"))) == ((r"blk\.(3|4)\.ffn_down\.", "CPU"),)
    assert len(merged(((one, "CPU"), (other, "CUDA1")))) == 2
