"""Opening other people's files: what is no regular file is refused instead of waited for.

with opened(path) as file:      # OSError: "not a regular file"
    file.read(MOST)
"""

from __future__ import annotations

import errno
import os
from stat import S_ISDIR, S_ISREG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

# what this process was given open: `<(command)` of a shell is such a pipe
_GIVEN = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")


def opened(path: str, buffering: int = -1) -> BinaryIO:
    """Return a file to be read. Raises OSError, also for a pipe, which may never be written to, and
    for a device, which may never end."""
    if path.startswith(_GIVEN):
        return open(path, "rb", buffering)
    # without O_NONBLOCK opening a pipe would wait for its writer
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(handle).st_mode
    if S_ISREG(mode):
        return os.fdopen(handle, "rb", buffering)
    os.close(handle)
    code = errno.EISDIR if S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, os.strerror(code) if S_ISDIR(mode) else "not a regular file", path)
