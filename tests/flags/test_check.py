"""A misspelt flag would be ignored in silence.

Flags that nobody knows are refused, wherever words are read, and named after the nearest that
somebody does.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import HEADERS, gpus, model

import autolayers
from autolayers.cli import main
from autolayers.errors import UsageError
from autolayers.flags.check import nearest, read
from autolayers.flags.own import COMMANDS, Command
from autolayers.launch import command as commands

MODEL = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
PASS_ON = " (--strict-flags off passes on what a newer llama.cpp may know)"


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        (
            "plan",
            "m --gup 24GiB",
            "--gup is no flag of autolayers MODEL; did you mean --gpu?" + PASS_ON,
        ),
        (
            "plan",
            "m -gpu 24GiB",
            "-gpu is no flag of autolayers MODEL; did you mean --gpu?" + PASS_ON,
        ),
        (
            "plan",
            "m --n-gpu-layer 5",
            "--n-gpu-layer is no flag of autolayers MODEL; did you mean --n-gpu-layers?" + PASS_ON,
        ),
        (
            "plan",
            "m --CTX-SIZE 5",
            "--CTX-SIZE is no flag of autolayers MODEL; did you mean --ctx-size?" + PASS_ON,
        ),
        (
            "plan",
            "m --colour always",
            "--colour is no flag of autolayers MODEL; did you mean --color?" + PASS_ON,
        ),
        ("plan", "m -c=8192", "-c=8192: write -c 8192"),
        (
            "plan",
            "m --vram 24GiB",
            "--vram is no flag of autolayers MODEL; did you mean --gpu?" + PASS_ON,
        ),
        (
            "plan",
            "m --gup=24GiB",
            "--gup is no flag of autolayers MODEL; did you mean --gpu?" + PASS_ON,
        ),
        ("plan", "--zzz", "--zzz is no flag of autolayers MODEL: see autolayers --help" + PASS_ON),
        (
            "plan",
            "m --gpus 24GiB",
            "--gpus is no flag of autolayers MODEL: sweep has it; did you mean --gpu?",
        ),
        ("plan", "m --retry 3 --verify", "--retry is no flag of autolayers MODEL: run has it"),
        ("sweep", "m --retry 2", "--retry is no flag of autolayers sweep: run has it"),
        (
            "sweep",
            "m --ctx 8k",
            "--ctx is no flag of autolayers sweep: plan, run, ollama, choose, cluster, prove and "
            "tune have it",
        ),
        (
            "inspect",
            "m --foo",
            "--foo is no flag of autolayers inspect: see autolayers inspect --help" + PASS_ON,
        ),
        ("inspect", "m --verify", "--verify is no flag of autolayers inspect: run has it"),
        (
            "devices",
            "--threads 8",
            "--threads is no flag of autolayers devices: see autolayers devices --help",
        ),
        ("rules", "--param 7B", "--param is no flag of autolayers rules; did you mean --params?"),
        (
            "ollama plan",
            "m --buget CUDA0=1GiB",
            "--buget is no flag of autolayers ollama plan; did you mean --budget?" + PASS_ON,
        ),
        (
            "ollama create",
            "m --in-place",
            "--in-place is no flag of autolayers ollama create: ollama modelfile has it",
        ),
    ],
)
def test_the_line_names_the_flag_and_the_way_out(command: str, words: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        read(command, words.split())
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        (
            "plan",
            "m -c 8192 --ctx 4096",
            "-c 8192 and --ctx 4096 both set the context: give one of them",
        ),
        (
            "plan",
            "m -c 8192 --ctx max",
            "-c 8192 and --ctx max both set the context: give one of them",
        ),
        (
            "plan",
            "m --ctx-min 9000 -c 4096",
            "--ctx-min 9000 is more than the requested context, 4096",
        ),
        (
            "plan",
            "m --ctx-min 9000 --ctx 4k",
            "--ctx-min 9000 is more than the requested context, 4096",
        ),
        ("plan", "m -m other", "m and -m other are two models: give one of them"),
        (
            "plan",
            "llama-server -m other",
            "llama-server is a program: autolayers run llama-server -m other",
        ),
        ("plan", "m -hf me/other", "m and -hf me/other are two models: give one of them"),
        (
            "plan",
            "m --margin 1GiB -fitt 512",
            "--margin and -fitt both set the margins: give one of them",
        ),
        (
            "sweep",
            "m --margin 1GiB --fit-target 512",
            "--margin and -fitt both set the margins: give one of them",
        ),
        (
            "plan",
            "m --kv-types f16,q8_0 -ctv q8_0",
            "--kv-types and -ctk both set the cache types: give one of them",
        ),
        ("sweep", "m -m other", "m and -m other are two models: give one of them"),
        ("cluster", "boxes.json m -m other", "m and -m other are two models: give one of them"),
        ("inspect", "m -m other", "m and -m other are two models: give one of them"),
        ("plan", "m --json -q", "--json and -q contradict each other: give one of them"),
        (
            "plan",
            "m --format docker --json",
            "--format and --json contradict each other: give one of them",
        ),
    ],
)
def test_contradictions_are_named(command: str, words: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        read(command, words.split(), {"LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_MODEL": "third"})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("command", "words", "meant"),
    [
        ("plan", "--ctx 32", "32k"),
        ("plan", "--ctx 511", "511k"),
        ("plan", "--ctx-min 8", "8k"),
        ("run", "--ctx 128", "128k"),
        ("choose", "--ctx 8", "8k"),
        ("sweep", "--contexts 4096,32", "32k"),
        ("plan", "--users 2 --ctx-per-user 16", "16k"),
        ("ollama plan", "--num-ctx 32", "32k"),
        ("plan", "--ctx 512", ""),
        ("plan", "--ctx 32k", ""),
        ("ollama plan", "--num-ctx 0", ""),
        ("plan", "-c 32", ""),
    ],
)  # -c is llama-server's
def test_a_context_of_a_few_tokens_is_asked_back(command: str, words: str, meant: str) -> None:
    if meant:
        with pytest.raises(UsageError, match=rf"expected 512 tokens or more: {meant}\?"):
            read(command, ["m", *words.split()])
    else:
        read(command, ["m", *words.split()])


@pytest.mark.parametrize("flag", ["--ram", "--margin", "--budget CUDA0="])
def test_a_size_has_its_unit(flag: str) -> None:
    """A few bytes are GiB or MiB that were meant."""
    for size, meant in (
        ("32", "32GiB"),
        ("1.5", "1.5GiB"),
        ("512", "512GiB or 512MiB"),
        ("2048", "2048MiB"),
        ("0", ""),
        ("34359738368", ""),
        ("2048MiB", ""),
        ("2048MB", ""),
    ):
        words = ["m", *(flag + size if flag.endswith("=") else f"{flag} {size}").split()]
        if not meant:
            read("plan", words)
        else:
            with pytest.raises(
                UsageError,
                match=rf"{size}'?: expected a size with its unit: "
                rf"{meant}\?",
            ):
                read("plan", words)


@pytest.mark.parametrize(
    "words",
    [
        "m --ctx 4096",
        "m --ctx 4096 -c 4k",
        "m -m m",
        "m --json --format json",
        "m --ctx 8k --ctx 4k",
        "m --ctx-min 512",
    ],
)
def test_what_says_the_same_twice_or_overrules_a_variable_is_none(words: str) -> None:
    read("plan", words.split(), {"LLAMA_ARG_CTX_SIZE": "4096", "LLAMA_ARG_MODEL": "third"})


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        ("-ncmoe 5", "the model has no experts"),
        ("-cmoe", "the model has no experts"),
        ("-ts 1,2,3", "-ts has 3 shares for 1 device: the last ones change nothing"),
        ("--ctx-min 200000", "more than the 131072 the model was trained for"),
        ("--ctx max", None),
        ("", None),
        ("-ts 1", None),
        ("-ot blk=CPU,foo=CUDA0", "-ot foo=...: no tensor of this model has such a name"),
        ("-ncffn 99", None),
        (
            "-c 8k --workload agent",
            "a slot's context of 8192 is less than the 32768 that --workload takes",
        ),
        ("-c 8k --workload 4k+512@16k", "less than the 20992"),
        ("-c 1k --workload chat", None),
    ],
)
def test_words_that_change_nothing_are_named(words: str, warning: str | None) -> None:
    plan = autolayers.plan(model("llama-3.2-1b-q8_0"), words.split(), devices=gpus(24576))
    found = [line for line in plan.warnings if "incomplete" not in line]
    assert len(found) == bool(warning) and all(str(warning) in line for line in found)
    assert "experts" not in plan.placement


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        ("-ts 1,2", "-ts has 2 shares for 3 devices: CUDA2 gets nothing"),
        ("-ts 1", "-ts has 1 share for 3 devices: CUDA1, CUDA2 get nothing"),
        ("-ts 1,2 -dev CUDA0,CUDA1", None),
        ("-ts 1,2,3", None),
        ("-ts 1,2 -sm none", None),
        ("-ts 1,0,0", None),
    ],
)
def test_a_split_that_leaves_devices_out(words: str, warning: str | None) -> None:
    plan = autolayers.plan(model("llama-3.2-1b-q8_0"), words.split(), devices=["24GiB"] * 3)
    assert [line for line in plan.warnings if "-ts" in line] == ([warning] if warning else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mmproj MODEL", "not a projector"),
        ("--lora MODEL", "not an adapter"),
        ("--control-vector MODEL", "not a control vector"),
    ],
)
def test_files_in_the_wrong_place_are_refused(words: str, message: str) -> None:
    with pytest.raises(autolayers.LaunchRefused, match=message):
        autolayers.plan(
            MODEL, [word.replace("MODEL", MODEL) for word in words.split()], devices=["24GiB"]
        )


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS.values() if command.llama], ids=lambda c: c.name
)
def test_what_a_newer_llama_cpp_may_know_passes_where_it_is_asked_for(command: Command) -> None:
    words = ["m", "--strict-flags", "off", "--brand-new", "7", "-c", "8k"]
    arguments = read(command.name, words)
    assert arguments.rest == ("--brand-new", "7") and arguments.positional == ("m",)
    with pytest.raises(UsageError, match="--retry is no flag"):
        read(command.name, ["m", "--strict-flags", "off", "--retry", "7"])


def test_flags_that_touch_no_memory_pass_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MODEL, "--gpu", "24GiB", "--port", "80", "--jinja", "-t", "4"]) == 0
    assert capsys.readouterr().out == "-ngl 17 -c 131072 -t 4 --port 80 --jinja\n"
    assert main([MODEL, "--gpu", "24GiB", "--strict-flags", "off", "--brand-new", "x"]) == 0
    assert capsys.readouterr().out == "-ngl 17 -c 131072 --brand-new x\n"


def test_the_library_refuses_them_too() -> None:
    found = model("llama-3.2-1b-q8_0")
    with pytest.raises(UsageError, match="--typo is no flag"):
        autolayers.plan(found, ["--typo", "x"], devices=gpus(24576))
    with pytest.raises(UsageError, match="--retry is no flag of autolayers MODEL: run has it"):
        autolayers.plan(found, ["--retry", "2"], devices=gpus(24576))
    assert (
        autolayers.plan(
            found, ["--strict-flags", "off", "--typo", "x"], devices=gpus(24576)
        ).n_gpu_layers
        == 17
    )


@pytest.mark.parametrize(
    ("model", "words", "devices"),
    [
        (None, [], ["24GiB"]),
        (7, [], ["24GiB"]),
        (MODEL, "-c 8192", ["24GiB"]),
        (MODEL, ["-c", 8192], ["24GiB"]),
        (MODEL, None, ["24GiB"]),
        (MODEL, {"-c": "8192"}, ["24GiB"]),
        (MODEL, [], [24]),
        (MODEL, [], [MODEL]),
    ],
)
def test_the_library_says_what_it_takes(model: Any, words: Any, devices: Any) -> None:
    with pytest.raises(UsageError):
        autolayers.plan(model, words, devices=devices)
    with pytest.raises(UsageError):
        autolayers.plan_together([model, model], words, devices=devices)


@pytest.mark.parametrize(
    ("models", "words", "devices", "weights", "message"),
    [
        ([MODEL], ["--gpu", "24GiB"], ["12GiB"], (), "--gpu and devices= both set the devices"),
        ([MODEL], [], autolayers.Device.hypothetical("24GiB"), (), "devices are a list"),
        ([MODEL], ["--machine", "box.json"], [], (), "--machine and devices= both set the devices"),
        (MODEL, [], ["24GiB"], (), "models are a list"),
        ([MODEL, MODEL], [], ["24GiB"], (1,), "a number above 0 for each of the 2 models"),
        ([MODEL, MODEL], [], ["24GiB"], (1, -1), "a number above 0 for each of the 2 models"),
    ],
)
@pytest.mark.parametrize("ask", [autolayers.plan_together, autolayers.plan_groups])
def test_the_library_says_what_it_takes_of_several(
    ask: Any, models: Any, words: Any, devices: Any, weights: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ask(models, words, devices=devices, weights=weights)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--gup 24GiB llama-server -m m",
            "--gup is no flag of autolayers run; did you mean --gpu?",
        ),
        (
            "--plot llama-server -m m",
            "--plot is no flag of autolayers run: sweep and measured have it",
        ),
        (
            "llama-server -m m --gpu 12GiB --dry-run",
            "--gpu is autolayers' own flag: write it before llama-server",
        ),
        (
            "./serve.sh -m m --dry_run",
            "--dry_run is autolayers' own flag: write it before serve.sh",
        ),
        (
            "docker run image -m m --retry=2",
            "--retry is autolayers' own flag: write it before llama-server",
        ),
        (
            "llama-bench -m m --verify",
            "--verify is autolayers' own flag: write it before llama-bench",
        ),
        (
            "llama-server -m m -c 12x -c 99999M",
            "-c '99999M': expected a number of tokens such as 8192 or 16k, 0 to 2147483647",
        ),
    ],
)
def test_run_knows_its_own_flags_on_both_sides_of_the_program(line: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        commands.read(shlex.split(line))
    assert str(error.value) == message


def test_the_value_of_a_flag_is_no_flag() -> None:
    assert commands.read(["llama-server", "-m", "m", "-p", "--dry-run"]).words == (
        "-m",
        "m",
        "-p",
        "--dry-run",
    )
    assert read("plan", ["m", "-p", "--retry", "--", "--odd.gguf"]).positional == (
        "m",
        "--odd.gguf",
    )


@pytest.mark.parametrize("name", ["gpu", "--xyzzy", "-", "--"])
def test_nothing_is_near_to_what_is_far(name: str) -> None:
    assert nearest(name, ["--gpu", "--ram"]) in (None, "--gpu")


@given(
    st.sampled_from([*COMMANDS]),
    st.lists(
        st.text(max_size=6)
        | st.sampled_from(
            [
                "--",
                "-c",
                "--gpu",
                "24GiB",
                "8k",
                "--strict-flags",
                "off",
                "--ctx=1M",
                "--budget",
                "CUDA0=1G",
                "--json",
                "-q",
            ]
        ),
        max_size=8,
    ),
)
def test_any_words_are_read_or_refused(command: str, words: list[str]) -> None:
    try:
        arguments = read(command, words)
    except UsageError as error:
        assert str(error)
    else:
        assert not arguments.unknown or arguments.own["strict-flags"] == "off"


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("plan", "--budget"),
        ("plan", "--kv-types"),
        ("plan", "--margin"),
        ("sweep", "--contexts"),
        ("sweep", "--gpus"),
        ("sweep", "--types"),
        ("devices", "--rpc"),
    ],
)
def test_an_empty_list_is_no_value(command: str, flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag} '': expected"):
        read(command, [flag, ""])


# --- contexts


def test_contexts_are_read_as_people_write_them() -> None:
    assert read("plan", ["m", "--ctx", "16k", "--ctx-min", "4K"]).own == {
        "ctx": 16384,
        "ctx-min": 4096,
    }
    assert read("plan", ["m", "--ctx", "1M"]).own == {"ctx": 1 << 20}
    assert read("sweep", ["m", "--contexts", "8192,16k,1m"]).own == {
        "contexts": (8192, 16384, 1 << 20)
    }
    assert read("ollama plan", ["m", "-c", "64k"]).own == {"num-ctx": 65536}


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("-c 16k", "n_ctx", 16384),
        ("--ctx-size=32K", "n_ctx", 32768),
        ("-c 0k", "n_ctx", 0),
        ("-fitc 8k", "fit_ctx", 8192),
        ("--yarn-orig-ctx 1M", "yarn_orig_ctx", 1 << 20),
    ],
)
def test_llama_server_s_contexts_may_be_16k(words: str, field: str, value: int) -> None:
    arguments = read("plan", words.split())
    assert getattr(arguments.params, field) == value and arguments.given[0][1] == str(value)


def test_what_llama_server_gets_is_a_number() -> None:
    """It would read 16 of 16k."""
    assert commands.read(shlex.split("llama-server -m m -c 16k --fit-ctx=8k -p 4k")).words == (
        "-m",
        "m",
        "-c",
        "16384",
        "--fit-ctx",
        "8192",
        "-p",
        "4k",
    )
    with pytest.raises(UsageError, match="LLAMA_ARG_CTX_SIZE '16k': expected a whole number"):
        read("plan", ["m"], {"LLAMA_ARG_CTX_SIZE": "16k"})


@pytest.mark.parametrize("text", ["k", "16kk", "1.5k", "-1k", "16 k", "3000M", "١k", "16g"])
def test_contexts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="expected a number of tokens such as 8192 or 16k"):
        read("plan", ["m", "--ctx-min", text])
