"""Readiness of a llama-server: GET /health answers 200 when the model is loaded, 503 while it
loads.

Another process may take the port before the server does, to be sent its key: what answers counts
once the port is the server's own.
"""

from __future__ import annotations

import json
import socket

from ..net import Limit, NetError, request
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..flags.parse import Arguments

_MAX_ANSWER = 1 << 16  # bytes
_CONNECT = 5  # seconds for a connection


@dataclass(frozen=True)
class Address:
    """Where a server is reached: this machine for a wildcard; `prefix`: of --api-prefix."""

    host: str
    port: int
    secure: bool = False
    prefix: str = ""

    @classmethod
    def of(cls, given: Arguments, default: int) -> Address:
        """Return that of a llama-server with these flags. `default`: the port if none is given."""
        name, port = given.value("--host") or "127.0.0.1", given.value("--port") or ""
        number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else default
        secure = bool(given.value("--ssl-cert-file"))
        return cls(_reachable(name), number, secure, given.value("--api-prefix") or "")

    @property
    def place(self) -> str:
        """Its URL without the prefix, an IPv6 address in brackets."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{name}:{self.port}"

    @property
    def url(self) -> str:
        return self.place + self.prefix


def is_known(given: Arguments) -> bool:
    """Return whether a server's port is known before it starts: 0 is any free one."""
    return given.value("--port") != "0" and not (given.value("--host") or "").endswith(".sock")


def authorization(given: Arguments, environ: Mapping[str, str]) -> str:
    """Return the header for who has the first of a server's keys, "" where it has none."""
    # --api-key takes a list
    key = (given.value("--api-key") or environ.get("LLAMA_API_KEY", "")).partition(",")[0]
    return f"Bearer {key}" if key else ""


def _reachable(host: str) -> str:
    """Return the address to connect to of one to listen on."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def taken(at: Address) -> bool:
    """Return whether something listens there, whatever it answers."""
    try:
        socket.create_connection((at.host, at.port), _CONNECT).close()
    except OSError:
        return False
    return True


def listening(process: int, port: int) -> str | None:
    """Return the address at which a process or one of its children listens on this port; None if
    none does, or the system does not say. On Linux: the sockets of /proc/net/tcp that are open in
    /proc/PID/fd."""
    import psutil

    try:
        own = psutil.Process(process)
        for each in (own, *own.children(recursive=True)):
            # its name before psutil 6
            connections = (
                each.net_connections("tcp")
                if hasattr(each, "net_connections")
                else each.connections("tcp")
            )
            for row in connections:
                if row.status == psutil.CONN_LISTEN and row.laddr.port == port:
                    return _reachable(row.laddr.ip)
    # A server in a container belongs to another user
    except (psutil.Error, OSError):
        pass
    return None


def healthy(at: Address) -> bool:
    """Ask once, for at most 5 s."""
    return answer("GET", at.url + "/health", Limit(5))[0] is not None


def speed(
    at: Address, authorization: str = "", n: int = 2, limit: Limit | None = None
) -> float | None:
    """Return the tokens per second of n tokens generated after a short prompt; None without an
    answer within the limit, 60 s by default."""
    # nothing from an earlier prompt; with more than two tokens, all of them are generated
    # /completion, not /v1/completions: its answer has `timings`
    body = {"prompt": "Hello", "n_predict": n, "cache_prompt": False, "ignore_eos": n > 2}
    said, _ = answer("POST", at.url + "/completion", limit or Limit(60), body, authorization)
    try:
        content: Any = json.loads(said or b"")
        return float(content["timings"]["predicted_per_second"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def answer(
    method: str,
    url: str,
    limit: Limit,
    body: object = None,
    authorization: str = "",
    most: int = _MAX_ANSWER,
) -> tuple[bytes | None, str]:
    """Return the body of an answer with status 200, None for any other or no answer, and why."""
    try:
        with request(method, url, limit, json=body, authorization=authorization, own=True) as found:
            if found.status == 200:
                return found.content(most), ""
            text = found.content(_MAX_ANSWER).decode("utf-8", "replace")
            return None, f"status {found.status}: {' '.join(text.split())[:200]}"
    except NetError as error:
        return None, str(error)
