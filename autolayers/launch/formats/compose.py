"""A Compose file: the Compose specification, services."""

from __future__ import annotations

from ...quoting import compose
from .container import CACHE, CACHED, Container
from .launch_file import LaunchFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    lines = [*notes, "services:"]
    for name, (_, gpus) in launches.items():
        lines += _service(name, boxes[name], gpus)
    # A named volume must be declared at the top level, or Compose refuses the file
    if any(box.cached for box in boxes.values()):
        lines += ["volumes:", f"  {CACHE}:"]
    return "\n".join(lines) + "\n"


def _service(name: str, box: Container, gpus: Sequence[int] | None) -> list[str]:
    launch = box.launch
    lines = [f"  {name}:", f"    image: {compose(box.image)}", "    command:"]
    lines += [f"      - {compose(word)}" for word in box.words]
    # The engine's NVIDIA driver: a count or numbers, never both; without capabilities the whole
    # entry is refused
    lines += ["    ports:", f"      - {compose(box.published)}"]
    lines += _volumes(box)
    # A name without a value is taken from the environment of who runs `docker compose`
    environment = [f"{key}=${{{key}:?}}" if key == _KEY else key for key in launch.secrets]
    environment += [launch.reach.variable] if launch.reach.variable else []
    # Device nodes show all GPUs: the backend's own variable, e.g. GGML_VK_VISIBLE_DEVICES, chooses
    if gpus and not launch.reach.backend.gpu_driver:
        environment.append(f"{launch.reach.backend.visible}={','.join(map(str, gpus))}")
    if environment:
        lines += ["    environment:", *(f"      - {variable}" for variable in environment)]
    lines += _resources(launch, gpus)
    if launch.reach.nodes:
        lines += ["    devices:", *(f"      - {node}:{node}" for node in launch.reach.nodes)]
    scheme, path = launch.health
    # Compose asks every 30 s, and failures within start_period do not count. "unless-stopped"
    # starts it again after a reboot too.
    # -k: the certificate need not be for localhost
    return [
        *lines,
        "    healthcheck:",
        f'      test: ["CMD", "curl", "-fk", {compose(f"{scheme}://localhost:{box.port}{path}")}]',
        f"      start_period: {launch.patience}s",
        "    security_opt:",
        "      - no-new-privileges:true",
        "    restart: unless-stopped",
    ]


def _volumes(box: Container) -> list[str]:
    """Return the lines of the model's folders and the cache of downloads."""
    # The long form: the short one separates its fields by colons, which a path may have
    lines = ["    volumes:"] if box.mounts or box.cached else []
    for mount in box.mounts.values():
        lines += [
            "      - type: bind",
            f"        source: {compose(mount.source)}",
            f"        target: {compose(mount.inside)}",
            f"        read_only: {'false' if mount.written else 'true'}",
            # One that is missing is an error then, not a new directory
            *(["        bind:", "          create_host_path: false"] if not mount.folder else []),
        ]
    if box.cached:
        lines += ["      - type: volume", f"        source: {CACHE}", f"        target: {CACHED}"]
    return lines


def _resources(launch: LaunchFile, gpus: Sequence[int] | None) -> list[str]:
    """Return the lines of RAM and GPUs: docker compose reads deploy:, podman-compose mem_limit:."""
    lines = [f"    mem_limit: {launch.limit}m"] if launch.limit else []
    lines += ["    deploy:", "      resources:"]
    if launch.limit:
        lines += ["        limits:", f"          memory: {launch.limit}m"]
    lines += ["        reservations:", f"          memory: {launch.request}m"]
    if launch.reach.driver:
        # Vulkan numbers them by itself
        chosen = gpus if launch.reach.backend.gpu_driver else None
        numbers = ", ".join(compose(str(number)) for number in chosen or ())
        lines += [
            "          devices:",
            f"            - driver: {launch.reach.driver}",
            f"              device_ids: [{numbers}]" if chosen else "              count: all",
            "              capabilities: [gpu]",
        ]
    return lines
