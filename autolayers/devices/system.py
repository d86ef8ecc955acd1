"""Files of the running system, below `root`: Linux's /proc and /sys
(Documentation/filesystems/proc.rst)."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_MEMORY = 1 << 50  # bytes; more than any device has


def file_text(root: str, path: str) -> str:
    """Return a file of the system below `root`, at most 1 MiB of it; empty where it cannot be
    read."""
    try:
        with open(f"{root.rstrip('/')}/{path}", encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def cpus() -> int:
    """Return the CPUs that this process may use, hyperthreads counted."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def entries(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def control_groups(root: str, controller: str) -> Iterator[tuple[int, str]]:
    """Yield (version, folder below `root`) of each control group above this process that has a
    controller, such as "memory", its own first.

    Up to the mount's root: inside a container the path may be the host's, and the container's
    limit is at the root.
    """
    for line in file_text(root, "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            version, base = 2, "sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, base = 1, f"sys/fs/cgroup/{controller}"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield version, "/".join([base, *parts[:depth]])


def meminfo(root: str = "/") -> dict[str, int]:
    """Return /proc/meminfo in bytes (HugePages_* are counts); empty where there is none."""
    fields = {}
    for line in file_text(root, "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return fields


def unified_available(memory: dict[str, int]) -> int:
    """Return what llama.cpp takes as free on a GPU that shares the system's RAM.

    Mirrors ggml_backend_cuda_get_available_uma_memory: huge pages, where reserved, are all a GPU
    may have.
    """
    if memory.get("HugePages_Total", 0) > 0:
        return memory.get("HugePages_Free", 0) * memory.get("Hugepagesize", 0)
    return memory.get("MemAvailable", 0)


def platform(root: str = "/") -> str:
    """ "windows", "wsl", "macos" or "linux": whose driver model decides what else grows on a
    GPU."""
    if sys.platform in ("win32", "cygwin"):
        return "windows"
    if sys.platform == "darwin":
        return "macos"
    return "wsl" if "microsoft" in file_text(root, "proc/version").lower() else "linux"
