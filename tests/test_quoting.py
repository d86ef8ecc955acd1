"""A hostile name would end up as a command in a shell or a file.

Each language's own reader gets back what was quoted: for any text, however hostile.
"""

from __future__ import annotations

import configparser
import os
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import slow

from autolayers.errors import UsageError
from autolayers.quoting import command_line, ini, posix, powershell, shell, systemd, windows, yaml

yaml_reader = pytest.importorskip("yaml")

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.text(
    st.sampled_from(list("a\"'\\$%{}#;:-&*!|>@` \t\n\r\x0b\x7f\x85\u2028\u202e\ufeff\x1b[]=é😀"))
)


def test_powershell_starts_a_quoted_program(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [r"C:\Program Files\llama.cpp\llama-server.exe", "-c", "4096"]
    with monkeypatch.context() as patch:
        patch.setattr("os.name", "nt")
        quoted, plain = command_line(words), command_line(["llama-server", *words[1:]])
    assert quoted == r'& "C:\Program Files\llama.cpp\llama-server.exe" -c 4096'
    assert plain == "llama-server -c 4096"
    assert command_line(words).startswith("'C:")


@given(TEXT)
def test_yaml_reads_back_any_text(text: str) -> None:
    quoted = yaml(text)
    assert yaml_reader.safe_load(f"models:\n  {quoted}:\n    cmd: {quoted}\n") == {
        "models": {text: {"cmd": text}}
    }
    assert quoted.isprintable()


@given(TEXT)
def test_systemd_reads_back_any_text(text: str) -> None:
    quoted = systemd(text)
    assert quoted.isprintable()  # one line, and no line of its own
    (word,) = shlex.split(quoted) if quoted.startswith('"') else [quoted]
    # shlex takes \" and \\ only; systemd also unescapes \xNN, one byte
    raw, at = b"", 0
    while at < len(word):
        if word[at : at + 2] == "\\x":
            raw, at = raw + bytes([int(word[at + 2 : at + 4], 16)]), at + 4
        elif word[at : at + 2] in ("%%", "$$"):
            raw, at = raw + word[at].encode(), at + 2
        else:
            assert word[at] not in "%$"
            raw, at = raw + word[at].encode(), at + 1
    assert raw.decode() == text or "\\x" in text  # shlex has undone the \\ before such an x


@given(st.lists(TEXT, min_size=1))
def test_shells_read_back_any_text(words: list[str]) -> None:
    quoted = posix(words)
    assert quoted.isprintable()
    if all(word.isprintable() for word in words):
        assert shlex.split(quoted) == words


# What shells replace, run, or take for an end: alone, and between quotes of every kind
PIECES = (
    "a",
    "'",
    '"',
    "\\",
    "$",
    "`",
    "$(touch P)",
    "`touch P`",
    "(touch P)",
    ";touch P;",
    "|touch P|",
    "&touch P&",
    "||touch P",
    "#",
    " ",
    "  ",
    "*",
    "?",
    "~",
    "~root",
    "{a,b}",
    "!",
    "!!",
    "!touch",
    "%",
    "%self",
    "^",
    "^a^b",
    "=",
    "=ls",
    "-",
    "--",
    "-e",
    "[x]",
    "<",
    ">",
    ">P",
    "<(touch P)",
    "$HOME",
    "${HOME}",
    "$'touch P'",
    "\\\\",
    "\\'",
    "'\\''",
    "'$(touch P)'",
    '"$(touch P)"',
    "\\$(touch P)",
    "A=1",
    "if",
    "é",
    "\u201c",
    "@(a|b)",
)
UNPRINTABLE = (
    "\n",
    "\r",
    "\t",
    "\x1b",
    "\x07",
    "\x7f",
    "\x85",
    "\u2028",
    "\u202e",
    "\udcff",
    "\ntouch P\n",
    "\x1b[31m",
    "\ue000",
    "\U000e0041",
)
# Those that security reviews found, which ran in fish and in dash
KNOWN = (
    "m\\'$(touch P)'\\'",
    "x\\'$(touch P)'y\\'z",
    "a\x01';touch P;'",
    "\\'(touch P)\\'",
    "a\\';touch P;\\'b",
    "m\u202e';touch P;#",
    "m\xff\n';touch P;#",
    "\\",
    "'",
    "",
    "a\\",
    "-m",
    "LD_PRELOAD=x",
)


def hostile(count: int, pieces: Sequence[str]) -> list[str]:
    dice = random.Random(5)
    return ["".join(dice.choices(pieces, k=dice.randint(1, 6))) for _ in range(count)]


def read_by(shell: str, words: Sequence[str], folder: Path) -> bytes | None:
    """What a program gets of a line with these words, None where the shell refuses the line. The
    folder, in which it runs, stays empty: nothing else was run or written."""
    line = posix(["/usr/bin/env", "printf", r"%s\0", *words]).encode("utf-8", "surrogateescape")
    done = subprocess.run(
        [shell, "-c", line],
        capture_output=True,
        check=False,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder.parent), "LC_ALL": "C.UTF-8"},
    )
    assert not list(folder.iterdir()), (words, line)
    return done.stdout if done.returncode == 0 else None


def as_bytes(words: Sequence[str]) -> bytes:
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


needs_shells = pytest.mark.skipif(os.name == "nt", reason="shells of POSIX")


@needs_shells
@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "mksh"])
def test_shells_read_what_is_printable_alike(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    folder = tmp_path / "empty"
    folder.mkdir()
    words = [*(word for word in KNOWN if word.isprintable()), *PIECES, *hostile(600, PIECES)]
    assert read_by(shell, words, folder) == as_bytes(words)


@needs_shells
@pytest.mark.parametrize("shell", [slow("sh"), "bash", slow("dash"), "zsh", "fish", "mksh"])
def test_shells_run_nothing_of_what_is_not_printable(shell: str, tmp_path: Path) -> None:
    """bash, zsh and mksh read it, dash and fish take it for another text or refuse it."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    folder = tmp_path / "empty"
    folder.mkdir()
    words = [
        word for word in (*KNOWN, *hostile(300, (*PIECES, *UNPRINTABLE))) if not word.isprintable()
    ]
    if shell in ("bash", "zsh", "mksh"):
        assert read_by(shell, words, folder) == as_bytes(words)
    else:
        for word in words[:60]:
            read_by(shell, [word], folder)


@needs_shells
@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "mksh"])
def test_the_first_word_is_a_program_and_no_assignment(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    done = subprocess.run(
        [shell, "-c", posix(["PATH=/nowhere", "/usr/bin/touch", "P"])],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )
    assert done.returncode != 0 and not (tmp_path / "P").exists()


def to_argv(line: str) -> list[str]:
    """What a program sees (CommandLineToArgvW, as of Microsoft's C runtime)."""
    words, word, quoted, at = list[str](), "", False, 0
    while at < len(line):
        slashes = len(line) - at - len(line[at:].lstrip("\\"))
        at += slashes
        if line[at : at + 1] == '"':
            word += "\\" * (slashes // 2)
            word, quoted = (word + '"', quoted) if slashes % 2 else (word, not quoted)
        else:
            word += "\\" * slashes
            if line[at : at + 1] == " " and not quoted:
                words, word = [*words, word], ""
            else:
                word += line[at : at + 1]
        at += 1
    return [*words, word]


NUMBER = r"\$\(\[char\](?:0x[0-9a-f]+|::ConvertFromUtf32\(0x[0-9a-f]+\))\)"


def in_powershell(line: str) -> list[str]:
    """The words of bare text, '...' with a quote twice for one, and "..." with `x for a quote and
    $([char]0x7) for a control character; typographic quotes are quotes."""
    one, two = "'\u2018\u2019\u201a\u201b", '"\u201c\u201d\u201e'
    single, double = f"'((?:[^{one}]|[{one}]{{2}})*)'", f'"((?:[^{two}$`]|`.|{NUMBER})*)"'
    parts = re.findall(rf"{single}(?= |\Z)|{double}(?= |\Z)|([\w./:=+\\-]+)(?= |\Z)", line)
    return [
        re.sub(f"([{one}])[{one}]", r"\1", quoted) + expanded(text) + bare
        for quoted, text, bare in parts
    ]


def expanded(text: str) -> str:
    text = re.sub(
        NUMBER, lambda found: chr(int(re.findall("0x([0-9a-f]+)", found[0])[0], 16)), text
    )
    return re.sub("`(.)", r"\1", text)


WORD = st.text(st.characters(codec="ascii", exclude_categories=["Cc"])) | st.text(
    st.sampled_from(list("a1 ,;|&<>^()[]{}'\"$`%@#~!\\.-:=+*?\u201c\u2019\u00e9\n\x1b\u202e"))
)


@given(st.lists(WORD, min_size=1))
def test_windows_programs_read_back_any_text(words: list[str]) -> None:
    quoted = windows(words)
    assert in_powershell(powershell(words)) == words
    assert [found.rstrip("\\") for found in in_powershell(quoted)] == [
        word.rstrip("\\") for word in words
    ]
    if not set("".join(words)) & set('"$`\u201c\n\x1b\u202e'):
        assert to_argv(quoted) == words
        # nothing for cmd.exe to obey
        assert not re.search(r"""[|&<>^()]""", re.sub(r'"[^"]*"', "", quoted))


def test_a_plan_on_windows_is_quoted_for_its_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.name", "nt")
        line = shell(
            [
                "llama-server",
                "-m",
                r"D:\my models\a.gguf",
                "-ts",
                "27,27",
                "-ot",
                r"blk\.2\.ffn_(ch|)exps=CPU",
            ]
        )
    assert (
        line == r'llama-server -m "D:\my models\a.gguf" -ts "27,27" -ot "blk\.2\.ffn_(ch|)exps=CPU"'
    )


@given(TEXT)
def test_ini_files_read_back_any_text(text: str) -> None:
    try:
        said = ini("-a", text)
    except UsageError as error:
        assert "a preset cannot hold it" in str(error) and str(error).startswith("-a ")
        return
    # further line ends, for Python's reader alone
    if not set(text) & set("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        marks = ("#", ";")
        reader = configparser.RawConfigParser(
            comment_prefixes=marks, inline_comment_prefixes=marks, strict=False
        )
        reader.read_string(f"[x]\nkey = {said}\n")
        assert reader["x"]["key"] == text.strip()


def test_what_is_no_text() -> None:
    with pytest.raises(UsageError, match="not UTF-8, so a YAML file cannot hold it"):
        yaml("m\udcff.gguf")
    assert systemd("m\udcff.gguf") == '"m\\xff.gguf"'
    # half a pair of UTF-16, as JSON and names on Windows have it, beside a byte of no UTF-8
    assert systemd("\ud83d\udcff") == '"\\xed\\xa0\\xbd\\xff"'
    assert posix(["m\ud83d", "\udfff\udcff"]) == "'m'$'\\xed\\xa0\\xbd' $'\\xed\\xbf\\xbf\\xff'"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(
    "name",
    [
        "m\rExecStartPre=/bin/sh -c evil\rX=",
        "m\nExecStartPre=/bin/sh",
        "m\\",
        "%h",
        "$HOME ${HOME}",
        'a"b',
        "; x",
    ],
)
def test_systemd_itself_sees_one_command(tmp_path: Path, name: str) -> None:
    unit = tmp_path / "test.service"
    unit.write_text(f"[Service]\nExecStart=/bin/echo {systemd(name)} {systemd('end')}\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert "ignoring" not in done.stderr.lower() and "unknown" not in done.stderr.lower(), (
        done.stderr
    )
    assert "ExecStartPre" not in [
        line.partition("=")[0].strip() for line in unit.read_text().splitlines()
    ]
