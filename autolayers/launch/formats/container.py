"""A launch in llama.cpp's own container images."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from ...errors import UsageError
from .launch_file import LaunchFile, moved, words_of

_IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
CACHE = "llama-cache"  # the volume for what is downloaded
CACHED = "/root/.cache"  # where builds of any age keep it


class Mount(NamedTuple):
    """A file or `folder` here, and where the container has it."""

    source: str
    inside: str
    written: bool
    folder: bool


class Container:
    """The words with a container's paths, and what the container needs: `mounts`, by the path
    here. Files are mounted each by itself: their directory may hold what the server must not
    see."""

    def __init__(self, launch: LaunchFile, kind: str) -> None:
        if launch.command.container:
            raise UsageError("the command is already a container: print it with --dry-run")
        self.launch = launch
        self.mounts: dict[str, Mount] = {}
        # e.g. {"/srv/models": "/models", "/srv/adapters": "/models1"}
        self._folders: dict[str, str] = {}
        # Within the container the server must listen on all addresses, or the published port
        # reaches nothing; who may connect is decided by `published`
        found = launch.without("--host")
        own = ["--host", "0.0.0.0"]
        # The port too: what llama-server listens on without it has changed
        own += [] if launch.arguments.value("--port") else ["--port", launch.port]
        self.words = [*words_of(moved(found, self._mounted)), *own]
        launch.refuse_unreached(kind)
        # The backend's ending chooses the image, e.g. ":server-cuda", ":server-vulkan"
        build = f"-b{launch.build}" if launch.build else ""
        self.image = launch.image or f"{_IMAGE}{launch.reach.backend.image}{build}"
        if build and not launch.image:
            launch.warnings.append(f"{self.image}: not every build has images of its own")
        self.port = launch.port
        # llama-server takes port 0 for any free one, which nobody outside could learn
        if not int(self.port):
            raise UsageError(
                f"--port {self.port}: a container's port must be known to be published"
            )
        if (launch.host or "").endswith(".sock"):
            raise UsageError(
                f"--host {launch.host}: a container's socket is not published; give --port"
            )
        self.cached = launch.downloads

    @property
    def published(self) -> str:
        """ADDRESS:PORT:PORT; without a --host only this machine can reach it, as with
        llama-server."""
        # Docker publishes on all addresses where none is written, past a firewall such as ufw
        address = (
            "127.0.0.1"
            if self.launch.private and self.launch.host != "::1"
            else self.launch.host or ""
        )
        # Docker's own form for IPv6, e.g. "[::1]:8080:8080"
        return (
            f"[{address}]:{self.port}:{self.port}"
            if ":" in address
            else f"{address}:{self.port}:{self.port}"
        )

    def _mounted(self, path: str, written: bool) -> str:
        path = os.path.abspath(path)
        # A name without an ending that is not there yet, e.g. of --slot-save-path, is a directory
        if os.path.isdir(path) or (written and not os.path.splitext(path)[1]):
            inside = self._folder(path)
            self.mounts[path] = Mount(path, inside, written, True)
            return inside
        folder, name = os.path.split(path)
        inside = self._folder(folder)
        # The file and, where it is the first of a split model, the others.
        split = re.fullmatch(r"(.*-)[0-9]{5}(-of-)([0-9]{5})(\.gguf)", name)
        if not split:
            parts = [name]
        else:
            before, of, count, ending = split.groups()
            parts = [
                f"{before}{number:05}{of}{count}{ending}" for number in range(1, int(count) + 1)
            ]
        for part in parts:
            here = os.path.join(folder, part)
            # What a link leads to, such as one of the Hub's cache, or the container would see
            # a link to nowhere
            real = os.path.realpath(here) if os.path.islink(here) else here
            self.mounts[here] = Mount(real, _inside(inside, part), written, False)
        return _inside(inside, name)

    def _folder(self, folder: str) -> str:
        """Return the directory in the container that stands for one of this machine."""
        return self._folders.setdefault(folder, f"/models{len(self._folders) or ''}")


def _inside(folder: str, name: str) -> str:
    # Kubernetes and docker's -v take no colon there
    return f"{folder}/{name.replace(':', '-')}"
