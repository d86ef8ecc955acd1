"""Files of the running system, below `root`: Linux's /proc and /sys
(Documentation/filesystems/proc.rst)."""

from __future__ import annotations

import sys


def file_text(root: str, path: str) -> str:
    """Return a file of the system below `root`, at most 1 MiB of it; empty where it cannot be
    read."""
    try:
        with open(f"{root.rstrip('/')}/{path}", encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


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
