"""The page's server on loopback: static files, and the engine for clients with the token.

    server = PageServer(Engine(load, here=True), port=0)
    server.url                       # http://127.0.0.1:PORT/?token=...
    server.serve_forever()

Requests with another Host (DNS rebinding), another Origin, or from another site are refused;
POST needs the token of the opened URL in a header that no other origin may send.
"""

from __future__ import annotations

import ctypes
import gc
import json
import secrets
import select
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ..output import say
from .engine import LARGEST_SLICE, MAX_LOG, Engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN_HEADER = "X-Autolayers-Token"
MAX_QUESTION = 1 << 20  # bytes of a question
_DIGITS = 18  # digits of a size in bytes
# A client that opens connections and says nothing would keep a thread each
SILENCE = 30.0  # seconds that a connection may be silent
_DRAIN = 2.0  # seconds of reading after a refusal
_PIECE = 1 << 16
MOST_AT_ONCE = 4  # questions that share the processor, so that small ones pass large ones
LOOK = 0.2  # seconds between two looks whether a client is still there
_LONG = 0.2  # seconds of a question after which its objects are collected
_ARENA_MAX = -8  # glibc's M_ARENA_MAX
# the Hub is asked only for the words of a search, when that is chosen
# (no inline script or style: a model's name in the page cannot become one)
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' "
    "https://huggingface.co; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
}
CONFIG = {"engine": "server"}


def page_files() -> dict[str, bytes]:
    """Return the page's static files by name."""
    return {
        path.name: path.read_bytes()
        for path in files(__package__).joinpath("static").iterdir()
        if path.name.rpartition(".")[2] in TYPES
    }


def hosts(port: int) -> set[str]:
    """Return the Host header of a browser on this machine for a port; it omits HTTP's default
    port."""
    # A site whose name resolves to 127.0.0.1 sends its own name as Host
    names = "127.0.0.1", "localhost"
    return {f"{name}:{port}" for name in names} | (set(names) if port == HTTP_PORT else set())


class LocalServer(ThreadingHTTPServer):
    """Serves on 127.0.0.1 only, to who has the token ("": a new one). Raises OSError if the port is
    taken."""

    daemon_threads = True
    # connections that wait to be accepted; socketserver's 5 resets the others
    request_queue_size = 256

    def __init__(self, port: int, handler: type[Handler], token: str = "") -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.token = token or secrets.token_urlsafe(24)
        # The port that the system picked, where 0 was given
        self.hosts = hosts(self.server_port)
        self.lanes = threading.BoundedSemaphore(MOST_AT_ONCE)
        # let glibc serve all threads from one heap: otherwise each keeps its own at its largest
        # (800 questions of four clients: 127 to 183 MiB, and 111 MiB with one)
        with suppress(AttributeError, OSError, TypeError):  # another C library, or Windows
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)

    @contextmanager
    def turn(self, has_gone: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a question's turn; yield whether its client is still connected. What a long
        question leaves is collected at once: collections are off while others plan, and all that
        they hold would count as old."""
        while not self.lanes.acquire(timeout=LOOK):
            # Its turn has not come: nothing was computed for it
            if has_gone():
                yield False
                return
        begun = time.monotonic()
        try:
            yield not has_gone()
        finally:
            self.lanes.release()
            # A collection takes a while itself: short questions leave it to a later one
            if time.monotonic() - begun > _LONG:
                gc.collect()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect; answer a defect with 500 and one line on stderr."""
        error = sys.exc_info()[1]
        # A tab that was closed in the middle of an answer
        if isinstance(error, OSError):
            return
        say(f"a defect, please report it: {type(error).__name__}: {error}")
        with suppress(OSError):
            request.sendall(
                b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: "
                b"0\r\nConnection: close\r\n\r\n"
            )


class PageServer(LocalServer):
    """Serves the page."""

    def __init__(self, engine: Engine, port: int = 0) -> None:
        super().__init__(port, _Handler)
        self.engine, self.files = engine, page_files()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"


_BODY = {"content-length", "transfer-encoding"}
_ONCE = ("Host", "Origin", "Content-Length", "Transfer-Encoding", TOKEN_HEADER)


class Handler(BaseHTTPRequestHandler):
    """What requests of a page and of programs have in common."""

    server: LocalServer
    timeout = SILENCE
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "autolayers", ""

    def parse_request(self) -> bool:
        """Refuse what is not an address, such as "http://[/"."""
        if not super().parse_request():
            return False
        try:
            urlsplit(self.path)
        except ValueError:
            self.close_connection = True
            self.refuse(HTTPStatus.BAD_REQUEST, "not an address")
            return False
        # a body that nobody reads must not become the next request
        if self.command != "POST" and _BODY & {name.lower() for name in self.headers}:
            self.close_connection = True
        # of two the first would count here, and the last perhaps elsewhere
        if twice := next((name for name in _ONCE if len(self.headers.get_all(name, [])) > 1), ""):
            self.close_connection = True
            self.refuse(HTTPStatus.BAD_REQUEST, f"two {twice} headers")
            return False
        return True

    def from_here(self, page: bool = False) -> bool:
        """Return whether the request is from this machine's own page or programs, or a link opens
        the `page`; otherwise send the refusal."""
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        hosts = self.server.hosts
        fetch = self.headers.get("Sec-Fetch-Mode"), self.headers.get("Sec-Fetch-Dest")
        # A link from another site opens the page; it gets no answer without the token
        if page and fetch == ("navigate", "document"):
            site = None
        if (
            # Programs such as curl send neither Origin nor Sec-Fetch-Site
            self.headers.get("Host") in hosts
            and (origin is None or origin in {f"http://{host}" for host in hosts})
            and site in (None, "same-origin", "none")
        ):
            return True
        self.close_connection = True
        self.refuse(HTTPStatus.FORBIDDEN, "not for other sites")
        return False

    def has_gone(self) -> bool:
        """Return whether the client has closed the connection."""
        try:
            # Readable without a byte to read: the other end is closed
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def body(self, largest: int) -> bytes | None:
        """Return the request's body; None if it was refused."""
        length = self.headers.get("Content-Length", "")
        if (
            not length.isascii()
            or not length.isdecimal()
            # int() refuses thousands of digits with an error of its own
            or len(length) > _DIGITS
            or int(length) > largest
        ):
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of at most {largest} bytes")
            # A browser shows the refusal only after it has sent everything
            # read what is still sent after a refusal: a socket closed with unread bytes resets the
            # connection, and the client never sees the answer
            limit = largest
            self.close_connection = True
            end = time.monotonic() + _DRAIN
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
                self.connection.settimeout(_DRAIN)
                while limit > 0 and time.monotonic() < end and (piece := self.rfile.read1(_PIECE)):
                    limit -= len(piece)
            return None
        return self.rfile.read(int(length))

    def question(self, largest: int) -> dict[str, Any] | None:
        """Return the body as a JSON object; None if it was refused."""
        body = self.body(largest)
        if body is None:
            return None
        try:
            question = json.loads(body)
        # RecursionError: "[[[[..." a million deep
        except (ValueError, RecursionError):
            question = None
        if not isinstance(question, dict):
            self.refuse(HTTPStatus.BAD_REQUEST, "the question is not a JSON object")
            return None
        return question

    def refuse(self, status: HTTPStatus, reason: str) -> None:
        self.send(status, json.dumps({"error": reason}).encode(), TYPES["json"])

    def send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            # A plan of a few minutes ago is for memory that was free then
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", _CSP),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: the page's URLs contain the token."""


class _Handler(Handler):
    server: PageServer

    def do_GET(self) -> None:
        if not self.from_here(page=urlsplit(self.path).path == "/"):
            return
        # Looked up in a dict, so no path can leave the folder
        name = urlsplit(self.path).path.lstrip("/") or "index.html"
        if name == "config.json":
            self.send(HTTPStatus.OK, json.dumps(CONFIG).encode(), TYPES["json"])
        elif name in self.server.files:
            self.send(HTTPStatus.OK, self.server.files[name], TYPES[name.rpartition(".")[2]])
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "no such file")

    def do_POST(self) -> None:
        """/call/METHOD with a question as JSON, or /add?name=&size= with a file's first bytes."""
        self.close_connection = True  # an unread body must not become the next request
        split = urlsplit(self.path)
        if not self.from_here():
            return
        # In a header that other origins cannot set without a preflight, which nothing here answers
        if not secrets.compare_digest(
            self.headers.get(TOKEN_HEADER, "").encode(), self.server.token.encode()
        ):
            return self.refuse(HTTPStatus.FORBIDDEN, "open the address that autolayers web printed")
        if split.path == "/add":
            query = parse_qs(split.query)
            size = query.get("size", [""])[0]
            name = unquote(query.get("name", ["file.gguf"])[0])
            # A download may have no Content-Length
            is_size = size.isascii() and size.isdecimal() and len(size) < _DIGITS
            body = self.body(LARGEST_SLICE)
            return (
                None
                if body is None
                else self._answer(
                    self.server.engine.add(name, int(size) if is_size else None, body)
                )
            )
        question = self.question(MAX_LOG if split.path == "/call/explain" else MAX_QUESTION)
        if question is None:
            return
        with self.server.turn(self.has_gone) as waits:
            if waits:
                self._answer(self.server.engine.call(split.path.removeprefix("/call/"), question))

    def _answer(self, answer: dict[str, Any]) -> None:
        self.send(HTTPStatus.OK, json.dumps(answer).encode(), TYPES["json"])
