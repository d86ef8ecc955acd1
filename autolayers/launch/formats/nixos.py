"""A NixOS configuration: the attributes of services.llama-cpp
(nixos/modules/services/misc/llama-cpp.nix)."""

from __future__ import annotations

import os
import re

from ...errors import UsageError
from ...quoting import nix
from .launch_file import LaunchFile, moved, words_of
from .systemd import memory_of

# What the service does not see: its unit has ProtectHome and PrivateTmp (systemd.exec(5))
_HOMES = ("/home", "/root", "/run/user")
_TEMPORARY = ("/tmp", "/var/tmp")
# Of systemd's BindReadOnlyPaths=, which has words in quotes, and in them no way to write these
_PLAIN = re.compile(r"[\w/.+@,=-]+")
_UNTOLD = re.compile(r"[:\"'\\\x00-\x1f\x7f]")


def write(launch: LaunchFile) -> str:
    """Return an attribute set to import or to merge into a configuration. Raises UsageError for a
    text that Nix cannot hold."""
    # The module has attributes for these and writes --host, --port and -m before extraFlags
    # The attributes of the host and the port that are given.
    host = [f"host = {nix(launch.host)};"] if launch.host else []
    own = [*host, *([f"port = {int(launch.port)};"] if launch.arguments.value("--port") else [])]
    own_flags = ["--host", "--port"]
    if not launch.downloads and launch.params.model is not None:
        own.insert(0, f"model = {nix(launch.model)};")
        own_flags.append("-m")
    if variant := launch.reach.backend.nixpkgs:
        own.insert(0, f"package = pkgs.llama-cpp.override {{ {variant} = true; }};")
    # The module starts ${package}/bin/llama-server; a wrapper such as numactl cannot be named
    if list(launch.launcher) != ["llama-server"]:
        launch.warnings.append(
            f"services.llama-cpp.package has the program, not {' '.join(launch.launcher)}"
        )
    # The attributes of the service's unit: its cache, its files and its memory.
    cache = [
        # The unit has ProtectSystem=strict: without a CacheDirectory no download could be written
        'environment.LLAMA_CACHE = "/var/cache/llama-cpp";',
        'serviceConfig.CacheDirectory = "llama-cpp";',
    ]
    unit = [*(cache if launch.downloads else []), *_readable(launch)]
    if launch.secrets:
        # The unit does not start without it
        unit.append('serviceConfig.EnvironmentFile = "/etc/autolayers/llama-cpp.env";')
    for line in memory_of(launch):
        key, value = line.split("=")
        unit.append(f'serviceConfig.{key} = "{value}";')
    lines = [
        *launch.comments("the environment file (mode 600)"),
        "{ lib, pkgs, ... }:",
        "{",
        "  services.llama-cpp = {",
        "    enable = true;",
        *(f"    {line}" for line in own),
        "    extraFlags = [",
        *(f"      {nix(word)}" for word in words_of(launch.without(*own_flags))),
        "    ];",
        "  };",
    ]
    if unit:
        lines += ["  systemd.services.llama-cpp = {", *(f"    {line}" for line in unit), "  };"]
    return "\n".join([*lines, "}"]) + "\n"


def _readable(launch: LaunchFile) -> list[str]:
    """Return the unit's attributes with which the service sees the launch's files in homes and
    temporary directories. Raises UsageError for one that they cannot name."""
    hidden: dict[str, None] = {}

    def seen(path: str, written: bool) -> str:
        # e.g. --slot-save-path: bind mounts below are read-only
        if written:
            launch.warnings.append(
                f"services.llama-cpp may not write to {path}: leave it out, or name a place in its "
                "serviceConfig.StateDirectory"
            )
            return path
        # The files of a split model, or the file.
        files = launch.plan.model.header.files
        if path != launch.params.model or len(files) < 2:
            parts = [path]
        else:
            # llama.cpp opens the other parts by their names in the same directory
            parts = [
                os.path.join(os.path.dirname(path), os.path.basename(file.path)) for file in files
            ]
        for part in parts:
            # the target of a link, where the link itself is seen
            place = part if _is_hidden(part) else os.path.realpath(part)
            if _is_hidden(place):
                hidden[place] = None
        return path

    # `moved` calls `seen` with each path; the words themselves stay
    moved(launch.items, seen)
    for place in filter(_UNTOLD.search, hidden):
        raise UsageError(
            f"services.llama-cpp does not see {place}: move the file, such as to /var/lib"
        )
    if not hidden:
        return []
    launch.warnings.append(
        "services.llama-cpp runs as its own user, who must be able to read "
        f"{', '.join(hidden)} (chmod o+r)"
    )
    # The unit's attributes that show it these places
    places = [*hidden]
    homes = any(_below(place, _HOMES) for place in places)
    # As BindReadOnlyPaths= reads them back: % begins a specifier
    quoted = [
        nix(place if _PLAIN.fullmatch(place) else f'"{place.replace("%", "%%")}"')
        for place in places
    ]
    return [
        # The module sets true, which hides what is bound there too; "tmpfs" makes empty homes that
        # bind mounts can be put in (systemd.exec(5))
        *(['serviceConfig.ProtectHome = lib.mkForce "tmpfs";'] if homes else []),
        f"serviceConfig.BindReadOnlyPaths = [ {' '.join(quoted)} ];",
    ]


def _is_hidden(place: str) -> bool:
    """Return whether the service does not see it by itself."""
    return _below(place, (*_HOMES, *_TEMPORARY))


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)
