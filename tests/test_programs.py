"""A program that hangs would hang this one, or stay behind.

Programs that are asked a question: bounded in time and size, and nothing of them stays.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import until

from autolayers.programs import NoAnswer, apart, ask


def test_an_answer_has_output_and_exit_code() -> None:
    answer = ask(["sh", "-c", "echo out; echo err >&2; exit 3"], {"PATH": os.environ["PATH"]}, 30)
    assert (answer.code, answer.out, answer.err) == (3, "out\n", "err\n")


@pytest.mark.parametrize(
    ("script", "says", "limit"),
    [
        ("yes", "more than 1 MiB", 300),
        ("yes >&2", "more than 1 MiB", 300),
        ("sleep 1000", "did not end within 1 s", 1),
        ("sleep 1000 & sleep 1000", "did not end within 1 s", 1),
    ],
)
def test_a_program_without_an_answer_is_ended(script: str, says: str, limit: float) -> None:
    with pytest.raises(NoAnswer, match=says):
        ask(["sh", "-c", script], os.environ, limit)


def test_a_child_that_keeps_the_pipes_open_holds_nobody() -> None:
    """The answer is no program that did not end: ask() says so where it waits for its limit."""
    assert ask(["sh", "-c", "sleep 1000 & echo here"], os.environ, 300).out == "here\n"


@pytest.mark.skipif(shutil.which("setsid") is None, reason="no setsid")
def test_what_a_stray_child_says_later_is_not_read_from_another_file(tmp_path: Path) -> None:
    """It has cleared its environment, and keeps the pipe open behind the answer; the number of the
    pipe's handle must not be another file's then."""
    late, file = tmp_path / "late", tmp_path / "file"
    file.write_text("ours")
    later = f"sleep 1.5; echo late; sleep 0.2; : > {late}"
    script = f"setsid env -u AUTOLAYERS_ASKED sh -c '{later}' & echo here"
    assert ask(["sh", "-c", script], os.environ, 60).out == "here\n"
    handles = [os.open(file, os.O_RDONLY) for _ in range(8)]
    try:
        until(late.exists)
        assert [os.read(handle, 9) for handle in handles] == [b"ours"] * 8
    finally:
        for handle in handles:
            os.close(handle)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("names", ["SIGTERM", "SIGHUP", "SIGINT SIGINT", "SIGTERM SIGHUP SIGINT"])
def test_what_was_asked_ends_with_who_asked(tmp_path: Path, names: str) -> None:
    """A stopped `tune` would leave llama-bench on the GPU."""
    there = tmp_path / "there"
    script = f"(sleep 1000 & echo $! > {there}; wait)"
    asks = (
        "from autolayers.programs import ask; import os; "
        f"ask(['sh', '-c', {script!r}], os.environ, 900)"
    )
    asking = subprocess.Popen(
        [sys.executable, "-c", asks], cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL
    )
    until(lambda: there.exists() and there.read_text().strip())
    numbers = [getattr(signal, name) for name in names.split()]
    for number in numbers:
        asking.send_signal(number)
    # of several that are there, Python hands on the one with the lowest number first
    code = asking.wait(60)
    assert code in [128 + each for each in numbers] or (
        signal.SIGINT in numbers and code in (-2, 1)
    )
    until(lambda: not psutil.pid_exists(int(there.read_text())))


@pytest.mark.skipif(sys.platform != "linux", reason="prctl of Linux")
@pytest.mark.parametrize(
    "asked",
    [
        "list(apart('time', 'sleep', 900, silence=900))",
        "ask(['sleep', '900'], os.environ, 900)",
    ],
)
def test_what_was_asked_ends_with_who_was_killed(asked: str) -> None:
    """Nobody can handle SIGKILL: a killed `tune` would leave llama-bench on the GPU."""
    asks = f"from autolayers.programs import apart, ask; import os; {asked}"
    asking = psutil.Popen([sys.executable, "-c", asks], cwd=Path(__file__).parents[1])
    until(
        lambda: [
            each
            for each in asking.children()
            if each.cmdline()[:1] == ["sleep"] or "apart" in asked
        ]
    )
    (child,) = asking.children()
    asking.kill()
    asking.wait(60)
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_what_is_no_program() -> None:
    with pytest.raises(NoAnswer, match="No such file"):
        ask(["/nonexistent/llama-server"], {}, 1)
    with pytest.raises(NoAnswer, match="null"):
        ask(["a\0b"], {}, 1)


@pytest.mark.parametrize("environ", [None, os.environ])
def test_a_function_runs_in_a_process_of_its_own(
    capfd: pytest.CaptureFixture[str], environ: dict[str, str] | None
) -> None:
    """A copy, and a new one. What it had said before it ended counts; a library's words on the
    streams are nobody's."""

    def values(last: str, silence: float = 300) -> Iterator[object]:
        return apart(
            "builtins",
            "eval",
            f"(i if i < 3 else {last} for i in range(4))",
            silence=silence,
            environ=environ,
        )

    assert list(
        values("__import__('os').write(1, b'words') + __import__('os').write(2, b'more')")
    ) == [0, 1, 2, 9]
    for end in (
        "__import__('os').kill(__import__('os').getpid(), 9)",
        "__import__('os')._exit(0)",
        "1 / 0",
        "set()",
    ):
        assert list(values(end)) == [0, 1, 2]
    seen = []
    with pytest.raises(NoAnswer, match=r"within 3 s"):
        for value in values("__import__('time').sleep(600)", 3):
            seen.append(value)
    assert seen == [0, 1, 2] and capfd.readouterr() == ("", "")
