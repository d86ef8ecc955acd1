"""Anyone who pastes a printed command would run a stranger's words.

Commands that are printed, through the shells that people paste them into: a stranger's words in
them stay words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import HEADERS, few

from autolayers import bundled
from autolayers.cli import main
from autolayers.web.engine import Engine

pytestmark = pytest.mark.skipif(os.name == "nt", reason="shells of POSIX")

SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "fish", "mksh") if shutil.which(shell)]
# The words of a file's name and of a log's --alias
HOSTILE = [
    "m\\'$(touch P)'\\'",
    "m\u202e';touch P;#",
    'a\'b`touch P`"$(touch P)"',
    "x\\",
    "~ !! {a,b} %self (touch P)",
]
LOG = """\
$ llama-server -m /models/llama-3.1-8b-Q4_K_M.gguf -a {alias} -c 131072
build: 11549 (abc) with cc
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) - 8000 MiB free
ggml_backend_cuda_buffer_type_alloc_buffer: \
allocating 8300.00 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 8703180800
llama_model_load: error loading model: unable to allocate CUDA0 buffer
"""


def program_lines(text: str, *programs: str) -> list[str]:
    starts = tuple(f"{name} " for name in programs)
    return [line.strip() for line in text.splitlines() if line.strip().startswith(starts)]


def run(line: str, word: str, tmp_path: Path) -> None:
    """In every shell: nothing of it runs, and the program gets the word if that is printable."""
    home, folder = tmp_path / "home", tmp_path / "empty"
    home.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    for name in ("llama-server", "docker", "koboldcpp", "lms"):
        (home / name).write_text(
            f'#!/bin/sh\nfor word in "$@"; do printf \'%s\\0\' "$word"; done > {home}/said\n'
        )
        (home / name).chmod(0o755)
    for shell in SHELLS:
        (home / "said").unlink(missing_ok=True)
        subprocess.run(
            [shell, "-c", line.encode("utf-8", "surrogateescape")],
            capture_output=True,
            check=False,
            cwd=folder,
            env={"PATH": f"{home}:{os.environ['PATH']}", "HOME": str(home), "LC_ALL": "C.UTF-8"},
        )
        assert not list(folder.iterdir()), (shell, line)
        if word.isprintable() or shell in ("bash", "zsh", "mksh"):
            said = (home / "said").read_bytes().decode().split("\0")
            assert any(word in each for each in said), (shell, line, said)


def plan_of(form: str) -> Callable[[Path, pytest.CaptureFixture[str]], str]:
    def text(path: Path, capfd: pytest.CaptureFixture[str]) -> str:
        assert (
            main([str(path), "--gpu", "8GiB", "--ram", "16GiB", "-c", "2048", "--format", form])
            == 0
        )
        return capfd.readouterr().out

    return text


def several(path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    assert (
        main(["plan", str(path), str(path), "--gpu", "8GiB", "--format", "flags", "-np", "1"]) == 0
    )
    return "llama-server " + capfd.readouterr().out.splitlines()[0]


def dry(path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    assert main(["run", "--dry-run", "--gpu", "8GiB", "llama-server", "-m", str(path)]) == 0
    return capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "text",
    [plan_of("text"), plan_of("docker"), plan_of("koboldcpp"), several, dry],
    ids=["text", "docker", "koboldcpp", "several", "dry-run"],
)
def test_a_file_may_have_any_name(
    text: Callable[[Path, pytest.CaptureFixture[str]], str],
    name: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    path = models / f"{name}.gguf"
    shutil.copy(HEADERS / "llama-dense.gguf", path)
    (line,) = program_lines(text(path, capfd), "llama-server", "docker", "koboldcpp")
    run(line, path.name, tmp_path)


@pytest.mark.parametrize("alias", few(2, HOSTILE))
def test_a_log_may_have_any_words(
    alias: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    quoted = "'" + alias.replace("'", "'\"'\"'") + "'"
    log.write_text(LOG.format(alias=quoted))
    main(["explain", str(log)])
    (line,) = program_lines(capfd.readouterr().out, "llama-server")
    run(line, alias, tmp_path)


@pytest.mark.parametrize("path", HOSTILE)
def test_the_page_gives_any_path(path: str, tmp_path: Path) -> None:
    name = f"bundled:{bundled.models()[0]}"
    answer = Engine().call(
        "plan", {"model": name, "gpu": "24", "ram": "64", "path": f"{path}.gguf"}
    )
    line = answer["command"]["bash"]
    assert line.isprintable()
    run(line, path, tmp_path)
