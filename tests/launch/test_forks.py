"""Users of a fork would be planned for as if they had llama.cpp.

Forks of llama.cpp, as programs whose --version and --help are ik_llama.cpp's (8337e4cd), or made
up.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support import HEADERS, command, gguf, slow, write_gguf

from autolayers.builds import NEWEST
from autolayers.detect import detect, read_help

QWEN, GEMMA, MLA = (
    HEADERS / f"{name}.gguf"
    for name in ("qwen3-8b-q4_k_m", "gemma-3-4b-q8_0", "deepseek-v2-lite-q4_k_m")
)

# gpt_params_print_usage of its common/common.cpp: the lines that a plan's words and its own need
IK = """usage: ./llama-server [options]

general:

  -h,    --help, --usage          print usage and exit
         --version                show version and build info
  -dr,   --dry-run                skip loading tensors in the files
  -c,    --ctx-size N             size of the prompt context (default: 0, 0 = loaded from model)
  -b,    --batch-size N           logical maximum batch size (default: 2048)
  -ub,   --ubatch-size N          physical maximum batch size (default: 512)
  -no-fa, --no-flash-attn         disable Flash Attention (default: enabled)
  -fa, --flash-attn (auto|on|off|0|1)
                                  set Flash Attention (default: on)
  -mla,  --mla-use                enable MLA (default: 3)
  -amb,  --attention-max-batch    max batch size for attention computations (default: 0)
  -no-fmoe, --no-fused-moe        disable fused MoE (default: enabled)
  -ctk,  --cache-type-k TYPE      KV cache data type for K (default: f16)
  -ctv,  --cache-type-v TYPE      KV cache data type for V (default: f16)
  -np,   --parallel N             number of parallel sequences to decode (default: 1)
  -ot,   --override-tensor        override where model weights are stored
  -cmoe, --cpu-moe                keep all MoE weights in CPU memory
  -ncmoe, --n-cpu-moe N           keep MoE weights of the first N layers in CPU memory
         --no-mmap                do not memory-map model (slower load but may reduce \
pageouts if not using mlock)
  -rtr,  --run-time-repack        repack tensors if interleaved variant is available
  -ngl,  --gpu-layers N           number of layers to store in VRAM
  -sm,   --split-mode SPLIT_MODE  how to split the model across multiple GPUs, one of:
                                    - none: use one GPU only
                                    - graph: split model tensors and computation graph across GPUs
  -ts,   --tensor-split SPLIT     fraction of the model to offload to each GPU, comma-separated
  -mg,   --main-gpu i             the GPU to use for the model (with split-mode = none),
         --fit                    automatically determine which tensors to offload to the GPU(s)
         --fit-margin N           safety margin in MiB when auto-fitting model offloading
"""
TURBO = """----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, bf16, q8_0, q4_0, turbo3, turbo8
-ctv,  --cache-type-v TYPE              KV cache data type for V
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM
-fit,  --fit [on|off]                   whether to adjust unset arguments to fit in device memory
"""


@pytest.fixture
def moe(tmp_path: Path) -> Path:
    """A mixture of four layers: 2 GiB."""
    return write_gguf(tmp_path / "moe.gguf", *gguf("qwen3-30b-a3b-q4_k_m:4"))


@pytest.fixture
def program(tmp_path: Path):
    """program(help, version) -> the path of such a llama-server."""

    def make(text: str, number: int = 4840) -> str:
        (tmp_path / "help").write_text(text)
        path = tmp_path / "llama-server"
        path.write_text(
            f'#!/bin/sh\ncase "$1" in\n--version) echo "version: {number} (8337e4cd)" '
            f">&2;;\n"
            f"--help) cat '{tmp_path}/help';;\n*) echo \"$@\";;\nesac\n"
        )
        path.chmod(0o755)
        return str(path)

    return make


def planned(path: str, *words: str, gpu: str = "24GiB") -> tuple[int, str, str]:
    done = command("run", "--gpu", gpu, "--ram", "64GiB", "--dry-run", path, *words)
    # without the quotes that a path may need
    words = shlex.split(done.stdout.decode())
    return done.returncode, "".join([" ".join(words), "\n" * bool(words)]), done.stderr.decode()


def test_its_own_count_is_no_date(program) -> None:
    build = detect([program(IK)], os.environ)
    assert (build.fork, build.number, build.rules.number, build.rules.exact) == (
        "ik_llama.cpp",
        0,
        NEWEST,
        False,
    )
    assert build.default_slots == 1 and build.knows("-ot") and not build.knows("-lm")
    assert not build.knows("-ncmoe")  # of the last layers there, so none is written
    # its help may leave things out
    assert build.lacks("--load-mode") and not build.lacks("--metrics")


def test_flags_that_are_newer_than_the_count(program) -> None:
    build = detect([program(TURBO, 1203)], os.environ)
    assert build.fork and build.rules.number == NEWEST and "b" not in str(build.number)
    assert "says build 1203" in build.doubt
    assert not detect([program(TURBO, NEWEST)], os.environ).fork


def test_indented_help_is_read_without_its_explanations() -> None:
    names, word, _ = read_help(IK)
    assert {"-ngl", "--gpu-layers", "--fit-margin", "-dr", "--no-mmap"} <= (names or set()) and word
    assert not {"-loading", "--none", "-graph", "-separated"} & set(names or ())


def test_a_model_newer_than_its_count_is_planned_and_the_fork_named(program) -> None:
    path = program(IK)
    code, out, err = planned(path, "-m", str(QWEN), "-c", "8192")
    assert (code, out) == (0, f"{path} -m {QWEN} -c 8192 -ngl 37 -np 1\n")
    assert "is ik_llama.cpp, which is not llama.cpp" in err and "planned as its commit" in err


def test_its_words_reach_it_unchanged(program) -> None:
    path = program(IK)
    words = [
        "-no-fmoe",
        "-mla",
        "3",
        "-amb",
        "512",
        "-rtr",
        "-ser",
        "6,1",
        "--fit-margin",
        "700",
        "-fa",
        "1",
    ]
    code, out, err = planned(path, "-m", str(QWEN), *words, "-ctk", "q8_KV", "--unheard-of", "7")
    assert code == 0, err
    assert out.startswith(f"{path} -m {QWEN} {' '.join(words)} -ctk q8_KV --unheard-of 7 -ngl ")
    shell = subprocess.run([path, *words], capture_output=True, text=True, check=True).stdout
    assert shell.split() == words


@pytest.mark.slow
def test_cache_types_of_a_fork_are_planned_as_larger_ones(program) -> None:
    """Where its help lists them, or its source has them; nobody else's."""
    path = program(TURBO, NEWEST)
    for type_, bound in (("turbo3", "q8_0"), ("turbo8", "f16")):
        _, out, err = planned(
            path, "-m", str(QWEN), "-fa", "on", "-ctk", type_, "-ctv", type_, gpu="7GiB"
        )
        assert (
            f"-ctk {type_} is a type of this program alone: the K cache is planned as {bound}"
            in err
        )
        _, same, _ = planned(
            path, "-m", str(QWEN), "-fa", "on", "-ctk", bound, "-ctv", bound, gpu="7GiB"
        )
        assert out.replace(type_, bound) == same and "-ngl" in out
    for text, number, type_ in (
        (TURBO, NEWEST, "q6_0"),
        (IK, 4840, "turbo3"),
        (TURBO, NEWEST, "blah"),
    ):
        assert planned(program(text, number), "-m", str(QWEN), "-ctk", type_)[0] == 2
    assert planned(program(IK), "-m", str(QWEN), "-ctk", "q6_0")[0] == 0


def test_its_windows_keep_every_position(program) -> None:
    """Sliding-window layers have no smaller cache there, and no flag says so."""
    whole, compact = (
        planned(path, "-m", str(GEMMA), gpu="8GiB")[1] for path in (program(IK), "llama-server")
    )
    contexts = [int(out.partition("-c ")[2].split()[0]) for out in (whole, compact)]
    assert 4096 < contexts[0] < contexts[1] / 2 and "--swa-full" not in whole


def test_a_build_without_gpus_leaves_ngl_out_of_its_help(program) -> None:
    """It takes -ngl all the same; no flag that it lacks is written."""
    path = program(
        "\n".join(
            line for line in IK.splitlines() if not line.startswith(("-ngl", "-sm", "-ts", "-mg"))
        )
    )
    build = detect([path], os.environ)
    assert build.fork == "ik_llama.cpp" and build.knows("-ngl") and not build.knows("--swa-full")
    code, out, _ = planned(path, "-m", str(GEMMA), "-c", "4096")
    assert (code, out) == (0, f"{path} -m {GEMMA} -c 4096 -ngl 35 -np 1\n")


def test_with_fit_it_places_the_layers_itself(program) -> None:
    """--fit is a switch there, and refuses what a plan would add."""
    path = program(IK)
    for more in ((), ("-c", "4096"), ("--fit-margin", "700")):
        code, out, err = planned(path, "-m", str(QWEN), "--fit", *more)
        assert (code, out) == (0, " ".join([path, "-m", str(QWEN), "--fit", *more]) + "\n"), err
        assert "with --fit ik_llama.cpp places the layers itself: nothing to plan" in err
    done = command("run", "--wait", "--gpu", "24GiB", path, "-m", str(QWEN), "--fit")
    assert done.returncode == 2 and b"--wait needs a plan" in done.stderr


@pytest.mark.parametrize(
    "words", [("-dr",), ("--webui", "llamacpp"), slow(("--context-shift", "off"))]
)
def test_flags_that_take_a_value_in_one_of_both_pass_unchanged(
    program, words: tuple[str, ...]
) -> None:
    path = program(IK)
    code, out, err = planned(path, "-m", str(QWEN), "-c", "8192", *words)
    assert code == 0 and out.startswith(" ".join([path, "-m", str(QWEN), "-c", "8192", *words])), (
        err
    )


@pytest.mark.parametrize("words", [("-fa",), slow(("-fa", "-np", "1"))])
def test_flash_attention_wants_a_value(program, words: tuple[str, ...]) -> None:
    code, out, err = planned(program(IK), "-m", str(QWEN), "-c", "8192", *words)
    assert (code, out) == (2, "") and "invalid parameter for argument: -fa" in err
    older = program(IK.replace("-fa, --flash-attn (auto|on|off|0|1)", "-fa, --flash-attn"))
    code, out, err = planned(older, "-m", str(QWEN), "-c", "8192", *words, "-rtr")
    assert code == 0 and "-fa" in out, err


@pytest.mark.parametrize("words", [slow(("--fit", "on")), slow(("-ngl", "all")), ("-ngl", "auto")])
def test_values_that_its_parser_refuses(program, words: tuple[str, str]) -> None:
    done = command("run", "--dry-run", "--gpu", "24GiB", program(IK), "-m", QWEN, *words)
    assert done.returncode == 2 and not done.stdout
    llama = command("run", "--dry-run", "--gpu", "24GiB", "llama-server", "-m", QWEN, *words)
    assert llama.returncode == 0


def test_a_given_ncmoe_is_planned_as_its_own_and_not_repeated(program) -> None:
    path, moe = program(IK), HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"
    code, out, err = planned(path, "-m", str(moe), "-c", "8192", "-ncmoe", "20")
    assert (
        code == 0
        and out.startswith(f"{path} -m {moe} -c 8192 -ncmoe 20 -ngl 49 ")
        and "-ot" not in out
    ), err


def test_no_gpu_is_not_claimed_of_a_program_that_lists_none(program) -> None:
    done = command(
        "run",
        "--ram",
        "64GiB",
        "--dry-run",
        program(IK),
        "-m",
        str(QWEN),
        "-c",
        "4096",
        environ={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0 and b"-ngl" not in done.stdout
    assert b"no GPU found: plans" not in done.stderr and b"--list-devices" not in done.stderr
    assert b"ik_llama.cpp lists none: planned for the CPU, -ngl is left to it" in done.stderr


@pytest.mark.slow
def test_its_image_is_not_llama_cpp_s(program) -> None:
    for kind, code in (
        ("docker", 2),
        ("compose", 2),
        ("nixos", 2),
        ("llmkube", 2),
        ("systemd", 0),
        ("llama-swap", 0),
    ):
        done = command(
            "run", "--gpu", "24GiB", "--format", kind, program(IK), "-m", str(QWEN), "-c", "4096"
        )
        assert done.returncode == code and b"ghcr.io" not in done.stdout, kind


@pytest.mark.slow
def test_latent_attention_is_planned_in_each_form(program) -> None:
    for words in (("-mla", "0"), ("-mla", "1", "-fa", "off"), ("-mla", "1")):
        assert planned(program(IK), "-m", str(MLA), "-c", "4096", *words)[0] == 0
    assert planned(program(IK), "-m", str(QWEN), "-c", "4096", "-mla", "0")[0] == 0


def test_llama_cpp_itself_still_refuses_a_fork_s_words(program) -> None:
    for words in (("-fmoe",), ("-ctk", "q8_KV"), ("-sm", "graph")):
        assert planned("llama-server", "-m", str(QWEN), *words)[0] == 2


WGT = "         -wgt, --worst-graph-tokens N   number of tokens to use for worst-case graph\n"


@pytest.mark.slow
@pytest.mark.parametrize(("own", "end"), [slow(WGT, " -wgt 1"), ("", "")])
def test_the_words_of_the_fork_itself_are_added(program, moe: Path, own: str, end: str) -> None:
    """Its -ncmoe means its last layers; -wgt 1 makes graphs as small as the plan says, and older
    commits lack it."""
    machine = ["--gpu", "2GiB", "--ram", "64GiB"]
    words = [*machine, "--dry-run", program(IK + own), "-m", str(moe), "-c", "4096"]
    out = command("run", *words).stdout.decode().strip()
    plan = command(moe, *machine, "--engine", "ik_llama.cpp", "-c", "4096", "--format", "flags")
    assert re.search(rf" -np 1 -ncmoe \d+{end}$", out) and "-ot" not in out
    added = plan.stdout.decode().strip().replace("-c 4096 ", "")
    assert not own or out.endswith(f" -c 4096 {added}")


@pytest.mark.parametrize(
    ("words", "added"),
    [
        ("-rtr -fa on -c 4096", r"-ncmoe \d+ -wgt 1$"),
        slow("-ctk q6_0 -ctv q6_0 -c 4096", r" -ot 'blk.*exps=CPU' -ncmoe \d+$"),
        ("--fit", r" --fit$"),
    ],
)
def test_a_program_that_is_not_here_is_what_engine_says(moe: Path, words: str, added: str) -> None:
    done = command(
        *["run", "--engine", "ik_llama.cpp", "--gpu", "2GiB", "--ram", "64GiB", "--dry-run"],
        *["llama-server", "-m", str(moe), *words.split()],
    )
    out = done.stdout.decode().strip()
    assert f"{moe} {words}" in out and re.search(added, out), done.stderr


def test_a_program_with_other_flags_gets_none_of_llama_server() -> None:
    done = command("run", "--dry-run", "--gpu", "8GiB", "koboldcpp", "--model", str(QWEN))
    assert done.returncode == 2 and not done.stdout
    assert b"koboldcpp has its own flags: autolayers MODEL --format koboldcpp" in done.stderr
