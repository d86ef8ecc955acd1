"""What a launch needs of RAM, for whoever limits it: a container, a service, a pod.

    need = ram_of(resident, growing, mapped)
    need.request, need.limit, need.mapped       # bytes
    within(16 * GiB)  # bytes to plan with, so that need.limit is at most 16 GiB

A control group of Linux counts a process's own memory, the pages of files that it reads, and its
page tables. Near its limit it gives up pages of files; a process whose own memory exceeds it is
killed (docs/rack.md shows both).
"""

from __future__ import annotations

from ..records import dataclass
from ..units import MiB

# llama-server's program and vocabulary, its threads, the host side of its driver
RUNTIME = 512 * MiB
_PAGE_TABLES = 512  # 1/512: 8 bytes for a page of 4 KiB


@dataclass(frozen=True)
class Ram:
    """Bytes, whole MiB. `request`: in use once the model is loaded; `limit`: after everything has
    grown to its own limit, None where something has none; `mapped`: the part of both that is pages
    of the model's file, which may be dropped at the cost of reading them again for each token."""

    request: int
    limit: int | None
    mapped: int


def ram_of(resident: int, growing: int | None, mapped: int) -> Ram:
    """Return the RAM of a launch that has `resident` bytes in it, those on devices that share it
    included, and adds at most `growing` while it serves; None: there is no most."""
    limit = None if growing is None else _whole(resident + growing)
    return Ram(_whole(resident), limit, mapped)


def _whole(size: int) -> int:
    """Add what the process itself takes and its page tables."""
    tables = _PAGE_TABLES * MiB
    return -(-(size + RUNTIME) * _PAGE_TABLES // (tables - MiB)) * MiB


def within(limit: int) -> int:
    """Return the bytes of RAM to plan with, RUNTIME included, so that a launch's limit is at most
    this one."""
    # the reverse of _whole, rounded down to whole MiB so that the limit holds
    return limit // MiB * MiB * (_PAGE_TABLES - 1) // _PAGE_TABLES
