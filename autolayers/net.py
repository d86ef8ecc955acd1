"""HTTP: one exchange with an overall time limit, a bounded answer, and every failure as one line.

    limit = Limit(60, silence=30)                            # seconds in all, and between two bytes
    with request("GET", "https://example.org/x", limit, redirects=10) as answer:
        answer.status, answer.headers.get("ETag"), answer.read(1 << 16)

requests' adapter does the work; it is imported with the first request. A requests.Session would
read netrc, follow redirects and read their bodies; here

- the time limit covers every byte: the timeouts of requests apply between two bytes, so a server
  that sends one now and then could hold us for ever
- credentials go only to their own host; redirects never lead from https to http, nor from a public
  address to one of this machine or its network
- servers on this machine are reached without a proxy
- compressed answers, which could expand to any length, are refused
"""

from __future__ import annotations

import io
import os
import re
import socket
import time
import warnings
from base64 import b64encode
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from .errors import AutolayersError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, Literal

    import requests

    Kind = Literal[
        "address",
        "unreachable",
        "silent",
        "slow",
        "tls",
        "proxy",
        "broken",
        "redirect",
        "compressed",
        "large",
        "credentials",
    ]

CONNECT = 10.0  # seconds, for each address that a name has
_ADVICE = "is the address right, and is this machine online?"
_REDIRECTS = (301, 302, 303, 307, 308)


class NetError(AutolayersError):
    """A failed exchange; the message does not name the URL. `reason`: the system's or a library's
    words for it."""

    def __init__(self, kind: Kind, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason


class Limit:
    """`total` seconds from the first request on, for all that share this limit; `silence` between
    two bytes."""

    def __init__(self, total: float, silence: float | None = None) -> None:
        self.total = total
        self.silence = total if silence is None else silence
        self._until: float | None = None
        self._sock: Any = None

    def reads(self, sock: Any) -> float:
        """Return `left`, before something is read from this socket."""
        self._sock = sock
        return self.left()

    def end(self) -> None:
        """End what another thread reads within this limit: its connection closes at once."""
        self._until = time.monotonic()
        if self._sock is not None:
            # closed already, or never connected
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def left(self) -> float:
        """Return the seconds until the next byte must have come. Raises TimeoutError when none are
        left."""
        now = time.monotonic()
        # the clock starts with the first request, not when the limit is made
        if self._until is None:
            self._until = now + self.total
        if now >= self._until:
            raise TimeoutError(f"more than {self.total:g} s")
        return min(self.silence, self._until - now)

    @property
    def over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until


class Response:
    """Status and headers of an answer, and its body as it arrives."""

    def __init__(self, response: requests.Response, url: str, limit: Limit) -> None:
        self._response = response
        self._limit = limit
        self.url = url  # after all redirects
        self.status = response.status_code
        self.reason = one_line(response.reason or "")  # "Not Found"
        self.headers: Mapping[str, str] = response.headers

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()

    def read(self, n: int) -> bytes:
        """Return 1 to `n` bytes of the body, b"" at its end. Raises NetError."""
        if self.headers.get("Content-Encoding", "").lower() not in ("", "identity"):
            raise NetError(
                "compressed", "the server compresses its answer, although it was asked not to"
            )
        raw = self._response.raw
        with _explained(self._limit):
            # urllib3 2 returns the bytes that have arrived; older versions wait for all n
            data: bytes = raw.read1(n) if hasattr(raw, "read1") else raw.read(min(n, 1 << 12))
            # urllib3 does not complain where a body ends early
            if not data and raw.length_remaining:
                raise ConnectionError(f"{raw.length_remaining} bytes are missing")
        return data

    def content(self, most: int) -> bytes:
        """Return the whole body. Raises NetError, also where it is longer than `most` bytes."""
        content = bytearray()
        while chunk := self.read(1 << 16):
            content += chunk
            if len(content) > most:
                raise NetError("large", f"the answer does not end within {most} bytes")
        return bytes(content)

    @property
    def next_page(self) -> str:
        """The URL of the Link header's next page, "" if there is none or it is invalid."""
        try:
            following = self._response.links.get("next", {}).get("url", "")
            return urljoin(self.url, following) if following else ""
        except ValueError:
            return ""


def request(
    method: str,
    url: str,
    limit: Limit,
    *,
    headers: Mapping[str, str] | None = None,
    json: object = None,
    authorization: str = "",
    redirects: int = 0,
    own: bool = False,
) -> Response:
    """Return one request and its answer, whatever its status, after at most `redirects` redirects
    (0: a redirect is the answer).

    `authorization` is that header's value; a user in the URL takes precedence. `json` is sent as
    the body. `own`: a server that was started here: no proxy is used, and any certificate is
    accepted. Raises NetError.
    """
    first = origin(url)
    # a user in the address was written for this server
    authorization = _basic(url) or authorization
    # http.client would show it in its error
    if not authorization.isascii() or not authorization.isprintable():
        raise NetError("credentials", "the token has invalid characters")
    outside = False
    for _ in range(redirects + 1):
        # another host: it must not see the credentials
        if origin(url) != first:
            outside = _check_elsewhere(first, url)
            authorization = ""
        answer = _exchange(method, url, limit, headers or {}, json, authorization, own, outside)
        if not redirects or answer.status not in _REDIRECTS or "Location" not in answer.headers:
            return answer
        answer.close()
        url = _target(url, answer.headers["Location"])
    raise NetError("redirect", f"more than {redirects} redirects")


def _check_elsewhere(first: tuple[str, str, int], url: str) -> bool:
    """Return whether the connection must lead to a public address. Raises NetError for a redirect
    to a less safe place than the first address."""
    here = origin(url)
    # what was sent encrypted would be answered in plain text
    if (first[0], here[0]) == ("https", "http"):
        raise NetError(
            "redirect", f"it leads from https to {public(url)}, which anybody may tamper with"
        )
    if _is_inside(first[1]):
        return False
    if _is_inside(here[1]):
        raise NetError(
            "redirect",
            f"it leads from {first[1]} to {public(url)}, an address inside this network",
        )
    return True


def _target(url: str, location: str) -> str:
    """Return where a redirect leads."""
    try:
        target = urljoin(url, location)
        origin(target)
        return target
    except (ValueError, NetError) as error:
        why = "" if isinstance(error, NetError) else f" ({one_line(str(error))})"
        raise NetError(
            "redirect", f"it leads to {public(location)}, which is not a web address{why}"
        ) from None


def _exchange(
    method: str,
    url: str,
    limit: Limit,
    headers: Mapping[str, str],
    json: object,
    authorization: str,
    own: bool,
    outside: bool,
) -> Response:
    import requests

    sent = {"Accept-Encoding": "identity", "User-Agent": "autolayers", **headers}
    if authorization:
        sent["Authorization"] = authorization
    # the variables that requests itself would read
    authorities = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    with _explained(limit), warnings.catch_warnings():
        # a certificate of its own is expected there
        if own:
            warnings.simplefilter("ignore")
        split = urlsplit(url)
        without_user = urlunsplit(split._replace(netloc=split.netloc.rpartition("@")[2]))
        prepared = requests.Request(method, without_user, headers=sent, json=json).prepare()
        here = own or is_loopback(origin(url)[1])
        # what is sent decides, not what was checked
        if url.isascii() and origin(prepared.url or "") != origin(url):
            raise NetError("address", f"{public(url)}: not a web address")
        proxies = {} if here else requests.utils.get_environ_proxies(prepared.url or "")
        response = _adapter(limit, outside and not proxies).send(
            prepared,
            stream=True,
            # the second one is per byte: Reader below bounds the whole
            timeout=(min(CONNECT, limit.left()), limit.left()),
            verify=not own and authorities,
            proxies=proxies,
        )
    return Response(response, url, limit)


def _adapter(limit: Limit, outside: bool) -> requests.adapters.HTTPAdapter:
    """Return an adapter of requests that reads all bytes, headers included, within a limit.
    `outside`: it sends nothing to an address of this machine or its network."""
    import http.client

    import requests

    class Reader(io.RawIOBase):
        """The bytes of a socket."""

        def __init__(self, raw: io.RawIOBase, sock: Any) -> None:
            self.raw = raw
            self.sock = sock

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int | None:
            self.sock.settimeout(limit.reads(self.sock))
            return self.raw.readinto(buffer)

        def close(self) -> None:
            self.raw.close()
            super().close()

    class LimitedResponse(http.client.HTTPResponse):
        def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            # http.client reads status and headers through this file too
            self.fp = io.BufferedReader(Reader(self.fp.detach(), sock))

    class Adapter(requests.adapters.HTTPAdapter):
        def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
            pool: Any = super().get_connection_with_tls_context(*args, **kwargs)

            class Connection(pool.ConnectionCls):  # type: ignore[misc]
                response_class = LimitedResponse

                def connect(self) -> None:
                    super().connect()
                    # the name may have another address than when it was checked
                    if outside and _is_inside(str(self.sock.getpeername()[0])):
                        self.close()
                        raise NetError("redirect", f"{self.host} is an address inside this network")

            # urllib3 makes its connections from this class
            pool.ConnectionCls = Connection
            return pool

    # retries would start the clock again
    return Adapter(max_retries=0)


@contextmanager
def _explained(limit: Limit) -> Iterator[None]:
    """Raise failures of the connection as a NetError."""
    import requests
    import urllib3

    begun = time.monotonic()
    try:
        yield
    except NetError:
        raise
    except (requests.exceptions.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError):
        raise NetError("unreachable", f"no answer: {_ADVICE}", "no answer") from None
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
        if limit.over:
            raise NetError("slow", f"the server needs more than {limit.total:g} s") from None
        # a handshake has CONNECT alone
        silent = min(limit.silence, max(1, round(time.monotonic() - begun)))
        raise NetError(
            "silent", f"the server sent nothing for {silent:g} s: try again later"
        ) from None
    except requests.exceptions.SSLError as error:
        reason = _reason(error)
        raise NetError(
            "tls", f"its certificate is not trusted or TLS failed ({reason})", reason
        ) from None
    except requests.exceptions.ProxyError as error:
        reason = _reason(error)
        raise NetError(
            "proxy", f"the proxy does not work ({reason}): check HTTPS_PROXY", reason
        ) from None
    except (
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
        ValueError,
    ) as error:
        reason = _reason(error)
        kind: Kind = (
            "unreachable"
            if isinstance(_root(error), urllib3.exceptions.NewConnectionError)
            else "broken"
        )
        raise NetError(
            kind, f"the connection failed or broke ({reason}): {_ADVICE}", reason
        ) from None


def _root(error: BaseException) -> BaseException:
    """Return what really happened, without the layers of the HTTP library around it."""
    for _ in range(10):
        inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            # urllib3 wraps the cause as an argument
            inner = next((a for a in reversed(error.args) if isinstance(a, BaseException)), None)
        if inner is None:
            break
        error = inner
    return error


def _reason(error: BaseException) -> str:
    root = _root(error)
    text = str(getattr(root, "strerror", None) or root)
    return one_line(
        re.sub(r"^.*\[Errno -?\d+\] |^\S*Connection\([^()]*\): |^<[^<>]*>: ", "", text)
    ).rstrip(")")


# --- URLs


def origin(url: str) -> tuple[str, str, int]:
    """Return (scheme, host, port), which decides whether credentials may be sent. Raises NetError
    for other URLs."""
    try:
        # urlsplit and urllib3 would each read another host in these
        split = urlsplit(url)
        if "\\" in url or min(url, default=" ") < " " or any(map(str.isspace, split.netloc)):
            raise ValueError
        scheme = split.scheme.lower()
        host = (split.hostname or "").rstrip(".")
        port = split.port or {"http": 80, "https": 443}[scheme]
    except (ValueError, KeyError):
        scheme = host = ""
    if not host:
        raise NetError("address", f"{public(url)}: not a web address")
    return scheme, host, port


def is_loopback(host: str) -> bool:
    """Return whether a host of a URL is this machine."""
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_inside(host: str) -> bool:
    """Return whether a host of a URL is this machine or one of its network: an address that is not
    public, or a name of one.

    A name that cannot be resolved here (a proxy's may be so) is not.
    """
    import socket
    from ipaddress import ip_address

    try:
        # "fe80::1%25eth0" has a zone after the address, which may be of no device here
        found = socket.getaddrinfo(host.partition("%")[0], None)
        addresses = {str(entry[4][0]).partition("%")[0] for entry in found}
    except (OSError, UnicodeError):
        return is_loopback(host)
    # a public name may resolve to a private address
    return any(not ip_address(address).is_global for address in addresses)


def public(url: str) -> str:
    """Return the URL without what may be secret: user, password, query."""
    try:
        split = urlsplit(url)
    except ValueError:
        return one_line(re.sub(r"//[^/]*@|[?#].*", "//", url))
    return one_line(
        urlunsplit((split.scheme, split.netloc.rpartition("@")[2], split.path, "", "")), 2000
    )


# no scheme has more letters, and a run of letters is tried once
URLS = re.compile(
    r"(?<![\w+.-])[a-z][\w+.-]{0,30}://[^\s\"'`<>()]*[^\s\"'`<>(),.:;]", re.IGNORECASE
)


def without_credentials(text: str) -> str:
    """Return a text with each URL replaced by its `public` form."""
    return URLS.sub(lambda found: public(found[0]), text)


def one_line(text: str, limit: int = 200) -> str:
    """Return one printable line of bounded length."""
    cleaned = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 3] + "..."


def _basic(url: str) -> str:
    """Return the Authorization header of a URL's user and password, "" without."""
    split = urlsplit(url)
    if split.username is None:
        return ""
    return (
        "Basic "
        + b64encode(f"{unquote(split.username)}:{unquote(split.password or '')}".encode()).decode()
    )
