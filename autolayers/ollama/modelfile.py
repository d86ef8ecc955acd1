"""Ollama's Modelfile: read exactly as Ollama reads it, changed without touching anything else.

    modelfile = parse(b"FROM llama3.1:8b\\nPARAMETER num_ctx 4096\\n")
    modelfile.model, modelfile.parameters()          # "llama3.1:8b", {"num_ctx": 4096}
    rewrite(data, {"num_gpu": 33})                   # the same bytes plus one line

The grammar is parser/parser.go:ParseFile of Ollama 0.33 (2026-08-21), which is a state machine over
runes without a notion of lines: a quoted value may contain newlines, and only a newline (or the
end) checks whether it is closed. The checks of parameters are those of its client
(parser.go:CreateRequest, api/types.go:FormatParams).
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from math import isfinite
from unicodedata import category

from .. import __version__
from ..errors import AutolayersError, UsageError
from ..quoting import printable
from ..records import dataclass
from ..tables import listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Value = int | float | bool | str | list[str]

MAX_SIZE = 16 << 20  # bytes; licences and long templates are far smaller

_COMMANDS = listed(
    "from license template system adapter draft renderer parser parameter message requires"
)
_ROLES = ("system", "user", "assistant")
# the name of a command once read; a PARAMETER of that name *is* that command
# (e.g. PARAMETER system acts as SYSTEM)
_NOT_PARAMETERS = frozenset(("model", *_COMMANDS)) - {"from", "parameter"}

_INTEGERS = frozenset(
    listed(
        "num_ctx num_batch num_gpu main_gpu num_thread draft_num_predict num_keep seed num_predict "
        "top_k repeat_last_n"
    )
)
_FLOATS = frozenset(
    listed("top_p min_p typical_p temperature repeat_penalty presence_penalty frequency_penalty")
)
_BOOLEANS = frozenset(["use_mmap"])
_LISTS = frozenset(["stop"])
# Ollama accepts these with a warning and drops them
_DEPRECATED = frozenset(
    listed(
        "penalize_newline low_vram f16_kv logits_all vocab_only use_mlock mirostat mirostat_tau "
        "mirostat_eta"
    )
)
_TRUTH = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}

_BLANK = " \t"
_SPACE = " \t\r\n"
_NEWLINE = re.compile(r"[\r\n]")
_LETTERS = re.compile(r"[A-Za-z]*")
_PARAMETER_NAME = re.compile(r"[A-Za-z0-9_]*")
# Above U+02FF: Go's and Python's tables of Unicode may differ there
_BEYOND_LATIN = re.compile("[^\x00-\u02ff]")
_BAD_UTF8 = re.compile("[\udc80-\udcff]+")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DIGITS = r"\d+(?:_\d+)*"  # as Go's literals have them
_FLOAT = re.compile(
    rf"[+-]?(({_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(e[+-]?{_DIGITS})?|inf|infinity|nan)",
    re.IGNORECASE | re.ASCII,
)
_HEX_FLOAT = re.compile(r"[+-]?0x_?([0-9a-f_]*(?:\.[0-9a-f_]*)?)p[+-]?\d+", re.IGNORECASE)
_NUMBER = r"(0|[1-9]\d*)"
_PRERELEASE = rf"({_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"v{_NUMBER}(\.{_NUMBER}(\.{_NUMBER}(-{_PRERELEASE}(\.{_PRERELEASE})*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?)?)?",
    re.ASCII,
)
_FLOAT32_MAX = 3.4028235677973366e38  # halfway to the next one: more does not round to a float32

_INVALID_COMMAND = 'command must be one of {}, or "requires"'.format(
    ", ".join(f'"{name}"' for name in _COMMANDS[:-1])
)
_INVALID_ROLE = 'message role must be one of "system", "user", or "assistant"'


# emoji of Unicode 15, which Go knows and Python before 3.12 does not, as used in model file names
_NEWER = re.compile(
    "[\U0001f6dc\U0001f774-\U0001f776\U0001f77b-\U0001f77f\U0001f7d9\U0001fa75-\U0001fa77"
    "\U0001fa87\U0001fa88\U0001faad-\U0001faaf\U0001fabb-\U0001fabd\U0001fabf\U0001face\U0001facf"
    "\U0001fada\U0001fadb\U0001fae8\U0001faf7\U0001faf8]"
)


class ModelfileError(AutolayersError):
    """Ollama would refuse this Modelfile. `ollama` is its own message, `line` the line as an editor
    counts."""

    def __init__(self, ollama: str, line: int, source: str = "Modelfile") -> None:
        self.ollama, self.line, self.source = ollama, line, source
        reason = re.sub(r"^\(line \d+\): ", "", ollama)
        if ollama == "unknown parameter ''":
            reason += ": write exactly one space after PARAMETER"
        super().__init__(f"{source}:{line}: {reason} (Ollama refuses this Modelfile)")


@dataclass(frozen=True)
class _Instruction:
    """One command. Offsets are bytes of the file: `value` includes the quotes, but not the spaces
    around it; `end` is after the newline that closed it, or the end of the file."""

    # "model" for FROM, the parameter's own name for PARAMETER, otherwise the lower-case keyword
    name: str
    # as Ollama stores it: unquoted, non-printable characters dropped, "role: text" for MESSAGE
    args: str
    keyword: str  # as written: "FROM", "Parameter"
    line: int  # from 1, CRLF is one newline
    start: int  # of the keyword
    value: tuple[int, int]
    end: int
    newline: str  # "\n", "\r\n", "\r", or "" at the end of the file


@dataclass(frozen=True)
class Modelfile:
    data: bytes
    encoding: str  # Python's name: utf-8, utf-16-le, utf-16-be
    commands: tuple[_Instruction, ...]
    source: str = "Modelfile"

    @property
    def model(self) -> str:
        """The model that the last FROM names."""
        return self._from().args

    def named(self, name: str) -> list[_Instruction]:
        return [command for command in self.commands if command.name == name]

    def parameters(self) -> dict[str, Value]:
        """Return the parameters that `ollama create` would send; raises ModelfileError if it would
        refuse."""
        values: dict[str, Value] = {}
        for command in self.commands:
            if command.name == "requires":
                if not _SEMVER.fullmatch(
                    command.args if command.args.startswith("v") else f"v{command.args}"
                ):
                    raise ModelfileError(
                        "requires must be a valid semver (e.g. 0.14.0)", command.line, self.source
                    )
            elif command.name not in _NOT_PARAMETERS and command.name not in _DEPRECATED:
                try:
                    value = _value_of(command.name, command.args)
                except ValueError as error:
                    raise ModelfileError(str(error), command.line, self.source) from None
                earlier = values.get(command.name)
                # `stop` adds up; of all others the last counts
                if isinstance(earlier, list) and isinstance(value, list):
                    value = earlier + value
                values[command.name] = value
        return values

    def _from(self) -> _Instruction:
        return self.named("model")[-1]


def minimal(source: str, parameters: Mapping[str, int], comments: Sequence[str]) -> bytes:
    """Return a Modelfile of FROM and PARAMETER lines after the comments. Raises UsageError for a
    name that it cannot have."""
    # Blanks at the ends would be trimmed, and a quote would open a text
    value = source if source == source.strip() and not source.startswith('"') else f'"""{source}"""'
    lines = [
        *(
            f"# {printable(' '.join(text.split()))}"
            for text in (f"autolayers {__version__}", *comments)
        ),
        f"FROM {value}",
        *(f"PARAMETER {name} {number}" for name, number in parameters.items()),
    ]
    data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    parsed = parse(data)
    # Read back, as names with characters that do not print would lose them
    if parsed.model != source or parsed.parameters() != parameters:
        raise UsageError(
            f"a Modelfile cannot name {source!r}: Ollama drops some of its characters; rename the "
            "file"
        )
    return data


def parse(data: bytes, source: str = "Modelfile") -> Modelfile:
    """Return the commands of a Modelfile; raises ModelfileError if Ollama's parser would stop."""
    if len(data) > MAX_SIZE:
        raise ModelfileError(f"{len(data)} bytes are too much for a Modelfile", 1, source)
    encoding, bom, text = _decode(data)
    if match := _unsure(text):
        raise ModelfileError(
            f"U+{ord(match[0]):X} next to a quote: Ollama's version decides whether it prints, and "
            "so whether the quote opens a text",
            1 + _lines(text, 0, match.start()),
            source,
        )
    commands = tuple(_Reader(text, _Offsets(text, encoding, bom), source).commands())
    if not any(command.name == "model" for command in commands):
        raise ModelfileError("no FROM line", 1, source)
    return Modelfile(data, encoding, commands, source)


def rewrite(data: bytes, values: Mapping[str, int], source: str = "Modelfile") -> bytes:
    """`data` with these integer parameters set and every other byte unchanged.

    Every existing line of a parameter gets the new value in place (Ollama uses the last one; the
    others would mislead a reader). A new parameter gets a line after the last FROM, in the file's
    encoding and newline style. Raises ModelfileError if Ollama would refuse the file.
    """
    before = parse(data, source)
    old = before.parameters()
    # Raise ModelfileError where a draft is the model.
    models = [command.args for command in before.named("model")]
    for draft in before.named("draft"):
        if draft.args in models:
            raise ModelfileError(f"DRAFT {draft.args} is the model itself", draft.line, source)
    # (first byte, last byte, the new text)
    edits: list[tuple[int, int, str]] = []
    for name, value in values.items():
        edits += [(*command.value, str(value)) for command in before.named(name)]
    absent = [name for name in values if not before.named(name)]
    missing = [f"PARAMETER {name} {values[name]}" for name in absent]
    if missing:
        place = before._from()
        # The text of new lines after an instruction. A file without a final newline stays so: a
        # newline comes before the new lines instead.
        if place.newline:
            inserted = "".join(line + place.newline for line in missing)
        else:
            newline = _newline_of(_decode(data)[2])
            inserted = "".join(newline + line for line in missing)
        edits.append((place.end, place.end, inserted))
    # The bytes with each (first, end, text) instead of what is there.
    # From the end on, so that earlier offsets stay right
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode(before.encoding) + data[end:]
    after = data
    _check(before, {**old, **values}, parse(after, source), set(values))
    return after


def _check(
    before: Modelfile, expected: dict[str, Value], after: Modelfile, changed: set[str]
) -> None:
    """Read the result back: only the intended parameters may differ."""

    def others(modelfile: Modelfile) -> list[tuple[str, str]]:
        return [
            (command.name, command.args)
            for command in modelfile.commands
            if command.name not in changed
        ]

    # repr: nan is not equal to itself
    if others(before) != others(after) or repr(sorted(after.parameters().items())) != repr(
        sorted(expected.items())
    ):
        raise AutolayersError(
            f"{before.source}: cannot be changed without changing its meaning; nothing was written"
        )


def _decode(data: bytes) -> tuple[str, int, str]:
    """Return the encoding, the length of the byte order mark, and a text that encodes back to the
    same bytes: invalid UTF-8 and lone surrogates stay surrogates here and become U+FFFD only in
    values."""
    marks = ((BOM_UTF8, "utf-8"), (BOM_UTF16_LE, "utf-16-le"), (BOM_UTF16_BE, "utf-16-be"))
    mark, encoding = next((pair for pair in marks if data.startswith(pair[0])), (b"", "utf-8"))
    body = data[len(mark) :]
    if encoding == "utf-8":
        return encoding, len(mark), body.decode(encoding, "surrogateescape")
    odd = len(body) % 2  # half a character at the end reads as U+FFFD
    return (
        encoding,
        len(mark),
        body[: len(body) - odd].decode(encoding, "surrogatepass") + "\ufffd" * odd,
    )


class _Offsets:
    """Byte offsets of increasing positions in a text."""

    def __init__(self, text: str, encoding: str, bom: int) -> None:
        self._text, self._encoding = text, encoding
        self._position, self._offset = 0, bom

    def __call__(self, position: int) -> int:
        piece = self._text[self._position : position]
        # As `_decode` made them, so that every byte is counted as it stood
        errors = "surrogateescape" if self._encoding == "utf-8" else "surrogatepass"
        self._offset += len(piece.encode(self._encoding, errors))
        self._position = position
        return self._offset


def _unsure(text: str) -> re.Match[str] | None:
    """Return a character next to a quote that Python's Unicode does not know: a newer Go may print
    it."""
    if text.isascii():
        return None
    for match in _BEYOND_LATIN.finditer(text):
        if category(match[0]) != "Cn" or _NEWER.match(match[0]):
            continue
        before = text[: match.start()].rstrip(_BLANK)[-1:]
        after = text[match.end() :].lstrip(_BLANK)[:1]
        for near in before + after:
            if near == '"' or category(near) == "Cn":
                return match
    return None


class _Reader:
    """Reads the commands of a text; `line` is that of the command being read."""

    def __init__(self, text: str, offset: _Offsets, source: str) -> None:
        self.text, self.offset, self.source = text, offset, source
        self.line, self.counted = 1, 0

    def commands(self) -> Iterator[_Instruction]:
        at = self.start(0)
        while at < len(self.text):
            command, at = self.command(at)
            yield command
            at = self.start(at)

    def start(self, at: int) -> int:
        """Return where the next command starts, after blanks and comments."""
        text, size = self.text, len(self.text)
        while at < size:
            if text[at] in _SPACE:
                at += 1
            elif text[at] == "#":
                newline = _NEWLINE.search(text, at)
                at = newline.end() if newline else size
            else:
                break
        return at

    def command(self, start: int) -> tuple[_Instruction, int]:
        """Return the command that starts here, and the position after it."""
        text, offset = self.text, self.offset
        self.line += _lines(text, self.counted, start)
        self.counted = start
        keyword, stop = self.keyword(start)
        name, role, stop = self.name_and_role(keyword.lower(), stop)
        args, begin, end, newline_at = _value(text, stop + 1)
        if args is None:
            raise self.error("unexpected EOF")
        ending = _newline_of(text, newline_at) if newline_at < len(text) else ""
        at = newline_at + len(ending)
        # in the order of the file, so that every byte is counted once
        from_byte, value, to_byte = offset(start), (offset(begin), offset(end)), offset(at)
        return _Instruction(
            name, role + args, keyword, self.line, from_byte, value, to_byte, ending
        ), at

    def keyword(self, start: int) -> tuple[str, int]:
        """Return the word that names a command, and the position after it."""
        text = self.text
        # Any rune starts a name; one that does not print is dropped again.
        rune = _rune(text, start)
        stop = _end_of(_LETTERS, text, start + len(rune))
        keyword = _printable(rune) + text[start + len(rune) : stop]
        if stop == len(text):
            raise self.error("unexpected EOF")
        # A newline right behind the word is no blank: Ollama refuses that
        if text[stop] not in _BLANK or keyword.lower() not in _COMMANDS:
            raise self.error(_INVALID_COMMAND, stop)
        return keyword, stop

    def name_and_role(self, keyword: str, stop: int) -> tuple[str, str, int]:
        """Return the name of what a command sets, the role of a message, and the position after
        both."""
        if keyword == "from":
            return "model", "", stop
        if keyword not in ("parameter", "message"):
            return keyword, "", stop
        text = self.text
        # Exactly one blank: a second one ends an empty name.
        first = stop + 1
        stop = _end_of(_PARAMETER_NAME if keyword == "parameter" else _LETTERS, text, first)
        word = text[first:stop]
        if stop == len(text):
            raise self.error("unexpected EOF")
        if text[stop] not in _BLANK:
            raise self.error(f"unexpected EOF: {word}")
        if keyword == "parameter":
            return word, "", stop
        if word not in _ROLES:
            raise self.error(_INVALID_ROLE, stop)
        return keyword, f"{word}: ", stop

    def error(self, message: str, upto: int | None = None) -> ModelfileError:
        if upto is not None:  # Ollama counts every \r and \n, including the rune that it stops at
            seen = self.text[: upto + 1]
            message = f"(line {1 + seen.count(chr(10)) + seen.count(chr(13))}): {message}"
        return ModelfileError(message, self.line, self.source)


def _value(text: str, at: int) -> tuple[str | None, int, int, int]:
    """Return the value that starts at `at`: unquoted text (None: never closed), its first and last
    position, and the position of the newline that closed it."""
    # The value's lines, without what does not print, each with its line end
    pieces: list[str] = []
    opening, stop, args = "", at, None
    while True:
        newline = _NEWLINE.search(text, stop)
        end = newline.start() if newline else len(text)
        pieces.append(_printable(text[stop:end]))
        # only the first line can be closed without ending in its opening quotes
        if not opening or pieces[-1].rstrip(_BLANK).endswith(opening):
            written = "".join(pieces).strip(_SPACE)
            # The text without its quotes; None while they are open. There are no escapes.
            # Six characters: two quotes of three each; with five the text is still open
            if written.startswith('"""'):
                args = written[3:-3] if len(written) >= 6 and written.endswith('"""') else None
            elif written.startswith('"'):
                args = written[1:-1] if len(written) >= 2 and written.endswith('"') else None
            else:
                args = written
            if args is not None:
                break
            # Open: it goes on to the next line that ends in these quotes
            opening = '"""' if written.startswith('"""') else '"'
        if newline is None:
            return None, at, at, end
        pieces.append(newline.group())
        stop = newline.end()
    # The first and last position of what counts between these two
    first, last = at, end
    while first < last and not _counts(text[first]):
        first += 1
    while last > first and not _counts(text[last - 1]):
        last -= 1
    return args, first, last, end


def _printable(piece: str) -> str:
    """Return the part of a line that Ollama keeps: Go's strconv.IsPrint and spaces, invalid bytes
    as U+FFFD."""
    piece = _BAD_UTF8.sub(
        lambda bad: bad.group().encode("utf-8", "surrogateescape").decode("utf-8", "replace"), piece
    )
    if piece.isprintable():
        return piece
    return "".join(
        "\ufffd" if "\ud800" <= c <= "\udfff" else c
        for c in piece
        if c.isprintable() or c == "\t" or "\ud800" <= c <= "\udfff" or _NEWER.match(c)
    )


def _rune(text: str, at: int) -> str:
    """Return the character at a position, or all invalid bytes that one U+FFFD replaces."""
    if bad := _BAD_UTF8.match(text, at):
        try:
            bad.group().encode("utf-8", "surrogateescape").decode("utf-8")
        except UnicodeDecodeError as error:
            return bad.group()[: error.end]
    return text[at]


def _counts(character: str) -> bool:
    return character not in _SPACE and _printable(character) != ""


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _newline_of(text: str, at: int = 0) -> str:
    """Return the first newline from a position on, in the file's style."""
    newline = _NEWLINE.search(text, at)
    return (
        "\n"
        if newline is None
        else "\r\n"
        if text.startswith("\r\n", newline.start())
        else newline.group()
    )


def _lines(text: str, start: int, end: int) -> int:
    """Count the newlines between two positions, CRLF counted once (a command never starts between
    its two halves)."""
    piece = text[start:end]
    return piece.count("\n") + piece.count("\r") - piece.count("\r\n")


def _value_of(name: str, text: str) -> Value:
    """Return a parameter's value with Ollama's type; ValueError with Ollama's message. Values print
    as Go prints a list."""
    if name in _LISTS:
        return [text]
    if name in _INTEGERS:
        # Go's ParseInt with 64 bits: a sign, no point, no underscore
        if not _INTEGER.fullmatch(text) or len(text) > 64 or not -(1 << 63) <= int(text) < 1 << 63:
            raise ValueError(f"invalid int value [{text}]")
        return int(text)
    if name in _BOOLEANS:
        if text not in _TRUTH:
            raise ValueError(f"invalid bool value [{text}]")
        return _TRUTH[text]
    if name in _FLOATS:
        # A value that Ollama's client can send as a float32; ValueError for another.
        value = _float(text)
        if value is not None and not isfinite(value):
            raise ValueError(f"json: unsupported value: {text}")  # its client cannot send it
        if value is None or abs(value) >= _FLOAT32_MAX:
            raise ValueError(f"invalid float value [{text}]")
        return value
    raise ValueError(f"unknown parameter '{name}'")


def _float(text: str) -> float | None:
    """Read as Go's strconv.ParseFloat: decimal, hexadecimal with exponent, inf and nan; no
    spaces."""
    if _FLOAT.fullmatch(text):
        value = float(text.replace("_", ""))
        # too large is an error in Go, inf in Python
        return value if abs(value) != float("inf") or "inf" in text.lower() else None
    if match := _HEX_FLOAT.fullmatch(text):
        digits = match.group(1)
        if digits.strip("._") and "__" not in digits and not digits.endswith("_"):
            try:
                return float.fromhex(text.replace("_", ""))
            except (ValueError, OverflowError):
                return None
    return None
