"""A question does not end: a pipe that nobody writes to, a device without an end, an expression
that is tried anew at every letter of a foreign text, a program that closes its streams and stays.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import HEADERS, says, until

from autolayers import cli, detect, net, programs
from autolayers.devices import fleet_file
from autolayers.errors import UsageError
from autolayers.ollama import advice
from autolayers.programs import NoAnswer, ask

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sre_parse

MODEL = str(HEADERS / "llama-dense.gguf")

# --- steps of an expression


class Steps:
    """How many comparisons a backtracking matcher makes, as re's own engine does; `search` tries
    every place of a text."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.tree = list(sre_parse.parse(pattern.pattern, pattern.flags & ~re.UNICODE))
        self.ignore = bool(pattern.flags & re.IGNORECASE)
        self.taken = 0

    def search(self, text: str) -> int:
        self.text = text.lower() if self.ignore else text
        self.taken = 0
        for start in range(len(text) + 1):
            if next(self._all(self.tree, 0, start), None) is not None:
                break
        return self.taken

    def _all(self, items: list[Any], i: int, at: int) -> Iterator[int]:
        if i == len(items):
            yield at
            return
        for after in self._one(items[i], at):
            yield from self._all(items, i + 1, after)

    def _one(self, item: Any, at: int) -> Iterator[int]:
        self.taken += 1
        name, what = str(item[0]), item[1]
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            if at < len(self.text) and self._is(name, what, self.text[at]):
                yield at + 1
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            yield from self._repeat(*what, at, name == "MIN_REPEAT")
        elif name == "SUBPATTERN":
            yield from self._all(list(what[3]), 0, at)
        elif name == "BRANCH":
            for branch in what[1]:
                yield from self._all(list(branch), 0, at)
        elif name in ("ASSERT", "ASSERT_NOT"):
            where = at - 1 if what[0] < 0 else at
            found = where >= 0 and next(self._all(list(what[1]), 0, where), None) is not None
            if found == (name == "ASSERT"):
                yield at
        elif name == "AT":
            if "BEGIN" not in str(what) or at == 0:
                yield at
        else:
            yield at

    def _repeat(self, low: int, high: Any, body: Any, at: int, lazy: bool) -> Iterator[int]:
        ends = [at]
        most = min(int(high), len(self.text) + 1)
        # single letters: one after the other, and back
        while len(ends) <= most:
            after = next(self._all(list(body), 0, ends[-1]), None)
            if after is None or after == ends[-1]:
                break
            ends.append(after)
            if lazy and len(ends) > low:
                yield ends[-2] if len(ends) - 2 >= low else ends[-1]
        if not lazy:
            yield from reversed(ends[low:])
        elif len(ends) > low:
            yield ends[-1]

    def _is(self, name: str, what: Any, letter: str) -> bool:
        if name == "ANY":
            return letter != "\n"
        if name in ("LITERAL", "NOT_LITERAL"):
            alike = ord(letter) in (what, ord(chr(what).lower()) if self.ignore else what)
            return alike == (name == "LITERAL")
        negated = str(what[0][0]) == "NEGATE"
        return any(self._in(each, letter) for each in what) != negated

    def _in(self, each: Any, letter: str) -> bool:
        kind, value = str(each[0]), each[1]
        if kind == "LITERAL":
            return ord(letter) == value
        if kind == "RANGE":
            return bool(value[0] <= ord(letter) <= value[1])
        word = letter.isalnum() or letter == "_"
        member = {"DIGIT": letter.isdigit(), "SPACE": letter.isspace(), "WORD": word}
        name = str(value).removeprefix("CATEGORY_")
        return (not member[name[4:]]) if name.startswith("NOT_") else member.get(name, False)


# what reads the text of a stranger, a line of any length at a time
FOREIGN = {
    "URLs in a message": re.compile(net.URLS.pattern, net.URLS.flags),
    "version": detect._VERSION,
    "flags of a help": detect._FLAGS,
    "indented help": detect._INDENTED,
    "explained help": detect._EXPLAINED,
}
LETTERS = ["a", " ", "1", "-", "/", ":", ".", "a ", " -", "version: ", "--a", "a://", "<"]


@pytest.mark.parametrize("name", FOREIGN)
def test_an_expression_takes_steps_in_proportion_to_a_foreign_text(name: str) -> None:
    steps = Steps(FOREIGN[name])
    for letters in LETTERS:
        for start in ("", "  ", "   --a"):
            few = steps.search(start + letters * (300 // len(letters)))
            many = steps.search(start + letters * (1200 // len(letters)))
            # a square law would have 16 times as many
            assert many < 6 * few + 200, (letters, start, few, many)


def test_the_steps_of_a_bad_expression_are_seen() -> None:
    steps = Steps(re.compile(r"[a-z][\w+.-]*://"))
    few, many = steps.search("a" * 300), steps.search("a" * 1200)
    assert many > 12 * few


# --- numbers


@pytest.mark.parametrize("digits", ["9" * 5000, "²"])
def test_no_digits_end_a_reader(digits: str) -> None:
    assert detect.read_version(f"version: {digits} (abc)") == (0, "")
    assert detect.read_version("version: 11549 (abc)") == (11549, "abc")
    assert advice.is_old(f"{digits}.1") is False
    assert advice.is_old("0.20.1") is True


def test_the_log_of_a_stranger_ends_nothing(tmp_path: Path) -> None:
    log = tmp_path / "sup.log"
    log.write_text("llama_new_context_with_model: n_ubatch   = ²\n", encoding="utf-8")
    asked = says("explain", log)
    assert "Traceback" not in asked.stderr and asked.returncode == 1


# --- files


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names")
@pytest.mark.parametrize(
    "words",
    [
        ("explain", "PATH"),
        (MODEL, "--machine", "PATH"),
        ("cluster", "PATH", MODEL),
        ("fleet", "PATH", MODEL),
    ],
)
def test_a_pipe_without_a_writer_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    asked = says(*[word.replace("PATH", str(pipe)) for word in words])
    assert asked.returncode in (2, 3)
    assert "not a regular file" in asked.stderr


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="devices")
def test_a_device_without_an_end_is_refused() -> None:
    asked = says("explain", "/dev/zero")
    assert asked.returncode in (2, 3) and "not a regular file" in asked.stderr


def test_a_fleet_names_the_key_that_is_there_twice(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    names = [f'"m{i}": {{}}' for i in range(20000)]
    file.write_text(f'{{"machines": {{{", ".join(names)}, "m7": {{}}}}}}', encoding="utf-8")
    with pytest.raises(UsageError, match="m7 is listed twice"):
        fleet_file.read(str(file))


# --- programs


@pytest.mark.skipif(os.name != "posix", reason="sh")
def test_a_program_that_closes_its_streams_is_waited_for_without_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polls = []
    poll = subprocess.Popen.poll

    def counted(child: subprocess.Popen[bytes]) -> int | None:
        polls.append(child)
        return poll(child)

    monkeypatch.setattr(subprocess.Popen, "poll", counted)
    with pytest.raises(NoAnswer, match="did not end"):
        ask(["sh", "-c", "exec >&- 2>&-; sleep 30"], os.environ, 2)
    # twenty in a second at most, instead of tens of thousands
    assert 0 < len(polls) <= 50


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_child_that_has_left_the_group_does_not_stay(tmp_path: Path) -> None:
    number = tmp_path / "pid"
    script = f"setsid sh -c 'echo $$ > {number}; exec sleep 60' & sleep 0.5"
    ask(["sh", "-c", script], os.environ, 10)
    process = int(number.read_text())
    until(lambda: not os.path.exists(f"/proc/{process}") or "Z" in state(process), 10)


def state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.skipif(os.name != "posix", reason="sh")
def test_a_server_that_hangs_is_asked_once_and_named_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PATIENCE", 0.2)
    monkeypatch.setattr(detect, "_TIMEOUT", 1)
    said: list[str] = []
    monkeypatch.setattr(programs, "waiting", [said.append])
    asked = tmp_path / "asked"
    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\necho "$1" >> {asked}\nexec sleep 60\n')
    server.chmod(0o700)
    build = detect.detect([str(server)], os.environ)
    assert asked.read_text() == "--version\n" and said == [str(server)]
    assert "does not answer" in build.doubt


def test_a_thread_that_cannot_be_started_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(cli, "_command", refused)
    assert cli.main(["devices"]) == 1
    assert "limits (ulimit) are too low" in capsys.readouterr().err
