"""A processor by one text: its name and the instructions for matrices that it has.

    read()                                # "AMD EPYC 9654 96-Core Processor avx2 avx512_vnni"
    arithmetic("Graviton4")               # a core's rate of that of one with AVX2
    memory("2 x AMD EPYC 9654")           # bytes per second of its sockets' channels, 0 if unknown

The text is Linux's /proc/cpuinfo, a Mac's sysctl, or what a machine file says as `cpu`.
"""

from __future__ import annotations

import sys

from ..machine import OF_PEAK
from ..records import dataclass
from ..tables import rows
from .system import file_text

# A core's arithmetic on weights, relative to AVX2's: of rows of processors with and without them
# (fixtures/speeds); the first that a text has counts
INSTRUCTIONS = {
    "amx_int8": 2.0,
    "avx512_vnni": 1.1,
    "avx_vnni": 1.2,
    "avx2": 1.0,
    "i8mm": 0.9,
    "asimddp": 0.5,
    "avx": 0.4,
    "asimd": 0.2,
}
_SYSCTL = {"hw.optional.arm.FEAT_I8MM": "i8mm", "hw.optional.arm.FEAT_DotProd": "asimddp"}


@dataclass(frozen=True)
class Processor:
    """Processors whose name matches a pattern: the best of their instructions, the memory channels
    of a server's socket and 10**6 transfers per second of each. Both are 0 for a desktop or laptop,
    whose memory follows other signs."""

    pattern: str
    instructions: str
    channels: int = 0
    transfers: int = 0


PROCESSORS = tuple(
    [
        Processor(
            row["pattern"],
            row["instructions"],
            int(row["channels"] or 0),
            int(row["transfers"] or 0),
        )
        for row in rows("devices/processors.tsv")
    ]
)


def read(root: str = "/") -> str:
    """Return this machine's text, "" if the system does not say it."""
    if root == "/" and sys.platform == "darwin":
        return _mac()
    fields: dict[str, str] = {}
    sockets = set()
    for line in file_text(root, "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
        if name.strip() == "physical id":
            sockets.add(value.strip())
    part = fields.get("CPU part")
    words = (fields.get("flags") or fields.get("Features") or "").split()
    return " ".join(
        [
            *([f"{len(sockets)} x"] if len(sockets) > 1 else []),
            *filter(None, (fields.get("model name"), part and f"part {part}")),
            *(name for name in INSTRUCTIONS if name in words),
        ]
    )


def _mac() -> str:
    """Return a Mac's text."""
    import ctypes

    libc = ctypes.CDLL(None)

    def ask(name: str, size: int) -> bytes:
        value, length = ctypes.create_string_buffer(size), ctypes.c_size_t(size)
        failed = libc.sysctlbyname(name.encode(), value, ctypes.byref(length), None, 0)
        return b"" if failed else value.raw[: length.value]

    brand = ask("machdep.cpu.brand_string", 128).rstrip(b"\0").decode("ascii", "replace")
    return " ".join([brand, *(word for key, word in _SYSCTL.items() if any(ask(key, 8)))])


def _known(text: str) -> Processor | None:
    import re  # few calls

    return next((row for row in PROCESSORS if re.search(row.pattern, text, re.IGNORECASE)), None)


def arithmetic(text: str) -> float:
    """Return a core's arithmetic relative to AVX2's; 1.0 if nothing is known."""
    words = text.split()
    said = next((name for name in INSTRUCTIONS if name in words), "")
    row = None if said else _known(text)
    return INSTRUCTIONS.get(said or (row.instructions if row else ""), 1.0)


def memory(text: str) -> float:
    """Return the bytes per second that reading reaches on all channels of its sockets, 0.0 for
    desktops and what is not known. Of a further socket half: threads read the other one's memory
    too."""
    row = _known(text)
    if row is None or not row.channels:
        return 0.0
    first, _, name = text.partition(" x ")
    sockets = int(first) if name and first.isdecimal() else 1
    return (1 + sockets) / 2 * row.channels * row.transfers * 8e6 * OF_PEAK
