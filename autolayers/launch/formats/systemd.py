"""A systemd service: systemd.service(5), systemd.syntax(7)."""

from __future__ import annotations

from ...quoting import systemd
from .launch_file import LaunchFile, plain_name


def write(launch: LaunchFile) -> str:
    name = plain_name(launch.name)
    lines = [
        "[Unit]",
        f"Description=llama-server {name}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        *launch.secret_notes("the environment file (mode 600)"),
        f"EnvironmentFile=-/etc/autolayers/{name}.env",
        "ExecStart=" + " ".join(systemd(word) for word in [*launch.program, *launch.absolute_words]),
        "Restart=on-failure",
        "RestartSec=5",
        "TimeoutStopSec=30",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"
