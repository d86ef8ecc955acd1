"""RAM's bandwidth from the firmware's tables (SMBIOS 3, type 17: one per memory module), which only
root may read.

Linux: /sys/firmware/dmi/tables/DMI. A channel is 64 bits wide; modules of one channel share it.
"""

from __future__ import annotations

from ..machine import OF_PEAK

_MODULE = 17
_MAX_SIZE = 1 << 20


def bandwidth(root: str = "/") -> float | None:
    """Bytes per second that reading reaches; None if the tables are unreadable or incomplete."""
    try:
        with open(f"{root.rstrip('/')}/sys/firmware/dmi/tables/DMI", "rb") as file:
            return of_tables(file.read(_MAX_SIZE))
    except OSError:
        return None


def of_tables(data: bytes) -> float | None:
    """The same from the tables' bytes."""
    speeds: dict[str, int] = {}
    position = 0
    while position + 4 <= len(data):
        kind, length = data[position], data[position + 1]
        end = data.find(b"\0\0", position + length)
        if length < 4 or end < 0:
            break
        if kind == _MODULE and length >= 0x22:
            body = data[position : position + length]
            words = data[position + length : end].split(b"\0")
            size = int.from_bytes(body[0x0C:0x0E], "little")
            speed = int.from_bytes(body[0x20:0x22], "little") or int.from_bytes(
                body[0x15:0x17], "little"
            )
            if size not in (0, 0xFFFF) and 0 < speed < 0xFFFF:
                locators = [
                    words[body[at] - 1].decode("ascii", "replace")
                    if 0 < body[at] <= len(words)
                    else ""
                    for at in (0x10, 0x11)
                ]
                key = _channel(*locators) or f"module {len(speeds)}"
                width = int.from_bytes(body[0x0A:0x0C], "little")
                mega = speed * min(width, 128) if width not in (0, 0xFFFF) else speed * 64
                speeds[key] = max(speeds.get(key, 0), mega)
        position = end + 2
    return sum(speeds.values()) * 1e6 / 8 * OF_PEAK if speeds else None


def _channel(device: str, bank: str) -> str:
    """The channel's name: "ChannelA" of ChannelA-DIMM1, "A" of DIMM_A2, "P0 CHANNEL B"."""
    import re  # few calls

    for text in (bank, device):
        found = re.search(r"(.*?channel[ _-]?[A-Z0-9])", text, re.IGNORECASE)
        if found:
            return found[1].upper()
    found = re.search(r"^(.*DIMM[ _-]?[A-Z])\d?$", device, re.IGNORECASE)
    return found[1].upper() if found else ""
