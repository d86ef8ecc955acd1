"""Anyone who follows the page would paste a command that does not start.

From the page to a running server, as its reader does it: the command is pasted into a shell as
it stands.

llama-server is the real one; the Hub that it downloads from is here, and has a tiny model under the
repository's name.
"""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from support import FIXTURES, free_port, until

from autolayers.web.engine import Engine

pytestmark = [pytest.mark.llamacpp, pytest.mark.skipif(os.name != "posix", reason="a POSIX shell")]
REPOSITORY, FILE = "unsloth/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf"
DATA = (FIXTURES / "tiny" / "chat.gguf").read_bytes()
COMMIT = "0" * 40


class _Hub(http.server.BaseHTTPRequestHandler):
    """One repository of one file, as -hf asks for it."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        entry = {
            "type": "file",
            "path": FILE,
            "size": len(DATA),
            "oid": "1" * 40,
            "lfs": {"oid": "2" * 64, "size": len(DATA)},
        }
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}
        answers = {
            f"/api/models/{REPOSITORY}/refs": json.dumps({"branches": [branch]}).encode(),
            f"/api/models/{REPOSITORY}/tree/{COMMIT}": json.dumps([entry]).encode(),
            f"/{REPOSITORY}/resolve/{COMMIT}/{FILE}": DATA,
        }
        body = answers.get(path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_the_command_of_the_page_serves(
    binaries: pathlib.Path, hub: str, tmp_path: pathlib.Path
) -> None:
    """Model, "no GPU", RAM; the command downloads the model, starts and answers."""
    answer = Engine().call(
        "plan", {"model": "qwen3-0.6b-q8_0", "gpu": "none", "ram": "8", "ctx": "2048"}
    )
    command = answer["command"]["bash"]
    assert command.startswith(f"llama-server -hf {REPOSITORY}:Q8_0 ")
    assert answer["get"] == f"https://huggingface.co/{REPOSITORY}"
    port = free_port()
    environ = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "HF_ENDPOINT": hub,
        "HF_HOME": str(tmp_path),
        "HF_HUB_CACHE": str(tmp_path),
        "LLAMA_CACHE": str(tmp_path),
        "LLAMA_ARG_PORT": str(port),
    }
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            ["sh", "-c", command], env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: server.poll() is not None or _is_healthy(port))
        assert server.poll() is None, (tmp_path / "log").read_text()[-2000:]
        asked = json.dumps(
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        ).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            asked,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as found:
            assert json.load(found)["usage"]["completion_tokens"] == 2
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as found:
            return bool(found.status == 200)
    except (urllib.error.URLError, OSError):
        return False
