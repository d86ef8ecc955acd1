"""A Compose file: the Compose specification, services."""

from __future__ import annotations

from ...quoting import yaml
from .container import Container
from .launch_file import LaunchFile


def write(launch: LaunchFile) -> str:
    box = Container(launch)
    lines = ["services:", "  llama-server:", f"    image: {_yaml(box.image)}", "    command:"]
    lines += [f"      - {_yaml(word)}" for word in box.words]
    lines += ["    ports:", f"      - {_yaml(f'127.0.0.1:{box.port}:{box.port}')}"]
    if box.mounts:
        lines += ["    volumes:"]
        for folder, inside in box.mounts.items():
            lines += ["      - type: bind", f"        source: {_yaml(folder)}", f"        target: {_yaml(inside)}",
                      "        read_only: true"]
    if launch.secrets:
        lines += ["    environment:", *(f"      - {name}" for name in launch.secrets)]
    if launch.backend.gpu_driver:
        lines += ["    deploy:", "      resources:", "        reservations:", "          devices:",
                  f"            - driver: {launch.backend.gpu_driver}", "              count: all",
                  "              capabilities: [gpu]"]
    if launch.backend.device_nodes:
        lines += ["    devices:", *(f"      - {node}" for node in launch.backend.device_nodes)]
    lines += ["    healthcheck:", f'      test: ["CMD", "curl", "-f", "http://localhost:{box.port}/health"]',
              "      start_period: 5m", "    restart: unless-stopped"]
    return "\n".join(lines) + "\n"


def _yaml(text: str) -> str:
    """A string in which Compose replaces nothing."""
    return yaml(text.replace("$", "$$"))
