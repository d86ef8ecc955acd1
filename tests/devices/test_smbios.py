"""Speeds with weights in RAM would be those of other memory.

RAM's bandwidth from SMBIOS tables, written here byte by byte as the specification (DSP0134,
7.18) has type 17.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autolayers.devices import host
from autolayers.devices.smbios import bandwidth, of_tables


def module(
    locator: str,
    bank: str = "",
    *,
    speed: int = 0,
    configured: int = 0,
    size: int = 0x4000,
    width: int = 64,
    length: int = 0x28,
    kind: int = 17,
) -> bytes:
    """One structure: offsets of width 0x0A, size 0x0C, locators 0x10 and 0x11, speed 0x15,
    configured speed 0x20."""
    body = bytearray(length)
    body[0], body[1] = kind, length
    fields = ((0x0A, width), (0x0C, size), (0x15, speed), (0x20, configured))
    for at, value in fields:
        if at + 2 <= length:
            body[at : at + 2] = value.to_bytes(2, "little")
    strings = [text for text in (locator, bank) if text]
    body[0x10], body[0x11] = (1 if locator else 0), (len(strings) if bank else 0)
    return (
        bytes(body)
        + b"".join(text.encode() + b"\0" for text in strings)
        + (b"\0" if strings else b"\0\0")
    )


END = bytes((127, 4, 0, 0)) + b"\0\0"
FIRMWARE = module("BIOS", kind=0)


@pytest.mark.parametrize(
    ("modules", "gigabytes"),
    [
        # two channels of DDR5-5600 at its configured speed, an empty slot, and one more module in a
        # channel
        (
            [module("ChannelA-DIMM0", configured=5600), module("ChannelB-DIMM0", configured=5600)],
            89.6,
        ),
        (
            [
                module("ChannelA-DIMM0", speed=5600, configured=4800),
                module("ChannelA-DIMM1", configured=4800),
            ],
            38.4,
        ),
        (
            [
                module("DIMM_A1", configured=3200),
                module("DIMM_A2", configured=3200),
                module("DIMM_B1", configured=3200),
                module("DIMM_B2", size=0),
            ],
            51.2,
        ),
        (
            [
                module("DIMM 0", "P0 CHANNEL A", configured=3200),
                module("DIMM 1", "P0 CHANNEL B", configured=3200),
            ],
            51.2,
        ),
        # locators that say nothing of channels: each module is one
        ([module("M1", configured=4800), module("M2", configured=4800)], 76.8),
        # no configured speed
        ([module("", speed=2666)], 21.328),
        # LPDDR: half a channel each
        ([module("A", configured=6400, width=32)] * 2, 51.2),
        ([module("A", configured=8000, width=0xFFFF)], 64.0),
    ],
    ids=range(8),
)
def test_bandwidth_follows_channels_and_speeds(modules: list[bytes], gigabytes: float) -> None:
    assert of_tables(FIRMWARE + b"".join(modules) + END) == pytest.approx(gigabytes * 1e9 * 0.9)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        END,
        FIRMWARE + END,
        module("A", size=0) + END,
        module("A", size=0xFFFF) + END,
        module("A", configured=0xFFFF) + END,
        module("A", configured=3200, length=0x1B) + END,
        bytes((17, 0, 0, 0)) * 10,
        module("A", configured=3200)[:-2],
        bytes(range(256)) * 4,
    ],
    ids=range(11),
)
def test_tables_that_say_too_little(data: bytes) -> None:
    assert of_tables(data) is None


def test_the_host_says_where_it_is_from(tmp_path: Path) -> None:
    """A file that cannot be read, as for everyone but root, is no error."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n")
    assert (bandwidth(str(tmp_path)), host.read(str(tmp_path)).bandwidth_source) == (None, "")
    folder = tmp_path / "sys" / "firmware" / "dmi" / "tables"
    folder.mkdir(parents=True)
    (folder / "DMI").write_bytes(module("ChannelA", configured=3200) + END)
    found = host.read(str(tmp_path))
    assert (found.bandwidth, found.bandwidth_source) == (pytest.approx(25.6e9 * 0.9), "smbios")
