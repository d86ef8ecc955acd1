"""A program that asks over HTTP would get other answers than from the command line.

`autolayers serve` answers what --json prints, and nobody without the token.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from support import HEADERS, few

import autolayers
from autolayers.api import plan_within
from autolayers.web.server import MAX_QUESTION, MOST_AT_ONCE
from autolayers.web.service import MOST_MODELS, Service, Watched, openapi

FILE = str(HEADERS / "llama-3.2-1b-q8_0.gguf")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(autolayers.read_model, {}, token="secret") as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def ask(
    port: int, path: str, question: Any = None, token: str = "secret", **headers: str
) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        body = question if isinstance(question, (str, bytes)) else json.dumps(question)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if question is None:
            connection.request("GET", path, headers=named)
        else:
            connection.request("POST", path, body, {"Authorization": f"Bearer {token}", **named})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_a_plan_is_the_command_lines(service: Service) -> None:
    words = ["--gpu", "8GiB", "--ram", "32GiB", "-c", "8192"]
    wanted = json.loads(
        json.dumps(autolayers.plan(FILE, words, explain=True, advise=True).to_dict())
    )
    status, said = ask(service.server_port, "/plan", {"model": FILE, "flags": words})
    assert (status, said) == (200, wanted)
    status, named = ask(
        service.server_port,
        "/plan",
        {"model": FILE, "flags": {"gpu": "8GiB", "ram": "32GiB", "c": 8192}, "explain": False},
    )
    assert named["flags"] == wanted["flags"] and named["alternatives"] == [] and status == 200


def test_a_small_question_passes_a_large_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()

    def slowly(name: str) -> autolayers.Model:
        if name == "slow":
            begun.set()
            end.wait(300)
        return autolayers.read_model(FILE)

    monkeypatch.setattr(service, "open_model", slowly)
    words = ["--gpu", "8GiB", "--ram", "32GiB", "-c", "8192"]
    slow = threading.Thread(
        target=ask,
        args=(service.server_port, "/plan", {"model": "slow", "flags": words, "explain": False}),
    )
    slow.start()
    assert begun.wait(300)
    small = {"model": "small", "flags": words, "explain": False}
    assert ask(service.server_port, "/plan", small)[0] == 200 and slow.is_alive()
    end.set()
    slow.join(300)


def test_nothing_is_computed_for_a_client_that_has_gone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        service, "open_model", lambda name: opened.append(name) or autolayers.read_model(FILE)
    )
    for _ in range(MOST_AT_ONCE):
        assert service.lanes.acquire(timeout=300)
    waiting = http.client.HTTPConnection("127.0.0.1", service.server_port, timeout=300)
    waiting.request(
        "POST", "/plan", json.dumps({"model": "gone"}), {"Authorization": "Bearer secret"}
    )
    stays = threading.Thread(
        target=ask,
        args=(
            service.server_port,
            "/plan",
            {"model": "stays", "flags": ["--gpu", "8GiB", "--ram", "8GiB"], "explain": False},
        ),
    )
    stays.start()
    waiting.close()
    for _ in range(MOST_AT_ONCE):
        service.lanes.release()
    stays.join(300)
    assert opened == ["stays"]


def test_a_search_ends_when_its_client_goes() -> None:
    plan = plan_within(
        Watched(lambda: True), autolayers.read_model(FILE), ["--gpu", "1GiB,1GiB", "--ram", "32GiB"]
    )
    assert any("ended early" in warning for warning in plan.warnings)


def test_a_log_is_explained_and_files_are_compared(service: Service) -> None:
    log = (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: "
        "cudaMalloc failed: out of "
        "memory"
    )
    status, said = ask(service.server_port, "/explain", {"log": log})
    assert (status, said["cause"]) == (200, "oom_device")
    status, said = ask(service.server_port, "/choose", {"models": [FILE], "flags": {"gpu": "8GiB"}})
    assert status == 200 and said["advice"]["take"] == FILE and said["files"][0]["n_ctx"] > 0


@pytest.mark.parametrize(
    ("path", "question", "status", "error"),
    [
        ("/plan", {"model": FILE, "flags": ["--gpus", "1"]}, 400, "--gpus is no flag"),
        ("/plan", {"model": FILE, "flags": {"gpuu": 1}}, 400, "no flag is called 'gpuu': gpu?"),
        ("/plan", {"model": FILE, "flags": "x"}, 400, '"flags" is a list'),
        ("/plan", {"model": "nowhere.gguf"}, 404, "nowhere.gguf"),
        ("/plan", {}, 400, '"model" is a text'),
        ("/plan", [], 400, "not a JSON object"),
        ("/plan", "{", 400, "not a JSON object"),
        ("/choose", {"models": [FILE] * (MOST_MODELS + 1)}, 400, f"at most {MOST_MODELS}"),
        ("/explain", {"log": ""}, 400, '"log" is a text'),
        ("/no", {}, 404, "/plan"),
        ("/plan", b"x" * (MAX_QUESTION + 1), 413, "at most"),
    ],
)
def test_errors_are_the_command_lines(
    service: Service, path: str, question: Any, status: int, error: str
) -> None:
    found = ask(service.server_port, path, question)
    assert found[0] == status and error in found[1]["error"]
    assert status not in (400, 404) or found[1].get("exit_code", 2) in (2, 3)


@pytest.mark.parametrize(
    ("path", "question", "said"),
    [
        ("/plan", {"model": FILE, "gpu": "rtx-3060"}, '"gpu" is a flag: "flags": {"gpu": ...}'),
        (
            "/plan",
            {"model": FILE, "words": ["--gpu", "8GiB"]},
            'unknown key "words": those of /plan are "model", "flags"',
        ),
        ("/explain", {"log": "x", "model": FILE}, '"model"'),
        ("/choose", {"models": [FILE], "n_ctx": 8192}, '"n_ctx"'),
    ],
)
def test_a_key_that_a_question_has_not_is_refused(
    service: Service, path: str, question: Any, said: str
) -> None:
    """A plan for the server's own machine was the answer to a --gpu in the wrong place."""
    status, answer = ask(service.server_port, path, question)
    assert status == 400 and answer["exit_code"] == 2 and said in answer["error"]
    schema = openapi()["paths"][path]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert (
        schema["additionalProperties"] is False
        and not schema["properties"].keys() >= question.keys()
    )


def test_nobody_else_is_answered(service: Service) -> None:
    question = {"model": FILE, "flags": ["--gpu", "8GiB"]}
    port = service.server_port
    assert ask(port, "/plan", question, token="wrong")[0] == 401
    assert ask(port, "/plan", question, Origin="https://evil.example")[0] == 403
    assert ask(port, "/plan", question, Host="evil.example")[0] == 403
    assert ask(port, "/openapi.json", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(port, "/nothing")[0] == 404


def test_the_interface_is_described(service: Service) -> None:
    status, said = ask(service.server_port, "/openapi.json")
    assert status == 200 and said == json.loads(json.dumps(openapi()))
    assert set(said["paths"]) == {"/plan", "/explain", "/choose"} and said["openapi"].startswith(
        "3.1"
    )
    for path in said["paths"].values():
        schema = path["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["required"]) <= set(schema["properties"])


def test_many_clients_at_once_are_all_accepted() -> None:
    with Service(autolayers.read_model, {}, token="secret") as waiting, ExitStack() as clients:
        for _ in range(100):  # none is answered yet
            clients.enter_context(socket.create_connection(("127.0.0.1", waiting.server_port), 5))


def test_an_address_that_is_none_is_refused(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.server_port), 10) as client:
        client.sendall(b"GET http://[/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_defect_is_answered(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service.RequestHandlerClass, "do_GET", lambda self: 1 / 0)
    with closing(
        http.client.HTTPConnection("127.0.0.1", service.server_port, timeout=300)
    ) as connection:
        connection.request("GET", "/openapi.json")
        assert connection.getresponse().status == 500
    assert "a defect, please report it: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("token", few(2, ["x", " " * 12, "mine\u00e9-for-now", "mine\nfor-now"]))
def test_a_token_that_no_client_can_send_or_anybody_guesses_is_refused(token: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", "serve"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "AUTOLAYERS_TOKEN": token},
        check=False,
    )
    assert (
        done.returncode == 2 and "a token has 8 or more printable ASCII characters" in done.stderr
    )


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_the_command_serves_until_it_is_interrupted() -> None:
    environ = {**os.environ, "AUTOLAYERS_TOKEN": "mine-for-now"}
    with subprocess.Popen(
        [sys.executable, "-m", "autolayers", "serve"],
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as started:
        assert started.stderr is not None
        line = started.stderr.readline()
        port = int(re.findall(r"127\.0\.0\.1:(\d+)", line)[0])
        assert "mine" not in line and "AUTOLAYERS_TOKEN" in line
        assert (
            ask(port, "/plan", {"model": FILE, "flags": {"gpu": "8GiB"}}, token="mine-for-now")[0]
            == 200
        )
        started.send_signal(signal.SIGINT)
        assert started.wait(300) == 130
