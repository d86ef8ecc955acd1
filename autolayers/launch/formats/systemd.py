"""A systemd service: systemd.service(5), systemd.syntax(7)."""

from __future__ import annotations

import os

from ...errors import UsageError
from ...quoting import systemd
from .launch_file import LaunchFile, own_gpus, paths_in, plain_name

# docs/rack.md: pages of the model's file go first, so the server slows down before it dies.
# MiB between slower and killed, of what is counted for the program itself
_SLACK = 128
# systemd.exec(5): what a server of this kind does not need. Not MemoryDenyWriteExecute= and not
# ProcSubset=: drivers of GPUs compile, and ggml reads /proc/meminfo
_HARD = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "UMask=0077",
)
_PREFIXES = tuple("-@:+!|")  # of ExecStart=, also within quotes


def write(launch: LaunchFile) -> str:
    """Return the unit's text; the service runs as the user who writes it."""
    name, program = plain_name(launch.name), launch.program
    # Even in quotes, e.g. "@llama-server" would make its next word the name of the process
    if program[0][:1] in _PREFIXES:
        raise UsageError(
            f"{program[0]}: systemd reads {program[0][0]} before a program as a "
            f"setting: give its path"
        )
    seen = paths_in(launch.items)
    # A file that is not there yet is made in its directory
    written = [path if os.path.exists(path) else os.path.dirname(path) for path, out in seen if out]
    needs = [f"ReadWritePaths={systemd(path)}" for path in dict.fromkeys(written)]
    # A private /tmp hides the files of this one
    if not any(path.startswith(("/tmp/", "/var/tmp/")) for path, _ in seen):
        needs.append("PrivateTmp=yes")
    if not own_gpus(launch.plan):
        needs.append("PrivateDevices=yes")
    if "--mlock" in launch.words:
        needs.append("LimitMEMLOCK=infinity")
    user = _user()
    lines = [
        *launch.notes,
        "[Unit]",
        f"Description=llama-server {name}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        *user,
        *launch.secret_notes("the environment file (mode 600)"),
        # The dash: a file that is not there is no error, but where it has the key
        f"EnvironmentFile={'' if 'LLAMA_API_KEY' in launch.secrets else '-'}"
        f"/etc/autolayers/{name}.env",
    ]
    if launch.downloads:
        # /var/cache/llama.cpp, which systemd makes for the user of the service
        lines += ["CacheDirectory=llama.cpp", "Environment=LLAMA_CACHE=%C/llama.cpp"]
    lines += [
        "ExecStart=" + " ".join(systemd(word) for word in [*program, *launch.words]),
        *memory_of(launch),
        # root keeps the right to read what is another user's, such as in a home
        f"CapabilityBoundingSet={'' if user else 'CAP_DAC_READ_SEARCH'}",
        *_HARD,
        *needs,
        "Restart=on-failure",
        "RestartSec=5",
        # seconds that running requests get at SIGTERM, before SIGKILL
        "TimeoutStopSec=30",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def memory_of(launch: LaunchFile) -> list[str]:
    """Return settings of systemd.resource-control(5): above MemoryHigh= pages of files are dropped
    and the service is slowed down, above MemoryMax= it is killed."""
    if launch.limit is None:
        return []
    return [f"MemoryHigh={launch.limit - _SLACK}M", f"MemoryMax={launch.limit}M"]


def _user() -> list[str]:
    """Return the user who writes the file, and can read the model; root needs no User= line."""
    if os.name != "posix" or not os.getuid():
        return []
    # POSIX only, so not at the top
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return []
    return [f"User={name}"] if plain_name(name) == name else []
