"""Control groups with a memory limit, for tests that start real servers."""

from __future__ import annotations

import os
import pathlib
import re
import time


class Group:
    """A control group of version 1 or 2 below the root."""

    def __init__(self, root: pathlib.Path, name: str = "") -> None:
        self.place = root / f"autolayers-test-{os.getpid()}{name}"
        self.limit = (
            "memory.limit_in_bytes" if (root / "memory.limit_in_bytes").exists() else "memory.max"
        )
        self.place.mkdir()
        assert (self.place / self.limit).exists()

    def holds(self, size: int) -> None:
        (self.place / self.limit).write_text(str(size))

    def enter(self) -> None:
        (self.place / "cgroup.procs").write_text(str(os.getpid()))

    def most(self) -> int:
        """Bytes that it had at most, pages of files counted."""
        names = ("memory.max_usage_in_bytes", "memory.peak")
        return next(
            (
                int((self.place / name).read_text())
                for name in names
                if (self.place / name).exists()
            ),
            0,
        )

    def killed(self) -> int:
        """How many of its processes were killed for want of memory."""
        names = ("memory.oom_control", "memory.events")
        text = "".join(
            (self.place / name).read_text() for name in names if (self.place / name).exists()
        )
        return int(re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE)[0])

    def remove(self) -> None:
        for _ in range(50):
            try:
                return self.place.rmdir()
            except OSError:
                time.sleep(0.1)


def group_of(name: str = "") -> Group | None:
    """A new group, None where none can be made."""
    for root in (pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")):
        try:
            return Group(root, name)
        except (OSError, AssertionError):
            continue
    return None
