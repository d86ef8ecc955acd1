"""A launch in llama.cpp's own container images."""

from __future__ import annotations

import os

from ...errors import UsageError
from .launch_file import LaunchFile, moved, without

_IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
CACHE = "llama-cache"  # the volume for what is downloaded
CACHED = "/root/.cache"  # where builds of any age keep it


class Container:
    """The words with a container's paths, and what the container needs. `mounts`: directory here ->
    directory in the container; `written`: directories here that it writes to; `address`: the
    published address."""

    def __init__(self, launch: LaunchFile, kind: str) -> None:
        if launch.command.container:
            raise UsageError("the command is already a container: print it with --dry-run")
        self.launch = launch
        # e.g. {"/srv/models": "/models", "/srv/adapters": "/models1"}
        self.mounts: dict[str, str] = {}
        self.written: set[str] = set()
        # Within the container the server must listen on all addresses, or the published port
        # reaches nothing; who may connect is decided by `published`
        words = without(launch.words, "--host")
        own = ["--host", "0.0.0.0"]
        # The port too: what llama-server listens on without it has changed
        own += [] if launch.arguments.value("--port") else ["--port", launch.port]
        self.words = [*moved(words, self._mounted), *own]
        launch.refuse_unreached(kind)
        # The backend's ending chooses the image, e.g. ":server-cuda", ":server-vulkan"
        self.image = launch.image or _IMAGE + launch.reach.backend.image
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
        folder, name = _place(os.path.abspath(path))
        # Directories are mounted, not files: a split model names its first part only
        inside = self.mounts.setdefault(folder, f"/models{len(self.mounts) or ''}")
        if written:
            self.written.add(folder)
        return f"{inside}/{name}" if name else inside


def _place(path: str) -> tuple[str, str]:
    """Return (the directory to mount for a path, the path in it). A link's target must be inside
    too: for links of the Hub's cache (../../blobs/...) the common directory is mounted, for others
    the target itself."""
    if os.path.isdir(path):
        return path, ""
    folder, name = os.path.split(path)
    if not os.path.islink(path):
        return folder, name
    # e.g. snapshots/HASH/model.gguf -> ../../blobs/SHA256 in the Hub's cache
    target = os.readlink(path)
    if not os.path.isabs(target):
        both = os.path.commonpath(
            [folder, os.path.normpath(os.path.join(folder, os.path.dirname(target)))]
        )
        # A common root is refused: it would show the container all files of this machine
        if os.path.dirname(both) != both:
            return both, os.path.relpath(path, both).replace(os.sep, "/")
    return os.path.split(os.path.realpath(path))
