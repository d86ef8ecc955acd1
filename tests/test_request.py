"""One command would plan for another machine than the next, by the same words.

The same words are the same machine, notes and refusals, whichever command reads them.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import HEADERS, few_rows, model, slow

import autolayers
from autolayers.builds import TODAY, Build
from autolayers.builds.sources import following, preceding
from autolayers.cli import main
from autolayers.errors import AutolayersError, UsageError
from autolayers.flags.table import ARGUMENTS, GONE, LEGACY, PROGRAMS
from autolayers.request import Request
from autolayers.web.engine import BUNDLED, Engine

MODEL = "llama-3.2-1b-q8_0"
FILE = str(HEADERS / f"{MODEL}.gguf")
GiB = 1 << 30


class Asked:
    """What a command answers: its exit code, its texts, and what it made of the words."""

    def __init__(self, code: int, notes: str, answer: Any) -> None:
        self.code, self.notes, self.answer = code, notes, answer


def of_command(before: str, after: str = "") -> Callable[[str, str, Any], Asked]:
    """Runs `autolayers BEFORE OWN MODEL AFTER LLAMA`, MODEL where the words have it."""

    def ask(own: str, llama: str, capsys: Any) -> Asked:
        line = f"{before} {own} {after} {llama}" if after else f"{before} {own} {llama}"
        code = main([FILE if word == "MODEL" else word for word in shlex.split(line)])
        said = capsys.readouterr()
        answer = json.loads(said.out) if said.out[:1] in ("{", "[") else shlex.split(said.out)
        return Asked(code, said.err + said.out, answer)

    return ask


def of_library(own: str, llama: str, capsys: Any) -> Asked:
    try:
        plan = autolayers.plan(model(MODEL), shlex.split(f"{own} {llama}"))
    except AutolayersError as error:
        return Asked(error.exit_code, str(error), None)
    return Asked(0, " ".join(plan.warnings), plan.to_dict())


def of_page(own: str, llama: str, capsys: Any) -> Asked:
    answer = Engine(here=True).call("plan", {"model": BUNDLED + MODEL, "flags": f"{own} {llama}"})
    if "error" in answer:
        return Asked(2, answer["error"], None)
    return Asked(0, " ".join(answer["plan"]["warnings"]), answer["plan"])


FRONT_DOORS: dict[str, Callable[[str, str, Any], Asked]] = {
    "library": of_library,
    "page": of_page,
    "plan": of_command("MODEL --json"),
    "several": of_command("MODEL --swap --json"),
    "run": of_command("run --dry-run", "llama-server -m MODEL"),
    "sweep": of_command("sweep MODEL --json --types f16"),
    "choose": of_command("choose MODEL --json"),
    "ollama plan": of_command("ollama plan MODEL --json"),
}
# what they plan is not what the words alone are planned as
OWN_FLAGS = ("choose", "ollama plan")
EVERY = pytest.mark.parametrize("door", FRONT_DOORS)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings, no servers, and no llama-server that could be asked."""
    for name in [name for name in os.environ if name.startswith(("LLAMA_", "OLLAMA_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    (tmp_path / "llama-server").write_text("#!/bin/sh\n")
    (tmp_path / "llama-server").chmod(0o755)


@cache
@cache
def planned(*words: str) -> autolayers.Plan:
    return autolayers.plan(model(MODEL), list(words))


def first(answer: Any, key: str) -> Any:
    """The first value of that name anywhere in a JSON document."""
    if isinstance(answer, dict) and key in answer:
        return answer[key]
    values = (
        answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    )
    return next((found for value in values if (found := first(value, key)) is not None), None)


@EVERY
@pytest.mark.parametrize("source", [slow("--gpu 2GB"), slow("--machine FILE")])
def test_the_machine_is_the_same(
    door: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = tmp_path / "machine.json"
    machine.write_text(
        json.dumps({"devices": [{"name": "CUDA0", "total": 2 * GiB, "free": 2 * GiB}]})
    )
    own = f"{source.replace('FILE', str(machine))} --ram 16GiB --budget CUDA0=1GiB"
    want = planned("--gpu", "2GB", "--ram", "16GiB", "--budget", "CUDA0=1GiB", "-c", "8192")
    assert (want.devices[0].free, want.host.free) == (GiB, 14 * GiB) and want.n_gpu_layers < 17
    if door == "page" and "--machine" in source:
        answer = Engine().call(
            "plan",
            {
                "model": BUNDLED + MODEL,
                "machine": machine.read_text(),
                "flags": "--ram 16GiB --budget CUDA0=1GiB -c 8192",
            },
        )
        asked = Asked(0, "", answer["plan"])
    else:
        asked = FRONT_DOORS[door](own, "-c 8192", capsys)
    assert asked.code == 0
    if door == "run":
        assert set(want.flags) <= set(asked.answer)
        return
    devices = first(asked.answer, "devices")
    assert (
        devices["CUDA0"]["free"] == GiB
        if isinstance(devices, dict)
        else [(device["name"], device["free"]) for device in devices] == [("CUDA0", GiB)]
    )
    if door not in OWN_FLAGS:
        assert tuple(first(asked.answer, "flags")) == want.flags


@pytest.mark.slow
@EVERY
def test_what_is_said_of_the_machine_is_the_same(
    door: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = FRONT_DOORS[door]("--gpu m2-8g --ram 16GB", "-c 8192", capsys)
    assert (
        "--ram 16.00 GiB: a machine with this GPU counts 8192.00 MiB, which the GPU shares"
        in asked.notes
    )


@EVERY
@pytest.mark.parametrize(
    ("own", "llama", "line"),
    [
        (
            "--gpu 8GiB --machine m.json",
            "",
            "--machine and --gpu both set the devices: give one of them",
        ),
        (
            "--gpu 8GiB --budget CUDA1=1GiB",
            "",
            "--budget: there is no device CUDA1 (devices: CUDA0)",
        ),
        ("--gpu 8GiB --margin 1GiB,1GiB", "", "--margin has 2 sizes for 1 device"),
        (
            "--gpu 8GiB --llama-build b9100",
            "--kv-unified-per-slot 4096",
            "b9100 has no --kv-unified-per-slot, which came with b10662 (--strict-flags off passes "
            "it "
            "on)",
        ),
        (
            "--gpu 8GiB --llama-build b5000",
            "--swa-full --cache-ram 100",
            "b5000 has no --swa-full, which came with b5427 (--strict-flags off passes it on)",
        ),
        (
            "--gpu 8GiB --llama-build b9000",
            "--cors-origins x",
            "b9000 has no --cors-origins, which came with b10012 (--strict-flags off passes it on)",
        ),
        ("--gpu 8GiB", "--mmproj none.gguf", "none.gguf: no such file"),
    ],
)
def test_refusals_are_the_same(
    door: str, own: str, llama: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if door == "page" and "--machine" in own:
        line = "--machine reads a file of the machine that serves this page: open it in the page"
    asked = FRONT_DOORS[door](own, llama, capsys)
    assert asked.code == (3 if "mmproj" in llama and door != "page" else 2)
    assert line in asked.notes


@pytest.mark.slow
@EVERY
def test_what_a_build_lacks_is_passed_on_where_that_is_wanted(
    door: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "--gpu 8GiB --llama-build b9100 --strict-flags off"
    asked = FRONT_DOORS[door](own, "--kv-unified-per-slot 4096", capsys)
    assert asked.code == 0
    assert "b9100 has no --kv-unified-per-slot, which came with b10662: passed on" in asked.notes


@pytest.mark.parametrize("config", [False, True])
def test_what_a_build_ignores_changes_nothing_and_is_named(config: bool, tmp_path: Path) -> None:
    """llama.cpp ignores variables, and keys of its config files, that it does not know."""
    environ: Mapping[str, str] = {"XDG_CONFIG_HOME": str(tmp_path)}
    name = "LLAMA_ARG_KV_UNIFIED_PER_SLOT"
    if config:
        (tmp_path / "llama.cpp").mkdir()
        (tmp_path / "llama.cpp" / "config.ini").write_text(
            "kv-unified-per-slot = 4096\nctx-size = 8192\n"
        )
        name = f"{tmp_path}/llama.cpp/config.ini: kv-unified-per-slot"
    else:
        environ = {**environ, name: "4096", "LLAMA_ARG_CTX_SIZE": "8192"}
    words = ["--gpu", "8GiB", "--llama-build", "b9100"]
    asked = Request.of(words, environ)
    assert (asked.params.kv_unified_per_slot, asked.params.n_ctx) == (None, 8192)
    assert asked.notes == (
        f"{name} is ignored: b9100 has no --kv-unified-per-slot, which came with b10662",
    )
    assert asked.arguments.given == (("-c", "8192"),)
    today = Request.of(words[:2], environ)
    assert today.params.kv_unified_per_slot == 4096 and today.notes == ()


@pytest.mark.parametrize(
    ("words", "printed"),
    few_rows(
        2,
        [
            ("-lm none --llama-build b9000", "--no-mmap"),
            ("--no-mmap --llama-build b11549", "-lm none"),
            ("-cmoe --llama-build b5100", r"-ot \.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"),
        ],
    ),
)
def test_what_a_build_says_otherwise_is_written_so(words: str, printed: str) -> None:
    plan = autolayers.plan(model("qwen3-30b-a3b-q4_k_m"), [*words.split(), "--gpu", "24GiB"])
    assert printed in " ".join(plan.flags) and not any("has no" in line for line in plan.warnings)


def test_a_program_gets_its_words_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """What a plan would say otherwise is refused among the words of a command."""
    line = "run --dry-run --gpu 24GiB --llama-build b9000 llama-server -m"
    assert main([*line.split(), FILE, "-lm", "none"]) == 2
    assert "b9000 has no -lm, which came with b10108" in capsys.readouterr().err


def test_today_and_whoever_is_asked_refuse_nothing_new() -> None:
    for row in (*LEGACY, *ARGUMENTS):
        for name in (*row.names, *row.negated):
            assert TODAY.lacks(name) == "" == Build(9999, flags=frozenset([name])).lacks(name)


def test_a_row_refuses_from_the_next_build_whose_source_was_seen() -> None:
    """Between that one and the row's own it is not known whether the build has the flag."""
    rows = [row for row in (*LEGACY, *ARGUMENTS) if row.first > 9093 or row.last]
    assert len(rows) > 30
    for row in rows:
        if row.first > 9093:
            before, name = preceding(row.first), row.canonical
            assert (
                Build(before).lacks(name)
                == f"b{before} has no {name}, which came with b{row.first}"
            )
            assert all(Build(n).lacks(name) == "" for n in (before + 1, row.first))
        if row.last:
            after, name = following(row.last), row.canonical
            when = "" if row.last == GONE else f", which went after b{row.last}"
            assert Build(after).lacks(name) == f"b{after} has no {name}{when}"
            assert all(Build(n).lacks(name) == "" for n in (after - 1, row.last))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("-i", "-i is a flag of llama-completion, not of llama-server"),
        ("-p hello", "-p is a flag of llama-cli and llama-completion, not of llama-server"),
        ("--ppl", "--ppl is a flag of llama-imatrix, not of llama-server"),
        ("-dkvc", "today's llama.cpp has no -dkvc"),
        ("-cd 4096", "today's llama.cpp has no -cd, which went after b9101"),
        ("--engine llama-completion --port 80", "--port is a flag of llama-server, not of llama-c"),
    ],
)
def test_what_no_build_of_the_program_has_is_refused(words: str, why: str) -> None:
    """Whether a build is named or not: the command would stop the program at once."""
    for build in ([], ["--llama-build", "11549"]):
        line = ["--gpu", "8GiB", *words.split(), *build]
        with pytest.raises(UsageError, match=why.replace("today's llama.cpp", ".*")):
            Request.of(line)
        assert words.split()[-1] in Request.of([*line, "--strict-flags", "off"]).arguments.rest


def test_a_removed_flag_becomes_the_one_that_took_its_place() -> None:
    words = ["--gpu", "8GiB", "--draft-min", "2"]
    assert Request.of(words).arguments.rest == ("--spec-draft-n-min", "2")
    old = Request.of([*words, "--llama-build", "9093"])
    assert old.arguments.rest == ("--draft-min", "2")


def test_other_programs_keep_their_flags() -> None:
    for engine, words in (
        ("llama-completion", "-i -p hello"),
        ("llama-perplexity", "-f x --hellaswag"),
        ("llama-cli", "-p hello -st"),
        ("ik_llama.cpp", "-p hello"),
    ):
        asked = Request.of(["--gpu", "8GiB", "--engine", engine, *words.split()])
        assert asked.arguments.rest == tuple(words.split())


def test_each_row_is_of_programs_that_there_are() -> None:
    rows = [row for row in (*ARGUMENTS, *LEGACY) if row.of]
    assert len(rows) > 200 and {name for row in rows for name in row.of} == PROGRAMS
    # a launch that touches memory is llama-server's, but for --perplexity of old
    assert all(row.is_of("server") for row in rows if row.field)
    now = {row.now for row in (*ARGUMENTS, *LEGACY)} - {""}
    assert now <= {name for row in ARGUMENTS for name in row.names if not row.last}


def test_devices_and_words_do_not_both_say_the_machine() -> None:
    for words in (["--gpu", "8GiB"], ["--machine", "m.json"]):
        with pytest.raises(UsageError, match=f"{words[0]} and devices= both set the devices"):
            Request.of(words, devices=["24GiB"])


def test_other_flags_and_other_memory_leave_the_rest() -> None:
    asked = Request.of(
        ["--gpu", "8GiB", "--ram", "16GiB", "--backend", "vulkan", "--budget", "Vulkan0=4GiB"]
    )
    (device,) = asked.machine.devices
    assert device.name == "Vulkan0" and asked.machine.limits == {"Vulkan0": 4 * GiB}
    less = asked.on([autolayers.Device("Vulkan0", 8 * GiB, 3 * GiB)], None)
    assert less.machine.limits == {"Vulkan0": 3 * GiB} and less.machine.ram is None
    again = less.asking(asked.arguments)
    assert again.machine == less.machine and again.policy == asked.policy
    assert asked.asking(asked.arguments) == asked and device.backend == "Vulkan"


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ([], "no GPU found: plans are for the CPU"),
        (["-dev", "none"], "-dev none: no GPU is used, plans are for the CPU"),
    ],
)
def test_gpus_that_are_not_wanted_are_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, words: list[str], note: str
) -> None:
    found = (), None, ("no GPU found: plans are for the CPU",)
    monkeypatch.setattr("autolayers.request._found", lambda *_: found)
    assert Request.of(words, {}).notes == (note,)
