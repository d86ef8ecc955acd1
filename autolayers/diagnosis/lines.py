"""A log as clean numbered lines, in bounded time and memory whatever it holds.

    for line in lines(b"Mar 24 21:17:29 host ollama[123]: \\x1b[31merror: boom\\x1b[0m\\r\\n"):
        line.number, line.text          # 1, "error: boom"

Taken away, in whatever order they stand: colours, what journald, Docker, llama-swap, the router, LM
Studio and Jan write before a line, llama.cpp's own time stamp and level. Ollama's msg= and error=
and --log-jsonl's "msg" are lines of their own, with the number of the one that they stand in.
"""

from __future__ import annotations

import json
import re

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

_PART = 32 << 20  # bytes that are read of a log's beginning, and as many of its end
LONGEST = 2048  # characters of a line that are looked at
WHOLE = 6_000  # lines at the beginning and at the end that are looked at whatever they say
MOST = 4_000  # lines between them that speak of memory, devices or errors
_REPEATS = 8  # of lines that differ in digits alone

# Words' middles, so that "Error" and "error" are one search of bytes
_WORTH = (b"rror", b"ailed", b"emory", b"buffer size", b"xceed", b"OOM", b"istening")
# arguments of bytes.translate, which deletes the digits
_DIGITS = bytes.maketrans(b"", b""), b"0123456789"

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PREFIXES = tuple(
    map(
        re.compile,
        (
            # journald: "Mar 24 21:17:29 host ollama[1]: ", and -o short-iso, which Docker's
            # --timestamps begin like
            r"(?:\[\d\d?:\d\d:\d\d(?: [AP]M)?\] )?[^\W_]{2,6}\.? [ \d]?\d \d\d:\d\d:\d\d \S{1,64} "
            r"\S{1,64}: ",
            r"\d{4}-\d\d-\d\d[T ][\d:.,+Z-]{5,24} (?:[\w.-]{1,64} [\w./-]{1,64}\[\d{1,9}\]: )?",
            r"[\w.-]{1,64} +\| ",  # docker compose: "ollama  | "
            r"\[\d{2,7}\] ",  # a child of llama-server's router
            r"\[llamacpp[\w-]{0,20}(?: \w{1,10})?\] ",  # Jan
            # LM Studio: "[2025-...][DEBUG] "
            r"\[?\d{4}-\d\d-\d\d[T ][\d:.,Z+-]{5,24}\]?(?:\[\w{1,8}\]){1,3} ?",
            r"\d{1,4}\.\d\d\.\d\d\d\.\d\d\d (?P<level>[DIWEC]) (?:(?:srv|cmn|ctx|mtm|que) +)?",
        ),
    )
)
# Before what begins a line of llama.cpp, e.g. "llama_context: ..."
_JOINED = re.compile(
    r"(?<! ) +(?=(?:ggml|llama|common|clip|mtmd|alloc|load|graph|sched|print)_\w{2,50}: [a-zA-Z])"
)
_LONG, _FEW = 160, 2
_LEVEL = re.compile(r"level=(\w{4,5})\b")
_QUOTED = re.compile(
    r'\b(?:msg|error|err)="((?:[^"\\]|\\.){0,2000})"?'
    r'|"(?:message|error)": ?"((?:[^"\\]|\\.){0,2000})"?'  # in the body of an answer
)


@dataclass(frozen=True)
class Line:
    number: int
    text: str
    level: str = ""  # D I W E C where the line says it


def read(file: BinaryIO) -> tuple[bytes, bytes, int]:
    """Return the beginning and the end of a file of any size, and the lines between them."""
    first = file.read(_PART)
    rest: list[bytes] = []
    dropped = size = 0
    while piece := file.read(1 << 20):
        rest.append(piece)
        size += len(piece)
        # Pieces of the middle go as soon as later ones are there
        if size > _PART:
            gone = rest.pop(0)
            size -= len(gone)
            dropped += gone.count(b"\n")
    return first, b"".join(rest), dropped


class Tail:
    """The beginning and the end of what a running program prints, for when it dies."""

    SIZE = 1 << 19

    def __init__(self) -> None:
        self.first, self._rest = b"", b""

    def feed(self, data: bytes) -> None:
        room = self.SIZE - len(self.first)
        # The beginning has the command and the devices, the end the failure
        self.first += data[:room] if room > 0 else b""
        self._rest += data[max(0, room) :]
        if len(self._rest) > 2 * self.SIZE:
            # Cut at twice the size, so that not every piece is copied
            self._rest = self._rest[-self.SIZE :]

    def data(self) -> bytes:
        return self.first + self._rest


def lines(first: bytes, last: bytes = b"", dropped: int = 0) -> list[Line]:
    """Return the lines worth looking at, in their order."""
    first, last = _plain(first), _plain(last)
    numbered = [*_chosen(first)]
    if last:
        before = first.count(b"\n") + dropped
        numbered += [(number + before, data) for number, data in _chosen(last)]
    seen: dict[bytes, int] = {}
    found: list[Line] = []
    for number, data in numbered:
        # Time stamps, ports and sizes are digits
        key = data[:400].translate(*_DIGITS)
        count = seen[key] = seen.get(key, 0) + 1
        if data and (count <= _REPEATS or len(key) < 8):
            found += _cleaned(number, data)
    return found


def _plain(data: bytes) -> bytes:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # PowerShell's > writes UTF-16
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def _chosen(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of the beginning and the end, and of what may matter between them:
    looked for by words in the whole, because there may be a million lines."""
    head = _nth(data, WHOLE)
    tail = max(head, _nth_last(data, WHOLE))
    yield from enumerate(data[:head].split(b"\n")[:WHOLE], 1)
    # offsets of lines, each once though several words may be in it
    starts: set[int] = set()
    for word in _WORTH:
        at, hits = data.find(word, head, tail), 0
        while at >= 0 and hits < MOST:
            hits += 1
            starts.add(data.rfind(b"\n", 0, at) + 1)
            end = data.find(b"\n", at)
            at = data.find(word, end, tail) if end >= 0 else -1
    number, counted = 1, 0
    for start in sorted(starts):
        # Counted from the last one on: counting from the beginning would be quadratic
        number += data.count(b"\n", counted, start)
        counted = start
        end = data.find(b"\n", start)
        yield number, data[start : end if end >= 0 else None]
    if tail < len(data):
        number += data.count(b"\n", counted, tail)
        yield from enumerate(data[tail:].split(b"\n"), number)


def _nth(data: bytes, count: int) -> int:
    """Return the offset of a line by its number."""
    at = 0
    for _ in range(count):
        end = data.find(b"\n", at)
        if end < 0:
            return len(data)
        at = end + 1
    return at


def _nth_last(data: bytes, count: int) -> int:
    at = len(data)
    for _ in range(count):
        if at <= 0:
            return 0
        at = data.rfind(b"\n", 0, at - 1) + 1
    return at


def _cleaned(number: int, data: bytes) -> Iterable[Line]:
    text, level = data[:LONGEST].decode("utf-8", "replace"), ""
    text = _CONTROL.sub("", _ESCAPE.sub("", text) if "\x1b" in text else text).rstrip()
    # What other programs wrote before it, e.g. journald before docker compose before the router
    # before llama.cpp's own
    for _ in range(4):
        match = next(filter(None, (prefix.match(text) for prefix in _PREFIXES)), None)
        if match is None:
            break
        level = match.groupdict().get("level") or level
        text = text[match.end() :]
    if text.startswith("{") and '"msg"' in text:
        text = json_message(text)
    if match := _LEVEL.search(text):
        level = match[1][0].upper()
    joined = _JOINED.split(text) if len(text) > _LONG else ()
    if len(joined) > _FEW:  # pasted without its line ends
        yield from (Line(number, part, level) for part in joined)
        return
    yield Line(number, text, level)
    # What Ollama quotes: error="..." has the runner's last lines, with \n between them
    for parts in _QUOTED.findall(text) if '="' in text or "\\n" in text else ():
        for inner in "".join(parts).replace("\\n", "\n").replace('\\"', '"').split("\n"):
            if inner and inner != text:
                yield Line(number, inner.strip(), level)


def json_message(text: str) -> str:
    """Return the message of a line of JSON (--log-jsonl); the text itself if it is none."""
    try:
        message = json.loads(text).get("msg", "")
    except (ValueError, AttributeError, RecursionError):
        return text
    return message.strip() if isinstance(message, str) else text
