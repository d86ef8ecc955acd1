"""A real Ollama would load another number of layers than was said.

A real Ollama, the program that AUTOLAYERS_OLLAMA_BIN names: `pytest -m ollama`. Its models are
sparse files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from fake_ollama import make_store
from support import HEADERS, command, write_gguf

from autolayers.gguf import read_header
from autolayers.ollama.modelfile import parse, rewrite
from autolayers.sources.ollama.api import NotRunning, OllamaServer
from autolayers.sources.ollama.show import header

PROGRAM = os.environ.get("AUTOLAYERS_OLLAMA_BIN", "")
pytestmark = [
    pytest.mark.ollama,
    pytest.mark.skipif(not shutil.which(PROGRAM), reason="AUTOLAYERS_OLLAMA_BIN names no program"),
]
MODEL = HEADERS / "llama-moe.gguf"  # 7 MiB


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(environment, home) of a server with one model."""
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    weights = write_gguf(
        home / "model.gguf", MODEL.read_bytes(), read_header(MODEL).files[0].promised
    )
    make_store(home / "models", "registry.ollama.ai/library/mine/8b", weights, {"num_ctx": 256})
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OLLAMA_MODELS": str(home / "models"),
        "OLLAMA_HOST": f"127.0.0.1:{port}",
    }
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "serve"], env=environ, stdout=log, stderr=log)
    asked = OllamaServer.from_environment(environ)
    for _ in range(100):
        try:
            asked.version(1.0)
            break
        except NotRunning:
            time.sleep(0.1)
    yield environ, home
    process.terminate()
    process.wait(20)


def ollama(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [PROGRAM, *words], env=environ, capture_output=True, text=True, timeout=60
    )


def autolayers(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess:
    return command("ollama", *words, environ=environ, cwd=environ["HOME"])


def test_its_description_is_the_file(server):
    """What /api/show describes has the tensors of the file."""
    environ, _ = server
    shown = header("mine:8b", OllamaServer.from_environment(environ).show("mine:8b"))
    assert {t.name: (t.type, t.ne) for t in shown.tensors.values()} == {
        t.name: (t.type, t.ne) for t in read_header(MODEL).tensors.values()
    }


def test_a_forgotten_tag_is_hinted_at(server):
    environ, _ = server
    done = autolayers(environ, "plan", "mine", "--gpu", "8GiB")
    assert done.returncode == 3 and b"there is mine:8b" in done.stderr


def test_create_changes_the_parameters_alone(server):
    environ, _ = server
    done = autolayers(
        environ, "create", "mine:8b", "--as", "mine-auto", "--gpu", "8GiB", "-c", "128"
    )
    assert done.returncode == 0, done.stderr
    server_ = OllamaServer.from_environment(environ)
    before, after = (server_.show(name) for name in ("mine:8b", "mine-auto"))
    assert sorted(after["parameters"].split()) == sorted(["num_ctx", "128", "num_gpu", "4"])
    assert before["model_info"] == after["model_info"] and before.get("template") == after.get(
        "template"
    )


@pytest.mark.parametrize(
    "text",
    [
        'FROM mine:8b\nPARAMETER stop "a b"\n',
        'FROM mine:8b\r\nSYSTEM """\r\nPARAMETER num_gpu 3\r\n"""\r\n',
        "# one\nFROM mine:8b\nPARAMETER temperature 1e-1\nPARAMETER stop x\nPARAMETER stop y\n",
        "FROM mine:8b\nPARAMETER num_gpu 3 # all\n",
        "FROM mine:8b\nPARAMETER  num_gpu 3\n",
        "PARAMETER num_gpu 3\n",
    ],
)
def test_a_rewritten_modelfile_means_the_same_to_it(server, text):
    environ, home = server
    path = Path(home / "Modelfile")
    path.write_bytes(text.encode())
    theirs = ollama(environ, "create", "other", "-f", str(path))
    ours = autolayers(environ, "modelfile", str(path), "-i", "--gpu", "8GiB", "-c", "128")
    assert (theirs.returncode == 0) == (ours.returncode == 0), (theirs.stderr, ours.stderr)
    if theirs.returncode == 0:
        assert rewrite(text.encode(), {"num_gpu": 4, "num_ctx": 128}) == path.read_bytes()
        assert ollama(environ, "create", "other", "-f", str(path)).returncode == 0
        shown = OllamaServer.from_environment(environ).show("other")["parameters"]
        assert re.search(r"num_gpu +4\b", shown) and re.search(r"num_ctx +128\b", shown)
        for stop in parse(text.encode()).parameters().get("stop", []):
            assert stop in shown


def test_verify_loads_it(server):
    environ, home = server
    done = autolayers(
        environ, "verify", "mine:8b", "-c", "128", "--json", "--log", str(home / "log")
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["verified"]
    assert found["loaded"] and not found["differences"]
