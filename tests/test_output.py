"""A file's name could steer a user's terminal.

What reaches a terminal: nothing of a hostile file steers it, and streams may be closed, full or
narrow.
"""

from __future__ import annotations

import ast
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import HEADERS, command, few, slow

from autolayers.flags.formats import FORMATS
from autolayers.output import _clean, emit
from autolayers.quoting import printable

MODEL = HEADERS / "llama-3.2-1b-q8_0.gguf"
EVIL = "\x1b]0;owned\x07\r\nfits\n\u202e\x9b31m\u2028\x7f"


def autolayers(
    *words: object, environ: dict[str, str] | None = None, shell: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Runs the command, with `shell` behind it for redirections."""
    command = [sys.executable, "-m", "autolayers", *map(str, words)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(environ or {})}
    if shell:
        command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
    return subprocess.run(command, capture_output=True, env=environ, timeout=300, check=False)


def string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def evil_model(path: Path) -> Path:
    """A llama with two layers whose texts are all hostile: architecture, name, keys and tensors
    that nobody knows."""
    arch = "llama" + EVIL
    numbers = {
        "context_length": 4096,
        "embedding_length": 64,
        "block_count": 2,
        "attention.head_count": 4,
        "feed_forward_length": 128,
        "vocab_size": 100,
    }
    pairs = [
        string("general.architecture") + struct.pack("<I", 8) + string(arch),
        string("general.name") + struct.pack("<I", 8) + string("name" + EVIL),
    ]
    pairs += [
        string(f"{arch}.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()
    ]
    tensors, offset = [], 0
    for name in ("token_embd.weight", "blk.0.attn_q.weight", f"blk.1.{EVIL}.weight", EVIL):
        tensors.append(string(name) + struct.pack("<IQQiQ", 2, 64, 100, 0, offset))
        offset += 64 * 100 * 4
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs + tensors)
    path.write_bytes(data + bytes(offset + 64))
    return path


@given(st.text())
def test_only_printable_text_is_left(text: str) -> None:
    said = printable(text)
    assert said.isprintable()
    assert said == text or not text.isprintable()


@given(st.text(st.sampled_from(list("\x1b[0123m;JHa\n"))))
def test_colours_are_all_that_stays(line: str) -> None:
    cleaned = _clean(line)
    for code in ("0", "1", "2", "31", "32", "33"):
        cleaned = cleaned.replace(f"\x1b[{code}m", "")
    assert cleaned.isprintable()


HERE = ("--gpu", "8GiB", "--ram", "16GiB")


@pytest.mark.parametrize(
    "words",
    [
        *[
            ("MODEL", *HERE, "--format", form)
            for form in ("text", "flags", "number", "json", *FORMATS)
        ],
        ("inspect", "MODEL"),
        ("sweep", "MODEL", "--gpus", "8GiB", "--contexts", "4096", "--types", "f16"),
        ("rules", "MODEL"),
        ("ollama", "plan", "MODEL", *HERE),
        ("ollama", "modelfile", "MODEL", *HERE),
        ("MODEL", "MODEL", *HERE, "--format", "text"),
        ("MODEL", *HERE, "-ot", "(", "--format", "text"),
        ("run", *HERE, "--dry-run", "llama-server", "-m", "MODEL"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "name", ["plain.gguf", f"{EVIL.replace('/', '')}.gguf"], ids=["name", "path"]
)
def test_nothing_hostile_is_printed(tmp_path: Path, words: tuple[str, ...], name: str) -> None:
    model = evil_model(tmp_path / name)
    done = command(*[model if word == "MODEL" else word for word in words])
    for what in (done.stdout, done.stderr):
        text = what.decode()
        assert text.replace("\n", "").isprintable(), text
        assert not any(line.strip() == "fits" for line in text.splitlines()) or words[-1] == "text"


@pytest.mark.slow
def test_closed_streams_lose_no_answer_quietly() -> None:
    """Warnings never land among the flags, and an answer that cannot be written is a failure."""
    flags = autolayers(MODEL, "--gpu", "24GiB").stdout
    assert flags.startswith(b"-ngl 17")
    for shell in ("2>&-", "2>/dev/full"):
        # with a warning
        done = autolayers(MODEL, "--gpu", "24GiB", "-np", "1", "-c", "200000", shell=shell)
        assert (done.returncode, done.stdout[:8]) == (0, b"-ngl 17 ")
        done = autolayers("nofile.gguf", shell=shell)
        assert (done.returncode, done.stdout) == (3, b"")
    for shell in (">&-", ">/dev/full"):
        for words in (
            (MODEL, "--gpu", "24GiB"),
            (MODEL, "--gpu", "24GiB", "--format", "text"),
            ("--help",),
        ):
            done = autolayers(*words, shell=shell)
            assert done.returncode == 1
            assert done.stderr.splitlines()[-1].startswith(b"autolayers: cannot write the answer: ")
            assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert autolayers(MODEL, "--gpu", "24GiB", shell="<&-").stdout == flags


@pytest.mark.slow
@pytest.mark.parametrize("encoding", few(3, ["ascii", "latin-1", "utf-8:strict"]))
def test_any_encoding_is_written(tmp_path: Path, encoding: str) -> None:
    """Text for people escapes what the terminal lacks; for programs a path is right or refused."""
    environ = {"PYTHONIOENCODING": encoding}
    assert (
        autolayers(
            "rules", "--params", "7B", "--bits", "4", "--explain", environ=environ
        ).returncode
        == 0
    )
    for name in ("caf\u00e9\u20ac.gguf", os.fsdecode(b"bad\xff.gguf")):
        model = evil_model(tmp_path / name)
        for form in ("text", "docker", "koboldcpp"):
            done = autolayers(model, *HERE, "--format", form, environ=environ)
            assert b"Traceback" not in done.stderr
            if form != "text" and done.returncode == 0:
                assert os.fsencode(name) in done.stdout or b"bad'$'\\xff''.gguf'" in done.stdout


def test_nothing_else_prints() -> None:
    """What is printed goes through autolayers.output, but for help, completion scripts and
    progress."""
    package = Path(__file__).parents[1] / "autolayers"
    allowed = {
        "output.py",
        "cli/__init__.py",
        "cli/check.py",
        "cli/completion.py",
        "cli/ollama.py",
        "cli/progress.py",
        "cli/web.py",
        "launch/background.py",
        "web/__main__.py",
    }
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "print(" in (text := path.read_text(encoding="utf-8")) or ".write(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    }
    assert found <= allowed


def test_code_of_the_current_directory_is_never_run() -> None:
    """A child that is Python runs isolated: -c alone would put the current directory first in its
    path."""
    package = Path(__file__).parents[1] / "autolayers"
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "sys.executable" in text else ():
            if (
                isinstance(node, ast.List)
                and node.elts
                and ast.unparse(node.elts[0]) == "sys.executable"
            ):
                assert "'-I'" in ast.unparse(node), path


@pytest.mark.parametrize("words", [["devices"], slow([str(MODEL)])], ids=["devices", "plan"])
def test_modules_of_the_current_directory_are_not_loaded(tmp_path: Path, words: list[str]) -> None:
    here, script = tmp_path / "model", tmp_path / "bin" / "run.py"
    here.mkdir()
    script.parent.mkdir()
    for name in (
        "json",
        "ctypes",
        "signal",
        "struct",
        "psutil",
        "requests",
        "autolayers",
        "sitecustomize",
    ):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    script.write_text(f"from autolayers.cli import main\nraise SystemExit(main({words!r}))\n")
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=here,
        capture_output=True,
        env=environ,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


@pytest.mark.parametrize(
    "words",
    few(
        3,
        [
            [
                "run",
                "--gpu",
                "8GiB",
                "llama-server",
                "-m",
                "m.gguf",
                "-mu",
                "https://user:hush@h/x?sig=hush",
            ],
            [MODEL, "--gpu", "8GiB", "--mmproj-url", "https://user:hush@h/x?sig=hush"],
            ["https://user:hush@127.0.0.1:9/x.gguf?sig=hush"],
        ],
    ),
)
def test_no_secret_of_a_url_is_printed(words: list[object]) -> None:
    done = autolayers(*words)
    assert done.returncode in (2, 3, 127) and b"hush" not in done.stdout + done.stderr


def test_a_files_name_colours_nothing_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own colours pass where we print text for people, but a file for programs has none of
    ours."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    emit("model = colour\x1b[32mFITS\x1b[0m.gguf\n")
    assert capsys.readouterr().out == "model = colour\\x1b[32mFITS\\x1b[0m.gguf\n"


@pytest.mark.parametrize(
    "columns", few(3, ["100000000", "1" + "0" * 22, "9" * 5000, "-5", "\u00b2"])
)
def test_any_columns_end_at_once(columns: str) -> None:
    done = autolayers(MODEL, "--gpu", "8GiB", "--ram", "8GiB", environ={"COLUMNS": columns})
    assert done.returncode == 0 and len(done.stdout) < 100_000 and b"Traceback" not in done.stderr
