"""A Compose file: the Compose specification, services."""

from __future__ import annotations

from ...quoting import compose
from .container import CACHE, CACHED, Container
from .launch_file import LaunchFile


def write(launch: LaunchFile) -> str:
    """The file's text, with one service. Raises UsageError for a launch that it cannot express."""
    box = Container(launch)
    lines = [*launch.notes, "services:", "  llama-server:", f"    image: {compose(box.image)}", "    command:"]
    lines += [f"      - {compose(word)}" for word in box.words]
    lines += ["    ports:", f"      - {compose(box.published)}"]
    if box.mounts or box.cached:
        lines += ["    volumes:"]
    for folder, inside in box.mounts.items():
        lines += ["      - type: bind", f"        source: {compose(folder)}",
                  f"        target: {compose(inside)}",
                  f"        read_only: {'false' if folder in box.written else 'true'}"]
    if box.cached:
        lines += ["      - type: volume", f"        source: {CACHE}", f"        target: {CACHED}"]
    if launch.secrets:
        lines += ["    environment:", *(f"      - {name}" for name in launch.secrets)]
    # docker compose reads deploy:, podman-compose mem_limit:
    lines += [f"    mem_limit: {launch.limit}m"] if launch.limit else []
    lines += ["    deploy:", "      resources:"]
    lines += ["        limits:", f"          memory: {launch.limit}m"] if launch.limit else []
    lines += ["        reservations:", f"          memory: {launch.request}m"]
    if launch.backend.gpu_driver:
        lines += ["          devices:", f"            - driver: {launch.backend.gpu_driver}",
                  "              count: all", "              capabilities: [gpu]"]
    if launch.backend.device_nodes:
        lines += ["    devices:", *(f"      - {node}" for node in launch.backend.device_nodes)]
    scheme, path = launch.health
    # -k: the certificate need not be for localhost
    lines += ["    healthcheck:",
              f'      test: ["CMD", "curl", "-fk", {compose(f"{scheme}://localhost:{box.port}{path}")}]',
              "      start_period: 5m", "    restart: unless-stopped"]
    if box.cached:
        lines += ["volumes:", f"  {CACHE}:"]
    return "\n".join(lines) + "\n"
