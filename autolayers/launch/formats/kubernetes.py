"""Kubernetes: a Deployment and a Service, and the pods of other kinds of objects.

pod = Pod("llama-server", image, command, args, 8080, ram_of(...), gpu="nvidia.com/gpu")
template(pod, {"app": "chat"})          # the lines of a PodTemplateSpec
"""

from __future__ import annotations

from ...errors import UsageError
from ...quoting import container_argument, yaml
from ...records import dataclass
from ...units import MiB
from .container import CACHED, Container
from .launch_file import LaunchFile, own_gpus
from .reach import RESOURCES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...memory.ram import Ram
    from ...planner.plan import DeviceRow

HAMI, KAI = "hami", "kai"
SHARED = (HAMI, KAI)  # of --gpumem: what divides a GPU by memory
# curl, which the images have, says 0.000000 as long as it has no connection
_WAIT = (
    "for at; do until [ \"$(curl -sm 2 -w '%{time_connect}' telnet://$at </dev/null)\" != 0.000000 "
    "]; do sleep 2; done; done"
)


@dataclass(frozen=True)
class Pod:
    """One container. `gpu`: the resource of its GPUs, "" for none; `gpumem`: MiB of each of them,
    for what `shares` them by memory; `mounts`: directory of the node -> directory in the container;
    `node`: the only one it runs on, `nodes`: those where its replicas may run; `after`: HOST:PORT
    of what it waits for."""

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
    mounts: Mapping[str, str] | None = None
    secrets: Sequence[str] = ()
    node: str = ""
    health: tuple[str, str] | None = None
    cached: bool = False
    after: Sequence[str] = ()
    nodes: Sequence[str] = ()


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
    lines += ["spec:", *spec]
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
    lines += _wait(pod) if pod.after else []
    lines += ["  containers:", *(f"    {line}" for line in container(pod))]
    return [" " * indent + line for line in [*lines, *volumes(pod)]]


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
    lines += ["  ports:", f"    - containerPort: {pod.port}", *_resources(pod)]
    if pod.health:
        # 360 times 5 s: half an hour for a large model on a slow disk. The pod is not ready, and
        # gets no requests, before /health answers; llama-server answers 503 while it loads
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
            "    failureThreshold: 360",
            "    periodSeconds: 5",
            "  readinessProbe:",
            *probe,
        ]
    mounts = [*(pod.mounts or {}).values(), *([CACHED] if pod.cached else [])]
    if mounts:
        lines += ["  volumeMounts:"]
    for number, inside in enumerate(mounts):
        lines += [f"    - name: models-{number}", f"      mountPath: {yaml(inside)}"]
    return lines


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
        *(["    limits:", *limits] if limits else []),
    ]


def volumes(pod: Pod) -> list[str]:
    """Return the lines of a pod's `volumes`, if it has any."""
    folders = [*(pod.mounts or {})]
    lines = ["  volumes:"] if folders or pod.cached else []
    for number, folder in enumerate(folders):
        lines += [
            f"    - name: models-{number}",
            "      hostPath:",
            f"        path: {yaml(folder)}",
        ]
    # The Hub's files last as long as the pod: an emptyDir
    return lines + (
        [f"    - name: models-{len(folders)}", "      emptyDir: {}"] if pod.cached else []
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
        box.mounts,
        launch.secrets,
        "",
        launch.health,
        box.cached,
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


def label(text: str) -> str:
    """Return a name as an RFC 1123 label."""
    return (
        # 40 characters leave room in a label's 63 for what callers add, e.g. "rpc-" and "-0"
        "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
        .strip("-")[:40]
        .strip("-")
        or "box"
    )


def name_of(launch: LaunchFile) -> str:
    """Return a Service's name (RFC 1035), which begins with a letter."""
    name = label(launch.name)
    return name if name[0].isalpha() else f"m-{name}"


def write(launch: LaunchFile) -> str:
    """Return both objects, for a node that has the model's directory. Raises UsageError for a
    launch that they cannot express."""
    name = name_of(launch)
    pod = pod_of(launch, launch.shares)
    notes = [*launch.notes, *launch.secret_notes("the Secret llama-server")]
    text = "\n".join([*notes, ""]) if notes else ""
    return text + deployment(name, pod) + "---\n" + service(name, pod.port)
