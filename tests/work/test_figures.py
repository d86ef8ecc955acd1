"""Predictions would take another processor or memory for the user's.

The figures of a machine that decide a launch's seconds: threads and cores, memory that devices
copy from.
"""

from __future__ import annotations

import pytest
from support import model, slow

from autolayers.flags.policy import read
from autolayers.flags.workload import Workload
from autolayers.machine import Device, Host, Machine
from autolayers.planner.evaluate import Evaluator
from autolayers.records import replace
from autolayers.work.figures import HostFigures
from autolayers.work.speed import Speed

GiB = 1 << 30


def host(gib: int) -> Host:
    return Host(gib * GiB, gib * GiB, "given", 60e9, None, 8)


CPU = Machine((), {}, 64 * GiB, 64 * GiB, host(64))
RTX_5090 = Device.hypothetical("rtx-5090")
ONE = Machine((RTX_5090,), {"CUDA0": RTX_5090.free}, 96 * GiB, 96 * GiB, host(96))


def speed(name: str, words: str, machine: Machine) -> Speed:
    params, policy = read(f"-c 4096 -np 1 {words}".split(), None)
    evaluator = Evaluator.of(model(name), machine, policy.build)
    use = evaluator.static(params)
    assert use is not None
    return evaluator.cost(Workload(2048, 128, 0)).predict(params, use)


def test_threads_of_prompts_have_a_flag_of_their_own() -> None:
    """-tb; without it as many as -t says (common_params_parse: cpuparams_batch are those of
    cpuparams)."""
    few, own, many = (
        speed("llama-3.1-8b-q4_k_m", words, CPU) for words in ("-t 2", "-t 2 -tb 8", "-t 8")
    )
    assert few.generation == own.generation < many.generation
    assert own.prompt == pytest.approx(many.prompt, rel=0.02) and own.prompt > 3 * few.prompt


def test_slow_cores_do_not_count_where_a_plan_leaves_them_out() -> None:
    """Host.threads: the fast cores of an Arm CPU, or what a control group allows; a plan writes
    them as -t."""
    twelve = replace(host(64), cores=12)
    all_cores, fast = replace(CPU, host=twelve), replace(CPU, host=replace(twelve, threads=8))
    assert (HostFigures.of(all_cores).cores, HostFigures.of(fast).cores) == (12, 8)
    assert speed("llama-3.1-8b-q4_k_m", "", fast) == speed("llama-3.1-8b-q4_k_m", "-t 8", all_cores)


@pytest.mark.parametrize("ub", [slow(512), 1024])
def test_prompts_copy_pinned_weights_twice_as_fast(ub: int) -> None:
    """Measured on an RTX 5090, gpt-oss 120B with -ncmoe 24 (s0415, s0419): 254 mapped, 536 pinned,
    by -ub 512."""
    mapped, pinned = (
        speed("gpt-oss-120b-mxfp4", f"-ngl 99 -ncmoe 24 -b 2048 -ub {ub} {words}", ONE)
        for words in ("", "-lm none")
    )
    assert 1.6 < pinned.prompt / mapped.prompt < 2.7
    assert pinned.generation == mapped.generation
