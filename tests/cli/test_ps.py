"""`autolayers ps` and `explain PID` on real processes that answer as llama-server does, and on recorded fdinfo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import FIXTURES, says

from autolayers.devices.held import held
from autolayers.launch.servers import servers

SERVER = '''#!{python}
import http.server, json, sys
BUSY = {busy}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Authorization") != "Bearer sesame":
            self.send_response(401); self.end_headers(); return
        answer = {{"/props": {{"build_info": "b11549-abcdef12", "total_slots": 2,
                             "default_generation_settings": {{"n_ctx": 512}}}},
                  "/slots": [{{"id": i, "is_processing": i < BUSY}} for i in range(2)]}}.get(self.path)
        self.send_response(200 if answer else 404); self.end_headers(); self.wfile.write(json.dumps(answer).encode())
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
'''


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = tmp_path / "llama-server"
    program.write_text(SERVER.format(python=sys.executable, busy=1))
    program.chmod(0o755)
    model = os.path.relpath(FIXTURES / "tiny" / "dense.gguf", tmp_path)
    child = subprocess.Popen([program, "-m", model, "-c", "1024", "-np", "2", "-ngl", "0", "--port", str(port),
                              "--api-key", "sesame"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


@pytest.mark.skipif(os.name != "posix", reason="a script as a program")
def test_a_running_server(server: subprocess.Popen[str]) -> None:
    done = says("ps", "--json")
    row = next(row for row in json.loads(done.stdout)["servers"] if row["pid"] == server.pid)
    assert (row["state"], row["slots"], row["build"], row["n_ctx"]) == ("busy", {"busy": 1, "all": 2}, 11549, 512)
    assert "sesame" not in done.stdout + done.stderr and row["model"] == "dense.gguf"
    ram = next(device for device in row["devices"] if device["name"] == "RAM")
    assert ram["held"] > 1 << 20 and 0 < ram["predicted"] < 1 << 30
    assert ram["unaccounted"] == ram["held"] - ram["predicted"]
    assert row["grows"]["prompt cache"] > 0


@pytest.mark.skipif(os.name != "posix", reason="a script as a program")
def test_one_in_full(server: subprocess.Popen[str]) -> None:
    done = says("explain", str(server.pid))
    assert done.returncode == 0 and "busy 1 of 2 slots" in done.stdout and "without it" in done.stdout
    assert "sesame" not in done.stdout and "-c 1024 -np 2 -ngl 0" in done.stdout
    assert json.loads(says("explain", str(server.pid), "--json").stdout)["without"]["RAM"] > 0
    server.kill()
    server.wait()
    for _ in range(50):
        if next(servers(server.pid), None) is None:
            break
        time.sleep(0.1)
    gone = says("explain", str(server.pid))
    assert gone.returncode == 1 and "no llama-server" in gone.stderr


def test_flags_of_ps() -> None:
    assert says("ps", "4242").returncode == 2 and says("ps", "--watch", "--json").returncode == 2


def test_what_a_process_holds_by_fdinfo(tmp_path: Path) -> None:
    """Two descriptors of one client count once; amdgpu's older key, i915's and xe's regions."""
    folder = tmp_path / "proc" / "7" / "fdinfo"
    folder.mkdir(parents=True)
    amd = "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t12\ndrm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t2048 KiB\n" \
          "drm-memory-gtt: \t512 KiB\n"
    (folder / "3").write_text(amd)
    (folder / "4").write_text(amd)
    (folder / "5").write_text("drm-driver:\txe\ndrm-client-id:\t1\ndrm-pdev:\t0000:04:00.0\ndrm-total-vram0:\t9 MiB\n"
                              "drm-resident-vram0:\t8 MiB\n")
    (folder / "6").write_text("pos:\t0\nflags:\t02\n")
    assert held(7, str(tmp_path)) == {"0000:03:00.0": 2560 << 10, "0000:04:00.0": 8 << 20}
    assert held(8, str(tmp_path)) == {}
