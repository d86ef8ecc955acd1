"""Requests behind a written balancer would fail when one server ends.

The balancers' files with the real programs before real servers: each model's requests are
answered, and go on while one server is gone.

Binaries: $AUTOLAYERS_LLAMACPP_BIN, or tests/build_llamacpp.sh builds them; haproxy, nginx and
litellm where they are found on the path.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import BOX, CHAT, FILES, Server, balancer_of
from support import free_port

from autolayers.cli import main

pytestmark = [
    pytest.mark.llamacpp,
    pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is Linux's"),
]
NAMES = ("chat", "talk")
KEY = "sk-test"
CHATS = 24


@pytest.fixture
def servers(
    binaries: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Iterator[list[Server]]:
    """Two servers of each of two models, on four machines."""
    paths = [str(tmp_path / f"{name}.gguf") for name in NAMES]
    for path in paths:
        shutil.copy(CHAT, path)
    (tmp_path / "fleet.json").write_text(json.dumps({"machines": {"box": {**BOX, "count": 4}}}))
    words = ["fleet", str(tmp_path / "fleet.json"), *paths, "--users", "8", "-t", "1"]
    for form in ("compose", *FILES):
        assert main([*words, "--format", form, "-o", str(tmp_path)]) == 0
    capfd.readouterr()
    started = []
    try:
        for number in range(1, 5):
            file = tmp_path / f"box-{number}" / "compose.yaml"
            log = tmp_path / f"log-{number}"
            program = binaries / "llama-server"
            started.append(Server(file, f"127.0.0.{number}", program, None, log))
        for server in started:
            server.answers()
        yield started
    finally:
        for server in started:
            server.process.kill()
            server.process.wait()


def chat(port: int, place: str, model: str) -> int:
    body = {
        "model": model,
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "hello"}],
    }
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        asked.request("POST", f"{place}/v1/chat/completions", json.dumps(body), headers)
        answer = asked.getresponse()
        text = answer.read()
        assert answer.status != 200 or json.loads(text)["choices"], text
        return answer.status
    finally:
        asked.close()


@pytest.mark.parametrize("kind", FILES)
def test_requests_go_on_while_a_server_is_gone(
    kind: str, servers: list[Server], tmp_path: Path
) -> None:
    program = shutil.which(kind, path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        pytest.skip(f"no {kind}")
    port = free_port()
    words = balancer_of(kind, tmp_path, port)
    environment = {**os.environ, "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    log = (tmp_path / "balancer.log").open("wb")
    balancer = subprocess.Popen(
        [program, *words], cwd=tmp_path, env=environment, stdout=log, stderr=log
    )
    try:
        until = time.monotonic() + 180
        while True:
            try:
                if chat(port, "" if kind == "litellm" else "/chat", "chat") == 200:
                    break
            except OSError:
                pass
            assert balancer.poll() is None and time.monotonic() < until, (
                tmp_path / "balancer.log"
            ).read_text(errors="replace")[-2000:]
            time.sleep(0.5)
        places = [("" if kind == "litellm" else f"/{name}", name) for name in NAMES]

        def ask(number: int) -> int:
            return chat(port, *places[number % 2])

        assert [*map(ask, range(CHATS))] == [200] * CHATS
        servers[0].process.kill()
        servers[0].process.wait()
        # HAProxy has a queue: all at once are more than the slots that are left
        with ThreadPoolExecutor(CHATS if kind == "haproxy" else 1) as pool:
            assert [*pool.map(ask, range(CHATS))] == [200] * CHATS
    finally:
        balancer.terminate()
        balancer.wait()
        log.close()
