"""KServe: a ServingRuntime (serving.kserve.io/v1alpha1) and an InferenceService (v1beta1) for a
launch on the processor, which needs no device plugin."""

from __future__ import annotations

from ...errors import UsageError
from ...records import replace
from .kubernetes import container, name_of, pod_of, volumes
from .launch_file import LaunchFile


def write(launch: LaunchFile) -> str:
    """Return both objects. Raises UsageError for a launch that uses a GPU."""
    # KServe has its own probes
    pod = replace(pod_of(launch, name="kserve-container"), health=None)
    if pod.gpu:
        raise UsageError(
            "--format kserve is for the processor: add -dev none, or use --format kubernetes"
        )
    name = name_of(launch)
    lines = [
        *launch.notes,
        *launch.secret_notes("the Secret llama-server"),
        "apiVersion: serving.kserve.io/v1alpha1",
        "kind: ServingRuntime",
        "metadata:",
        f"  name: {name}",
        "spec:",
        "  supportedModelFormats:",
        "    - name: gguf",
        '      version: "3"',
        "      autoSelect: false",
        "  containers:",
        *(f"    {line}" for line in container(pod)),
        *volumes(pod),
        "---",
        "apiVersion: serving.kserve.io/v1beta1",
        "kind: InferenceService",
        "metadata:",
        f"  name: {name}",
        "  annotations:",
        "    serving.kserve.io/deploymentMode: RawDeployment",
        "spec:",
        "  predictor:",
        "    minReplicas: 1",
        "    model:",
        "      modelFormat:",
        "        name: gguf",
        f"      runtime: {name}",
    ]
    return "\n".join(lines) + "\n"
