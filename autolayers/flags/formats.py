"""The files that --format can write: one row each. Help, choices and documentation are made from
them, and autolayers.launch.formats has a module for each."""

from __future__ import annotations


class Format:
    """`several`: one file can hold several models. `starts`: it starts the given program, not
    llama.cpp's own server or image. `gpu`: the attribute of a Backend that says whether it can
    compute there; "": wherever the command itself can."""

    __slots__ = ("about", "gpu", "name", "several", "starts")

    def __init__(
        self, name: str, about: str, several: bool = False, starts: bool = False, gpu: str = ""
    ) -> None:
        self.name, self.about, self.several, self.starts = name, about, several, starts
        self.gpu = gpu


# In the order in which --help and the completion list them
FORMATS = {
    row.name: row
    for row in (
        Format("systemd", "a systemd service", starts=True, gpu="linux"),
        Format("docker", "a `docker run` command", gpu="image"),
        Format("compose", "a Compose file", gpu="image"),
        Format("llama-swap", "a llama-swap configuration", several=True, starts=True),
        Format("preset", "a preset of llama-server's router (--models-preset)", several=True),
        Format("llama-cpp-python", "Python code for llama-cpp-python"),
        Format("koboldcpp", "a KoboldCpp command", gpu="koboldcpp"),
        Format(
            "llama-swap-matrix",
            "a llama-swap configuration with its matrix: every set of models that fits",
            several=True,
            starts=True,
        ),
        Format("nixos", "a NixOS configuration (services.llama-cpp)", gpu="nixpkgs"),
        Format("kubernetes", "a Deployment and a Service of Kubernetes", gpu="image"),
        Format(
            "kserve",
            "a ServingRuntime and an InferenceService of KServe, for the processor",
            gpu="image",
        ),
        Format("docker-model", "commands for Docker Model Runner", gpu="docker_model"),
        Format("gpustack", "a deployment of GPUStack 2", gpu="linux"),
        Format("llmkube", "a Model and an InferenceService of LLMKube", gpu="llmkube"),
    )
}
