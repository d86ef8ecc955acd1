"""`autolayers run` would start another command than the plan says.

What `autolayers run` makes of a command.
"""

from __future__ import annotations

import shlex

import pytest
from support import split

from autolayers.builds import Build
from autolayers.detect import read_help
from autolayers.errors import UsageError
from autolayers.flags.params import Params
from autolayers.flags.parse import parse
from autolayers.launch.command import additions, complete, own_end


def whole(line: str, flags: str, build: Build | None = None, **environ: str) -> str:
    command = split(line)
    added, _ = additions(command, shlex.split(flags), build or Build(), environ)
    return " ".join(complete(command, added))


def test_what_the_plan_may_choose_though_it_is_given_comes_last() -> None:
    """-dev of all devices and -sm layer are llama.cpp's defaults: they forbid no other launch."""
    line = "llama-server -m m -dev CUDA0 -sm layer"
    assert whole(line, "-ngl 0 -dev none -sm layer") == f"{line} -ngl 0 -dev none"
    assert whole(line, "-ngl 9 -dev CUDA0 -sm none") == f"{line} -ngl 9 -sm none"


# --- finding the program


@pytest.mark.parametrize(
    ("line", "own", "launcher", "words", "program"),
    [
        ("llama-server -m m.gguf", "", "llama-server", "-m m.gguf", "llama-server"),
        (
            "--gpu 24GiB --verify llama-server -m m.gguf",
            "--gpu 24GiB --verify",
            "llama-server",
            "-m m.gguf",
            "llama-server",
        ),
        (
            "--gpu=24GiB --retry 2 -- llama-server -m m",
            "--gpu=24GiB --retry 2",
            "llama-server",
            "-m m",
            "llama-server",
        ),
        ("/opt/l/llama-cli.exe -m m", "", "/opt/l/llama-cli.exe", "-m m", "llama-cli"),
        ("nice -n 5 llama-server -m m", "", "nice -n 5 llama-server", "-m m", "llama-server"),
        (
            "env A=1 taskset -c 0-3 ./bin/llama-server -m m",
            "",
            "env A=1 taskset -c 0-3 ./bin/llama-server",
            "-m m",
            "llama-server",
        ),
        ("./serve.sh -m llama-3.gguf -c 9", "", "./serve.sh", "-m llama-3.gguf -c 9", "serve.sh"),
        ("./serve.sh --now -- -m m", "", "./serve.sh --now", "-m m", "serve.sh"),
        (
            "sudo -u llama llama-server -m m",
            "",
            "sudo -u llama llama-server",
            "-m m",
            "llama-server",
        ),
        ("llama serve -m m", "", "llama serve", "-m m", "llama-server"),
        ("/x/llama bench -m m", "", "/x/llama bench", "-m m", "llama-bench"),
        ("llama-server -m llama-server", "", "llama-server", "-m llama-server", "llama-server"),
    ],
)
def test_finds_the_program(line: str, own: str, launcher: str, words: str, program: str) -> None:
    command = split(line)
    assert shlex.split(line)[: own_end(shlex.split(line))] == own.split()
    assert (command.launcher, command.words, command.program) == (
        tuple(launcher.split()),
        tuple(words.split()),
        program,
    )


@pytest.mark.parametrize(
    ("line", "executable"),
    [
        ("nice -n 5 /opt/llama-server -m m", "/opt/llama-server"),
        ("sudo -u llama llama-cli -m m", "llama-cli"),
        ("nice llama serve -m m", "llama"),
        ("./serve.sh -m m", "./serve.sh"),
    ],
)
def test_which_word_is_the_program(line: str, executable: str) -> None:
    assert split(line).executable == executable


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "nothing to run"),
        ("--verify", "nothing to run"),
        ("-m m.gguf", "-m: not a flag of autolayers run"),
        ("docker run --rm", "docker run: no image"),
        ("m.gguf -c 8k", "m.gguf is a model, not a program: autolayers run "),
        ("'llama-server -m m.gguf'", "remove the quotes"),
    ],
)
def test_commands_that_are_none(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(line)


def test_a_command_in_a_container_is_split() -> None:
    command = split(
        "docker run --rm -it --gpus all -p 8080:8080 -e A=b -v /data/m:/models:ro --mount "
        "type=bind,src=/d,dst=/draft "
        "--shm-size=1g ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/x/y.gguf -c 9"
    )
    assert command.launcher[-1].endswith(":server-cuda") and command.words == (
        "-m",
        "/models/x/y.gguf",
        "-c",
        "9",
    )
    assert command.container and command.program == "llama-server"
    assert (
        command.here("/models/x/y.gguf") == "/data/m/x/y.gguf"
        and command.here("/draft/a") == "/d/a"
    )
    assert command.here("/modelsx/y") == "/modelsx/y"
    full = split(
        "podman run -v C:/models:/m --entrypoint /app/llama-cli image llama-bench -m /m/a.gguf"
    )
    assert full.program == "llama-bench" and full.here("/m/a.gguf") == "C:/models/a.gguf"
    assert split("docker run image -- -m a").words == ("-m", "a")


def test_the_environment_that_a_command_sets_is_read() -> None:
    assert split("env LLAMA_ARG_CTX_SIZE=9 A=b llama-server -m m").environ == {
        "LLAMA_ARG_CTX_SIZE": "9"
    }
    assert split("docker run -e LLAMA_ARG_X=1 --env=LLAMA_ARG_Y=a=b image -m m").environ == {
        "LLAMA_ARG_X": "1",
        "LLAMA_ARG_Y": "a=b",
    }


# --- adding the plan


def test_adds_what_is_not_there_and_changes_nothing() -> None:
    assert (
        whole(
            "llama-server -m m.gguf --port 80 --n-gpu-layers 5 --new-flag x",
            "-ngl 5 -c 8192 -np 1 -ts 3,1",
        )
        == "llama-server -m m.gguf --port 80 --n-gpu-layers 5 --new-flag x -c 8192 -np 1 -ts 3,1"
    )


def test_says_what_only_the_environment_says() -> None:
    assert (
        whole("llama-server -m m", "-ngl 5 -c 64", LLAMA_ARG_CTX_SIZE="64")
        == "llama-server -m m -ngl 5 -c 64"
    )


def test_what_adds_up_is_not_said_twice() -> None:
    assert (
        whole("llama-server -m m --rpc a:1", "--rpc a:1 -ngl 2")
        == "llama-server -m m --rpc a:1 -ngl 2"
    )
    assert (
        whole("llama-server -m m", "--rpc a:1 -ngl 2", LLAMA_ARG_RPC="a:1")
        == "llama-server -m m -ngl 2"
    )
    assert whole("llama-server -m m --lora x", "--lora x") == "llama-server -m m --lora x"


def test_overrides_beyond_the_given_ones_are_added() -> None:
    assert (
        whole("llama-server -m m -ot a=CPU", "-ot a=CPU -ncmoe 2")
        == "llama-server -m m -ot a=CPU -ncmoe 2"
    )
    assert whole("llama-server -m m -ncmoe 2", "-ncmoe 2") == "llama-server -m m -ncmoe 2"
    assert whole("llama-server -m m", "-ncmoe 3", LLAMA_ARG_N_CPU_MOE="3") == "llama-server -m m"
    assert (
        whole("llama-server -m m -ot b=CPU", "-ot a=CPU,b=CPU")
        == "llama-server -m m -ot b=CPU -ot a=CPU"
    )


def test_old_builds_get_words_that_they_know() -> None:
    assert (
        whole("llama-server -m m", "-ngl 5 -fa on -kvu -ncmoe 3", Build(5000))
        == "llama-server -m m -ngl 5 -fa"
    )
    assert whole("llama-server -m m", "-ngl 5 -fa off", Build(5000)) == "llama-server -m m -ngl 5"
    command = split("llama-server -m m")
    assert additions(command, ["-ncmoe", "3"], Build(5000), {}) == (
        [],
        ["this llama.cpp does not know -ot: left out"],
    )
    exps = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    assert additions(command, ["-ncmoe", "2"], Build(6000), {}) == (
        ["-ot", rf"blk\.0{exps},blk\.1{exps}"],
        [],
    )
    helped = Build(0, "", frozenset({"-ngl", "-fa"}), True)
    assert (
        whole("llama-server -m m", "-ngl 5 -fa on -kvu", helped)
        == "llama-server -m m -ngl 5 -fa on"
    )


@pytest.mark.parametrize(
    ("number", "slots", "bare"),
    [(0, 4, False), (3000, 1, True), (6500, 1, False), (10900, 4, False)],
)
def test_each_build_has_its_own_defaults(number: int, slots: int, bare: bool) -> None:
    assert (Build(number).default_slots, Build(number).bare_flash) == (slots, bare)


def test_each_build_knows_its_own_flags() -> None:
    assert [Build(n).knows("--mlock") for n in (9000, 10884, 0)] == [True, False, False]
    assert [Build(n).knows("--n-cpu-moe") for n in (6000, 6100, 0)] == [False, True, True]
    assert Build(5).knows("-ngl")


def test_help_texts_of_builds_are_read() -> None:
    new = (
        "-ngl,  --gpu-layers, --n-gpu-layers N   max. number\n-fa,   --flash-attn [on|off|auto]    "
        "   set\n"
        "-lv,   --verbosity N   Values:\n                                         - 3: info\n"
        "                              - 4: trace (more info)\n"
        "-kvo,  --kv-offload, -nkvo, --no-kv-offload\n                   whether --not-a-flag\n"
    )
    names, flash, trace = read_help(new)
    assert (
        names is not None
        and {"-ngl", "--n-gpu-layers", "-nkvo", "--no-kv-offload"} <= names
        and "--not-a-flag" not in names
    )
    assert flash and trace
    old = (
        "-ngl,  --gpu-layers N   number of layers\n-fa,   --flash-attn   enable Flash Attention "
        "(default: disabled)\n"
    )
    assert read_help(old)[1:] == (False, False)
    assert read_help("usage: cat [FILE]\n--help  this\n") == (None, None, None)


# --- other programs


def test_other_programs_run_one_sequence() -> None:
    assert parse(split("llama-cli -m m").plannable).params == Params(n_parallel=1, model="m")
    assert parse(split("llama-server -m m").plannable).params == Params(model="m")
    assert parse(split("./serve.sh -m m").plannable).params == Params(model="m")


def test_bench_speaks_differently() -> None:
    command = split(
        "llama-bench -m m.gguf -p 512,2048 -n 64 -d 0,4096 -ngl 10,20 -nkvo 1 -fa 1 -ts 3/1 -r 5 "
        "-o md -mmp 0"
    )
    assert parse(command.plannable).params == Params(
        n_parallel=1,
        model="m.gguf",
        n_ctx=2048 + 4096,  # each test has a context of its own
        n_gpu_layers=10,
        kv_offload=False,
        flash_attn="on",
        tensor_split=(3.0, 1.0),
    )
    bench = split("llama-bench -m m.gguf")
    added, _ = additions(
        bench,
        shlex.split("-ngl 5 -c 640 -np 1 -ts 3,1 -ot a=CPU,b=CUDA0 -fa on -dev CUDA0,CUDA1"),
        Build(),
        {},
    )
    assert added == ["-ngl", "5", "-ts", "3/1", "-dev", "CUDA0/CUDA1", "-ot", "a=CPU;b=CUDA0"]


@pytest.mark.parametrize(
    ("words", "n_ctx", "n_ubatch"),
    [
        ("", 512, None),
        ("-p 64 -n 1000", 1000, None),
        ("-p 0 -n 16 -pg 900,100 -pg 10,20", 1000, None),
        ("-p 128 --n-prompt 256-2048*2 -d 1024", 3072, None),
        ("-p 512 -n 0 -ub 256,1024 -ub 512", 512, 1024),
    ],
)
def test_a_bench_is_planned_for_its_largest_test(
    words: str, n_ctx: int, n_ubatch: int | None
) -> None:
    params = parse(split(f"llama-bench -m m {words}").plannable).params
    assert (params.n_ctx, params.n_ubatch) == (n_ctx, n_ubatch)
