"""Quoting, one function for each language: a terminal, shell, PowerShell, systemd, YAML, INI."""

from __future__ import annotations

import os

from .errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def printable(text: str) -> str:
    """Part of a line on a terminal or in a comment: escapes line ends, control characters, marks that change
    the writing direction and bytes that are not UTF-8.

    >>> printable("a\\x1b[2J\\n\\u202e")
    'a\\\\x1b[2J\\\\n\\\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF
                   else c.encode("unicode_escape").decode() for c in text)


def shell(words: Sequence[str]) -> str:
    """A command line for this machine's shell: POSIX, or bash, zsh and ksh if a word is not printable; on Windows for
    PowerShell and cmd.exe."""
    if os.name == "nt":
        return windows(words)
    return " ".join(posix([word]) if word.isprintable() else f"$'{_ansi_c(word)}'" for word in words)


def posix(words: Sequence[str]) -> str:
    """A command line with plain shell quotes, inside a file format that escapes unprintable characters
    itself."""
    import shlex

    return shlex.join(words)


def _ansi_c(word: str) -> str:
    """The text between $' and ' (POSIX.1-2024, 2.2.4)."""
    return "".join(f"\\{c}" if c in "'\\" else c if c.isprintable()
                   else "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "surrogateescape"))
                   for c in word)


def powershell(words: Sequence[str]) -> str:
    """A command line for PowerShell (about_Quoting_Rules): words that are not plain are single-quoted."""
    return " ".join(word if _is_plain(word) else "'" + word.replace("'", "''") + "'" for word in words)


def windows(words: Sequence[str]) -> str:
    r"""A command line that PowerShell and cmd.exe read alike, as long as no word has a double quote, a dollar sign or a
    backtick; such words are quoted for PowerShell.

    >>> print(windows(["-ts", "27,27", "-ot", r"blk\.20\.ffn_(ch|)exps=CPU", "-m", r"C:\models\a b.gguf"]))
    -ts "27,27" -ot "blk\.20\.ffn_(ch|)exps=CPU" -m "C:\models\a b.gguf"
    """
    return " ".join(word if _is_plain(word.replace("\\", "/")) else powershell([word]) if set(word) & _QUOTES
                    else f'"{word}{word[len(word.rstrip(chr(92))):]}"'      # a backslash would escape the last quote
                    for word in words)


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=+")
_QUOTES = frozenset("\"$`\u201c\u201d\u201e")      # PowerShell takes typographic quotes for quotes


def _is_plain(word: str) -> bool:
    """Whether PowerShell reads a bare word as it is; of a flag it splits off what begins with a dot or colon."""
    return bool(word) and set(word) <= _PLAIN and not (word.startswith("-") and set(word) & set(".:"))


def systemd(word: str) -> str:
    """One word of ExecStart= (systemd.service(5), systemd.syntax(7)), without specifiers, variables and line
    ends."""
    escaped = "".join(
        c if c.isprintable() else "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "surrogateescape"))
        for c in word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$"))
    plain = word and word.isprintable() and not set(word) & set(" \"'\\;#") and word != "-"
    return escaped if plain else f'"{escaped}"'


def yaml(text: str) -> str:
    """A double-quoted scalar (YAML 1.2, section 5.7). Raises UsageError for text that is not UTF-8."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"{text!r}: not UTF-8, so a YAML file cannot hold it: rename it")
    return '"' + "".join(_yaml_escape(c) for c in text) + '"'


def _yaml_escape(c: str) -> str:
    if c in '"\\':
        return f"\\{c}"
    if c.isprintable():
        return c
    code = ord(c)
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def ini(what: str, text: str) -> str:
    """A value or section of an INI file as llama.cpp reads it (common/preset.cpp), without quotes and
    escapes. Raises UsageError, naming `what`, for text that such a file cannot hold."""
    if set(text) & set(";#\r\n") or text != text.strip(" \t"):
        raise UsageError(f"{what} {text!r}: a preset cannot hold it (; and # begin a comment there)")
    return text
