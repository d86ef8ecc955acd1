"""Kubernetes: a Deployment and a Service, and the pods of other kinds of objects.

pod = Pod("llama-server", image, command, args, 8080, ram_of(...), gpu="nvidia.com/gpu")
template(pod, {"app": "chat"})          # a PodTemplateSpec
"""

from __future__ import annotations

import hashlib
import os
import re

from ...errors import UsageError
from ...quoting import container_argument, yaml
from ...records import dataclass
from ...units import MiB
from . import document
from .container import CACHED, Container, Mount
from .launch_file import LaunchFile, own_gpus
from .reach import RESOURCES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...memory.ram import Ram
    from ...planner.plan import DeviceRow
    from .document import Document

HAMI, KAI = "hami", "kai"
_HOST = "kubernetes.io/hostname"
_NOBODY = 65534
SHARED = (HAMI, KAI)  # of --gpumem: what divides a GPU by memory
# curl, which the images have, says 0.000000 as long as it has no connection
_WAIT = (
    "for at; do until [ \"$(curl -sm 2 -w '%{time_connect}' telnet://$at </dev/null)\" != 0.000000 "
    "]; do sleep 2; done; done"
)


@dataclass(frozen=True)
class Pod:
    """One container. `gpu`: the resource of its GPUs, "" for none; `gpumem`: MiB of each of them,
    for what `shares` them by memory; `user`: its number, where it need not be root; `disk`: bytes
    that it downloads; `patience`: seconds that it may take to start; `node`:
    the only one it runs on, `nodes`: those that have one replica each, `node_port`: where it is
    reached there; `after`: HOST:PORT of what it waits for."""

    name: str
    image: str
    command: Sequence[str]
    args: Sequence[str]
    port: int
    ram: Ram
    gpu: str = ""
    gpus: int = 1
    gpumem: int = 0
    shares: str = ""
    mounts: Sequence[Mount] = ()
    secrets: Sequence[str] = ()
    node: str = ""
    health: tuple[str, str] | None = None
    cached: bool = False
    after: Sequence[str] = ()
    nodes: Sequence[str] = ()
    node_port: int = 0
    variable: str = ""
    user: int | None = None
    threads: int = 1
    disk: int = 0
    patience: int = 1800


def gpumem_of(rows: Sequence[DeviceRow]) -> int:
    """Return the MiB that a launch takes of its fullest GPU, margin included."""
    # Rounded up: HAMi refuses allocations above it. One figure holds for each GPU of a pod
    return max([-(-(row.used + row.margin) // MiB) for row in rows], default=0)


def template(pod: Pod, labels: Mapping[str, str]) -> Document:
    """Return a PodTemplateSpec. Raises UsageError for more GPUs than KAI shares."""
    metadata: Document = {"labels": {**labels}}
    spec: Document = {}
    # KAI-Scheduler reads the annotation, MiB of one GPU, instead of nvidia.com/gpu in the limits.
    # It places only pods that name it as their scheduler and have a queue
    if pod.gpu and pod.shares == KAI:
        if pod.gpus > 1:
            raise UsageError(
                f"KAI shares one GPU a pod, and the launch uses {pod.gpus}: plan for one GPU"
            )
        metadata["labels"]["kai.scheduler/queue"] = "default-queue"
        metadata["annotations"] = {"gpu-memory": f'"{pod.gpumem}"'}
        spec["schedulerName"] = "kai-scheduler"
    spec["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if pod.user is not None:
        spec["securityContext"] |= {"runAsNonRoot": True, "runAsUser": pod.user}
    if pod.node:
        spec["nodeSelector"] = {_HOST: yaml(pod.node)}
    if pod.nodes:
        here = {"key": _HOST, "operator": "In", "values": list(map(yaml, pod.nodes))}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
        # A replica starts on these nodes alone: the plan was made for their GPUs
        needed = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        spec["affinity"] = {"nodeAffinity": needed}
    if len(pod.nodes) > 1:
        # A node that fails takes no more of them than the plan says
        spread = {
            "maxSkew": 1,
            "topologyKey": _HOST,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": labels["app"]}},
        }
        spec["topologySpreadConstraints"] = [spread]
    if pod.after:
        command = _words(["/bin/sh", "-c", _WAIT, "wait", *pod.after])
        # Kubernetes starts the server after these have ended
        spec["initContainers"] = [{"name": "wait", "image": yaml(pod.image), "command": command}]
    spec |= {"containers": [container(pod)], "volumes": volumes(pod)}
    return {"metadata": metadata, "spec": spec}


def container(pod: Pod) -> Document:
    """Return the item of `containers`."""
    name, _, value = pod.variable.partition("=")
    probe: Document = {}
    if pod.health:
        scheme, path = pod.health
        probe["httpGet"] = {"path": yaml(path), "port": pod.port, "scheme": scheme.upper()}
    mounts: list[Document] = [
        {
            "name": f"models-{number}",
            "mountPath": yaml(mount.inside),
            "readOnly": None if mount.written else True,
        }
        for number, mount in enumerate(pod.mounts)
    ]
    mounts += [{"name": "cache", "mountPath": CACHED}] if pod.cached else []
    # Requests and limits: a pod that exceeds its limit is killed, and only it
    # Device plugins read limits; Kubernetes sets the request of such a resource to the same
    limits: Document = {}
    if pod.gpu and pod.shares != KAI:  # which counts the GPU itself
        limits[pod.gpu] = pod.gpus
    if pod.gpu and pod.shares == HAMI:
        # HAMi: MiB of each GPU that the pod may allocate
        limits["nvidia.com/gpumem"] = pod.gpumem
    if pod.ram.limit is not None:
        limits["memory"] = f"{pod.ram.limit // MiB}Mi"
    requests = {
        "memory": f"{pod.ram.request // MiB}Mi",
        # Without one it gets what others leave
        "cpu": f'"{pod.threads}"',
        "ephemeral-storage": f"{-(-pod.disk // MiB)}Mi" if pod.disk else None,
    }
    return {
        "name": pod.name,
        "image": yaml(pod.image),
        "command": _words(pod.command) or None,
        "args": _words(pod.args) or None,
        # Each key of the Secret becomes a variable, e.g. LLAMA_API_KEY, which llama-server reads
        "envFrom": [{"secretRef": {"name": "llama-server"}}] if pod.secrets else None,
        "env": [{"name": name, "value": yaml(value)}] if name else None,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            # Root needs some to read the files of others
            "capabilities": None if pod.user is None else {"drop": "[ALL]"},
        },
        "ports": [{"containerPort": pod.port, "hostPort": pod.node_port or None}],
        "resources": {"requests": requests, "limits": limits or None},
        # The pod is not ready, and gets no requests, before /health answers; llama-server answers
        # 503 while it loads
        "startupProbe": {
            **probe,
            "failureThreshold": -(-pod.patience // 5),
            "periodSeconds": 5,
        }
        if probe
        else None,
        "readinessProbe": probe or None,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
    }


def _words(words: Sequence[str]) -> list[str]:
    return list(map(container_argument, words))


def volumes(pod: Pod) -> list[Document]:
    """Return a pod's `volumes`."""
    # The pod of a node that lacks a file does not start, and says why
    kinds = {False: "", True: "OrCreate"}
    places: list[Document] = [
        {
            "name": f"models-{number}",
            "hostPath": {
                "path": yaml(mount.source),
                "type": ("Directory" if mount.folder else "File") + kinds[mount.written],
            },
        }
        for number, mount in enumerate(pod.mounts)
    ]
    # The Hub's files last as long as the pod: an emptyDir
    own = ["cache", "tmp"] if pod.cached else ["tmp"]
    return [*places, *({"name": name, "emptyDir": {}} for name in own)]


def _user(launch: LaunchFile, box: Container) -> int | None:
    """Return the user that need not be root: this one, who can read the files; None: root, as the
    nodes of GPUs and the image's cache want it."""
    reach = launch.reach
    if os.name != "posix" or box.cached or launch.image or (reach.nodes and own_gpus(launch.plan)):
        return None
    # What the node makes for it belongs to root
    if any(mount.written for mount in box.mounts.values()):
        return None
    if os.getuid():
        return os.getuid()
    # Written by root: nobody, where everyone may read; a model that is not here is taken for such
    # Whether everyone may read a file
    return (
        _NOBODY
        if all(
            (
                bool(os.stat(mount.source).st_mode & 0o004)
                if os.path.exists(mount.source)
                else mount.source.endswith(".gguf")
            )
            for mount in box.mounts.values()
        )
        else None
    )


def pod_of(launch: LaunchFile, shares: str = "", name: str = "llama-server") -> Pod:
    """Return the pod of a launch. Raises UsageError for GPUs that cannot be divided."""
    box = Container(launch, "kubernetes")
    if launch.host and launch.private:
        # Container binds 0.0.0.0 in any case: 127.0.0.1 would be the pod's own
        launch.warnings.append(f"a pod is reached by its Service: --host {launch.host} is left out")
    gpus = own_gpus(launch.plan)
    # Without GPU in the plan none is taken away from other pods
    gpu = launch.reach.resource if gpus else ""
    if gpu and not launch.reach.vendor:
        launch.warnings.append(f"whose GPU it is was not said: {gpu} is a guess")
    if gpu and shares and gpu != RESOURCES["nvidia"]:
        raise UsageError(
            f"--gpumem {shares}: divides NVIDIA's GPUs, not those of {launch.reach.backend.name}"
        )
    return Pod(
        name,
        box.image,
        [],
        box.words,
        int(box.port),
        launch.ram,
        gpu,
        len(gpus),
        gpumem_of(gpus),
        shares,
        tuple(box.mounts.values()),
        launch.secrets,
        "",
        launch.health,
        box.cached,
        variable=launch.reach.variable if gpus else "",
        user=_user(launch, box),
        threads=max(1, launch.params.n_threads or 1),
        disk=launch.plan.model.size if box.cached else 0,
        patience=launch.patience,
    )


def deployment(
    name: str, pod: Pod, labels: Mapping[str, str] | None = None, replicas: int = 1
) -> Document:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            # A rolling update would start the new server before the old one ends: the GPU holds one
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": name}},
            "template": template(pod, {"app": name, **(labels or {})}),
        },
    }


def service(name: str, port: int, app: str = "", key: str = "app") -> Document:
    """Return a Service for the pods of an app, its own name's by default, or with another label."""
    ports = [{"port": port, "targetPort": port}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {key: app or name}, "ports": ports},
    }


def label(text: str, most: int = 40) -> str:
    """Return a name as an RFC 1123 label. Names that differ only in what is cut off get other
    labels."""
    plain = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    # 40 characters leave room in a label's 63 for what callers add, e.g. "rpc-" and "-0"
    if len(plain) <= most:
        return plain or "box"
    # The end of a model's name is its quantisation: others begin with the same words
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{plain[: most - 7].strip('-')}-{digest}"


def name_of(text: str) -> str:
    """Return a Service's name (RFC 1035), which begins with a letter."""
    name = label(text)
    return name if name[0].isalpha() else f"m-{name}"


def write(launch: LaunchFile) -> str:
    """Return both objects, for a node that has the model's directory. Raises UsageError for a
    launch that they cannot express."""
    name = name_of(launch.name)
    pod = pod_of(launch, launch.shares)
    notes = launch.comments("the Secret llama-server")
    if pod.mounts:
        notes.append(
            "# hostPath: for nodes that have the files; Pod Security's baseline refuses it"
        )
    if pod.gpu == RESOURCES["nvidia"]:
        notes.append(
            "# where NVIDIA's is not the nodes' default runtime (k3s): runtimeClassName: nvidia"
        )
    return document.write(deployment(name, pod), service(name, pod.port), notes=notes)
