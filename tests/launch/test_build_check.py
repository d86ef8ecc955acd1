"""Anyone who checks a build would be told that it is equal when it is not, or the reverse.

`autolayers check`: a program's loads compared with the prediction, kept, and used by plans for
that very program.

The fake llama-server prints the sizes that it is given for each file;
test_the_real_llama_server_is_equal_in_every_part asks a real one.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support import ROOT, MiB, few_rows, says

import autolayers
from autolayers import bundled, store
from autolayers.bundled import read
from autolayers.flags.parse import parse
from autolayers.launch import build_check
from autolayers.launch.build_check import companions

SERVER = """\
import json, os, signal, sys
words = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
if "--version" in words:
    sys.exit(print("version: 0.5.0 (build 11311, commit abcdef12)"))
if "--help" in words:
    sys.exit(print("-ngl, --n-gpu-layers N\\n-lm, --load-mode MODE\\n"
                   "-lv, --verbosity N\\n - 4: trace\\n"))
if "--list-devices" in words:
    sys.exit(print("Available devices:\\n  (none)"))
name = os.path.basename(words[words.index("-m") + 1]).removesuffix(".gguf")
sizes = json.load(open(os.path.join(here, "sizes.json"))).get(name)
if sizes is None:
    sys.exit("llama_model_load: error loading model: unknown model architecture: 'x'")
if isinstance(sizes, str):
    sys.exit(sizes)
print("llama_model_loader: loaded meta data")
more = json.load(open(os.path.join(here, "more.json")))
for part, size in sizes.items():
    if "(second)" not in part:
        print(f"x: CPU {part} buffer size = {size / 1048576:.2f} MiB")
if "--spec-type" in words:
    print("llama_context: constructing llama_context\\nllama_context: constructing llama_context")
    for part, size in sizes.items():
        if "(second)" in part:
            mib = size / 1048576 + more
            print(f"x: CPU {part.split()[0]} buffer size = {mib:.2f} MiB", flush=True)
    os.kill(os.getpid(), signal.SIGILL)
if "--mmproj" in words:
    size = os.path.getsize(words[words.index("--mmproj") + 1]) // 4096 / 256
    print(f"clip_ctx: CLIP using CPU backend\\nload_hparams: model size:         {size:.2f} MiB")
    print(f"reserve_compute_meta:        CPU compute buffer size = {0.86 + more:.2f} MiB")
if "--lora" in words:
    print("llama_adapter_lora_init_impl: CPU LoRA buffer size = 0.02 MiB")
    print("llama_model_loader: loaded meta data")
    for part, size in sizes.items():
        print(f"x: CPU {part} buffer size = {size / 1048576 + more:.2f} MiB")
print("srv llama_server: model loaded", flush=True)
signal.pause()
"""
NAMES = ("gemma3-dense", "qwen3-dense", "llama-moe")
BOTH, SEES = "llama-moe with a draft and an adapter", "gemma3-dense with a projector"
WORDS = "-ngl 99 -c 1024 -np 1 -lm none"


@pytest.fixture
def program(tmp_path: pathlib.Path) -> pathlib.Path:
    """A llama-server that knows NAMES and takes what is predicted for them."""
    (tmp_path / "server.py").write_text(SERVER)
    found = tmp_path / "llama-server"
    found.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -E {tmp_path}/server.py "$@"\n'
    )
    found.chmod(0o755)
    sizes = {}
    for name in NAMES:
        use = autolayers.estimate(read(name), parse(WORDS.split(), command=None).params, [], 11311)
        sizes[name] = {
            "model": use.host.model,
            "KV": use.host.context,
            "compute": use.host.compute,
            "output": next(extra.size for extra in use.extras if "output" in extra.name),
        }
    use = autolayers.estimate(
        read("mtp/qwen35"), parse([*WORDS.split(), "--spec-type", "draft-mtp"]).params, [], 11311
    )
    more = {extra.name: extra.size for extra in use.extras}
    sizes["mtp-qwen35"] = {
        "model": use.host.model,
        "KV": use.host.context,
        "compute": use.host.compute - MiB,
        "KV (second)": more["MTP context"],
        "compute (second)": more["MTP compute"],
    }
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    (tmp_path / "more.json").write_text("0")
    return found


@pytest.fixture
def environ(program: pathlib.Path) -> dict[str, str]:
    return {
        **os.environ,
        "XDG_STATE_HOME": str(program.parent / "state"),
        "HOME": str(program.parent),
    }


@pytest.fixture(
    params=[False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.seldom])],
    ids=["few", "every architecture"],
)
def run(
    environ: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    if not request.param:
        few = {"architectures": (*NAMES, "afmoe-moe"), "mtp": ("mtp/qwen35", "mtp/step35")}
        for name, module in itertools.product(few, (bundled, build_check)):
            monkeypatch.setattr(module, name, lambda found=few[name]: found)
    return lambda *words: says(*words, environ=environ)


def change(program: pathlib.Path, name: str, value: object) -> None:
    file = program.parent / "sizes.json"
    sizes: dict[str, Any] = json.loads(file.read_text())
    file.write_text(json.dumps({**sizes, name: value}))


def states(answer: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {one["name"]: one["state"] for one in json.loads(answer.stdout)["models"]}


@pytest.mark.slow
def test_each_architecture_is_equal_different_failed_or_unknown(
    run: Callable[..., Any], program: pathlib.Path
) -> None:
    done = run("check", "--quick", "--json", "--llama-server", str(program))
    assert done.returncode == 0, done.stderr
    drafting = (f"{name} that drafts" for name in bundled.mtp())
    assert set(states(done)) == {*bundled.architectures(), BOTH, SEES, *drafting}
    known = {*NAMES, BOTH, SEES, "mtp/qwen35 that drafts"}
    assert {name for name, state in states(done).items() if state == "equal"} == known
    assert {state for name, state in states(done).items() if name not in known} == {"unknown"}
    before = json.loads((program.parent / "sizes.json").read_text())
    change(
        program,
        "qwen3-dense",
        {**before["qwen3-dense"], "compute": before["qwen3-dense"]["compute"] + 3 * MiB},
    )
    change(program, "llama-moe", "GGML_ASSERT(false) \x1b[31mfailed")
    done = run("check", "--quick", "--llama-server", str(program))
    assert done.returncode == 1
    assert "qwen3 (qwen3-dense): compute on Host +3.00 MiB" in done.stdout
    assert "llama (llama-moe): failed: GGML_ASSERT" in done.stdout and "\x1b" not in done.stdout
    assert "3 of 6 models equal in every part" in done.stdout


def test_a_size_that_differs_is_named_and_kept(
    environ: dict[str, str], program: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_check, "architectures", lambda: NAMES[:2])
    monkeypatch.setattr(build_check, "mtp", tuple)
    before = json.loads((program.parent / "sizes.json").read_text())[NAMES[1]]
    change(program, NAMES[1], {**before, "KV": before["KV"] + MiB})
    done = says("check", "--quick", "--llama-server", program, environ=environ)
    assert done.returncode == 1 and "3 of 4 models equal in every part" in done.stdout
    assert "qwen3 (qwen3-dense): context on Host +1.00 MiB" in done.stdout
    (kept,) = store.read(store.CheckedBuild, environ, store.of_path(str(program)))
    assert kept.build == 11311 and kept.architectures["gemma3"] == {}
    assert kept.architectures["qwen3"] == {"context Host": MiB}


@pytest.mark.slow
def test_drafts_adapters_and_projectors_are_compared_as_well(
    run: Callable[..., Any], program: pathlib.Path
) -> None:
    done = run("check", "--quick", "--llama-server", str(program))
    assert done.returncode == 0 and re.search(r"^Host mmproj weights +1 of 1$", done.stdout, re.M)
    (program.parent / "more.json").write_text("4")
    done = run("check", "--quick", "--llama-server", str(program))
    assert done.returncode == 1 and re.search(r"^Host LoRA +1 of 1$", done.stdout, re.M)
    assert (
        f"({BOTH}): draft model weights on Host +4.00 MiB, draft context on Host +4.00 MiB"
        in done.stdout
    )
    assert (
        "that drafts): MTP context on Host +4.00 MiB, MTP compute on Host +4.00 MiB" in done.stdout
    )
    assert f"({SEES}): mmproj compute on Host +3.57 MiB" in done.stdout  # above the upper bound
    plan = run(
        "run",
        "--gpu",
        "24GiB",
        "--dry-run",
        str(program),
        "-m",
        "fixtures/headers/llama-3.1-8b-q4_k_m.gguf",
    )
    # without companions it is equal
    assert plan.returncode == 0 and "checked on this build" not in plan.stderr


@pytest.mark.slow
def test_plans_for_that_program_say_so(run: Callable[..., Any], program: pathlib.Path) -> None:
    before = json.loads((program.parent / "sizes.json").read_text())
    change(
        program, "qwen3-dense", {**before["qwen3-dense"], "KV": before["qwen3-dense"]["KV"] + MiB}
    )
    run("check", "--quick", "--llama-server", str(program))
    launch = ["run", "--gpu", "24GiB", "--dry-run", str(program), "-m"]
    equal = run(*launch, "fixtures/headers/gemma-3-4b-q8_0.gguf")
    # as predicted: not worth a line
    assert equal.returncode == 0 and "checked on this build" not in equal.stderr
    nice = run(*launch[:4], "nice", *launch[4:], "fixtures/headers/qwen3-8b-q4_k_m.gguf")
    # of the program, not of what starts it
    assert "checked on this build on 20" in nice.stderr
    differs = run(*launch, "fixtures/headers/qwen3-8b-q4_k_m.gguf")
    assert "qwen3 does not allocate as predicted (context Host +1.00 MiB)" in differs.stderr
    other = run(*launch, "fixtures/headers/phi-3-mini-q4_k_m.gguf")
    assert "checked" not in other.stderr
    # another file: what was checked is not this
    os.utime(program, (1, 1))
    assert "checked" not in run(*launch, "fixtures/headers/qwen3-8b-q4_k_m.gguf").stderr


@pytest.mark.parametrize(
    ("words", "error", "code"),
    few_rows(
        2,
        [
            (
                ["--llama-server", "no-such-server"],
                "no-such-server: no such program; give its path with",
                127,
            ),
            (
                ["--llama-server", str(ROOT / "README.md")],
                "README.md: cannot be executed; give its path with",
                126,
            ),
            (["--llama-server", sys.executable], "not llama-server, by its --help", 1),
            (["model.gguf"], "check takes flags only", 2),
        ],
    ),
)
def test_what_cannot_be_checked(
    environ: dict[str, str], words: list[str], error: str, code: int
) -> None:
    done = says("check", *words, environ=environ)
    assert (
        done.returncode == code
        and error in done.stderr
        and done.stderr.count("\n") == 1
        and not done.stdout
    )


def test_a_damaged_record_is_none(tmp_path: pathlib.Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    program = tmp_path / "llama-server"
    program.write_text("x")
    name = store.of_path(str(program))
    found = store.CheckedBuild("d", 11311, "abc", "2026-11-22", {"llama": {}})
    store.keep([found], environ, name)
    assert store.read(store.CheckedBuild, environ, name) == [found]
    (file,) = (tmp_path / "autolayers" / "builds").iterdir()
    for text in (
        "",
        "[]",
        "{}",
        '{"digest": 1}',
        file.read_text().replace('"llama"', '"llama": 7, "x"'),
    ):
        file.write_text(text)
        assert store.read(store.CheckedBuild, environ, name) == []


@pytest.mark.llamacpp
def test_the_real_llama_server_is_equal_in_every_part(
    binaries: pathlib.Path, environ: dict[str, str]
) -> None:
    done = says("check", "--llama-server", str(binaries / "llama-server"), environ=environ)
    assert done.returncode == 0, done.stdout
    count = len(bundled.architectures()) + len(companions())
    assert f"{count} of {count} models equal" in done.stdout and re.search(
        "draft compute +1 of 1$", done.stdout, re.M
    )
    assert re.search(
        f"MTP compute +{len(bundled.mtp())} of {len(bundled.mtp())}$", done.stdout, re.M
    )
    assert "mmproj weights: 1 of 1" in done.stdout
