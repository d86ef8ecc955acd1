"""A `docker run` command."""

from __future__ import annotations

from ...quoting import shell
from .container import CACHE, CACHED, Container
from .launch_file import LaunchFile


def write(launch: LaunchFile) -> str:
    box = Container(launch)
    words = ["docker", "run", "--rm", "--init", "-p", box.published]
    if launch.backend.gpu_driver:
        words += ["--gpus", "all"]
    for node in launch.backend.device_nodes:
        words += ["--device", node]
    for folder, inside in box.mounts.items():
        words += ["-v", f"{folder}:{inside}" + ("" if folder in box.written else ":ro")]
    if box.cached:
        words += ["-v", f"{CACHE}:{CACHED}"]
    for name in launch.secrets:
        words += ["-e", name]            # without a value: taken from the caller's environment
    return shell([*words, box.image, *box.words]) + "\n"
