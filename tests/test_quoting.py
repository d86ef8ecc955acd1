"""Each language's own reader gets back what was quoted: for any text, however hostile."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autolayers.errors import UsageError
from autolayers.quoting import ini, powershell, shell, systemd, windows, yaml

yaml_reader = pytest.importorskip("yaml")

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.text(
    st.sampled_from(list("a\"'\\$%{}#;:-&*!|>@` \t\n\r\x0b\x7f\x85\u2028\u202e\ufeff\x1b[]=é😀")))


@given(TEXT)
def test_yaml(text: str) -> None:
    quoted = yaml(text)
    assert yaml_reader.safe_load(f"models:\n  {quoted}:\n    cmd: {quoted}\n") == {"models": {text: {"cmd": text}}}
    assert quoted.isprintable()


@given(TEXT)
def test_systemd(text: str) -> None:
    quoted = systemd(text)
    assert quoted.isprintable()                      # one line, and no line of its own
    (word,) = shlex.split(quoted) if quoted.startswith('"') else [quoted]
    # shlex takes \" and \\ only; systemd also unescapes \xNN, one byte
    raw, at = b"", 0
    while at < len(word):
        if word[at:at + 2] == "\\x":
            raw, at = raw + bytes([int(word[at + 2:at + 4], 16)]), at + 4
        elif word[at:at + 2] in ("%%", "$$"):
            raw, at = raw + word[at].encode(), at + 2
        else:
            assert word[at] not in "%$"
            raw, at = raw + word[at].encode(), at + 1
    assert raw.decode() == text or "\\x" in text     # shlex has undone the \\ before such an x


@given(st.lists(TEXT, min_size=1))
def test_shell(words: list[str]) -> None:
    quoted = shell(words)
    assert quoted.isprintable()
    if all(word.isprintable() for word in words):
        assert shlex.split(quoted) == words


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@given(st.lists(TEXT.map(lambda text: text + "\n'\x1b\udcff1"), min_size=1, max_size=3))
def test_bash_reads_what_is_not_printable(words: list[str]) -> None:
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {shell(words)}"], capture_output=True, check=True,
                          env={"LC_ALL": "C"})
    assert done.stdout == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


def to_argv(line: str) -> list[str]:
    """What a program sees (CommandLineToArgvW, as of Microsoft's C runtime)."""
    words, word, quoted, at = list[str](), "", False, 0
    while at < len(line):
        slashes = len(line) - at - len(line[at:].lstrip("\\"))
        at += slashes
        if line[at:at + 1] == '"':
            word += "\\" * (slashes // 2)
            word, quoted = (word + '"', quoted) if slashes % 2 else (word, not quoted)
        else:
            word += "\\" * slashes
            if line[at:at + 1] == " " and not quoted:
                words, word = [*words, word], ""
            else:
                word += line[at:at + 1]
        at += 1
    return [*words, word]


def in_powershell(line: str) -> list[str]:
    """The words of bare text, '...' with '' for ', and "..." in which nothing is replaced."""
    parts = re.findall(r"""'((?:[^']|'')*)'(?= |\Z)|"([^"$`]*)"(?= |\Z)|([\w./:=+\\-]+)(?= |\Z)""", line)
    return [single.replace("''", "'") + double + bare for single, double, bare in parts]


WORD = st.text(st.characters(codec="ascii", exclude_categories=["Cc"])) | st.text(st.sampled_from(
    list("a1 ,;|&<>^()[]{}'\"$`%@#~!\\.-:=+*?\u201c\u00e9")))


@given(st.lists(WORD, min_size=1))
def test_windows(words: list[str]) -> None:
    quoted = windows(words)
    assert in_powershell(powershell(words)) == words
    assert [found.rstrip("\\") for found in in_powershell(quoted)] == [word.rstrip("\\") for word in words]
    if not set("".join(words)) & set("\"$`\u201c"):
        assert to_argv(quoted) == words
        assert not re.search(r"""[|&<>^()]""", re.sub(r'"[^"]*"', "", quoted))      # nothing for cmd.exe to obey


def test_a_plan_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.name", "nt")
        line = shell(["llama-server", "-m", r"D:\my models\a.gguf", "-ts", "27,27", "-ot",
                      r"blk\.2\.ffn_(ch|)exps=CPU"])
    assert line == r'llama-server -m "D:\my models\a.gguf" -ts "27,27" -ot "blk\.2\.ffn_(ch|)exps=CPU"'


@given(TEXT)
def test_ini(text: str) -> None:
    try:
        said = ini("-a", text)
    except UsageError as error:
        assert "a preset cannot hold it" in str(error) and str(error).startswith("-a ")
        return
    if not set(text) & set("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):       # further line ends, for Python's reader alone
        marks = ("#", ";")
        reader = configparser.RawConfigParser(comment_prefixes=marks, inline_comment_prefixes=marks, strict=False)
        reader.read_string(f"[x]\nkey = {said}\n")
        assert reader["x"]["key"] == text.strip()


def test_what_is_no_text() -> None:
    with pytest.raises(UsageError, match="not UTF-8, so a YAML file cannot hold it"):
        yaml("m\udcff.gguf")
    assert systemd("m\udcff.gguf") == '"m\\xff.gguf"'


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", ["m\rExecStartPre=/bin/sh -c evil\rX=", "m\nExecStartPre=/bin/sh", "m\\", "%h",
                                  "$HOME ${HOME}", 'a"b', "; x"])
def test_systemd_itself_sees_one_command(tmp_path: Path, name: str) -> None:
    unit = tmp_path / "test.service"
    unit.write_text(f"[Service]\nExecStart=/bin/echo {systemd(name)} {systemd('end')}\n")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "ignoring" not in done.stderr.lower() and "unknown" not in done.stderr.lower(), done.stderr
    assert "ExecStartPre" not in [line.partition("=")[0].strip() for line in unit.read_text().splitlines()]
