"""Kubernetes: a Deployment and a Service, and the pods of other kinds of objects.

pod = Pod("llama-server", image, command, args, 8080, ram_of(...), gpu="nvidia.com/gpu")
template(pod, {"app": "chat"})          # the lines of a PodTemplateSpec
"""

from __future__ import annotations

import hashlib
import os
import re

from ...errors import UsageError
from ...quoting import container_argument, yaml
from ...records import dataclass
from ...units import MiB
from .container import CACHED, Container, Mount
from .launch_file import LaunchFile, own_gpus
from .reach import RESOURCES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...memory.ram import Ram
    from ...planner.plan import DeviceRow

HAMI, KAI = "hami", "kai"
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


def _wait(pod: Pod) -> list[str]:
    """Return the lines of a container that waits for other servers."""
    words = _words("command", ["/bin/sh", "-c", _WAIT, "wait", *pod.after])
    return [
        # Kubernetes starts the server after these have ended
        "  initContainers:",
        "    - name: wait",
        f"      image: {yaml(pod.image)}",
        *(f"    {line}" for line in words),
    ]


def _refuse_several(pod: Pod) -> None:
    """Raise UsageError for more GPUs than KAI shares."""
    if pod.gpus > 1:
        raise UsageError(
            f"KAI shares one GPU a pod, and the launch uses {pod.gpus}: plan for one GPU"
        )


def template(pod: Pod, labels: Mapping[str, str], indent: int = 4) -> list[str]:
    """Return the lines of a PodTemplateSpec, `indent` columns in."""
    lines = ["metadata:", "  labels:", *(f"    {key}: {value}" for key, value in labels.items())]
    spec = []
    # KAI-Scheduler reads the annotation, MiB of one GPU, instead of nvidia.com/gpu in the limits.
    # It places only pods that name it as their scheduler and have a queue
    if pod.gpu and pod.shares == KAI:
        _refuse_several(pod)
        lines += [
            "    kai.scheduler/queue: default-queue",
            "  annotations:",
            f'    gpu-memory: "{pod.gpumem}"',
        ]
        spec += ["  schedulerName: kai-scheduler"]
    lines += ["spec:", *spec, *_security(pod)]
    lines += (
        ["  nodeSelector:", f"    kubernetes.io/hostname: {yaml(pod.node)}"] if pod.node else []
    )
    if pod.nodes:
        lines += [
            "  affinity:",
            "    nodeAffinity:",
            # A replica starts on these nodes alone: the plan was made for their GPUs
            "      requiredDuringSchedulingIgnoredDuringExecution:",
            "        nodeSelectorTerms:",
            "          - matchExpressions:",
            "              - key: kubernetes.io/hostname",
            "                operator: In",
            "                values:",
            *(f"                  - {yaml(name)}" for name in pod.nodes),
        ]
    if len(pod.nodes) > 1:
        # A node that fails takes no more of them than the plan says
        lines += [
            "  topologySpreadConstraints:",
            "    - maxSkew: 1",
            "      topologyKey: kubernetes.io/hostname",
            "      whenUnsatisfiable: DoNotSchedule",
            "      labelSelector:",
            "        matchLabels:",
            f"          app: {labels['app']}",
        ]
    lines += _wait(pod) if pod.after else []
    lines += ["  containers:", *(f"    {line}" for line in container(pod))]
    return [" " * indent + line for line in [*lines, *volumes(pod)]]


def _security(pod: Pod) -> list[str]:
    """Return the lines of the pod's rights."""
    lines = ["  securityContext:", "    seccompProfile:", "      type: RuntimeDefault"]
    if pod.user is not None:
        lines += ["    runAsNonRoot: true", f"    runAsUser: {pod.user}"]
    return lines


def container(pod: Pod) -> list[str]:
    """Return the lines of the item of `containers`."""
    lines = [
        f"- name: {pod.name}",
        f"  image: {yaml(pod.image)}",
        *_words("command", pod.command),
        *_words("args", pod.args),
    ]
    if pod.secrets:
        # Each key of the Secret becomes a variable, e.g. LLAMA_API_KEY, which llama-server reads
        lines += ["  envFrom:", "    - secretRef:", "        name: llama-server"]
    if pod.variable:
        name, _, value = pod.variable.partition("=")
        lines += ["  env:", f"    - name: {name}", f"      value: {yaml(value)}"]
    lines += [
        "  securityContext:",
        "    allowPrivilegeEscalation: false",
        "    readOnlyRootFilesystem: true",
    ]
    if pod.user is not None:
        # Root needs some to read the files of others
        lines += ["    capabilities:", "      drop: [ALL]"]
    lines += ["  ports:", f"    - containerPort: {pod.port}"]
    lines += [f"      hostPort: {pod.node_port}"] if pod.node_port else []
    lines += _resources(pod)
    if pod.health:
        # The pod is not ready, and gets no requests, before /health answers; llama-server answers
        # 503 while it loads
        scheme, path = pod.health
        probe = [
            "    httpGet:",
            f"      path: {yaml(path)}",
            f"      port: {pod.port}",
            f"      scheme: {scheme.upper()}",
        ]
        lines += [
            "  startupProbe:",
            *probe,
            f"    failureThreshold: {-(-pod.patience // 5)}",
            "    periodSeconds: 5",
            "  readinessProbe:",
            *probe,
        ]
    lines += ["  volumeMounts:"]
    for number, mount in enumerate(pod.mounts):
        lines += [f"    - name: models-{number}", f"      mountPath: {yaml(mount.inside)}"]
        lines += [] if mount.written else ["      readOnly: true"]
    lines += ["    - name: cache", f"      mountPath: {CACHED}"] if pod.cached else []
    return [*lines, "    - name: tmp", "      mountPath: /tmp"]


def _words(key: str, words: Sequence[str]) -> list[str]:
    return [f"  {key}:", *(f"    - {container_argument(word)}" for word in words)] if words else []


def _resources(pod: Pod) -> list[str]:
    """Return the lines of requests and limits: a pod that exceeds its limit is killed, and only
    it."""
    # Device plugins read limits; Kubernetes sets the request of such a resource to the same
    limits = []
    if pod.gpu and pod.shares != KAI:  # which counts the GPU itself
        limits += [f"      {pod.gpu}: {pod.gpus}"]
    if pod.gpu and pod.shares == HAMI:
        # HAMi: MiB of each GPU that the pod may allocate
        limits += [f"      nvidia.com/gpumem: {pod.gpumem}"]
    if pod.ram.limit is not None:
        limits += [f"      memory: {pod.ram.limit // MiB}Mi"]
    return [
        "  resources:",
        "    requests:",
        f"      memory: {pod.ram.request // MiB}Mi",
        # Without one it gets what others leave
        f'      cpu: "{pod.threads}"',
        *([f"      ephemeral-storage: {-(-pod.disk // MiB)}Mi"] if pod.disk else []),
        *(["    limits:", *limits] if limits else []),
    ]


def volumes(pod: Pod) -> list[str]:
    """Return the lines of a pod's `volumes`."""
    lines = ["  volumes:"]
    for number, mount in enumerate(pod.mounts):
        kind = "Directory" if mount.folder else "File"
        lines += [
            f"    - name: models-{number}",
            "      hostPath:",
            f"        path: {yaml(mount.source)}",
            # The pod of a node that lacks it does not start, and says why
            f"        type: {kind}{'OrCreate' if mount.written else ''}",
        ]
    # The Hub's files last as long as the pod: an emptyDir
    lines += ["    - name: cache", "      emptyDir: {}"] if pod.cached else []
    return [*lines, "    - name: tmp", "      emptyDir: {}"]


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
    return _NOBODY if all(_public(mount.source) for mount in box.mounts.values()) else None


def _public(path: str) -> bool:
    """Return whether everyone may read a file."""
    if os.path.exists(path):
        return bool(os.stat(path).st_mode & 0o004)
    return path.endswith(".gguf")


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
) -> str:
    lines = [
        "apiVersion: apps/v1",
        "kind: Deployment",
        "metadata:",
        f"  name: {name}",
        "spec:",
        f"  replicas: {replicas}",
        "  strategy:",
        # A rolling update would start the new server before the old one ends: the GPU holds one
        "    type: Recreate",
        "  selector:",
        "    matchLabels:",
        f"      app: {name}",
        "  template:",
        *template(pod, {"app": name, **(labels or {})}),
    ]
    return "\n".join(lines) + "\n"


def service(name: str, port: int, app: str = "", key: str = "app") -> str:
    """Return a Service for the pods of an app, its own name's by default, or with another label."""
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector:
    {key}: {app or name}
  ports:
    - port: {port}
      targetPort: {port}
"""


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
    notes = [*launch.notes, *launch.secret_notes("the Secret llama-server")]
    if pod.mounts:
        notes.append(
            "# hostPath: for nodes that have the files; Pod Security's baseline refuses it"
        )
    if pod.gpu == RESOURCES["nvidia"]:
        notes.append(
            "# where NVIDIA's is not the nodes' default runtime (k3s): runtimeClassName: nvidia"
        )
    text = "\n".join([*notes, ""]) if notes else ""
    return text + deployment(name, pod) + "---\n" + service(name, pod.port)
