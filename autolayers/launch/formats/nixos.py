"""A NixOS configuration: the attributes of services.llama-cpp (nixos/modules/services/misc/llama-cpp.nix)."""

from __future__ import annotations

from ...errors import UsageError
from .launch_file import LaunchFile, without

_PACKAGES = {"CUDA": "cudaSupport", "ROCm": "rocmSupport", "Vulkan": "vulkanSupport"}


def write(launch: LaunchFile) -> str:
    """An attribute set to import or to merge into a configuration."""
    own = [f"host = {nix(launch.host)};"] if launch.host else []
    own += [f"port = {launch.port};"] if launch.arguments.value("--port") else []
    words = without(launch.words, "--host", "--port")
    if not launch.downloads and launch.params.model is not None:
        own.insert(0, f"model = {nix(launch.model)};")
        words = without(words, "-m")
    if variant := _PACKAGES.get(launch.backend.name):
        own.insert(0, f"package = pkgs.llama-cpp.override {{ {variant} = true; }};")
    if list(launch.launcher) != ["llama-server"]:
        launch.warnings.append(f"services.llama-cpp.package has the program, not {' '.join(launch.launcher)}")
    lines = [*launch.notes, *launch.secret_notes("systemd.services.llama-cpp.serviceConfig.EnvironmentFile"),
             "{ pkgs, ... }:", "{", "  services.llama-cpp = {", "    enable = true;", *(f"    {line}" for line in own),
             "    extraFlags = [", *(f"      {nix(word)}" for word in words), "    ];", "  };"]
    if launch.downloads:
        lines += ["  systemd.services.llama-cpp = {", '    environment.LLAMA_CACHE = "/var/cache/llama-cpp";',
                  '    serviceConfig.CacheDirectory = "llama-cpp";', "  };"]
    return "\n".join([*lines, "}"]) + "\n"


def nix(text: str) -> str:
    """A string of the Nix language. Raises UsageError for what it cannot hold."""
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"{text!r}: a Nix string cannot hold it: rename it")
    names = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if control := next((c for c in text if not c.isprintable() and c not in names), ""):
        raise UsageError(f"{text!r}: a Nix string has no escape for {control!a}: rename it")
    escaped = "".join(names.get(c) or (f"\\{c}" if c in '"\\$' else c) for c in text)
    return f'"{escaped}"'
