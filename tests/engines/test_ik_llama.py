"""Users of ik_llama.cpp would get llama.cpp's sizes and flags.

ik_llama.cpp: what its own library allocated (fixtures/ik), its words, and what it has not.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import (
    FIXTURES,
    HEADERS,
    WHOLE,
    MiB,
    blocks,
    command,
    few_rows,
    gpus,
    header,
    model,
    sample,
    says,
    slow,
)

import autolayers
from autolayers.engines.ik_llama import IK_LLAMA
from autolayers.engines.ik_llama.architectures import unread
from autolayers.errors import LaunchRefused, UsageError
from autolayers.flags.params import Params
from autolayers.machine import Device
from autolayers.memory.breakdown import Static, Usage
from autolayers.memory.estimate import Estimator
from autolayers.model import Model
from autolayers.records import replace
from autolayers.request import Request, for_model

QWEN, MOE = HEADERS / "qwen3-8b-q4_k_m.gguf", HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"
ROWS = [json.loads(line) for line in (FIXTURES / "ik/launches.jsonl").read_text().splitlines()]
RANDOM = [json.loads(line) for line in (FIXTURES / "ik/random.jsonl").read_text().splitlines()]

MODELS = dict.fromkeys(row["model"] for row in RANDOM)
# one or more of each model
SOME = [
    row
    for rows in sample(
        {name: [row for row in RANDOM if row["model"] == name] for name in MODELS}, 24
    ).values()
    for row in rows
]


@cache
def of(name: str) -> Model:
    return model(name)


def asked(row: dict[str, Any]) -> tuple[Estimator, Params, list[Device]]:
    """Without -ngl it offloads all layers."""
    devices = gpus(*row["gpus_mib"])
    words = [*shlex.split(row["args"], posix=False), "--engine", IK_LLAMA.name]
    request = for_model(of(row["model"]), Request.of(words, {}, devices=devices))
    params = request.params
    if params.n_gpu_layers is None:
        params = replace(params, n_gpu_layers=999)
    return Estimator(of(row["model"]), request.build), params, devices


def said(found: Static, name: str) -> Usage:
    return found.host if name == "Host" else found.devices[name]


def test_weights_and_caches_are_equal_on_every_device() -> None:
    """As its own library asked its buffers for them: on one GPU and several, split by bytes, -ts,
    -ncmoe, --fit, -sm none and graph, latent caches, types of its own. A file that is mapped is not
    compared in RAM."""
    compared = 0
    for row in ROWS:
        if row["error"]:
            continue
        estimator, params, devices = asked(row)
        found = estimator.static(params, devices)
        context = row["model"], row["gpus_mib"], row["args"]
        for name, real in row["devices"].items():
            use = said(found, name)
            assert abs(use.context - real["context"]) <= 4096, context
            assert (name == "Host" and row.get("mapped")) or abs(
                use.model - real["model"]
            ) <= 4096, context
        compared += 1
    assert compared >= 190


def compare(rows: list[dict[str, Any]]) -> tuple[int, list[object]]:
    """(launches whose graph is modelled, those of them that are not equal and all that take more
    than is said)."""
    wrong: list[object] = []
    count = 0
    for row in rows:
        if row["error"]:
            continue
        estimator, params, devices = asked(row)
        found = estimator.breakdown(params, devices)
        assert not found.exact
        off = [said(found, name).compute - real["compute"] for name, real in row["devices"].items()]
        modelled = not any(
            "graph of ik_llama.cpp is not modelled" in line for line in found.warnings
        )
        count += modelled
        if min(off) < -4096 or (modelled and max(off) > 4096):
            wrong.append((row["model"], row["gpus_mib"], row["args"], off))
        derived = sum(extra.size for extra in found.extras if extra.name == "derived MLA weights")
        if "-sm graph" not in row["args"]:
            assert derived == sum(real.get("derived", 0) for real in row["devices"].values()), row[
                "args"
            ]
    return count, wrong


@pytest.mark.slow
def test_buffers_are_those_of_its_own_graph() -> None:
    """Dense models, mixtures, latent attention in each form, RAM, several GPUs: every eighth
    launch."""
    count, wrong = compare([row for row in ROWS if "-sm graph" not in row["args"]][::8])
    assert not wrong and count >= 21


@pytest.mark.slow
def test_layers_that_are_cut_over_gpus() -> None:
    """-sm graph: each GPU's part of the graph, latent attention and experts in RAM too, or a
    bound."""
    count, wrong = compare([row for row in ROWS if "-sm graph" in row["args"]])
    assert not wrong and count >= 12


@WHOLE
def test_random_launches_take_no_more_than_is_said(whole: bool) -> None:
    """Of fixtures/ik.py: no device takes more than is said, weights and caches are equal where no
    bound is named, and most are equal in every part."""
    equal = plans = 0
    for row in RANDOM if whole else SOME:
        if row["error"]:
            with pytest.raises((UsageError, autolayers.LaunchRefused)):
                estimator, params, devices = asked(row)
                estimator.breakdown(params, devices)
            continue
        estimator, params, devices = asked(row)
        found = estimator.breakdown(params, devices)
        bounds = any("is an upper bound" in line for line in found.warnings)
        off = {
            (name, part): getattr(said(found, name), part) - real[part]
            for name, real in row["devices"].items()
            for part in ("model", "context", "compute")
            if (name, part) != ("Host", "model") or not row["mapped"]
        }
        context = row["model"], row["gpus_mib"], row["args"], off
        on_devices = [size for (name, _), size in off.items() if name != "Host"]
        assert min(on_devices, default=0) >= -4096, context
        fixed = [abs(size) for (_, part), size in off.items() if part != "compute"]
        assert bounds or max(fixed) <= 4096, context
        equal += max(map(abs, off.values())) <= 4096
        plans += 1
    assert plans >= (235 if whole else 18) and equal >= (200 if whole else 15)


@WHOLE
def test_bounds_hold_where_a_graph_is_not_modelled(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """What a GPU computes beside an output matrix or experts in RAM is not less than its library
    takes, as if no graph were modelled."""
    monkeypatch.setattr("autolayers.engines.ik_llama.memory.reserved", lambda *_: None)
    compared = 0
    for row in RANDOM if whole else RANDOM[::4]:
        if row["error"] or len(row["gpus_mib"]) != 1 or "-no-fa" in row["args"]:
            continue
        estimator, params, devices = asked(row)
        found = estimator.breakdown(params, devices).devices["CUDA0"]
        assert found.compute >= row["devices"]["CUDA0"]["compute"] - 4096, (
            row["model"],
            row["args"],
        )
        compared += 1
    assert compared >= (75 if whole else 18)


@pytest.mark.slow
def test_every_recorded_launch_is_equal_to_the_byte() -> None:
    count, wrong = compare(ROWS)
    assert not wrong and count >= 150


def test_its_refusals_are_refused() -> None:
    """Each row that it refuses or ends with, such as -sm graph that leaves a GPU nothing, -fa
    without a value, and tensors that its loader does not create."""
    for row in ROWS:
        if row["error"]:
            with pytest.raises((UsageError, autolayers.LaunchRefused)):
                estimator, params, devices = asked(row)
                estimator.breakdown(params, devices)


def test_a_tensor_that_its_loader_does_not_create() -> None:
    """done_getting_tensors: "expected 60, got 25" of a header with scales; without them it
    loads."""
    done = says(
        HEADERS / "qwen3-dense.gguf", "--engine", "ik_llama.cpp", "--gpu", "24GiB", "-c", "2048"
    )
    assert done.returncode == 2 and "wrong number of tensors; expected 60, got 25" in done.stderr
    assert unread("qwen3", ["blk.0.attn_q.weight", "blk.0.attn_q.input_scale"]) == [
        "blk.0.attn_q.input_scale"
    ]
    assert not any(
        row["error"] is None and unread(of(row["model"]).architecture, of(row["model"]).tensors)
        for row in ROWS
    )


@pytest.mark.parametrize(
    ("gpu", "words", "flags"),
    few_rows(
        2,
        [
            # what its own split goes by: free memory less its margin of 1024 MiB
            ("24GiB,24GiB", ["-c", "8192", "-ngl", "99"], "-ts 23552,23552"),
            (
                "24GiB,12GiB",
                ["-c", "8192", "-ngl", "99", "--fit-margin", "2048"],
                "-ts 22528,10240",
            ),
            ("24GiB,12GiB", ["-c", "8192", "-ngl", "99", "--fit"], ""),
            ("24GiB,24GiB", ["-c", "8192", "-ngl", "99", "-sm", "graph"], ""),
        ],
    ),
)
def test_its_own_split_is_written_in_bytes(gpu: str, words: list[str], flags: str) -> None:
    """-ts 19,18 would be 19 of 37 bytes, not layers; --fit and -sm graph share out themselves."""
    said = says(QWEN, "--engine", "ik_llama.cpp", "--gpu", gpu, *words).stdout
    assert flags in said and ("-ts" in said) == bool(flags)


def test_a_split_of_layers_is_what_the_plan_says() -> None:
    """The counts that the search wants are the ones that its -ts, parts of bytes, gives."""
    devices = gpus(24576, 8192)
    request = for_model(
        of("qwen3-8b-q4_k_m"),
        Request.of(["-c", "8192", "--engine", IK_LLAMA.name], {}, devices=devices),
    )
    estimator = Estimator(of("qwen3-8b-q4_k_m"), request.build)
    params = replace(request.params, n_gpu_layers=99)
    for counts in ((30, 7), (7, 30), (36, 1)):
        shares = estimator.shares(params, devices, counts)
        placed = estimator.placement(replace(params, tensor_split=shares), devices)
        assert placed.dev_layer.count("CUDA0") == counts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mib", "words"),
    few_rows(
        1,
        [
            # all of its layers, or not
            slow("qwen3-8b-q4_k_m", (6144, 4096), ["-c", "8192"]),
            slow("qwen3-8b-q4_k_m", (4096, 2048), ["-c", "8192"]),
            ("qwen3-8b-q4_k_m:12", (1536, 1024), ["-c", "8192"]),
            slow("llama-3.3-70b-q4_k_m", (10240, 16384, 11264), ["-c", "4096"]),
            slow("qwen3-30b-a3b-q4_k_m:12", (1536, 2048), ["-c", "8192"]),
            slow("qwen3-30b-a3b-q4_k_m", (6144, 8192), ["-c", "8192"]),
            slow("qwen3-8b-q4_k_m:12", (4096, 4096), ["-c", "4096", "-sm", "graph"]),
        ],
    ),
)
def test_the_flags_of_a_plan_are_the_launch_that_it_describes(
    name: str, mib: tuple[int, ...], words: list[str]
) -> None:
    """Read again as they are, they give its bytes on every device: what is chosen is what was
    measured."""
    devices = gpus(*mib)
    plan = autolayers.plan(of(name), [*words, "--engine", IK_LLAMA.name], devices)
    request = for_model(
        of(name), Request.of([*plan.flags, "--engine", IK_LLAMA.name], {}, devices=devices)
    )
    again = Estimator(of(name), request.build).breakdown(request.params, devices)
    assert plan.fits and plan.n_gpu_layers > 1
    for row in plan.devices:
        use = again.devices[row.name]
        assert (row.model, row.context, row.compute) == (use.model, use.context, use.compute)


def test_weights_that_it_derives_are_planned() -> None:
    """A file with attn_kv_b alone, which llama.cpp does not load."""
    plan = autolayers.plan(
        of("deepseek-v3-3layers-kv_b-q4_k_m"), ["-c", "4096", "--engine", "ik_llama.cpp"], ["24GiB"]
    )
    assert plan.fits and plan.n_gpu_layers >= 4 and plan.speed.generation > 0


def experts_in_ram(plan: dict[str, Any]) -> int:
    """N of the plan's -ncmoe."""
    return int(plan["flags"][plan["flags"].index("-ncmoe") + 1])


@pytest.mark.parametrize(
    ("words", "lean"),
    [
        slow("-c 8192", True),
        slow("-c 8192 -np 2", False),  # two sequences ask for more than one token's
        slow("-c 8192 -wgt 512", False),
        ("-c 8192 -ngl 20", False),  # nothing is won
    ],
)
def test_logits_of_one_token_are_reserved_where_layers_are_won(words: str, lean: bool) -> None:
    given = [*words.split(), "--engine", IK_LLAMA.name]
    plan = autolayers.plan(of("llama-3.1-8b-q4_k_m"), given, gpus(6 * 1024))
    assert plan.fits and (plan.flags[-2:] == ("-wgt", "1")) == lean


@pytest.mark.slow
def test_a_mixture_leaves_room_for_its_logits() -> None:
    """16402 MiB of 16384 by its own library for the launch that was written before."""
    words = [
        MOE,
        "--gpu",
        "16GiB",
        "--ram",
        "64GiB",
        "--engine",
        "ik_llama.cpp",
        "-c",
        "32768",
        "-ub",
        "2048",
    ]
    plan = json.loads(command(*words, "-wgt", "2048", "--json").stdout)
    assert plan["fits"] and plan["launch"]["engine"] == "ik_llama.cpp" and not plan["exact"]
    assert plan["devices"][0]["compute"] >= 1219 * MiB
    lean = json.loads(command(*words, "--json").stdout)
    assert lean["flags"][-2:] == ["-wgt", "1"]
    assert lean["devices"][0]["compute"] <= plan["devices"][0]["compute"] - 500 * MiB
    assert experts_in_ram(lean) < experts_in_ram(plan)
    absent = set(IK_LLAMA.lacks) & set(plan["flags"])
    assert not absent


@pytest.mark.parametrize(
    ("name", "mib", "own"),
    [
        slow("qwen3-30b-a3b-q4_k_m:8", 2560, True),
        # the three dense layers of its first ones are none of the last
        ("deepseek-v2-lite-q4_k_m:8", 2048, True),
        # -ncmoe would hold the biases of the experts twice
        slow("gpt-oss-20b-mxfp4:8", 4096, False),
    ],
)
def test_experts_in_ram_are_said_by_its_own_ncmoe(name: str, mib: int, own: bool) -> None:
    """Read again, the plan's words are its bytes on every device."""
    devices = gpus(mib)
    plan = autolayers.plan(of(name), ["-c", "8192", "--engine", IK_LLAMA.name], devices)
    assert plan.fits and ("-ncmoe" in plan.flags) == own
    again = Request.of([*plan.flags, "--engine", IK_LLAMA.name], {}, devices=devices)
    found = Estimator(of(name), again.build).breakdown(again.params, devices)
    for row in plan.devices:
        use = found.devices[row.name]
        assert (row.model, row.context, row.compute) == (use.model, use.context, use.compute)


def test_its_ncmoe_is_of_the_last_layers() -> None:
    """On several GPUs it is shared out by their layers, each from its last one down."""

    def moved(words: list[str], *mib: int) -> list[int]:
        devices = gpus(*mib)
        whole = of("qwen3-30b-a3b-q4_k_m")
        request = Request.of([*words, "--engine", IK_LLAMA.name, "-c", "4096"], {}, devices=devices)
        estimator = Estimator(whole, request.build)
        placed = estimator.placement(replace(request.params, n_gpu_layers=999), devices)
        return [
            il
            for il in range(48)
            if (found := placed.lookup(f"blk.{il}.ffn_up_exps.weight"))
            and placed.is_host(found.buffer)
        ]

    assert moved(["-ncmoe", "3"], 24576) == [45, 46, 47]
    assert moved(["-cmoe"], 24576) == list(range(48))
    assert len(moved(["-ncmoe", "4", "-ts", "1,1"], 24576, 24576)) == 4
    assert max(moved(["-ncmoe", "4", "-ts", "1,1"], 24576, 24576)) == 47
    assert moved(["-ncmoe", "4", "-ts", "1,1"], 24576, 24576)[0] < 30


def test_a_layer_less_is_on_the_gpu_without_the_output() -> None:
    """-ngl 20 is 20 repeating layers, and output.weight stays in RAM: 2204.71 MiB and a cache of
    640."""
    estimator, params, devices = asked(
        {"model": "qwen3-8b-q4_k_m", "args": "-c 8192 -ngl 20", "gpus_mib": [24576]}
    )
    found = estimator.static(params, devices).devices["CUDA0"]
    assert (round(found.model / MiB, 2), found.context / MiB) == (2204.71, 640)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "24GiB", "-fa"], "invalid parameter for argument: -fa"),
        (["--gpu", "24GiB", "--fit", "-ncmoe", "3"], "cannot be used with --fit"),
        (["--gpu", "24GiB", "-fmoe"], "unknown argument: -fmoe"),
        (["--gpu", "24GiB", "--fit", "on"], "unknown argument: on"),
        (["--gpu", "24GiB", "-ngl", "all"], "takes a number, 999 for all layers"),
        (["--gpu", "24GiB", "-lm", "none"], "ik_llama.cpp has no -lm"),
        (["--gpu", "24GiB", "--swa-full"], "ik_llama.cpp has no --swa-full"),
        (["--gpu", "24GiB", "-sm", "graph"], "split mode 'graph' with less than 2 devices"),
        (["--gpu", "24GiB", "-ctv", "q8_KV"], "aborts with it and flash attention"),
        (
            ["--gpu", "24GiB", "--format", "docker"],
            "starts llama.cpp's own program, not ik_llama.cpp",
        ),
        slow(
            ["--gpu", "24GiB", "--format", "compose"], "use systemd, llama-swap, llama-swap-matrix"
        ),
    ],
)
def test_what_has_no_plan_is_refused_with_a_way_out(words: list[str], message: str) -> None:
    done = says(QWEN, "--engine", "ik_llama.cpp", "--ram", "64GiB", "-c", "8192", *words)
    assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_its_own_words_stay_in_the_plan() -> None:
    done = says(
        MOE,
        "--engine",
        "ik_llama.cpp",
        "--gpu",
        "2x12GiB",
        "--ram",
        "64GiB",
        "-c",
        "32768",
        "-mla",
        "3",
        "-wgt",
        "1",
    )
    assert done.returncode == 0 and done.stdout.rstrip().endswith("-mla 3 -wgt 1")
    assert "planned as its commit 8337e4cd" in done.stderr


def test_a_file_with_its_types_is_refused_by_llama_server(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes((FIXTURES / "ik/headers/qwen3-8b-iq4_ks.gguf").read_bytes())
    done = says(path, "--gpu", "24GiB", "-c", "4096")
    assert (
        done.returncode == 2 and "iq4_ks, iq6_k: llama.cpp does not load this file" in done.stderr
    )
    assert says(path, "--gpu", "24GiB", "-c", "4096", "--engine", "ik_llama.cpp").returncode == 0


def test_a_file_with_its_types_is_inspected() -> None:
    done = says("inspect", FIXTURES / "ik/headers/qwen3-8b-iq4_ks.gguf")
    assert done.returncode == 0 and "iq4_ks" in done.stdout and not done.stderr


@pytest.mark.slow
def test_layers_that_it_does_not_cut_are_named() -> None:
    """is_model_split_supported has no gemma3."""
    words = ("--engine", "ik_llama.cpp", "--gpu", "2x24GiB", "-c", "4096", "-sm", "graph")
    done = says(HEADERS / "gemma-3-4b-q8_0.gguf", *words)
    assert done.returncode == 0
    assert "ik_llama.cpp does not cut the layers of gemma3, and takes -sm layer" in done.stderr
    assert "does not cut" not in says(QWEN, *words).stderr


def test_two_gpus_of_which_one_is_named() -> None:
    done = says(QWEN, "--engine", "ik_llama.cpp", "--gpu", "2x24GiB", "-c", "8192", "-dev", "CUDA1")
    assert (
        done.returncode == 0 and done.stdout.startswith("-ngl 37 ") and "-dev CUDA1" in done.stdout
    )


def test_architectures_and_types_that_it_has_not(tmp_path: Path) -> None:
    missing = says(HEADERS / "lfm2-dense.gguf", "--engine", "ik_llama.cpp", "--gpu", "8GiB")
    assert missing.returncode == 2 and "unknown model architecture: 'lfm2'" in missing.stderr
    from support import requantised, write_gguf

    path = write_gguf(tmp_path / "m.gguf", *requantised("llama-3.2-1b-q8_0", "tq2_0"))
    for engine, code in (("ik_llama.cpp", 2), ("llama-server", 0)):
        done = says(path, "--engine", engine, "--gpu", "8GiB", "-c", "4096")
        assert done.returncode == code and ("has no tensor type tq2_0" in done.stderr) == (
            code == 2
        )


def test_the_library_reads_its_words_too() -> None:
    plan = autolayers.plan(
        model("qwen3-8b-q4_k_m"),
        ["--engine", "ik_llama.cpp", "-mla", "3", "-rtr", "-c", "8192"],
        ["24GiB"],
    )
    assert plan.engine == "ik_llama.cpp" and plan.devices[0].compute >= int(312.75 * MiB)


def test_a_cache_type_of_its_own_is_written_once() -> None:
    """llama.cpp's type, which its bytes are planned as at most, is not a flag of the launch."""
    words = ("--engine", "ik_llama.cpp", "--gpu", "24GiB", "-c", "8192", "-ctk", "q6_0")
    done = says(QWEN, *words, "-ctv", "q8_0", "--format", "flags")
    flags = done.stdout.split()
    assert flags.count("-ctk") == 1 and flags[flags.index("-ctk") + 1] == "q6_0"
    assert flags[flags.index("-ctv") + 1] == "q8_0"


def test_a_tied_output_is_created_once_more_wherever_it_is() -> None:
    """-ot moves the embedding and the output, which have one name; llama.cpp keeps one of both."""
    tied = model("llama-3.2-1b-q8_0")
    size = tied.tensors["token_embd.weight"].n_bytes

    def held(words: str) -> tuple[int, int]:
        flags = f"-c 4096 -ngl 99 {words} --engine ik_llama.cpp".split()
        found = autolayers.plan(tied, flags, devices=gpus(24576)).breakdown
        return found.devices["CUDA0"].model, found.host.model

    # one in RAM, one on the GPU
    device, host = held("")
    assert held("-ot token_embd=CUDA0") == (device + size, host - size)
    assert held("-ot token_embd=CPU") == (device - size, host + size)


@pytest.mark.parametrize("name", ["blk.0", "blk.", "blk.0~ffn_up"])
def test_a_tensor_of_a_block_may_have_any_name(name: str) -> None:
    """A header with a byte changed ended in a traceback where layers are cut."""
    norms = {f"blk.{il}.ffn_norm.weight": ("f32", (256,)) for il in range(2)}
    tensors = {**blocks(2, "f32", "ffn_gate", "ffn_down"), **norms, name: ("f32", (256,))}
    keys: dict[str, object] = {"attention__head_count_kv": 4, "feed_forward_length": 256}
    odd = Model(header("llama", tensors, **keys), "odd.gguf")
    with pytest.raises(LaunchRefused, match=rf"does not read {re.escape(name)}, and loads no file"):
        autolayers.plan(odd, ["--engine", "ik_llama.cpp"], devices=gpus(8192, 8192))
