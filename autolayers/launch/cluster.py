"""Files for the machines of a cluster: a ggml-rpc-server for each used GPU, and the head's llama-server.

    files("compose", use, cluster, arguments, image="registry.example/llama.cpp:rpc")     # {"shed/compose.yaml": text}

llama.cpp's published images are built without RPC, so `image` names one that is built with -DGGML_RPC=ON.
"""

from __future__ import annotations

from ..backends import backend as row_of
from ..errors import UsageError
from ..quoting import compose, container_argument, printable, shell, systemd, yaml
from ..records import replace
from .formats import compose as compose_file
from .formats import systemd as systemd_file
from .formats.container import Container
from .formats.launch_file import LaunchFile, plain_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..devices.cluster_file import Box, Cluster
    from ..flags.parse import Arguments
    from ..machine import Device
    from ..planner.compare.cluster import Use

OPEN = ("ggml-rpc-server has no authentication and no encryption: anyone who can reach its port can use the "
        "GPU, and can crash or take over the server. Keep it in a private network.")
IMAGE = "llama.cpp:rpc"
_PROGRAM = "ggml-rpc-server"
_NODE = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/xe"}     # of device plugins


def words(box: Box, i: int, host: str | None = None, device: str | None = None) -> list[str]:
    """The command of a machine's i-th server."""
    return [_PROGRAM, "--host", host or box.bind, "--port", str(box.ports[i]), "--device",
            device or box.devices[i].name, "--cache"]


def commands(use: Use) -> dict[str, list[str]]:
    """The commands to type on each machine, by its name."""
    return {box.name: [shell(words(box, i)) for i in range(len(box.devices))] for box in use.boxes}


def files(kind: str, use: Use, cluster: Cluster, arguments: Arguments, image: str = IMAGE) -> dict[str, str]:
    """Path -> text, the head's last. Raises UsageError for a machine that this kind of file cannot start, and
    for two machines whose files would have the same name."""
    name_of = _label if kind == "kubernetes" else _folder
    names: dict[str, str] = {}
    for box in (*use.boxes, cluster.head):
        if (other := names.setdefault(name_of(box.name), box.name)) != box.name:
            raise UsageError(f"the files of the boxes {other!r} and {box.name!r} would have the same names: "
                             "rename one")
    return _KINDS[kind](use, cluster, arguments, image)


def _head(use: Use, arguments: Arguments, image: str = "") -> LaunchFile:
    launch = LaunchFile.of_plan(use.plan, arguments, arguments.params.model)
    launch.image = image
    return launch


def _folder(box: str) -> str:
    """The directory of a machine's files, never a parent directory."""
    return plain_name(box).lstrip(".") or "box"


def _comment() -> list[str]:
    return [f"# {OPEN}"]


# --- systemd

def _systemd(use: Use, cluster: Cluster, arguments: Arguments, image: str) -> dict[str, str]:
    found = {}
    for box in use.boxes:
        for i, device in enumerate(box.devices):
            _runs_linux(box, device, "systemd")
            lines = [*_comment(), "[Unit]",
                     f"Description={_PROGRAM} {plain_name(box.name)} {plain_name(device.name)}",
                     "Wants=network-online.target", "After=network-online.target", "", "[Service]",
                     "DynamicUser=yes",
                     *(["SupplementaryGroups=video render"] if row_of(device.backend).device_nodes else []),
                     "CacheDirectory=llama.cpp", "Environment=LLAMA_CACHE=%C/llama.cpp",
                     "ExecStart=" + " ".join(map(systemd,
                                                 [f"/usr/local/bin/{_PROGRAM}", *words(box, i)[1:]])),
                     "Restart=always", "RestartSec=2", "", "[Install]", "WantedBy=multi-user.target"]
            found[f"{_folder(box.name)}/llama-rpc-{i}.service"] = "\n".join(lines) + "\n"
    found[f"{_folder(cluster.head.name)}/llama-server.service"] = systemd_file.write(_head(use, arguments))
    return found


def _runs_linux(box: Box, device: Device, what: str) -> None:
    row = row_of(device.backend)
    if not (row.gpu_driver or row.device_nodes or row.image):
        by_hand = shell(words(box, box.devices.index(device)))
        raise UsageError(f"{what} cannot start box {box.name}, which runs {device.backend}: type there "
                         f"{by_hand}")


# --- compose

def _compose(use: Use, cluster: Cluster, arguments: Arguments, image: str) -> dict[str, str]:
    found = {}
    for box in use.boxes:
        lines = [*_comment(), f"# {_image_note(image)}", "services:"]
        for i, device in enumerate(box.devices):
            _runs_linux(box, device, "compose")
            row = row_of(device.backend)
            command = words(box, i, "0.0.0.0")
            at = f"[{box.bind}]" if ":" in box.bind else box.bind
            lines += [f"  rpc-{i}:", f"    image: {compose(image)}",
                      f"    entrypoint: [{compose('/app/' + _PROGRAM)}]",
                      f"    command: [{', '.join(map(compose, command[1:]))}]",
                      "    ports:", f"      - {compose(f'{at}:{box.ports[i]}:{box.ports[i]}')}",
                      "    volumes:", "      - type: volume", "        source: rpc-cache",
                      "        target: /root/.cache"]
            if row.gpu_driver:
                lines += ["    deploy:", "      resources:", "        reservations:", "          devices:",
                          f"            - driver: {row.gpu_driver}", "              count: all",
                          "              capabilities: [gpu]"]
            if row.device_nodes:
                lines += ["    devices:", *(f"      - {node}" for node in row.device_nodes)]
            lines += ["    restart: unless-stopped"]
        found[f"{_folder(box.name)}/compose.yaml"] = "\n".join([*lines, "volumes:", "  rpc-cache:"]) + "\n"
    head = compose_file.write(_head(use, arguments, image))
    found[f"{_folder(cluster.head.name)}/compose.yaml"] = f"# {_image_note(image)}\n{head}"
    return found


def _image_note(image: str) -> str:
    return f"{printable(image)}: an image of llama.cpp built with -DGGML_RPC=ON (the published ones are not)"


# --- kubernetes

def _kubernetes(use: Use, cluster: Cluster, arguments: Arguments, image: str) -> dict[str, str]:
    documents, endpoints = [], []
    for box in use.boxes:
        for i, device in enumerate(box.devices):
            _runs_linux(box, device, "kubernetes")
            name, port = f"rpc-{_label(box.name)}-{i}", box.ports[i]
            command = ["/app/" + _PROGRAM, *words(box, i, "0.0.0.0", f"{row_of(device.backend).name}0")[1:]]
            documents += [_deployment(name, box.name, image, command, [], port, device, {}),
                          _service(name, port)]
            endpoints.append(f"{name}:{port}")
    plan = use.plan
    flags = list(plan.flags)
    if "--rpc" in flags:
        flags[flags.index("--rpc") + 1] = ",".join(endpoints)
    launch = _head(replace(use, plan=replace(plan, flags=tuple(flags))), arguments, image)
    container = Container(launch)
    own = next((device for device in cluster.head.devices), None)
    documents += [_deployment("llama-server", cluster.head.name, image, ["/app/llama-server"],
                              container.words, int(container.port), own, container.mounts, launch.secrets),
                  _service("llama-server", int(container.port)), _policy()]
    text = "\n".join([*_comment(), f"# {_image_note(image)}"]) + "\n" + "---\n".join(documents)
    return {"kubernetes.yaml": text}


def _label(text: str) -> str:
    """A name as an RFC 1123 label."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower()).strip("-")[:40] or "box"


def _deployment(name: str, node: str, image: str, command: Sequence[str], args: Sequence[str], port: int,
                device: Device | None, mounts: dict[str, str], secrets: Sequence[str] = ()) -> str:
    row = row_of(device.backend) if device else None
    vendor = "" if row is None else "nvidia" if row.gpu_driver else "amd" if "/dev/kfd" in row.device_nodes else \
        "intel" if row.device_nodes else ""
    role = "head" if name == "llama-server" else "worker"
    lines = ["apiVersion: apps/v1", "kind: Deployment", "metadata:", f"  name: {name}", "spec:",
             "  replicas: 1",
             "  strategy:", "    type: Recreate", "  selector:", "    matchLabels:", f"      app: {name}",
             "  template:", "    metadata:", "      labels:", f"        app: {name}",
             f"        llama-cpp: {role}",
             "    spec:",
             "      nodeSelector:", f"        kubernetes.io/hostname: {yaml(node)}", "      containers:",
             f"        - name: {role}", f"          image: {yaml(image)}", "          command:",
             *(f"            - {container_argument(word)}" for word in command)]
    if args:
        lines += ["          args:", *(f"            - {container_argument(word)}" for word in args)]
    if secrets:
        lines += ["          envFrom:", "            - secretRef:", "                name: llama-server"]
    lines += ["          ports:", f"            - containerPort: {port}"]
    if vendor:
        lines += ["          resources:", "            limits:", f"              {_NODE[vendor]}: 1"]
    if mounts:
        lines += ["          volumeMounts:"]
        for number, inside in enumerate(mounts.values()):
            lines += [f"            - name: models-{number}", f"              mountPath: {yaml(inside)}"]
        lines += ["      volumes:"]
        for number, folder in enumerate(mounts):
            lines += [f"        - name: models-{number}", "          hostPath:",
                      f"            path: {yaml(folder)}"]
    return "\n".join(lines) + "\n"


def _service(name: str, port: int) -> str:
    return (f"apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  selector:\n    app: {name}\n  ports:\n"
            f"    - port: {port}\n      targetPort: {port}\n")


def _policy() -> str:
    """Only the head may reach the workers, if the cluster's network enforces policies."""
    return ("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: llama-cpp-rpc\nspec:\n"
            "  podSelector:\n    matchLabels:\n      llama-cpp: worker\n  policyTypes: [Ingress]\n  ingress:\n"
            "    - from:\n        - podSelector:\n            matchLabels:\n              llama-cpp: head\n")


_KINDS: dict[str, Callable[[Use, Cluster, Arguments, str], dict[str, str]]] = {
    "compose": _compose, "systemd": _systemd, "kubernetes": _kubernetes}
