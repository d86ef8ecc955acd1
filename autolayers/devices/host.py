"""The machine's RAM: its size and how much of it may be used, inside a container too.

/proc/meminfo is read if it exists (psutil reads the same file, after a much longer import), psutil
is used elsewhere. The limits of this process's control groups (v1 and v2) cap both numbers. Files:
Linux's Documentation/filesystems/proc.rst, admin-guide/cgroup-v2.rst,
admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
import sys

from ..errors import DeviceError
from ..machine import Host
from ..units import whole
from . import processor
from .smbios import bandwidth
from .system import control_groups, file_text, meminfo
from .threads import quota, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# by the version of control groups: the files of its limits and its use, and the key of the page
# cache in memory.stat
_MEMORY = {
    1: (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    2: (("memory.max", "memory.high"), "memory.current", "inactive_file"),
}


def read(root: str = "/") -> Host:
    """Return this machine's RAM. `root` is the root of its file system. Raises DeviceError if it
    cannot be read."""
    memory = meminfo(root)
    if "MemTotal" in memory and "MemAvailable" in memory:
        total, available, source = memory["MemTotal"], memory["MemAvailable"], "meminfo"
    else:
        total, available, source = _psutil()
    # the tightest limit of all groups above this process
    for limit, taken in _limits(root):
        if limit < total or limit - taken < available:
            total, source = min(total, limit), "cgroup"
            available = min(available, max(0, limit - taken))
    speed = bandwidth(root)
    return Host(
        total,
        available,
        source,
        speed,
        cores=cores(root),
        bandwidth_source="smbios" if speed else "",
        threads=threads(root),
        numa=nodes(root),
        cpu=processor.read(root),
    )


def nodes(root: str = "/") -> int | None:
    """Return the NUMA nodes with memory, of 0-1,4; None if unknown."""
    return len(_cpus(file_text(root, "sys/devices/system/node/has_memory"))) or None


def cores(root: str = "/") -> int | None:
    """Return the physical cores that this process may use at once, of Intel's hybrids the fast
    ones, on which alone llama.cpp computes by default (common_cpu_get_num_math); None if
    unknown."""
    # the physical cores of its CPUs, whatever the limit of its control group
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # Intel's hybrids list their fast CPUs here; other machines lack the file
    fast = _cpus(file_text(root, "sys/devices/cpu_core/cpus"))
    count, cores = _cpuinfo(root, fast)
    if fast:
        usable = len(fast & os.sched_getaffinity(0)) or usable
    if not usable or (not count and root != "/"):
        physical = None
    elif not count and sys.platform in ("darwin", "win32"):  # the system counts threads
        import psutil

        physical = min(usable, psutil.cpu_count(logical=False) or usable)
    elif not cores or not count:
        physical = usable
    else:
        # in proportion: an affinity mask may have one of a core's two threads
        physical = max(1, min(len(cores), round(usable * len(cores) / count)))
    # a quota of two CPUs makes eight cores two
    return None if physical is None else min(physical, quota(root))


def _cpuinfo(root: str, fast: set[int]) -> tuple[int, set[tuple[str, str]]]:
    """Return the number of CPUs, and (package, core) of each core, where Linux lists them; with
    `fast` of these CPUs alone."""
    cores: set[tuple[str, str]] = set()
    count, package, counts = 0, "", True
    for line in file_text(root, "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if name == "processor":
            counts = not fast or (value.isdecimal() and int(value) in fast)
            count += counts
        # the package comes before the core in each block
        if name == "physical id":
            package = value
        elif name == "core id" and counts:
            cores.add((package, value))
    return count, cores


def _cpus(text: str) -> set[int]:
    """Return the numbers of a list of CPUs, 0-15,32; none if it is not one."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and len(first) < 6 and len(last) < 6):
            return set()
        numbers |= set(range(int(first), int(last) + 1))
    return numbers


def _psutil() -> tuple[int, int, str]:
    try:
        import psutil

        memory = psutil.virtual_memory()
    except Exception as error:  # psutil raises whatever a strange /proc makes it raise
        raise DeviceError(
            f"the size of RAM cannot be read ({error}): give it with --ram SIZE"
        ) from None
    return memory.total, memory.available, "psutil"


def _limits(root: str) -> Iterator[tuple[int, int]]:
    """Yield (limit, used) of every control group above this process. Used excludes page cache that
    can be dropped."""
    for version, group in control_groups(root, "memory"):
        names, usage, cache = _MEMORY[version]
        # The numbers that are all of a file's text; a limit may be the word max.
        texts = [file_text(root, f"{group}/{name}").strip() for name in names]
        limits = [size for text in texts if (size := whole(text, 20)) is not None]
        taken = whole(file_text(root, f"{group}/{usage}").strip())
        if limits and taken is not None:
            # a group does not need its pages of files: the kernel drops them at the limit
            yield min(limits), max(0, taken - _statistic(root, group, cache))


def _statistic(root: str, group: str, name: str) -> int:
    """Return a number of a control group's memory.stat; 0 if it is not there."""
    lines = file_text(root, f"{group}/memory.stat").splitlines()
    statistics = dict(line.split()[:2] for line in lines if " " in line)
    number = statistics.get(name, "0")
    return whole(number) or 0
