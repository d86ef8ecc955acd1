"""Which GPUs CUDA shows a process, and in what order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

Rules: CUDA C++ Programming Guide, "CUDA environment variables" (2026), and the findings of PyTorch
and nvitop where it is silent (repeated entries, partial numbers). NVML knows nothing of these
variables.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KINDS = ("GPU-", "MIG-")


def parse(value: str | None) -> tuple[int | str, ...] | None:
    """Return the valid entries of CUDA_VISIBLE_DEVICES; None if it is unset: every device.

    Numbers are read as far as they go ("1st" is 1). The first entry that is no number, is negative
    or is of another kind than the first one (index, GPU-..., MIG-...) ends the list; a repeated one
    empties it.

    >>> parse("0,2,-1,1"), parse("-1"), parse("GPU-8932f937,GPU-1"), parse("1,1")
    ((0, 2), (), ('GPU-8932f937', 'GPU-1'), ())
    """
    if value is None:
        return None
    # the first entry decides what all of them are
    kind = next((kind for kind in _KINDS if value.startswith(kind)), None)
    entries: list[int | str] = []
    for word in value.split(","):
        entry: int | str | None
        if kind:
            entry = word if word.startswith(kind) else None
        else:
            entry = _leading_number(word)
        if entry is None:
            break
        # a repeated entry makes CUDA show no device at all
        if entry in entries:
            return ()
        entries.append(entry)
    return tuple(entries)


def _leading_number(word: str) -> int | None:
    word = word.strip().removeprefix("+")
    digits = len(word) - len(word.lstrip("0123456789"))
    return int(word[:digits]) if 0 < digits < 10 else None


def pick(value: str | None, uuids: Sequence[str]) -> list[int]:
    """Return the indices into `uuids` (in CUDA's own order) that a process sees under
    CUDA_VISIBLE_DEVICES=`value`, in its order.

    A UUID may be shortened as long as only one device matches; an unknown or ambiguous entry ends
    the list, a device named twice empties it.

    >>> uuids = ["GPU-aa", "GPU-ab"]
    >>> pick("1,0", uuids), pick("GPU-ab", uuids), pick("GPU-a", uuids)
    ([1, 0], [1], [])
    """
    entries = parse(value)
    if entries is None:
        return list(range(len(uuids)))
    picked: list[int] = []
    for entry in entries:
        if isinstance(entry, int):
            matches = [entry] if entry < len(uuids) else []
        else:
            matches = [i for i, uuid in enumerate(uuids) if uuid.startswith(entry)]
        # unknown or ambiguous: CUDA shows those before it
        if len(matches) != 1:
            break
        if matches[0] in picked:
            return []
        picked += matches
    return picked


def by_uuid(value: str | None) -> bool:
    """Return whether the mask names devices by UUID, so that the order CUDA enumerates in does not
    matter."""
    return any(isinstance(entry, str) for entry in parse(value) or ())


# Run in another process: the driver reads both variables once, at cuInit, which must not change
# this process either. cuInit makes no context, so this takes no device memory. _v2 names a MIG
# instance by its own UUID.
_ASK_DRIVER = """
import ctypes, sys
cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
uuid_of = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
count, device, uuid = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
rc = cuda.cuInit(0)
if rc == 100:
    raise SystemExit
assert rc == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for i in range(count.value):
    assert cuda.cuDeviceGet(ctypes.byref(device), i) == 0 and uuid_of(uuid, device) == 0
    print(bytes(uuid).hex())
"""


def ask_driver(environ: Mapping[str, str], timeout: float = 20.0) -> list[str] | None:
    """Return the UUIDs (32 hexadecimal digits) in the order CUDA shows them under `environ`; None
    where it cannot be asked."""
    import subprocess

    try:
        # -I -S: neither the user's packages nor their path change the answer
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ASK_DRIVER],
            env=dict(environ),
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return child.stdout.decode("ascii", "replace").split() if child.returncode == 0 else None
