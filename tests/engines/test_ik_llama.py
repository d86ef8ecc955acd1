"""ik_llama.cpp on one GPU or none: what its own library allocated (fixtures/ik), its words, and what it has not."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support import FIXTURES, HEADERS, MiB, command, gpus, model, says

import autolayers
from autolayers.builds import Build
from autolayers.engines import ik_words
from autolayers.engines.ik_llama import IK_LLAMA
from autolayers.errors import UsageError
from autolayers.flags.parse import parse
from autolayers.memory.breakdown import Breakdown
from autolayers.memory.estimate import Estimator
from autolayers.records import replace

QWEN, MOE = HEADERS / "qwen3-8b-q4_k_m.gguf", HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"
ROWS = [json.loads(line) for line in (FIXTURES / "ik/launches.jsonl").read_text().splitlines()]
# kept without a plan: what moves to RAM is ik_llama.cpp's own choice, or no bound is known
UNPLANNED = ("--fit", "-fa off", "-fa 0", "-no-fa", "-sm none", "-mla 0", "-ctk-", "-ctv-")


def estimated(name: str, args: str, mib: list[int]) -> Breakdown:
    """What is said of a launch; without -ngl it offloads all layers, and runs one sequence without -np."""
    words, engine, _ = ik_words.meant(shlex.split(args, posix=False))
    params = parse(words, command=None).params
    params = replace(params, n_gpu_layers=999 if params.n_gpu_layers is None else params.n_gpu_layers,
                     n_parallel=params.n_parallel or 1)
    whole = model(name)
    build = Build(engine=engine, fork=engine.name, doubt="a fork")
    return Estimator(whole, build).breakdown(ik_words.placed(params, whole.hparams.n_layer), gpus(*mib))


def test_no_recorded_launch_takes_more_than_is_said() -> None:
    """Weights and caches are equal but for types and paddings that are bounds; buffers are at least as large."""
    planned = equal = 0
    for row in ROWS:
        if row["error"] or any(word in row["args"] for word in UNPLANNED):
            continue
        try:
            found = estimated(row["model"], row["args"], row["gpus_mib"])
        except autolayers.LaunchRefused as refusal:
            assert "different K" in str(refusal)
            continue
        planned += 1
        assert not found.exact
        context = row["model"], row["gpus_mib"], row["args"]
        for name, real in row["devices"].items():
            said = found.host if name == "Host" else found.devices[name]
            assert said.context >= real["context"] and said.compute >= real["compute"], context
            assert name == "Host" or said.model >= real["model"], context
            equal += name != "Host" and said.model - real["model"] < MiB and said.context == real["context"]
        derived = sum(extra.size for extra in found.extras if extra.name == "derived MLA weights")
        assert derived >= sum(real.get("derived", 0) for real in row["devices"].values()), context
    assert planned >= 50 and equal >= 40


def test_its_refusals_are_refused() -> None:
    """Each row that it refuses, and -fa without a value."""
    for row in ROWS:
        if row["error"]:
            with pytest.raises((UsageError, autolayers.LaunchRefused)):
                estimated(row["model"], row["args"], row["gpus_mib"])


def test_a_mixture_leaves_room_for_its_logits() -> None:
    """16402 MiB of 16384 by its own library for the launch that was written before."""
    words = [MOE, "--gpu", "16GiB", "--ram", "64GiB", "--engine", "ik_llama.cpp", "-c", "32768", "-ub", "2048"]
    plan = json.loads(command(*words, "--json").stdout)
    assert plan["fits"] and plan["launch"]["engine"] == "ik_llama.cpp" and not plan["exact"]
    assert plan["devices"][0]["compute"] >= 1219 * MiB
    # layers by pattern, never -ncmoe, which means the last ones there
    assert "-ncmoe" not in plan["flags"] and "-ot" in plan["flags"]
    absent = set(IK_LLAMA.lacks) & set(plan["flags"])
    assert not absent


def test_its_ncmoe_is_of_the_last_layers() -> None:
    placed = ik_words.placed(parse(["-ncmoe", "3"]).params, 48).overrides
    assert [pattern[:7] for pattern, _ in placed] == [r"blk\.45", r"blk\.46", r"blk\.47"]
    assert ik_words.placed(parse(["-ncmoe", "3", "-ngl", "0"]).params, 48).overrides == ()


def test_a_layer_less_is_on_the_gpu_without_the_output() -> None:
    """-ngl 20 is 20 repeating layers, and output.weight stays in RAM: 2204.71 MiB and a cache of 640."""
    found = estimated("qwen3-8b-q4_k_m", "-c 8192 -ngl 20", [24576]).devices["CUDA0"]
    assert (round(found.model / MiB, 2), found.context / MiB) == (2204.71, 640)


@pytest.mark.parametrize(("words", "message"), [
    (["--gpu", "2x24GiB"], "over several GPUs by their bytes, which is not planned: name one of them, -dev CUDA0"),
    (["--gpu", "24GiB", "-fa"], "invalid parameter for argument: -fa"),
    (["--gpu", "24GiB", "--fit"], "places the layers itself"),
    (["--gpu", "24GiB", "-lm", "none"], "ik_llama.cpp has no -lm"),
    (["--gpu", "24GiB", "--swa-full"], "ik_llama.cpp has no --swa-full"),
    (["--gpu", "24GiB", "-sm", "graph"], "-sm graph of ik_llama.cpp is not planned"),
    (["--gpu", "24GiB", "-ctv", "q8_KV"], "aborts with it and flash attention"),
    (["--gpu", "24GiB", "--format", "docker"], "starts llama.cpp's own program, not ik_llama.cpp"),
    (["--gpu", "24GiB", "--format", "compose"], "use systemd, llama-swap, llama-swap-matrix"),
])
def test_what_has_no_plan_is_refused_with_a_way_out(words: list[str], message: str) -> None:
    done = says(QWEN, "--engine", "ik_llama.cpp", "--ram", "64GiB", "-c", "8192", *words)
    assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_two_gpus_of_which_one_is_named() -> None:
    done = says(QWEN, "--engine", "ik_llama.cpp", "--gpu", "2x24GiB", "-c", "8192", "-dev", "CUDA1")
    assert done.returncode == 0 and done.stdout.startswith("-ngl 37 ") and "-dev CUDA1" in done.stdout


def test_architectures_and_types_that_it_has_not(tmp_path: Path) -> None:
    missing = says(HEADERS / "lfm2-dense.gguf", "--engine", "ik_llama.cpp", "--gpu", "8GiB")
    assert missing.returncode == 2 and "unknown model architecture: 'lfm2'" in missing.stderr
    from support import requantised, write_gguf

    path = write_gguf(tmp_path / "m.gguf", *requantised("llama-3.2-1b-q8_0", "tq2_0"))
    for engine, code in (("ik_llama.cpp", 2), ("llama-server", 0)):
        done = says(path, "--engine", engine, "--gpu", "8GiB", "-c", "4096")
        assert done.returncode == code and ("has no tensor type tq2_0" in done.stderr) == (code == 2)


def test_the_library_reads_its_words_too() -> None:
    plan = autolayers.plan(model("qwen3-8b-q4_k_m"), ["--engine", "ik_llama.cpp", "-mla", "3", "-rtr", "-c", "8192"],
                           ["24GiB"])
    assert plan.engine == "ik_llama.cpp" and plan.devices[0].compute >= int(312.75 * MiB)
