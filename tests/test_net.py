"""A hostile server would hang the program or fill its memory.

The HTTP client against hostile servers: every exchange ends, within its limit, in an answer or
in one line.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from autolayers import net
from autolayers.net import Limit, NetError, Response, request

Script = Callable[[socket.socket], None]


class Server:
    """A socket on loopback: reads the head of each request, then runs the script until the client
    goes away."""

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.script, self.context = script, context
        self.heads: list[str] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.url = f"{'https' if context else 'http'}://{self.host}"
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if self.context:
                connection = self.context.wrap_socket(connection, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head and (piece := connection.recv(1 << 16)):
                head += piece
            self.heads.append(head.decode("latin-1"))
            self.script(connection)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        self.thread.join(5)
        self.socket.close()

    def header(self, name: str, of: int = -1) -> str:
        """A request's header, "" without."""
        lines = self.heads[of].split("\r\n")[1:]
        return next(
            (
                line.partition(": ")[2]
                for line in lines
                if line.lower().startswith(name.lower() + ":")
            ),
            "",
        )


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(script: Script | bytes, context: ssl.SSLContext | None = None) -> Server:
        servers.append(
            Server((lambda c: c.sendall(script)) if isinstance(script, bytes) else script, context)
        )
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def reply(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    if "Content_Length" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def trickle(before: bytes, piece: bytes) -> Script:
    """Sends something, then a little now and then for ever."""

    def script(connection: socket.socket) -> None:
        connection.sendall(before)
        while True:
            connection.sendall(piece)
            threading.Event().wait(0.02)

    return script


def flood(before: bytes, piece: bytes) -> Script:
    def script(connection: socket.socket) -> None:
        connection.sendall(before)
        while True:
            connection.sendall(piece)

    return script


def ask(url: str, limit: Limit | None = None, most: int = 1 << 20, **options: object) -> bytes:
    with request("GET", url, limit or Limit(300), **options) as answer:  # type: ignore[arg-type]
        return answer.content(most)


def failure(
    url: str, limit: Limit | None = None, most: int = 1 << 20, **options: object
) -> NetError:
    with pytest.raises(NetError) as error:
        ask(url, limit, most, **options)
    text = str(error.value)
    assert text.isprintable() and len(text) < 400
    return error.value


# --- time

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        # a status line without end
        trickle(b"", b"H"),
        # ... headers, a hundred at most
        trickle(OK, b"X: y\r\n"),
        trickle(OK + b"X: ", b"y"),  # ... a header line
        # ... answers before the answer
        trickle(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        trickle(OK + b"Content-Length: 9999\r\n\r\n", b"x"),  # ... a body
        trickle(OK + b"\r\n", b"x"),
        # ... the size of a chunk
        trickle(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
        trickle(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n1;", b"x"),
        # ... the lines behind the last chunk
        trickle(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=range(10),
)
def test_the_limit_of_time_covers_every_byte(serve: Callable[..., Server], script: Script) -> None:
    error = failure(serve(script).url, Limit(0.5))
    assert error.kind == "slow" and str(error) == "the server needs more than 0.5 s"


@pytest.mark.parametrize("before", [b"", OK, OK + b"Content-Length: 5\r\n\r\nab"])
def test_silence_has_a_limit_of_its_own(serve: Callable[..., Server], before: bytes) -> None:
    error = failure(
        serve(lambda c: (c.sendall(before), threading.Event().wait(20))).url, Limit(20, silence=0.2)
    )
    assert error.kind == "silent" and "sent nothing for 0.2 s" in str(error)


def test_one_limit_holds_for_many_requests(serve: Callable[..., Server]) -> None:
    server, limit = serve(reply(b"x")), Limit(300)
    assert ask(server.url, limit) == b"x" and not limit.over
    limit._until = 0.0  # as if 300 s had passed
    assert limit.over
    assert failure(server.url, limit).kind == "slow" and len(server.heads) == 1


def test_a_server_that_never_shakes_hands_is_too_slow(serve: Callable[..., Server]) -> None:
    server = serve(lambda c: threading.Event().wait(20))
    assert failure(server.url.replace("http:", "https:"), Limit(0.3)).kind == "slow"


def test_the_limit_holds_behind_a_proxy(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    proxy = serve(trickle(OK, b"X: y\r\n"))
    monkeypatch.setenv("http_proxy", proxy.url)
    assert failure("http://model.invalid/m.gguf", Limit(0.5)).kind == "slow"
    assert proxy.heads[0].startswith("GET http://model.invalid/m.gguf ")
    monkeypatch.setenv("https_proxy", proxy.url)
    assert failure("https://model.invalid/m.gguf", Limit(0.5)).kind in ("slow", "proxy")
    assert proxy.heads[1].startswith("CONNECT model.invalid:443 ")


# --- size and shape


def test_a_body_without_end_is_not_read_to_its_end(serve: Callable[..., Server]) -> None:
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    for script in (
        flood(OK + b"\r\n", bytes(1 << 16)),
        flood(OK + b"Transfer-Encoding: chunked\r\n\r\n", chunk),
    ):
        error = failure(serve(script).url, most=1 << 20)
        assert error.kind == "large" and "1048576 bytes" in str(error)


def test_headers_without_end_are_cut_off(serve: Callable[..., Server]) -> None:
    assert failure(serve(flood(OK, b"X: y\r\n")).url).kind == "broken"
    assert failure(serve(flood(OK + b"X: ", bytes(1 << 16))).url).kind == "broken"
    assert failure(serve(flood(b"", b"x" * 100)).url).kind == "broken"


@pytest.mark.parametrize(
    "answer",
    [
        reply(b"abc", Content_Length="5"),  # cut short
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nab",
        OK + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",  # which of them?
        b"",
        b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0" * 100,
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
    ],
)
def test_what_is_no_answer_or_not_all_of_it(serve: Callable[..., Server], answer: bytes) -> None:
    assert failure(serve(answer).url).kind == "broken"


@pytest.mark.parametrize("length", ["x", "-3", "1e3", "9" * 5000, ""])
def test_a_length_that_is_none_is_not_believed(serve: Callable[..., Server], length: str) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(reply(b"abc", Content_Length=length))

    with suppress(NetError):
        assert ask(serve(script).url) == b"abc"


def test_an_answer_longer_than_it_says_is_cut(serve: Callable[..., Server]) -> None:
    assert ask(serve(reply(b"abcdef", Content_Length="3")).url) == b"abc"


def test_a_compressed_answer_is_refused(serve: Callable[..., Server]) -> None:
    server = serve(reply(b"\x1f\x8b" + bytes(1000), Content_Encoding="gzip"))
    assert failure(server.url).kind == "compressed"
    assert server.header("Accept-Encoding") == "identity"


# --- redirects


def test_redirects_that_lead_nowhere_end_in_an_error(serve: Callable[..., Server]) -> None:
    loop = serve(reply(status="302 Found", Location="/again"))
    assert str(failure(loop.url, redirects=5)) == "more than 5 redirects" and len(loop.heads) == 6
    with request("GET", loop.url, Limit(10)) as answer:
        assert answer.status == 302 and answer.headers["Location"] == "/again"
    for place, shown in (
        ("file:///etc/passwd", "file:///etc/passwd"),
        ("http://[bad", "http://[bad"),
        ("//me:secret@", ""),
        ("http://h:99999/", "http://h:99999/"),
        ("ftp://me:secret@host/?key=1", "ftp://host/"),
    ):
        error = failure(
            serve(reply(status="307 Temporary Redirect", Location=place)).url, redirects=5
        )
        assert (
            error.kind == "redirect"
            and f"it leads to {shown}" in str(error)
            and "secret" not in str(error)
        )


def test_the_body_of_a_redirect_is_not_read(serve: Callable[..., Server]) -> None:
    there = serve(reply(b"there"))
    for length in (b"", b"Content-Length: 99999999999\r\n"):
        start = b"HTTP/1.1 302 Found\r\nLocation: %s\r\n%s\r\n" % (there.url.encode(), length)
        assert ask(serve(flood(start, bytes(1 << 16))).url, redirects=1) == b"there"


def test_credentials_stay_with_their_host(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = serve(reply(b"x"))
    back = serve(lambda c: c.sendall(reply(status="302 Found", Location=last.url)))
    first = serve(lambda c: c.sendall(reply(status="302 Found", Location=back.url)))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert ask(first.url, authorization="Bearer t", redirects=5) == b"x"
    assert [server.header("Authorization") for server in (first, back, last)] == [
        "Bearer t",
        "",
        "",
    ]
    ask(f"http://me:s%2Fecret@{first.host}/a?key=1", authorization="Bearer t", redirects=5)
    assert [server.header("Authorization") for server in (first, back, last)] == [
        "Basic bWU6cy9lY3JldA==",
        "",
        "",
    ]
    assert first.heads[-1].startswith("GET /a?key=1 ") and "ecret" not in first.heads[-1]
    # The same host again, by a detour: what was dropped stays dropped
    detour = serve(lambda c: c.sendall(reply(status="302 Found", Location=home.url + "/end")))
    away = reply(status="302 Found", Location=detour.url)
    home = serve(lambda c: c.sendall(reply(b"home") if len(home.heads) > 1 else away))
    assert ask(home.url, authorization="Bearer t", redirects=5) == b"home"
    assert home.header("Authorization", 0) == "Bearer t" and home.header("Authorization", 1) == ""


@pytest.mark.parametrize("token", ["secret\r\nX: y", "secret\n", "s\x00ecret", "sécret"])
def test_a_token_that_is_none_is_neither_sent_nor_shown(
    serve: Callable[..., Server], token: str
) -> None:
    server = serve(reply(b"x"))
    error = failure(server.url, authorization=f"Bearer {token}")
    assert (
        error.kind == "credentials"
        and "cret" not in str(error) + error.reason
        and server.heads == []
    )


def test_nothing_leads_from_https_to_http(monkeypatch: pytest.MonkeyPatch) -> None:
    class Redirect:
        status, headers = 302, {"Location": "http://me:secret@example.org/a?key=1"}

        def close(self) -> None:
            pass

    monkeypatch.setattr(net, "_exchange", lambda *args: Redirect())
    with pytest.raises(
        NetError,
        match=r"leads from https to http://example\.org/a, which anybody "
        r"may tamper with",
    ):
        request("GET", "https://example.org/b", Limit(1), redirects=5)


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.1\\x/latest/meta-data",
        "http://127.0.0.1\\.example.org/a",
        "http://localhost\\a.com/z",
        "http://exa mple.org/a",
        "http://127.0.0.%31/a",
    ],
)
def test_an_address_that_two_readers_read_differently_is_not_asked(
    serve: Callable[..., Server], place: str
) -> None:
    server = serve(reply(status="302 Found", Location=place))
    assert failure(server.url, redirects=5).kind in ("redirect", "address")
    with pytest.raises(NetError):
        request("GET", place, Limit(1))
    assert len(server.heads) == 1


def test_a_name_that_has_another_address_by_then_is_not_asked(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = serve(reply(b"secret"))
    first = serve(reply(status="302 Found", Location=inside.url))
    # both were public when they were checked
    answers = iter([False, False])
    monkeypatch.setattr(net, "_is_inside", lambda host: next(answers, True))
    error = failure(first.url, redirects=5)
    assert error.kind == "redirect" and "inside this network" in str(error)
    # it sees a connection, and nothing is said on it
    assert not any(inside.heads)


@pytest.mark.parametrize(
    ("first", "then", "refused"),
    [
        ("8.8.8.8", "127.0.0.1", True),
        ("8.8.8.8", "169.254.169.254", True),
        ("8.8.8.8", "10.0.0.7", True),
        ("8.8.8.8", "[::1]", True),
        ("8.8.8.8", "[::ffff:192.168.1.1]", True),
        ("8.8.8.8", "[fe80::1%25eth7]", True),
        ("8.8.8.8", "localhost", True),
        ("8.8.8.8", "2130706433", True),
        ("8.8.8.8", "1.1.1.1", False),
        ("10.0.0.7", "10.0.0.8", False),
        ("127.0.0.1", "1.1.1.1", False),
        ("nobody.invalid", "192.168.0.1", True),
    ],
)
def test_no_public_address_leads_inside(
    monkeypatch: pytest.MonkeyPatch, first: str, then: str, refused: bool
) -> None:
    asked: list[str] = []

    class Redirect:
        status, headers = 302, {"Location": f"http://{then}/a?key=1"}

        def close(self) -> None:
            pass

    class End(Redirect):
        status = 200

    def exchange(method: str, url: str, *_: object) -> Redirect:
        asked.append(url)
        return Redirect() if len(asked) == 1 else End()

    monkeypatch.setattr(net, "_exchange", exchange)
    if refused:
        with pytest.raises(
            NetError,
            match=r"leads from \S+ to http://\S+/a, an address inside "
            r"this network",
        ):
            request("GET", f"http://{first}/b", Limit(1), redirects=5)
    else:
        request("GET", f"http://{first}/b", Limit(1), redirects=5)
    assert len(asked) == 2 - refused


# --- who is asked


def test_a_missing_host_is_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = failure(f"http://127.0.0.1:{free.getsockname()[1]}/m")
    assert error.kind == "unreachable" and error.reason == "Connection refused"
    assert failure("http://nobody.invalid/", Limit(20)).kind == "unreachable"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "http://",
        "http:///a",
        "ftp://h/",
        "http://[x/",
        "http://h:0x50/",
        "http://h:99999/",
        "http://.../",
    ],
)
def test_what_is_no_address(url: str) -> None:
    assert failure(url).kind == "address"


def test_odd_addresses_are_one_line() -> None:
    for url in (
        "http://" + "l" * 300 + ".org/",
        "http://a..b/",
        "http://é\x00\x1b.invalid/",
        "http://127.0.0.1:1/\x1b[31m",
        "http://*/",
    ):
        failure(url, Limit(20))


def test_loopback_needs_no_proxy(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(serve(reply(b"x")).url) == b"x"
    assert failure("http://model.invalid/").kind == "proxy"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("127.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("localhost.evil.com", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_what_is_this_machine(host: str, expected: bool) -> None:
    assert net.is_loopback(host) is expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "https://me:secret@example.org:8443/a b?sig=secret#secret",
            "https://example.org:8443/a b",
        ),
        ("https://a@b:secret@example.org/", "https://example.org/"),
        ("http://me:secret@[bad/", "http://[bad/"),
        ("https://example.org/\x1b[31m\n", "https://example.org/ [31m"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert net.public(url) == shown


# --- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of its own for 127.0.0.1, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    file = tmp_path / "server.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            file,
            "-out",
            tmp_path / "ca.pem",
        ],
        check=True,
        capture_output=True,
    )
    file.write_bytes(file.read_bytes() + (tmp_path / "ca.pem").read_bytes())
    return file


def test_a_certificate_nobody_signed_is_refused(
    serve: Callable[..., Server],
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    capfd: pytest.CaptureFixture[str],
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = serve(reply(b"x"), context)
    error = failure(server.url)
    assert error.kind == "tls" and "certificate" in error.reason
    assert ask(server.url, own=True) == b"x"  # our own llama-server's
    assert not recwarn.list and capfd.readouterr().err == ""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert ask(server.url) == b"x"
    assert failure(serve(trickle(OK, b"X: y\r\n"), context).url, Limit(0.5)).kind == "slow"


# --- what an answer says


def test_an_answer_has_status_headers_and_body(serve: Callable[..., Server]) -> None:
    server = serve(reply(b"abc", "404 Not\x1b Found", Link='</next?x=1>; rel="next"', X_Y="z"))
    with request(
        "POST", server.url + "/a", Limit(10), headers={"Accept": "text/x"}, json={"k": 1}
    ) as answer:
        assert isinstance(answer, Response)
        assert (answer.status, answer.reason, answer.headers["x-y"]) == (404, "Not Found", "z")
        assert answer.url == server.url + "/a"
        assert answer.next_page == server.url + "/next?x=1" and answer.content(3) == b"abc"
    assert (
        server.header("Accept") == "text/x" and server.header("Content-Type") == "application/json"
    )
    with request(
        "GET", serve(reply(Link='<http://[bad>; rel="next", <<;;;=')).url, Limit(10)
    ) as answer:
        assert answer.next_page == ""


def test_a_request_is_ended_from_another_thread() -> None:
    """Otherwise Ctrl-C waits for the answer of a server that is asked to end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        limit = Limit(60)
        errors: list[str] = []

        def ask() -> None:
            try:
                request("GET", f"http://127.0.0.1:{server.getsockname()[1]}/", limit)
            except NetError as error:
                errors.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            limit.end()
            thread.join(30)
            # the server sees the client leave
            assert connection.recv(1) == b"" and not thread.is_alive() and len(errors) == 1
