"""A `docker run` command."""

from __future__ import annotations

import os

from ...quoting import shell
from .container import CACHE, CACHED, Container
from .launch_file import LaunchFile

_KEY = "LLAMA_API_KEY"


def write(launch: LaunchFile) -> str:
    """Return one line for this machine's shell. Raises UsageError for a launch that it cannot
    express."""
    box = Container(launch, "docker")
    # --init: as process 1 llama-server would not end at Ctrl-C while it loads: its handlers are set
    # after load_model (tools/server/server.cpp)
    words = ["docker", "run", "--rm", "--init", "-p", box.published]
    # --gpus is answered by NVIDIA's container toolkit; other GPUs come as nodes, e.g. /dev/dri
    if launch.reach.driver:
        words += ["--gpus", "all"]
    if launch.reach.variable:
        words += ["-e", launch.reach.variable]
    for node in launch.reach.nodes:
        words += ["--device", node]
    for folder, inside in box.mounts.items():
        words += _mount(folder, inside, folder in box.written)
    if box.cached:
        words += ["-v", f"{CACHE}:{CACHED}"]
    # The kernel kills at --memory; --memory-reservation is what it tries to shrink to when RAM is
    # short. "m" is MiB there
    words += ["--memory", f"{launch.limit}m"] if launch.limit else []
    words += ["--memory-reservation", f"{launch.request}m"]
    for name in launch.secrets:
        words += ["-e", name]  # without a value: taken from the caller's environment
    line = shell([*words, box.image, *box.words]) + "\n"
    # A server without its key would be open to all: the shell stops where the variable is not set
    key = f"-e {_KEY} "
    return line if os.name == "nt" else line.replace(key, f'-e {_KEY}="${{{_KEY}:?}}" ', 1)


def _mount(folder: str, inside: str, written: bool) -> list[str]:
    """Return -v, or --mount for a path with a colon, which separates -v's fields; --mount's fields
    are a CSV row."""
    if ":" not in os.path.splitdrive(folder)[1]:
        return ["-v", f"{folder}:{inside}" + ("" if written else ":ro")]
    # e.g. --mount 'type=bind,"source=/a,b",target=/models,readonly'
    source = f"source={folder}"
    if set(folder) & set(',"\r\n'):
        source = '"' + source.replace('"', '""') + '"'
    return ["--mount", f"type=bind,{source},target={inside}" + ("" if written else ",readonly")]
