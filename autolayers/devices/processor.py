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


# As the makers' data sheets say; an Arm core's part number as /proc/cpuinfo has it
PROCESSORS = (
    Processor(r"Graviton ?4|part 0xd4f", "i8mm", 12, 5600),
    Processor(r"Graviton ?3|part 0xd40", "i8mm", 8, 4800),
    Processor(r"Graviton ?2|Altra|part 0xd0c", "asimddp", 8, 3200),
    Processor(r"EPYC 9\w\w5", "avx512_vnni", 12, 6000),
    Processor(r"EPYC 8\w\w4", "avx512_vnni", 6, 4800),
    Processor(r"EPYC 9\w\w4", "avx512_vnni", 12, 4800),
    Processor(r"EPYC 7\w\w[23]", "avx2", 8, 3200),
    Processor(r"EPYC 7\w\w1", "avx2", 8, 2666),
    Processor(r"Xeon.{0,40} 6[79]\d\d\w?P", "amx_int8", 12, 6400),
    Processor(r"Xeon.{0,40} [3-8]5\d\d\b", "amx_int8", 8, 5600),
    Processor(r"Xeon.{0,40} [3-8]4\d\d\b", "amx_int8", 8, 4800),
    Processor(r"Xeon.{0,40} [3-8]3\d\d\b", "avx512_vnni", 8, 3200),
    Processor(r"Xeon.{0,40} [3-8]2\d\d\b", "avx512_vnni", 6, 2933),
    Processor(r"Xeon.{0,40} [3-8]1\d\d\b", "avx2", 6, 2666),
    Processor(r"E5-[124]6\d\d\w* v[34]", "avx2", 4, 2400),
    Processor(r"E5-[124]6\d\d", "avx", 4, 1600),
    Processor(r"Threadripper PRO [79]", "avx512_vnni", 8, 5200),
    Processor(r"Threadripper PRO", "avx2", 8, 3200),
    Processor(r"Threadripper [79]", "avx512_vnni", 4, 5200),
    Processor(r"Threadripper", "avx2", 4, 3200),
    Processor(r"Ryzen.{0,40} (7\d[4-9]\d|8\d\d\d|9\d\d\d|AI)", "avx512_vnni"),
    Processor(r"Ryzen", "avx2"),
    Processor(r"i\d-1[2-4]\d\d|Core.{0,40} Ultra", "avx_vnni"),
    Processor(r"i\d-[4-9]\d\d\d|i\d-1[01]\d\d", "avx2"),
    Processor(r"i\d-[23]\d\d\d", "avx"),
    Processor(r"Apple M1|Cortex-A7[68]|part 0xd0b", "asimddp"),
    Processor(r"Apple M|Snapdragon X|Neoverse V", "i8mm"),
    Processor(r"Cortex-A72|part 0xd08", "asimd"),
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
