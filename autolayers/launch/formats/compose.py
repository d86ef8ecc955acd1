"""A Compose file: the Compose specification, services."""

from __future__ import annotations

from ...quoting import compose
from . import document
from .container import CACHE, CACHED, Container
from .launch_file import LaunchFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .document import Document

_KEY = "LLAMA_API_KEY"  # without it the server would be open to all: compose stops


def write(launch: LaunchFile) -> str:
    """Return the file's text, with one service. Raises UsageError for a launch that it cannot
    express."""
    return write_services({"llama-server": (launch, None)})


def write_services(launches: Mapping[str, tuple[LaunchFile, Sequence[int] | None]]) -> str:
    """Return the file's text, with a service for each launch, on the GPUs of these numbers, None
    for all. Raises UsageError."""
    # `fleet` and `cluster` write several services; their notes stand once at the top
    notes = dict.fromkeys(note for launch, _ in launches.values() for note in launch.notes)
    boxes = {name: Container(launch, "compose") for name, (launch, _) in launches.items()}
    file: Document = {
        "services": {name: _service(boxes[name], gpus) for name, (_, gpus) in launches.items()}
    }
    # A named volume must be declared at the top level, or Compose refuses the file
    if any(box.cached for box in boxes.values()):
        file["volumes"] = {CACHE: ""}
    return document.write(file, notes=[*notes])


def _service(box: Container, gpus: Sequence[int] | None) -> Document:
    launch = box.launch
    reach = launch.reach
    # The long form: the short one separates its fields by colons, which a path may have
    volumes: list[Document] = [
        {
            "type": "bind",
            "source": compose(mount.source),
            "target": compose(mount.inside),
            "read_only": not mount.written,
            # One that is missing is an error then, not a new directory
            "bind": None if mount.folder else {"create_host_path": False},
        }
        for mount in box.mounts.values()
    ]
    if box.cached:
        volumes.append({"type": "volume", "source": CACHE, "target": CACHED})
    # A name without a value is taken from the environment of who runs `docker compose`
    environment = [f"{key}=${{{key}:?}}" if key == _KEY else key for key in launch.secrets]
    environment += [reach.variable] if reach.variable else []
    # Device nodes show all GPUs: the backend's own variable, e.g. GGML_VK_VISIBLE_DEVICES, chooses
    if gpus and not reach.backend.gpu_driver:
        environment.append(f"{reach.backend.visible}={','.join(map(str, gpus))}")
    # docker compose reads deploy:, podman-compose mem_limit:
    limit = f"{launch.limit}m" if launch.limit else None
    reserved: Document = {"memory": f"{launch.request}m"}
    if reach.driver:
        # Vulkan numbers them by itself
        chosen = gpus if reach.backend.gpu_driver else None
        numbers = ", ".join(compose(str(number)) for number in chosen or ())
        # The engine's NVIDIA driver: a count or numbers, never both; without capabilities the
        # whole entry is refused
        reserved["devices"] = [
            {
                "driver": reach.driver,
                "device_ids": f"[{numbers}]" if chosen else None,
                "count": None if chosen else "all",
                "capabilities": "[gpu]",
            }
        ]
    scheme, path = launch.health
    return {
        "image": compose(box.image),
        "command": list(map(compose, box.words)),
        "ports": [compose(box.published)],
        "volumes": volumes or None,
        "environment": environment or None,
        "mem_limit": limit,
        "deploy": {
            "resources": {
                "limits": {"memory": limit} if limit else None,
                "reservations": reserved,
            }
        },
        "devices": [f"{node}:{node}" for node in reach.nodes] or None,
        # Compose asks every 30 s, and failures within start_period do not count.
        # -k: the certificate need not be for localhost
        "healthcheck": {
            "test": f'["CMD", "curl", "-fk", {compose(f"{scheme}://localhost:{box.port}{path}")}]',
            "start_period": f"{launch.patience}s",
        },
        "security_opt": ["no-new-privileges:true"],
        # It starts it again after a reboot too
        "restart": "unless-stopped",
    }
