"""Apple's GPU: the limit Metal recommends, through the Objective-C runtime.

llama.cpp takes recommendedMaxWorkingSetSize as total and knows only its own allocations; the
available RAM bounds what other programs leave.
"""

from __future__ import annotations

import sys

from ..backends import METAL
from ..machine import Device
from ..programs import NoAnswer, apart
from .system import MOST_MEMORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Reader = Callable[[], tuple[str, int, bool] | None]


_TIMEOUT = 10


def query(available: int, platform: str = sys.platform, read: Reader | None = None) -> list[Device]:
    """Return the default Metal device as MTL0, none except on macOS. `available`: bytes of free
    RAM."""
    if platform != "darwin":
        return []
    answer = (read or _ask)()
    if answer is None or answer[1] > MOST_MEMORY:
        return []
    name, limit, unified = answer
    free = min(limit, available) if unified else limit
    return [
        Device(
            f"{METAL}0",
            limit,
            free,
            name,
            backend=METAL,
            kind="gpu",
            source="metal",
            unified=unified,
            warning="unified memory: free is the smaller of Metal's limit and the available RAM"
            if unified
            else "free is Metal's limit: Metal does not report other programs' use",
        )
    ]


def _ask() -> tuple[str, int, bool] | None:
    """Return what the driver says in its own process, which a crash ends alone."""
    try:
        for row in apart(__name__, "answers", silence=_TIMEOUT):
            if isinstance(row, list):
                return row[0], row[1], row[2]
    except NoAnswer:
        pass
    return None


def answers() -> Iterator[tuple[str, int, bool]]:
    answer = _read_metal()
    if answer is not None:
        yield answer


def _read_metal() -> tuple[str, int, bool] | None:
    """Return the name, the recommended limit in bytes, and whether the memory is the system's; None
    without a Metal device."""
    import ctypes

    try:
        objc = ctypes.CDLL("/usr/lib/libobjc.dylib")
        metal = ctypes.CDLL("/System/Library/Frameworks/Metal.framework/Metal")
        # Metal's own condition for MTLCreateSystemDefaultDevice outside an application.
        ctypes.CDLL("/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics")
    except OSError:
        return None
    metal.MTLCreateSystemDefaultDevice.restype = ctypes.c_void_p
    device = metal.MTLCreateSystemDefaultDevice()
    if not device:
        return None
    objc.sel_registerName.restype = ctypes.c_void_p
    objc.sel_registerName.argtypes = [ctypes.c_char_p]

    def send(
        target: int,
        message: bytes,
        kind: type[ctypes.c_uint64 | ctypes.c_void_p | ctypes.c_char_p | ctypes.c_bool],
    ) -> object:
        # objc_msgSend must be called through each message's exact signature.
        call = ctypes.CFUNCTYPE(kind, ctypes.c_void_p, ctypes.c_void_p)(("objc_msgSend", objc))
        return call(target, objc.sel_registerName(message))

    limit = send(device, b"recommendedMaxWorkingSetSize", ctypes.c_uint64)
    unified = send(device, b"hasUnifiedMemory", ctypes.c_bool)
    string = send(device, b"name", ctypes.c_void_p)
    name = send(string, b"UTF8String", ctypes.c_char_p) if isinstance(string, int) else None
    if not isinstance(limit, int):
        return None
    return (
        name.decode("utf-8", "replace") if isinstance(name, bytes) else "Apple GPU",
        limit,
        bool(unified),
    )
