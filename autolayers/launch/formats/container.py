"""A launch in llama.cpp's own container images."""

from __future__ import annotations

import os

from ...errors import UsageError
from .launch_file import LaunchFile

_IMAGE = "ghcr.io/ggml-org/llama.cpp:server"


class Container:
    """The words with the paths of a container, and what it must be given."""

    def __init__(self, launch: LaunchFile) -> None:
        if launch.command.container:
            raise UsageError("the command is a container already: take it as it is, with --dry-run")
        self.mounts: dict[str, str] = {}
        files = launch.files
        words = []
        for word in launch.words:
            if word in files:
                folder, name = os.path.split(os.path.abspath(word))
                inside = self.mounts.setdefault(folder, f"/models{len(self.mounts) or ''}")
                word = f"{inside}/{name}"
            words.append(word)
        if launch.host is None:
            words += ["--host", "0.0.0.0"]
        self.words = words
        self.image = _IMAGE + launch.backend.image
        self.port = launch.port
