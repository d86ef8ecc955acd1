"""What autolayers prints: answers on stdout, notes on stderr, one line each.

    show("fits\\n")              # for people: nothing in it can steer a terminal
    emit("-ngl 99 -c 8192\\n")   # for programs: exactly these characters, or an error
    say("no GPU found")         # "autolayers: no GPU found" on stderr

Names come from untrusted files, servers and programs: see quoting.printable.
"""

from __future__ import annotations

import os
import sys

from .errors import AutolayersError
from .quoting import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# The colours that reports use; any other escape sequence is shown as text.
COLOURS = {
    "0": "none",
    "1": "bold",
    "2": "dim",
    "31": "red",
}  # ESC [ code m; a white terminal shows no green or yellow


def say(text: str, *table: str) -> None:
    """Prints one line to stderr: joins multi-line text, removes secrets from URLs, ignores a closed
    stderr. `table` lines follow it."""
    lines = (f"autolayers: {one_line(text)}", *table)
    try:
        print("\n".join(map(printable, lines)), file=sys.stderr, flush=True)
    except OSError:
        return


def say_all(lines: Iterable[str]) -> None:
    """Prints each line to stderr, as `say` does."""
    for line in lines:
        say(line)


def one_line(text: str) -> str:
    """Return the text as one line, without secrets in URLs."""
    text = " ".join(text.split())
    if "://" in text:
        # A URL in an error may hold a token, e.g. https://user:token@host/.
        from .net import without_credentials

        text = without_credentials(text)
    return text


def show(text: str) -> None:
    """Prints text for people: only printable characters and our own colours; characters that the
    terminal's encoding lacks are escaped."""
    _write("\n".join(map(_clean, text.split("\n"))))


def _write(lines: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    # A Windows console of code page 1252 lacks block characters: they are escaped, not an error.
    sys.stdout.write(lines.encode(encoding, "backslashreplace").decode(encoding))


def emit(text: str) -> None:
    """Prints text for programs unchanged; file names that are not UTF-8 keep their bytes. A
    terminal gets printable characters alone: a file's name could steer or colour it. Raises
    AutolayersError if stdout's encoding lacks a character."""
    if sys.stdout.isatty():
        _write("\n".join(map(printable, text.split("\n"))))
        return
    encoding = sys.stdout.encoding or "utf-8"
    errors = sys.stdout.errors or "strict"
    try:
        # Tried first, as half a line on a pipe would be worse than an error.
        text.encode(encoding, errors)
    except UnicodeEncodeError:
        pass
    else:
        sys.stdout.write(text)
        return
    try:
        # Bytes of a file name that are no UTF-8 are surrogates in the text.
        data = text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        raise AutolayersError(
            f"the encoding of the output, {encoding}, lacks {text[error.start]!a}: set "
            "PYTHONIOENCODING=utf-8"
        ) from None
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def emit_json(document: object, indent: int = 1) -> None:
    """Prints a document as JSON, as `emit` does."""
    # a plan's flags alone need no JSON, and are printed in less time without it
    import json

    emit(json.dumps(document, indent=indent) + "\n")


def clear() -> None:
    """Clears a terminal."""
    if sys.stdout.isatty():
        # Cursor to the top left, then clear to the end.
        sys.stdout.write("\x1b[H\x1b[J")


def open_streams() -> None:
    """Opens the null device for closed standard streams (>&-, 2>&-): otherwise a file that is
    opened later would become the stream, and `print` would write to stdout if there is no stderr.
    Writing to a closed stdout still fails."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest free number, which is the closed stream's own if those before it are open.
            handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(
                sys,
                name,
                os.fdopen(
                    number,
                    "r" if name == "stdin" else "w",
                    encoding="utf-8",
                    errors="backslashreplace",
                    closefd=False,
                ),
            )


def discard() -> None:
    """Sends stdout to the null device, so that flushing it at exit cannot fail again."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        pass


def _clean(line: str) -> str:
    if line.isprintable():
        return line
    first, *others = line.split("\x1b[")
    parts = [printable(first)]
    for part in others:
        code, m, rest = part.partition("m")
        # Only a whole sequence that we write: ESC [ 31 m.
        ours = bool(m) and code in COLOURS
        parts.append(f"\x1b[{code}m{printable(rest)}" if ours else printable("\x1b[" + part))
    return "".join(parts)
