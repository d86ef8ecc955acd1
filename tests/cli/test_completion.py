"""Tab in a shell would offer flags that are refused, or nothing.

The completion scripts, asked by the shells themselves where they are installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT

from autolayers.cli import main
from autolayers.cli.completion import SHELLS
from autolayers.cli.completion import offers as offered
from autolayers.devices.cards import CARDS
from autolayers.flags.own import COMMANDS, own_flags
from autolayers.flags.table import ARGUMENTS

# What the shell's own files bring is set aside: the function is called with the words of a line
BASH = """source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_autolayers; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """compdef() {{ :; }}
source {script}
compset() {{ :; }}
_describe() {{ print -rl -- ${{(P)@[-1]%%:*}} }}
_files() {{ [[ $1 == -g ]] && print -rl -- $~2(N) || print -rl -- *(N) }}
_command_names() {{ print nice }}
words=({words}); CURRENT=$#words; PREFIX=$words[-1]
_autolayers
"""
FISH = "source {script}; complete -C {line}"


def ask(shell: str, script: Path, line: str, folder: Path) -> set[str]:
    """What the shell offers for the last word of a line; `folder`.bin has the program."""
    environ = {**os.environ, "PATH": os.pathsep.join([f"{folder}.bin", os.environ["PATH"]])}
    *before, last = line.split(" ")
    if shell == "fish":
        command = ["fish", "-N", "-c", FISH.format(script=script, line=shlex.quote(line))]
    else:
        words = " ".join(map(shlex.quote, [*before, last]))
        command = [
            shell,
            *(["-f"] if shell == "zsh" else ["--norc"]),
            "-c",
            (ZSH if shell == "zsh" else BASH).format(script=script, words=words),
        ]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stderr == "" and done.returncode == 0, done.stderr
    found = {
        re.sub(r"\\", "", answer.partition("\t")[0].rpartition(",")[2])
        for answer in done.stdout.splitlines()
    }
    # as zsh would do
    return {answer for answer in found if answer.startswith(last.rpartition(",")[2])} - {""}


@pytest.fixture(params=["bash", "zsh", "fish"])
def offers(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> object:
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    program = Path(f"{tmp_path}.bin") / "autolayers"
    program.parent.mkdir()
    root, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {python} -m autolayers "$@"\n')
    program.chmod(0o755)
    (tmp_path / "a b.gguf").touch()
    (tmp_path / "notes.txt").touch()
    assert main(["completion", shell]) == 0
    script = tmp_path / ".script"
    script.write_text(capsys.readouterr().out)
    return lambda line: ask(shell, script, line, tmp_path)


def test_the_first_word_is_a_command_or_a_model(offers) -> None:  # type: ignore[no-untyped-def]
    found = offers("autolayers ")
    assert {name for name in COMMANDS if " " not in name} - {"plan"} | {"a b.gguf"} == found
    assert offers("autolayers sw") == {"sweep"}


@pytest.mark.parametrize(
    ("line", "flag", "other"),
    [
        ("autolayers m.gguf --", "--strategy", "--retry"),
        ("autolayers m.gguf -", "-ngl", "--dry-run"),
        ("autolayers run --", "--dry-run", "--ctx-size"),
        ("autolayers run --gpu 24GiB nice llama-server --", "--ctx-size", "--dry-run"),
        ("autolayers tune --", "--share", "--gpu"),
        ("autolayers tune --limit 90s llama-server --", "--ctx-size", "--share"),
        ("autolayers sweep m.gguf --", "--contexts", "--ctx"),
        ("autolayers devices --", "--measure", "--ctx-size"),
        ("autolayers ollama verify m --", "--write", "--in-place"),
        ("autolayers rules --", "--kv-heads", "--gpus"),
    ],
)
def test_flags_are_those_of_the_command(  # type: ignore[no-untyped-def]
    offers, line: str, flag: str, other: str
) -> None:
    found = offers(line)
    assert flag in found and other not in found


def test_every_flag_is_offered(offers) -> None:  # type: ignore[no-untyped-def]
    rows = [row for row in ARGUMENTS if row.is_of("server") and not row.last]
    llama = {name for row in rows for name in (*row.names, *row.negated)}
    assert offers("autolayers m.gguf -") == llama | set(own_flags("plan"))
    assert offers("autolayers rules -") == set(own_flags("rules"))


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("autolayers m.gguf --format ", set(own_flags("plan")["--format"].choices)),
        ("autolayers run --format ", set(own_flags("run")["--format"].choices)),
        ("autolayers m.gguf -fa ", {"on", "off", "auto"}),
        ("autolayers m.gguf -ctk q8", {"q8_0"}),
        ("autolayers run llama-server --split-mode ", {"none", "layer", "row", "tensor"}),
        ("autolayers ollama ", {"modelfile", "plan", "create", "verify", "list"}),
        ("autolayers completion ", set(SHELLS)),
        ("autolayers m.gguf --gpu ", set(CARDS)),
        ("autolayers rules --gpu rtx-309", {"rtx-3090", "rtx-3090-ti"}),
        ("autolayers m.gguf --gpu 24GiB,rtx-309", {"rtx-3090", "rtx-3090-ti"}),
    ],
)
def test_values_are_completed(
    offers: Callable[[str], set[str]], line: str, values: set[str]
) -> None:
    assert offers(line) == values


def test_a_flag_that_takes_a_file(offers) -> None:  # type: ignore[no-untyped-def]
    assert "notes.txt" in offers("autolayers m.gguf --grammar-file n")


@pytest.mark.parametrize(
    ("words", "offer"),
    [
        (["m.gguf", "--format=fl"], {"--format=flags"}),  # zsh, fish and PowerShell
        (["m.gguf", "--format", "=", "fl"], {"flags"}),  # bash
        (["m.gguf", "--format", "="], set(own_flags("plan")["--format"].choices)),
        (["run", "--gpu", "=", "24GiB", ""], {":commands"}),
        (["run", "--gpu", "=", "24GiB", "llama-server", "--split-m"], {"--split-mode"}),
        (["ollama", "nonsense", "--wr"], set()),
        (["m.gguf", "--gpu=24GiB,rtx-309"], {"--gpu=24GiB,rtx-3090", "--gpu=24GiB,rtx-3090-ti"}),
        (["m.gguf", "-m", ""], {":files"}),
        (["fleet", ""], {":files"}),
        (["cluster", "f.json", ""], {":gguf"}),
        (["fleet", "f.json", "m.gguf", "--format", "ha"], {"haproxy"}),
        (["$(touch x)", "`y`", "-fa", "o"], {"on", "off"}),
    ],
)
def test_words_are_offered_at_their_place(words: list[str], offer: set[str]) -> None:
    assert {word for word, _ in offered(words)} == offer


def test_a_word_that_the_shell_dropped_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["__complete", "3", "m.gguf", "-fa"]) == 0
    assert capsys.readouterr().out.split() == ["on", "off", "auto"]
    for words in ([], ["x"], ["9" * 5000], ["0", "a"]):
        assert main(["__complete", *words]) == 0


def test_what_has_a_meaning_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["__complete", "1", "sw"]) == 0
    assert f"sweep\t{COMMANDS['sweep'].summary}\n" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("pwsh") is None, reason="no PowerShell here")
def test_powershell_completes_words(tmp_path: Path) -> None:
    script = (
        "autolayers completion powershell | Out-String | Invoke-Expression; "
        "(TabExpansion2 'autolayers m.gguf -fa o' 23).CompletionMatches.CompletionText"
    )
    done = subprocess.run(
        ["pwsh", "-NoProfile", "-Command", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        },
    )
    assert done.stdout.split() == ["on", "off"]


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"]])
def test_only_known_shells_have_a_script(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", *words]) == 2
    assert (
        "name the shell: autolayers completion bash|zsh|fish|powershell" in capsys.readouterr().err
    )
