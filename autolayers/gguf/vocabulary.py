"""The entries of an array of strings, such as a vocabulary's tokens, one after the other.

    next(strings("model.gguf", "tokenizer.ggml.tokens"))      # b"<unk>"

Headers are read without them (reader.py); this reads the file again, in bounded memory.
"""

from __future__ import annotations

from os import fstat

from ..errors import ModelError
from ..files import opened
from .reader import ARRAY, FORMAT, STRING, ReadWindow, read_start, skip_array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST = 1 << 16  # bytes of a string that are kept: no token has as many


def strings(path: str, key: str) -> Iterator[bytes]:
    """Yield each string of the array, none where the file has no such array. Raises ModelError."""
    try:
        with opened(path, buffering=0) as file:
            window = ReadWindow(file, path, fstat(file.fileno()).st_size, True)
            # keys are in no fixed order
            for _ in range(read_start(window)[2]):
                name = window.text(window.u64())
                kind, n = window.u32(), 1
                if kind == ARRAY:
                    kind, n = window.u32(), window.u64()
                if name == key and kind == STRING:
                    for _ in range(n):
                        yield _one(window)
                    return
                # Go past a value, or `n` of an array
                format_ = FORMAT[kind] if kind < len(FORMAT) else None
                if kind == STRING:
                    skip_array(window, n, name)
                elif format_:
                    window.skip(n * format_.size)
                else:
                    raise window.error("it has changed while it was read")
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None


def _one(window: ReadWindow) -> bytes:
    n = window.u64()
    length = min(n, _LONGEST)
    window.need(length)
    text = window.buf[window.pos : window.pos + length]
    window.pos += length
    window.skip(n - length)
    return text
