"""A flag would be ignored in silence, or missing in the help of a command that has it.

The rows of own flags, as each command line shows and heeds them.
"""

from __future__ import annotations

import importlib

import pytest
from support import HEADERS, ROOT

from autolayers.cli import main
from autolayers.cli.help import help_of, overview
from autolayers.flags.own import COMMANDS, FLAGS, Command, own_flags
from autolayers.flags.table import ARGUMENTS, LEGACY, lookup

MODEL = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
RUNNABLE = [command for command in COMMANDS.values() if command.name != "ollama"]
# What makes each command complete but for its flags
WORDS = {
    "plan": [MODEL, "--gpu", "24GiB"],
    "run": ["run", "--dry-run", "--gpu", "24GiB", "llama-server", "-m", MODEL],
    "inspect": ["inspect", MODEL],
    "sweep": ["sweep", MODEL, "--gpus", "24GiB", "--contexts", "4096"],
    "choose": ["choose", MODEL, "--gpu", "24GiB", "--ram", "64GiB"],
    "best": ["best", "--gpu", "24GiB", "--ram", "64GiB"],
    "cluster": ["cluster", str(ROOT / "docs" / "cluster.json"), MODEL],
    "fleet": ["fleet", str(ROOT / "docs" / "fleet.json"), MODEL],
    "compare": ["compare", "llama-server", "-m", MODEL],
    "prove": ["prove", "llama-server", "-m", MODEL],
    "tune": ["tune", "llama-server", "-m", MODEL],
    "devices": ["devices"],
    "rules": ["rules", "--params", "8B", "--bits", "4"],
    "explain": ["explain", "-"],
    "ps": ["ps"],
    "measured": ["measured"],
    "check": ["check"],
    "web": ["web"],
    "serve": ["serve"],
    "completion": ["completion", "bash"],
    "ollama modelfile": ["ollama", "modelfile", MODEL],
    "ollama plan": ["ollama", "plan", MODEL],
    "ollama create": ["ollama", "create", MODEL, "--as", "n"],
    "ollama verify": ["ollama", "verify", MODEL],
    "ollama list": ["ollama", "list"],
}


def with_flag(command: Command, name: str, value: str) -> list[str]:
    """A command line of `command` with this flag where its own flags stand."""
    words = list(WORDS[command.name])
    at = 1 if command.name in ("run", "compare", "prove", "tune") else len(words)
    return [*words[:at], name, *([value] if value else []), *words[at:]]


NAMED = [(flag, name) for flag in FLAGS for name in flag.names]


@pytest.mark.parametrize("command", RUNNABLE, ids=lambda command: command.name)
def test_a_flag_of_other_commands_is_refused(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, name in NAMED:
        if name in own_flags(command.name) or (command.llama and lookup(name)):
            continue
        code = main(with_flag(command, name, "1" if flag.takes_value else ""))
        said = capsys.readouterr()
        assert (code, said.out) == (2, ""), name
        assert (
            said.err.startswith("autolayers: ") and said.err.count("\n") == 1 and name in said.err
        ), name


@pytest.mark.parametrize("command", RUNNABLE, ids=lambda command: command.name)
def test_every_flag_of_a_command_is_in_its_help(command: Command) -> None:
    text = help_of(command.name)
    for name, flag in own_flags(command.name).items():
        assert f" {name}" in text, name
        assert flag.help.split()[0] in text


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_help_is_plain_text_for_80_columns(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", *command.name.split()]) == 0
    text = capsys.readouterr().out
    assert text == help_of(command.name) and text.isascii() and text.endswith("\n")
    assert max(map(len, text.splitlines())) <= 80
    assert main([*command.name.split(), "--help"]) == 0
    assert capsys.readouterr().out == text


def test_the_overview_names_every_command() -> None:
    assert [
        name
        for name in COMMANDS
        if name != "plan" and " " not in name and f"  {name} ..." not in overview()
    ] == []


def test_help_for_a_command_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "dance"]) == 2
    assert "no command 'dance': run" in capsys.readouterr().err


def test_every_command_has_a_file_and_nothing_else_has_a_main() -> None:

    commands = {name.split()[0] for name in COMMANDS}
    for name in commands:
        assert callable(importlib.import_module(f"autolayers.cli.{name}").main)
    files = [
        path
        for path in (ROOT / "autolayers").rglob("*.py")
        if "\ndef main(" in path.read_text(encoding="utf-8")
    ]
    assert {path.relative_to(ROOT / "autolayers").as_posix() for path in files} == {
        "cli/__init__.py",
        "web/__main__.py",
        *(f"cli/{name}.py" for name in commands),
    }


def test_every_format_has_a_writer() -> None:
    import importlib

    from autolayers.flags.formats import FORMATS

    assert own_flags("run")["--format"].choices == tuple(FORMATS)
    assert own_flags("plan")["--format"].choices == ("text", "flags", "number", "json", *FORMATS)
    for name in FORMATS:
        assert callable(
            importlib.import_module(f"autolayers.launch.formats.{name.replace('-', '_')}").write
        )


def test_rules_have_a_flag_for_each_of_their_inputs() -> None:
    from autolayers.rules.inputs import FIELDS, flag

    assert set(map(flag, FIELDS)) <= set(own_flags("rules"))


def test_no_command_has_two_flags_of_one_name() -> None:
    for command in COMMANDS:
        names = [name for flag in FLAGS if command in flag.commands for name in flag.names]
        assert len(names) == len(set(names))


def test_own_flags_hide_no_argument_but_ollamas_own() -> None:
    llama = {name for row in (*LEGACY, *ARGUMENTS) for name in (*row.names, *row.negated)}
    hidden = {
        command.name: set(own_flags(command.name)) & llama
        for command in COMMANDS.values()
        if command.llama
    }
    assert hidden["plan"] == {"-h", "--help", "--version"}
    assert hidden["inspect"] == hidden["sweep"] == {"-h", "--help"}
