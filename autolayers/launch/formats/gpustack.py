"""GPUStack 2: a deployment on its llama.cpp backend
(docs/user-guide/inference-backend-management.md of 2026-08-21). Its scheduler places it by two
variables, bytes; without them by 1.2 times the weights."""

from __future__ import annotations

from ...quoting import yaml
from .launch_file import LaunchFile, own_gpus, words_of

# GPUStack's worker picks the address and the port, and routes by the deployment's own name
_ITS_OWN = ("--host", "--port", "-a")


def write(launch: LaunchFile) -> str:
    """Return the deployment's fields; its model, address and port are GPUStack's to give."""
    # One figure for all GPUs together, as its scheduler reads it
    used = sum(row.used + row.margin for row in own_gpus(launch.plan))
    for flag in _ITS_OWN:
        if launch.arguments.value(flag) is not None:
            launch.warnings.append(f"GPUStack says {flag} itself: left out")
    launch.starts_keyless("GPUStack's users have keys of their own; or set it in env")
    words = words_of(launch.without("-m", "-hf", "-hff", "-mu", "-dr", *_ITS_OWN))
    if launch.hub_file:
        repository, file = launch.hub_file
        source = [
            "source: huggingface",
            f"huggingface_repo_id: {yaml(repository)}",
            f"huggingface_filename: {yaml(file)}",
        ]
    else:
        source = ["source: local_path", f"local_path: {yaml(launch.model)}"]
    lines = [
        *launch.comments("env of the deployment"),
        f"name: {yaml(launch.name)}",
        *source,
        # A backend that the administrator adds: version 2 has no llama.cpp of its own
        "backend: llama.cpp-custom",
        "replicas: 1",
        # Words of llama-server, handed on as they are
        *(["backend_parameters:", *(f"  - {yaml(word)}" for word in words)] if words else []),
        "env:",
        f'  GPUSTACK_MODEL_VRAM_CLAIM: "{used}"',
        # With what grows later, as nothing stops another deployment from taking it meanwhile
        f'  GPUSTACK_MODEL_RAM_CLAIM: "{launch.ram.limit or launch.ram.request}"',
    ]
    return "\n".join(lines) + "\n"
