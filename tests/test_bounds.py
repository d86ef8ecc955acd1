"""A question does not end: a pipe that nobody writes to, a device without an end, an expression
that is tried anew at every letter of a foreign text, a program that closes its streams and stays.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from steps import expressions, grows
from support import HEADERS, says, swept, until

from autolayers import cli, detect, programs
from autolayers.devices import fleet_file
from autolayers.diagnosis.facts import Facts
from autolayers.diagnosis.lines import Line
from autolayers.errors import UsageError
from autolayers.memory.ecmascript import ecmascript
from autolayers.ollama import advice
from autolayers.programs import NoAnswer, ask

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

MODEL = str(HEADERS / "llama-dense.gguf")

# --- steps of an expression


@pytest.mark.slow
@pytest.mark.parametrize("part", swept([(i, 160) for i in range(160)], 32, [(0, 160)]), ids=str)
def test_an_expression_takes_steps_in_proportion_to_a_text(part: tuple[int, int]) -> None:
    """A line of a stranger's log, 16 KB of one letter, would take minutes."""
    first, step = part
    every = expressions()
    assert len(every) > 300
    for one in every[first::step]:
        worst = grows(one.pattern, one.anchored)
        assert not worst, (one.where, one.pattern.pattern, worst[:60])


def test_the_steps_of_a_bad_expression_are_seen() -> None:
    # A square of 1,200 letters takes minutes to count
    short = (100,)
    assert grows(re.compile(r"[a-z][\w+.-]*://"), sizes=short)
    assert grows(re.compile(r"0x([0-9a-f]*\.?[0-9a-f]*)p"), anchored=True, sizes=short)
    assert not grows(re.compile(r"[a-z][\w+.-]{0,30}://"), sizes=short)


# --- numbers


def test_a_repetition_of_more_digits_than_int_takes_is_refused() -> None:
    for text in ("a{" + "9" * 5000 + "}", "a{1," + "9" * 5000 + "}"):
        with pytest.raises(UsageError, match="too large"):
            ecmascript(text)


@pytest.mark.parametrize("digits", ["9" * 5000, "²"])
def test_no_digits_end_a_reader(digits: str) -> None:
    assert detect.read_version(f"version: {digits} (abc)") == (0, "")
    assert detect.read_version("version: 11549 (abc)") == (11549, "abc")
    assert advice.is_old(f"{digits}.1") is False
    assert advice.is_old("0.20.1") is True


def test_the_log_of_a_stranger_ends_nothing(tmp_path: Path) -> None:
    log = tmp_path / "sup.log"
    line = "llama_new_context_with_model: n_ubatch   = ²\n"
    log.write_text(line, encoding="utf-8")
    asked = says("explain", log)
    assert "Traceback" not in asked.stderr and asked.returncode == 1
    assert "nothing failed in these lines" in asked.stdout
    # more digits than a figure of a log has are none
    for value, taken in (("²", "²"), ("9" * 5000, None), ("512", 512)):
        said = Line(1, line.strip().replace("²", value))
        assert Facts.of([said]).values.get("n_ubatch") == taken


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
