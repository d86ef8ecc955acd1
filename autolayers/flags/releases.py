"""Builds of llama.cpp by the names that its releases have since September 2026."""

from __future__ import annotations

# of 1.0.0 the oldest that it may be; those from 0.5.0 to 0.8.0 were not seen: b11468 to b12109
RELEASES = {"0.9.0": 12110, "1.0.0": 12274}


def build_of(name: str) -> int:
    """Return the build number of "1.0.0" or "v1.0.0", 0 where it is not known."""
    return RELEASES.get(name.removeprefix("v"), 0)
