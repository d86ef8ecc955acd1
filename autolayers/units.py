"""Sizes as text: bytes inside, MiB and GiB outside (always powers of two).

GB is 10**9 bytes of a file and GiB of memory, as both are sold.
"""

from __future__ import annotations

from math import ceil

from .errors import UsageError

KiB, MiB, GiB, TiB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_SUFFIXES = {
    "": 1,
    "b": 1,
    "k": KiB,
    "kib": KiB,
    "m": MiB,
    "mib": MiB,
    "g": GiB,
    "gib": GiB,
    "t": TiB,
    "tib": TiB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


def parse_size(text: str, default: int = 1) -> int:
    """Return the bytes of "24GiB", "24G", "24576MiB", "24GB" (10**9); a bare number counts in
    `default` bytes.

    Raises UsageError for anything else, for negatives and for more than 1 EiB.

    >>> parse_size("24GiB") == 24 * GiB
    True
    """
    # The letters at the end are the unit; what is before them must be a number.
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    suffix = text.strip()[len(number) :].lower()
    try:
        factor = default if suffix == "" else _SUFFIXES[suffix]
        value = float(number)
    except (KeyError, ValueError):
        raise UsageError(f"not a size: {text!r} (write for example 24GiB or 512MiB)") from None
    # 1 EiB: more is a typing error.
    if not 0 <= value * factor <= 1 << 60:
        raise UsageError(f"not a possible size: {text!r}")
    return round(value * factor)


def whole(text: str, digits: int = 18) -> int | None:
    """Return the number of a text of ASCII digits; None for any other, and for one with more than
    `digits`, which a file or a server may send and int() refuses from 4,300 on.

    >>> whole("4096"), whole("-1"), whole("9" * 5000)
    (4096, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


def parse_memory(text: str) -> int:
    """Return the bytes of a GPU's memory or of RAM, which are sold in powers of two: "24GB" is
    24GiB. Raises UsageError.

    >>> parse_memory("24GB") == parse_memory("24GiB") == 24 * GiB
    True
    """
    size = text.strip()
    # "24GB" is read as "24G".
    sold = size[:-1] if size[-2:].lower() in ("kb", "mb", "gb", "tb") else size
    try:
        return parse_size(sold)
    except UsageError as error:
        # The message names what was typed.
        raise UsageError(str(error).replace(repr(sold), repr(text))) from None


def is_whole_size(text: str) -> bool:
    """Return whether it is a whole number of GiB or MiB: "24GiB"."""
    return text.lower().endswith(("gib", "mib")) and text[:-3].rstrip().isdecimal()


def with_unit(number: str) -> str:
    """Return the size of memory that a number without a unit most likely means: "16GiB" of "16",
    "16384MiB" of "16384".

    >>> with_unit("16"), with_unit("512"), with_unit("16384")
    ('16GiB', '512GiB or 512MiB', '16384MiB')
    """
    value = float(number)
    # No GPU of today has less than 256 MiB, and none has 1024 GiB.
    if value < 256:
        return f"{number}GiB"
    return f"{number}MiB" if value >= 1024 else f"{number}GiB or {number}MiB"


def pad(n: int, to: int) -> int:
    """Return the least multiple of `to` that is not less than n (GGML_PAD)."""
    return -(-n // to) * to


def in_mib(size: int, decimals: int = 2) -> str:
    """ "1234.56": a cell of a table whose head says MiB."""
    return f"{size / MiB:.{decimals}f}"


def mib(size: int) -> str:
    """ "1234.56 MiB": how llama.cpp prints a buffer."""
    return f"{in_mib(size)} MiB"


def gib(size: int) -> str:
    """ "8.00 GiB": of RAM, which people count in GiB."""
    return f"{size / GiB:.2f} GiB"


def at_least(size: int) -> str:
    """Return what is missing, rounded up: GiB with one decimal, MiB below a tenth.

    >>> at_least(800 * MiB), at_least(20 * MiB + 1)
    ('0.8 GiB', '21 MiB')
    """
    # Rounded up, so that what is said to be missing is enough.
    tenth = GiB / 10
    return f"{ceil(size / tenth) / 10:.1f} GiB" if size >= tenth else f"{ceil(size / MiB)} MiB"


def human(size: int) -> str:
    """Return MiB below 10 GiB, GiB above, two decimals."""
    return mib(size) if abs(size) < 10 * GiB else f"{size / GiB:.2f} GiB"
