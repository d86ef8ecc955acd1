"""A silent or broken Ollama server would hang the program.

Ollama's server, over real HTTP: what it answers, and every way in which it does not.
"""

from __future__ import annotations

import socket

import pytest
from fake_ollama import FakeOllama
from support import HEADERS

from autolayers.errors import AutolayersError, ModelError
from autolayers.gguf import read_header
from autolayers.sources.ollama.api import (
    NoSuchModel,
    NotRunning,
    OllamaError,
    OllamaServer,
    Refused,
    base_url,
)
from autolayers.sources.ollama.show import header
from autolayers.sources.ollama.store import Name

LLAMA = HEADERS / "llama-3.1-8b-q4_k_m.gguf"


@pytest.fixture
def fake():
    with FakeOllama() as server:
        server.add("llama3.1:8b", LLAMA)
        yield server


@pytest.fixture
def server(fake):
    return OllamaServer.from_environment(fake.environ)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("example.com", "http://example.com:11434"),
        ("example.com:1234", "http://example.com:1234"),
        (":1234", "http://127.0.0.1:1234"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://[::1]:8080"),
        ("::", "http://[::1]:11434"),
        ("::1", "http://[::1]:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[2001:db8::1]:99", "http://[2001:db8::1]:99"),
        ("http://example.com", "http://example.com:80"),
        ("https://example.com", "https://example.com:443"),
        ("https://example.com:8443/ollama/", "https://example.com:8443/ollama"),
        ("http://example.com/a/b", "http://example.com:80/a/b"),
        ("example.com/a", "http://example.com:11434/a"),
        ("ollama.com", "https://ollama.com:443"),
        ("example.com:99999", "http://example.com:11434"),
        ("example.com:x", "http://example.com:11434"),
        ("  'example.com:1' ", "http://example.com:1"),
        ("localhost:", "http://localhost:11434"),
    ],
)
def test_ollama_host_is_read_in_all_its_forms(host, url):
    assert base_url(host) == url


@pytest.mark.parametrize("host", ["ftp://x", "http://user:secret@host:1", "a b", "x\ny"])
def test_what_is_no_host(host):
    with pytest.raises(OllamaError) as error:
        base_url(host)
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


def test_each_call_is_answered(fake, server):
    assert server.version() == "0.33.0"
    assert server.has(Name.parse("LLAMA3.1:8B")) and not server.has(Name.parse("llama3.1"))
    server.load("llama3.1:8b", {"num_gpu": 33, "num_ctx": 8192})
    assert [(entry["name"], entry["context_length"]) for entry in server.ps()] == [
        ("llama3.1:8b", 8192)
    ]
    server.unload("llama3.1:8b")
    assert server.ps() == []
    server.create("mine", "llama3.1:8b", {"num_gpu": 33})
    assert fake.models["mine:latest"]["parameters"] == {"num_gpu": 33}


def test_a_path_before_the_api_is_kept(fake):
    fake.prefix = "/behind/a/proxy"
    assert (
        OllamaServer.from_environment(
            {"OLLAMA_HOST": f"http://{fake.host}/behind/a/proxy/"}
        ).version()
        == "0.33.0"
    )


def test_a_missing_server_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(NotRunning, match="ollama serve"):
        OllamaServer.from_environment({"OLLAMA_HOST": f"127.0.0.1:{port}"}).version()


def test_a_proxy_for_the_outside_is_not_asked(fake, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert OllamaServer.from_environment(fake.environ).version() == "0.33.0"


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ('500 option \\"num_gpu\\" must be of type integer', Refused, "must be of type integer"),
        ("503", Refused, "its queue is full"),
        ("bare500", Refused, "Internal Server"),
        ("empty", OllamaError, "answered nothing"),
        ("nonsense", OllamaError, "not an answer of Ollama"),
        ("stream max retries exceeded", Refused, "max retries exceeded"),
        ("short", OllamaError, "the connection broke"),
        ("reset", OllamaError, "the connection broke"),
        ("redirect http://elsewhere.invalid/", OllamaError, "set OLLAMA_HOST"),
    ],
)
def test_every_fault_is_one_clear_line(fake, server, fault, kind, words):
    for path, call in (
        ("/api/tags", server.tags),
        ("/api/ps", server.ps),
        ("/api/show", lambda: server.show("llama3.1:8b")),
        ("/api/create", lambda: server.create("n", "llama3.1:8b", {})),
        ("/api/generate", lambda: server.load("llama3.1:8b", {})),
    ):
        fake.faults = {path: fault}
        with pytest.raises(kind, match=words) as error:
            call()
        assert (
            "\n" not in str(error.value)
            and "\x1b" not in str(error.value)
            and len(str(error.value)) < 700
        )
        assert fake.host in str(error.value)


@pytest.mark.parametrize("fault", ["slow 3", "endless"])
def test_a_server_that_takes_its_time_is_given_up(fake, fault):
    fake.faults["/api/tags"] = fault
    with pytest.raises(OllamaError, match=r"did not answer within|does not end"):
        OllamaServer(f"http://{fake.host}", timeout=0.3).tags()


def test_a_model_that_is_not_there(server):
    with pytest.raises(NoSuchModel, match="has no model nope"):
        server.show("nope")
    with pytest.raises(NoSuchModel, match="has no model nope"):
        server.load("nope", {})


def test_a_success_that_is_none(fake, server):
    fake.faults["/api/create"] = "unfinished"
    with pytest.raises(OllamaError, match="did not say that n was created"):
        server.create("n", "llama3.1:8b", {})


def test_out_of_memory_is_told_from_other_refusals(fake, server):
    fake.fits_layers = 10
    with pytest.raises(Refused) as error:
        server.load("llama3.1:8b", {"num_gpu": 33})
    assert error.value.out_of_memory
    fake.oom = "model requires more system memory (12 GiB) than is available"
    with pytest.raises(Refused) as error:
        server.load("llama3.1:8b", {"num_gpu": 33})
    assert not error.value.out_of_memory


def test_a_token_goes_nowhere_else(fake):
    with FakeOllama() as other:
        fake.faults["/api/tags"] = f"redirect http://{other.host}/api/tags"
        with pytest.raises(OllamaError, match="set OLLAMA_HOST"):
            OllamaServer(f"http://{fake.host}", token="secret").tags()
        assert other.requests == []
    assert fake.headers[-1]["Authorization"] == "Bearer secret"
    OllamaServer.from_environment({**fake.environ, "OLLAMA_API_KEY": "secret"}).version()
    assert "Authorization" not in fake.headers[-1]


@pytest.mark.parametrize(
    "path",
    [*sorted(HEADERS.glob("*-q*.gguf")), HEADERS / "gpt-oss-20b-mxfp4.gguf"],
    ids=lambda path: path.stem,
)
def test_what_the_server_shows_is_the_file_s_header(fake, server, path):
    fake.add("m", path)
    from_server, there = header("m", server.show("m")), read_header(path)
    assert {k: v for k, v in from_server.metadata.items() if k != "general.name"} == {
        k: v
        for k, v in there.metadata.items()
        if k not in ("general.name", "tokenizer.chat_template")
    }
    assert [(t.name, t.type, t.ne, t.n_bytes) for t in from_server.tensors.values()] == [
        (t.name, t.type, t.ne, t.n_bytes) for t in there.tensors.values()
    ]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"model_info": {}, "tensors": []},
        {"model_info": None, "tensors": [{"name": "x"}]},
        {"model_info": {}, "tensors": [{"name": "x", "type": "F32", "shape": [-1]}]},
        {"model_info": {}, "tensors": [{"name": "x", "type": "F32", "shape": "4"}]},
        {"model_info": {}, "tensors": ["x"]},
    ],
)
def test_an_answer_that_says_too_little(answer):
    with pytest.raises(ModelError):
        header("m", answer)


def test_an_unknown_tensor_type_is_never_counted_low():
    found = header(
        "m", {"model_info": {}, "tensors": [{"name": "x", "type": "Q9_Z", "shape": [32, 2]}]}
    )
    assert (
        found.tensors["x"].n_bytes == 256
        and not found.tensors["x"].exact
        and "Q9_Z" in found.warnings[0]
    )


def test_all_errors_are_ours():
    assert issubclass(OllamaError, AutolayersError) and issubclass(NoSuchModel, AutolayersError)


@pytest.mark.parametrize(
    "parts", [b"{}," * ((1 << 18) + 1), b"1," * ((3 << 20) + 1), b'{"a":1},' * (1 << 18)]
)
def test_an_answer_of_too_many_parts_is_not_read(fake, server, parts):
    """Each takes up to a hundred bytes in memory, and two in the answer."""
    fake.faults["/api/show"] = "content"
    fake.content = b'{"model_info": [' + parts + b"0]}"
    with pytest.raises(OllamaError, match="not an answer of Ollama") as error:
        server.show("llama3.1:8b")
    assert len(str(error.value)) < 600


def test_this_machine_is_known_by_its_name():
    assert OllamaServer(f"http://{socket.gethostname().lower()}:1").is_local
    assert not OllamaServer("http://another-machine.example:1").is_local
