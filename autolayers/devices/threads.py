"""The number of CPU threads, if llama.cpp's default is known to be wrong.

The default (common_cpu_get_num_physical_cores: one per core of the machine) ignores a process's CPU
set and the CPU limit of its control group, and counts the slow cores of ARM CPUs. Every operation
waits for threads that cannot run. Files: Linux's
Documentation/ABI/testing/sysfs-devices-system-cpu, admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os

from .system import control_groups, file_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_CPU = "sys/devices/system/cpu/cpu"
_FAST = 0.75  # of the fastest core's capacity; below it are the efficiency cores


def threads(root: str = "/", allowed: Collection[int] | None = None) -> int | None:
    """Return the right -t, None if the default is right or the answer unknown. `allowed`: this
    process's CPUs."""
    if allowed is None and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    # a container's --cpus is a quota, and hides no CPU
    allowed_at_once = quota(root)
    if allowed is None:
        return None
    # Whether that many CPUs are all that the machine has.
    last = file_text(root, "sys/devices/system/cpu/present").strip().rpartition("-")[2]
    every_cpu = last.isdecimal() and min(len(allowed), allowed_at_once) > int(last)
    if every_cpu and not file_text(root, f"{_CPU}0/cpu_capacity"):
        return None  # avoids reading hundreds of files
    cores = _cores(root)
    if not cores:
        return None
    may_run = [cpus[0] for cpus in cores if not set(cpus).isdisjoint(allowed)]
    # one thread a core: hyperthreads of a core share its units
    # Count those that are about as fast as the fastest.
    capacities = [_capacity(root, cpu) for cpu in may_run]
    fastest = max(capacities, default=0)
    fast_ones = sum(capacity >= _FAST * fastest for capacity in capacities)
    count = max(1, min(fast_ones, allowed_at_once))
    return count if count < len(cores) else None


def _cores(root: str) -> list[list[int]]:
    """Return the CPUs of each physical core."""
    cores: dict[str, list[int]] = {}
    number = 0
    # CPU numbers are dense; the first without a file is the end
    while siblings := file_text(root, f"{_CPU}{number}/topology/thread_siblings").strip():
        cores.setdefault(siblings, []).append(number)
        number += 1
    return list(cores.values())


def _capacity(root: str, cpu: int) -> int:
    """Return a CPU's speed in the kernel's own unit; 0 where it does not say."""
    text = file_text(root, f"{_CPU}{cpu}/cpu_capacity").strip()
    return int(text) if text.isdecimal() else 0


def quota(root: str) -> int:
    """Return the whole number of CPUs that this process's control groups allow at once."""
    smallest = 1 << 30
    # each group above may have a limit of its own: the smallest holds
    for version, group in control_groups(root, "cpu"):
        files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        # the quota and the period, in microseconds
        words = " ".join(file_text(root, f"{group}/{file}") for file in files).split()
        if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):
            # "200000 100000" is two CPUs' time; "max" has no number
            smallest = min(smallest, max(1, int(words[0]) // int(words[1])))
    return smallest
