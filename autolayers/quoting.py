"""Quoting, one function for each language: a terminal, shells, PowerShell, systemd, YAML, Nix,
INI."""

from __future__ import annotations

import os

from .errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def printable(text: str) -> str:
    """Return a part of a line on a terminal or in a comment: escapes line ends, control characters,
    marks that change the writing direction and bytes that are not UTF-8.

    >>> printable("a\\x1b[2J\\n\\u202e")
    'a\\\\x1b[2J\\\\n\\\\u202e'
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else _escaped(c) for c in text])


def _escaped(c: str) -> str:
    """Return the escape of a character that is not printable."""
    # PEP 383: a byte that is not UTF-8 is a lone surrogate here
    if 0xDC80 <= ord(c) <= 0xDCFF:
        return f"\\x{ord(c) - 0xDC00:02x}"
    return c.encode("unicode_escape").decode()


def shell(words: Sequence[str]) -> str:
    """Return a command line for this machine's shell; on Windows for PowerShell and cmd.exe."""
    return windows(words) if os.name == "nt" else posix(words)


def posix(words: Sequence[str]) -> str:
    r"""Return a command line in which bash, dash, zsh, fish and mksh run the first word and nothing
    else, whatever the words hold. All of them read printable words alike.

    fish takes a backslash before a quote or a backslash for an escape within '...' too, so these
    stand outside. What is not printable is written as bytes in $'...' (POSIX.1-2024, 2.2.4): dash
    and fish lack it, and refuse it or take it for other text.

    >>> rule = r"blk\.(1|2)\.ffn=CPU"
    >>> print(posix(["llama-server", "-m", "it's.gguf", "-ot", rule, "-a", "a\nb"]))
    llama-server -m 'it'\''s.gguf' -ot 'blk\.(1|2)\.ffn=CPU' -a 'a'$'\x0a''b'
    """
    return " ".join(
        _posix(word, bare=_BARE if i else _BARE - {"="}) for i, word in enumerate(words)
    )


def _posix(word: str, bare: frozenset[str]) -> str:
    # zsh and fish replace =NAME and %self
    if word and set(word) <= bare and word[0] not in "=%":
        return word
    import re  # of words that are not plain alone

    kinds = "".join(map(_kind, word))
    parts = []
    # text in quotes, quotes and backslashes each escaped, everything else as bytes
    for run in re.finditer(r"(?:a|\\(?=a))+|['\\]+|x+", kinds):
        text = word[run.start() : run.end()]
        if run[0][0] == "x":
            parts.append(f"$'{_bytes(text)}'")
        elif "a" in run[0]:
            parts.append(f"'{text}'")
        else:
            parts.append("".join(f"\\{c}" for c in text))
    return "".join(parts) or "''"


def _kind(c: str) -> str:
    """Return "x" for a character that is not printable, itself for a quote or a backslash, "a" for
    any other."""
    if not c.isprintable():
        return "x"
    return c if c in "'\\" else "a"


def _bytes(text: str) -> str:
    r"""Return the bytes of a text as \x.. each: of a name that is not UTF-8 its own (PEP 383), of
    half a UTF-16 pair, which a JSON file or a name on Windows can hold, those that UTF-8 would give
    it."""
    data = b"".join(
        c.encode("utf-8", "surrogateescape" if "\udc80" <= c <= "\udcff" else "surrogatepass")
        for c in text
    )
    return "".join(f"\\x{byte:02x}" for byte in data)


def command_line(words: Sequence[str]) -> str:
    """Return a command line whose first word is a program: PowerShell starts a quoted one only
    behind `&`, which cmd.exe does not know."""
    line = shell(words)
    return f"& {line}" if os.name == "nt" and line[:1] in "\"'" else line


def powershell(words: Sequence[str]) -> str:
    """Return a command line for PowerShell (about_Quoting_Rules): words that are not plain are
    single-quoted, and written as expandable text where they are not printable."""
    return " ".join(map(_powershell, words))


def _powershell(word: str) -> str:
    if _is_plain(word):
        return word
    if word.isprintable():
        return "'" + "".join(2 * c if c in _SINGLE else c for c in word) + "'"
    return '"' + "".join(_expandable(c) for c in word) + '"'


def _expandable(c: str) -> str:
    """Return a character of PowerShell's "..."."""
    if c.isprintable():
        # a backtick escapes in expandable text
        return f"`{c}" if c in _QUOTES else c
    number = f"0x{ord(c):x}"
    # [char] holds 16 bits
    return f"$([char]{number})" if ord(c) < 1 << 16 else f"$([char]::ConvertFromUtf32({number}))"


def windows(words: Sequence[str]) -> str:
    r"""Return a command line that PowerShell and cmd.exe read alike, as long as no word has a
    double quote, a dollar sign, a backtick or, for cmd.exe, %NAME%; such words are quoted for
    PowerShell, which needs & before a quoted program (`command_line`).

    >>> rule = r"blk\.20\.ffn_(ch|)exps=CPU"
    >>> print(windows(["-ts", "27,27", "-ot", rule, "-m", r"C:\models\a b.gguf"]))
    -ts "27,27" -ot "blk\.20\.ffn_(ch|)exps=CPU" -m "C:\models\a b.gguf"
    """
    return " ".join(map(_windows, words))


def _windows(word: str) -> str:
    if _is_plain(word.replace("\\", "/")):
        return word
    if set(word) & _QUOTES or not word.isprintable():
        return _powershell(word)
    # a backslash would escape the last quote
    return f'"{word}{word[len(word.rstrip(chr(92))) :]}"'


# Characters that PowerShell reads as they are in a bare word.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=+")
# PowerShell takes typographic quotes for quotes
_QUOTES = frozenset('"$`\u201c\u201d\u201e')
_SINGLE = "'\u2018\u2019\u201a\u201b"
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-")


def _is_plain(word: str) -> bool:
    """Return whether PowerShell reads a bare word as it is; of a flag it splits off what begins
    with a dot or colon."""
    return (
        bool(word) and set(word) <= _PLAIN and not (word.startswith("-") and set(word) & set(".:"))
    )


def systemd(word: str) -> str:
    """Return one word of ExecStart= (systemd.service(5), systemd.syntax(7)), without specifiers,
    variables and line ends."""
    escaped = "".join(
        c if c.isprintable() else _bytes(c)
        for c in word.replace("\\", "\\\\")
        .replace('"', '\\"')
        .replace("%", "%%")
        .replace("$", "$$")
    )
    # ; separates commands in a unit file, # begins a comment
    plain = word and word.isprintable() and not set(word) & set(" \"'\\;#") and word != "-"
    return escaped if plain else f'"{escaped}"'


def yaml(text: str) -> str:
    """Return a double-quoted scalar (YAML 1.2, section 5.7). Raises UsageError for text that is not
    UTF-8."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"{text!r}: not UTF-8, so a YAML file cannot hold it: rename it")
    return '"' + "".join(_yaml_escape(c) for c in text) + '"'


def container_argument(word: str) -> str:
    """Return a word of a Kubernetes container's command or args, a YAML scalar: $(NAME) would be a
    variable of the container, and $$ is $ (third_party/forked/golang/expansion). Raises UsageError
    as `yaml`."""
    return yaml(word.replace("$", "$$"))


def compose(text: str) -> str:
    """Return a scalar of a Compose file, where $NAME and ${NAME} would be variables and $$ is $
    (Compose specification, Interpolation). Raises UsageError as `yaml`."""
    return yaml(text.replace("$", "$$"))


def _yaml_escape(c: str) -> str:
    if c in '"\\':
        return f"\\{c}"
    if c.isprintable():
        return c
    code = ord(c)
    if code < 1 << 8:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


_NIX = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\", "$": "\\$"})


def nix(text: str) -> str:
    """Return a string of the Nix language. Raises UsageError for what it cannot hold."""
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"{text!r}: a Nix string cannot hold it: rename it")
    escaped = text.translate(_NIX)
    if control := next((c for c in escaped if not c.isprintable()), ""):
        raise UsageError(f"{text!r}: a Nix string has no escape for {control!a}: rename it")
    return f'"{escaped}"'


def ini(what: str, text: str) -> str:
    """Return a value or section of an INI file as llama.cpp reads it (common/preset.cpp), without
    quotes and escapes. Raises UsageError, naming `what`, for text that such a file cannot hold."""
    if set(text) & set(";#\r\n") or text != text.strip(" \t"):
        raise UsageError(
            f"{what} {text!r}: a preset cannot hold it (; and # begin a comment there)"
        )
    return text
