"""Files for the machines of a cluster: a ggml-rpc-server for each used GPU, and the head's
llama-server.

    # {"shed/compose.yaml": text}
    files("compose", use, cluster, arguments, image="registry.example/llama.cpp:rpc")

llama.cpp's published images are built without RPC, so `image` names one that is built with
-DGGML_RPC=ON.
"""

from __future__ import annotations

from ipaddress import ip_address

from ..backends import CPU, backend_of
from ..backends import backend as row_of
from ..devices.cluster_file import PORT, Box, Cluster
from ..errors import UsageError
from ..memory.ram import Ram, ram_of
from ..quoting import command_line, compose, printable, systemd
from ..records import replace
from ..units import MiB
from .formats import compose as compose_file
from .formats import document, kubernetes
from .formats import systemd as systemd_file
from .formats.kubernetes import Pod
from .formats.launch_file import LaunchFile, plain_name
from .formats.reach import Reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..flags.parse import Arguments
    from ..machine import Device
    from ..planner.compare.cluster import Use
    from ..planner.plan import DeviceRow

OPEN = (
    "ggml-rpc-server has no authentication and no encryption: anyone who can reach its port can "
    "use the GPU, and can crash or take over the server. Keep it in a private network."
)
IMAGE = "llama.cpp:rpc"
# The name of tools/rpc's binary; older builds call it rpc-server
_PROGRAM = "ggml-rpc-server"


def words(box: Box, i: int, host: str | None = None, device: str | None = None) -> list[str]:
    """Return the command of a machine's i-th server."""
    return [
        _PROGRAM,
        "--host",
        host or box.bind,
        "--port",
        str(box.ports[i]),
        "--device",
        device or box.devices[i].name,
        # Keeps large tensors in LLAMA_CACHE by their hash,
        # so the second start sends none of them again
        "--cache",
    ]


def commands(use: Use) -> dict[str, list[str]]:
    """Return the commands to type on each machine, by its name."""
    return {
        box.name: [command_line(words(box, number)) for number in range(len(box.devices))]
        for box in use.boxes
    }


def files(
    kind: str, use: Use, cluster: Cluster, arguments: Arguments, image: str = IMAGE
) -> dict[str, str]:
    """Path -> text, the head's last. Raises UsageError for a machine that this kind of file cannot
    start, and for two machines whose files would have the same name."""
    name_of = kubernetes.label if kind in ("kubernetes", "lws") else folder
    refuse_same(name_of, "boxes", (*use.boxes, cluster.head))
    return _KINDS[kind](use, cluster, arguments, image)


def _head(use: Use, arguments: Arguments, image: str = "") -> LaunchFile:
    launch = LaunchFile.of_plan(use.plan, arguments, arguments.params.model)
    launch.image = image
    return launch


def folder(name: str, bare: str = "box") -> str:
    """Return the directory of a machine's files, never a parent directory; `bare`: of one whose
    name is nothing but dots."""
    return plain_name(name).lstrip(".") or bare


def refuse_same(name_of: Callable[[str], str], what: str, boxes: Iterable[Box]) -> None:
    """Raise UsageError for two machines whose files would have the same name."""
    # Two names may become one: characters that a file's name should not have are dashes there
    names: dict[str, str] = {}
    for box in boxes:
        if (other := names.setdefault(name_of(box.name), box.name)) != box.name:
            raise UsageError(
                f"the files of the {what} {other!r} and {box.name!r} would have the same names: "
                "rename one"
            )


def _comment() -> list[str]:
    return [f"# {OPEN}"]


def _needs(use: Use) -> dict[tuple[str, int], tuple[DeviceRow, Ram]]:
    """Return what the i-th server of a machine takes of its device, and needs of RAM: a message;
    the largest is a tensor, and all that it holds if it has no memory
    (rpc_server::set_tensor of ggml-rpc.cpp)."""
    message = max([tensor.n_bytes for tensor in use.plan.model.tensors.values()], default=0)
    # The plan lists remote devices as RPC0, RPC1, ... in the order of machines and their devices
    rows = iter([row for row in use.plan.devices if backend_of(row.name).remote])
    needs = {}
    for box in use.boxes:
        for i, device in enumerate(box.devices):
            row = next(rows)
            # A GPU with memory of its own takes no RAM for weights
            own = row.used if device.in_ram or device.backend == CPU.name else 0
            needs[box.name, i] = row, ram_of(message + own, 0, 0)
    return needs


# --- systemd


def _systemd(use: Use, cluster: Cluster, arguments: Arguments, image: str) -> dict[str, str]:
    texts, needs = {}, _needs(use)
    for box in use.boxes:
        for i, device in enumerate(box.devices):
            _reach(box, device, "systemd")
            lines = [
                *_comment(),
                "[Unit]",
                f"Description={_PROGRAM} {plain_name(box.name)} {plain_name(device.name)}",
                "Wants=network-online.target",
                "After=network-online.target",
                "",
                "[Service]",
                # The server needs no files but its cache, and
                # whoever reaches its port may take it over
                "DynamicUser=yes",
                *(
                    # /dev/dri and /dev/kfd belong to these groups
                    ["SupplementaryGroups=video render"]
                    if row_of(device.backend).device_nodes
                    else []
                ),
                "CacheDirectory=llama.cpp",
                "Environment=LLAMA_CACHE=%C/llama.cpp",
                "ExecStart="
                + " ".join(map(systemd, [f"/usr/local/bin/{_PROGRAM}", *words(box, i)[1:]])),
                f"MemoryMax={needs[box.name, i][1].request // MiB}M",
                # The head cannot start without it, however it ended
                "Restart=always",
                "RestartSec=2",
                "",
                "[Install]",
                "WantedBy=multi-user.target",
            ]
            texts[f"{folder(box.name)}/llama-rpc-{i}.service"] = "\n".join(lines) + "\n"
    texts[f"{folder(cluster.head.name)}/llama-server.service"] = systemd_file.write(
        _head(use, arguments)
    )
    return texts


def _reach(box: Box, device: Device, what: str) -> Reach:
    """Return how a server gets to a device. Raises UsageError where it cannot."""
    reach = Reach(row_of(device.backend), device.description)
    # Such as Metal: no container and no systemd there
    if not reach.reaches(what):
        by_hand = command_line(words(box, box.devices.index(device)))
        raise UsageError(
            f"{what} cannot start box {box.name}, which runs {device.backend}: type there {by_hand}"
        )
    return reach


# --- compose


def _compose(use: Use, cluster: Cluster, arguments: Arguments, image: str) -> dict[str, str]:
    texts, needs = {}, _needs(use)
    for box in use.boxes:
        try:
            number = ip_address(box.bind)
        except ValueError:
            raise UsageError(
                f"machine {box.name}: Docker publishes a port at an IP address, not at {box.bind}: "
                f'give the machine an "address"'
            ) from None
        at = f"[{number}]" if number.version == 6 else str(number)
        services = {}
        for i, device in enumerate(box.devices):
            reach = _reach(box, device, "compose")
            # Within the container it listens on all addresses: the published one limits who
            # reaches it
            command, memory = words(box, i, "0.0.0.0"), f"{needs[box.name, i][1].request // MiB}m"
            gpus = {"driver": reach.driver, "count": "all", "capabilities": "[gpu]"}
            services[f"rpc-{i}"] = {
                "image": compose(image),
                # The images start llama-server
                "entrypoint": f"[{compose('/app/' + _PROGRAM)}]",
                "command": f"[{', '.join(map(compose, command[1:]))}]",
                "ports": [compose(f"{at}:{box.ports[i]}:{box.ports[i]}")],
                "volumes": [{"type": "volume", "source": "rpc-cache", "target": "/root/.cache"}],
                "mem_limit": memory,
                "deploy": {
                    "resources": {
                        "limits": {"memory": memory},
                        "reservations": {"devices": [gpus]} if reach.driver else None,
                    }
                },
                "environment": [reach.variable] if reach.variable else None,
                "devices": [f"{node}:{node}" for node in reach.nodes] or None,
                # Also after a reboot of that machine
                "restart": "unless-stopped",
            }
        texts[f"{folder(box.name)}/compose.yaml"] = document.write(
            {"services": services, "volumes": {"rpc-cache": ""}},
            notes=[*_comment(), f"# {_image_note(image)}"],
        )
    head = compose_file.write(_head(use, arguments, image))
    texts[f"{folder(cluster.head.name)}/compose.yaml"] = f"# {_image_note(image)}\n{head}"
    return texts


def _image_note(image: str) -> str:
    return (
        f"{printable(image)}: an image of llama.cpp built with -DGGML_RPC=ON (the published ones "
        "are not)"
    )


# --- kubernetes


def _kubernetes(use: Use, cluster: Cluster, arguments: Arguments, image: str) -> dict[str, str]:
    documents, endpoints = [], []
    for name, pod in _workers(use, arguments, image):
        documents += [
            kubernetes.deployment(name, pod, {"llama-cpp": "worker"}),
            kubernetes.service(name, pod.port),
        ]
        endpoints.append(f"{name}:{pod.port}")
    # The head's own GPU is part of the plan, so it runs on that node alone
    head = replace(
        _leader(use, arguments, image, endpoints),
        node=cluster.head.name,
        node_port=cluster.port,
    )
    documents += [
        kubernetes.deployment("llama-server", head, {"llama-cpp": "head"}),
        kubernetes.service("llama-server", head.port),
        _POLICY,
    ]
    notes = [*_comment(), f"# {_image_note(image)}"]
    return {"kubernetes.yaml": document.write(*documents, notes=notes)}


def _workers(use: Use, arguments: Arguments, image: str) -> Iterator[tuple[str, Pod]]:
    """Yield (name, pod) of each machine's servers. Raises UsageError for a machine that runs no
    container."""
    needs = _needs(use)
    for box in use.boxes:
        for i, device in enumerate(box.devices):
            reach = _reach(box, device, "kubernetes")
            row, ram = needs[box.name, i]
            # A pod that gets one GPU sees it as number 0
            command = ["/app/" + _PROGRAM, *words(box, i, "0.0.0.0", f"{reach.backend.name}0")[1:]]
            yield (
                f"rpc-{kubernetes.label(box.name)}-{i}",
                Pod(
                    "worker",
                    image,
                    command,
                    [],
                    box.ports[i],
                    ram,
                    reach.resource,
                    1,
                    kubernetes.gpumem_of([row]),
                    arguments.own.get("gpumem", ""),
                    node=box.name,
                    cached=True,  # of --cache
                    variable=reach.variable,
                ),
            )


def _leader(use: Use, arguments: Arguments, image: str, endpoints: Sequence[str]) -> Pod:
    """Return the head's pod, whose servers are at these addresses."""
    flags = list(use.plan.flags)
    # The plan has the machines' addresses; within Kubernetes servers have names
    if "--rpc" in flags:
        flags[flags.index("--rpc") + 1] = ",".join(endpoints)
    launch = _head(replace(use, plan=replace(use.plan, flags=tuple(flags))), arguments, image)
    pod = kubernetes.pod_of(launch, arguments.own.get("gpumem", ""), "head")
    return replace(pod, command=["/app/llama-server"])


# only the head may reach the workers, if the cluster's network enforces policies
_POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "llama-cpp-rpc"},
    "spec": {
        "podSelector": {"matchLabels": {"llama-cpp": "worker"}},
        "policyTypes": "[Ingress]",
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"llama-cpp": "head"}}}]}],
    },
}


# --- LeaderWorkerSet


def _lws(use: Use, cluster: Cluster, arguments: Arguments, image: str) -> dict[str, str]:
    """leaderworkerset.x-k8s.io/v1: the leader is llama-server, each worker one server; one that
    ends restarts all."""
    workers = [pod for _, pod in _workers(use, arguments, image)]
    if not workers:
        raise UsageError(
            "the plan uses the head alone: --format kubernetes of `autolayers MODEL` starts it"
        )
    # (resource, device), e.g. ("nvidia.com/gpu", "CUDA0"): all workers are made from one template
    kinds = {(pod.gpu, pod.command[-2]) for pod in workers}
    if len(kinds) > 1:
        raise UsageError(
            "the workers of a LeaderWorkerSet are alike, but these use different backends: "
            "--format kubernetes has a Deployment for each"
        )
    size, name = len(workers) + 1, "llama-server"
    port = PORT
    # the pod with most is every worker's: any of them may get any place
    command = [*workers[0].command]
    command[command.index("--port") + 1] = str(port)
    largest = max(workers, key=lambda pod: pod.ram.request)
    worker = replace(
        largest, command=command, port=port, node="", gpumem=max(pod.gpumem for pod in workers)
    )
    # LeaderWorkerSet's own names: group 0, worker i, in a headless Service of the set's name
    endpoints = [f"{name}-0-{i}.{name}:{port}" for i in range(1, size)]
    # a leader that ends for want of a worker would end its workers too
    leader = replace(_leader(use, arguments, image, endpoints), after=endpoints)
    group = {
        # pods of a group, the leader included
        "size": size,
        # llama-server keeps connections to all workers, and ends with the first that is lost
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": kubernetes.template(leader, {"app": name, "llama-cpp": "head"}),
        "workerTemplate": kubernetes.template(worker, {"llama-cpp": "worker"}),
    }
    workers_set = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "leaderWorkerTemplate": group},
    }
    api = kubernetes.service(f"{name}-api", leader.port, name)
    notes = [*_comment(), f"# {_image_note(image)}"]
    return {"lws.yaml": document.write(workers_set, api, _POLICY, notes=notes)}


_KINDS: dict[str, Callable[[Use, Cluster, Arguments, str], dict[str, str]]] = {
    "compose": _compose,
    "systemd": _systemd,
    "kubernetes": _kubernetes,
    "lws": _lws,
}
