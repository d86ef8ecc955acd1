"""KServe: a ServingRuntime (serving.kserve.io/v1alpha1) and an InferenceService (v1beta1) for a
launch on the processor, which needs no device plugin."""

from __future__ import annotations

from ...errors import UsageError
from ...records import replace
from . import document
from .kubernetes import container, name_of, pod_of, volumes
from .launch_file import LaunchFile

_MODE = "serving.kserve.io/deploymentMode"


def write(launch: LaunchFile) -> str:
    """Return both objects. Raises UsageError for a launch that uses a GPU."""
    # This container's name is how KServe finds the model server among a pod's containers.
    # KServe has its own probes
    pod = replace(pod_of(launch, name="kserve-container"), health=None)
    if pod.gpu:
        raise UsageError(
            "--format kserve is for the processor: add -dev none, or use --format kubernetes"
        )
    name = name_of(launch.name)
    runtime = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": name},
        "spec": {
            # The InferenceService below asks for this format and names the runtime; with autoSelect
            # the runtime would also be given to other people's GGUF models
            "supportedModelFormats": [{"name": "gguf", "version": '"3"', "autoSelect": False}],
            "containers": [container(pod)],
            "volumes": volumes(pod),
        },
    }
    model = {"modelFormat": {"name": "gguf"}, "runtime": name}
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        # A plain Deployment: the default mode needs Knative, which scales to zero and would load
        # the model again at each first request
        "metadata": {"name": name, "annotations": {_MODE: "RawDeployment"}},
        "spec": {"predictor": {"minReplicas": 1, "model": model}},
    }
    notes = launch.comments("the Secret llama-server")
    return document.write(runtime, service, notes=notes)
