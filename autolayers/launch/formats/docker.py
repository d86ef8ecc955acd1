"""A `docker run` command."""

from __future__ import annotations

from ...quoting import shell
from .container import Container
from .launch_file import LaunchFile


def write(launch: LaunchFile) -> str:
    box = Container(launch)
    words = ["docker", "run", "--rm", "--init", "-p", f"127.0.0.1:{box.port}:{box.port}"]
    if launch.backend.gpu_driver:
        words += ["--gpus", "all"]
    for node in launch.backend.device_nodes:
        words += ["--device", node]
    for folder, inside in box.mounts.items():
        words += ["-v", f"{folder}:{inside}:ro"]
    for name in launch.secrets:
        words += ["-e", name]            # without a value: taken from the caller's environment
    return shell([*words, box.image, *box.words]) + "\n"
