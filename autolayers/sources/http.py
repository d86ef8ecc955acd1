"""A model's header over HTTP: Range requests (RFC 9110, section 14), or one stream where a server
ignores them.

    part = Remote("https://example.org/model.gguf")
    # of the whole file, from Content-Range or Content-Length; None if the server does not say
    part.size
    part.read(1 << 18)        # up to n bytes, from where the last read ended
"""

from __future__ import annotations

import json
import re
from urllib.parse import urlsplit, urlunsplit

from ..errors import ModelError
from ..net import Limit, NetError, Response, one_line, public, request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Token = Callable[[str], str]  # URL -> the token that may be sent there, "" for none

SILENCE = 30.0  # seconds between two bytes
# for all headers of one model; vocabularies make them 16 MiB at most
PATIENCE = 300.0
# bytes of the first range; each further one is 4 times as large
FIRST, LARGEST = 1 << 20, 1 << 24
# 1 + 4 + 16 MiB and 16 MiB for each more: far above any header
_MAX_RANGES = 256
_MAX_REDIRECTS = 10
MAX_PARTS = 512
# bytes of a page of files; the Hub's 1000 entries take less than 1 MiB
MAX_LISTING = 8 << 20
# of a page, each up to a hundred bytes in memory; 1000 entries have ten thousand
_MAX_ITEMS = 1 << 19

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_RANGE = re.compile(r"bytes (?:([0-9]{1,19})-([0-9]{1,19})|\*)/([0-9]{1,19}|\*)")
_LENGTH = re.compile(r"[0-9]{1,19}")


def _no_token(url: str) -> str:
    """Return the Token for servers that get none."""
    return ""


def patience() -> Limit:
    """Return the limit of time for one model."""
    return Limit(PATIENCE, SILENCE)


def open_url(url: str, token: Token = _no_token, limit: Limit | None = None) -> list[Remote]:
    """Return the shards of the URL's model, by their names; each is fetched when it is read."""
    limit = limit or patience()
    split = urlsplit(url)
    part = _PART.search(split.path)
    count = int(part[2]) if part else 1
    if part is None or count < 2:
        return [Remote(url, token, limit=limit)]
    if not 1 <= int(part[1]) <= count <= MAX_PARTS:
        raise ModelError(
            f"{public(url)}: no part of a model has that number (at most {MAX_PARTS} parts)"
        )
    # The query stays in each shard's URL: it may hold a signature
    stem = split.path[: part.start()]
    names = [f"{stem}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    # one limit of time for all parts together
    return [Remote(urlunsplit(split._replace(path=name)), token, limit=limit) for name in names]


class Remote:
    """A file on a server, read from its start; a gguf.Readable. Every failure is a ModelError of
    one line."""

    def __init__(
        self, url: str, token: Token = _no_token, name: str = "", limit: Limit | None = None
    ) -> None:
        self.get = Get(url, token, name, limit or patience())
        self.url, self.name = url, self.get.name
        self._at = 0
        self._end = 0  # of the range that is being read
        # bytes of the next range
        self._step = FIRST
        self._ranges = 0
        self._size: int | None = None
        self._tag = ("", "")  # the final URL and its ETag
        self._answer: Response | None = None
        self._ranged = self._done = False

    @property
    def size(self) -> int | None:
        """Bytes of the whole file."""
        if self._answer is None and not self._done:
            self._open()
        return self._size

    def read(self, n: int) -> bytes:
        """1 to `n` bytes; b"" at the end."""
        while not self._done:
            if self._answer is None:
                self._open()
                continue
            # Read up to `n` bytes of the current answer; b"" at its end.
            if not self._ranged:
                chunk = self.get.read(self._answer, n)
            elif self._at >= self._end:
                chunk = b""
            else:
                chunk = self.get.read(self._answer, min(n, self._end - self._at))
            if chunk:
                # Only the file's first bytes tell that it is no GGUF
                if not self._at:
                    self._check_start(chunk)
                self._at += len(chunk)
                return chunk
            self._answer.close()
            self._answer = None
            # the body ended early, and no error said so
            if self._at < (self._end if self._ranged else self._size or 0):
                raise self.get.error(
                    f"the connection broke after {self._at} of {self._size} bytes: try again"
                )
            self._done = not self._ranged or self._at == self._size
        return b""

    def _open(self) -> None:
        """Ask for the next range."""
        if self._at:
            # a header of unknown size in few requests: small ones cost one, large ones a handful
            self._step = min(self._step * 4, LARGEST)
        self._ranges += 1
        if self._ranges > _MAX_RANGES:
            raise self.get.error(
                f"the server sends its header in more than {_MAX_RANGES} pieces; download the file "
                "and give its path"
            )
        # Both ends of a range count: bytes=0-1048575
        last = self._at + self._step - 1
        if self._size is not None:
            last = min(last, self._size - 1)
        # 200: the server ignores ranges; 416: it has none at this offset
        answer = self.get.answer({"Range": f"bytes={self._at}-{last}"}, (200, 206, 416))
        if answer.status == 416:
            # Take a file that has no byte at all. Raises if the server merely refuses the range.
            answer.close()
            match = _content_range(answer)
            # 416 is also how a server says that it dislikes ranges
            if self._at or not match or match[3] not in ("0", "*"):
                raise self.get.error("the server refuses to send a range of the file")
            self._size, self._done = 0, True
            return
        size = self._ranged_size(answer, last) if answer.status == 206 else self._whole_size(answer)
        tag = public(answer.url), answer.headers.get("ETag", "")
        # an ETag is compared on the same server alone: mirrors have their own
        if self._at and (size != self._size or (tag[0] == self._tag[0] and tag[1] != self._tag[1])):
            answer.close()
            raise self.get.error("the file changed while it was read: try again")
        self._ranged = answer.status == 206
        self._size, self._answer, self._tag = size, answer, tag

    def _ranged_size(self, answer: Response, last: int) -> int | None:
        """Return the bytes of the whole file, None if the answer does not say. Raises for another
        range."""
        match = _content_range(answer)
        size = int(match[3]) if match and match[3] != "*" else None
        if not match or match[1] is None or not self._continues(int(match[1]), int(match[2]), size):
            answer.close()
            raise self.get.error("the server sends a different range than requested")
        # never more than what was requested, whatever the server claims
        self._end = min(int(match[2]), last) + 1
        return size

    def _continues(self, first: int, last: int, size: int | None) -> bool:
        """Return whether these bytes follow those that were read, in a file of `size`."""
        return first == self._at and last >= first and (size is None or last < size)

    def _whole_size(self, answer: Response) -> int | None:
        """Return the same of a server that sends the whole file. Raises if it sent a part
        before."""
        if self._at:
            answer.close()
            raise self.get.error("the server stopped answering with ranges: try again")
        length = answer.headers.get("Content-Length", "")
        return int(length) if _LENGTH.fullmatch(length) else None

    def _check_start(self, chunk: bytes) -> None:
        kind = self._answer.headers.get("Content-Type", "") if self._answer is not None else ""
        # A clone without git-lfs, or a "raw" link, gives these three lines of text
        if chunk.startswith(b"version https://git-lfs"):
            raise self.get.error(
                "a Git LFS pointer instead of the file; use the link of the file itself"
            )
        if not chunk.startswith(b"G") and ("html" in kind.lower() or chunk.lstrip()[:1] == b"<"):
            raise self.get.error(
                "a web page, not a GGUF file; is it the file's page, or a login? Give the link "
                "that downloads the file itself"
            )


def _content_range(answer: Response) -> re.Match[str] | None:
    return _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())


class Get:
    """GET of one URL, with failures explained for someone who wants a model."""

    def __init__(
        self, url: str, token: Token = _no_token, name: str = "", limit: Limit | None = None
    ) -> None:
        self.url, self.name, self.limit = url, name or public(url), limit or patience()
        self._token = token
        self._sent = ""  # the token of the last request

    def error(self, reason: str) -> ModelError:
        return ModelError(f"{self.name}: {reason}")

    def answer(self, headers: dict[str, str], expected: tuple[int, ...] = (200,)) -> Response:
        """Return the answer after all redirects, before its body. Raises ModelError for any other
        status."""
        # Asked for each URL: a token never goes to another host
        self._sent = self._token(self.url)
        try:
            answer = request(
                "GET",
                self.url,
                self.limit,
                headers=headers,
                redirects=_MAX_REDIRECTS,
                authorization=f"Bearer {self._sent}" if self._sent else "",
            )
        except NetError as error:
            raise self._failed(error) from None
        if answer.status not in expected:
            answer.close()
            raise self.error(self._refusal(answer))
        return answer

    def read(self, answer: Response, n: int) -> bytes:
        """1 to `n` bytes of an answer's body, b"" at its end."""
        try:
            return answer.read(n)
        except NetError as error:
            answer.close()
            raise self._failed(error) from None

    def json(self) -> tuple[object, str]:
        """Return (a JSON answer, the URL of its next page or "")."""
        with self.answer({"Accept": "application/json"}) as answer:
            try:
                content = answer.content(MAX_LISTING)
                # counted before parsing: nesting costs far more memory than bytes
                if sum(content.count(mark) for mark in b",[{") > _MAX_ITEMS:
                    raise ValueError
                # `next_page`: of the Link header
                return json.loads(content), answer.next_page
            except NetError as error:
                raise self._failed(error) from None
            except (ValueError, RecursionError):
                raise self.error(
                    f"{public(self.url)} does not answer with JSON; is HF_ENDPOINT right?"
                ) from None

    def _failed(self, error: NetError) -> ModelError:
        # A line end in a token would be a second header
        if error.kind == "credentials":
            return self.error("HF_TOKEN has invalid characters")
        advice = "; download the file and give its path" if error.kind == "slow" else ""
        return self.error(f"{error}{advice}")

    def _refusal(self, answer: Response) -> str:
        message = one_line(answer.headers.get("X-Error-Message", ""))
        message = f" ({message})" if message else ""
        # the Hub answers 401 for what does not exist, too
        if answer.status == 401:
            if self._sent:
                return f"the server does not accept the token in HF_TOKEN{message}"
            return (
                f"not public, or not there{message}; for a private or gated model of Hugging Face "
                "set HF_TOKEN"
            )
        if answer.status == 403:
            return (
                f"access denied{message}; accept a gated model's licence on its page, and use the "
                "HF_TOKEN of that account"
            )
        if answer.status in (404, 410):
            return f"not found{message}; check the name"
        if answer.status == 429:
            wait = answer.headers.get("Retry-After", "")
            when = f"in {wait} s" if wait.isdecimal() and len(wait) < 8 else "later"
            return f"too many requests: try again {when}, with HF_TOKEN for more"
        if answer.status >= 500:
            return f"the server fails (HTTP {answer.status}): try again later"
        return f"the server answers HTTP {answer.status} {answer.reason}".rstrip() + message
