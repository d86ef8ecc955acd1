"""Ollama's HTTP API, as far as a plan needs it.

    server = Server.from_environment(os.environ)
    server.version(); server.tags(); server.show("llama3.1:8b", verbose=True)
    server.load("llama3.1:8b", {"num_gpu": 33, "num_ctx": 8192})
    server.ps(); server.unload("llama3.1:8b")

Every failure is an OllamaError with a message of one line: the server is down or slow, refuses,
sends nothing or nonsense, or reports an error in the middle of a stream. Redirects are not
followed, so tokens stay with their host.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import time
from urllib.parse import urlsplit

from ...errors import AutolayersError, ModelError
from ...net import Limit, NetError, Response, is_loopback, one_line, public, request
from .store import Name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_DEFAULT_PORT = 11434
TOKEN = "AUTOLAYERS_OLLAMA_TOKEN"
_HINTS = {
    503: " (its queue is full: try again later)",
    **dict.fromkeys(
        (401, 403), f" (a proxy in front of Ollama? {TOKEN} is sent as its Bearer token)"
    ),
}
# bytes; a verbose /api/show repeats the whole vocabulary, 16 MiB at most
_LONGEST_ANSWER = 32 << 20
# of an answer; each takes up to a hundred bytes in memory, and two in JSON: lists and objects,
# keys, items (a vocabulary of 500 thousand tokens has two million)
_MOST = ((b"[{", 1 << 18), (b":", 1 << 18), (b",", 3 << 20))
_SHOWN = 1 << 10  # bytes of an answer that a message may quote
# of a model: more is no size but damage
_MOST_BYTES = 1 << 50
_OUT_OF_MEMORY = re.compile(
    r"out of memory|cudamalloc|(failed|unable) to allocate|allocation "
    r"failed|erroroutofdevicememory",
    re.IGNORECASE,
)


class OllamaError(AutolayersError):
    """The server could not be asked, or refused."""


class NotRunning(OllamaError):
    """Nobody answers at OLLAMA_HOST."""


class Refused(OllamaError):
    """The server answered with an error: its HTTP status (200 inside a stream) and message."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason

    @property
    def out_of_memory(self) -> bool:
        return bool(_OUT_OF_MEMORY.search(self.reason))


class NoSuchModel(ModelError):
    """The server does not have it."""


def base_url(host: str) -> str:
    """Return the address a client connects to for a value of OLLAMA_HOST: host, :port, [v6]:port,
    scheme://host:port/path.

    Mirrors envconfig.Host and ConnectableHost of Ollama 0.33: an invalid port becomes the default
    one, and an address to listen on (0.0.0.0) becomes this machine.

    >>> base_url("0.0.0.0")
    'http://127.0.0.1:11434'
    """
    text = host.strip(" \t\r\n\"'")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
        # envconfig.Host has this case too: the service is https
        if rest == "ollama.com":
            scheme, rest = "https", "ollama.com:443"
    scheme = scheme.lower()
    if scheme not in ("http", "https"):
        raise OllamaError(f"OLLAMA_HOST {text!r}: only http and https are supported")
    # a scheme brings its own port
    port: str = {"http": "80", "https": "443"}[scheme] if separator else str(_DEFAULT_PORT)
    default = port
    hostport, _, path = rest.partition("/")
    # % begins the zone of an IPv6 address, e.g. fe80::1%eth0
    if not re.fullmatch(r"[-.\w:\[\]%]*", hostport):
        shown = re.sub(r"(?:(?<=/)|^)[^/]*@", "", text)  # passwords stay secret
        raise OllamaError(
            f"OLLAMA_HOST {shown!r} is not an address (write host, host:port or http://host:port)"
        )
    name = hostport.strip("[]")
    # a bare IPv6 address has several colons, and no port
    split = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*):([^:\[\]]*)", hostport)
    if split:
        name, port = split[1].strip("[]"), split[2]
    # Go's ParseInt takes a sign
    if not re.fullmatch(r"\+?[0-9]{1,9}", port) or int(port) > 65535:
        port = default
    path = path.strip("/")
    return f"{scheme}://{_to_connect(name)}:{int(port)}" + (f"/{path}" if path else "")


def _to_connect(name: str) -> str:
    """Return a host for an address; of one to listen on this machine's."""
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)
    return f"[{name}]" if ":" in name else name


class OllamaServer:
    """One Ollama server. `timeout` limits an answer, in seconds; loading a model has a longer
    limit."""

    def __init__(
        self, url: str, token: str = "", timeout: float = 30.0, load_timeout: float = 600.0
    ) -> None:
        self.url, self.timeout, self.load_timeout = url, timeout, load_timeout
        self._token = token

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> OllamaServer:
        """With AUTOLAYERS_OLLAMA_TOKEN for a proxy in front of it, OLLAMA_API_KEY for Ollama's own
        service alone. Raises OllamaError where a token would cross a network in plain text."""
        server = cls(base_url(environ.get("OLLAMA_HOST", "")))
        parts = urlsplit(server.url)
        # In plain text only this machine may read it
        token = environ.get(TOKEN, "").strip()
        if token and parts.scheme != "https" and not server.is_local:
            raise OllamaError(f"{TOKEN} is not sent to {server.url}: use https")
        # The dot: notollama.com is another one
        if not token and parts.scheme == "https" and f".{parts.hostname}".endswith(".ollama.com"):
            token = environ.get("OLLAMA_API_KEY", "")
        server._token = token
        return server

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine: by loopback, one of this machine's own addresses, or its
        name."""
        host = urlsplit(self.url).hostname or ""
        return is_loopback(host) or _is_own(host) or host == socket.gethostname().lower()

    def version(self, patience: float | None = None) -> str:
        return str(self._ask("GET", "/api/version", timeout=patience).get("version", ""))

    def tags(self) -> list[dict[str, Any]]:
        return _models(self._ask("GET", "/api/tags"))

    def has(self, name: Name) -> bool:
        """Return whether the server has this model, in any spelling of its name."""
        for entry in self.tags():
            try:
                if Name.parse(str(entry.get("name"))).same(name):
                    return True
            except ModelError:
                continue
        return False

    def show(self, name: str, verbose: bool = True) -> dict[str, Any]:
        try:
            return self._ask("POST", "/api/show", {"model": name, "verbose": verbose}, model=name)
        except NoSuchModel as error:
            raise NoSuchModel(f"{error}{self._others(name)}") from None

    def _others(self, name: str) -> str:
        """Return the other tags of a model, as a hint."""
        try:
            # e.g. "there is llama3.1:8b" for llama3.1, which means llama3.1:latest
            wanted = Name.parse(name).model.lower()
            names = [str(entry.get("name")) for entry in self.tags()]
            others = [other for other in names if Name.parse(other).model.lower() == wanted]
        except AutolayersError:
            return ""
        return (
            f"; there is {', '.join(one_line(other, 100) for other in others[:10])}"
            if others
            else ""
        )

    def ps(self, patience: float | None = None) -> list[dict[str, Any]]:
        """Return the loaded models: name, size and size_vram in bytes (0 where the answer has no
        possible size), context_length."""
        return [
            {**entry, **{key: _bytes(entry.get(key)) for key in ("size", "size_vram")}}
            for entry in _models(self._ask("GET", "/api/ps", timeout=patience))
        ]

    def create(self, model: str, source: str, parameters: Mapping[str, Any]) -> None:
        """A model that shares every layer of `source` but has these parameters. The server would
        *pull* a missing source, so call `has` before."""
        body = {"model": model, "from": source, "parameters": dict(parameters), "stream": False}
        # The server merges the parameters over those of `source`
        answer = self._ask("POST", "/api/create", body, timeout=self.load_timeout, model=source)
        if answer.get("status") != "success":
            raise OllamaError(
                f"{self.url} did not say that {model} was created, but "
                f"{_quoted(json.dumps(answer))}"
            )

    def load(self, name: str, options: Mapping[str, Any], keep_alive: str = "5m") -> None:
        """Load with these options, generate nothing. Raises Refused with the server's reason."""
        body = {"model": name, "options": dict(options), "keep_alive": keep_alive, "stream": False}
        try:
            answer = self._ask("POST", "/api/generate", body, timeout=self.load_timeout, model=name)
        except Refused as error:
            # embedding models have no /api/generate
            if "does not support generate" not in error.reason:
                raise
            # an embedding model can only be loaded by embedding something
            self._ask(
                "POST", "/api/embed", {**body, "input": "x"}, timeout=self.load_timeout, model=name
            )
            return
        if answer.get("done") is not True:
            raise OllamaError(
                f"{self.url} did not say that {name} was loaded, but {_quoted(json.dumps(answer))}"
            )

    def unload(self, name: str, patience: float = 20.0) -> None:
        """Unload and wait, for at most `patience` seconds, until it is gone: memory is freed after
        the answer."""
        # without it there is nothing to wait for
        loaded = _entry(self.ps(), name)
        try:
            self._ask(
                "POST",
                "/api/generate",
                {"model": name, "keep_alive": 0, "stream": False},
                model=name,
            )
        except Refused as error:
            if "does not support generate" not in error.reason:
                raise
            self._ask(
                "POST", "/api/embed", {"model": name, "input": "", "keep_alive": 0}, model=name
            )
        if loaded is None:
            return
        # The answer comes before the memory is free
        until = time.monotonic() + patience
        while _entry(self.ps(), name) is not None:
            if time.monotonic() > until:
                raise OllamaError(
                    f"{name} is still loaded {patience:.0f} s after the request to unload it: is "
                    "it in use?"
                )
            time.sleep(0.2)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        model: str = "",
    ) -> dict[str, Any]:
        """Return one call: its JSON object, the last one of a stream."""
        limit = Limit(self.timeout if timeout is None else timeout)
        try:
            with request(
                method,
                self.url + path,
                limit,
                json=body,
                authorization=f"Bearer {self._token}" if self._token else "",
            ) as answer:
                # A redirect is an answer here, not followed: a token stays with its host
                return self._read(answer, answer.content(_LONGEST_ANSWER), path, model)
        except NetError as error:
            raise self._failed(error, self.url + path, limit) from None

    def _failed(self, error: NetError, url: str, limit: Limit) -> OllamaError:
        if error.kind == "unreachable":
            return NotRunning(
                f"no Ollama server at {self.url} ({error.reason}): start it with `ollama serve`, "
                "or set its address with OLLAMA_HOST"
            )
        if error.kind in ("slow", "silent"):
            return OllamaError(f"{url} did not answer within {limit.total:.0f} s")
        if error.kind == "large":
            return OllamaError(f"{url}: the answer does not end")
        if error.kind == "broken":
            return OllamaError(f"{url}: the connection broke ({error.reason})")
        return OllamaError(f"{url}: {error}")

    def _read(self, answer: Response, content: bytes, path: str, model: str) -> dict[str, Any]:
        status = answer.status
        if 300 <= status < 400:
            place = public(answer.headers.get("Location", "elsewhere"))
            raise OllamaError(
                f"{self.url} redirects to {place}: set OLLAMA_HOST to the address of Ollama itself"
            )
        # errors come as JSON within a stream, with status 200
        objects = list(_objects(content))
        # The first error that an answer names, or "".
        reason = next((str(answer["error"]) for answer in objects if answer.get("error")), "")
        if reason or status >= 400:
            reason = reason or _text(content).strip() or answer.reason or "no reason given"
            # A 404 without JSON is another program's, and says nothing of the model
            raise self._failure(status, reason, path, model if objects else "")
        if not objects:
            raise self._no_answer(content, path)
        # Of a stream the last object has the result
        return objects[-1]

    def _failure(self, status: int, reason: str, path: str, model: str) -> NoSuchModel | Refused:
        """Return the error that the server gives as a reason; `model`: the one it was asked for."""
        if status == 404 and model:
            return NoSuchModel(
                f"the Ollama server at {self.url} has no model {model}: {_quoted(reason)}"
            )
        code = f" (HTTP {status})" if status != 200 else ""
        hint = _HINTS.get(status, "")
        return Refused(f"{self.url}{path}: {_quoted(reason)}{code}{hint}", status, reason)

    def _no_answer(self, content: bytes, path: str) -> OllamaError:
        if content.strip():
            text = _quoted(_text(content))
            return OllamaError(f"{self.url}{path}: not an answer of Ollama: {text}")
        why = ""
        if path == "/api/show":
            why = " (it does so for a model whose metadata has Inf or NaN)"
        return OllamaError(f"{self.url}{path}: the server answered nothing{why}")


def _is_own(host: str) -> bool:
    """Return whether a program could listen on this address here; names are not resolved."""
    try:
        address = ipaddress.ip_address(host)
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET) as probe:
            # an address that is not this machine's cannot be bound
            probe.bind((host, 0))
        return True
    except (OSError, ValueError):
        return False


def _quoted(text: str) -> str:
    """Return the server's own words in a message."""
    return one_line(text, 400)


def _text(content: bytes) -> str:
    return content[:_SHOWN].decode("utf-8", "replace")


def _objects(content: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of an answer: one, or one per line in a stream; none if it is
    anything else."""
    # Counted before parsing: small values take fifty times their bytes in memory
    # Whether an answer has more of some mark than any answer of Ollama.
    if any(sum(content.count(mark) for mark in marks) > limit for marks, limit in _MOST):
        return []
    try:
        whole = json.loads(content)
        return [whole] if isinstance(whole, dict) else []
    except (ValueError, RecursionError):
        pass
    parts: list[dict[str, Any]] = []
    for line in filter(bytes.strip, content.splitlines()):
        try:
            part = json.loads(line)
        except (ValueError, RecursionError):
            # half a line: only an error that came before it still counts
            return [entry for entry in parts if entry.get("error")]
        if isinstance(part, dict):
            parts.append(part)
    return parts


def _bytes(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_BYTES else 0


def _models(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    models = answer.get("models")
    return (
        [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []
    )


def _entry(loaded: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Return the loaded model of that name."""
    for entry in loaded:
        try:
            if Name.parse(str(entry.get("name") or entry.get("model"))).same(Name.parse(name)):
                return entry
        except ModelError:
            continue
    return None
