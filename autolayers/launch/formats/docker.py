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
    words += ["--security-opt", "no-new-privileges"]
    scheme, path = launch.health
    if (scheme, box.port, path) != ("http", "8080", "/health"):
        # What the image itself asks
        words += ["--health-cmd", f"curl -fk {shell([f'{scheme}://localhost:{box.port}{path}'])}"]
    # --gpus is answered by NVIDIA's container toolkit; other GPUs come as nodes, e.g. /dev/dri
    if launch.reach.driver:
        words += ["--gpus", "all"]
    if launch.reach.variable:
        words += ["-e", launch.reach.variable]
    for node in launch.reach.nodes:
        words += ["--device", node]
    for mount in box.mounts.values():
        # -v separates its fields by colons; those of --mount are a CSV row
        if ":" in os.path.splitdrive(mount.source)[1]:
            # e.g. --mount 'type=bind,"source=/a,b",target=/models,readonly'
            fields = [f"source={mount.source}", f"target={mount.inside}"]
            for at, field in enumerate(fields):
                if set(field) & set(',"\r\n'):
                    fields[at] = '"' + field.replace('"', '""') + '"'
            fields += [] if mount.written else ["readonly"]
            words += ["--mount", ",".join(["type=bind", *fields])]
        else:
            words += ["-v", f"{mount.source}:{mount.inside}" + ("" if mount.written else ":ro")]
        if mount.written and not mount.folder:
            launch.warnings.append(
                f"{mount.source} must exist: docker makes a directory of what does not"
            )
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
