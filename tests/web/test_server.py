"""Another website could read or steer the local page.

The loopback server answers the page and nobody else.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import HEADERS, until

from autolayers import bundled
from autolayers.web.engine import LARGEST_SLICE, MAX_BUNDLED, Engine
from autolayers.web.server import MAX_QUESTION, MOST_AT_ONCE, TOKEN_HEADER, PageServer, hosts

QUESTION = json.dumps({"model": "bundled:qwen3-8b-q4_k_m", "gpu": "12GiB"})


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with PageServer(Engine(), 0) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def ask(
    server: PageServer, method: str, path: str, body: str | bytes = "", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    with closing(
        http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    ) as connection:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()


def test_the_page_asks_with_its_token(server: PageServer) -> None:
    status, headers, body = ask(server, "GET", "/")
    assert status == 200
    assert b"<title>autolayers: what is the best model my computer can run?</title>" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"] and "Server" in headers
    token = {TOKEN_HEADER: server.token}
    status, _, body = ask(server, "POST", "/call/plan", QUESTION, **token)
    assert status == 200 and json.loads(body)["plan"]["fits"]
    data = (HEADERS / "qwen3-8b-q4_k_m.gguf").read_bytes()
    status, _, body = ask(server, "POST", f"/add?name=a%20b.gguf&size={len(data)}", data, **token)
    assert json.loads(body)["model"]["name"] == "a b.gguf"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nobody_else_gets_an_answer(
    server: PageServer, method: str, headers: dict[str, str]
) -> None:
    status, _, body = ask(
        server, method, "/call/plan", QUESTION, **{TOKEN_HEADER: server.token, **headers}
    )
    assert status == 403 and b"qwen" not in body


@pytest.mark.parametrize("token", ["", "x", "é"])
def test_nobody_without_the_token_gets_an_answer(server: PageServer, token: str) -> None:
    status, _, body = ask(
        server, "POST", "/call/plan", QUESTION, **{TOKEN_HEADER: token.encode().decode("latin-1")}
    )
    assert status == 403 and b"plan" not in body


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/../pyproject.toml", "", 404),
        ("GET", "/%2e%2e/engine.py", "", 404),
        ("GET", "/engine.py", "", 404),
        ("GET", "/headers.zip", "", 404),
        ("POST", "/call/plan", "{", 400),
        ("POST", "/call/plan", "[]", 400),
        ("POST", "/call/plan", "[" * 100000, 400),
        ("PUT", "/", "", 501),
        ("OPTIONS", "/call/plan", "", 501),
    ],
)
def test_bad_requests_are_refused(
    server: PageServer, method: str, path: str, body: str, status: int
) -> None:
    assert ask(server, method, path, body, **{TOKEN_HEADER: server.token})[0] == status


@pytest.mark.parametrize(
    ("path", "length"),
    [
        ("/call/plan", str(MAX_QUESTION + 1)),
        ("/add", str(LARGEST_SLICE + 1)),
        ("/call/plan", "-1"),
        ("/call/plan", "9" * 400),
        ("/add", "x"),
    ],
)
def test_a_body_too_long_is_not_waited_for(server: PageServer, path: str, length: str) -> None:
    assert (
        ask(server, "POST", path, "", Content_Length=length, **{TOKEN_HEADER: server.token})[0]
        == 413
    )


@pytest.mark.parametrize(("port", "there"), [(80, True), (8080, False)])
def test_a_browser_leaves_the_port_of_http_out(port: int, there: bool) -> None:
    assert ("localhost" in hosts(port)) is there and f"127.0.0.1:{port}" in hosts(port)


def test_only_loopback_listens(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_the_command_serves_until_interrupted() -> None:
    words = [
        sys.executable,
        "-m",
        "autolayers",
        "web",
        "--no-browser",
        str(HEADERS / "qwen3-8b-q4_k_m.gguf"),
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().strip()
        port, token = int(url.split(":")[2].split("/")[0]), url.partition("token=")[2]
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
            connection.request("POST", "/call/start", "{}", {TOKEN_HEADER: token})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        assert answer["here"] and str(HEADERS / "qwen3-8b-q4_k_m.gguf") in answer["models"]
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(300) == 130


def test_a_port_that_is_taken_is_named() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "autolayers", "web", "--no-browser", "--port", str(port)],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2 and done.stderr.startswith(f"autolayers: --port {port}: ")
    assert "Traceback" not in done.stderr


def test_a_link_opens_the_page_and_nothing_else(server: PageServer) -> None:
    """From the file that the command leads the browser by: the page, but no question, and in no
    frame."""
    link = {
        "Sec_Fetch_Site": "cross-site",
        "Sec_Fetch_Mode": "navigate",
        "Sec_Fetch_Dest": "document",
    }
    assert ask(server, "GET", "/?token=x", **link)[0] == 200
    assert ask(server, "GET", "/", **{**link, "Sec_Fetch_Dest": "iframe"})[0] == 403
    assert ask(server, "GET", "/app.js", **link)[0] == 403
    assert (
        ask(server, "POST", "/call/start", "{}", **{TOKEN_HEADER: server.token, **link})[0] == 403
    )


@pytest.mark.skipif(os.name != "posix", reason="a shell script as the browser")
def test_the_token_is_on_no_command_line(tmp_path: Path) -> None:
    """The browser gets a file that only its user can read."""
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/argv.part\ncp "${{1#file://}}" '
        f"{tmp_path}/page\n"
        f'stat -c %a "${{1#file://}}" > {tmp_path}/mode\nmv {tmp_path}/argv.part '
        f"{tmp_path}/argv\n"
    )
    browser.chmod(0o700)
    with subprocess.Popen(
        [sys.executable, "-m", "autolayers", "web"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": f"{browser} %s"},
    ) as process:
        assert process.stderr is not None
        token = process.stderr.readline().strip().partition("token=")[2]
        until((tmp_path / "argv").exists)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(300) == 130
    argv = (tmp_path / "argv").read_text()
    assert (
        argv.startswith("file://")
        and token not in argv
        and token in (tmp_path / "page").read_text()
    )
    assert (tmp_path / "mode").read_text() == "600\n" and not Path(
        argv.strip().removeprefix("file://")
    ).exists()


def test_the_page_computes_nothing_for_a_tab_that_was_closed(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(server.engine, "call", lambda name, _: asked.append(name) or {})
    for _ in range(MOST_AT_ONCE):
        assert server.lanes.acquire(timeout=300)
    closed = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    closed.request("POST", "/call/closed", "{}", {TOKEN_HEADER: server.token})
    stays = threading.Thread(
        target=ask,
        args=(server, "POST", "/call/stays", "{}"),
        kwargs={"X_Autolayers_Token": server.token},
    )
    stays.start()
    closed.close()
    for _ in range(MOST_AT_ONCE):
        server.lanes.release()
    stays.join(300)
    assert asked == ["stays"]


@pytest.mark.slow
def test_a_page_holds_a_few_bundled_models() -> None:
    engine = Engine()
    for name in bundled.models():
        engine.model(name)
    assert len(engine._bundled) == MAX_BUNDLED < len(bundled.models())


def _said(server: PageServer, text: bytes) -> bytes:
    """Everything that the server answers on one connection."""
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    return answer


def test_the_body_of_a_get_is_no_second_request(server: PageServer) -> None:
    host = f"Host: 127.0.0.1:{server.server_port}\r\n".encode()
    inner = b"GET /config.json HTTP/1.1\r\n" + host + b"\r\n"
    length = f"Content-Length: {len(inner)}\r\n\r\n".encode()
    answer = _said(server, b"GET /config.json HTTP/1.1\r\n" + host + length + inner)
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("twice", ["Host: 127.0.0.1:{}", "Origin: http://127.0.0.1:{}"])
def test_a_header_that_is_there_twice_is_refused(server: PageServer, twice: str) -> None:
    port = server.server_port
    line = twice.format(port) + "\r\n"
    extra = "" if line.startswith("Host") else f"Host: 127.0.0.1:{port}\r\n"
    answer = _said(server, f"GET / HTTP/1.1\r\n{extra}{line}{line}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1
