"""A model on the Hub would be downloaded whole, or its token sent to a stranger.

Models that are not files here: over real HTTP, from a Hub, from Ollama; what is fetched, sent
and said.
"""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from fake_ollama import FakeOllama
from fake_web import Repository, Web, status
from support import FIXTURES, slow

from autolayers.cli import main
from autolayers.errors import ModelError
from autolayers.gguf import read_header
from autolayers.model import read_model
from autolayers.net import Limit
from autolayers.sources import http, huggingface, needs_download, open_source
from autolayers.sources.http import Remote
from autolayers.sources.huggingface import Hub, choose

TINY = FIXTURES / "tiny"
DENSE = (TINY / "dense.gguf").read_bytes()
LLAMA = FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf"
LLAMA_SIZE = json.loads((FIXTURES / "headers" / "sizes.json").read_text())[LLAMA.stem]


@pytest.fixture
def web():
    server = Web()
    yield server
    server.close()


@pytest.fixture
def other():
    server = Web()
    yield server
    server.close()


def said(name: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ModelError) as error:
        read_header(open_source(name, environ or {}))
    text = str(error.value)
    assert "\n" not in text and len(text) < 600
    return text


# --- what a name is


def test_a_path_stays_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_source("C:\\models\\m.gguf", {}) == "C:\\models\\m.gguf"
    assert said("no.gguf") == "no.gguf: no such file"
    assert needs_download("hf:a") and not needs_download("a.gguf")
    Path("hf:a").write_bytes(DENSE)
    assert open_source("hf:a", {}) == "hf:a"


def test_what_cannot_be_read_says_what_can() -> None:
    for name in ("s3://bucket/m.gguf", "docker:ai/smollm2", "file:///m.gguf"):
        assert said(name) == (
            f"{name}: cannot be read from here; give a path, http(s)://..., hf:USER/REPO or "
            f"ollama:NAME"
        )


# --- HTTP


@pytest.mark.parametrize("ranges", [True, False])
def test_only_the_header_of_a_large_file_is_fetched(web: Web, ranges: bool) -> None:
    web.files["/m.gguf"], web.sizes["/m.gguf"], web.ranges = LLAMA.read_bytes(), LLAMA_SIZE, ranges
    header = read_header(open_source(web.url + "/m.gguf", {}))
    assert header.tensors == read_header(LLAMA).tensors
    assert header.files[0].size == LLAMA_SIZE and not header.truncated and header.warnings == ()
    assert header.files[0].path == web.url + "/m.gguf"
    assert web.sent < 16 << 20 < LLAMA_SIZE
    assert (
        web.requests[0][1]["range"] == "bytes=0-1048575"
        and web.requests[0][1]["accept-encoding"] == "identity"
    )


def test_a_header_longer_than_one_range_takes_the_next(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "FIRST", 4096)
    web.files["/m.gguf"] = LLAMA.read_bytes()
    web.sizes["/m.gguf"] = LLAMA_SIZE
    assert read_header(open_source(web.url + "/m.gguf", {})).tensors == read_header(LLAMA).tensors
    assert [headers["range"] for _, headers in web.requests] == ["bytes=0-4095", "bytes=4096-20479"]


def test_a_file_that_is_too_short_is_incomplete_here_as_on_a_disk(web: Web) -> None:
    web.files["/m.gguf"] = LLAMA.read_bytes()
    header = read_header(open_source(web.url + "/m.gguf", {}))
    assert header.truncated and f"{len(LLAMA.read_bytes())} bytes" in header.warnings[0]


def test_a_server_may_tell_no_size(web: Web) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(DENSE)
        handler.close_connection = True

    web.answers["/m.gguf"] = answer
    header = read_header(open_source(web.url + "/m.gguf", {}))
    assert header.files[0].size is None and not header.truncated


def test_all_parts_of_a_split_model_by_their_names(web: Web) -> None:
    for i in (1, 2, 3):
        web.files[f"/d/split-{i:05d}-of-00003.gguf"] = (
            TINY / f"split-{i:05d}-of-00003.gguf"
        ).read_bytes()
    header = read_header(open_source(web.url + "/d/split-00002-of-00003.gguf?download=true", {}))
    assert header.tensors == read_header(TINY / "split-00001-of-00003.gguf").tensors
    assert [path for path, _ in web.requests] == [
        f"/d/split-{i:05d}-of-00003.gguf?download=true" for i in (1, 2, 3)
    ]
    del web.files["/d/split-00003-of-00003.gguf"]
    assert said(web.url + "/d/split-00001-of-00003.gguf") == (
        f"{web.url}/d/split-00003-of-00003.gguf: not found; check the name"
    )
    assert "at most 512 parts" in said(web.url + "/d/split-00001-of-99999.gguf")
    assert "at most" in said(web.url + "/d/split-00004-of-00003.gguf")


def test_redirects_are_followed_and_a_token_stays_at_home(web: Web, other: Web) -> None:
    web.answers["/m.gguf"] = status(302, Location="/n.gguf")
    web.answers["/n.gguf"] = status(307, Location=other.url + "/o.gguf")
    other.answers["/o.gguf"] = status(302, Location=web.url + "/p.gguf")
    web.files["/p.gguf"] = DENSE
    environ = {"HF_ENDPOINT": web.url, "HF_TOKEN": "hf_secret"}
    assert (
        read_header(open_source(web.url + "/m.gguf", environ)).tensors
        == read_header(TINY / "dense.gguf").tensors
    )
    sent = [headers.get("authorization") for _, headers in web.requests]
    assert sent == ["Bearer hf_secret", "Bearer hf_secret", None]
    assert [headers.get("authorization") for _, headers in other.requests] == [None]


def test_no_other_host_gets_a_token_nor_does_a_plain_connection(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files["/m.gguf"] = DENSE
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    read_header(open_source(web.url + "/m.gguf", {"HF_TOKEN": "hf_secret"}))
    assert "authorization" not in web.requests[0][1]
    hub = Hub({"HF_TOKEN": "t"})
    assert hub.token_for("https://huggingface.co/a/b") == "t"
    for url in (
        "http://huggingface.co/a",
        "https://huggingface.co:8443/a",
        "https://huggingface.co.evil.org/a",
        "https://huggingface.co@evil.org/a",
        "https://cdn-lfs.huggingface.co/a",
    ):
        assert hub.token_for(url) == ""
    assert (
        Hub({"HF_TOKEN": "t", "HF_ENDPOINT": "http://mirror.example"}).token_for(
            "http://mirror.example/a"
        )
        == ""
    )


def test_user_and_query_are_sent_but_never_shown(web: Web) -> None:
    address = web.url.removeprefix("http://")
    text = said(f"http://me:secret@{address}/gone.gguf?signature=abc")
    assert text == f"{web.url}/gone.gguf: not found; check the name"
    path, headers = web.requests[0]
    assert path == "/gone.gguf?signature=abc" and headers["authorization"] == "Basic bWU6c2VjcmV0"


@pytest.mark.parametrize(
    ("code", "headers", "words"),
    [
        (401, {}, "set HF_TOKEN"),
        (
            403,
            {"X_Error_Message": "Access to model a/b is restricted"},
            "(Access to model a/b is restricted)",
        ),
        (404, {}, "not found; check the name"),
        (429, {"Retry_After": "17"}, "try again in 17 s"),
        (429, {}, "try again later"),
        (500, {}, "the server fails (HTTP 500): try again later"),
        (503, {}, "the server fails (HTTP 503): try again later"),
        (418, {}, "HTTP 418"),
        (304, {}, "HTTP 304"),
        (302, {}, "HTTP 302"),
        (302, {"Location": "file:///etc/passwd"}, "not a web address"),
        (302, {"Location": "ftp://127.0.0.1/m.gguf"}, "not a web address"),
        (302, {"Location": "http://[bad/"}, "Invalid IPv6 URL"),
        (302, {"Location": "/m.gguf"}, "more than 10 redirects"),
        (200, {"Content_Type": "text/html"}, "a web page, not a GGUF file"),
        (200, {"Content_Encoding": "gzip"}, "compresses"),
        (206, {}, "a different range"),
        (206, {"Content_Range": "bytes 5-6/100"}, "a different range"),
        (206, {"Content_Range": "items 0-6/100"}, "a different range"),
        (206, {"Content_Range": "bytes 0-6/" + "9" * 5000}, "a different range"),
        (416, {}, "refuses"),
        (416, {"Content_Range": "bytes */0"}, "it is empty"),
    ],
)
def test_each_refusal_is_one_line(web: Web, code: int, headers: dict[str, str], words: str) -> None:
    web.answers["/m.gguf"] = status(code, **headers)
    text = said(web.url + "/m.gguf")
    assert text.startswith(web.url + "/m.gguf: ") and words in text


def test_a_refused_token_is_named_not_shown(web: Web) -> None:
    web.answers["/m.gguf"] = status(401)
    text = said(web.url + "/m.gguf", {"HF_ENDPOINT": web.url, "HF_TOKEN": "hf_secret"})
    assert "does not accept the token in HF_TOKEN" in text and "hf_secret" not in text
    assert "HF_TOKEN has invalid characters" in said(
        web.url + "/m.gguf", {"HF_ENDPOINT": web.url, "HF_TOKEN": "a\r\nX: 1"}
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"  \n<html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "Git LFS pointer"),
        (b"", "it is empty"),
        (b"PK\3\4....", "not a GGUF file: an archive"),
        (DENSE[:100], "ends inside its header"),
    ],
)
def test_what_is_no_model(web: Web, body: bytes, words: str) -> None:
    web.files["/m.gguf"] = body
    web.answers["/stream.gguf"] = status(200, body)
    assert words in said(web.url + "/m.gguf")
    assert words in said(web.url + "/stream.gguf")


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    handler.wfile.write(DENSE[:100])
    handler.close_connection = True


def test_a_connection_that_breaks_is_named(web: Web) -> None:
    web.answers["/m.gguf"] = cut
    text = said(web.url + "/m.gguf")
    assert "broke" in text

    def reset(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    web.answers["/m.gguf"] = reset
    assert "broke" in said(web.url + "/m.gguf")


def test_a_file_that_changes_between_ranges(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST", 64)
    web.files["/m.gguf"] = DENSE
    sizes = iter((0, len(DENSE) + 1))
    web.answers["/m.gguf"] = lambda handler: (
        web.sizes.update({"/m.gguf": next(sizes)}),
        web.file(handler, "/m.gguf"),
    )
    assert "changed while it was read" in said(web.url + "/m.gguf")


def test_a_file_of_the_same_size_that_changes_between_ranges(
    web: Web, other: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "FIRST", 64)
    tags = iter("abcdefgh")

    def tagged(handler: BaseHTTPRequestHandler) -> None:
        first, last = (int(n) for n in handler.headers["Range"].removeprefix("bytes=").split("-"))
        last = min(last, len(DENSE) - 1)
        place = f"bytes {first}-{last}/{len(DENSE)}"
        status(206, DENSE[first : last + 1], Content_Range=place, ETag=f'"{next(tags)}"')(handler)

    web.answers["/m.gguf"] = tagged
    assert "changed while it was read" in said(web.url + "/m.gguf")
    # Each store behind one name may have tags of its own
    stores = iter((web.url + "/m.gguf", other.url + "/m.gguf") * 50)
    other.answers["/m.gguf"] = tagged
    web.answers["/any.gguf"] = lambda handler: status(302, Location=next(stores))(handler)
    tags = iter("a" * 100)
    assert (
        read_header(open_source(web.url + "/any.gguf", {})).tensors
        == read_header(TINY / "dense.gguf").tensors
    )


@pytest.mark.parametrize(
    ("pieces", "words"),
    [(0, "the connection broke after 0 of"), slow(1, "in more than 256 pieces")],
)
def test_ranges_that_are_empty_or_tiny(web: Web, pieces: int, words: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        first = int(handler.headers["Range"].removeprefix("bytes=").split("-")[0])
        status(
            206, DENSE[first : first + pieces], Content_Range=f"bytes {first}-{first}/{len(DENSE)}"
        )(handler)

    web.answers["/m.gguf"] = answer
    assert words in said(web.url + "/m.gguf") and len(web.requests) <= 256


def test_no_more_is_read_of_a_range_than_was_asked_for(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "FIRST", 64)

    def generous(handler: BaseHTTPRequestHandler) -> None:
        first = int(handler.headers["Range"].removeprefix("bytes=").split("-")[0])
        wrong = b"?" * 1000 if handler.headers["Range"] == "bytes=0-63" else b""
        body = DENSE[first : first + 64] + wrong if wrong else DENSE[first:]
        status(206, body, Content_Range=f"bytes {first}-{first + len(body) - 1}/{len(DENSE)}")(
            handler
        )

    web.answers["/m.gguf"] = generous
    assert (
        read_header(open_source(web.url + "/m.gguf", {})).tensors
        == read_header(TINY / "dense.gguf").tensors
    )


def test_one_limit_of_time_holds_for_all_parts_and_pages(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(handler: BaseHTTPRequestHandler) -> None:
        threading.Event().wait(0.2)
        page = f'<{web.url}{handler.path.partition("&")[0]}&cursor={len(web.requests)}>; rel="next"'
        status(200, b"[]", Link=page)(handler)

    web.answers["/api/models/me/my-GGUF/tree/main"] = slow
    monkeypatch.setattr(http, "PATIENCE", 1.0)
    text = said("hf:me/my-GGUF", {"HF_ENDPOINT": web.url})
    assert "needs more than 1 s; download the file" in text
    assert len(web.requests) <= 6


def test_a_password_in_hf_endpoint_is_never_shown(web: Web) -> None:
    web.answers["/api/models/me/my-GGUF/tree/main"] = status(200, b"{}")
    endpoint = web.url.replace("//", "//me:secret@")
    text = said("hf:me/my-GGUF", {"HF_ENDPOINT": endpoint})
    assert web.url in text and "secret" not in text


def test_a_missing_host_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/m.gguf"
    assert "refused" in said(url).lower()
    for bad in ("http://", "https:///m.gguf", "http://[x/m.gguf", "http://h:99999/m.gguf"):
        assert "address" in said(bad)


def test_tls_is_checked(web: Web) -> None:
    assert "TLS" in said(web.url.replace("http:", "https:") + "/m.gguf")


def test_a_silent_server_and_one_that_trickles_are_given_up(web: Web) -> None:
    stop = threading.Event()

    def silent(handler: BaseHTTPRequestHandler) -> None:
        stop.wait(10)

    def trickling(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for byte in DENSE:
            handler.wfile.write(bytes([byte]))
            if stop.wait(0.02):
                break
        handler.close_connection = True

    web.answers.update({"/silent": silent, "/trickling": trickling})
    with pytest.raises(ModelError, match=r"sent nothing for 0\.2 s"):
        read_header(Remote(web.url + "/silent", limit=Limit(10, 0.2)))
    with pytest.raises(ModelError, match=r"needs more than 0\.3 s"):
        read_header(Remote(web.url + "/trickling", limit=Limit(0.3)))
    stop.set()


def test_a_body_without_end_is_not_read_to_its_end(web: Web) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(LLAMA.read_bytes())
        while True:
            handler.wfile.write(bytes(1 << 16))

    web.answers["/m.gguf"] = endless
    assert read_header(open_source(web.url + "/m.gguf", {})).tensors == read_header(LLAMA).tensors


# --- Hugging Face


def test_a_repository_s_usual_quantisation_is_read(web: Web, other: Web) -> None:
    chat = (TINY / "chat.gguf").read_bytes()
    repository = Repository(
        web,
        other,
        {"README.md": b"", "my-F16.gguf": DENSE, "my-Q4_K_M.gguf": chat, "my-Q8_0.gguf": DENSE},
    )
    header = open_source("hf:me/my-GGUF", repository.environ)
    assert header.files[0].path == "hf:me/my-GGUF/my-Q4_K_M.gguf" and header.warnings == ()
    assert read_header(header).tensors == read_header(TINY / "chat.gguf").tensors
    assert read_model(header).path == "hf:me/my-GGUF/my-Q4_K_M.gguf"
    assert {headers.get("authorization") for _, headers in web.requests} == {"Bearer hf_secret"}
    assert {headers.get("authorization") for _, headers in other.requests} == {None}
    assert (
        open_source("hf:me/my-GGUF:q8_0", repository.environ).files[0].path
        == "hf:me/my-GGUF/my-Q8_0.gguf"
    )
    assert said("hf:me/my-GGUF:Q2_K", repository.environ) == (
        "hf:me/my-GGUF:Q2_K: no such file; there is: hf:me/my-GGUF:F16, hf:me/my-GGUF:Q4_K_M, "
        "hf:me/my-GGUF:Q8_0"
    )


def test_a_file_is_read_at_its_revision(web: Web, other: Web) -> None:
    split = {
        f"d/split-{i:05d}-of-00003.gguf": (TINY / f"split-{i:05d}-of-00003.gguf").read_bytes()
        for i in (1, 2, 3)
    }
    repository = Repository(web, other, split, "refs%2Fpr%2F1")
    header = open_source("hf:me/my-GGUF/d/split-00001-of-00003.gguf@refs/pr/1", repository.environ)
    assert header.tensors == read_header(TINY / "split-00001-of-00003.gguf").tensors
    assert header.files[2].path == "hf:me/my-GGUF/d/split-00003-of-00003.gguf@refs/pr/1"
    assert "no such file; there is: hf:me/my-GGUF:" not in said(
        "hf:me/my-GGUF/x.gguf@refs/pr/1", repository.environ
    )
    choices = said("hf:me/my-GGUF/x.gguf@refs/pr/1", repository.environ)
    assert "there is: hf:me/my-GGUF/d/split-00001-of-00003.gguf" in choices
    assert "not found" in said("hf:me/my-GGUF", repository.environ)  # nothing at main


@pytest.mark.parametrize(
    ("files", "quant", "chosen", "words"),
    [
        # llama-server's second choice
        (["a-Q4_0.gguf", "a-Q8_0.gguf"], "", "a-Q8_0.gguf", "others: hf:r:Q4_0"),
        # its last: the first
        (["a-IQ4_XS.gguf", "a-Q4_0.gguf"], "", "a-IQ4_XS.gguf", "others: hf:r:Q4_0"),
        (["mmproj-a-F16.gguf", "imatrix.gguf", "mtp-a-Q4_K_M.gguf", "a.gguf"], "", "a.gguf", ""),
        (["a-7b-Q4_K_M.gguf", "a-13b-Q4_K_M.gguf"], "", "a-7b-Q4_K_M.gguf", "others: hf:r:Q4_K_M"),
        (
            ["d/a-Q8_0-00001-of-00002.gguf", "d/a-Q8_0-00002-of-00002.gguf"],
            "Q8_0",
            "d/a-Q8_0-00001-of-00002.gguf",
            "",
        ),
        (["a-UD-Q4_K_XL.gguf", "a-Q4_K_M.gguf"], "q4_k_xl", "a-UD-Q4_K_XL.gguf", ""),
    ],
)
def test_the_file_is_llama_servers_choice(
    files: list[str], quant: str, chosen: str, words: str
) -> None:
    path, notes = choose("r", files, quant)
    assert path == chosen and len(notes) == bool(words) and words in "".join(notes)


def test_a_projector_beside_is_named(web: Web, other: Web) -> None:
    repository = Repository(web, other, {"mmproj-F16.gguf": DENSE, "my-Q4_K_M.gguf": DENSE})
    warnings = open_source("hf:me/my-GGUF", repository.environ).warnings
    assert len(warnings) == 1 and "loads mmproj-F16.gguf of me/my-GGUF too" in warnings[0]


@pytest.mark.slow
def test_a_repository_that_is_none(web: Web, other: Web) -> None:
    repository = Repository(web, other, {"model.safetensors": b"", "mmproj-a.gguf": b""})
    assert "no GGUF model in it" in said("hf:me/my-GGUF", repository.environ)
    for name in (
        "hf:",
        "hf:me",
        "hf:me/",
        "hf:me/a/b",
        "hf:me/a b",
        "hf:me/a:",
        "hf:me/a/../b.gguf",
    ):
        assert said(name, repository.environ).startswith(f"{name}: ")
    tree = "/api/models/me/my-GGUF/tree/main"
    for body, words in (
        (b"{}", "no list"),
        (b"<html>", "JSON"),
        (b'["a"', "JSON"),
        (b"[" + b"{}," * (1 << 18) + b"{}]", "JSON"),
    ):
        web.answers[tree] = status(200, body)
        assert words in said("hf:me/my-GGUF", repository.environ)
    web.answers[tree] = status(401)
    assert "set HF_TOKEN" in said("hf:me/my-GGUF", {"HF_ENDPOINT": web.url})
    web.answers[tree] = status(200, b"[]", Link=f'<{web.url}{tree}>; rel="next"')
    assert "does not end" in said("hf:me/my-GGUF", repository.environ)
    many = [{"type": "file", "path": str(i)} for i in range(huggingface.MAX_FILES + 1)]
    web.answers[tree] = status(200, json.dumps(many).encode())
    assert "does not end" in said("hf:me/my-GGUF", repository.environ)
    web.answers[tree] = status(200, b"[]", Link='<http://[bad/>; rel="next"')
    assert "no GGUF model in it" in said("hf:me/my-GGUF", repository.environ)
    assert "HF_ENDPOINT" in said("hf:me/my-GGUF", {"HF_ENDPOINT": "mirror"})


def test_the_page_about_a_file_means_the_file(web: Web) -> None:
    web.files["/me/my-GGUF/resolve/main/d/m.gguf"] = DENSE
    read_header(open_source(web.url + "/me/my-GGUF/blob/main/d/m.gguf", {"HF_ENDPOINT": web.url}))
    assert web.requests[0][0] == "/me/my-GGUF/resolve/main/d/m.gguf"


@pytest.mark.parametrize("path", ["/me/my-GGUF", "/me/my-GGUF/", "/me/my-GGUF/tree/main"])
def test_the_page_of_a_repository_is_named(web: Web, path: str) -> None:
    with pytest.raises(
        ModelError,
        match=r"a repository's page; for its models write "
        r"hf:me/my-GGUF$",
    ):
        open_source(web.url + path, {"HF_ENDPOINT": web.url})
    assert not web.requests


# --- Ollama


def test_a_model_is_read_from_the_store_or_the_server(tmp_path: Path) -> None:
    digest = "a" * 64
    manifest = tmp_path / "manifests/registry.ollama.ai/library/tiny/latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    blob = tmp_path / f"blobs/sha256-{digest}"
    blob.parent.mkdir()
    blob.write_bytes(DENSE)
    with FakeOllama() as server:
        server.add("far:1b", str(LLAMA))
        environ = {"OLLAMA_MODELS": str(tmp_path), **server.environ}
        header = open_source("ollama:tiny", environ)
        assert header.tensors == read_header(TINY / "dense.gguf").tensors and header.files[
            0
        ].path == str(blob)
        far = read_model(open_source("ollama:far:1b", environ))
        assert far.path == "ollama:far:1b" and set(far.tensors) == set(read_model(LLAMA).tensors)
        assert "no model" in said("ollama:absent", environ)
    assert "ollama" in said("ollama:absent", environ)
    assert "not a model's name" in said("ollama:", environ)


# --- the command line


def test_the_command_plans_from_a_url_as_from_the_file(
    web: Web, capfd: pytest.CaptureFixture[str]
) -> None:
    web.files["/m.gguf"], web.sizes["/m.gguf"] = LLAMA.read_bytes(), LLAMA_SIZE
    options = ["--gpu", "24GiB", "--ram", "64GiB"]
    assert main([web.url + "/m.gguf", *options]) == 0
    remote = capfd.readouterr()
    assert main([str(LLAMA), *options]) == 0
    assert remote.out == capfd.readouterr().out and "-ngl" in remote.out
    assert "incomplete" not in remote.err


def test_the_command_says_one_line_and_exits_with_3(
    web: Web, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in ([], ["inspect"]):
        assert main([*command, web.url + "/gone.gguf"]) == 3
        captured = capfd.readouterr()
        assert (
            captured.out == ""
            and captured.err == f"autolayers: {web.url}/gone.gguf: not found; check the name\n"
        )


def test_llama_server_s_flag_names_a_model_of_the_hub(
    web: Web, other: Web, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(web, other, {"my-Q4_K_M.gguf": LLAMA.read_bytes()})
    other.sizes["/my-Q4_K_M.gguf"] = LLAMA_SIZE
    for name, value in repository.environ.items():
        monkeypatch.setenv(name, value)
    assert main(["-hf", "me/my-GGUF", "--gpu", "24GiB", "--ram", "64GiB", "-q"]) == 0
    assert capfd.readouterr().out == "33\n"


def test_launches_name_the_model_as_llama_server_does(
    web: Web, other: Web, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(web, other, {"my-Q4_K_M.gguf": LLAMA.read_bytes()})
    for name, value in repository.environ.items():
        monkeypatch.setenv(name, value)
    web.files["/m.gguf"] = LLAMA.read_bytes()
    machine = ["--gpu", "24GiB", "--ram", "64GiB", "-c", "4096"]
    for form in ("systemd", "llama-swap"):
        assert main(["hf:me/my-GGUF", *machine, "--format", form]) == 0
        assert "-hf me/my-GGUF -hff my-Q4_K_M.gguf" in capfd.readouterr().out
    names = ["hf:me/my-GGUF", web.url + "/m.gguf"]
    for form in ("flags", "text", "llama-swap"):
        assert main(["plan", *names, *machine, "--format", form]) == 0
        out = capfd.readouterr().out
        assert "-hf me/my-GGUF -hff my-Q4_K_M.gguf" in out and f"-mu {web.url}/m.gguf" in out


def test_the_token_of_the_command_line_goes_to_the_hub_alone(
    web: Web, other: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(web, other, {"my-Q4_K_M.gguf": DENSE})
    monkeypatch.setenv("HF_ENDPOINT", repository.environ["HF_ENDPOINT"])
    monkeypatch.delenv("HF_TOKEN", raising=False)
    main(["-hf", "me/my-GGUF", "-hft", "hf_other", "--gpu", "24GiB", "--ram", "64GiB", "-q"])
    assert {headers.get("authorization") for _, headers in web.requests} == {"Bearer hf_other"}
    assert {headers.get("authorization") for _, headers in other.requests} == {None}


def test_run_plans_what_hf_will_download(
    web: Web,
    other: Web,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = Repository(web, other, {"my-Q4_K_M.gguf": LLAMA.read_bytes()})
    other.sizes["/my-Q4_K_M.gguf"] = LLAMA_SIZE
    monkeypatch.setenv("HF_ENDPOINT", repository.environ["HF_ENDPOINT"])
    program = tmp_path / "llama-server"
    program.write_text('#!/bin/sh\necho started "$@"\n')
    program.chmod(0o755)
    assert (
        main(
            [
                "run",
                "--gpu",
                "24GiB",
                "--ram",
                "64GiB",
                "--dry-run",
                str(program),
                "-hf",
                "me/my-GGUF",
            ]
        )
        == 0
    )
    assert capfd.readouterr().out.startswith(f"{program} -hf me/my-GGUF -ngl 33 ")


@pytest.mark.parametrize("words", [["-m", "ollama:tiny"], ["-mu", "https://example.org/m.gguf"]])
def test_run_needs_a_file(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho started\n")
    program.chmod(0o755)
    assert main(["run", str(program), *words]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and "needs a local file" in captured.err and "-m FILE" in captured.err
