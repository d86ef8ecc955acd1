"""Anyone who asks what running servers hold would read other processes' bytes.

`autolayers ps` and `explain PID` on real processes that answer as llama-server does, and on
recorded fdinfo.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fake_ollama import FakeOllama
from support import FIXTURES, HEADERS, says, until

from autolayers.devices.held import held
from autolayers.launch.servers import servers
from autolayers.machine import Device
from autolayers.model import read_model
from autolayers.ollama.other_models import other_models
from autolayers.ollama.settings import Settings, predicted
from autolayers.sources.ollama.api import OllamaServer

GiB = 1 << 30

SERVER = """#!{python}
import http.server, json, sys
BUSY = {busy}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Authorization") != "Bearer sesame":
            self.send_response(401); self.end_headers(); return
        props = {{"build_info": "b11549-abcdef12", "total_slots": 2,
                 "default_generation_settings": {{"n_ctx": 512}}}}
        slots = [{{"id": i, "is_processing": i < BUSY}} for i in range(2)]
        answer = {{"/props": props, "/slots": slots}}.get(self.path)
        self.send_response(200 if answer else 404); self.end_headers()
        self.wfile.write(json.dumps(answer).encode())
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = tmp_path / "llama-server"
    # a script's first line admits no blank, which the environment's own folder may have
    python = os.path.realpath(sys.executable)
    program.write_text(SERVER.format(python=python, busy=1))
    program.chmod(0o755)
    model = os.path.relpath(FIXTURES / "tiny" / "dense.gguf", tmp_path)
    child = subprocess.Popen(
        [
            program,
            "-m",
            model,
            "-c",
            "1024",
            "-np",
            "2",
            "-ngl",
            "0",
            "--port",
            str(port),
            "--api-key",
            "sesame",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


@pytest.mark.skipif(os.name != "posix", reason="a script as a program")
def test_a_running_server_is_listed_with_what_it_holds(server: subprocess.Popen[str]) -> None:
    done = says("ps", "--json")
    row = next(row for row in json.loads(done.stdout)["servers"] if row["pid"] == server.pid)
    assert (row["state"], row["slots"], row["build"], row["n_ctx"]) == (
        "busy",
        {"busy": 1, "all": 2},
        11549,
        512,
    )
    assert "sesame" not in done.stdout + done.stderr and row["model"] == "dense.gguf"
    ram = next(device for device in row["devices"] if device["name"] == "RAM")
    assert ram["held"] > 1 << 20 and 0 < ram["predicted"] < 1 << 30
    assert ram["unaccounted"] == ram["held"] - ram["predicted"]
    assert row["grows"]["prompt cache"] > 0


@pytest.mark.skipif(os.name != "posix", reason="a script as a program")
def test_explain_shows_one_server_in_full(server: subprocess.Popen[str]) -> None:
    done = says("explain", str(server.pid))
    assert (
        done.returncode == 0 and "busy 1 of 2 slots" in done.stdout and "without it" in done.stdout
    )
    assert "sesame" not in done.stdout and "-c 1024 -np 2 -ngl 0" in done.stdout
    assert json.loads(says("explain", str(server.pid), "--json").stdout)["without"]["RAM"] > 0
    server.kill()
    server.wait()
    until(lambda: next(servers(server.pid), None) is None)
    gone = says("explain", str(server.pid))
    assert gone.returncode == 1 and "is not a llama-server" in gone.stderr


@pytest.fixture
def stranger() -> Iterator[tuple[int, list[bytes]]]:
    """A process of somebody else that listens on a port, and what it was sent."""
    received: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                received.append(client.recv(1 << 16))
                client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1], received


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that another user may read; pytest's own are this user's alone."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces")
@pytest.mark.parametrize(
    "launcher", [[], ["unshare", "--net"], ["setpriv", "--reuid", "65534", "--clear-groups"]]
)
@pytest.mark.parametrize(
    "words",
    [
        ["--port", "PORT", "--api-key", "SECRETKEY"],
        ["--port", "1", "--api-key", "SECRETKEY", "--api-prefix", "@127.0.0.1:PORT/x"],
    ],
)
def test_no_stranger_is_asked_or_given_the_key(
    stranger: tuple[int, list[bytes]], readable: Path, launcher: list[str], words: list[str]
) -> None:
    """In another network namespace the same port is another server's; another user's words may name
    any address."""
    if launcher and (
        os.geteuid()
        or subprocess.run([*launcher, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{launcher[0]} is not permitted")
    port, received = stranger
    program = readable / "llama-server"
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o755)
    child = subprocess.Popen(
        [*launcher, program, "-m", "x.gguf", *[word.replace("PORT", str(port)) for word in words]],
        stdin=subprocess.PIPE,
    )
    try:
        until(lambda: next(servers(child.pid), None) is not None)
        done = says("ps", "--json")
    finally:
        child.kill()
        child.communicate()
    row = next(row for row in json.loads(done.stdout)["servers"] if row["pid"] == child.pid)
    assert received == [] and row["state"] in (
        "does not answer",
        "another user's: not asked",
        "in a container's own network: not asked",
    )
    assert "SECRETKEY" not in done.stdout + done.stderr


def test_ps_refuses_a_process_and_watched_json() -> None:
    assert says("ps", "4242").returncode == 2 and says("ps", "--watch", "--json").returncode == 2


def test_what_a_process_holds_by_fdinfo(tmp_path: Path) -> None:
    """Two descriptors of one client count once; amdgpu's older key, i915's and xe's regions."""
    folder = tmp_path / "proc" / "7" / "fdinfo"
    folder.mkdir(parents=True)
    amd = (
        "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t12\n"
        "drm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t2048 KiB\n"
        "drm-memory-gtt: \t512 KiB\n"
    )
    (folder / "3").write_text(amd)
    (folder / "4").write_text(amd)
    (folder / "5").write_text(
        "drm-driver:\txe\ndrm-client-id:\t1\ndrm-pdev:\t0000:04:00.0\ndrm-total-vram0:\t9 MiB\n"
        "drm-resident-vram0:\t8 MiB\n"
    )
    (folder / "6").write_text("pos:\t0\nflags:\t02\n")
    assert held(7, str(tmp_path)) == {"0000:03:00.0": 2560 << 10, "0000:04:00.0": 8 << 20}
    assert held(8, str(tmp_path)) == {}


def test_which_models_ollama_keeps_beside_the_loaded_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own guess, the file and an f16 cache of the fewest KV heads, within 80 % of what is
    free."""
    with FakeOllama() as fake:
        for name, header in (
            ("llama3.1:8b", "llama-3.1-8b-q4_k_m"),
            ("qwen3:8b", "qwen3-8b-q4_k_m"),
            ("llama3.2:1b", "llama-3.2-1b-q8_0"),
            ("gemma2:9b", "gemma-2-9b-q4_k_m"),
        ):
            fake.add(
                name, HEADERS / f"{header}.gguf", {"num_ctx": 8192} if name == "gemma2:9b" else None
            )
        fake.loaded["llama3.1:8b"] = {
            "name": "llama3.1:8b",
            "size": 8 * GiB,
            "size_vram": 8 * GiB,
            "context_length": 4096,
            "expires_at": "2026-08-21T10:05:00Z",
        }
        gpu = Device("CUDA0", 16 * GiB, 6 * GiB)
        server = OllamaServer(f"http://{fake.host}")
        found = {
            other.name: other for other in other_models(server, [gpu], Settings(), server.ps())
        }
        assert {name: other.keeps for name, other in found.items()} == {
            "qwen3:8b": False,
            "llama3.2:1b": True,
            "gemma2:9b": False,
        }
        model = read_model(HEADERS / "qwen3-8b-q4_k_m.gguf")
        assert (
            found["qwen3:8b"].guess
            == predicted(model, model.header.n_bytes, 4096)
            > found["qwen3:8b"].allowed
        )
        assert (
            found["qwen3:8b"].allowed == int(0.8 * 6 * GiB)
            and found["qwen3:8b"].evicts == "llama3.1:8b"
        )
        # at the limit of their number one goes first, whatever fits
        assert not any(
            other.keeps for other in other_models(server, [gpu], Settings(), server.ps(), 1)
        )
        # without GPUs nothing is compared
        assert all(other.keeps for other in other_models(server, [], Settings(), server.ps()))
        monkeypatch.setenv("OLLAMA_HOST", fake.host)
        monkeypatch.setenv("HOME", str(tmp_path))
        document = json.loads(says("ps", "--json").stdout)
        assert [row["name"] for row in document["ollama"]] == ["llama3.1:8b"] and len(
            document["ollama_others"]
        ) == 3
        assert "llama3.2:1b" in says("ps").stdout
