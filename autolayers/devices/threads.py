"""The number of CPU threads, if llama.cpp's default is known to be wrong.

The default (common_cpu_get_num_physical_cores: one per core of the machine) ignores a process's CPU set and
the CPU limit of its control group, and counts the slow cores of ARM CPUs. Every operation waits for threads
that cannot run. Files: Linux's Documentation/ABI/testing/sysfs-devices-system-cpu, admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os

from .system import file_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_CPU = "sys/devices/system/cpu/cpu"
_FAST = 0.75        # of the fastest core's capacity; below it are the efficiency cores


def threads(root: str = "/", allowed: Collection[int] | None = None) -> int | None:
    """The right -t, None if the default is right or the answer unknown. `allowed`: this process's CPUs."""
    if allowed is None and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    most, last = quota(root), file_text(root, "sys/devices/system/cpu/present").strip().rpartition("-")[2]
    if allowed is not None and last.isdecimal() and len(allowed) > int(last) and most > int(last) \
            and not file_text(root, f"{_CPU}0/cpu_capacity"):
        return None                    # avoids reading hundreds of files
    cores: dict[str, list[int]] = {}
    number = 0
    while siblings := file_text(root, f"{_CPU}{number}/topology/thread_siblings").strip():
        cores.setdefault(siblings, []).append(number)
        number += 1
    if not cores or allowed is None:
        return None
    capacity = {cpus[0]: file_text(root, f"{_CPU}{cpus[0]}/cpu_capacity").strip() for cpus in cores.values()}
    sizes = {cpu: int(text) if text.isdecimal() else 0 for cpu, text in capacity.items()}
    may_run = [cpus[0] for cpus in cores.values() if not set(cpus).isdisjoint(allowed)]
    fastest = max((sizes[cpu] for cpu in may_run), default=0)
    count = sum(sizes[cpu] >= _FAST * fastest for cpu in may_run)
    count = max(1, min(count, most))
    return count if count < len(cores) else None


def quota(root: str) -> int:
    """The whole number of CPUs that this process's control groups allow at once."""
    least = 1 << 30
    for line in file_text(root, "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            if number == "0" and not controllers:
                words = file_text(root, "/".join(["sys/fs/cgroup", *parts[:depth], "cpu.max"])).split()
            elif "cpu" in controllers.split(","):
                group = "/".join(["sys/fs/cgroup/cpu", *parts[:depth]])
                words = [file_text(root, f"{group}/cpu.cfs_{name}_us").strip()
                         for name in ("quota", "period")]
            else:
                break
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
                least = min(least, max(1, int(words[0]) // int(words[1])))
    return least
