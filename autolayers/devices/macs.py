"""How much of a Mac's RAM its GPU may use where nobody has set it (sysctl iogpu.wired_limit_mb).

working_set(16)               # 12124 MiB: macOS 15 and newer
working_set(16, macos=14)     # 10922
macos_of("m1-16g-macos14")    # 14
"""

from __future__ import annotations

TODAY = 15  # the first macOS with today's limits

# GiB of RAM, and the MiB that Metal's recommendedMaxWorkingSetSize had in logs of llama.cpp on
# macOS 15 and 26
_WORKING_SETS = {
    8: 5461,
    16: 12124,
    18: 13639,
    24: 18186,
    32: 25559,
    36: 28753,
    48: 38338,
    64: 53084,
    128: 110100,
    512: 475136,
}
_SMALL = 36  # GiB; up to here macOS 13 and 14 allow two thirds, above three quarters


def working_set(ram: int, macos: int = TODAY) -> int:
    """Return the MiB that Metal recommends, by GiB of RAM. The share grows with the RAM: a size
    that was not seen has that of the next smaller one."""
    if macos < TODAY:
        return ram * 1024 * 2 // 3 if ram <= _SMALL else ram * 1024 * 3 // 4
    # 96 GiB is not in the table: it has the share of 64
    seen = max((size for size in _WORKING_SETS if size <= ram), default=min(_WORKING_SETS))
    return ram * _WORKING_SETS[seen] // seen


def macos_of(name: str) -> int | None:
    """Return the macOS that a name of a Mac has: "m1 16gb macos 14"."""
    if "mac" not in name.lower():
        return None
    import re  # few calls

    match = re.search(r"\bmac ?os[ -]?(\d{1,2})\b", name.lower())
    return int(match[1]) if match else None
