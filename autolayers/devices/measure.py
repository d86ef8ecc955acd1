"""Bandwidth of this machine's RAM, PCIe bus and disk: measured on request, kept for speed
predictions.

Kept as measured.json in the state directory (state.py):
{"schema": 1, "machine": NAME, "ram": B/s, "bus": B/s or absent, "disk": B/s or absent,
"when": "2026-11-21T...", and those of BUS}.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from .. import state
from ..errors import AutolayersError
from .system import cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_MAX_RAM = 1 << 30  # larger than any CPU's caches
_BUS = 256 << 20
_FILE = 256 << 20
_BLOCK = 4 << 20
# of repetitions; the best one counts, since other programs only slow it down
_SECONDS = 1.0

# from pageable RAM to the GPU, and back to pinned and pageable RAM
BUS = ("bus_pageable", "bus_back", "bus_back_pageable")


_BUSY = 0.25  # of the processor in use by others: what is measured then is too slow
_LOOK = 0.5  # seconds


class _CannotMeasure(AutolayersError):
    """The reason, as text."""


def load(environ: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Return the last measurement of this machine; None if it is missing or unreadable."""
    try:
        record = state.read(_file(environ))
    except AutolayersError:
        return None
    if (
        not isinstance(record, dict)
        or record.get("schema") != 1
        or record.get("machine") != state.machine_name()
    ):
        return None
    rates = [record[name] for name in ("ram", "bus", "disk", *BUS) if name in record]
    # bytes per second
    real = all(isinstance(rate, (int, float)) and 1e6 < rate < 1e14 for rate in rates)
    return record if rates and real else None


def in_use() -> float:
    """Return the share of the processor that programs use now."""
    import psutil

    return float(psutil.cpu_percent(_LOOK)) / 100


def measure(
    available: int, environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Measure for a few seconds and keep the result, unless other programs are busy. Returns it,
    and a line for each failed measurement.

    `available`: bytes of RAM; an eighth is used. Raises AutolayersError if the result cannot be
    kept.
    """
    busy = in_use()
    result: dict[str, Any] = {
        "schema": 1,
        "machine": state.machine_name(),
        "ram": ram(min(_MAX_RAM, available // 8)),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    notes = []
    try:
        # each rate stands by itself: one that cannot be measured leaves the others
        result |= bus()
    except _CannotMeasure as error:
        notes.append(str(error))
    try:
        result["disk"] = disk(os.path.dirname(_file(environ)), min(_FILE, available // 8))
    except _CannotMeasure as error:
        notes.append(str(error))
    if busy > _BUSY:
        notes.append(
            f"other programs used {busy:.0%} of the processor: these rates are too low, and are "
            "not kept; measure again when they are done"
        )
        return result, notes
    try:
        state.keep(_file(environ), result)
    except AutolayersError as error:
        raise AutolayersError(f"cannot keep the measurement: {error}") from None
    return result, notes


def _file(environ: Mapping[str, str] | None) -> str:
    return state.path(os.environ if environ is None else environ, "measured.json")


def ram(size: int) -> float:
    """Return the bytes per second that all cores together read from `size` bytes of RAM.

    Generation only reads weights, so the memory is searched for a byte that it does not contain.
    """
    import ctypes
    from concurrent.futures import ThreadPoolExecutor

    count = cpus()
    # a buffer for each CPU: one core cannot use all channels of the memory
    share = max(1 << 20, size // count)
    library = ctypes.CDLL("msvcrt") if os.name == "nt" else ctypes.CDLL(None)
    search = library.memchr
    search.restype, search.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t],
    )

    def fresh(_: int) -> Any:
        buffer = ctypes.create_string_buffer(share)
        ctypes.memset(buffer, 1, share)  # untouched pages are all the same zero page
        return buffer

    with ThreadPoolExecutor(count) as threads:
        buffers = list(threads.map(fresh, range(count)))

        def once() -> None:
            for position in threads.map(lambda buffer: search(buffer, 0, share), buffers):
                assert position is None

        return count * share / _best(once)


def _rates(copies: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Return the bytes per second of each copy that works. Raises CannotMeasure if `bus` does
    not."""
    rates = {}
    for name, copy in copies.items():
        try:
            rates[name] = _BUS / _best(copy)
        except _CannotMeasure:
            if name == "bus":
                raise
    return rates


def bus() -> dict[str, float]:
    """Return the bytes per second between RAM and CUDA's first GPU: `bus` from pinned RAM, and BUS.
    Raises CannotMeasure."""
    import ctypes

    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        raise _CannotMeasure("the bus cannot be measured: no CUDA driver (libcuda) here") from None

    def call(name: str, *args: object) -> None:
        function = getattr(cuda, name, None)
        code = function(*args) if function else -1
        if code:
            raise _CannotMeasure(f"the bus cannot be measured: {name} failed (CUDA error {code})")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    pinned, on_device, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(_BUS)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call("cuCtxSetCurrent", context)
        call("cuMemHostAlloc", ctypes.byref(pinned), size, 0)
        plain = ctypes.create_string_buffer(_BUS)
        for buffer in (pinned, plain):
            ctypes.memset(buffer, 1, _BUS)
        call("cuMemAlloc_v2", ctypes.byref(on_device), size)
        to, back = "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"
        copies = {
            "bus": (to, on_device, pinned),
            "bus_pageable": (to, on_device, plain),
            "bus_back": (back, pinned, on_device),
            "bus_back_pageable": (back, plain, on_device),
        }
        return _rates({name: partial(call, *words, size) for name, words in copies.items()})
    finally:
        if on_device:
            cuda.cuMemFree_v2(on_device)
        if pinned:
            cuda.cuMemFreeHost(pinned)
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def disk(folder: str, size: int) -> float:
    """Return the bytes per second of reading an uncached file of that size in this folder. Raises
    CannotMeasure."""
    import tempfile

    if not hasattr(os, "posix_fadvise"):
        raise _CannotMeasure(
            "the disk cannot be measured: this system cannot drop a file from its cache"
        )
    block = os.urandom(_BLOCK)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for _ in range(max(1, size // _BLOCK)):
                file.write(block)
            length = file.tell()
            # dirty pages cannot be dropped: written out first, then dropped from the cache
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            start = time.perf_counter()
            while file.read(_BLOCK):
                pass
            return length / max(1e-6, time.perf_counter() - start)
    except OSError as error:
        raise _CannotMeasure(f"the disk cannot be measured: {error.strerror or error}") from None


def _best(run: Any) -> float:
    """Return the seconds of the fastest of at least three runs."""
    best, end = float("inf"), time.perf_counter() + _SECONDS
    done = 0
    while done < 3 or (time.perf_counter() < end and done < 100):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        done += 1
    return best
