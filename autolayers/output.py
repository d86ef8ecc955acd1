"""What autolayers prints: answers on stdout, one line for each thing to know on stderr.

    show("fits\\n")              # for people: nothing in it can steer a terminal
    emit("-ngl 99 -c 8192\\n")   # for programs: exactly these characters, or an error
    say("no GPU found")         # "autolayers: no GPU found" on stderr

Names come from files, servers and programs that anybody may have written: see quoting.printable.
"""

from __future__ import annotations

import sys

from .errors import AutolayersError
from .quoting import printable

COLOURS = {"0": "none", "1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow"}     # ESC [ code m


def say(text: str, *table: str) -> None:
    """One line on stderr, or nowhere where that cannot be written; also of a text that has several, and URLs without
    what may be secret; below it the lines of a table."""
    text = " ".join(text.split())
    if "://" in text:
        from .net import without_credentials

        text = without_credentials(text)
    lines = (f"autolayers: {text}", *table)
    try:
        print("\n".join(map(printable, lines)), file=sys.stderr, flush=True)
    except OSError:
        return


def show(text: str) -> None:
    """Text for people, each line printable but for our own colours; what the terminal's encoding lacks is escaped."""
    lines = "\n".join(_clean(line) for line in text.split("\n"))
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(lines.encode(encoding, "backslashreplace").decode(encoding))


def emit(text: str) -> None:
    """Text for programs, unchanged; file names that are not UTF-8 byte for byte. Raises AutolayersError where the
    encoding of stdout has not got a character."""
    encoding, errors = sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict"
    try:
        text.encode(encoding, errors)
    except UnicodeEncodeError:
        pass
    else:
        sys.stdout.write(text)
        return
    try:
        data = text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        raise AutolayersError(f"the encoding of the output, {encoding}, has no {text[error.start]!a}: set "
                              "PYTHONIOENCODING=utf-8") from None
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def open_streams() -> None:
    """Puts something in the place of standard streams that are closed (>&-, 2>&-): a file that is opened later would
    become the stream, and `print` turns to stdout where there is no stderr. Writing to a closed stdout still fails."""
    import os

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8",
                                         errors="backslashreplace", closefd=False))


def discard() -> None:
    """Sends stdout to the null device, so that flushing it at exit cannot fail again."""
    import os

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
        ours = bool(m) and code in COLOURS
        parts.append(f"\x1b[{code}m{printable(rest)}" if ours else printable("\x1b[" + part))
    return "".join(parts)
