"""RAM's bandwidth from the firmware's tables (SMBIOS 3, type 17: one per memory module), which only
root may read.

Linux: /sys/firmware/dmi/tables/DMI. A channel is 64 bits wide; modules of one channel share it.
"""

from __future__ import annotations

from ..machine import OF_PEAK

_MODULE = 17
_MAX_SIZE = 1 << 20


def bandwidth(root: str = "/") -> float | None:
    """Return the bytes per second that reading reaches; None if the tables are unreadable or
    incomplete."""
    try:
        with open(f"{root.rstrip('/')}/sys/firmware/dmi/tables/DMI", "rb") as file:
            return of_tables(file.read(_MAX_SIZE))
    except OSError:
        return None


def of_tables(data: bytes) -> float | None:
    """Return the same from the tables' bytes."""
    speeds: dict[str, int] = {}
    position = 0
    while position + 4 <= len(data):
        kind, length = data[position], data[position + 1]
        # a structure is its fixed part, then strings, each with a zero, and one more at the end
        end = data.find(b"\0\0", position + length)
        if length < 4 or end < 0:
            break
        # 0x22 is the end of Configured Memory Speed (SMBIOS 2.7)
        if kind == _MODULE and length >= 0x22:
            words = data[position + length : end].split(b"\0")
            _add_module(data[position : position + length], words, speeds)
        position = end + 2
    return sum(speeds.values()) * 1e6 / 8 * OF_PEAK if speeds else None


def _add_module(body: bytes, words: list[bytes], speeds: dict[str, int]) -> None:
    """Count a module that is there: its channel has the megabits per second of the fastest."""
    # Size: 0 is an empty socket, FFFF unknown
    size = int.from_bytes(body[0x0C:0x0E], "little")
    # the configured speed, or the module's own where that is not told
    speed = int.from_bytes(body[0x20:0x22], "little") or int.from_bytes(body[0x15:0x17], "little")
    if size in (0, 0xFFFF) or not 0 < speed < 0xFFFF:
        return
    key = _channel(_word(body[0x10], words), _word(body[0x11], words)) or f"module {len(speeds)}"
    # Data Width, without ECC bits
    width = int.from_bytes(body[0x0A:0x0C], "little")
    mega = speed * min(width, 128) if width not in (0, 0xFFFF) else speed * 64
    speeds[key] = max(speeds.get(key, 0), mega)


def _word(number: int, words: list[bytes]) -> str:
    """Return the text of that number, from 1; "" if there is none."""
    return words[number - 1].decode("ascii", "replace") if 0 < number <= len(words) else ""


def _channel(device: str, bank: str) -> str:
    """Return the channel's name: "ChannelA" of ChannelA-DIMM1, "A" of DIMM_A2, "P0 CHANNEL B"."""
    import re  # few calls

    for text in (bank, device):
        match = re.match(r"(.*?channel[ _-]?[A-Z0-9])", text, re.IGNORECASE)
        if match:
            return match[1].upper()
    match = re.search(r"^(.*DIMM[ _-]?[A-Z])\d?$", device, re.IGNORECASE)
    return match[1].upper() if match else ""
