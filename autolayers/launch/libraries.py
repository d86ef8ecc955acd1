"""A llama.cpp program and its libraries on disk, and the architectures that they have."""

from __future__ import annotations

import os

from ..builds.build import dates
from ..builds.sources import following, seen
from ..model.architectures import NAMES, architecture

_LIBRARIES = ("libllama", "libggml", "libmtmd", "llama.", "llama-", "ggml", "mtmd")
_ENDINGS = (".so", ".dylib", ".dll")
_OF_LLAMA = ("libllama.", "llama.dll")      # the library that has the names of architectures
_LARGEST = 1 << 27                          # bytes; a file beyond is not read


def files(program: str) -> list[str]:
    """The program without links, then llama.cpp's libraries next to it or in ../lib."""
    real = os.path.realpath(program)
    folder = os.path.dirname(real)
    found = [real]
    for place in (folder, os.path.join(os.path.dirname(folder), "lib")):
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        found += [os.path.join(place, name) for name in names
                  if name.startswith(_LIBRARIES) and any(ending in name for ending in _ENDINGS)]
    return found


def between(program: str, flags: frozenset[str]) -> tuple[int, int]:
    """(first, last) build that the program may be: by its flags, and by the architectures that its library names."""
    low, high = dates(flags)
    there = files(program)
    text = _read(next((path for path in there if os.path.basename(path).startswith(_OF_LLAMA)), there[0]))
    if b"\0llama\0" not in text or b"\0gpt2\0" not in text:
        return low, high                    # no names of architectures there
    dated = [row for row in map(architecture, NAMES) if following(row.after) and seen(row.after)]
    first = max([low, *[row.after + 1 for row in dated if b"\0%s\0" % row.name.encode() in text]])
    # a linker may keep a string as the end of a longer one
    last = min([high, *[following(row.after) - 1 for row in dated if b"%s\0" % row.name.encode() not in text]])
    return (first, last) if first <= last else (low, high)


def _read(path: str) -> bytes:
    """A file's bytes; none of what cannot be read or is too large."""
    try:
        if os.path.getsize(path) <= _LARGEST:
            with open(path, "rb") as file:
                return file.read()
    except OSError:
        pass
    return b""
