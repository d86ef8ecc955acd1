"""LLMKube: a Model and an InferenceService of inference.llmkube.dev/v1alpha1 (api/v1alpha1 of 2026-08-22). Its
operator appends extraArgs to its own words, so that the plan's win."""

from __future__ import annotations

import re

from ...backends import backend_of
from ...quoting import container_argument, yaml
from .launch_file import LaunchFile, without

_VENDORS = {"CUDA": ("cuda", "nvidia"), "ROCm": ("rocm", "amd"), "Vulkan": ("vulkan", "amd")}
_FILE = re.compile(r"hf:([^/]+/[^/]+)/(.+\.gguf)")


def write(launch: LaunchFile) -> str:
    """Both resources; paths are those of the node."""
    name = re.sub(r"[^a-z0-9]+", "-", launch.name.lower()).strip("-")[:60].strip("-") or "model"
    gpus = [device for device in launch.plan.devices if device.used and not backend_of(device.name).remote]
    lines = [*launch.notes, *launch.secret_notes("env of the InferenceService"),
             "apiVersion: inference.llmkube.dev/v1alpha1", "kind: Model", "metadata:", f"  name: {name}", "spec:",
             f"  source: {yaml(_source(launch.model))}", "  format: gguf"]
    if gpus:
        accelerator, vendor = _VENDORS.get(launch.backend.name, ("cuda", "nvidia"))
        lines += ["  hardware:", f"    accelerator: {accelerator}", "    gpu:", "      enabled: true",
                  f"      count: {len(gpus)}", f"      vendor: {vendor}",
                  f"      layers: {launch.plan.n_gpu_layers or -1}"]
    lines += ["---", "apiVersion: inference.llmkube.dev/v1alpha1", "kind: InferenceService", "metadata:",
              f"  name: {name}", "spec:", f"  modelRef: {name}", "  replicas: 1"]
    lines += ["  resources:", f"    gpu: {len(gpus)}"] if gpus else []
    lines += [f"  containerPort: {int(launch.port)}"] if launch.arguments.value("--port") else []
    words = without(launch.words, "-m", "-hf", "-hff", "-mu", "-dr", "--port")
    return "\n".join([*lines, "  extraArgs:", *(f"    - {container_argument(word)}" for word in words)]) + "\n"


def _source(model: str) -> str:
    """The model where the operator gets it."""
    file = _FILE.fullmatch(model)
    return f"https://huggingface.co/{file[1]}/resolve/main/{file[2]}" if file else model
